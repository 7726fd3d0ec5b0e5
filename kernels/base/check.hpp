// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>

/// LEHR_CHECKS: 0 none, 1 cheap (release), 2 debug, 3 full. Guards Lehr's own invariants only: what
/// users, files and devices hand in is validated and refused, never asserted.
#ifndef LEHR_CHECKS
#define LEHR_CHECKS 1
#endif

namespace lehr::detail {
[[noreturn]] inline void check_failed(const char* expr, const char* file, int line) {
  std::fprintf(stderr, "lehr: broken invariant: %s (%s:%d)\n", expr, file, line);
  std::abort();
}
}  // namespace lehr::detail

#define LEHR_CHECK(level, expr)                                             \
  do {                                                                      \
    if constexpr (LEHR_CHECKS >= (level)) {                                 \
      if (!(expr)) ::lehr::detail::check_failed(#expr, __FILE__, __LINE__); \
    }                                                                       \
  } while (false)
