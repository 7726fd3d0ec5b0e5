/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lehr: tiering of transformer KV caches across HBM, host memory and NVMe. The C interface of
 * liblehr.
 *
 * Two levels, either or both in one runtime:
 *   step level        Lehr keeps the page table: sequences, decode steps, which pages are read;
 *   placement level   the engine keeps its own pools: blocks with content keys, stored and loaded
 *                     by jobs.
 *
 * Rules that hold for every function and are not repeated:
 *
 * Handles  are numbers in a struct, a struct for each kind; all zero is null. They are looked up,
 *          never followed: a null, stale, foreign or invented handle is refused with class
 *          LEHR_CLASS_STALE.
 * Status   LEHR_OK (0) is done, a positive status is information, a negative one is a failure with
 *          a class (what kind) and a reason (why). A refusal leaves the state as it was.
 *          lehr_last_error() has the details of this thread's latest failure.
 * Structs  (but handles and lehr_bytes) start with struct_size, which the caller sets to sizeof of
 *          the struct; all other fields may be 0, which means the default. Structs grow at the end
 *          only. A larger struct than this library knows is accepted if what it does not know is 0,
 *          else refused with class LEHR_CLASS_VERSION; a smaller one than its first released size
 *          is refused. A result struct is never written past its struct_size.
 * Arrays   of structs: the struct_size of the first element is the distance between elements. Its
 *          value is a multiple of 8.
 * Strings  are bytes with a size; they need no terminating 0 and are not kept. Text results are
 *          copied to a buffer of the caller with a terminating 0, cut if need be; the needed size
 *          goes to *needed.
 * Batches  return LEHR_OK if all items went well, LEHR_PARTIAL if some did, else the first item's
 *          failure. `statuses`, where not NULL, gets one status an item.
 * Fork     A child of a process that used the library may not use it: LEHR_CLASS_REFUSED,
 *          LEHR_REASON_FORKED.
 * Calls    never call back into the caller, never raise signals, never exit the process.
 * Streams  `stream` arguments are cudaStream_t on the cuda machine and NULL on sim and host.
 *
 * Each declaration carries labels: Thread (any: from several threads at once; serial: any thread,
 * calls on one runtime take turns inside), Stream (what it promises about stream order), Blocks,
 * Errors (classes and reasons beside the general ones), Since, Stability.
 */
#ifndef LEHR_H
#define LEHR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LEHR_API __attribute__((visibility("default")))
#else
#define LEHR_API
#endif

/* ---- Version --------------------------------------------------------------------------------- */

#define LEHR_VERSION_MAJOR 0
#define LEHR_VERSION_MINOR 1
#define LEHR_VERSION_PATCH 0
#define LEHR_VERSION (LEHR_VERSION_MAJOR * 1000000 + LEHR_VERSION_MINOR * 1000 + LEHR_VERSION_PATCH)

/* ---- Status ---------------------------------------------------------------------------------- */

typedef int32_t lehr_status;

/* Values of these lists are never changed, only added to. */
enum {
  LEHR_OK = 0,
  LEHR_PENDING = 1, /* not yet: ask again */
  LEHR_PARTIAL = 2, /* some items failed; their statuses say which */
  LEHR_RETRY = 3    /* not answered without waiting; ask again */
};

enum {
  LEHR_CLASS_INVALID = 1,     /* an argument is wrong */
  LEHR_CLASS_NOT_FOUND = 2,   /* a name, key or file that is not there */
  LEHR_CLASS_REFUSED = 3,     /* legal, but not possible now; the reason says why */
  LEHR_CLASS_IO = 4,          /* the operating system or a device failed */
  LEHR_CLASS_CORRUPT = 5,     /* stored bytes are not what was written */
  LEHR_CLASS_VERSION = 6,     /* a newer or foreign version */
  LEHR_CLASS_UNSUPPORTED = 7, /* not offered by this build, machine or shape */
  LEHR_CLASS_STALE = 8,       /* a handle of nothing that exists here */
  LEHR_CLASS_CANCELLED = 9,
  LEHR_CLASS_INTERNAL = 10
};

enum {
  LEHR_REASON_NONE = 0,
  LEHR_REASON_NO_EVICTABLE = 1,
  LEHR_REASON_OVER_BUDGET = 2,
  LEHR_REASON_LOWER_TIER_BUSY = 3,
  LEHR_REASON_LEASED = 4,
  LEHR_REASON_CHECKSUM = 5,
  LEHR_REASON_GENERATION = 6,
  LEHR_REASON_LAYOUT_MISMATCH = 7,
  LEHR_REASON_QUOTA = 8,
  LEHR_REASON_NO_SPACE = 9,
  LEHR_REASON_TRUNCATED = 10,
  LEHR_REASON_OUT_OF_RANGE = 11,
  LEHR_REASON_FORKED = 12,
  LEHR_REASON_MASK = 13,
  LEHR_REASON_PENDING = 14,
  LEHR_REASON_THRASH = 15
};

#define LEHR_STATUS_CLASS(status) ((status) < 0 ? (int32_t)((0u - (uint32_t)(status)) & 0xFFu) : 0)
#define LEHR_STATUS_REASON(status) \
  ((status) < 0 ? (int32_t)(((0u - (uint32_t)(status)) >> 8) & 0xFFu) : 0)
#define LEHR_MAKE_STATUS(class_, reason) (-(lehr_status)((class_) | ((reason) << 8)))

/*
 * The version of the library that is running, as LEHR_VERSION.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: none.
 * Since: 0.1. Stability: stable.
 */
LEHR_API uint32_t lehr_version(void);

/*
 * How the library was built, as a JSON object: version, cuda, io_uring, check level.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: none.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_build_info(char* buffer, size_t size, size_t* needed);

/*
 * The name of a status: "ok", "pending", "partial", "retry", or its class, for example "refused".
 * Thread: any. Stream: none. Blocks: no.
 * Errors: none.
 * Since: 0.1. Stability: stable.
 */
LEHR_API const char* lehr_status_name(lehr_status status);

/*
 * The name of a status's reason, for example "no_evictable"; "none" if it has none.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: none.
 * Since: 0.1. Stability: stable.
 */
LEHR_API const char* lehr_reason_name(lehr_status status);

/*
 * Copies the details of the calling thread's latest failure, of which at most 4096 bytes are kept;
 * returns the size that all of it needs, with the terminating 0. Calls that go well leave it as it
 * is.
 * Thread: any, each has its own. Stream: none. Blocks: no.
 * Errors: none.
 * Since: 0.1. Stability: stable.
 */
LEHR_API size_t lehr_last_error(char* buffer, size_t size);

/* Bytes of the caller. Like handles, this struct never grows, so it has no struct_size. */
typedef struct lehr_bytes {
  const void* data;
  size_t size;
} lehr_bytes;

/* ---- Runtime --------------------------------------------------------------------------------- */

typedef struct lehr_runtime {
  uint64_t id;
} lehr_runtime;

typedef struct lehr_open_options {
  uint32_t struct_size;
  uint32_t flags;     /* 0 */
  const char* config; /* TOML text; its keys: runtime/config/config_keys.def */
  size_t config_size;
  const char* config_path; /* or a file, 0-terminated; not both */
} lehr_open_options;

