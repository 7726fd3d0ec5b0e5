// SPDX-License-Identifier: Apache-2.0
// Every function of the interface against calls that were made to break it.
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include <unistd.h>

#include "tests/capi/capi_world.hpp"

using namespace capi_world;

namespace {

// A handle of every kind, all real, and a handle taken for another kind.
struct Handles {
  lehr_runtime runtime;
  std::uint64_t sequence, ns, pool, job, lease, claim, trace;
};

/// Traces that the calls write, given up at the end.
class Traces {
 public:
  Traces()
      : folder_(std::filesystem::temp_directory_path() /
                ("lehr-hostile-" + std::to_string(::getpid()))) {
    std::filesystem::create_directory(folder_);
    path_ = folder_ / "t.safetensors";
  }
  ~Traces() {
    for (const lehr_trace trace : open_) lehr_trace_discard(trace);
    std::filesystem::remove_all(folder_);
  }
  Traces(const Traces&) = delete;
  Traces& operator=(const Traces&) = delete;

  void describe(lehr_trace_desc& desc) const {
    static constexpr std::uint32_t kLayer = 0;
    desc.path = {path_.c_str(), path_.string().size()};
    desc.model = desc.workload = {"m", 1};
    desc.page_tokens = 16;
    desc.q_heads = desc.kv_heads = 1;
    desc.head_dim = 8;
    desc.kv_bytes_per_element = 2;
    desc.model_layers = desc.layer_count = 1;
    desc.layer_ids = &kLayer;
    desc.prompt_tokens = 16;
  }
  void keep(lehr_trace trace) { open_.push_back(trace); }

 private:
  std::filesystem::path folder_, path_;
  std::vector<lehr_trace> open_;
};

Traces& traces() {
  static Traces all;
  return all;
}

std::string both() { return std::string(kStep) + kPlacement; }

Handles make(lehr_runtime runtime) {
  Handles h{};
  h.runtime = runtime;
  auto desc = sized<lehr_sequence_desc>();
  desc.prompt_tokens = 20;
  lehr_sequence sequence{};
  REQUIRE(lehr_sequence_create(runtime, &desc, 1, &sequence) == LEHR_OK);
  h.sequence = sequence.id;
  const lehr_namespace ns = open_namespace(runtime);
  h.ns = ns.id;
  const lehr_pool pool = pool_of(runtime, 2);
  h.pool = pool.id;
  auto request = sized<lehr_store_request>();
  request.ns = ns;
  lehr_item item = item_of("there", pool);
  lehr_job job{};
  REQUIRE(lehr_store_prepare(runtime, &request, &item, 1, nullptr, nullptr, 0, nullptr, &job) ==
          LEHR_OK);
  const lehr_status done = LEHR_OK;
  REQUIRE(lehr_job_complete(runtime, job, &done, 1) == LEHR_OK);
  h.job = job.id;
  lehr_lease lease{};
  const lehr_bytes key{"there", 5};
  REQUIRE(lehr_lease_acquire(runtime, ns, &key, 1, &lease) == LEHR_OK);
  h.lease = lease.id;
  lehr_claim claim{};
  REQUIRE(lehr_claim_open(runtime, pool, 0, 1, &claim) == LEHR_OK);
  h.claim = claim.id;
  auto desc_of_trace = sized<lehr_trace_desc>();
  traces().describe(desc_of_trace);
  lehr_trace trace{};
  REQUIRE(lehr_trace_open(&desc_of_trace, &trace) == LEHR_OK);
  traces().keep(trace);
  h.trace = trace.id;
  return h;
}

// Where a call gets its arguments from: which handles it uses, and whether its pointers are NULL
// and its structs of a wrong size.
struct Caller {
  Handles h;
  bool null_pointers = false;
  std::uint32_t wrong_size = 0;  // 0: the right one

