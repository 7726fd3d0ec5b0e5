/* SPDX-License-Identifier: Apache-2.0 */
/* The step level in forty lines: an engine that tells Lehr what its attention reads. */
#include <lehr.h>
#include <stdio.h>
#include <string.h>

static int failed(const char* what) {
  char text[256];
  lehr_last_error(text, sizeof text);
  fprintf(stderr, "%s: %s\n", what, text);
  return 1;
}

int main(void) {
  const char* config =
      "profile = \"h200-pcie5\"\n"
      "[policy]\nname = \"lru\"\n"
      "[geometry]\nlayers = 2\nkv_heads = 1\nq_heads = 4\nhead_dim = 128\n"
      "[capacity]\nhbm = \"32 pages\"\n";
  lehr_open_options open = {
      .struct_size = sizeof open, .config = config, .config_size = strlen(config)};
  lehr_runtime runtime;
  if (lehr_open(LEHR_VERSION, &open, &runtime) < 0) return failed("open");

  /* A prompt of 1000 tokens has been prefilled: 62 full pages of 16 tokens and a tail, in each
   * layer. */
  lehr_sequence_desc prompt = {.struct_size = sizeof prompt, .prompt_tokens = 1000};
  lehr_sequence sequence;
  if (lehr_sequence_create(runtime, &prompt, 1, &sequence) < 0) return failed("create");

  for (int token = 0; token < 64; ++token) {
    if (lehr_step_begin(runtime, &sequence, 1, NULL) < 0) return failed("begin");
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const uint32_t pages[] = {0, 7, 21, 60,
                                61}; /* what a selector chose; the tail is always read */
      lehr_selection group = {
          .struct_size = sizeof group, .sequence = sequence, .pages = pages, .page_count = 5};
      if (lehr_step_layer(runtime, layer, &group, 1) < 0) return failed("layer");
    }
    if (lehr_step_end(runtime, NULL) < 0) return failed("end");
  }

  lehr_step_report totals = {.struct_size = sizeof totals};
  if (lehr_step_totals(runtime, &totals) < 0) return failed("totals");
  printf(
      "64 steps: %llu page reads, %llu from HBM; predicted %.3f ms, of which %.3f ms waited for "
      "transfers\n",
      (unsigned long long)totals.reads, (unsigned long long)totals.hits, totals.total_seconds * 1e3,
      totals.exposed_seconds * 1e3);
  return lehr_close(runtime) < 0 ? failed("close") : 0;
}