/*
 * Opens a runtime. `version` is the caller's LEHR_VERSION: one of a newer major version is refused.
 * The step level is there if the configuration has a geometry, the placement level if it has
 * placement.block_bytes. Several runtimes in one process know nothing of each other.
 * Thread: any. Stream: none. Blocks: while memory is taken and files are made.
 * Errors: VERSION; INVALID with file, line, key and range; IO and NO_SPACE of the NVMe file;
 *   UNSUPPORTED machine.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_open(uint32_t version, const lehr_open_options* options,
                               lehr_runtime* out);

/*
 * Closes a runtime. Jobs that are queued are dropped; calls of other threads that are under way end
 * first. All of its handles are stale from then on. Pools belong to the caller again.
 * Thread: any. Stream: none. Blocks: until bytes that are moving have arrived.
 * Errors: none.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_close(lehr_runtime runtime);

enum { LEHR_MACHINE_SIM = 0, LEHR_MACHINE_HOST = 1, LEHR_MACHINE_CUDA = 2 };

typedef struct lehr_runtime_info {
  uint32_t struct_size;
  int32_t machine;
  uint32_t has_step_level;
  uint32_t has_placement_level;
  uint32_t layers;
  uint32_t kv_heads;
  uint32_t q_heads;
  uint32_t head_dim;
  uint32_t page_tokens;
  uint32_t tiers; /* of the platform: for lehr_tier_describe */
  uint32_t links; /* of the platform: for lehr_link_describe */
  uint32_t reserved;
  uint64_t page_bytes;
  uint64_t block_bytes; /* a slot of the placement level */
} lehr_runtime_info;

/*
 * What the runtime is.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: none.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_runtime_describe(lehr_runtime runtime, lehr_runtime_info* out);

#define LEHR_NAME_BYTES 32
#define LEHR_MAX_LINKS 16

typedef struct lehr_tier_info {
  uint32_t struct_size;
  uint32_t directly_readable;
  char name[LEHR_NAME_BYTES];
  uint64_t capacity_pages; /* for the step level */
  uint64_t used_pages;
} lehr_tier_info;

/*
 * A tier of the platform, by index.
 * Thread: serial. Stream: none. Blocks: no.
 * Errors: OUT_OF_RANGE.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_tier_describe(lehr_runtime runtime, uint32_t index, lehr_tier_info* out);

typedef struct lehr_link_info {
  uint32_t struct_size;
  uint32_t from; /* tier index */
  uint32_t to;
  uint32_t reserved;
  char name[LEHR_NAME_BYTES];
  double peak_bytes_per_second;
} lehr_link_info;

/*
 * A link of the platform, by index: the index of the link arrays in lehr_step_report.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: OUT_OF_RANGE.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_link_describe(lehr_runtime runtime, uint32_t index, lehr_link_info* out);

/*
 * Lines for people: what was asked for and could not be had (O_DIRECT, io_uring, NUMA binding), and
 * what the planner advises, with numbers.
 * Thread: serial. Stream: none. Blocks: no.
 * Errors: none.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_notes(lehr_runtime runtime, char* buffer, size_t size, size_t* needed);

enum { LEHR_STAT_COUNTER = 1, LEHR_STAT_GAUGE = 2, LEHR_STAT_SECONDS = 3 };

typedef struct lehr_stat_info {
  uint32_t struct_size;
  int32_t type;     /* LEHR_STAT_*: which of the value's fields holds it */
  const char* name; /* valid as long as the library is loaded, as are unit and help */
  const char* unit;
  const char* help;
} lehr_stat_info;

typedef struct lehr_stat_value {
  uint32_t struct_size;
  int32_t type;
  uint64_t count; /* counters and gauges */
  double seconds; /* LEHR_STAT_SECONDS */
} lehr_stat_value;

/*
 * Name, type, unit and help of a statistic, by index from 0; the list is the same for all runtimes
 * and only ever grows.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: OUT_OF_RANGE past the last.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_stat_describe(uint32_t index, lehr_stat_info* out);

/*
 * All statistics at one moment, in the order of lehr_stat_describe. *count gets their number; no
 * more than `capacity` are written.
 * Thread: serial. Stream: none. Blocks: no.
 * Errors: none.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_stats_read(lehr_runtime runtime, lehr_stat_value* values, size_t capacity,
                                     size_t* count);

/* ---- Step level: sequences ------------------------------------------------------------------- */

typedef struct lehr_sequence {
  uint64_t id;
} lehr_sequence;

typedef struct lehr_sequence_desc {
  uint32_t struct_size;
  uint32_t flags;         /* 0 */
  uint64_t prompt_tokens; /* computed already: its full pages get a copy on the home tier */
  /* Only with full knowledge, for oracles: the tick of the first read of each full prompt page, by
     (layer, KV head, page); else NULL and 0. */
  const uint32_t* first_use;
  uint64_t first_use_count;
} lehr_sequence_desc;

/*
 * Creates sequences whose prompts were computed; all or none.
 * Thread: serial. Stream: none. Blocks: on host, while prompt pages are written.
 * Errors: INVALID inside a step; OVER_BUDGET or NO_SPACE if pages or tails do not fit.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_sequence_create(lehr_runtime runtime, const lehr_sequence_desc* items,
                                          size_t count, lehr_sequence* out);

/*
 * Appends tokens that were computed elsewhere (prefill chunks) to sequences: tokens[i] to the i-th.
 * Pages that they fill get a copy on the home tier, and HBM as far as it has room; lehr_step_totals
 * counts the bytes. Thread: serial. Stream: none. Blocks: on host, while pages are written. Errors:
 * INVALID inside a step or of a suspended sequence; NO_SPACE below HBM. Since: 0.1. Stability:
 * stable.
 */
LEHR_API lehr_status lehr_sequence_append(lehr_runtime runtime, const lehr_sequence* sequences,
                                          const uint64_t* tokens, size_t count,
                                          lehr_status* statuses);

/*
 * Forks sequences: the pages of each are shared and nothing is copied until one of the two writes
 * to a shared tail. The parent may be suspended; the child is not.
 * Thread: serial. Stream: none. Blocks: no.
 * Errors: INVALID inside a step; OVER_BUDGET.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_sequence_fork(lehr_runtime runtime, const lehr_sequence* parents,
                                        size_t count, lehr_sequence* out, lehr_status* statuses);

/*
 * Suspends sequences: they leave HBM, and take no steps until resumed. Those that are suspended
 * already stay so.
 * Thread: serial. Stream: none. Blocks: on host, while tails are written.
 * Errors: INVALID inside a step; LOWER_TIER_BUSY.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_sequence_suspend(lehr_runtime runtime, const lehr_sequence* sequences,
                                           size_t count, lehr_status* statuses);

/*
 * Resumes suspended sequences, and leaves others as they are; their pages come back as they are
 * read.
 * Thread: serial. Stream: none. Blocks: no.
 * Errors: INVALID inside a step; OVER_BUDGET.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_sequence_resume(lehr_runtime runtime, const lehr_sequence* sequences,
                                          size_t count, lehr_status* statuses);

/*
 * Releases sequences: pages that nobody shares are freed.
 * Thread: serial. Stream: none. Blocks: no.
 * Errors: INVALID inside a step.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_sequence_release(lehr_runtime runtime, const lehr_sequence* sequences,
                                           size_t count, lehr_status* statuses);

/*
 * Tokens of a sequence so far.
 * Thread: serial. Stream: none. Blocks: no.
 * Errors: none.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_sequence_tokens(lehr_runtime runtime, lehr_sequence sequence,
                                          uint64_t* out);

/* ---- Step level: decode steps ---------------------------------------------------------------- */

