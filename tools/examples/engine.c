/* SPDX-License-Identifier: Apache-2.0 */
/* A small inference engine on both levels of Lehr's C interface:
 *
 *   engine [host|cuda]
 *
 * A transformer with random weights writes text for several sequences. On the *step level* Lehr
 * holds K and V and computes attention: once with all pages in HBM, once with HBM for a quarter of
 * them, and (cuda) once more with each layer's calls captured in a CUDA graph. Sequences are
 * forked, suspended, resumed and rolled back on the way; and two take turns while the other's pages
 * lie in a file. On the *placement level* the engine keeps
 * K and V in blocks of its own pool (cuda: in HBM) and attends itself; Lehr stores the blocks of a
 * prompt by name, in host memory and in a file, and loads them for a later request: on cuda behind
 * the engine's own stream, layer by layer. Every run must give the same text and the same attention
 * outputs, bit for bit: the program ends with 1 where it does not.
 *
 * cc -I include engine.c -llehr -lm; for cuda: add -DLEHR_EXAMPLE_CUDA and link cudart.
 */
#include <lehr.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef LEHR_EXAMPLE_CUDA
#include <cuda_runtime_api.h>
#endif

enum {
  LAYERS = 3,
  Q_HEADS = 8,
  KV_HEADS = 2,
  DIM = 64, /* of a head */
  HIDDEN = 256,
  INNER = 384,
  WORDS = 211, /* vocabulary */
  PAGE = 16,
  MOST_SEQUENCES = 4,
  MOST_TOKENS = 512,
  CHUNK = 48 /* tokens of a prefill chunk */
};