  template <class T>
  T* out(T& value) const {
    value = sized<T>();
    if (wrong_size != 0) value.struct_size = wrong_size;
    return null_pointers ? nullptr : &value;
  }
  template <class T>
  T* plain(T& value) const {
    return null_pointers ? nullptr : &value;
  }
};

using Call = std::function<lehr_status(const Caller&)>;

struct Row {
  bool takes_runtime = true;
  std::string handle;          // the kind of handle it takes, or ""
  bool takes_structs = false;  // a wrong struct_size must be refused
  bool needs_pointers = true;  // NULL for its pointers must be refused
  Call call;
};

lehr_layout* layout_in(const Caller& c, lehr_layout& layout) {
  c.out(layout);
  layout.opaque_bytes = 4096;
  return c.plain(layout);
}

template <class Function>
Call jobs_call(Function function) {
  return [function](const Caller& c) {
    lehr_job job{c.h.job};
    return function(c.h.runtime, c.plain(job), 1, nullptr);
  };
}

template <class Function>
Call sequences_call(Function function) {
  return [function](const Caller& c) {
    lehr_sequence sequence{c.h.sequence};
    return function(c.h.runtime, c.plain(sequence), 1, nullptr);
  };
}

std::map<std::string, Row> rows() {
  std::map<std::string, Row> t;
  t["lehr_open"] = {false, "", true, true, [](const Caller& c) {
                      lehr_open_options o;
                      c.out(o);
                      o.config = kStep;
                      o.config_size = std::strlen(kStep);
                      lehr_runtime out{};
                      return lehr_open(LEHR_VERSION, c.plain(o), c.plain(out));
                    }};
  t["lehr_build_info"] = {false, "", false, false,
                          [](const Caller&) { return lehr_build_info(nullptr, 0, nullptr); }};
  t["lehr_runtime_describe"] = {true, "", true, true, [](const Caller& c) {
                                  lehr_runtime_info out;
                                  return lehr_runtime_describe(c.h.runtime, c.out(out));
                                }};
  t["lehr_tier_describe"] = {true, "", true, true, [](const Caller& c) {
                               lehr_tier_info out;
                               return lehr_tier_describe(c.h.runtime, 0, c.out(out));
                             }};
  t["lehr_link_describe"] = {true, "", true, true, [](const Caller& c) {
                               lehr_link_info out;
                               return lehr_link_describe(c.h.runtime, 0, c.out(out));
                             }};
  t["lehr_notes"] = {true, "", false, true, [](const Caller& c) {
                       char text[8];
                       return lehr_notes(c.h.runtime, c.null_pointers ? nullptr : text, 8, nullptr);
                     }};
  t["lehr_stat_describe"] = {false, "", true, true, [](const Caller& c) {
                               lehr_stat_info out;
                               return lehr_stat_describe(0, c.out(out));
                             }};
  t["lehr_stats_read"] = {true, "", true, true, [](const Caller& c) {
                            lehr_stat_value out;
                            std::size_t n = 0;
                            return lehr_stats_read(c.h.runtime, c.out(out), 1, c.plain(n));
                          }};
  t["lehr_sequence_create"] = {true, "", true, true, [](const Caller& c) {
                                 lehr_sequence_desc d;
                                 lehr_sequence s{};
                                 return lehr_sequence_create(c.h.runtime, c.out(d), 1, c.plain(s));
                               }};
  t["lehr_sequence_fork"] = {true, "sequence", false, true, [](const Caller& c) {
                               lehr_sequence s{c.h.sequence};
                               lehr_sequence child{};
                               return lehr_sequence_fork(c.h.runtime, c.plain(s), 1, c.plain(child),
                                                         nullptr);
                             }};
  t["lehr_sequence_append"] = {true, "sequence", false, true, [](const Caller& c) {
                                 lehr_sequence s{c.h.sequence};
                                 std::uint64_t n = 1;
                                 return lehr_sequence_append(c.h.runtime, c.plain(s), c.plain(n), 1,
                                                             nullptr);
                               }};
  t["lehr_sequence_suspend"] = {true, "sequence", false, true,
                                sequences_call(lehr_sequence_suspend)};
  t["lehr_sequence_resume"] = {true, "sequence", false, true, sequences_call(lehr_sequence_resume)};
  t["lehr_sequence_release"] = {true, "sequence", false, true,
                                sequences_call(lehr_sequence_release)};
  t["lehr_sequence_tokens"] = {true, "sequence", false, true, [](const Caller& c) {
                                 std::uint64_t n = 0;
                                 return lehr_sequence_tokens(c.h.runtime, {c.h.sequence},
                                                             c.plain(n));
                               }};
  t["lehr_step_begin"] = {true, "sequence", false, true, [](const Caller& c) {
                            lehr_sequence s{c.h.sequence};
                            const lehr_status status =
                                lehr_step_begin(c.h.runtime, c.plain(s), 1, nullptr);
                            if (status == LEHR_OK) lehr_step_abandon(c.h.runtime);
                            return status;
                          }};
  t["lehr_step_layer"] = {true, "sequence", true, true, [](const Caller& c) {
                            lehr_selection g;
                            lehr_selection* at = c.out(g);
                            g.sequence = {c.h.sequence};
                            return lehr_step_layer(c.h.runtime, 0, at, 1);
                          }};
  t["lehr_step_begin_tokens"] = {true, "sequence", false, true, [](const Caller& c) {
                                   lehr_sequence s{c.h.sequence};
                                   std::uint32_t n = 1;
                                   const lehr_status status = lehr_step_begin_tokens(
                                       c.h.runtime, c.plain(s), c.plain(n), 1, nullptr);
                                   if (status == LEHR_OK) lehr_step_abandon(c.h.runtime);
                                   return status;
                                 }};
  t["lehr_step_append"] = {true, "", true, true, [](const Caller& c) {
                             lehr_tensor k;
                             lehr_tensor v;
                             return lehr_step_append(c.h.runtime, 0, c.out(k), c.out(v));
                           }};
  t["lehr_step_attend"] = {true, "", true, true, [](const Caller& c) {
                             lehr_attend_request request;
                             return lehr_step_attend(c.h.runtime, c.out(request));
                           }};
  t["lehr_contents_read"] = {true, "", true, true, [](const Caller& c) {
                               lehr_contents_report out;
                               return lehr_contents_read(c.h.runtime, c.out(out));
                             }};
  t["lehr_sequence_truncate"] = {true, "sequence", false, true, [](const Caller& c) {
                                   lehr_sequence s{c.h.sequence};
                                   std::uint64_t n = 1;
                                   return lehr_sequence_truncate(c.h.runtime, c.plain(s),
                                                                 c.plain(n), 1, nullptr);
                                 }};
  t["lehr_sequence_reset"] = {true, "sequence", false, true, sequences_call(lehr_sequence_reset)};
  t["lehr_sequence_reorder"] = {true, "sequence", false, true, [](const Caller& c) {
                                  lehr_sequence s{c.h.sequence};
                                  std::uint32_t parent = 0;
                                  return lehr_sequence_reorder(c.h.runtime, c.plain(s),
                                                               c.plain(parent), 1);
                                }};
  t["lehr_sequence_gather"] = {true, "sequence", true, true, [](const Caller& c) {
                                 lehr_sequence s{c.h.sequence};
                                 lehr_tensor k;
                                 lehr_tensor v;
                                 return lehr_sequence_gather(c.h.runtime, 0, c.plain(s), 1,
                                                             c.out(k), c.out(v));
                               }};
  t["lehr_trace_open"] = {false, "", true, true, [](const Caller& c) {
                            lehr_trace_desc desc;
                            c.out(desc);
                            traces().describe(desc);
                            lehr_trace trace{};
                            const lehr_status status =
                                lehr_trace_open(c.plain(desc), c.plain(trace));
                            if (status == LEHR_OK) traces().keep(trace);
                            return status;
                          }};
  t["lehr_trace_step"] = {false, "trace", false, true, [](const Caller& c) {
                            std::uint8_t codes[2] = {0, 255};
                            return lehr_trace_step({c.h.trace}, c.null_pointers ? nullptr : codes,
                                                   nullptr, 2);
                          }};
  t["lehr_trace_close"] = {false, "trace", false, false, [](const Caller& c) {
                             return lehr_trace_close({c.h.trace}, nullptr, 0);
                           }};
  t["lehr_trace_discard"] = {false, "trace", false, false,
                             [](const Caller& c) { return lehr_trace_discard({c.h.trace}); }};
  t["lehr_step_end"] = {true, "", false, false,
                        [](const Caller& c) { return lehr_step_end(c.h.runtime, nullptr); }};
  t["lehr_step_abandon"] = {true, "", false, false,
                            [](const Caller& c) { return lehr_step_abandon(c.h.runtime); }};
  t["lehr_step_totals"] = {true, "", true, true, [](const Caller& c) {
                             lehr_step_report out;
                             return lehr_step_totals(c.h.runtime, c.out(out));
                           }};
  t["lehr_namespace_open"] = {true, "", true, true, [](const Caller& c) {
                                lehr_layout l;
                                lehr_namespace_desc d;
                                c.out(d);
                                d.layout = layout_in(c, l);
                                lehr_namespace ns{};
                                return lehr_namespace_open(c.h.runtime, c.plain(d), c.plain(ns));
                              }};
  t["lehr_pool_register"] = {true, "", true, true, [](const Caller& c) {
                               lehr_layout l;
                               lehr_pool_desc d;
                               c.out(d);
                               d.layout = layout_in(c, l);
                               d.blocks = 1;
                               d.bytes = 4096;
                               lehr_pool p{};
                               return lehr_pool_register(c.h.runtime, c.plain(d), c.plain(p));
                             }};
  t["lehr_pool_unregister"] = {true, "pool", false, false, [](const Caller& c) {
                                 return lehr_pool_unregister(c.h.runtime, {c.h.pool});
                               }};
  t["lehr_tenant_set_quota"] = {true, "", false, true, [](const Caller& c) {
                                  lehr_bytes name{"t", 1};
                                  return lehr_tenant_set_quota(c.h.runtime, c.plain(name), 1);
                                }};
  t["lehr_tenant_usage"] = {true, "", false, true, [](const Caller& c) {
                              lehr_bytes name{"", 0};
                              std::uint64_t n = 0;
                              return lehr_tenant_usage(c.h.runtime, c.plain(name), c.plain(n));
                            }};
  t["lehr_lookup"] = {true, "ns", true, true, [](const Caller& c) {
                        lehr_bytes key{"k", 1};
                        lehr_lookup_result out;
                        return lehr_lookup(c.h.runtime, {c.h.ns}, c.plain(key), 1, c.out(out),
                                           nullptr);
                      }};
  t["lehr_lease_acquire"] = {true, "ns", false, true, [](const Caller& c) {
                               lehr_bytes key{"there", 5};
                               lehr_lease lease{};
                               return lehr_lease_acquire(c.h.runtime, {c.h.ns}, c.plain(key), 1,
                                                         c.plain(lease));
                             }};
  t["lehr_lease_release"] = {true, "lease", false, false, [](const Caller& c) {
                               return lehr_lease_release(c.h.runtime, {c.h.lease});
                             }};
  t["lehr_remove"] = {true, "ns", false, true, [](const Caller& c) {
                        lehr_bytes key{"there", 5};
                        return lehr_remove(c.h.runtime, {c.h.ns}, c.plain(key), 1, nullptr);
                      }};
  t["lehr_claim_open"] = {true, "pool", false, true, [](const Caller& c) {
                            lehr_claim claim{};
                            return lehr_claim_open(c.h.runtime, {c.h.pool}, 0, 1, c.plain(claim));
                          }};
  t["lehr_claim_extend"] = {true, "claim", false, false, [](const Caller& c) {
                              return lehr_claim_extend(c.h.runtime, {c.h.claim}, 1);
                            }};
  t["lehr_claim_query"] = {true, "claim", false, true, [](const Caller& c) {
                             std::int32_t state = 0;
                             return lehr_claim_query(c.h.runtime, {c.h.claim}, c.plain(state));
                           }};
  t["lehr_claim_close"] = {true, "claim", false, false, [](const Caller& c) {
                             return lehr_claim_close(c.h.runtime, {c.h.claim});
                           }};
  t["lehr_store_prepare"] = {true, "ns", true, true, [](const Caller& c) {
                               lehr_store_request r;
                               c.out(r);
                               r.ns = {c.h.ns};
                               lehr_item item = item_of("new");
                               lehr_job job{};
                               return lehr_store_prepare(c.h.runtime, c.plain(r), c.plain(item), 1,
                                                         nullptr, nullptr, 0, nullptr,
                                                         c.plain(job));
                             }};
  t["lehr_load_prepare"] = {true, "ns", true, true, [](const Caller& c) {
                              lehr_load_request r;
                              c.out(r);
                              r.ns = {c.h.ns};
                              lehr_item item = item_of("there");
                              lehr_job job{};
                              return lehr_load_prepare(c.h.runtime, c.plain(r), c.plain(item), 1,
                                                       nullptr, c.plain(job));
                            }};
  t["lehr_jobs_submit"] = {true, "job", false, true, [](const Caller& c) {
                             lehr_job job{c.h.job};
                             return lehr_jobs_submit(c.h.runtime, c.plain(job), 1, nullptr,
                                                     nullptr);
                           }};
  t["lehr_job_complete"] = {true, "job", false, true, [](const Caller& c) {
                              lehr_status ok = LEHR_OK;
                              return lehr_job_complete(c.h.runtime, {c.h.job}, c.plain(ok), 1);
                            }};
  t["lehr_jobs_cancel"] = {true, "job", false, true, jobs_call(lehr_jobs_cancel)};
  t["lehr_jobs_poll"] = {true, "", true, true, [](const Caller& c) {
                           lehr_job_report out;
                           std::size_t n = 0;
                           return lehr_jobs_poll(c.h.runtime, c.out(out), 1, c.plain(n));
                         }};
  t["lehr_jobs_event_fd"] = {true, "", false, true, [](const Caller& c) {
                               std::int32_t fd = 0;
                               return lehr_jobs_event_fd(c.h.runtime, c.plain(fd));
                             }};
  t["lehr_job_query"] = {true, "job", true, true, [](const Caller& c) {
                           lehr_job_report out;
                           return lehr_job_query(c.h.runtime, {c.h.job}, c.out(out));
                         }};
  t["lehr_job_items"] = {true, "job", true, true, [](const Caller& c) {
                           lehr_item_state out;
                           std::size_t n = 0;
                           return lehr_job_items(c.h.runtime, {c.h.job}, c.out(out), 1, c.plain(n));
                         }};
  t["lehr_job_wait"] = {true, "job", false, false,
                        [](const Caller& c) { return lehr_job_wait(c.h.runtime, {c.h.job}, 0); }};
  t["lehr_jobs_drain"] = {true, "", false, false,
                          [](const Caller& c) { return lehr_jobs_drain(c.h.runtime, 0); }};
  t["lehr_jobs_release"] = {true, "job", false, true, jobs_call(lehr_jobs_release)};
  t["lehr_events_read"] = {true, "", true, true, [](const Caller& c) {
                             lehr_event out;
                             std::size_t n = 0;
                             return lehr_events_read(c.h.runtime, c.out(out), 1, c.plain(n),
                                                     nullptr);
                           }};
  t["lehr_close"] = {true, "", false, false,
                     [](const Caller& c) { return lehr_close(c.h.runtime); }};
  return t;
}

std::uint64_t& handle_of(Handles& h, const std::string& kind) {
  if (kind == "sequence") return h.sequence;
  if (kind == "ns") return h.ns;
  if (kind == "pool") return h.pool;
  if (kind == "job") return h.job;
  if (kind == "trace") return h.trace;
  return kind == "lease" ? h.lease : h.claim;
}

}  // namespace