/*
 * Begins a step in which each of the sequences gets one token. Then lehr_step_layer for each layer
 * from 0, and lehr_step_end.
 * Thread: serial. Stream: later layers follow it; `stream` is NULL on sim and host. Blocks: no.
 * Errors: INVALID inside a step or of a suspended sequence; refused if a tail page finds no room.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_step_begin(lehr_runtime runtime, const lehr_sequence* sequences,
                                     size_t count, void* stream);

typedef struct lehr_selection {
  uint32_t struct_size;
  uint32_t kv_head;
  lehr_sequence sequence;
  const uint32_t*
      pages; /* ascending page indices of the sequence; the tail page is read in any case */
  const uint32_t*
      next_use;        /* aligned with pages: tick of the next read; only with full knowledge */
  const uint8_t* mass; /* log2 codes of the softmax mass of all pages of the context, or NULL */
  const uint8_t* peak; /* the same, the maximum over the group's query heads, or NULL */
  uint32_t page_count;
  uint32_t code_count;      /* of mass and of peak: the pages of the context */
  uint32_t filled_next_use; /* with full knowledge: of the page that became full in the step before,
                               or 0 */
  uint32_t reserved;
} lehr_selection;

/*
 * One layer of the step: what each KV group (sequence and KV head) reads. Groups that are left out
 * read their tail page only.
 * Thread: serial. Stream: after the layers before it. Blocks: on host, while the layer's bytes
 *   move.
 * Errors: INVALID layer order, page index, KV head or code count; CORRUPT if a page did not hold
 *   what was written; the step can then only be abandoned.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_step_layer(lehr_runtime runtime, uint32_t layer,
                                     const lehr_selection* groups, size_t count);

typedef struct lehr_step_report {
  uint32_t struct_size;
  uint32_t link_count;
  double total_seconds;   /* predicted: the sum over layers; so are the terms below */
  double exposed_seconds; /* transfer time that the step had to wait for */
  double compute_seconds;
  double hbm_seconds;
  double links_seconds;
  double control_seconds;
  double stall_seconds;
  double measured_seconds; /* 0 on sim */
  uint64_t reads;          /* pages, tails included */
  uint64_t hits;           /* of those, in HBM */
  uint64_t misses;
  uint64_t tail_reads;
  uint64_t installed;     /* misses kept by the read that brought them */
  uint64_t promoted;      /* pages that arrived ahead of need */
  uint64_t promoted_used; /* promoted pages at their first read */
  uint64_t written_back;
  uint64_t staged; /* pages brought from below the home tier */
  uint64_t dropped;
  uint64_t forced_drops;
  uint64_t refused_promotions;
  uint64_t busy_write_backs;
  double link_seconds[LEHR_MAX_LINKS];
  uint64_t link_bytes[LEHR_MAX_LINKS];
  uint64_t link_transfers[LEHR_MAX_LINKS];
  uint64_t paused_layers;    /* without promotions: predictions were off */
  uint64_t thrashing_layers; /* without promotions: steps read more than HBM holds */
  /* Of pages at the lower precision (policy.precision); 0 where none may be. */
  uint64_t lowered;           /* pages that took it */
  uint64_t lowered_hits;      /* reads of such pages in HBM */
  uint64_t lowered_crossings; /* such pages that crossed to HBM, read in place or moved */
  uint64_t mass_seen;         /* softmax mass of the pages read, in millionths of a KV group's */
  uint64_t mass_lowered;      /* of that, on such pages */
} lehr_step_report;

/*
 * Ends the step after its last layer. `out` may be NULL.
 * Thread: serial. Stream: after the layers. Blocks: no.
 * Errors: INVALID before the last layer.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_step_end(lehr_runtime runtime, lehr_step_report* out);

/*
 * Gives up a step that cannot go on: its sequences have the tokens that they began it with; what
 * its layers moved stays moved.
 * Thread: serial. Stream: none. Blocks: no.
 * Errors: INVALID outside a step.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_step_abandon(lehr_runtime runtime);

/*
 * The sum of all steps so far.
 * Thread: serial. Stream: none. Blocks: no.
 * Errors: none.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_step_totals(lehr_runtime runtime, lehr_step_report* out);

/* ---- Step level: contents -------------------------------------------------------------------- */

/*
 * With `step.contents = "kv"` (machines host and cuda) the pages of the step level hold K and V of
 * the caller's model, and Lehr computes attention over them. A step is then lehr_step_begin or
 * lehr_step_begin_tokens; for each layer from 0 lehr_step_append and, if Lehr is to attend,
 * lehr_step_attend; then lehr_step_end. Sequences start empty (prompt_tokens 0), and
 * lehr_sequence_append and lehr_step_layer are refused. lehr_step_abandon rolls the step's
 * sequences back to where it began.
 *
 * On cuda, calls enqueue on the stream that the step began with and return; gather, truncate and
 * reorder go on with the last one. Elements are f16 or bf16, and pages live in HBM and in host
 * memory, where attention reads them in place; the policy decides at the beginning of a step from
 * what the step before selected. With capacity.nvme, sequences that wait for their turn may lie in
 * a file (in the directory nvme.path): begin, gather and truncate bring the pages of theirs up and
 * others' down, wait for that and for what was enqueued before, and are REFUSED where host memory
 * cannot hold the batch. The appends and attends of a step of one token each may be
 * captured into a CUDA graph, all of them, once step.sequences and step.tokens are set and a step
 * like it ran before: begin, launch the graph, end, with no append or attend in between, while
 * sequences grow and pages move. The graph serves batches up to the captured one. begin, end,
 * gather and requests for mass cannot be captured.
 */

/* A tensor in memory of the caller: DLPack's fields. device_type: 1 (CPU) on host, 2
 * (CUDA) on cuda. dtype_code: 2 float, 4 bfloat. Strides in elements; NULL: dense. The last axis
 * must be dense. */
typedef struct lehr_tensor {
  uint32_t struct_size;
  int32_t device_type;
  void* data;
  int32_t device_id;
  int32_t ndim;
  uint8_t dtype_code;
  uint8_t dtype_bits;
  uint16_t dtype_lanes; /* 1 */
  uint32_t reserved;
  const int64_t* shape;
  const int64_t* strides;
  uint64_t byte_offset;
} lehr_tensor;

/*
 * Begins a step in which sequence i gets tokens[i] tokens (0: it only takes a place in the batch).
 * One token each: as lehr_step_begin, the policy decides where pages live. Else it is a chunk
 * (prefill, drafted tokens): its full pages are placed as those of a prompt, and everything is
 * read. Thread: serial. Stream: later layers follow it; `stream` is NULL on host; not capturable.
 * Blocks: on cuda, where pages live outside HBM, until the step before has run.
 * Errors: INVALID inside a step or of a suspended sequence; NO_SPACE below HBM; OVER_BUDGET past
 *   step.sequences or step.tokens; UNSUPPORTED without contents, or in a capture.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_step_begin_tokens(lehr_runtime runtime, const lehr_sequence* sequences,
                                            const uint32_t* tokens, size_t count, void* stream);

/*
 * K and V of a layer's new tokens, [batch, kv_heads, tokens, head_dim] each, in the element type of
 * `geometry.dtype` and K as it enters the dot product (after RoPE). tokens is the largest of the
 * step; rows past a sequence's own number are not read. The bytes are copied before it returns; on
 * cuda in stream order. Thread: serial. Stream: after the layers before it; capturable. Blocks: on
 * host, while bytes are copied or moved.
 * Errors: OUT_OF_RANGE layer order; LAYOUT_MISMATCH shape or dtype; UNSUPPORTED device.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_step_append(lehr_runtime runtime, uint32_t layer, const lehr_tensor* k,
                                      const lehr_tensor* v);

enum {
  LEHR_SELECT_ALL = 0,
  LEHR_SELECT_COUNT = 1, /* amount: pages */
  LEHR_SELECT_RATIO = 2, /* amount: share of the pages, (0, 1] */
  LEHR_SELECT_MASS = 3   /* amount: share of the mass that box scores promise, (0, 1] */
};