static void give_up(const char* what, int line, lehr_status status) {
  char text[512];
  lehr_last_error(text, sizeof text);
  fprintf(stderr, "engine.c:%d: %s: %s, %s: %s\n", line, what, lehr_status_name(status),
          lehr_reason_name(status), text);
  exit(1);
}
#define MUST(call)                                             \
  do {                                                         \
    const lehr_status status_ = (call);                        \
    if (status_ != LEHR_OK) give_up(#call, __LINE__, status_); \
  } while (0)
#define CHECK(what)                                 \
  do {                                              \
    if (!(what)) give_up(#what, __LINE__, LEHR_OK); \
  } while (0)

/* ---- numbers: 16-bit floats, as K, V, Q and outputs are stored ---- */

static float from_half(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7FFFu;
  if (rest == 0) return sign ? -0.0f : 0.0f;
  if (rest < 0x0400u) return ldexpf(sign ? -(float)rest : (float)rest, -24);
  const uint32_t bits = sign | ((rest << 13) + 0x38000000u);
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
static uint16_t to_half(float x) { /* values here are small: no infinities; ties to even */
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
  const float size = fabsf(x);
  if (size < 6.104e-5f) return (uint16_t)(sign | (uint16_t)lrintf(ldexpf(size, 24)));
  uint32_t rest = (bits & 0x7FFFFFFFu) - 0x38000000u;
  rest += 0x0FFFu + (rest >> 13 & 1u);
  return (uint16_t)(sign | (rest >> 13));
}

/* ---- the model ---- */

typedef struct {
  float embed[WORDS][HIDDEN];
  struct {
    float q[Q_HEADS * DIM][HIDDEN], k[KV_HEADS * DIM][HIDDEN], v[KV_HEADS * DIM][HIDDEN];
    float o[HIDDEN][Q_HEADS * DIM], up[INNER][HIDDEN], down[HIDDEN][INNER];
  } layer[LAYERS];
} weights;
static weights model;

static void make_model(void) {
  uint64_t state = 20261130;
  float* const w = (float*)&model;
  for (size_t i = 0; i < sizeof model / sizeof(float); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    w[i] = ((float)(state >> 40) / (float)(1u << 24) - 0.5f) * 0.25f;
  }
}

static void multiply(const float* matrix, size_t rows, size_t columns, const float* x, float* y) {
  for (size_t r = 0; r < rows; ++r) {
    float sum = 0;
    for (size_t c = 0; c < columns; ++c) sum += matrix[r * columns + c] * x[c];
    y[r] = sum;
  }
}
static void norm(const float* x, float* y) {
  float sum = 0;
  for (int i = 0; i < HIDDEN; ++i) sum += x[i] * x[i];
  const float scale = 1.0f / sqrtf(sum / HIDDEN + 1e-5f);
  for (int i = 0; i < HIDDEN; ++i) y[i] = x[i] * scale;
}
static void rotate(float* head, uint32_t position) {
  for (int i = 0; i < DIM / 2; ++i) {
    const float angle = (float)position * powf(10000.0f, -2.0f * (float)i / DIM);
    const float a = head[i], b = head[i + DIM / 2];
    head[i] = a * cosf(angle) - b * sinf(angle);
    head[i + DIM / 2] = a * sinf(angle) + b * cosf(angle);
  }
}
/* What a token brings to a layer's attention: Q [Q_HEADS][DIM], K and V [KV_HEADS][DIM]. */
static void project(int layer, const float* x, uint32_t position, uint16_t* q, uint16_t* k,
                    uint16_t* v) {
  float y[HIDDEN], out[Q_HEADS * DIM];
  norm(x, y);
  multiply(&model.layer[layer].q[0][0], Q_HEADS * DIM, HIDDEN, y, out);
  for (int h = 0; h < Q_HEADS; ++h) rotate(out + h * DIM, position);
  for (int i = 0; i < Q_HEADS * DIM; ++i) q[i] = to_half(out[i]);
  multiply(&model.layer[layer].k[0][0], KV_HEADS * DIM, HIDDEN, y, out);
  for (int h = 0; h < KV_HEADS; ++h) rotate(out + h * DIM, position);
  for (int i = 0; i < KV_HEADS * DIM; ++i) k[i] = to_half(out[i]);
  multiply(&model.layer[layer].v[0][0], KV_HEADS * DIM, HIDDEN, y, out);
  for (int i = 0; i < KV_HEADS * DIM; ++i) v[i] = to_half(out[i]);
}
/* The rest of the layer, given what attention found. */
static void after_attention(int layer, const uint16_t* found, float* x) {
  float in[Q_HEADS * DIM], y[HIDDEN], z[HIDDEN], inner[INNER];
  for (int i = 0; i < Q_HEADS * DIM; ++i) in[i] = from_half(found[i]);
  multiply(&model.layer[layer].o[0][0], HIDDEN, Q_HEADS * DIM, in, y);
  for (int i = 0; i < HIDDEN; ++i) x[i] += y[i];
  norm(x, z);
  multiply(&model.layer[layer].up[0][0], INNER, HIDDEN, z, inner);
  for (int i = 0; i < INNER; ++i) inner[i] = inner[i] / (1.0f + expf(-inner[i]));
  multiply(&model.layer[layer].down[0][0], HIDDEN, INNER, inner, y);
  for (int i = 0; i < HIDDEN; ++i) x[i] += y[i];
}
static uint32_t next_word(const float* x) {
  float y[HIDDEN], best = -INFINITY;
  uint32_t word = 0;
  norm(x, y);
  for (uint32_t w = 0; w < WORDS; ++w) {
    float sum = 0;
    for (int i = 0; i < HIDDEN; ++i) sum += model.embed[w][i] * y[i];
    if (sum > best) best = sum, word = w;
  }
  return word;
}

/* ---- what a run leaves: the words, and a digest of all attention outputs ---- */

typedef struct {
  uint32_t words[1024];
  size_t count;
  uint64_t digest;
} story;
static void tell(story* s, uint32_t word) {
  CHECK(s->count < sizeof s->words / sizeof s->words[0]);
  s->words[s->count++] = word;
}
static void digest(story* s, const void* data, size_t bytes) {
  const unsigned char* p = data;
  for (size_t i = 0; i < bytes; ++i) s->digest = (s->digest ^ p[i]) * 1099511628211u;
}
static void must_agree(const story* a, const story* b, const char* what) {
  const int same = a->count == b->count && a->digest == b->digest &&
                   memcmp(a->words, b->words, a->count * sizeof a->words[0]) == 0;
  printf("  %-58s %s\n", what, same ? "the same bits" : "DIFFERENT");
  if (!same) exit(1);
}

/* ---- memory that Lehr's machine reads: the host's, or a GPU's with copies of the engine ---- */

static int on_gpu = 0;
static void* stream = NULL;
#ifdef LEHR_EXAMPLE_CUDA
#define CUDA(call)                                                                       \
  do {                                                                                   \
    const cudaError_t e_ = (call);                                                       \
    if (e_ != cudaSuccess) {                                                             \
      fprintf(stderr, "engine.c:%d: %s: %s\n", __LINE__, #call, cudaGetErrorString(e_)); \
      exit(1);                                                                           \
    }                                                                                    \
  } while (0)
#endif

typedef struct {
  uint16_t* here;
  void* there; /* the same as `here` on host */
  size_t bytes;
} buffer;
static buffer make_buffer(size_t elements) {
  buffer b = {calloc(elements, sizeof(uint16_t)), NULL, elements * sizeof(uint16_t)};
  CHECK(b.here != NULL);
  b.there = b.here;
#ifdef LEHR_EXAMPLE_CUDA
  if (on_gpu) CUDA(cudaMalloc(&b.there, b.bytes));
#endif
  return b;
}
static void drop_buffer(buffer* b) {
#ifdef LEHR_EXAMPLE_CUDA
  if (on_gpu) CUDA(cudaFree(b->there));
#endif
  free(b->here);
}
static void send(const buffer* b) {
#ifdef LEHR_EXAMPLE_CUDA
  if (on_gpu)
    CUDA(
        cudaMemcpyAsync(b->there, b->here, b->bytes, cudaMemcpyHostToDevice, (cudaStream_t)stream));
#endif
  (void)b;
}
static void fetch(const buffer* b) {
#ifdef LEHR_EXAMPLE_CUDA
  if (on_gpu) {
    CUDA(
        cudaMemcpyAsync(b->here, b->there, b->bytes, cudaMemcpyDeviceToHost, (cudaStream_t)stream));
    CUDA(cudaStreamSynchronize((cudaStream_t)stream));
  }
#endif
  (void)b;
}
/* [batch, heads, tokens, dim] of a buffer laid out as [batch][tokens][heads][dim]. */
typedef struct {
  lehr_tensor tensor;
  int64_t shape[4], strides[4];
} view;
static void make_view(view* v, const buffer* b, int64_t batch, int64_t heads, int64_t tokens) {
  const view made = {
      .tensor = {.struct_size = sizeof(lehr_tensor),
                 .device_type = on_gpu ? 2 : 1,
                 .data = b->there,
                 .ndim = 4,
                 .dtype_code = 2,
                 .dtype_bits = 16,
                 .dtype_lanes = 1},
      .shape = {batch, heads, tokens, DIM},
      .strides = {tokens * heads * DIM, DIM, heads * DIM, 1},
  };
  *v = made;
  v->tensor.shape = v->shape;
  v->tensor.strides = v->strides;
}

/* ---- step level ---- */

typedef struct {
  lehr_runtime lehr;
  float share; /* of the pages that a step reads; 1: all */
  int graph;   /* calls of a step are captured once and replayed */
  buffer q, k, v, out;
  uint32_t captured; /* sequences of the captured step, or 0 */
#ifdef LEHR_EXAMPLE_CUDA
  cudaGraphExec_t exec[LAYERS];
#endif
} engine;

static void open_engine(engine* e, const char* tiers, float share, int graph) {
  char config[1024];
  snprintf(config, sizeof config,
           "machine = \"%s\"\nprofile = \"h200-pcie5\"\n[policy]\nname = \"lru\"\n"
           "[geometry]\nlayers = %d\nkv_heads = %d\nq_heads = %d\nhead_dim = %d\n"
           "page_tokens = %d\ndtype = \"f16\"\n"
           "[step]\ncontents = \"kv\"\nsequences = %d\ntokens = %d\n"
           "[capacity]\n%s[nvme]\npath = \".\"\n",
           on_gpu ? "cuda" : "host", LAYERS, KV_HEADS, Q_HEADS, DIM, PAGE, MOST_SEQUENCES,
           MOST_TOKENS, tiers);
  const lehr_open_options options = {
      .struct_size = sizeof options, .config = config, .config_size = strlen(config)};
  memset(e, 0, sizeof *e);
  MUST(lehr_open(LEHR_VERSION, &options, &e->lehr));
  e->share = share;
  e->graph = graph;
  const size_t rows = (size_t)MOST_SEQUENCES * CHUNK;
  e->q = make_buffer(rows * Q_HEADS * DIM);
  e->k = make_buffer(rows * KV_HEADS * DIM);
  e->v = make_buffer(rows * KV_HEADS * DIM);
  e->out = make_buffer(rows * Q_HEADS * DIM);
}

/* K and V in, attention out: enqueued on the stream. */
static void lehr_layer(engine* e, uint32_t layer, int64_t batch, int64_t tokens) {
  view q, k, v, out;
  make_view(&q, &e->q, batch, Q_HEADS, tokens);
  make_view(&k, &e->k, batch, KV_HEADS, tokens);
  make_view(&v, &e->v, batch, KV_HEADS, tokens);
  make_view(&out, &e->out, batch, Q_HEADS, tokens);
  MUST(lehr_step_append(e->lehr, layer, &k.tensor, &v.tensor));
  lehr_attend_request request = {
      .struct_size = sizeof request, .layer = layer, .q = &q.tensor, .out = &out.tensor};
  if (tokens == 1 && e->share < 1) {
    request.select_by = LEHR_SELECT_RATIO;
    request.select_amount = e->share;
  }
  MUST(lehr_step_attend(e->lehr, &request));
}

/* A layer of a decode step: as it is, or captured the first time and launched from then on. */
static void decode_layer(engine* e, uint32_t layer, uint32_t batch) {
#ifdef LEHR_EXAMPLE_CUDA
  if (e->graph) {
    if (e->captured < batch) {
      cudaGraph_t graph;
      CUDA(cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeThreadLocal));
      lehr_layer(e, layer, batch, 1);
      CUDA(cudaStreamEndCapture((cudaStream_t)stream, &graph));
      CUDA(cudaGraphInstantiate(&e->exec[layer], graph, 0));
      CUDA(cudaGraphDestroy(graph));
      if (layer + 1 == LAYERS) e->captured = batch;
    }
    CUDA(cudaGraphLaunch(e->exec[layer], (cudaStream_t)stream));
    return;
  }
#endif
  lehr_layer(e, layer, batch, 1);
}

/* `tokens` words of each sequence go in; the last word's successor comes out. position[i]: tokens
 * that sequence i has. */
static void forward(engine* e, story* s, const lehr_sequence* sequences, uint32_t batch,
                    const uint32_t* words, uint32_t tokens, uint32_t* position, uint32_t* next) {
  static float x[MOST_SEQUENCES * CHUNK][HIDDEN];
  uint32_t counts[MOST_SEQUENCES];
  for (uint32_t b = 0; b < batch; ++b) {
    counts[b] = tokens;
    for (uint32_t t = 0; t < tokens; ++t)
      memcpy(x[b * tokens + t], model.embed[words[b * tokens + t]], sizeof x[0]);
  }
  MUST(lehr_step_begin_tokens(e->lehr, sequences, counts, batch, stream));
  for (uint32_t layer = 0; layer < LAYERS; ++layer) {
    for (uint32_t b = 0; b < batch; ++b) {
      for (uint32_t t = 0; t < tokens; ++t) {
        const size_t row = (size_t)b * tokens + t;
        project((int)layer, x[row], position[b] + t, e->q.here + row * Q_HEADS * DIM,
                e->k.here + row * KV_HEADS * DIM, e->v.here + row * KV_HEADS * DIM);
      }
    }
    send(&e->q), send(&e->k), send(&e->v);
    if (tokens == 1) {
      decode_layer(e, layer, batch);
    } else {
      lehr_layer(e, layer, batch, tokens);
    }
    fetch(&e->out);
    digest(s, e->out.here, (size_t)batch * tokens * Q_HEADS * DIM * sizeof(uint16_t));
    for (uint32_t row = 0; row < batch * tokens; ++row)
      after_attention((int)layer, e->out.here + (size_t)row * Q_HEADS * DIM, x[row]);
  }
  MUST(lehr_step_end(e->lehr, NULL));
  for (uint32_t b = 0; b < batch; ++b) {
    position[b] += tokens;
    next[b] = next_word(x[(b + 1) * tokens - 1]);
  }
}

static uint32_t prompt_word(uint32_t sequence, uint32_t i) {
  return (i * (7 + 4 * sequence) + i * i / 5 + 31 * sequence) % WORDS;
}

/* Four sequences come, write, are forked, suspended, rolled back and go on. */
static void step_level_story(engine* e, story* s) {
  s->count = 0;
  s->digest = 14695981039346656037u;
  lehr_sequence_desc descs[2] = {{.struct_size = sizeof descs[0]},
                                 {.struct_size = sizeof descs[0]}};
  lehr_sequence all[MOST_SEQUENCES];
  uint32_t position[MOST_SEQUENCES] = {0}, next[MOST_SEQUENCES] = {0};
  MUST(lehr_sequence_create(e->lehr, descs, 2, all));
  for (uint32_t at = 0; at < 5 * CHUNK; at += CHUNK) { /* prompts, in chunks */
    uint32_t words[2 * CHUNK];
    for (uint32_t b = 0; b < 2; ++b)
      for (uint32_t t = 0; t < CHUNK; ++t) words[b * CHUNK + t] = prompt_word(b, at + t);
    forward(e, s, all, 2, words, CHUNK, position, next);
  }
  /* A step of as many sequences as there will be, before one like it is captured. */
  MUST(lehr_sequence_fork(e->lehr, all, 2, all + 2, NULL));
  position[2] = position[0], position[3] = position[1];
  next[2] = (next[0] + 1) % WORDS, next[3] = (next[1] + 1) % WORDS;
  const int graph = e->graph;
  e->graph = 0;
  forward(e, s, all, 4, next, 1, position, next);
  e->graph = graph;
  for (int step = 0; step < 24; ++step) {
    forward(e, s, all, 4, next, 1, position, next);
    for (int b = 0; b < 4; ++b) tell(s, next[b]);
  }
  MUST(lehr_sequence_suspend(e->lehr, all + 3, 1, NULL)); /* the last one rests */
  for (int step = 0; step < 10; ++step) {
    forward(e, s, all, 3, next, 1, position, next);
    for (int b = 0; b < 3; ++b) tell(s, next[b]);
  }
  MUST(lehr_sequence_resume(e->lehr, all + 3, 1, NULL));
  const uint64_t back = position[1] - 21; /* a draft that was refused */
  MUST(lehr_sequence_truncate(e->lehr, all + 1, &back, 1, NULL));
  position[1] = (uint32_t)back;
  for (int step = 0; step < 20; ++step) {
    forward(e, s, all, 4, next, 1, position, next);
    for (int b = 0; b < 4; ++b) tell(s, next[b]);
  }
  MUST(lehr_sequence_release(e->lehr, all, 4, NULL));
}

/* Two sequences take turns: one writes while the other waits. */
static void turns_story(engine* e, story* s) {
  s->count = 0;
  s->digest = 14695981039346656037u;
  const lehr_sequence_desc descs[2] = {{.struct_size = sizeof descs[0]},
                                       {.struct_size = sizeof descs[0]}};
  lehr_sequence both[2];
  uint32_t position[2] = {0}, next[2] = {0};
  MUST(lehr_sequence_create(e->lehr, descs, 2, both));
  for (uint32_t b = 0; b < 2; ++b) {
    for (uint32_t at = 0; at < 5 * CHUNK; at += CHUNK) {
      uint32_t words[CHUNK];
      for (uint32_t t = 0; t < CHUNK; ++t) words[t] = prompt_word(b, at + t);
      forward(e, s, both + b, 1, words, CHUNK, position + b, next + b);
    }
  }
  for (int turn = 0; turn < 6; ++turn) {
    const int b = turn % 2;
    for (int step = 0; step < 5; ++step) {
      forward(e, s, both + b, 1, next + b, 1, position + b, next + b);
      tell(s, next[b]);
    }
  }
  MUST(lehr_sequence_release(e->lehr, both, 2, NULL));
}

static lehr_contents_report run_steps(void (*what)(engine*, story*), const char* tiers, float share,
                                      int graph, story* s) {
  engine e;
  open_engine(&e, tiers, share, graph);
  what(&e, s);
  lehr_contents_report report = {.struct_size = sizeof report};
  MUST(lehr_contents_read(e.lehr, &report));
  MUST(lehr_close(e.lehr));
#ifdef LEHR_EXAMPLE_CUDA
  for (int i = 0; i < LAYERS && e.captured > 0; ++i) CUDA(cudaGraphExecDestroy(e.exec[i]));
#endif
  drop_buffer(&e.q), drop_buffer(&e.k), drop_buffer(&e.v), drop_buffer(&e.out);
  return report;
}

static void use_step_level(void) {
  static story all, few;
  const char* const roomy = "hbm = \"1000 pages\"\nhost = \"1000 pages\"\nnvme = \"0 pages\"\n";
  const char* const tight = "hbm = \"100 pages\"\nhost = \"1000 pages\"\nnvme = \"0 pages\"\n";
  for (int sparse = 0; sparse < 2; ++sparse) {
    const float share = sparse ? 0.5f : 1.0f;
    printf("step level, %s\n", sparse ? "half of the pages read" : "all pages read");
    lehr_contents_report report = run_steps(step_level_story, roomy, share, 0, &all);
    const uint64_t moved = report.moved_pages; /* a suspended sequence leaves HBM */
    report = run_steps(step_level_story, tight, share, 0, &few); /* of about 400 */
    CHECK(report.read_in_place > 0 && report.moved_pages > moved);
    must_agree(&all, &few, "HBM for a quarter of the pages");
    printf("  %llu pages read in HBM, %llu in host memory, %llu moved\n",
           (unsigned long long)report.read_in_hbm, (unsigned long long)report.read_in_place,
           (unsigned long long)report.moved_pages);
    if (!on_gpu) continue;
    (void)run_steps(step_level_story, roomy, share, 1, &few);
    must_agree(&all, &few, "captured in a graph, all pages in HBM");
    report = run_steps(step_level_story, tight, share, 1, &few);
    CHECK(report.read_in_place > 0 && report.moved_pages > moved);
    must_agree(&all, &few, "captured in a graph, HBM for a quarter of the pages");
  }
  printf("step level, two sequences take turns\n");
  (void)run_steps(turns_story, roomy, 1, 0, &all);
  /* Of 200 pages that the two fill, host memory holds one's. */
  const char* const file = "hbm = \"50 pages\"\nhost = \"130 pages\"\nnvme = \"400 pages\"\n";
  const lehr_contents_report report = run_steps(turns_story, file, 1, 0, &few);
  must_agree(&all, &few, "the other's pages in a file");
  printf("  %llu pages moved\n", (unsigned long long)report.moved_pages);
}

/* ---- placement level: the engine's own pool and attention ---- */

/* As engines with paged attention have it: [layer][K, V][block][token][head][dim]. */
enum { BLOCKS = 24, ROW = KV_HEADS * DIM, PART = BLOCKS * PAGE * ROW };
static buffer pool_memory; /* `here` is what the engine computes with, `there` is the pool */

static size_t row_of(uint32_t position, int layer, int v, int head) {
  return ((size_t)layer * 2 + (size_t)v) * PART + (size_t)position * ROW + (size_t)head * DIM;
}
static const uint16_t* kv_row(uint32_t position, int layer, int v, int head) {
  return pool_memory.here + row_of(position, layer, v, head);
}
/* A token's row, all heads, into the pool: on cuda enqueued on the stream. */
static void write_row(uint32_t position, int layer, int v, const uint16_t* values) {
  const size_t at = row_of(position, layer, v, 0);
  memcpy(pool_memory.here + at, values, ROW * sizeof *values);
#ifdef LEHR_EXAMPLE_CUDA
  if (on_gpu)
    CUDA(cudaMemcpyAsync((uint16_t*)pool_memory.there + at, pool_memory.here + at,
                         ROW * sizeof *values, cudaMemcpyHostToDevice, (cudaStream_t)stream));
#endif
}
/* What the pool holds of a layer, behind what is enqueued on the stream. */
static void read_layer(int layer) {
#ifdef LEHR_EXAMPLE_CUDA
  const size_t at = row_of(0, layer, 0, 0), bytes = 2 * PART * sizeof(uint16_t);
  if (!on_gpu) return;
  CUDA(cudaMemcpyAsync(pool_memory.here + at, (uint16_t*)pool_memory.there + at, bytes,
                       cudaMemcpyDeviceToHost, (cudaStream_t)stream));
  CUDA(cudaStreamSynchronize((cudaStream_t)stream));
#else
  (void)layer;
#endif
}
/* Forgets everything, so that what is there later was loaded. */
static void clear_pool(void) {
  memset(pool_memory.here, 0, pool_memory.bytes);
#ifdef LEHR_EXAMPLE_CUDA
  if (on_gpu) CUDA(cudaMemsetAsync(pool_memory.there, 0, pool_memory.bytes, (cudaStream_t)stream));
#endif
}

static void attend_myself(int layer, uint32_t tokens, const uint16_t* q, uint16_t* out) {
  for (int h = 0; h < Q_HEADS; ++h) {
    const int kv = h / (Q_HEADS / KV_HEADS);
    float weight[BLOCKS * PAGE], most = -INFINITY, sum = 0, o[DIM] = {0};
    for (uint32_t t = 0; t < tokens; ++t) {
      const uint16_t* k = kv_row(t, layer, 0, kv);
      float s = 0;
      for (int i = 0; i < DIM; ++i) s += from_half(q[h * DIM + i]) * from_half(k[i]);
      weight[t] = s / sqrtf(DIM);
      most = fmaxf(most, weight[t]);
    }
    for (uint32_t t = 0; t < tokens; ++t) {
      const uint16_t* v = kv_row(t, layer, 1, kv);
      const float w = expf(weight[t] - most);
      sum += w;
      for (int i = 0; i < DIM; ++i) o[i] += w * from_half(v[i]);
    }
    for (int i = 0; i < DIM; ++i) out[h * DIM + i] = to_half(o[i] / sum);
  }
}

typedef struct {
  lehr_job id[BLOCKS];
  size_t count;
} jobs;

/* `loading`: jobs whose blocks arrive while this computes; each layer waits for its own. */
static uint32_t one_token(lehr_runtime lehr, const jobs* loading, uint32_t word, uint32_t position,
                          story* s) {
  float x[HIDDEN];
  memcpy(x, model.embed[word], sizeof x);
  for (int layer = 0; layer < LAYERS; ++layer) {
    uint16_t q[Q_HEADS * DIM], k[KV_HEADS * DIM], v[KV_HEADS * DIM], out[Q_HEADS * DIM];
    project(layer, x, position, q, k, v);
    for (size_t j = 0; loading != NULL && j < loading->count; ++j)
      MUST(lehr_job_wait_layer(lehr, loading->id[j], (uint32_t)layer, stream));
    write_row(position, layer, 0, k);
    write_row(position, layer, 1, v);
    read_layer(layer);
    attend_myself(layer, position + 1, q, out);
    if (s != NULL) digest(s, out, sizeof out);
    after_attention(layer, out, x);
  }
  return next_word(x);
}

/* Starts to store or load the first blocks of the prompt, `most` in a job; on cuda behind what is
 * on the stream, which goes on at once. */
static void start_moves(lehr_runtime lehr, lehr_namespace ns, lehr_pool pool, int load,
                        uint32_t blocks, uint32_t most, jobs* started) {
  char keys[BLOCKS][16];
  lehr_item items[BLOCKS];
  started->count = 0;
  for (uint32_t from = 0; from < blocks; from += most) {
    const uint32_t count = blocks - from < most ? blocks - from : most;
    for (uint32_t b = 0; b < count; ++b) {
      /* A key names the text up to and with the block: here there is one text. */
      snprintf(keys[b], sizeof keys[b], "prompt-0:%u", from + b);
      const lehr_item item = {.struct_size = sizeof item,
                              .key = keys[b],
                              .key_size = (uint32_t)strlen(keys[b]),
                              .block = from + b,
                              .pool = pool};
      items[b] = item;
    }
    lehr_job job = {0};
    if (load) {
      const lehr_load_request request = {
          .struct_size = sizeof request, .flags = LEHR_LOAD_LAYERED, .ns = ns, .caller_id = 2};
      MUST(lehr_load_prepare(lehr, &request, items, count, NULL, &job));
    } else {
      const lehr_store_request request = {.struct_size = sizeof request, .ns = ns, .caller_id = 1};
      MUST(lehr_store_prepare(lehr, &request, items, count, NULL, NULL, 0, NULL, &job));
    }
    MUST(lehr_jobs_submit(lehr, &job, 1, stream, NULL));
    started->id[started->count++] = job;
    /* A store may need room that the one before makes as it sinks to the file. */
    if (!load) MUST(lehr_jobs_drain(lehr, 10000000000));
  }
}

/* All jobs went well. */
static void end_moves(lehr_runtime lehr, jobs* started) {
  for (size_t j = 0; j < started->count; ++j) {
    MUST(lehr_job_wait(lehr, started->id[j], 10000000000));
    lehr_job_report report = {.struct_size = sizeof report};
    MUST(lehr_job_query(lehr, started->id[j], &report));
    CHECK(report.status == LEHR_OK && report.succeeded == report.items);
    MUST(lehr_jobs_release(lehr, &started->id[j], 1, NULL));
  }
  started->count = 0;
}

static void use_placement_level(const char* tiers, uint32_t most, const char* what) {
  static story cold, warm;
  const uint32_t prompt = 12 * PAGE + 5, full = 12;
  const size_t block_bytes = LAYERS * 2 * PAGE * ROW * sizeof(uint16_t);
  char config[256];
  snprintf(config, sizeof config, "machine = \"%s\"\n[placement]\nblock_bytes = %zu\n%s",
           on_gpu ? "cuda" : "host", block_bytes, tiers);
  const lehr_open_options options = {
      .struct_size = sizeof options, .config = config, .config_size = strlen(config)};
  lehr_runtime lehr;
  MUST(lehr_open(LEHR_VERSION, &options, &lehr));
  pool_memory = make_buffer((size_t)LAYERS * 2 * PART);
  const lehr_layout layout = {.struct_size = sizeof layout,
                              .element_bytes = 2,
                              .layers = LAYERS,
                              .kv_heads = KV_HEADS,
                              .tokens = PAGE,
                              .head_dim = DIM,
                              .block_stride = PAGE * ROW * 2,
                              .layer_stride = 2 * PART * 2,
                              .head_stride = DIM * 2,
                              .token_stride = ROW * 2,
                              .v_offset = PART * 2};
  const lehr_namespace_desc names = {
      .struct_size = sizeof names, .layout = &layout, .model = {.data = "engine.c", .size = 8}};
  const lehr_pool_desc desc = {.struct_size = sizeof desc,
                               .memory = on_gpu ? LEHR_MEMORY_DEVICE : LEHR_MEMORY_HOST,
                               .base = pool_memory.there,
                               .bytes = pool_memory.bytes,
                               .blocks = BLOCKS,
                               .layout = &layout};
  lehr_namespace ns;
  lehr_pool pool;
  MUST(lehr_namespace_open(lehr, &names, &ns));
  MUST(lehr_pool_register(lehr, &desc, &pool));

  cold.count = warm.count = 0;
  for (int again = 0; again < 2; ++again) {
    story* const s = again ? &warm : &cold;
    uint32_t from = 0, next = 0;
    jobs moving;
    clear_pool();
    if (again) { /* a second request with the same prompt: its full blocks are there */
      start_moves(lehr, ns, pool, 1, full, most, &moving);
      if (!on_gpu) end_moves(lehr, &moving); /* without streams the host waits */
      from = full * PAGE;
    }
    for (uint32_t t = from; t < prompt; ++t)
      next = one_token(lehr, again ? &moving : NULL, prompt_word(0, t), t, NULL);
    if (!again) start_moves(lehr, ns, pool, 0, full, most, &moving);
    end_moves(lehr, &moving);
    s->digest = 14695981039346656037u;
    for (uint32_t t = prompt; t < prompt + 100; ++t) {
      tell(s, next);
      next = one_token(lehr, NULL, next, t, s);
    }
  }
  must_agree(&cold, &warm, what);
  MUST(lehr_pool_unregister(lehr, pool));
  MUST(lehr_close(lehr));
  drop_buffer(&pool_memory);
}

int main(int argc, char** argv) {
  on_gpu = argc > 1 && strcmp(argv[1], "cuda") == 0;
  if (argc > 1 && !on_gpu && strcmp(argv[1], "host") != 0) {
    fprintf(stderr, "usage: %s [host|cuda]\n", argv[0]);
    return 2;
  }
#ifdef LEHR_EXAMPLE_CUDA
  if (on_gpu) {
    cudaStream_t made;
    CUDA(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    stream = made;
  }
#else
  if (on_gpu) {
    fprintf(stderr, "built without LEHR_EXAMPLE_CUDA: host only\n");
    return 77;
  }
#endif
  make_model();
  use_step_level();
  printf("placement level, the engine's own attention and pool\n");
  use_placement_level("host = \"64 pages\"\n", 12, "a prompt computed, and loaded by name");
  use_placement_level("host = \"4 pages\"\nnvme = \"64 pages\"\n[nvme]\npath = \".\"\n", 4,
                      "most of its blocks in a file meanwhile");
  return 0;
}
