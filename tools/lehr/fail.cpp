// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/fail.hpp"

#include <cstdio>

#include <CLI/CLI.hpp>

namespace lehr::tools {

void fail(const char* command, const Error& error) {
  std::fprintf(stderr, "lehr %s: %s\n", command, error.what.c_str());
  throw CLI::RuntimeError(kExitFailure);
}

void fail_usage(const char* command, const Error& error) {
  std::fprintf(stderr, "lehr %s: %s\n", command, error.what.c_str());
  throw CLI::RuntimeError(kExitUsage);
}

}  // namespace lehr::tools