typedef struct lehr_attend_request {
  uint32_t struct_size;
  uint32_t layer;
  const lehr_tensor* q;   /* [batch, q_heads, tokens, head_dim]: f32, f16 or bf16 */
  const lehr_tensor* out; /* the same shape and dtype, strides of its own */
  float scale;            /* of q.k; 0: 1 / sqrt(head_dim) */
  float soft_cap;         /* cap * tanh(s / cap); 0: none */
  uint32_t window;        /* a query sees only its latest `window` tokens; 0: all */
  int32_t select_by;      /* LEHR_SELECT_*; but ALL only with one token each */
  float select_amount;
  uint32_t select_sinks;  /* first pages that are always read; 0: 1 */
  uint32_t select_recent; /* last pages that are always read; 0: 4 */
  uint32_t code_pitch;    /* pages between rows of mass and peak, at least those of each context */
  uint8_t* mass;   /* [batch][kv_heads][code_pitch] or NULL: code c for a share of 2^(-c/8) of the
                      last query's softmax mass, mean over the group's query heads; 255 for none */
  uint8_t* peak;   /* the same, the maximum over the query heads; or NULL */
  uint32_t causal; /* 0 or 1: causal, the only mask there is */
  uint32_t reserved;
} lehr_attend_request;

/*
 * Attention of a layer's new tokens over all tokens before them and themselves, causal. The result
 * does not depend on where pages live. mass and peak may be NULL.
 * Thread: serial. Stream: after lehr_step_append of the layer; capturable. Blocks: until `out` is
 *   written; on cuda only if mass or peak is asked for.
 * Errors: OUT_OF_RANGE layer order or code_pitch; LAYOUT_MISMATCH shape; UNSUPPORTED device, dtype
 *   or selection; MASK for any but a causal mask.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_step_attend(lehr_runtime runtime, const lehr_attend_request* request);

/*
 * Rolls sequences back to their first tokens[i] tokens; pages past them are let go.
 * Thread: serial. Stream: none. Blocks: on host, while a page comes back to be written.
 * Errors: INVALID inside a step or of a suspended sequence; OUT_OF_RANGE beyond its end.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_sequence_truncate(lehr_runtime runtime, const lehr_sequence* sequences,
                                            const uint64_t* tokens, size_t count,
                                            lehr_status* statuses);

/*
 * Empties sequences; they stay, as new ones.
 * Thread: serial. Stream: none. Blocks: no.
 * Errors: INVALID inside a step or of a suspended sequence.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_sequence_reset(lehr_runtime runtime, const lehr_sequence* sequences,
                                         size_t count, lehr_status* statuses);

/*
 * Sequence i becomes what sequence parents[i] (an index into the array) was; pages are shared as
 * after lehr_sequence_fork. All or none.
 * Thread: serial. Stream: none. Blocks: no.
 * Errors: INVALID inside a step, of a suspended sequence or one that is named twice; OUT_OF_RANGE.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_sequence_reorder(lehr_runtime runtime, const lehr_sequence* sequences,
                                           const uint32_t* parents, size_t count);

/*
 * Dense copies of a layer's K and V, [batch, kv_heads, tokens, head_dim]; rows past a sequence's
 * end become 0. Thread: serial. Stream: on cuda, after what was enqueued. Blocks: on host, until
 * all is copied. Errors: INVALID inside a step of one token; LAYOUT_MISMATCH shape or dtype;
 * UNSUPPORTED without contents. Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_sequence_gather(lehr_runtime runtime, uint32_t layer,
                                          const lehr_sequence* sequences, size_t count,
                                          const lehr_tensor* k, const lehr_tensor* v);

typedef struct lehr_contents_report {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t read_in_hbm;   /* pages that attention read in HBM */
  uint64_t read_in_place; /* in their home tier */
  uint64_t read_below;    /* below it, through a copy */
  uint64_t moved_pages;   /* pages that crossed between tiers, and their bytes: counted where they
                             were copied, not where it was decided */
  uint64_t moved_bytes;
} lehr_contents_report;

/*
 * What attention read and what crossed between tiers since the runtime was opened.
 * Thread: serial. Stream: none. Blocks: on cuda, until what was enqueued has run.
 * Errors: UNSUPPORTED without contents; CORRUPT if attention met a page that was nowhere.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_contents_read(lehr_runtime runtime, lehr_contents_report* out);

/* ---- Groups: several devices that serve -------------------------------------------------------
 */

/*
 * A group is several devices that serve the same sequences with contents (step.contents = "kv"),
 * each with a contiguous part of the KV heads, of the layers, or of each sequence's tokens. Every
 * device has a configuration, and so a budget, a policy and a machine, of its own. By heads and
 * layers the results are those of one device that holds everything, on host bit for bit; by tokens
 * the devices' results are merged in one fixed order, exactly but for rounding. In every division
 * they do not depend on where pages live.
 *
 * A step is lehr_group_step_begin; for each layer from 0 lehr_group_step_append and
 * lehr_group_step_attend; lehr_group_step_end. On host both are called once a layer with tensors of
 * the whole model (LEHR_GROUP_WHOLE), or once a device with those of its part. On cuda they are
 * called once a device, with tensors of its part on its GPU: its own KV heads and their query
 * heads; or, by layers, for the layers that it holds. A step that fails can be abandoned. Sequences
 * of a group are of no use to calls on runtimes.
 */
typedef struct lehr_group {
  uint64_t id;
} lehr_group;

enum {
  LEHR_SPLIT_HEADS = 0,
  LEHR_SPLIT_LAYERS = 1,
  LEHR_SPLIT_TOKENS = 2 /* on host only; steps read everything, masses are not told */
};

#define LEHR_GROUP_WHOLE 0xFFFFFFFFu

typedef struct lehr_group_options {
  uint32_t struct_size;
  int32_t split;             /* LEHR_SPLIT_* */
  const lehr_bytes* configs; /* one a device: TOML as for lehr_open, all with the whole model's
                                geometry; the key `device` says which GPU */
  const double* weights;     /* one a device: its share of what is divided; NULL: equal */
  uint32_t device_count;
  uint32_t flags; /* 0 */
} lehr_group_options;

/*
 * Opens a group. `version` as for lehr_open.
 * Thread: any. Stream: none. Blocks: while memory is taken.
 * Errors: as lehr_open, with the device's number; LAYOUT_MISMATCH if configurations differ in
 *   machine, geometry or rounding; OUT_OF_RANGE if there are fewer heads or layers than devices;
 *   UNSUPPORTED without contents, and for tokens on cuda.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_group_open(uint32_t version, const lehr_group_options* options,
                                     lehr_group* out);

/*
 * Closes a group; its sequences are gone. Calls of other threads that are under way end first.
 * Thread: any. Stream: none. Blocks: until bytes that are moving have arrived.
 * Errors: none.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_group_close(lehr_group group);

typedef struct lehr_group_info {
  uint32_t struct_size;
  int32_t split;
  uint32_t devices;
  int32_t machine;
  uint32_t layers; /* of the whole model, like the rest */
  uint32_t kv_heads;
  uint32_t q_heads;
  uint32_t head_dim;
  uint32_t page_tokens;
  uint32_t reserved;
} lehr_group_info;

/*
 * What the group is.
 * Thread: serial. Stream: none. Blocks: no.
 * Errors: none.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_group_describe(lehr_group group, lehr_group_info* out);

typedef struct lehr_group_device_info {
  uint32_t struct_size;
  int32_t gpu;         /* -1 where the device is none */
  uint32_t first_unit; /* of the heads or layers that it holds; by tokens, of all shares */
  uint32_t units;      /* by tokens: its share of every sequence */
  uint64_t hbm_pages;  /* capacity */
  uint64_t hbm_used_pages;
  uint64_t pages; /* that its sequences have */
} lehr_group_device_info;

