// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "kernels/base/result.hpp"
#include "tools/lehr/commands.hpp"

namespace lehr::tools {

/// Prints one line "lehr COMMAND: …" and leaves the command by CLI::RuntimeError: kExitUsage for
/// what is wrong with an argument (kInvalid, or whatever fail_usage() is given), else kExitFailure.
[[noreturn]] void fail(const char* command, const Error& error);
[[noreturn]] void fail_usage(const char* command, const Error& error);

/// The value, or fail().
template <class T>
T take(const char* command, Result<T> result) {
  if (!result) fail(command, result.error());
  return *std::move(result);
}
inline void take(const char* command, const Status& status) {
  if (!status) fail(command, status.error());
}

}  // namespace lehr::tools
