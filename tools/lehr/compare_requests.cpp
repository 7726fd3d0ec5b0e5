// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/compare_requests.hpp"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "placement/block_cache.hpp"
#include "runtime/formats/request_trace.hpp"
#include "tools/lehr/fail.hpp"
#include "tools/lehr/parallel.hpp"
#include "tools/lehr/progress.hpp"
#include "tools/lehr/report.hpp"
#include "tools/lehr/table.hpp"
#include "tools/lehr/terminal.hpp"

namespace lehr::tools {

namespace {

using nlohmann::ordered_json;
using placement::BlockCacheRun;

constexpr const char* kCommand = "compare";

/// Dense block ids in order of first appearance.
struct DenseBlocks {
  std::vector<std::uint64_t> first{0};
  std::vector<PageId> blocks;
  std::vector<std::uint64_t> input_length;
  std::uint32_t distinct = 0;
};

DenseBlocks dense(const formats::RequestTrace& trace) {
  DenseBlocks out;
  std::unordered_map<std::uint64_t, PageId> number;
  for (const formats::Request& request : trace.requests()) {
    for (const std::uint64_t id : trace.blocks(request)) {
      out.blocks.push_back(
          number.try_emplace(id, static_cast<PageId>(number.size())).first->second);
    }
    out.first.push_back(out.blocks.size());
    out.input_length.push_back(request.input_length);
  }
  out.distinct = static_cast<std::uint32_t>(number.size());
  return out;
}

/// "5%" of the distinct blocks, at least one, or "N blocks", or "N".
Result<std::uint32_t> cache_blocks(const std::string& text, std::uint32_t distinct) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  const bool share = unit == "%";
  const double blocks = !share ? value : value > 0 ? std::max(1.0, value / 100 * distinct) : 0;
  const bool known = share || unit.empty() || unit == " blocks" || unit == "blocks";
  if (error != std::errc() || !known || !(blocks >= 1) || (share && value > 100) || blocks > 4e9) {
    return invalid(
        fmt::format("--cache {}: expected a share of the {} distinct blocks (up to 100%) or a "
                    "number of blocks, at least 1",
                    text, distinct));
  }
  return static_cast<std::uint32_t>(blocks);
}

std::uint32_t tokens_per_block(const formats::RequestTrace& trace, const std::string& file,
                               std::uint32_t fallback) {
  std::uint32_t recorded = 0;
  for (const formats::Request& r : trace.requests()) {
    if (r.block_size == 0) continue;
    if (recorded != 0 && r.block_size != recorded) {
      fail(kCommand, invalid(fmt::format("{}: blocks of {} and of {} tokens in one trace", file,
                                         recorded, r.block_size)));
    }
    recorded = r.block_size;
  }
  return recorded != 0 ? recorded : fallback;
}

double ratio(std::uint64_t part, std::uint64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

ordered_json hits_json(const placement::BlockHits& h) {
  return {{"block_visits", h.visits.blocks},
          {"block_hit_ratio", ratio(h.hits.blocks, h.visits.blocks)},
          {"token_hit_ratio", ratio(h.hits.tokens, h.visits.tokens)},
          {"prefix_block_hit_ratio", ratio(h.prefix_hits.blocks, h.visits.blocks)},
          {"prefix_token_hit_ratio", ratio(h.prefix_hits.tokens, h.visits.tokens)}};
}

bool holds_blocks(const placement::PolicyDescriptor& d) { return d.make_replacement != nullptr; }

/// Those of `policies` that work on blocks; one that was asked for by name and does not is an
/// error.
Policies block_policies(const Policies& policies, bool all_policies) {
  Policies out;
  for (const auto& p : policies) {
    if (holds_blocks(**placement::find_policy(p.first))) {
      out.push_back(p);
    } else if (!all_policies) {
      std::string known;
      for (const placement::PolicyDescriptor* d : placement::policies()) {
        if (holds_blocks(*d)) known += fmt::format("{}{}", known.empty() ? "" : ", ", d->name);
      }
      fail_usage(
          kCommand,
          invalid(fmt::format("policy '{}' does not work on blocks; on request traces these do: {}",
                              p.first, known)));
    }
  }
  return out;
}

}  // namespace

void compare_requests(const std::string& file, const RequestArguments& arguments,
                      const Policies& policies, bool all_policies, const std::string& json) {
  if (!json.empty()) take(kCommand, can_write_json(json));
  if (arguments.evict != "any" && arguments.evict != "leaf") {
    fail_usage(kCommand, invalid("--evict " + arguments.evict + ": expected any or leaf"));
  }
  const auto trace = take(kCommand, formats::RequestTrace::open(file));
  const DenseBlocks blocks = dense(trace);
  placement::RequestBlocks requests;
  requests.first = blocks.first;
  requests.blocks = blocks.blocks;
  requests.input_length = blocks.input_length;
  requests.distinct = blocks.distinct;
  requests.block_tokens = tokens_per_block(trace, file, arguments.block_tokens);
  std::vector<std::uint32_t> capacities;
  for (const std::string& text : arguments.cache) {
    const auto capacity = cache_blocks(text, blocks.distinct);
    if (!capacity) fail_usage(kCommand, capacity.error());
    capacities.push_back(*capacity);
  }
  const auto form =
      arguments.evict == "leaf" ? placement::EvictForm::kLeaf : placement::EvictForm::kAny;
  const auto chosen = block_policies(policies, all_policies);
  std::vector<Result<std::vector<BlockCacheRun>>> runs(chosen.size(), internal_error("not run"));
  {
    ProgressBar bar("replaying requests");
    parallel(
        chosen.size(),
        [&](std::size_t i) {
          runs[i] = placement::replay_blocks(requests, **placement::find_policy(chosen[i].first),
                                             chosen[i].second, capacities, form);
        },
        [&](double share) { bar.show(share); });
  }
  for (const auto& run : runs) {
    if (!run) fail(kCommand, run.error());
  }
  ordered_json report{{"schema", kReportSchema},
                      {"lehr", LEHR_BUILD_VERSION},
                      {"trace", file},
                      {"requests", trace.requests().size()},
                      {"block_visits", blocks.blocks.size()},
                      {"distinct_blocks", blocks.distinct},
                      {"block_tokens", requests.block_tokens},
                      {"evict", arguments.evict}};
  std::string text =
      fmt::format("{} requests, {} block visits, {} distinct blocks of {} tokens, evict {}\n",
                  trace.requests().size(), blocks.blocks.size(), blocks.distinct,
                  requests.block_tokens, arguments.evict);
  for (std::size_t c = 0; c < capacities.size(); ++c) {
    text += fmt::format("\ncache {} = {} blocks: share of visits hit\n", arguments.cache[c],
                        capacities[c]);
    Table table({"policy", "blocks", "tokens", "prefix blocks", "prefix tokens", "last half",
                 "last half, prefix tokens"});
    ordered_json cell{{"cache", arguments.cache[c]}, {"blocks", capacities[c]}};
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const BlockCacheRun& r = (*runs[i])[c];
      const bool oracle = (*placement::find_policy(chosen[i].first))->traits.needs_future;
      const auto show = [](std::uint64_t part, std::uint64_t whole) {
        return fmt::format("{:.4f}", ratio(part, whole));
      };
      table.add({chosen[i].first + (oracle ? " (oracle)" : ""),
                 show(r.all.hits.blocks, r.all.visits.blocks),
                 show(r.all.hits.tokens, r.all.visits.tokens),
                 show(r.all.prefix_hits.blocks, r.all.visits.blocks),
                 show(r.all.prefix_hits.tokens, r.all.visits.tokens),
                 show(r.last_half.hits.blocks, r.last_half.visits.blocks),
                 show(r.last_half.prefix_hits.tokens, r.last_half.visits.tokens)});
      cell["policies"].push_back({{"policy", chosen[i].first},
                                  {"full_knowledge", oracle},
                                  {"all", hits_json(r.all)},
                                  {"last_half", hits_json(r.last_half)}});
    }
    text += table.text();
    report["cells"].push_back(std::move(cell));
  }
  if (json != "-") print(kCommand, text);
  if (!json.empty()) take(kCommand, write_json(json, report));
}

}  // namespace lehr::tools