/*
 * A device of the group, by index, and what it holds.
 * Thread: serial. Stream: none. Blocks: no.
 * Errors: OUT_OF_RANGE.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_group_device(lehr_group group, uint32_t device,
                                       lehr_group_device_info* out);

/*
 * Creates empty sequences; all or none. `expected` (may be NULL): the tokens that a division by
 * tokens deals to the devices, in whole pages; what comes after them goes to the last device, as
 * does everything of a sequence that expects none.
 * Thread: serial. Stream: none. Blocks: no.
 * Errors: INVALID inside a step; OUT_OF_RANGE tokens past 2^32 - 1; OVER_BUDGET if tails do
 *   not fit.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_group_sequence_create(lehr_group group, const uint64_t* expected,
                                                size_t count, lehr_sequence* out);

/*
 * Forks sequences, on every device; as lehr_sequence_fork.
 * Thread: serial. Stream: none. Blocks: no.
 * Errors: INVALID inside a step; OVER_BUDGET.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_group_sequence_fork(lehr_group group, const lehr_sequence* parents,
                                              size_t count, lehr_sequence* out,
                                              lehr_status* statuses);

/*
 * Releases sequences: pages that nobody shares are freed.
 * Thread: serial. Stream: none. Blocks: no.
 * Errors: INVALID inside a step.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_group_sequence_release(lehr_group group, const lehr_sequence* sequences,
                                                 size_t count, lehr_status* statuses);

/*
 * Begins a step in which sequence i gets tokens[i] tokens; NULL: one each. `streams`: one a device
 * on cuda, NULL on host. All devices or none.
 * Thread: serial. Stream: each device's calls follow its own; not capturable. Blocks: as
 *   lehr_step_begin_tokens.
 * Errors: as lehr_step_begin_tokens.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_group_step_begin(lehr_group group, const lehr_sequence* sequences,
                                           const uint32_t* tokens, size_t count,
                                           void* const* streams);

/*
 * K and V of a layer's new tokens, as lehr_step_append: of all KV heads (`device`
 * LEHR_GROUP_WHOLE), or of those of one device, which is given its layers of a division by layers
 * alone, by their numbers in the whole model.
 * Thread: serial. Stream: after the device's layers before it. Blocks: as lehr_step_append.
 * Errors: as lehr_step_append; OUT_OF_RANGE device, or a layer that it does not hold; UNSUPPORTED
 *   the whole on cuda, one device by tokens.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_group_step_append(lehr_group group, uint32_t device, uint32_t layer,
                                            const lehr_tensor* k, const lehr_tensor* v);

/*
 * Attention of a layer's new tokens, as lehr_step_attend, of all query heads or those of one
 * device.
 * Thread: serial. Stream: after lehr_group_step_append of the layer. Blocks: as lehr_step_attend.
 * Errors: as lehr_step_attend and lehr_group_step_append; UNSUPPORTED a selection or masses by
 *   tokens.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_group_step_attend(lehr_group group, uint32_t device,
                                            const lehr_attend_request* request);

/*
 * Ends the step after its last layer. `reports` may be NULL; else it has one a device, and `count`
 * is their number. By heads and tokens the devices work side by side, by layers in turn.
 * Thread: serial. Stream: after the layers. Blocks: no.
 * Errors: INVALID before every device has its last layer, and the step goes on; OUT_OF_RANGE count;
 *   as lehr_step_attend where the last layer was not attended: give the step up.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_group_step_end(lehr_group group, lehr_step_report* reports, size_t count);

/*
 * Gives up a step that cannot go on, on every device: sequences have the tokens that they had
 * before it.
 * Thread: serial. Stream: none. Blocks: no.
 * Errors: INVALID outside a step.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_group_step_abandon(lehr_group group);

typedef struct lehr_rebalance_request {
  uint32_t struct_size;
  uint32_t most_units; /* that change device at once, by loads; 0: 1, by tokens a page in 20 */
  uint32_t unit_count; /* 0: by loads; else the devices' number, */
  uint32_t reserved;
  const uint32_t* units; /* and what each is to hold; by tokens, its share of every sequence, in
                            all less than 2^32 */
  double least_gain;     /* share of the slowest device's time that must be saved; 0: 0.05 */
} lehr_rebalance_request;

typedef struct lehr_rebalance_report {
  uint32_t struct_size;
  uint32_t moved;         /* 1: units changed device */
  uint64_t copied_tokens; /* whose K and V were copied, in all layers and heads */
  uint64_t shared_tokens; /* of forks, that were not copied again */
  uint64_t copied_bytes;
  double slowest_seconds;  /* by loads: the slowest device's mean step since the last call, */
  double expected_seconds; /* and the slowest after the change */
} lehr_rebalance_report;

/*
 * Between steps: deals heads, layers or tokens anew, by what each device's steps took and hit since
 * the last call, or as the caller says. Nothing changes where nothing is gained. `out` may be NULL.
 * The new division takes its memory before the old one gives its own back. K and V go through host
 * memory; on cuda, what was enqueued on the streams of the last step is waited for.
 * Thread: serial. Stream: none. Blocks: while K and V are copied.
 * Errors: INVALID inside a step; OUT_OF_RANGE units; OVER_BUDGET or NO_SPACE if they do not fit:
 *   everything stays as it was.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_group_rebalance(lehr_group group, const lehr_rebalance_request* request,
                                          lehr_rebalance_report* out);

/* ---- Attention traces ------------------------------------------------------------------------ */

typedef struct lehr_trace {
  uint64_t id;
} lehr_trace;

typedef struct lehr_trace_desc {
  uint32_t struct_size;
  uint32_t with_peak; /* 0 or 1 */
  lehr_bytes path;    /* ends in ".zst": compressed */
  lehr_bytes model;
  lehr_bytes workload;
  uint32_t page_tokens;
  uint32_t q_heads;
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t kv_bytes_per_element;
  uint32_t model_layers;
  const uint32_t* layer_ids; /* those that are recorded, ascending */
  uint32_t layer_count;
  uint32_t prompt_tokens;
} lehr_trace_desc;

/*
 * Opens a writer of an attention trace. Nothing is visible under `path` before lehr_trace_close: a
 * crash leaves no file, and an earlier one as it was. Memory is bounded.
 * Thread: any. Stream: none. Blocks: while a file is made.
 * Errors: INVALID description; IO, NO_SPACE.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_trace_open(const lehr_trace_desc* desc, lehr_trace* out);

/*
 * Adds a step: codes [layers][kv_heads][pages], where pages is that of the step's context,
 * ceil((prompt + step + 1) / page_tokens), and `pitch` the distance between rows. `peak` is NULL
 * exactly if it is not recorded.
 * Thread: one at a time for a trace. Stream: none. Blocks: while bytes are written.
 * Errors: OUT_OF_RANGE pitch; IO, NO_SPACE, after which the trace takes no more.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_trace_step(lehr_trace trace, const uint8_t* mass, const uint8_t* peak,
                                     uint32_t pitch);

/*
 * Completes the trace and makes it visible. `tokens`: the ids of all prompt + steps tokens, or
 * NULL. The handle is stale afterwards, also if this fails; then there is no file.
 * Thread: one at a time for a trace. Stream: none. Blocks: while bytes are written.
 * Errors: INVALID without steps or with another count; IO, NO_SPACE.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_trace_close(lehr_trace trace, const int32_t* tokens, size_t count);

/*
 * Gives a trace up; no file remains of it.
 * Thread: one at a time for a trace. Stream: none. Blocks: no.
 * Errors: none.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_trace_discard(lehr_trace trace);

/* ---- Placement level: names and pools -------------------------------------------------------- */

#define LEHR_MAX_KEY_BYTES 255

