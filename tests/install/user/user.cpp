// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include <lehr.h>

int main() {
  lehr_runtime_info info{};
  info.struct_size = sizeof(info);
  const lehr_status status = lehr_runtime_describe(lehr_runtime{}, &info);
  std::printf("%s\n", lehr_status_name(status));
  return LEHR_STATUS_CLASS(status) == LEHR_CLASS_STALE ? 0 : 1;
}