TEST_CASE("the hostile table names every function of the header") {
  std::ifstream in(LEHR_HEADER_PATH);
  std::stringstream text;
  text << in.rdbuf();
  const std::string header = text.str();
  // Those that take neither handle nor struct nor pointer to fail on.
  std::set<std::string> known = {"lehr_version", "lehr_status_name", "lehr_reason_name",
                                 "lehr_last_error"};
  for (const auto& [name, row] : rows()) known.insert(name);
  std::set<std::string> declared;
  for (std::size_t at = 0; (at = header.find("\nLEHR_API ", at)) != std::string::npos; ++at) {
    const std::size_t end = header.find('(', at);
    REQUIRE(end != std::string::npos);
    const std::size_t start = header.find_last_of(" *", end) + 1;
    declared.insert(header.substr(start, end - start));
  }
  CHECK(declared.size() > 40);
  CHECK(declared == known);
}

TEST_CASE("null, stale, foreign and invented runtimes are refused by every function") {
  Runtime live(both());
  Runtime other(both());
  const Handles good = make(live);
  lehr_runtime closed{};
  REQUIRE(try_open(both(), closed) == LEHR_OK);
  lehr_close(closed);
  const std::uint64_t bad[] = {0,
                               closed.id,
                               good.sequence,
                               good.job,
                               ~std::uint64_t{0},
                               1,
                               live.handle.id ^ (std::uint64_t{1} << 24),
                               live.handle.id | 0xFFFFFF};
  for (const auto& [name, row] : rows()) {
    if (!row.takes_runtime) continue;
    for (const std::uint64_t id : bad) {
      INFO(name << " with runtime " << std::hex << id);
      Caller c{good, false, 0};
      c.h.runtime = {id};
      CHECK(LEHR_STATUS_CLASS(row.call(c)) == LEHR_CLASS_STALE);
    }
  }
}

