/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences come and go at random, as in continuous batching, on real bytes in three tiers:
 *
 *   arrivals DIRECTORY [SECONDS [SEED [FAULTS]]]
 *
 * A request is admitted if its working set fits HBM beside those of the others; prompts may share a
 * prefix (a fork); each grows until it has written enough. Where a step finds no room, the youngest
 * sequence is given up, or suspended if HBM is what is short. Others are suspended at random, and
 * come back; drafts are rolled back. All along, K and V of some sequence are read back and
 * compared, and at the end of all of them. With faults, a step that fails must say why; what was
 * written before must still be there.
 *
 * Built with ARRIVALS_PRECISION ("e4m3" or "int8"), placement may lower pages for a third of the
 * mass: what is read back is then a little off, and stays within that share.
 */
#include <lehr.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "checks.h"

#ifdef ARRIVALS_PRECISION /* pages of a shape that can be lowered, and little HBM for them */
enum { DIM = 64, PAGE = 16, HBM_PAGES = 160, HOST_PAGES = 400, NVME_PAGES = 800 };
static const char kPolicy[] = "name = \"sa\"\nprecision = \"" ARRIVALS_PRECISION
                              "\"\nprecision_mass = 0.33\n[policy.parameters]\nbox = 100\n";
static const float kOff = 0.04f, kMassAllowed = 0.33f;
#else
enum { DIM = 16, PAGE = 8, HBM_PAGES = 260, HOST_PAGES = 700, NVME_PAGES = 1500 };
static const char kPolicy[] = "name = \"table\"\n";
static const float kOff = 0, kMassAllowed = 0;
#endif

enum {
  LAYERS = 2,
  HEADS = 2,
  Q_HEADS = 4,
  GROUPS = LAYERS * HEADS,
  MOST = 24,     /* sequences */
  LONGEST = 320, /* tokens of one */
  CHUNK = 40
};

static uint64_t state;
static uint32_t below(uint32_t n) {
  state += 0x9E3779B97F4A7C15u;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return (uint32_t)(((z ^ (z >> 31)) >> 32) * n >> 32);
}

typedef struct {
  lehr_sequence handle;
  uint32_t text[LONGEST]; /* what each token is: K and V follow from it */
  uint32_t tokens, wanted, prompt;
  int asleep;
} request;

static lehr_runtime runtime;
static request all[MOST];
static uint32_t count;
static struct {
  uint64_t steps, admitted, finished, refused, suspended, resumed, forks, rolled_back, checked,
      failed, off;
} did;

static float value(uint32_t what, uint32_t token, uint32_t layer, uint32_t head, uint32_t channel) {
  uint64_t x = token * 0x9E3779B97F4A7C15u ^ (uint64_t)(what + 1) << 52 ^ (uint64_t)layer << 40 ^
               (uint64_t)head << 30 ^ channel;
  x ^= x >> 31;
  x *= 0xD6E8FEB86659FD93u;
  x ^= x >> 29;
  return (float)((double)(x >> 40) / (double)(1u << 24) * 2.0 - 1.0);
}

typedef struct {
  lehr_tensor t;
  int64_t shape[4];
} tensor;
static void make_tensor(tensor* m, float* data, int64_t batch, int64_t heads, int64_t tokens) {
  const tensor made = {.t = {.struct_size = sizeof made.t,
                             .device_type = 1,
                             .data = data,
                             .ndim = 4,
                             .dtype_code = 2,
                             .dtype_bits = 32,
                             .dtype_lanes = 1},
                       .shape = {batch, heads, tokens, DIM}};
  *m = made;
  m->t.shape = m->shape;
}
static void fill(float* data, uint32_t what, uint32_t layer, uint32_t heads, const uint32_t* tokens,
                 uint32_t n, uint32_t pitch) {
  for (uint32_t h = 0; h < heads; ++h)
    for (uint32_t j = 0; j < n; ++j)
      for (uint32_t c = 0; c < DIM; ++c)
        data[(h * pitch + j) * DIM + c] = value(what, tokens[j], layer, h, c);
}

