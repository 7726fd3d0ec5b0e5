// SPDX-License-Identifier: Apache-2.0
#include "tests/capi/hostile_calls.hpp"

#include <cstring>

namespace hostile {

namespace {

using Table = std::map<std::string, Row>;

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

void add_runtime_calls(Table& t) {
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
  t["lehr_close"] = {true, "", false, false,
                     [](const Caller& c) { return lehr_close(c.h.runtime); }};
}

void add_sequence_calls(Table& t) {
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
}

void add_step_calls(Table& t) {
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
  t["lehr_step_end"] = {true, "", false, false,
                        [](const Caller& c) { return lehr_step_end(c.h.runtime, nullptr); }};
  t["lehr_step_abandon"] = {true, "", false, false,
                            [](const Caller& c) { return lehr_step_abandon(c.h.runtime); }};
  t["lehr_step_totals"] = {true, "", true, true, [](const Caller& c) {
                             lehr_step_report out;
                             return lehr_step_totals(c.h.runtime, c.out(out));
                           }};
}

constexpr const char* kPart =
    "machine = \"host\"\n[geometry]\nlayers = 2\nkv_heads = 2\nq_heads = 2\nhead_dim = 8\n"
    "dtype = \"f32\"\n[step]\ncontents = \"kv\"\n"
    "[capacity]\nhbm = \"16 pages\"\nhost = \"64 pages\"\nnvme = 0\n";

template <class Function>
Call members_call(Function function) {
  return [function](const Caller& c) {
    lehr_sequence member{c.h.member};
    return function(lehr_group{c.h.group}, c.plain(member));
  };
}

void add_group_calls(Table& t) {
  t["lehr_group_open"] = {false, "", true, true, [](const Caller& c) {
                            lehr_group_options o;
                            c.out(o);
                            Groups::describe(o);
                            lehr_group out{};
                            const lehr_status status =
                                lehr_group_open(LEHR_VERSION, c.plain(o), c.plain(out));
                            if (status == LEHR_OK) lehr_group_close(out);
                            return status;
                          }};
  t["lehr_group_close"] = {false, "group", false, false,
                           [](const Caller& c) { return lehr_group_close({c.h.group}); }};
  t["lehr_group_describe"] = {false, "group", true, true, [](const Caller& c) {
                                lehr_group_info out;
                                return lehr_group_describe({c.h.group}, c.out(out));
                              }};
  t["lehr_group_device"] = {false, "group", true, true, [](const Caller& c) {
                              lehr_group_device_info out;
                              return lehr_group_device({c.h.group}, 1, c.out(out));
                            }};
  t["lehr_group_sequence_create"] = {false, "group", false, true, [](const Caller& c) {
                                       lehr_sequence out{};
                                       return lehr_group_sequence_create({c.h.group}, nullptr, 1,
                                                                         c.plain(out));
                                     }};
  t["lehr_group_sequence_fork"] = {
      false, "member", false, true, members_call([](lehr_group g, const lehr_sequence* s) {
        lehr_sequence child{};
        return lehr_group_sequence_fork(g, s, 1, s == nullptr ? nullptr : &child, nullptr);
      })};
  t["lehr_group_sequence_release"] = {false, "member", false, true,
                                      members_call([](lehr_group g, const lehr_sequence* s) {
                                        return lehr_group_sequence_release(g, s, 1, nullptr);
                                      })};
  t["lehr_group_step_begin"] = {
      false, "member", false, true, members_call([](lehr_group g, const lehr_sequence* s) {
        const lehr_status status = lehr_group_step_begin(g, s, nullptr, 1, nullptr);
        if (status == LEHR_OK) lehr_group_step_abandon(g);
        return status;
      })};
  t["lehr_group_step_append"] = {false, "group", true, true, [](const Caller& c) {
                                   lehr_tensor k;
                                   lehr_tensor v;
                                   return lehr_group_step_append({c.h.group}, LEHR_GROUP_WHOLE, 0,
                                                                 c.out(k), c.out(v));
                                 }};
  t["lehr_group_step_attend"] = {false, "group", true, true, [](const Caller& c) {
                                   lehr_attend_request request;
                                   return lehr_group_step_attend({c.h.group}, LEHR_GROUP_WHOLE,
                                                                 c.out(request));
                                 }};
  t["lehr_group_step_end"] = {false, "group", true, false, [](const Caller& c) {
                                lehr_step_report reports[2];
                                c.out(reports[1]);
                                return lehr_group_step_end({c.h.group}, c.out(reports[0]), 2);
                              }};
  t["lehr_group_step_abandon"] = {false, "group", false, false, [](const Caller& c) {
                                    return lehr_group_step_abandon({c.h.group});
                                  }};
  t["lehr_group_rebalance"] = {false, "group", true, true, [](const Caller& c) {
                                 lehr_rebalance_request request;
                                 return lehr_group_rebalance({c.h.group}, c.out(request), nullptr);
                               }};
}

void add_trace_calls(Table& t) {
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
}

/// Namespaces, pools, tenants, keys, leases and claims.
void add_object_calls(Table& t) {
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
  t["lehr_table_open"] = {true, "pool", true, true, [](const Caller& c) {
                            lehr_table_desc d;
                            c.out(d);
                            d.pool = {c.h.pool};
                            d.rows = d.columns = 2;
                            lehr_table table{};
                            void* entries = nullptr;
                            return lehr_table_open(c.h.runtime, c.plain(d), c.plain(table),
                                                   c.plain(entries));
                          }};
  t["lehr_table_close"] = {true, "table", false, false, [](const Caller& c) {
                             return lehr_table_close(c.h.runtime, {c.h.table});
                           }};
  t["lehr_table_write"] = {true, "table", true, true, [](const Caller& c) {
                             lehr_table_entry entry;
                             return lehr_table_write(c.h.runtime, {c.h.table}, c.out(entry), 1,
                                                     nullptr);
                           }};
  t["lehr_table_ragged"] = {true, "table", true, true, [](const Caller& c) {
                              std::uint32_t tokens = 17;
                              std::int32_t numbers[8] = {};
                              lehr_ragged out;
                              c.out(out);
                              out.block_tokens = 16;
                              out.indptr = numbers;
                              out.indices = numbers + 2;
                              out.last_page_len = numbers + 6;
                              out.capacity = 4;
                              return lehr_table_ragged(c.h.runtime, {c.h.table}, c.plain(tokens), 1,
                                                       c.plain(out), nullptr);
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
}

void add_job_calls(Table& t) {
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
  t["lehr_jobs_submit_after"] = {true, "job", true, true, [](const Caller& c) {
                                   lehr_job job{c.h.job};
                                   lehr_order after;
                                   return lehr_jobs_submit_after(c.h.runtime, c.plain(job), 1,
                                                                 c.out(after), nullptr);
                                 }};
  t["lehr_job_wait_layer"] = {true, "job", false, false, [](const Caller& c) {
                                return lehr_job_wait_layer(c.h.runtime, {c.h.job}, 0, nullptr);
                              }};
  t["lehr_job_event"] = {true, "job", false, true, [](const Caller& c) {
                           void* event = nullptr;
                           return lehr_job_event(c.h.runtime, {c.h.job}, c.plain(event));
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
}

}  // namespace

void Groups::describe(lehr_group_options& options) {
  static const lehr_bytes configs[] = {{kPart, std::strlen(kPart)}, {kPart, std::strlen(kPart)}};
  options.configs = configs;
  options.device_count = 2;
}

std::uint64_t Groups::open() {
  auto options = sized<lehr_group_options>();
  describe(options);
  lehr_group group{};
  const lehr_status status = lehr_group_open(LEHR_VERSION, &options, &group);
  if (status != LEHR_OK) FAIL(last_error());
  open_.push_back(group);
  return group.id;
}

Groups& groups() {
  static Groups all;
  return all;
}

Traces& traces() {
  static Traces all;
  return all;
}

std::map<std::string, Row> rows() {
  Table t;
  add_runtime_calls(t);
  add_sequence_calls(t);
  add_step_calls(t);
  add_group_calls(t);
  add_trace_calls(t);
  add_object_calls(t);
  add_job_calls(t);
  return t;
}

}  // namespace hostile
