/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's use of Lehr, in C11: decode steps on the step level, and its own pools on the
 * placement level. Exits with 1 at the first thing that is not as it should be. */
#include <lehr.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checks.h"

#define ARRAY(type, name, n)    \
  type name[n];                 \
  memset(name, 0, sizeof name); \
  name[0].struct_size = sizeof(type)

static lehr_runtime open_with(const char* config) {
  lehr_open_options options = {.struct_size = sizeof options};
  lehr_runtime runtime = {0};
  options.config = config;
  options.config_size = strlen(config);
  MUST(lehr_open(LEHR_VERSION, &options, &runtime));
  return runtime;
}

/* ---- Step level ---- */

enum { LAYERS = 3, HEADS = 2, PAGE = 16, STEPS = 40 };

/* The first page, the last two full ones, and one in the middle that moves with the step. */
static uint32_t choose(uint64_t tokens, uint32_t step, uint32_t head, uint32_t* pages) {
  const uint32_t full = (uint32_t)(tokens / PAGE);
  uint32_t count = 0;
  if (full == 0) return 0;
  pages[count++] = 0;
  const uint32_t middle = 1 + (step / 4 + 3 * head) % (full > 3 ? full - 3 : 1);
  if (middle + 2 < full) pages[count++] = middle;
  if (full > 2) pages[count++] = full - 2;
  if (full > 1) pages[count++] = full - 1;
  return count;
}

static void decode(lehr_runtime runtime, const lehr_sequence* sequences, size_t count,
                   uint32_t step, lehr_step_report* report) {
  MUST(lehr_step_begin(runtime, sequences, count, NULL));
  for (uint32_t layer = 0; layer < LAYERS; ++layer) {
    lehr_selection groups[4 * HEADS];
    uint32_t pages[4 * HEADS][4];
    uint8_t mass[4][64];
    memset(groups, 0, sizeof groups);
    memset(mass, 40, sizeof mass);
    size_t n = 0;
    for (size_t s = 0; s < count; ++s) {
      uint64_t tokens = 0;
      MUST(lehr_sequence_tokens(runtime, sequences[s], &tokens));
      for (uint32_t head = 0; head < HEADS; ++head, ++n) {
        groups[n].struct_size = sizeof(lehr_selection);
        groups[n].sequence = sequences[s];
        groups[n].kv_head = head;
        groups[n].pages = pages[n];
        groups[n].page_count = choose(tokens - 1, step, head, pages[n]);
        groups[n].mass = mass[s];
        groups[n].code_count = (uint32_t)((tokens + PAGE - 1) / PAGE);
      }
    }
    MUST(lehr_step_layer(runtime, layer, groups, n));
  }
  report->struct_size = sizeof *report;
  MUST(lehr_step_end(runtime, report));
}

