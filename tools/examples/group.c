/* SPDX-License-Identifier: Apache-2.0 */
/* Two devices that serve one model, each with a part of its KV heads: stand-ins on the host, so it
 * runs anywhere. The first has HBM for a tenth of its pages; a sequence is written and forked, KV
 * heads change device in between, and every output has the bits of one device that holds all. */
#include <lehr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  LAYERS = 4,
  KV_HEADS = 4,
  Q_HEADS = 8,
  DIM = 16,
  PROMPT = 200,
  STEPS = 32,
  MOST_OUT = Q_HEADS * PROMPT * DIM
};

static void must(lehr_status status, const char* what) {
  if (status >= 0) return;
  char text[512];
  lehr_last_error(text, sizeof text);
  fprintf(stderr, "%s: %s (%s)\n", what, text, lehr_reason_name(status));
  exit(1);
}

/* Opens a group of so many devices, the i-th with hbm[i] pages of HBM. */
static lehr_group open_group(const char* const* hbm, uint32_t devices) {
  char texts[4][512];
  lehr_bytes configs[4];
  for (uint32_t d = 0; d < devices; ++d) {
    snprintf(texts[d], sizeof texts[d],
             "machine = \"host\"\n[policy]\nname = \"lru\"\n"
             "[geometry]\nlayers = %d\nkv_heads = %d\nq_heads = %d\nhead_dim = %d\n"
             "page_tokens = 16\ndtype = \"f32\"\n[step]\ncontents = \"kv\"\n"
             "[capacity]\nhbm = \"%s pages\"\nhost = \"2000 pages\"\nnvme = 0\n",
             LAYERS, KV_HEADS, Q_HEADS, DIM, hbm[d]);
    configs[d] = (lehr_bytes){texts[d], strlen(texts[d])};
  }
  lehr_group_options options = {.struct_size = sizeof options, .split = LEHR_SPLIT_HEADS};
  options.configs = configs;
  options.device_count = devices;
  lehr_group group;
  must(lehr_group_open(LEHR_VERSION, &options, &group), "open");
  return group;
}

/* What stands for the model: any numbers that follow from the place. */
static void numbers(float* out, size_t count, uint32_t seed) {
  uint32_t x = seed * 2654435761u + 1u;
  for (size_t i = 0; i < count; ++i) {
    x = x * 1664525u + 1013904223u;
    out[i] = (float)(x >> 8) / (float)(1u << 23) - 1.0f;
  }
}

static lehr_tensor tensor(float* data, const int64_t* shape) {
  return (lehr_tensor){.struct_size = sizeof(lehr_tensor),
                       .device_type = 1,
                       .data = data,
                       .ndim = 4,
                       .dtype_code = 2,
                       .dtype_bits = 32,
                       .dtype_lanes = 1,
                       .shape = shape};
}

/* A step of `tokens` tokens; adds its outputs to a checksum. */
static uint64_t step(lehr_group group, lehr_sequence sequence, uint32_t tokens, uint32_t seed,
                     uint64_t sum) {
  static float k[MOST_OUT], v[MOST_OUT], q[MOST_OUT], out[MOST_OUT];
  const int64_t kv_shape[] = {1, KV_HEADS, tokens, DIM}, q_shape[] = {1, Q_HEADS, tokens, DIM};
  const lehr_tensor kt = tensor(k, kv_shape), vt = tensor(v, kv_shape);
  const lehr_tensor qt = tensor(q, q_shape), ot = tensor(out, q_shape);
  must(lehr_group_step_begin(group, &sequence, &tokens, 1, NULL), "begin");
  for (uint32_t layer = 0; layer < LAYERS; ++layer) {
    numbers(k, (size_t)KV_HEADS * tokens * DIM, seed * 100u + layer);
    numbers(v, (size_t)KV_HEADS * tokens * DIM, seed * 200u + layer);
    numbers(q, (size_t)Q_HEADS * tokens * DIM, seed * 300u + layer);
    must(lehr_group_step_append(group, LEHR_GROUP_WHOLE, layer, &kt, &vt), "append");
    lehr_attend_request request = {
        .struct_size = sizeof request, .layer = layer, .q = &qt, .out = &ot};
    must(lehr_group_step_attend(group, LEHR_GROUP_WHOLE, &request), "attend");
    for (size_t i = 0; i < (size_t)Q_HEADS * tokens * DIM; ++i) {
      uint32_t bits;
      memcpy(&bits, &out[i], sizeof bits);
      sum = (sum ^ bits) * 0x100000001B3u;
    }
  }
  must(lehr_group_step_end(group, NULL, 0), "end");
  return sum;
}

/* A prompt, a fork, steps of both; `moves`: heads change device half-way. */
static uint64_t life(lehr_group group, int moves) {
  lehr_sequence first, second;
  must(lehr_group_sequence_create(group, NULL, 1, &first), "create");
  uint64_t sum = step(group, first, PROMPT, 1, 0xCBF29CE484222325u);
  must(lehr_group_sequence_fork(group, &first, 1, &second, NULL), "fork");
  for (uint32_t i = 0; i < STEPS; ++i) {
    sum = step(group, first, 1, 10 + i, sum);
    sum = step(group, second, 1, 500 + i, sum);
    if (!moves || i != STEPS / 2) continue;
    const uint32_t units[] = {1, 3};
    lehr_rebalance_request request = {
        .struct_size = sizeof request, .unit_count = 2, .units = units};
    lehr_rebalance_report report = {.struct_size = sizeof report};
    must(lehr_group_rebalance(group, &request, &report), "rebalance");
    printf("heads 2/2 -> 1/3: %llu tokens copied, %llu shared by the fork, %.1f kB\n",
           (unsigned long long)report.copied_tokens, (unsigned long long)report.shared_tokens,
           (double)report.copied_bytes / 1e3);
  }
  return sum;
}

int main(void) {
  const char* const alone[] = {"2000"};
  const char* const uneven[] = {"24", "2000"};
  lehr_group one = open_group(alone, 1), two = open_group(uneven, 2);
  const uint64_t expected = life(one, 0), found = life(two, 1);
  for (uint32_t d = 0; d < 2; ++d) {
    lehr_group_device_info info = {.struct_size = sizeof info};
    must(lehr_group_device(two, d, &info), "device");
    printf("device %u: heads %u to %u, %llu pages, %llu of %llu HBM pages in use\n", d,
           info.first_unit, info.first_unit + info.units - 1, (unsigned long long)info.pages,
           (unsigned long long)info.hbm_used_pages, (unsigned long long)info.hbm_pages);
  }
  must(lehr_group_close(one), "close");
  must(lehr_group_close(two), "close");
  printf("%d steps on two devices: %s\n", 2 * STEPS,
         expected == found ? "the same bits as on one" : "OTHER BITS than on one");
  return expected == found ? 0 : 1;
}
