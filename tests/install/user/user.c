/* SPDX-License-Identifier: Apache-2.0 */
#include <lehr.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  const char* config =
      "profile = \"gh200\"\n[geometry]\nlayers = 1\nkv_heads = 1\nhead_dim = 64\n"
      "[capacity]\nhbm = \"8 pages\"\n";
  lehr_open_options options = {.struct_size = sizeof options};
  lehr_runtime runtime = {0};
  options.config = config;
  options.config_size = strlen(config);
  if (lehr_version() != LEHR_VERSION) return 1;
  if (lehr_open(LEHR_VERSION, &options, &runtime) != LEHR_OK) {
    char text[256];
    lehr_last_error(text, sizeof text);
    fprintf(stderr, "%s\n", text);
    return 1;
  }
  return lehr_close(runtime) == LEHR_OK ? 0 : 1;
}