TEST_CASE("null, stale, foreign and wrong-kind handles are refused by every function") {
  Runtime live(both());
  Runtime other(both());
  const Handles good = make(live);
  const Handles foreign = make(other);
  for (const auto& [name, row] : rows()) {
    if (row.handle.empty()) continue;
    Handles mine = good;
    Handles theirs = foreign;
    const std::uint64_t right = handle_of(mine, row.handle);
    const std::uint64_t wrong_kind = row.handle == "job" ? good.pool : good.job;
    const std::uint64_t bad[] = {
        0,         handle_of(theirs, row.handle),    wrong_kind, live.handle.id, ~std::uint64_t{0},
        right + 7, right ^ (std::uint64_t{1} << 24), 5};
    for (const std::uint64_t id : bad) {
      INFO(name << " with " << row.handle << " " << std::hex << id);
      Caller c{good, false, 0};
      handle_of(c.h, row.handle) = id;
      if (name == "lehr_step_layer") {
        lehr_sequence s{good.sequence};
        REQUIRE(lehr_step_begin(live, &s, 1, nullptr) == LEHR_OK);
      }
      CHECK(LEHR_STATUS_CLASS(row.call(c)) == LEHR_CLASS_STALE);
      if (name == "lehr_step_layer") REQUIRE(lehr_step_abandon(live) == LEHR_OK);
    }
  }
}