static void compare(const float* found, const float* right, size_t n) {
  if (memcmp(found, right, sizeof(float) * n) == 0) return;
  for (size_t i = 0; i < n; ++i) {
    if (found[i] == right[i]) continue;
    CHECK(fabsf(found[i] - right[i]) <= kOff);
    ++did.off;
  }
}

/* Everything of a sequence is what was appended. */
static void check_contents(const request* r) {
  static float k[HEADS * LONGEST * DIM], v[HEADS * LONGEST * DIM], want[HEADS * LONGEST * DIM];
  for (uint32_t layer = 0; layer < LAYERS && r->tokens > 0; ++layer) {
    tensor keys, values;
    make_tensor(&keys, k, 1, HEADS, r->tokens);
    make_tensor(&values, v, 1, HEADS, r->tokens);
    MUST(lehr_sequence_gather(runtime, layer, &r->handle, 1, &keys.t, &values.t));
    fill(want, 0, layer, HEADS, r->text, r->tokens, r->tokens);
    compare(k, want, (size_t)HEADS * r->tokens * DIM);
    fill(want, 1, layer, HEADS, r->text, r->tokens, r->tokens);
    compare(v, want, (size_t)HEADS * r->tokens * DIM);
  }
  ++did.checked;
}

/* Pages that a sequence keeps asking for: a third of what it will have, and its tails. */
static uint32_t working_set(const request* r) {
  return ((r->wanted + PAGE - 1) / PAGE / 3 + 2) * GROUPS;
}
static uint32_t working_sets(void) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < count; ++i) sum += all[i].asleep ? 0 : working_set(&all[i]);
  return sum;
}

/* One step or chunk of some requests. LEHR_OK, or why not: then nothing has changed. */
static lehr_status advance(request** batch, uint32_t n, uint32_t tokens) {
  static float k[MOST * HEADS * CHUNK * DIM], v[MOST * HEADS * CHUNK * DIM];
  static float q[MOST * Q_HEADS * CHUNK * DIM], out[MOST * Q_HEADS * CHUNK * DIM];
  lehr_sequence handles[MOST];
  uint32_t counts[MOST];
  for (uint32_t i = 0; i < n; ++i) {
    handles[i] = batch[i]->handle;
    counts[i] = tokens;
    for (uint32_t j = 0; j < tokens; ++j) batch[i]->text[batch[i]->tokens + j] = below(1u << 31);
  }
  lehr_status status = lehr_step_begin_tokens(runtime, handles, counts, n, NULL);
  if (status != LEHR_OK) return status;
  for (uint32_t layer = 0; layer < LAYERS && status == LEHR_OK; ++layer) {
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t* text = batch[i]->text + batch[i]->tokens;
      fill(k + (size_t)i * HEADS * tokens * DIM, 0, layer, HEADS, text, tokens, tokens);
      fill(v + (size_t)i * HEADS * tokens * DIM, 1, layer, HEADS, text, tokens, tokens);
      fill(q + (size_t)i * Q_HEADS * tokens * DIM, 2, layer, Q_HEADS, text, tokens, tokens);
    }
    tensor keys, values, queries, outs;
    make_tensor(&keys, k, n, HEADS, tokens);
    make_tensor(&values, v, n, HEADS, tokens);
    make_tensor(&queries, q, n, Q_HEADS, tokens);
    make_tensor(&outs, out, n, Q_HEADS, tokens);
    status = lehr_step_append(runtime, layer, &keys.t, &values.t);
    if (status != LEHR_OK) break;
    lehr_attend_request request_ = {
        .struct_size = sizeof request_, .layer = layer, .q = &queries.t, .out = &outs.t};
    if (tokens == 1 && kOff == 0) { /* else all is read, and much of it over the link */
      request_.select_by = LEHR_SELECT_RATIO;
      request_.select_amount = 0.3f;
    }
    status = lehr_step_attend(runtime, &request_);
  }
  if (status == LEHR_OK) status = lehr_step_end(runtime, NULL);
  if (status != LEHR_OK) {
    char why[256];
    CHECK(lehr_last_error(why, sizeof why) > 1); /* a reason, in words */
    const lehr_status back = lehr_step_abandon(runtime);
    if (back != LEHR_OK) return back; /* broken for good: only closing is left */
    return status;
  }
  for (uint32_t i = 0; i < n; ++i) batch[i]->tokens += tokens;
  return LEHR_OK;
}

