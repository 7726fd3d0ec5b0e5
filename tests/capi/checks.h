/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the C programs: the first that fails says where and why, and ends the program. */
#ifndef LEHR_TESTS_CAPI_CHECKS_H
#define LEHR_TESTS_CAPI_CHECKS_H

#include <lehr.h>
#include <stdio.h>
#include <stdlib.h>

static inline void give_up(const char* what, const char* file, int line, lehr_status status) {
  char text[512];
  lehr_last_error(text, sizeof text);
  fprintf(stderr, "%s:%d: %s: %s, %s: %s\n", file, line, what, lehr_status_name(status),
          lehr_reason_name(status), text);
  exit(1);
}

#define MUST(call)                                                       \
  do {                                                                   \
    const lehr_status status_ = (call);                                  \
    if (status_ != LEHR_OK) give_up(#call, __FILE__, __LINE__, status_); \
  } while (0)
#define CHECK(what)                                           \
  do {                                                        \
    if (!(what)) give_up(#what, __FILE__, __LINE__, LEHR_OK); \
  } while (0)

#endif