TEST_CASE("NULL pointers and wrong struct sizes are refused by every function that takes them") {
  Runtime live(both());
  const Handles good = make(live);
  for (const auto& [name, row] : rows()) {
    INFO(name);
    if (row.needs_pointers) {
      CHECK(LEHR_STATUS_CLASS(row.call({good, true, 0})) == LEHR_CLASS_INVALID);
    }
    if (!row.takes_structs) continue;
    for (const std::uint32_t size : {1U, 4U, 8U, 0xFFFFU, 0x7FFFFFFFU, 0xFFFFFFFFU}) {
      if (size == 0xFFFFU) continue;  // plausible, but larger than what this test provides
      INFO("struct_size " << size);
      CHECK(LEHR_STATUS_CLASS(row.call({good, false, size})) == LEHR_CLASS_INVALID);
    }
  }
}

TEST_CASE("the control: with right arguments no call is refused for its handles or structs") {
  for (const auto& [name, row] : rows()) {
    INFO(name);
    lehr_runtime runtime{};
    REQUIRE(try_open(both(), runtime) == LEHR_OK);
    const lehr_status status = row.call({make(runtime), false, 0});
    CHECK(LEHR_STATUS_CLASS(status) != LEHR_CLASS_STALE);
    CHECK(LEHR_STATUS_CLASS(status) != LEHR_CLASS_INTERNAL);
    lehr_close(runtime);
  }
}

