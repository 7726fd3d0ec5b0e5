// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "kernels/base/result.hpp"

namespace lehr::transfer {

/// An errno as an Error: "what: text". A full disk or quota carries Reason::kNoSpace.
inline Error os_error(std::string what, int error_number) {
  const bool full = error_number == ENOSPC || error_number == EDQUOT;
  what += ": ";
  what += std::generic_category().message(error_number);
  return io_error(std::move(what), full ? Reason::kNoSpace : Reason::kNone);
}

/// Owner of one file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace lehr::transfer
