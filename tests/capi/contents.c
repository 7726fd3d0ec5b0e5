/* SPDX-License-Identifier: Apache-2.0 */
/* The step level with the caller's K and V, in C11: values against float64, the same bits wherever
 * pages live, pages that really move. Exits with 1 at the first thing that is not as it should be.
 */
#include <lehr.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checks.h"

#define REFUSED(call, class_, reason_)                                                      \
  do {                                                                                      \
    const lehr_status status_ = (call);                                                     \
    if (LEHR_STATUS_CLASS(status_) != (class_) || LEHR_STATUS_REASON(status_) != (reason_)) \
      give_up(#call, __FILE__, __LINE__, status_);                                          \
  } while (0)

enum { LAYERS = 3, HEADS = 2, Q_HEADS = 6, DIM = 24, PAGE = 16, MOST = 320 };

static lehr_runtime open_with(const char* hbm, const char* host, const char* nvme,
                              const char* more) {
  char config[1024];
  snprintf(config, sizeof config,
           "machine = \"host\"\nprofile = \"h200-pcie5\"\n"
           "[policy]\nname = \"lru\"\n"
           "[geometry]\nlayers = %d\nkv_heads = %d\nq_heads = %d\nhead_dim = %d\npage_tokens = %d\n"
           "dtype = \"f32\"\n"
           "[step]\ncontents = \"kv\"\n%s\n"
           "[capacity]\nhbm = \"%s pages\"\nhost = \"%s pages\"\nnvme = \"%s pages\"\n",
           LAYERS, HEADS, Q_HEADS, DIM, PAGE, more, hbm, host, nvme);
  lehr_open_options options = {.struct_size = sizeof options};
  options.config = config;
  options.config_size = strlen(config);
  lehr_runtime runtime = {0};
  MUST(lehr_open(LEHR_VERSION, &options, &runtime));
  return runtime;
}

/* A model's K, V and Q, a function of sequence, layer, head, position and channel: what a sequence
 * holds can be said without any memory of it. */
static float value(uint32_t what, uint32_t text, uint32_t layer, uint32_t head, uint32_t position,
                   uint32_t channel) {
  uint64_t x = what * 0x9E3779B97F4A7C15u ^ text * 0xC2B2AE3D27D4EB4Fu ^
               layer * 0x165667B19E3779F9u ^ head * 0x27D4EB2F165667C5u ^
               position * 0x85EBCA77C2B2AE63u ^ (channel + 1) * 0xD6E8FEB86659FD93u;
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93u;
  x ^= x >> 29;
  x *= 0x94D049BB133111EBu;
  x ^= x >> 32;
  return (float)((double)(x >> 40) / (double)(1u << 24) * 2.0 - 1.0);
}

static lehr_tensor tensor_of(float* data, const int64_t* shape, const int64_t* strides) {
  lehr_tensor t = {.struct_size = sizeof t,
                   .device_type = 1,
                   .data = data,
                   .ndim = 4,
                   .dtype_code = 2,
                   .dtype_bits = 32,
                   .dtype_lanes = 1,
                   .shape = shape,
                   .strides = strides};
  return t;
}

/* Text of a sequence up to a position: a fork writes another text after it. */
typedef struct {
  uint32_t text, fork_text, fork_at;
} story;
static uint32_t text_at(const story* s, uint32_t position) {
  return position < s->fork_at ? s->text : s->fork_text;
}

typedef struct {
  float scale, cap;
  uint32_t window;
  const uint8_t* chosen; /* [pages], or NULL for all */
} rule;

/* Softmax attention of one query head in float64. shares[page], or NULL. */
static void expected(const story* s, uint32_t layer, uint32_t q_head, uint32_t position,
                     const rule* r, double* out, double* shares) {
  const uint32_t head = q_head / (Q_HEADS / HEADS);
  const double scale = r->scale != 0 ? (double)r->scale : 1.0 / sqrt((double)DIM);
  double logit[MOST];
  double most = -INFINITY;
  double sum = 0;
  for (uint32_t p = 0; p <= position; ++p) {
    const int seen =
        (r->window == 0 || p + r->window > position) && (r->chosen == NULL || r->chosen[p / PAGE]);
    double dot = 0;
    for (uint32_t c = 0; c < DIM; ++c) {
      dot += (double)value(3, text_at(s, position), layer, q_head, position, c) *
             (double)value(1, text_at(s, p), layer, head, p, c);
    }
    dot *= scale;
    if (r->cap > 0) dot = (double)r->cap * tanh(dot / (double)r->cap);
    logit[p] = seen ? dot : -INFINITY;
    if (logit[p] > most) most = logit[p];
  }
  for (uint32_t c = 0; c < DIM; ++c) out[c] = 0;
  for (uint32_t p = 0; p <= position; ++p) sum += exp(logit[p] - most);
  for (uint32_t p = 0; p <= position; ++p) {
    const double w = exp(logit[p] - most) / sum;
    if (shares != NULL) shares[p / PAGE] += w / (Q_HEADS / HEADS);
    for (uint32_t c = 0; c < DIM; ++c)
      out[c] += w * (double)value(2, text_at(s, p), layer, head, p, c);
  }
}

static void check_out(const story* s, uint32_t layer, uint32_t q_head, uint32_t position,
                      const rule* r, const float* out, int line) {
  double wanted[DIM];
  expected(s, layer, q_head, position, r, wanted, NULL);
  for (uint32_t c = 0; c < DIM; ++c) {
    if (fabs(wanted[c] - (double)out[c]) > 2e-6) {
      fprintf(stderr, "layer %u, query head %u, position %u, channel %u: %.9g, expected %.9g\n",
              layer, q_head, position, c, (double)out[c], wanted[c]);
      give_up("values", __FILE__, line, LEHR_OK);
    }
  }
}

/* One step of a batch: tokens[b] new tokens each; K and V as [B, S, H, D] with strides of [B, H, S,
 * D], as engines have them. Attends where `attend` says so; outputs of all layers to `outs`,
 * [LAYERS][B][S][Q_HEADS][DIM]. */
typedef struct {
  lehr_runtime runtime;
  uint32_t count;
  const lehr_sequence* sequences;
  const story* stories;
  uint64_t before[4];
} batch;

static size_t out_at(uint32_t layer, uint32_t count, uint32_t most, uint32_t b, uint32_t s,
                     uint32_t head) {
  return ((((size_t)layer * count + b) * most + s) * Q_HEADS + head) * DIM;
}

static void step(batch* b, const uint32_t* tokens, const rule* r, int32_t select_by, float amount,
                 float* outs, uint8_t* mass, uint8_t* peak, uint32_t pitch) {
  uint32_t most = 1;
  for (uint32_t i = 0; i < b->count; ++i) {
    MUST(lehr_sequence_tokens(b->runtime, b->sequences[i], &b->before[i]));
    if (tokens[i] > most) most = tokens[i];
  }
  MUST(lehr_step_begin_tokens(b->runtime, b->sequences, tokens, b->count, NULL));
  const size_t kv = (size_t)b->count * most * HEADS * DIM;
  float* k = malloc(kv * sizeof(float));
  float* v = malloc(kv * sizeof(float));
  float* q = malloc((size_t)b->count * most * Q_HEADS * DIM * sizeof(float));
  for (uint32_t layer = 0; layer < LAYERS; ++layer) {
    for (uint32_t i = 0; i < b->count; ++i) {
      for (uint32_t s = 0; s < most; ++s) {
        const uint32_t p = (uint32_t)b->before[i] + s;
        const uint32_t text = text_at(&b->stories[i], p);
        for (uint32_t c = 0; c < DIM; ++c) {
          for (uint32_t h = 0; h < HEADS; ++h) {
            const size_t at = (((size_t)i * most + s) * HEADS + h) * DIM + c;
            k[at] = s < tokens[i] ? value(1, text, layer, h, p, c) : NAN; /* not to be looked at */
            v[at] = s < tokens[i] ? value(2, text, layer, h, p, c) : NAN;
          }
          for (uint32_t h = 0; h < Q_HEADS; ++h)
            q[(((size_t)i * most + s) * Q_HEADS + h) * DIM + c] = value(3, text, layer, h, p, c);
        }
      }
    }
    const int64_t kv_shape[4] = {b->count, HEADS, most, DIM};
    const int64_t kv_strides[4] = {(int64_t)most * HEADS * DIM, DIM, HEADS * DIM, 1};
    const lehr_tensor kt = tensor_of(k, kv_shape, kv_strides);
    const lehr_tensor vt = tensor_of(v, kv_shape, kv_strides);
    MUST(lehr_step_append(b->runtime, layer, &kt, &vt));
    if (outs == NULL) continue;
    const int64_t q_shape[4] = {b->count, Q_HEADS, most, DIM};
    const int64_t q_strides[4] = {(int64_t)most * Q_HEADS * DIM, DIM, Q_HEADS * DIM, 1};
    const lehr_tensor qt = tensor_of(q, q_shape, q_strides);
    const lehr_tensor out =
        tensor_of(outs + out_at(layer, b->count, most, 0, 0, 0), q_shape, q_strides);
    lehr_attend_request request = {.struct_size = sizeof request,
                                   .layer = layer,
                                   .q = &qt,
                                   .out = &out,
                                   .scale = r->scale,
                                   .soft_cap = r->cap,
                                   .window = r->window,
                                   .select_by = select_by,
                                   .select_amount = amount,
                                   .select_sinks = 1,
                                   .select_recent = 2,
                                   .code_pitch = pitch,
                                   .mass = mass,
                                   .peak = peak};
    if (mass != NULL) request.mass = mass + (size_t)layer * b->count * HEADS * pitch;
    if (peak != NULL) request.peak = peak + (size_t)layer * b->count * HEADS * pitch;
    MUST(lehr_step_attend(b->runtime, &request));
  }
  MUST(lehr_step_end(b->runtime, NULL));
  free(k);
  free(v);
  free(q);
}

static void check_step(const batch* b, const uint32_t* tokens, const rule* r, const float* outs,
                       int line) {
  uint32_t most = 1;
  for (uint32_t i = 0; i < b->count; ++i)
    if (tokens[i] > most) most = tokens[i];
  for (uint32_t layer = 0; layer < LAYERS; ++layer) {
    for (uint32_t i = 0; i < b->count; ++i) {
      for (uint32_t s = 0; s < tokens[i]; ++s) {
        for (uint32_t h = 0; h < Q_HEADS; ++h) {
          check_out(&b->stories[i], layer, h, (uint32_t)b->before[i] + s, r,
                    outs + out_at(layer, b->count, most, i, s, h), line);
        }
      }
    }
  }
}

static void create(lehr_runtime runtime, lehr_sequence* out, uint32_t count) {
  lehr_sequence_desc descs[4];
  memset(descs, 0, sizeof descs);
  for (uint32_t i = 0; i < count; ++i) descs[i].struct_size = sizeof descs[i];
  MUST(lehr_sequence_create(runtime, descs, count, out));
}

static lehr_contents_report report_of(lehr_runtime runtime) {
  lehr_contents_report report = {.struct_size = sizeof report};
  MUST(lehr_contents_read(runtime, &report));
  return report;
}

/* ---- Right values ---- */

static void ragged_chunks_then_steps(void) {
  lehr_runtime runtime = open_with("40", "400", "0", "");
  lehr_sequence sequences[2];
  create(runtime, sequences, 2);
  const story stories[2] = {{7, 0, MOST}, {8, 0, MOST}};
  batch b = {.runtime = runtime, .count = 2, .sequences = sequences, .stories = stories};
  float* outs = calloc((size_t)LAYERS * 2 * 64 * Q_HEADS * DIM, sizeof(float));
  const rule rules[] = {{0}, {.scale = 0.3f}, {.cap = 1.5f}, {.window = 21}, {.window = 1}};
  const uint32_t chunks[][2] = {{37, 5}, {1, 16}, {11, 0}, {1, 1}, {2, 64}};
  for (size_t i = 0; i < sizeof rules / sizeof rules[0]; ++i) {
    step(&b, chunks[i], &rules[i], LEHR_SELECT_ALL, 0, outs, NULL, NULL, 0);
    check_step(&b, chunks[i], &rules[i], outs, __LINE__);
    const uint32_t ones[2] = {1, 1};
    for (uint32_t n = 0; n < 5; ++n) {
      step(&b, ones, &rules[i], LEHR_SELECT_ALL, 0, outs, NULL, NULL, 0);
      check_step(&b, ones, &rules[i], outs, __LINE__);
    }
  }
  uint64_t tokens = 0;
  MUST(lehr_sequence_tokens(runtime, sequences[0], &tokens));
  CHECK(tokens == 37 + 1 + 11 + 1 + 2 + 25);

  /* What was put in comes out: dense, from whichever tier. */
  float* k = malloc(sizeof(float) * 2 * HEADS * MOST * DIM);
  float* v = malloc(sizeof(float) * 2 * HEADS * MOST * DIM);
  const int64_t shape[4] = {2, HEADS, MOST, DIM};
  const lehr_tensor kt = tensor_of(k, shape, NULL);
  const lehr_tensor vt = tensor_of(v, shape, NULL);
  for (uint32_t layer = 0; layer < LAYERS; ++layer) {
    MUST(lehr_sequence_gather(runtime, layer, sequences, 2, &kt, &vt));
    for (uint32_t i = 0; i < 2; ++i) {
      MUST(lehr_sequence_tokens(runtime, sequences[i], &tokens));
      for (uint32_t h = 0; h < HEADS; ++h) {
        for (uint32_t p = 0; p < MOST; ++p) {
          for (uint32_t c = 0; c < DIM; ++c) {
            const size_t at = (((size_t)i * HEADS + h) * MOST + p) * DIM + c;
            CHECK(k[at] == (p < tokens ? value(1, stories[i].text, layer, h, p, c) : 0.0f));
            CHECK(v[at] == (p < tokens ? value(2, stories[i].text, layer, h, p, c) : 0.0f));
          }
        }
      }
    }
  }
  free(k);
  free(v);
  free(outs);
  MUST(lehr_close(runtime));
}

/* Shares that come out are those of the softmax, within a code. */
static void mass_out(void) {
  lehr_runtime runtime = open_with("200", "400", "0", "");
  lehr_sequence sequence;
  create(runtime, &sequence, 1);
  const story s = {5, 0, MOST};
  batch b = {.runtime = runtime, .count = 1, .sequences = &sequence, .stories = &s};
  float* outs = calloc((size_t)LAYERS * 100 * Q_HEADS * DIM, sizeof(float));
  uint8_t mass[LAYERS * HEADS * 8];
  uint8_t peak[LAYERS * HEADS * 8];
  const rule r = {.scale = 2.0f};
  const uint32_t prompt = 100;
  const uint32_t one = 1;
  for (uint32_t n = 0; n < 2; ++n) { /* of a chunk's last query, and of a step's */
    step(&b, n == 0 ? &prompt : &one, &r, LEHR_SELECT_ALL, 0, outs, mass, peak, 8);
    for (uint32_t layer = 0; layer < LAYERS; ++layer) {
      for (uint32_t h = 0; h < HEADS; ++h) {
        double shares[8] = {0};
        double most[8] = {0};
        for (uint32_t i = 0; i < Q_HEADS / HEADS; ++i) {
          double own[8] = {0};
          double out[DIM];
          expected(&s, layer, h * (Q_HEADS / HEADS) + i, 99 + n, &r, out, own);
          for (uint32_t p = 0; p < 8; ++p) {
            shares[p] += own[p];
            if (own[p] * (Q_HEADS / HEADS) > most[p]) most[p] = own[p] * (Q_HEADS / HEADS);
          }
        }
        for (uint32_t p = 0; p < 8; ++p) {
          const uint32_t at = (layer * HEADS + h) * 8 + p;
          if (p > (99 + n) / PAGE) {
            CHECK(mass[at] == 255 && peak[at] == 255);
          } else {
            CHECK(fabs(-8 * log2(shares[p]) - mass[at]) < 0.51);
            CHECK(fabs(-8 * log2(most[p]) - peak[at]) < 0.51);
          }
        }
      }
    }
  }
  free(outs);
  MUST(lehr_close(runtime));
}

/* A selection reads what it says: sinks, recent pages, and those whose keys promise most. */
static void selection(void) {
  lehr_runtime runtime = open_with("400", "400", "0", "");
  lehr_sequence sequence;
  create(runtime, &sequence, 1);
  const story s = {9, 0, MOST};
  batch b = {.runtime = runtime, .count = 1, .sequences = &sequence, .stories = &s};
  float* outs = calloc((size_t)LAYERS * 200 * Q_HEADS * DIM, sizeof(float));
  uint8_t mass[LAYERS * HEADS * 16];
  const uint32_t prompt = 195;
  const uint32_t one = 1;
  const rule all = {.scale = 1.0f};
  step(&b, &prompt, &all, LEHR_SELECT_ALL, 0, NULL, NULL, NULL, 0);
  const struct {
    int32_t by;
    float amount;
    uint32_t pages;
  } cases[] = {{LEHR_SELECT_COUNT, 5, 5}, {LEHR_SELECT_RATIO, 0.5f, 7}, {LEHR_SELECT_COUNT, 1, 3}};
  for (size_t i = 0; i < 3; ++i) {
    step(&b, &one, &all, cases[i].by, cases[i].amount, outs, mass, NULL, 16);
    const uint32_t position = prompt + (uint32_t)i;
    const uint32_t pages = position / PAGE + 1;
    for (uint32_t layer = 0; layer < LAYERS; ++layer) {
      for (uint32_t h = 0; h < HEADS; ++h) {
        uint8_t chosen[16] = {0};
        uint32_t count = 0;
        double least_in = INFINITY;
        double most_out = -INFINITY;
        for (uint32_t p = 0; p < pages; ++p) {
          chosen[p] = mass[(layer * HEADS + h) * 16 + p] != 255;
          count += chosen[p];
          if (p == 0 || p + 2 >= pages) { /* always */
            CHECK(chosen[p]);
            continue;
          }
          double best = -INFINITY; /* what a key inside the page's box could score */
          for (uint32_t g = 0; g < Q_HEADS / HEADS; ++g) {
            double bound = 0;
            for (uint32_t c = 0; c < DIM; ++c) {
              double low = INFINITY;
              double high = -INFINITY;
              for (uint32_t t = 0; t < PAGE; ++t) {
                const double x = (double)value(1, s.text, layer, h, p * PAGE + t, c);
                low = fmin(low, x);
                high = fmax(high, x);
              }
              const double x =
                  (double)value(3, s.text, layer, h * (Q_HEADS / HEADS) + g, position, c);
              bound += fmax(low * x, high * x);
            }
            best = fmax(best, bound);
          }
          if (chosen[p]) least_in = fmin(least_in, best);
          if (!chosen[p]) most_out = fmax(most_out, best);
        }
        CHECK(count == cases[i].pages);
        CHECK(least_in > most_out - 1e-5);
        const rule r = {.scale = 1.0f, .chosen = chosen};
        for (uint32_t g = 0; g < Q_HEADS / HEADS; ++g) {
          const uint32_t q_head = h * (Q_HEADS / HEADS) + g;
          check_out(&s, layer, q_head, position, &r, outs + out_at(layer, 1, 1, 0, 0, q_head),
                    __LINE__);
        }
      }
    }
  }
  free(outs);
  MUST(lehr_close(runtime));
}

/* ---- The same bits wherever pages live ---- */

static float* decode(lehr_runtime runtime, int32_t by, float amount, uint32_t steps, size_t* size) {
  lehr_sequence sequences[2];
  create(runtime, sequences, 2);
  const story stories[2] = {{11, 0, MOST}, {12, 0, MOST}};
  batch b = {.runtime = runtime, .count = 2, .sequences = sequences, .stories = stories};
  const uint32_t prompt[2] = {200, 130};
  const uint32_t ones[2] = {1, 1};
  const size_t one_step = (size_t)LAYERS * 2 * Q_HEADS * DIM;
  *size = (size_t)LAYERS * 2 * 200 * Q_HEADS * DIM + steps * one_step;
  float* outs = calloc(*size, sizeof(float));
  const rule r = {.scale = 1.0f};
  step(&b, prompt, &r, LEHR_SELECT_ALL, 0, outs, NULL, NULL, 0);
  float* at = outs + (size_t)LAYERS * 2 * 200 * Q_HEADS * DIM;
  for (uint32_t n = 0; n < steps; ++n, at += one_step)
    step(&b, ones, &r, by, amount, at, NULL, NULL, 0);
  return outs;
}

static void same_bits_everywhere(void) {
  const struct {
    int32_t by;
    float amount;
  } rules[] = {{LEHR_SELECT_ALL, 0}, {LEHR_SELECT_RATIO, 0.4f}};
  for (size_t i = 0; i < 2; ++i) {
    size_t size = 0;
    lehr_runtime roomy = open_with("400", "400", "0", "");
    float* wanted = decode(roomy, rules[i].by, rules[i].amount, 40, &size);
    const lehr_contents_report all_in = report_of(roomy);
    MUST(lehr_close(roomy));
    CHECK(all_in.read_in_place == 0 && all_in.read_below == 0);
    const char* const tight[][3] = {{"40", "400", "0"}, {"30", "60", "400"}};
    for (size_t t = 0; t < 2; ++t) {
      lehr_runtime runtime = open_with(tight[t][0], tight[t][1], tight[t][2], "");
      float* found = decode(runtime, rules[i].by, rules[i].amount, 40, &size);
      CHECK(memcmp(wanted, found, size * sizeof(float)) == 0);
      const lehr_contents_report moved = report_of(runtime);
      CHECK(moved.read_in_place > 0);
      CHECK(t == 0 || moved.read_below > 0);
      const uint64_t bytes = moved.moved_pages * 2 * PAGE * DIM * sizeof(float);
      CHECK(moved.moved_pages > 100); /* and files move whole blocks */
      CHECK(t == 0 ? moved.moved_bytes == bytes : moved.moved_bytes > bytes);
      free(found);
      MUST(lehr_close(runtime));
    }
    free(wanted);
  }
}

/* ---- Sequences come, go back and change places ---- */

static void forks_rollbacks_and_beams(void) {
  /* Little HBM, so that what comes back comes from below. */
  lehr_runtime runtime = open_with("36", "400", "0", "");
  lehr_sequence sequences[4];
  create(runtime, sequences, 2);
  story stories[4] = {{21, 0, MOST}, {22, 0, MOST}};
  batch b = {.runtime = runtime, .count = 2, .sequences = sequences, .stories = stories};
  const rule r = {0};
  float* outs = calloc((size_t)LAYERS * 4 * 100 * Q_HEADS * DIM, sizeof(float));
  const uint32_t prompt[2] = {90, 40};
  const uint32_t ones[4] = {1, 1, 1, 1};
  step(&b, prompt, &r, LEHR_SELECT_ALL, 0, outs, NULL, NULL, 0);

  /* A fork shares the tail until either writes; both go on with texts of their own. */
  MUST(lehr_sequence_fork(runtime, sequences, 2, sequences + 2, NULL));
  for (uint32_t i = 0; i < 2; ++i) stories[2 + i] = (story){stories[i].text, 40 + i, prompt[i]};
  b.count = 4;
  for (uint32_t n = 0; n < 20; ++n) {
    step(&b, ones, &r, LEHR_SELECT_ALL, 0, outs, NULL, NULL, 0);
    check_step(&b, ones, &r, outs, __LINE__);
  }
  /* Rolled back within the tail, across pages, and to nothing; then on with another text. */
  const uint64_t back[4] = {109, 33, 100, 0};
  MUST(lehr_sequence_truncate(runtime, sequences, back, 4, NULL));
  stories[0] = (story){21, 50, 109};
  stories[1] = (story){22, 51, 33};
  CHECK(back[2] > stories[2].fork_at); /* keep to its text */
  stories[3] = (story){53, 0, MOST};
  for (uint32_t n = 0; n < 20; ++n) {
    step(&b, ones, &r, LEHR_SELECT_ALL, 0, outs, NULL, NULL, 0);
    check_step(&b, ones, &r, outs, __LINE__);
  }
  /* Beams: all become the first two, then write on. */
  const uint32_t parents[4] = {1, 1, 0, 0};
  MUST(lehr_sequence_reorder(runtime, sequences, parents, 4));
  uint64_t tokens[4];
  for (uint32_t i = 0; i < 4; ++i) MUST(lehr_sequence_tokens(runtime, sequences[i], &tokens[i]));
  CHECK(tokens[0] == 53 && tokens[1] == 53 && tokens[2] == 129 && tokens[3] == 129);
  const story was[2] = {stories[0], stories[1]};
  for (uint32_t i = 0; i < 4; ++i) stories[i] = was[parents[i]];
  for (uint32_t n = 0; n < 20; ++n) {
    step(&b, ones, &r, LEHR_SELECT_ALL, 0, outs, NULL, NULL, 0);
    check_step(&b, ones, &r, outs, __LINE__);
  }
  /* A suspended sequence comes back as it was; an abandoned step or chunk never was. */
  MUST(lehr_sequence_suspend(runtime, sequences + 1, 1, NULL));
  REFUSED(lehr_step_begin(runtime, sequences + 1, 1, NULL), LEHR_CLASS_INVALID, LEHR_REASON_NONE);
  MUST(lehr_sequence_resume(runtime, sequences + 1, 1, NULL));
  const uint32_t chunk[4] = {1, 40, 0, 3};
  float* kv = calloc((size_t)4 * HEADS * 40 * DIM, sizeof(float));
  const int64_t shape[4] = {4, HEADS, 40, DIM};
  const lehr_tensor junk = tensor_of(kv, shape, NULL);
  for (uint32_t n = 0; n < 2; ++n) {
    MUST(lehr_step_begin_tokens(runtime, sequences, n == 0 ? chunk : ones, 4, NULL));
    MUST(lehr_step_append(runtime, 0, &junk, &junk));
    REFUSED(lehr_sequence_fork(runtime, sequences, 1, sequences, NULL), LEHR_CLASS_INVALID,
            LEHR_REASON_NONE);
    MUST(lehr_step_abandon(runtime));
  }
  free(kv);
  uint64_t now = 0;
  MUST(lehr_sequence_tokens(runtime, sequences[1], &now));
  CHECK(now == 73);
  for (uint32_t n = 0; n < 20; ++n) {
    step(&b, ones, &r, LEHR_SELECT_ALL, 0, outs, NULL, NULL, 0);
    check_step(&b, ones, &r, outs, __LINE__);
  }
  MUST(lehr_sequence_reset(runtime, sequences, 1, NULL));
  MUST(lehr_sequence_tokens(runtime, sequences[0], &now));
  CHECK(now == 0);
  MUST(lehr_sequence_release(runtime, sequences, 4, NULL));
  lehr_tier_info tier = {.struct_size = sizeof tier};
  for (uint32_t t = 0; t < 2; ++t) {
    MUST(lehr_tier_describe(runtime, t, &tier));
    CHECK(tier.used_pages == 0);
  }
  free(outs);
  MUST(lehr_close(runtime));
}

/* ---- What is refused ---- */

static void refusals(void) {
  lehr_runtime runtime = open_with("60", "400", "0", "");
  lehr_sequence sequence;
  lehr_sequence_desc desc = {.struct_size = sizeof desc, .prompt_tokens = 5};
  REFUSED(lehr_sequence_create(runtime, &desc, 1, &sequence), LEHR_CLASS_UNSUPPORTED,
          LEHR_REASON_NONE);
  create(runtime, &sequence, 1);
  const uint64_t more = 4;
  REFUSED(lehr_sequence_append(runtime, &sequence, &more, 1, NULL), LEHR_CLASS_UNSUPPORTED,
          LEHR_REASON_NONE);
  float data[HEADS * DIM * 3] = {0};
  float q[Q_HEADS * DIM] = {0};
  const int64_t shape[4] = {1, HEADS, 1, DIM};
  const int64_t q_shape[4] = {1, Q_HEADS, 1, DIM};
  const lehr_tensor good = tensor_of(data, shape, NULL);
  const lehr_tensor good_q = tensor_of(q, q_shape, NULL);
  REFUSED(lehr_step_append(runtime, 0, &good, &good), LEHR_CLASS_INVALID, LEHR_REASON_NONE);
  MUST(lehr_step_begin(runtime, &sequence, 1, NULL));
  REFUSED(lehr_step_layer(runtime, 0, NULL, 0), LEHR_CLASS_UNSUPPORTED, LEHR_REASON_NONE);
  REFUSED(lehr_step_append(runtime, 1, &good, &good), LEHR_CLASS_INVALID, LEHR_REASON_OUT_OF_RANGE);
  REFUSED(lehr_step_append(runtime, 0, &good, NULL), LEHR_CLASS_INVALID, LEHR_REASON_NONE);

  lehr_tensor bad = good;
  bad.device_type = 2;
  REFUSED(lehr_step_append(runtime, 0, &bad, &good), LEHR_CLASS_UNSUPPORTED, LEHR_REASON_NONE);
  bad = good;
  bad.dtype_bits = 64;
  REFUSED(lehr_step_append(runtime, 0, &bad, &good), LEHR_CLASS_UNSUPPORTED,
          LEHR_REASON_LAYOUT_MISMATCH);
  bad.dtype_bits = 16; /* a type that exists, but not that of the pages */
  REFUSED(lehr_step_append(runtime, 0, &bad, &good), LEHR_CLASS_INVALID,
          LEHR_REASON_LAYOUT_MISMATCH);
  bad = good;
  bad.ndim = 3;
  REFUSED(lehr_step_append(runtime, 0, &bad, &good), LEHR_CLASS_INVALID,
          LEHR_REASON_LAYOUT_MISMATCH);
  bad = good;
  bad.data = NULL;
  REFUSED(lehr_step_append(runtime, 0, &bad, &good), LEHR_CLASS_INVALID, LEHR_REASON_NONE);
  const int64_t strange[][4] = {
      {1, HEADS + 1, 1, DIM}, {2, HEADS, 1, DIM}, {1, HEADS, 0, DIM}, {1, HEADS, 1, DIM / 2}};
  for (size_t i = 0; i < 4; ++i) {
    bad = tensor_of(data, strange[i], NULL);
    REFUSED(lehr_step_append(runtime, 0, &bad, &good), LEHR_CLASS_INVALID,
            LEHR_REASON_LAYOUT_MISMATCH);
  }
  const int64_t huge[4] = {1, HEADS, INT64_MAX, DIM};
  bad = tensor_of(data, huge, NULL);
  REFUSED(lehr_step_append(runtime, 0, &bad, &good), LEHR_CLASS_INVALID, LEHR_REASON_OUT_OF_RANGE);
  const int64_t sparse[4] = {HEADS * DIM, DIM, DIM, 2};
  bad = tensor_of(data, shape, sparse);
  REFUSED(lehr_step_append(runtime, 0, &bad, &good), LEHR_CLASS_UNSUPPORTED, LEHR_REASON_NONE);
  bad = good;
  bad.struct_size = 8;
  REFUSED(lehr_step_append(runtime, 0, &bad, &good), LEHR_CLASS_INVALID, LEHR_REASON_OUT_OF_RANGE);

  lehr_attend_request request = {
      .struct_size = sizeof request, .layer = 0, .q = &good_q, .out = &good_q};
  REFUSED(lehr_step_attend(runtime, &request), LEHR_CLASS_INVALID, LEHR_REASON_OUT_OF_RANGE);
  MUST(lehr_step_append(runtime, 0, &good, &good));
  request.causal = 2;
  REFUSED(lehr_step_attend(runtime, &request), LEHR_CLASS_UNSUPPORTED, LEHR_REASON_MASK);
  request.causal = 1;
  request.select_by = 9;
  REFUSED(lehr_step_attend(runtime, &request), LEHR_CLASS_INVALID, LEHR_REASON_OUT_OF_RANGE);
  request.select_by = LEHR_SELECT_RATIO;
  request.select_amount = 1.5f;
  REFUSED(lehr_step_attend(runtime, &request), LEHR_CLASS_INVALID, LEHR_REASON_OUT_OF_RANGE);
  request.select_by = LEHR_SELECT_ALL;
  request.scale = -1;
  REFUSED(lehr_step_attend(runtime, &request), LEHR_CLASS_INVALID, LEHR_REASON_OUT_OF_RANGE);
  request.scale = NAN;
  REFUSED(lehr_step_attend(runtime, &request), LEHR_CLASS_INVALID, LEHR_REASON_OUT_OF_RANGE);
  request.scale = 0;
  uint8_t codes[HEADS];
  request.mass = codes; /* code_pitch 0: no room for a page */
  REFUSED(lehr_step_attend(runtime, &request), LEHR_CLASS_INVALID, LEHR_REASON_OUT_OF_RANGE);
  request.mass = NULL;
  request.q = &good; /* KV heads where query heads are expected */
  REFUSED(lehr_step_attend(runtime, &request), LEHR_CLASS_INVALID, LEHR_REASON_LAYOUT_MISMATCH);
  request.q = &good_q;
  MUST(lehr_step_attend(runtime, &request)); /* no refusal left a trace */
  REFUSED(lehr_step_attend(runtime, &request), LEHR_CLASS_INVALID, LEHR_REASON_NONE);
  REFUSED(lehr_step_end(runtime, NULL), LEHR_CLASS_INVALID, LEHR_REASON_NONE);
  REFUSED(lehr_sequence_gather(runtime, 0, &sequence, 1, &good, &good), LEHR_CLASS_INVALID,
          LEHR_REASON_NONE);
  MUST(lehr_step_append(runtime, 1, &good, &good));
  MUST(lehr_step_append(runtime, 2, &good, &good)); /* layers 1 and 2 are not attended */
  REFUSED(lehr_step_append(runtime, 3, &good, &good), LEHR_CLASS_INVALID, LEHR_REASON_OUT_OF_RANGE);
  MUST(lehr_step_end(runtime, NULL));
  REFUSED(lehr_sequence_gather(runtime, 9, &sequence, 1, &good, &good), LEHR_CLASS_INVALID,
          LEHR_REASON_OUT_OF_RANGE);

  /* A chunk that does not fit below HBM leaves things as they were. */
  const uint32_t too_many = 100000;
  REFUSED(lehr_step_begin_tokens(runtime, &sequence, &too_many, 1, NULL), LEHR_CLASS_REFUSED,
          LEHR_REASON_NO_SPACE);
  const uint64_t past = 2;
  REFUSED(lehr_sequence_truncate(runtime, &sequence, &past, 1, NULL), LEHR_CLASS_INVALID,
          LEHR_REASON_OUT_OF_RANGE);
  const uint32_t parent = 1;
  REFUSED(lehr_sequence_reorder(runtime, &sequence, &parent, 1), LEHR_CLASS_INVALID,
          LEHR_REASON_OUT_OF_RANGE);
  const lehr_sequence twice[2] = {sequence, sequence};
  const uint32_t both[2] = {0, 1};
  REFUSED(lehr_sequence_reorder(runtime, twice, both, 2), LEHR_CLASS_INVALID, LEHR_REASON_NONE);
  REFUSED(lehr_step_begin_tokens(runtime, twice, both, 2, NULL), LEHR_CLASS_INVALID,
          LEHR_REASON_NONE);
  uint64_t tokens = 0;
  MUST(lehr_sequence_tokens(runtime, sequence, &tokens));
  CHECK(tokens == 1);
  MUST(lehr_close(runtime));
}

/* ---- Traces ---- */

static void traces(const char* folder) {
  char path[512];
  snprintf(path, sizeof path, "%s/contents_test.safetensors", folder);
  remove(path);
  const uint32_t ids[2] = {0, 2};
  lehr_trace_desc desc = {.struct_size = sizeof desc,
                          .path = {path, strlen(path)},
                          .model = {"m", 1},
                          .workload = {"w", 1},
                          .page_tokens = 16,
                          .q_heads = 4,
                          .kv_heads = 2,
                          .head_dim = 8,
                          .kv_bytes_per_element = 2,
                          .model_layers = 3,
                          .layer_ids = ids,
                          .layer_count = 2,
                          .prompt_tokens = 15};
  uint8_t codes[4 * 3];
  memset(codes, 3, sizeof codes);
  lehr_trace trace = {0};
  MUST(lehr_trace_open(&desc, &trace));
  REFUSED(lehr_trace_step(trace, codes, codes, 3), LEHR_CLASS_INVALID, LEHR_REASON_NONE);
  REFUSED(lehr_trace_step(trace, codes, NULL, 0), LEHR_CLASS_INVALID, LEHR_REASON_OUT_OF_RANGE);
  MUST(lehr_trace_step(trace, codes, NULL, 3));
  FILE* file = fopen(path, "rb");
  CHECK(file == NULL); /* nothing to see before it is whole */
  MUST(lehr_trace_discard(trace));
  REFUSED(lehr_trace_step(trace, codes, NULL, 3), LEHR_CLASS_STALE, LEHR_REASON_NONE);

  MUST(lehr_trace_open(&desc, &trace));
  MUST(lehr_trace_step(trace, codes, NULL, 3)); /* 16 tokens: one page */
  MUST(lehr_trace_step(trace, codes, NULL, 3)); /* 17: two */
  int32_t tokens[17] = {0};
  MUST(lehr_trace_close(trace, tokens, 17));
  file = fopen(path, "rb");
  CHECK(file != NULL);
  fclose(file);
  remove(path);

  MUST(lehr_trace_open(&desc, &trace));
  REFUSED(lehr_trace_close(trace, NULL, 0), LEHR_CLASS_INVALID, LEHR_REASON_NONE); /* no steps */
  REFUSED(lehr_trace_close(trace, NULL, 0), LEHR_CLASS_STALE, LEHR_REASON_NONE);
  desc.kv_heads = 0;
  CHECK(LEHR_STATUS_CLASS(lehr_trace_open(&desc, &trace)) == LEHR_CLASS_INVALID);
}

/* Rounded pages differ from whole ones, by no more than the format's steps. */
static void rounding(void) {
  size_t size = 0;
  lehr_runtime runtime = open_with("400", "400", "0", "");
  float* exact = decode(runtime, LEHR_SELECT_ALL, 0, 3, &size);
  MUST(lehr_close(runtime));
  lehr_open_options options = {.struct_size = sizeof options};
  options.config =
      "machine = \"host\"\n[geometry]\nlayers = 1\nkv_heads = 1\nhead_dim = 24\ndtype = \"f32\"\n"
      "[step]\ncontents = \"kv\"\nrounding = \"int8\"\n"
      "[capacity]\nhbm = \"9 pages\"\nhost = \"9 pages\"\nnvme = 0\n";
  options.config_size = strlen(options.config);
  lehr_runtime none = {0};
  REFUSED(lehr_open(LEHR_VERSION, &options, &none), LEHR_CLASS_UNSUPPORTED, LEHR_REASON_NONE);
  free(exact);
}

int main(int argc, char** argv) {
  ragged_chunks_then_steps();
  mass_out();
  selection();
  same_bits_everywhere();
  forks_rollbacks_and_beams();
  refusals();
  rounding();
  traces(argc > 1 ? argv[1] : "/tmp");
  puts("contents: all as it should be");
  return 0;
}