/* Tiers of the placement level, as bits of a filter and as values of `tier` fields. */
enum { LEHR_TIER_HOST = 0, LEHR_TIER_NVME = 1 };
enum { LEHR_TIER_BIT_HOST = 1, LEHR_TIER_BIT_NVME = 2 };

/*
 * How a block of a pool lies in memory; strides and offsets in bytes. opaque_bytes > 0: nothing but
 * the size of a block is known. Else: element (layer, K or V, head, token, i) of block b is at
 *   base + b * block_stride + (K: k_offset, V: v_offset) + layer * layer_stride
 *        + head * head_stride + token * token_stride + i * element_bytes
 * and a fused layout has rows of 2 * head_dim elements, K then V.
 */
typedef struct lehr_layout {
  uint32_t struct_size;
  uint32_t fused;
  uint64_t opaque_bytes;
  uint32_t dtype; /* the caller's number for the element type: compared, never interpreted */
  uint32_t element_bytes;
  uint32_t layers;
  uint32_t kv_heads;
  uint32_t tokens; /* of a block */
  uint32_t head_dim;
  uint64_t block_stride;
  uint64_t layer_stride;
  uint64_t head_stride;
  uint64_t token_stride;
  uint64_t k_offset;
  uint64_t v_offset;
  uint32_t padding; /* bytes after each row that carry nothing */
  uint32_t reserved;
} lehr_layout;

typedef struct lehr_namespace {
  uint64_t id;
} lehr_namespace;

typedef struct lehr_namespace_desc {
  uint32_t struct_size;
  uint32_t rank;
  const lehr_layout* layout;
  lehr_bytes model;
  lehr_bytes salt;
  lehr_bytes tenant; /* whose quota its blocks count for */
} lehr_namespace_desc;

/*
 * The namespace of a model, layout, rank and salt. The same description gives the same namespace;
 * it lives as long as the runtime. Keys of one namespace are never found in another: the same bytes
 * in another layout are a miss.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: INVALID layout; OUT_OF_RANGE if a block is larger than a slot; OVER_BUDGET.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_namespace_open(lehr_runtime runtime, const lehr_namespace_desc* desc,
                                         lehr_namespace* out);

typedef struct lehr_pool {
  uint64_t id;
} lehr_pool;

enum {
  LEHR_MEMORY_HOST = 0,
  LEHR_MEMORY_DEVICE = 1 /* HBM of the runtime's device; on cuda only */
};

typedef struct lehr_pool_desc {
  uint32_t struct_size;
  int32_t memory; /* LEHR_MEMORY_* */
  void* base;     /* the caller's memory; may be NULL on sim, which moves no bytes */
  uint64_t bytes;
  uint32_t blocks;
  uint32_t reserved;
  const lehr_layout* layout;
} lehr_pool_desc;

/*
 * Registers memory of the caller as a pool of blocks. It must stay until lehr_pool_unregister went
 * well. On cuda it may be the device's (allocated or mapped, of one piece or several): base,
 * strides, offsets and rows are then multiples of 16 bytes, and blocks move between it and Lehr's
 * tiers in the order of the caller's streams. Every namespace works with both kinds of memory.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: INVALID layout, or memory that is not what it is said to be: of the host, of another
 *   device, managed, not mapped to its end; OUT_OF_RANGE if the blocks do not fit; UNSUPPORTED
 *   memory of a device on any other machine.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_pool_register(lehr_runtime runtime, const lehr_pool_desc* desc,
                                        lehr_pool* out);

/*
 * Gives a pool back to the caller.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: LEASED while jobs, claims or tables use it.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_pool_unregister(lehr_runtime runtime, lehr_pool pool);

/*
 * Bounds a tenant's blocks, each counted once with the size of a slot; 0 is no bound. A store that
 * would pass it makes the tenant's own least recently used blocks leave.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: OVER_BUDGET.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_tenant_set_quota(lehr_runtime runtime, const lehr_bytes* tenant,
                                           uint64_t bytes);

/*
 * Bytes of a tenant's blocks.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: NOT_FOUND.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_tenant_usage(lehr_runtime runtime, const lehr_bytes* tenant,
                                       uint64_t* bytes);

/* ---- Placement level: look-up, leases, removal ----------------------------------------------- */

enum {
  LEHR_KEY_MISS = 0,
  LEHR_KEY_HIT = 1,
  LEHR_KEY_PENDING = 2, /* a job is storing it */
  LEHR_KEY_RETRY = 3    /* could not be answered without waiting: ask again */
};

typedef struct lehr_lookup_result {
  uint32_t struct_size;
  int32_t state;  /* LEHR_KEY_* */
  int32_t tier;   /* of a hit: the fastest with a copy */
  int32_t reason; /* of a miss: LEHR_REASON_LAYOUT_MISMATCH if the key is there in another layout */
} lehr_lookup_result;

/*
 * Looks keys up. *prefix (may be NULL) gets the number of hits before the first key that is none.
 * Thread: any. Stream: none. Blocks: never; LEHR_RETRY, with all keys LEHR_KEY_RETRY, if another
 *   thread holds the directory.
 * Errors: INVALID keys.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_lookup(lehr_runtime runtime, lehr_namespace ns, const lehr_bytes* keys,
                                 size_t count, lehr_lookup_result* results, size_t* prefix);

typedef struct lehr_lease {
  uint64_t id;
} lehr_lease;

/*
 * Leases the copies of keys: they stay where they are until the lease is released. All or none.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: NOT_FOUND if a key has no copy.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_lease_acquire(lehr_runtime runtime, lehr_namespace ns,
                                        const lehr_bytes* keys, size_t count, lehr_lease* out);

/*
 * Releases a lease.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: none.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_lease_release(lehr_runtime runtime, lehr_lease lease);

/*
 * Removes keys with all their copies.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: NOT_FOUND; LEASED; PENDING while being stored.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_remove(lehr_runtime runtime, lehr_namespace ns, const lehr_bytes* keys,
                                 size_t count, lehr_status* statuses);

/* ---- Placement level: claims ----------------------------------------------------------------- */

typedef struct lehr_claim {
  uint64_t id;
} lehr_claim;

enum {
  LEHR_CLAIM_WAITING = 0,
  LEHR_CLAIM_GRANTED = 1,
  LEHR_CLAIM_ROLLED_BACK =
      2 /* told once: give back all blocks that it held; it waits for all of them now */
};

/*
 * Claims blocks of a pool for somebody (a request, a sequence) that holds `held` already and needs
 * `need` more before it can run and give them back. Needs are granted whole or not at all, so that
 * two claims can never wait for each other's blocks.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: OVER_BUDGET if it could never be granted.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_claim_open(lehr_runtime runtime, lehr_pool pool, uint32_t held,
                                     uint32_t need, lehr_claim* out);

/*
 * A granted claim asks for `need` more.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: PENDING while its last need is not granted; OVER_BUDGET.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_claim_extend(lehr_runtime runtime, lehr_claim claim, uint32_t need);

/*
 * The state of a claim, LEHR_CLAIM_*.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: none.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_claim_query(lehr_runtime runtime, lehr_claim claim, int32_t* state);

/*
 * Closes a claim: all of its blocks are free for others.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: LEASED while jobs load into its blocks.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_claim_close(lehr_runtime runtime, lehr_claim claim);

/* ---- Placement level: tables of blocks ------------------------------------------------------- */

typedef struct lehr_table {
  uint64_t id;
} lehr_table;

enum {
  LEHR_TABLE_INDEX = 0,  /* int32: number of the block in its pool; -1: none. vLLM's block tables */
  LEHR_TABLE_POINTER = 1 /* uint64: address of the block; 0: none */
};

#define LEHR_NO_BLOCK 0xFFFFFFFFu