static void drop(uint32_t i) {
  MUST(lehr_sequence_release(runtime, &all[i].handle, 1, NULL));
  all[i] = all[--count];
}

static void rest(uint32_t i) {
  if (lehr_sequence_suspend(runtime, &all[i].handle, 1, NULL) != LEHR_OK) {
    drop(i); /* no room for its tail either: it starts again some day */
    ++did.refused;
    return;
  }
  all[i].asleep = 1;
  ++did.suspended;
}

/* Room is made by whoever came last: in HBM by leaving it, below it by giving up. */
static void preempt(lehr_status why) {
  ++did.failed;
  if (LEHR_STATUS_REASON(why) == LEHR_REASON_NO_SPACE ||
      LEHR_STATUS_REASON(why) == LEHR_REASON_LOWER_TIER_BUSY) {
    ++did.refused;
    if (count > 0) drop(count - 1);
    return;
  }
  for (uint32_t i = count; i-- > 0;) {
    if (all[i].asleep) continue;
    rest(i);
    return;
  }
}

static void arrive(void) {
  if (count == MOST) return;
  request* r = &all[count];
  memset(r, 0, sizeof *r);
  r->prompt = 5 + below(200);
  r->wanted = r->prompt + 5 + below(LONGEST - 210);
  const int shares = count > 0 && below(10) < 4;
  const uint32_t from = below(count > 0 ? count : 1);
  if (shares && !all[from].asleep && all[from].tokens < r->wanted) {
    memcpy(r->text, all[from].text, sizeof r->text);
    r->tokens = all[from].tokens;
  }
  if (working_sets() + working_set(r) > HBM_PAGES) { /* not admitted: no state is made */
    ++did.refused;
    return;
  }
  if (r->tokens > 0) {
    const lehr_status status = lehr_sequence_fork(runtime, &all[from].handle, 1, &r->handle, NULL);
    if (status != LEHR_OK) {
      ++did.refused;
      return;
    }
    ++did.forks;
  } else {
    const lehr_sequence_desc desc = {.struct_size = sizeof desc};
    if (lehr_sequence_create(runtime, &desc, 1, &r->handle) != LEHR_OK) {
      ++did.refused;
      return;
    }
  }
  ++count;
  ++did.admitted;
}