TEST_CASE("a level that was not configured is unsupported, not a crash") {
  Runtime step_only(kStep);
  Runtime placement_only(kPlacement);
  lehr_bytes key{"k", 1};
  auto result = sized<lehr_lookup_result>();
  CHECK(LEHR_STATUS_CLASS(lehr_lookup(step_only, {1}, &key, 1, &result, nullptr)) ==
        LEHR_CLASS_UNSUPPORTED);
  CHECK(LEHR_STATUS_CLASS(lehr_step_abandon(placement_only)) == LEHR_CLASS_UNSUPPORTED);
}

TEST_CASE("layouts and pools that lie are refused before anything is touched") {
  Runtime runtime(kPlacement);
  auto layout = sized<lehr_layout>();
  auto desc = sized<lehr_pool_desc>();
  desc.layout = &layout;
  lehr_pool pool{};
  const auto refused = [&] {
    return LEHR_STATUS_CLASS(lehr_pool_register(runtime, &desc, &pool)) == LEHR_CLASS_INVALID;
  };
  desc.blocks = 4;
  desc.bytes = 4 * 4096;
  CHECK(refused());  // an empty layout
  layout.opaque_bytes = 4096;
  desc.bytes = 4 * 4096 - 1;
  CHECK(refused());
  desc.bytes = ~std::uint64_t{0};
  desc.blocks = 0;
  CHECK(refused());
  layout.opaque_bytes = ~std::uint64_t{0};
  desc.blocks = 1;
  CHECK(refused());
  layout.opaque_bytes = 0;
  layout.layers = layout.kv_heads = layout.tokens = layout.head_dim = 0xFFFFFFFFU;
  layout.element_bytes = 2;
  CHECK(refused());
  desc.memory = 1;
  CHECK(LEHR_STATUS_CLASS(lehr_pool_register(runtime, &desc, &pool)) == LEHR_CLASS_UNSUPPORTED);
}
