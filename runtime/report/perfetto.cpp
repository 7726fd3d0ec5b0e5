// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/perfetto.hpp"

#include <span>

#include <fmt/core.h>

#include "runtime/formats/file.hpp"

namespace lehr::runtime {

std::string json_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out;
}

void TimelineFile::event(const std::string& text) {
  if (!events_.empty()) events_ += ",\n";
  events_ += text;
}

void TimelineFile::name_process(std::uint32_t process, std::string_view name) {
  event(fmt::format(R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":"{}"}}}})",
                    process, json_escaped(name)));
}

void TimelineFile::name_track(std::uint32_t process, std::uint32_t track, std::string_view name) {
  event(fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})",
                    process, track, json_escaped(name)));
  event(fmt::format(
      R"({{"ph":"M","pid":{},"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}}}})",
      process, track, track));
}

void TimelineFile::slice(std::uint32_t process, std::uint32_t track, std::string_view name,
                         double begin, double seconds, std::string_view details) {
  event(fmt::format(
      R"({{"ph":"X","pid":{},"tid":{},"name":"{}","ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})",
      process, track, json_escaped(name), begin * 1e6, seconds * 1e6, details));
}

void TimelineFile::counter(std::uint32_t process, std::string_view name, double at, double value) {
  event(fmt::format(R"({{"ph":"C","pid":{},"name":"{}","ts":{:.3f},"args":{{"value":{}}}}})",
                    process, json_escaped(name), at * 1e6, value));
}

Status TimelineFile::write(const std::string& path) const {
  const std::string text = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n" + events_ + "\n]}\n";
  LEHR_ASSIGN(auto file, formats::AtomicFile::create(path));
  LEHR_TRY(file.write(std::as_bytes(std::span(text))));
  return file.commit();
}

}  // namespace lehr::runtime