/* Zero: the runtime is beyond use, which only faults may bring about. */
static int turn(void) {
  if (below(4) == 0) arrive();
  for (uint32_t i = 0; i < count; ++i) {
    if (!all[i].asleep || below(8) != 0) continue;
    if (working_sets() + working_set(&all[i]) > HBM_PAGES) continue;
    if (lehr_sequence_resume(runtime, &all[i].handle, 1, NULL) != LEHR_OK) break;
    all[i].asleep = 0;
    ++did.resumed;
  }
  request* batch[MOST];
  uint32_t n = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (all[i].asleep || all[i].tokens >= all[i].prompt) continue;
    batch[0] = &all[i];
    const uint32_t left = all[i].prompt - all[i].tokens;
    const uint32_t tokens = left < CHUNK ? left : CHUNK;
    const lehr_status status = advance(batch, 1, tokens);
    if (status != LEHR_OK) {
      if (LEHR_STATUS_CLASS(status) != LEHR_CLASS_REFUSED) return 0;
      preempt(status);
    }
    return 1; /* a chunk at a time, between steps */
  }
  for (uint32_t i = 0; i < count; ++i) {
    if (!all[i].asleep) batch[n++] = &all[i];
  }
  if (n == 0) return 1;
  const lehr_status status = advance(batch, n, 1);
  if (status != LEHR_OK) {
    if (LEHR_STATUS_CLASS(status) != LEHR_CLASS_REFUSED) return 0;
    preempt(status);
    return 1;
  }
  ++did.steps;
  if (below(20) == 0) {
    request* r = batch[below(n)];
    const uint64_t keep = r->tokens - below(r->tokens < 12 ? r->tokens : 12);
    MUST(lehr_sequence_truncate(runtime, &r->handle, &keep, 1, NULL));
    r->tokens = (uint32_t)keep;
    ++did.rolled_back;
  }
  if (below(8) == 0) check_contents(batch[below(n)]);
  if (below(25) == 0) { /* somebody more urgent */
    const uint32_t i = below(count);
    if (!all[i].asleep) rest(i);
  }
  for (uint32_t i = count; i-- > 0;) {
    if (all[i].asleep || all[i].tokens < all[i].wanted) continue;
    drop(i);
    ++did.finished;
  }
  return 1;
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: %s DIRECTORY [SECONDS [SEED [FAULTS]]]\n", argv[0]);
    return 2;
  }
  const double seconds = argc > 2 ? atof(argv[2]) : 10;
  state = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
  const char* faults = argc > 4 ? argv[4] : "";
  char config[1200];
  snprintf(config, sizeof config,
           "machine = \"host\"\nprofile = \"h200-pcie5\"\nfaults = \"%s\"\n[policy]\n%s"
           "[geometry]\nlayers = %d\nkv_heads = %d\nq_heads = %d\nhead_dim = %d\npage_tokens = %d\n"
           "dtype = \"f32\"\n[step]\ncontents = \"kv\"\n[nvme]\npath = \"%s\"\n"
           "[capacity]\nhbm = \"%d pages\"\nhost = \"%d pages\"\nnvme = \"%d pages\"\n",
           faults, kPolicy, LAYERS, HEADS, Q_HEADS, DIM, PAGE, argv[1], HBM_PAGES, HOST_PAGES,
           NVME_PAGES);
  const lehr_open_options options = {
      .struct_size = sizeof options, .config = config, .config_size = strlen(config)};
  MUST(lehr_open(LEHR_VERSION, &options, &runtime));
  const uint64_t seed = state;
  const time_t until = time(NULL) + (time_t)seconds;
  uint64_t turns = 0;
  int works = 1;
  while (works && time(NULL) < until) {
    works = turn();
    ++turns;
  }
  if (works) {
    for (uint32_t i = 0; i < count; ++i) {
      if (!all[i].asleep) check_contents(&all[i]);
    }
    while (count > 0) drop(count - 1);
    lehr_tier_info tier = {.struct_size = sizeof tier};
    for (uint32_t t = 0; t < 3; ++t) { /* nothing is left behind */
      MUST(lehr_tier_describe(runtime, t, &tier));
      CHECK(tier.used_pages == 0);
    }
    lehr_step_report sum = {.struct_size = sizeof sum};
    MUST(lehr_step_totals(runtime, &sum));
    CHECK(kMassAllowed > 0 ? sum.lowered > 0 && did.off > 0 : sum.lowered + did.off == 0);
    CHECK((double)sum.mass_lowered <= (double)kMassAllowed * (double)sum.mass_seen);
  } else {
    CHECK(faults[0] != '\0');
  }
  MUST(lehr_close(runtime));
  printf(
      "arrivals: seed %llu, %llu turns: %llu steps, %llu admitted, %llu finished, %llu refused, "
      "%llu suspended, %llu resumed, %llu forks, %llu rolled back, %llu steps failed with a "
      "reason, %llu sequences compared%s\n",
      (unsigned long long)seed, (unsigned long long)turns, (unsigned long long)did.steps,
      (unsigned long long)did.admitted, (unsigned long long)did.finished,
      (unsigned long long)did.refused, (unsigned long long)did.suspended,
      (unsigned long long)did.resumed, (unsigned long long)did.forks,
      (unsigned long long)did.rolled_back, (unsigned long long)did.failed,
      (unsigned long long)did.checked, works ? "" : "; ended by a fault, with a reason");
  CHECK(did.checked > 0 || !works);
  return 0;
}