static void use_step_level(const char* machine) {
  char config[512];
  snprintf(config, sizeof config,
           "machine = \"%s\"\nprofile = \"gh200\"\n"
           "[policy]\nname = \"lru\"\n"
           "[geometry]\nlayers = %d\nkv_heads = %d\nq_heads = 4\nhead_dim = 64\npage_tokens = %d\n"
           "[capacity]\nhbm = \"60 pages\"\nhost = \"400 pages\"\nnvme = 0\n",
           machine, LAYERS, HEADS, PAGE);
  lehr_runtime runtime = open_with(config);

  lehr_runtime_info info = {.struct_size = sizeof info};
  MUST(lehr_runtime_describe(runtime, &info));
  CHECK(info.has_step_level == 1 && info.has_placement_level == 0);
  CHECK(info.page_bytes == 2 * PAGE * 64 * 2);

  ARRAY(lehr_sequence_desc, prompts, 2);
  prompts[0].prompt_tokens = 8 * PAGE + 5;
  prompts[1].struct_size = sizeof prompts[1];
  prompts[1].prompt_tokens = 5 * PAGE;
  lehr_sequence sequences[3];
  MUST(lehr_sequence_create(runtime, prompts, 2, sequences));

  lehr_step_report report = {.struct_size = sizeof report};
  uint64_t reads = 0;
  double seconds = 0;
  for (uint32_t step = 0; step < STEPS; ++step) {
    decode(runtime, sequences, 2, step, &report);
    CHECK(report.hits + report.misses == report.reads);
    CHECK(report.tail_reads == 2 * LAYERS * HEADS);
    CHECK(report.total_seconds > 0);
    CHECK(strcmp(machine, "sim") != 0 || report.measured_seconds == 0);
    reads += report.reads;
    seconds += report.total_seconds;
  }
  uint64_t tokens = 0;
  MUST(lehr_sequence_tokens(runtime, sequences[0], &tokens));
  CHECK(tokens == 8 * PAGE + 5 + STEPS);
  lehr_step_report totals = {.struct_size = sizeof totals};
  MUST(lehr_step_totals(runtime, &totals));
  CHECK(totals.reads == reads);
  CHECK(totals.total_seconds > 0.999 * seconds && totals.total_seconds < 1.001 * seconds);
  CHECK(totals.misses > 0 && totals.written_back > 0);

  /* A fork shares its pages; a suspended sequence leaves HBM and comes back. */
  MUST(lehr_sequence_fork(runtime, &sequences[0], 1, &sequences[2], NULL));
  MUST(lehr_sequence_suspend(runtime, &sequences[1], 1, NULL));
  const lehr_sequence forks[2] = {sequences[0], sequences[2]};
  for (uint32_t step = 0; step < 20; ++step) decode(runtime, forks, 2, step, &report);
  lehr_status refusal = lehr_step_begin(runtime, &sequences[1], 1, NULL);
  CHECK(LEHR_STATUS_CLASS(refusal) == LEHR_CLASS_INVALID);
  MUST(lehr_sequence_resume(runtime, &sequences[1], 1, NULL));
  for (uint32_t step = 0; step < 20; ++step) decode(runtime, &sequences[1], 1, step, &report);

  /* A step that cannot go on is abandoned; the next one is whole again. */
  MUST(lehr_step_begin(runtime, &sequences[1], 1, NULL));
  CHECK(LEHR_STATUS_CLASS(lehr_step_end(runtime, NULL)) == LEHR_CLASS_INVALID);
  MUST(lehr_step_abandon(runtime));
  decode(runtime, &sequences[1], 1, 0, &report);

  MUST(lehr_sequence_release(runtime, sequences, 3, NULL));
  lehr_tier_info tier = {.struct_size = sizeof tier};
  for (uint32_t t = 0; t < info.tiers; ++t) {
    MUST(lehr_tier_describe(runtime, t, &tier));
    CHECK(tier.used_pages == 0);
  }
  lehr_link_info link = {.struct_size = sizeof link};
  MUST(lehr_link_describe(runtime, 0, &link));
  CHECK(link.name[0] != '\0' && link.peak_bytes_per_second > 0);
  lehr_status statuses[3];
  CHECK(LEHR_STATUS_CLASS(lehr_sequence_release(runtime, sequences, 3, statuses)) ==
        LEHR_CLASS_STALE);
  CHECK(LEHR_STATUS_CLASS(statuses[2]) == LEHR_CLASS_STALE);
  MUST(lehr_close(runtime));
}

/* ---- Placement level ---- */

enum { BLOCKS = 24, TOKENS = 16, DIM = 32 };
/* [layer][K, V][block][head][token][dim] of 2 bytes, as many engines keep it. */
enum {
  ROW = DIM * 2,
  PART = HEADS * TOKENS * ROW,
  BLOCK_BYTES = LAYERS * 2 * PART,
  POOL_BYTES = BLOCKS * BLOCK_BYTES
};

static unsigned char pool_memory[POOL_BYTES];

static unsigned char* part_of(uint32_t block, uint32_t layer, uint32_t part) {
  return pool_memory + ((layer * 2 + part) * BLOCKS + block) * (size_t)PART;
}

static void fill_block(uint32_t block, uint32_t seed) {
  for (uint32_t layer = 0; layer < LAYERS; ++layer)
    for (uint32_t part = 0; part < 2; ++part)
      for (uint32_t i = 0; i < PART; ++i)
        part_of(block, layer, part)[i] =
            (unsigned char)(seed * 31 + layer * 7 + part * 3 + i * 13 + i / 251);
}

static int same_block(uint32_t a, uint32_t b) {
  for (uint32_t layer = 0; layer < LAYERS; ++layer)
    for (uint32_t part = 0; part < 2; ++part)
      if (memcmp(part_of(a, layer, part), part_of(b, layer, part), PART) != 0) return 0;
  return 1;
}

static lehr_bytes bytes_of(const char* text) {
  lehr_bytes bytes = {text, strlen(text)};
  return bytes;
}

static void name_key(char out[16], uint32_t number) { snprintf(out, 16, "block-%u", number); }

static void wait_by_poll(lehr_runtime runtime, uint64_t caller_id, lehr_job_report* report) {
  int32_t fd = -1;
  MUST(lehr_jobs_event_fd(runtime, &fd));
  struct pollfd entry = {.fd = fd, .events = POLLIN};
  for (;;) {
    size_t count = 0;
    CHECK(poll(&entry, 1, 20000) == 1);
    report->struct_size = sizeof *report;
    MUST(lehr_jobs_poll(runtime, report, 1, &count));
    if (count == 0) continue;
    CHECK(report->caller_id == caller_id && report->state == LEHR_JOB_DONE);
    return;
  }
}

