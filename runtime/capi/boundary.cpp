// SPDX-License-Identifier: Apache-2.0
#include "runtime/capi/boundary.hpp"

#include <algorithm>

namespace lehr::capi {

namespace {

std::string& thread_error() {
  thread_local std::string text;
  return text;
}

}  // namespace

lehr_status to_status(const Error& error) {
  return LEHR_MAKE_STATUS(static_cast<lehr_status>(error.code),
                          static_cast<lehr_status>(error.reason));
}

lehr_status fail(const Error& error) noexcept {
  try {
    thread_error() = error.what;
  } catch (...) {
    thread_error().clear();  // out of memory: the status still says what happened
  }
  return to_status(error);
}

const std::string& last_error() noexcept { return thread_error(); }

Result<std::string_view> bytes_of(const lehr_bytes& bytes, const char* what) {
  if (bytes.size == 0) return std::string_view();
  if (bytes.data == nullptr) return invalid(std::string(what) + ": NULL with a size");
  if (bytes.size > (std::size_t{1} << 20)) {
    return invalid(std::string(what) + ": more than 2^20 bytes", Reason::kOutOfRange);
  }
  return std::string_view(static_cast<const char*>(bytes.data), bytes.size);
}

Status copy_text(const std::string& text, char* buffer, std::size_t size, std::size_t* needed) {
  if (buffer == nullptr && size > 0) return invalid("buffer is NULL with a size");
  if (needed != nullptr) *needed = text.size() + 1;
  if (size == 0) return {};
  const std::size_t kept = std::min(text.size(), size - 1);
  std::memcpy(buffer, text.data(), kept);
  buffer[kept] = '\0';
  return {};
}

}  // namespace lehr::capi