typedef struct lehr_table_desc {
  uint32_t struct_size;
  int32_t form;     /* LEHR_TABLE_* */
  lehr_pool pool;   /* whose blocks; the table lies in memory of the same kind */
  uint32_t rows;    /* sequences */
  uint32_t columns; /* blocks of a sequence, at most */
} lehr_table_desc;

/*
 * Opens a table that the caller's kernels read: *entries gets its address, which stays, of
 * [rows][columns] entries, all none. Entries change by loads whose items name them (lehr_item), and
 * by lehr_table_write.
 * Thread: any. Stream: none. Blocks: while memory is taken.
 * Errors: OUT_OF_RANGE; OVER_BUDGET; INVALID form.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_table_open(lehr_runtime runtime, const lehr_table_desc* desc,
                                     lehr_table* out, void** entries);

/*
 * Closes a table, whose memory is gone; the device must be done with it.
 * Thread: any. Stream: none. Blocks: while memory is given back.
 * Errors: LEASED while jobs are to write entries.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_table_close(lehr_runtime runtime, lehr_table table);

typedef struct lehr_table_entry {
  uint32_t struct_size;
  uint32_t row;
  uint32_t column;
  uint32_t block; /* or LEHR_NO_BLOCK */
} lehr_table_entry;

/*
 * Writes entries: of blocks that the caller fills, or gives up. All or none. Neighbours in an order
 * of rising columns are written at once.
 * Thread: any. Stream: in the order of `stream` (NULL: the default stream; on host NULL, and they
 *   are written when this returns); not capturable. Blocks: no.
 * Errors: OUT_OF_RANGE outside the table or the pool; UNSUPPORTED stream on host or being captured.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_table_write(lehr_runtime runtime, lehr_table table,
                                      const lehr_table_entry* entries, size_t count, void* stream);

typedef struct lehr_ragged {
  uint32_t struct_size;
  uint32_t block_tokens;
  int32_t* indptr;        /* [rows + 1]: where each row's blocks begin */
  int32_t* indices;       /* [capacity]: blocks of the rows, one after the other */
  int32_t* last_page_len; /* [rows]: tokens of a row's last block; 0 without tokens */
  uint64_t capacity;
} lehr_ragged;

/*
 * The first `rows` rows of a table in FlashInfer's form (paged_kv_indptr, _indices,
 * _last_page_len): of row i the blocks of its first tokens[i] tokens. Where a block is not in the
 * pool the index is -1. `out` names memory of the same kind as the table's. Thread: any. Stream: in
 * the order of `stream`, as lehr_table_write. Blocks: no. Errors: INVALID on a table of addresses;
 * OUT_OF_RANGE more tokens than columns or capacity hold. Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_table_ragged(lehr_runtime runtime, lehr_table table,
                                       const uint32_t* tokens, size_t rows, const lehr_ragged* out,
                                       void* stream);

/* ---- Placement level: jobs ------------------------------------------------------------------- */

typedef struct lehr_job {
  uint64_t id;
} lehr_job;

enum { LEHR_ITEM_NO_STORE = 1 /* flag: leave this one out of a store */ };

typedef struct lehr_item {
  uint32_t struct_size;
  uint32_t flags;
  const void* key;
  uint32_t key_size;
  uint32_t block; /* of the pool: stored from, or loaded into */
  lehr_pool pool; /* null only on sim */
  /* Of a load: the entry of a table that says where the block is. It is none from the moment that
     the job's bytes may move, and names the block once they are there: in the order of the job's
     event. Of an item that fails or is cancelled it stays none. */
  lehr_table table; /* or null */
  uint32_t row;
  uint32_t column;
} lehr_item;

enum {
  LEHR_ITEM_MISS = 0,
  LEHR_ITEM_PENDING = 2, /* another job is storing the key */
  LEHR_ITEM_MOVE = 3,    /* its bytes are to be moved */
  LEHR_ITEM_PRESENT = 4, /* store: there already */
  LEHR_ITEM_SKIPPED = 5, /* store: named twice, or LEHR_ITEM_NO_STORE */
  LEHR_ITEM_DONE = 6,
  LEHR_ITEM_FAILED = 7,
  LEHR_ITEM_CANCELLED = 8
};

#define LEHR_NO_SLOT 0xFFFFFFFFu

/* What becomes of one item. Slots are stable numbers: with them, another process can be the mover.
 */
typedef struct lehr_item_state {
  uint32_t struct_size;
  int32_t state;      /* LEHR_ITEM_* */
  lehr_status status; /* of a failed one */
  int32_t tier;       /* stored into, or loaded from */
  uint32_t slot;
  uint32_t
      host_slot; /* of a load from below host: where a copy stays on the way, or LEHR_NO_SLOT */
} lehr_item_state;

typedef struct lehr_evicted {
  uint32_t struct_size;
  int32_t tier;
  lehr_namespace ns;
  int32_t reason; /* LEHR_REASON_NONE: for room */
  uint32_t key_size;
  uint8_t key[LEHR_MAX_KEY_BYTES + 1];
} lehr_evicted;

enum { LEHR_PRIORITY_LOW = -1, LEHR_PRIORITY_NORMAL = 0, LEHR_PRIORITY_HIGH = 1 };

typedef struct lehr_store_request {
  uint32_t struct_size;
  int32_t priority; /* LEHR_PRIORITY_*: lower ones leave first */
  lehr_namespace ns;
  uint64_t caller_id; /* the caller's own number for the job */
  uint32_t tiers;     /* filter, LEHR_TIER_BIT_*; 0: all */
  uint32_t reserved;
} lehr_store_request;

/*
 * Prepares a store: which items are to be moved, into which slots, and what leaves for them.
 * Nothing is moved yet; the keys are pending until the job ends. All items get their slots or the
 * call is refused. `states` (may be NULL) gets `count` entries. *evicted_count (may be NULL) gets
 * the number of evicted copies, of which at most evicted_capacity are written; all of them are
 * events, too.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: NO_EVICTABLE, LOWER_TIER_BUSY, OVER_BUDGET, QUOTA; LEASED if a block is being loaded
 *   into; LAYOUT_MISMATCH; OUT_OF_RANGE.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_store_prepare(lehr_runtime runtime, const lehr_store_request* request,
                                        const lehr_item* items, size_t count,
                                        lehr_item_state* states, lehr_evicted* evicted,
                                        size_t evicted_capacity, size_t* evicted_count,
                                        lehr_job* out);

/* Flags of a load. PARTIAL: load what is there; else one missing key refuses all. LAYERED: into
 * memory of a device layer by layer, so that lehr_job_wait_layer need not wait for all of them; it
 * costs a launch a layer. */
enum { LEHR_LOAD_PARTIAL = 1, LEHR_LOAD_LAYERED = 2 };

typedef struct lehr_load_request {
  uint32_t struct_size;
  uint32_t flags;
  lehr_namespace ns;
  uint64_t caller_id;
  lehr_claim claim; /* may be null; else it must be granted, and bounds the blocks being loaded */
} lehr_load_request;