static void move(lehr_runtime runtime, lehr_namespace ns, lehr_pool pool, int store,
                 uint32_t first_key, uint32_t first_block, uint32_t count,
                 lehr_item_state* states) {
  lehr_item items[8];
  char keys[8][16];
  static uint64_t next_id = 100;
  lehr_job job = {0};
  memset(items, 0, sizeof items);
  for (uint32_t i = 0; i < count; ++i) {
    name_key(keys[i], first_key + i);
    items[i].struct_size = sizeof items[i];
    items[i].key = keys[i];
    items[i].key_size = (uint32_t)strlen(keys[i]);
    items[i].block = first_block + i;
    items[i].pool = pool;
  }
  if (store) {
    lehr_store_request request = {.struct_size = sizeof request, .ns = ns, .caller_id = ++next_id};
    MUST(lehr_store_prepare(runtime, &request, items, count, states, NULL, 0, NULL, &job));
  } else {
    lehr_load_request request = {.struct_size = sizeof request, .ns = ns, .caller_id = ++next_id};
    MUST(lehr_load_prepare(runtime, &request, items, count, states, &job));
  }
  lehr_job_report report;
  memset(&report, 0, sizeof report);
  MUST(lehr_jobs_submit(runtime, &job, 1, NULL, NULL));
  wait_by_poll(runtime, next_id, &report);
  CHECK(report.status == LEHR_OK && report.job.id == job.id);
  MUST(lehr_job_wait(runtime, job, 0));
  MUST(lehr_jobs_release(runtime, &job, 1, NULL));
}

static void use_placement_level(void) {
  lehr_runtime runtime = open_with(
      "machine = \"host\"\n[placement]\nblock_bytes = \"16 KiB\"\n"
      "host = \"8 pages\"\nnvme = \"64 pages\"\n[nvme]\npath = \".\"\n");
  lehr_layout layout = {.struct_size = sizeof layout,
                        .dtype = 1,
                        .element_bytes = 2,
                        .layers = LAYERS,
                        .kv_heads = HEADS,
                        .tokens = TOKENS,
                        .head_dim = DIM,
                        .token_stride = ROW,
                        .head_stride = TOKENS * ROW,
                        .block_stride = PART,
                        .v_offset = (uint64_t)BLOCKS * PART,
                        .layer_stride = 2 * (uint64_t)BLOCKS * PART};
  lehr_namespace_desc names = {.struct_size = sizeof names, .layout = &layout};
  names.model = bytes_of("toy-model");
  lehr_namespace ns = {0};
  MUST(lehr_namespace_open(runtime, &names, &ns));
  lehr_pool_desc desc = {.struct_size = sizeof desc,
                         .base = pool_memory,
                         .bytes = POOL_BYTES,
                         .blocks = BLOCKS,
                         .layout = &layout};
  lehr_pool pool = {0};
  MUST(lehr_pool_register(runtime, &desc, &pool));

  /* Sixteen blocks through eight host slots: the older ones end up on NVMe. */
  ARRAY(lehr_item_state, states, 8);
  for (uint32_t at = 0; at < 16; at += 4) {
    for (uint32_t i = at; i < at + 4; ++i) fill_block(i, i);
    move(runtime, ns, pool, 1, at, at, 4, states);
    CHECK(states[0].state == LEHR_ITEM_MOVE && states[0].slot != LEHR_NO_SLOT);
    MUST(lehr_jobs_drain(runtime, 20000000000));
  }
  lehr_bytes keys[17];
  char names_of[17][16];
  for (uint32_t i = 0; i < 17; ++i) {
    name_key(names_of[i], i);
    keys[i] = bytes_of(names_of[i]);
  }
  ARRAY(lehr_lookup_result, found, 17);
  size_t prefix = 0;
  lehr_status answered;
  do {
    answered = lehr_lookup(runtime, ns, keys, 17, found, &prefix);
  } while (answered == LEHR_RETRY);
  MUST(answered);
  CHECK(prefix == 16 && found[16].state == LEHR_KEY_MISS);
  CHECK(found[0].tier == LEHR_TIER_NVME && found[15].tier == LEHR_TIER_HOST);

  /* Stored again: nothing moves. Loaded elsewhere: the same bytes. */
  move(runtime, ns, pool, 1, 12, 12, 4, states);
  CHECK(states[3].state == LEHR_ITEM_PRESENT);
  move(runtime, ns, pool, 0, 0, 16, 8, states);
  CHECK(states[0].tier == LEHR_TIER_NVME);
  for (uint32_t i = 0; i < 8; ++i) CHECK(same_block(i, 16 + i));
  move(runtime, ns, pool, 0, 8, 16, 8, states);
  for (uint32_t i = 0; i < 8; ++i) CHECK(same_block(8 + i, 16 + i));

  /* A lease holds a copy; removal is refused until it ends. */
  lehr_lease lease = {0};
  lehr_status statuses[2];
  MUST(lehr_lease_acquire(runtime, ns, keys, 1, &lease));
  CHECK(lehr_remove(runtime, ns, keys, 2, statuses) == LEHR_PARTIAL);
  CHECK(LEHR_STATUS_REASON(statuses[0]) == LEHR_REASON_LEASED && statuses[1] == LEHR_OK);
  MUST(lehr_lease_release(runtime, lease));
  MUST(lehr_remove(runtime, ns, keys, 1, NULL));

  /* What was seen. */
  ARRAY(lehr_event, events, 4);
  size_t count = 0;
  uint64_t dropped = 0;
  MUST(lehr_events_read(runtime, events, 4, &count, &dropped));
  CHECK(count == 4 && dropped == 0);
  CHECK(events[0].kind == LEHR_EVENT_STORED && events[0].ns.id == ns.id);
  CHECK(events[0].key_size == strlen("block-0") && memcmp(events[0].key, "block-0", 7) == 0);
  CHECK(events[0].bytes == BLOCK_BYTES);
  uint64_t seen_stores = 0;
  for (uint32_t i = 0;; ++i) {
    lehr_stat_info stat = {.struct_size = sizeof stat};
    lehr_stat_value values[64];
    memset(values, 0, sizeof values);
    values[0].struct_size = sizeof values[0];
    if (lehr_stat_describe(i, &stat) != LEHR_OK) break;
    CHECK(stat.name[0] != '\0' && stat.unit[0] != '\0' && stat.help[0] != '\0');
    MUST(lehr_stats_read(runtime, values, 64, &count));
    CHECK(i < count && values[i].type == stat.type);
    if (strcmp(stat.name, "placement_stored") == 0) seen_stores = values[i].count;
  }
  CHECK(seen_stores == 16);

  MUST(lehr_pool_unregister(runtime, pool));
  MUST(lehr_close(runtime));
}

