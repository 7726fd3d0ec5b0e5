// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/terminal.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

#include "tools/lehr/fail.hpp"

namespace lehr::tools {

namespace {

/// Control characters as \xNN, but for those in `kept`.
std::string escaped(std::string_view text, std::string_view kept) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0U;
    if ((byte < 0x20 || byte == 0x7F) && kept.find(text[i]) == std::string_view::npos) {
      out += fmt::format("\\x{:02x}", byte);
    } else if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // the second range, in UTF-8
      out += fmt::format("\\x{:02x}", next);
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) { return escaped(text, ""); }

void print(const char* command, std::string_view unsafe) {
  const std::string text = escaped(unsafe, "\n\t");
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return;
  }
  fail(command, io_error(fmt::format("standard output: cannot write: {}", std::strerror(errno))));
}

}  // namespace lehr::tools