/*
 * Prepares a load: finds the copies and pins them until the job ends.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: NOT_FOUND; PENDING if a key is being stored or the claim is not granted; LEASED if a
 *   block is in use by another job; OVER_BUDGET; LAYOUT_MISMATCH; OUT_OF_RANGE.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_load_prepare(lehr_runtime runtime, const lehr_load_request* request,
                                       const lehr_item* items, size_t count,
                                       lehr_item_state* states, lehr_job* out);

/*
 * Has Lehr move the bytes of prepared jobs. Pool blocks must not change (store) or be used (load)
 * until the job ends; blocks on a device: by work that is not ordered behind the job's event. Not
 * on sim, where the caller moves them and calls lehr_job_complete. Thread: any. Stream: jobs start
 * after the work enqueued in `stream` (on cuda NULL is the default stream; NULL on host): a store's
 * writers, a load's last readers. Not capturable. Blocks: no. Errors: UNSUPPORTED on sim, with a
 * stream on host, or one that is being captured; INVALID if submitted before, or a stream of
 * another device; OVER_BUDGET while too much is enqueued on the device, or by one job: it stays
 * prepared. Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_jobs_submit(lehr_runtime runtime, const lehr_job* jobs, size_t count,
                                      void* stream, lehr_status* statuses);

enum { LEHR_ORDER_EVENTS_ONLY = 1 /* flag: not after the stream */ };

/* Work of the caller on the device that jobs start after. */
typedef struct lehr_order {
  uint32_t struct_size;
  uint32_t flags; /* LEHR_ORDER_* */
  void* stream;
  void* const* events;  /* cudaEvent_t, recorded by now */
  uint64_t event_count; /* at most 64 */
} lehr_order;

/*
 * As lehr_jobs_submit, after a stream, events, or both.
 * Thread: any. Stream: jobs start after what `after` names. Not capturable. Blocks: no.
 * Errors: those of lehr_jobs_submit; UNSUPPORTED events on host.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_jobs_submit_after(lehr_runtime runtime, const lehr_job* jobs,
                                            size_t count, const lehr_order* after,
                                            lehr_status* statuses);

/*
 * Makes `stream` wait for layers 0 to `layer` of a submitted job, the host does not wait: what is
 * enqueued on it from now on finds the blocks of a load filled, and may overwrite those of a store.
 * Without LEHR_LOAD_LAYERED it waits for all layers. A failed or cancelled item holds nobody up;
 * its block is as it was, and the job's report says so once the job ends. Where blocks are in host
 * memory nothing is enqueued: LEHR_OK if the job has ended, else LEHR_PENDING.
 * Thread: any. Stream: `stream` waits; not capturable. Blocks: no.
 * Errors: INVALID if it was not submitted, or a stream of another device; OUT_OF_RANGE past the
 *   layout's last layer (an opaque one has one); UNSUPPORTED stream on host, or being captured.
 * Since: 0.1. Stability: experimental.
 */
LEHR_API lehr_status lehr_job_wait_layer(lehr_runtime runtime, lehr_job job, uint32_t layer,
                                         void* stream);

/*
 * The event (cudaEvent_t) of a submitted job: when it has passed, a store has read its blocks and a
 * load has filled its own. It is Lehr's, recorded already, and valid until the job is released;
 * NULL if the job has nothing to move. Thread: any. Stream: as said. Blocks: no. Errors: INVALID if
 * it was not submitted; UNSUPPORTED if its blocks are in host memory. Since: 0.1. Stability:
 * experimental.
 */
LEHR_API lehr_status lehr_job_event(lehr_runtime runtime, lehr_job job, void** event);

/*
 * On sim: the caller moved the bytes. `results` has one status for each item of the job, in order;
 * those of items not in LEHR_ITEM_MOVE are not looked at. LEHR_OK publishes a store. A copy whose
 * load failed is forgotten, unless its status is of class LEHR_CLASS_CANCELLED.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: UNSUPPORTED where Lehr moves bytes; INVALID count or status.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_job_complete(lehr_runtime runtime, lehr_job job,
                                       const lehr_status* results, size_t count);

/*
 * Cancels jobs that have not started: their slots and pins are free again. Of jobs on a device,
 * loads that are queued; a store that was submitted counts as started.
 * Thread: any. Stream: what waits for a cancelled job goes on. Blocks: no.
 * Errors: PENDING while bytes move; INVALID if done.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_jobs_cancel(lehr_runtime runtime, const lehr_job* jobs, size_t count,
                                      lehr_status* statuses);

enum { LEHR_JOB_STORE = 1, LEHR_JOB_LOAD = 2 };
enum { LEHR_JOB_PREPARED = 0, LEHR_JOB_QUEUED = 1, LEHR_JOB_RUNNING = 2, LEHR_JOB_DONE = 3 };

typedef struct lehr_job_report {
  uint32_t struct_size;
  int32_t kind; /* LEHR_JOB_STORE or LEHR_JOB_LOAD */
  lehr_job job;
  uint64_t caller_id;
  int32_t state;      /* LEHR_JOB_PREPARED ... LEHR_JOB_DONE */
  lehr_status status; /* done: LEHR_OK, LEHR_PARTIAL, or the first failure if all failed; else
                         LEHR_PENDING */
  uint32_t items;
  uint32_t succeeded;
  uint32_t failed; /* or cancelled */
  uint32_t reserved;
} lehr_job_report;

/*
 * Takes the reports of jobs that ended since they were last taken, in order. *count gets their
 * number, 0 if there are none. A job that was taken still has to be released.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: none.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_jobs_poll(lehr_runtime runtime, lehr_job_report* reports, size_t capacity,
                                    size_t* count);

/*
 * A descriptor that is readable while lehr_jobs_poll has something: for poll, epoll and the like.
 * It belongs to the runtime: neither read nor close it.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: none.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_jobs_event_fd(lehr_runtime runtime, int32_t* fd);

/*
 * How a job stands.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: none.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_job_query(lehr_runtime runtime, lehr_job job, lehr_job_report* out);

/*
 * How the items of a job stand. *count gets their number; no more than `capacity` are written.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: none.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_job_items(lehr_runtime runtime, lehr_job job, lehr_item_state* states,
                                    size_t capacity, size_t* count);

/*
 * Waits until a submitted job has ended: LEHR_OK, or LEHR_PENDING when timeout_ns passed first. How
 * it ended is for lehr_job_query.
 * Thread: any. Stream: none. Blocks: up to timeout_ns, at most an hour.
 * Errors: INVALID if it was not submitted.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_job_wait(lehr_runtime runtime, lehr_job job, int64_t timeout_ns);

/*
 * Waits until all submitted jobs have ended and every block that is to be on NVMe is there:
 * LEHR_OK, or LEHR_PENDING when timeout_ns passed first.
 * Thread: any. Stream: none. Blocks: up to timeout_ns, at most an hour.
 * Errors: none.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_jobs_drain(lehr_runtime runtime, int64_t timeout_ns);

/*
 * Forgets jobs that have ended.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: PENDING if it has not ended.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_jobs_release(lehr_runtime runtime, const lehr_job* jobs, size_t count,
                                       lehr_status* statuses);

/* ---- Placement level: events ----------------------------------------------------------------- */

enum {
  LEHR_EVENT_STORED = 1, /* a tier has a valid copy of the key */
  LEHR_EVENT_REMOVED =
      2, /* a tier's copy of the key is gone; the reason says why, NONE is for room */
  LEHR_EVENT_WARNING = 3 /* `key` is a line of text */
};

typedef struct lehr_event {
  uint32_t struct_size;
  int32_t kind;
  int32_t tier;
  int32_t reason;
  lehr_namespace ns;
  uint64_t bytes;
  uint32_t key_size;
  uint32_t reserved;
  uint8_t key[LEHR_MAX_KEY_BYTES + 1];
} lehr_event;

/*
 * Takes the oldest events, in order. *dropped (may be NULL) gets the number of events, since the
 * runtime was opened, that nobody fetched in time.
 * Thread: any. Stream: none. Blocks: no.
 * Errors: none.
 * Since: 0.1. Stability: stable.
 */
LEHR_API lehr_status lehr_events_read(lehr_runtime runtime, lehr_event* events, size_t capacity,
                                      size_t* count, uint64_t* dropped);

#ifdef __cplusplus
}
#endif

#endif /* LEHR_H */