/* A directory that decides while somebody else moves: the job's slots are the plan. */
static void use_as_directory(void) {
  lehr_runtime runtime =
      open_with("machine = \"sim\"\n[placement]\nblock_bytes = 4096\nhost = \"2 pages\"\n");
  lehr_layout layout = {.struct_size = sizeof layout, .opaque_bytes = 4096};
  lehr_namespace_desc names = {.struct_size = sizeof names, .layout = &layout};
  lehr_namespace ns = {0};
  MUST(lehr_namespace_open(runtime, &names, &ns));
  ARRAY(lehr_item, items, 2);
  items[0].key = "a";
  items[0].key_size = 1;
  items[1] = items[0];
  items[1].key = "b";
  ARRAY(lehr_item_state, states, 2);
  ARRAY(lehr_evicted, evicted, 2);
  size_t evicted_count = 9;
  lehr_job job = {0};
  lehr_store_request request = {.struct_size = sizeof request, .ns = ns};
  MUST(lehr_store_prepare(runtime, &request, items, 2, states, evicted, 2, &evicted_count, &job));
  CHECK(evicted_count == 0 && states[0].slot == 0 && states[1].slot == 1);
  CHECK(LEHR_STATUS_CLASS(lehr_jobs_submit(runtime, &job, 1, NULL, NULL)) ==
        LEHR_CLASS_UNSUPPORTED);
  const lehr_status results[2] = {LEHR_OK, LEHR_MAKE_STATUS(LEHR_CLASS_IO, LEHR_REASON_NO_SPACE)};
  MUST(lehr_job_complete(runtime, job, results, 2));
  lehr_job_report report = {.struct_size = sizeof report};
  MUST(lehr_job_query(runtime, job, &report));
  CHECK(report.status == LEHR_PARTIAL && report.succeeded == 1 && report.failed == 1);
  MUST(lehr_jobs_release(runtime, &job, 1, NULL));
  items[0].key = "c";
  items[1].key = "d";
  MUST(lehr_store_prepare(runtime, &request, items, 2, states, evicted, 2, &evicted_count, &job));
  CHECK(evicted_count == 1 && evicted[0].key_size == 1 && evicted[0].key[0] == 'a');
  MUST(lehr_jobs_cancel(runtime, &job, 1, NULL));
  MUST(lehr_close(runtime));
}

int main(void) {
  CHECK(lehr_version() == LEHR_VERSION);
  use_step_level("sim");
  use_step_level("host");
  use_placement_level();
  use_as_directory();
  puts("engine: ok");
  return 0;
}
