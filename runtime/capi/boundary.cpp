// SPDX-License-Identifier: Apache-2.0
#include "runtime/capi/boundary.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

namespace lehr::capi {

namespace {

/// Without a destructor: an engine may still call while its thread, or the process, winds up.
struct LastError {
  std::array<char, 4096> text;
  std::size_t size;
};
thread_local constinit LastError thread_error{};

}  // namespace

lehr_status to_status(const Error& error) {
  return LEHR_MAKE_STATUS(static_cast<lehr_status>(error.code),
                          static_cast<lehr_status>(error.reason));
}

lehr_status fail(const Error& error) noexcept {
  thread_error.size = std::min(error.what.size(), thread_error.text.size());
  std::memcpy(thread_error.text.data(), error.what.data(), thread_error.size);
  return to_status(error);
}

std::string_view last_error() noexcept { return {thread_error.text.data(), thread_error.size}; }

Status check_version(std::uint32_t version) {
  constexpr std::uint32_t kMajor = 1'000'000;
  if (version / kMajor <= LEHR_VERSION_MAJOR) return {};
  return Error{Code::kVersion, Reason::kNone,
               "the caller was built for version " + std::to_string(version / kMajor) +
                   ", this is " + std::to_string(LEHR_VERSION_MAJOR)};
}

Result<std::string_view> bytes_of(const lehr_bytes& bytes, const char* what) {
  if (bytes.size == 0) return std::string_view();
  if (bytes.data == nullptr) return invalid(std::string(what) + ": NULL with a size");
  if (bytes.size > (std::size_t{1} << 20)) {
    return invalid(std::string(what) + ": more than 2^20 bytes", Reason::kOutOfRange);
  }
  return std::string_view(static_cast<const char*>(bytes.data), bytes.size);
}

Status copy_text(std::string_view text, char* buffer, std::size_t size, std::size_t* needed) {
  if (buffer == nullptr && size > 0) return invalid("buffer is NULL with a size");
  if (needed != nullptr) *needed = text.size() + 1;
  if (size == 0) return {};
  const std::size_t kept = std::min(text.size(), size - 1);
  std::memcpy(buffer, text.data(), kept);
  buffer[kept] = '\0';
  return {};
}

}  // namespace lehr::capi
