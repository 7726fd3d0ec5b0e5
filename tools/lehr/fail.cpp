// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/fail.hpp"

#include <cstdio>

#include <CLI/CLI.hpp>

#include "tools/lehr/terminal.hpp"

namespace lehr::tools {

namespace {

[[noreturn]] void leave(const char* command, const Error& error, int code) {
  std::fprintf(stderr, "lehr %s: %s\n", command, printable(error.what).c_str());
  throw CLI::RuntimeError(code);
}

}  // namespace

void fail(const char* command, const Error& error) {
  leave(command, error, error.code == Code::kInvalid ? kExitUsage : kExitFailure);
}

void fail_usage(const char* command, const Error& error) { leave(command, error, kExitUsage); }

}  // namespace lehr::tools
