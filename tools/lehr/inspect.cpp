// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/inspect.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "tools/lehr/reuse.hpp"

namespace lehr::tools {
namespace {

constexpr std::array<double, 6> kPercentiles = {0.1, 0.25, 0.5, 0.75, 0.9, 0.99};
constexpr std::array<double, 7> kCapacities = {0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75};
constexpr std::uint32_t kPoints = 8;
constexpr std::uint32_t kWindowSteps = 16;

double ratio(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

ReuseSummary summarise(const ReuseProfile& profile) {
  ReuseSummary out;
  out.accesses = profile.accesses();
  out.distinct = profile.first_accesses();
  for (const double share : kPercentiles) {
    out.percentiles.emplace_back(share, profile.percentile(share));
  }
  for (const double share : kCapacities) {
    const auto capacity = static_cast<std::uint64_t>(share * static_cast<double>(out.distinct));
    out.lru.emplace_back(share, profile.lru_hit_ratio(capacity));
  }
  return out;
}

/// Running figures of one layer.
struct Tally {
  std::uint64_t rows = 0;
  double share_sum = 0;
  double least = 1;
  double most = 0;
  std::uint64_t later_reads = 0;  ///< reads from the second step on
  std::uint64_t again = 0;        ///< those whose page the step before read too
  std::uint64_t ever = 0;
  std::uint64_t pages = 0;

  void merge(const Tally& other) {
    rows += other.rows;
    share_sum += other.share_sum;
    least = std::min(least, other.least);
    most = std::max(most, other.most);
    later_reads += other.later_reads;
    again += other.again;
    ever += other.ever;
    pages += other.pages;
  }
  SelectionSummary summary() const {
    const double mean = rows == 0 ? 0 : share_sum / static_cast<double>(rows);
    return {mean, least, most, ratio(again, later_reads), ratio(ever, pages)};
  }
};

/// Replays a rule's selections in the order of a decode. visit(page) sees each read, end_step(step)
/// each step's end, with `last_read` (step + 1 of each page's last read) up to date.
class Walk {
 public:
  Walk(const formats::AttentionTrace& trace, const SelectionRule& rule)
      : trace_(trace),
        selector_(rule),
        last_read_(std::size_t{trace.layers()} * trace.kv_heads() * trace.pages(), 0),
        layers_(trace.layers()) {
    for (Tally& tally : layers_) {
      tally.pages = std::uint64_t{trace.kv_heads()} * trace.pages();
    }
  }

  template <class Visit, class EndStep>
  void run(Visit visit, EndStep end_step) {
    for (std::uint32_t step = 0; step < trace_.steps(); ++step) {
      for (std::uint32_t layer = 0; layer < trace_.layers(); ++layer) {
        for (std::uint32_t head = 0; head < trace_.kv_heads(); ++head) {
          row(step, layer, head, visit);
        }
      }
      end_step(step);
    }
  }

  const std::vector<std::uint32_t>& last_read() const { return last_read_; }
  const std::vector<Tally>& layers() const { return layers_; }
  Tally total() const {
    Tally all = layers_.front();
    for (std::size_t i = 1; i < layers_.size(); ++i) all.merge(layers_[i]);
    return all;
  }

 private:
  template <class Visit>
  void row(std::uint32_t step, std::uint32_t layer, std::uint32_t head, Visit& visit) {
    const std::uint32_t live = trace_.pages_at(step);
    const auto chosen = selector_.select(trace_.mass_row(step, layer, head),
                                         trace_.peak_row(step, layer, head), live);
    const std::uint32_t base = (layer * trace_.kv_heads() + head) * trace_.pages();
    Tally& tally = layers_[layer];
    const double share = ratio(chosen.size(), live);
    ++tally.rows;
    tally.share_sum += share;
    tally.least = std::min(tally.least, share);
    tally.most = std::max(tally.most, share);
    if (step > 0) tally.later_reads += chosen.size();
    for (const std::uint32_t page : chosen) {
      std::uint32_t& last = last_read_[base + page];
      if (last == 0) ++tally.ever;
      if (step > 0 && last == step) ++tally.again;
      last = step + 1;
      visit(base + page);
    }
  }

  const formats::AttentionTrace& trace_;
  Selector selector_;
  std::vector<std::uint32_t> last_read_;
  std::vector<Tally> layers_;
};

bool is_point(std::uint32_t step, std::uint32_t steps) {
  const std::uint32_t points = std::min(kPoints, steps);
  // The last step of each of `points` near-equal parts.
  const std::uint64_t part = (std::uint64_t{step} * points) / steps;
  return step + 1 == steps || (std::uint64_t{step + 1} * points) / steps != part;
}

LengthSummary summarise(std::vector<std::uint32_t> lengths) {
  LengthSummary out;
  if (lengths.empty()) return out;
  std::sort(lengths.begin(), lengths.end());
  for (const std::uint32_t length : lengths) out.total += length;
  out.mean = ratio(out.total, lengths.size());
  out.median = lengths[(lengths.size() - 1) / 2];
  out.p99 = lengths[(lengths.size() * 99 + 99) / 100 - 1];
  out.most = lengths.back();
  return out;
}

double hottest_share(std::vector<std::uint64_t> counts, std::uint64_t visits) {
  std::sort(counts.begin(), counts.end(), std::greater<>());
  const std::size_t top = (counts.size() + 99) / 100;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < top; ++i) sum += counts[i];
  return ratio(sum, visits);
}

}  // namespace

AttentionReport inspect_attention(const formats::AttentionTrace& trace, const SelectionRule& rule) {
  AttentionReport out;
  out.rule = rule;
  out.window_steps = std::min(kWindowSteps, trace.steps());
  for (const double share : {0.9, 0.95, 0.99}) {
    SelectionRule by_mass = rule;
    by_mass.kind = SelectionRule::Kind::kMass;
    by_mass.amount = share;
    Walk walk(trace, by_mass);
    walk.run([](std::uint32_t) {}, [](std::uint32_t) {});
    out.rules.emplace_back(by_mass.text(), walk.total().summary());
  }

  const std::uint32_t groups = trace.layers() * trace.kv_heads();
  ReuseProfile reuse(groups * trace.pages());
  Walk walk(trace, rule);
  std::uint64_t reads = 0;
  std::uint64_t reads_before = 0;
  walk.run(
      [&](std::uint32_t page) {
        reuse.access(page);
        ++reads;
      },
      [&](std::uint32_t step) {
        if (is_point(step, trace.steps())) {
          WorkingSetPoint point;
          point.step = step;
          point.context_tokens = std::uint64_t{trace.meta().prompt_tokens} + step + 1;
          point.pages = std::uint64_t{groups} * trace.pages_at(step);
          point.selected = reads - reads_before;
          for (const std::uint32_t last : walk.last_read()) {
            if (last == 0) continue;
            ++point.ever;
            if (last + out.window_steps > step + 1) ++point.window;
          }
          out.working_set.push_back(point);
        }
        reads_before = reads;
      });
  for (std::uint32_t layer = 0; layer < trace.layers(); ++layer) {
    out.layers.emplace_back(trace.meta().layer_ids[layer], walk.layers()[layer].summary());
  }
  const std::string text = rule.text();
  const bool listed = std::any_of(out.rules.begin(), out.rules.end(),
                                  [&](const auto& entry) { return entry.first == text; });
  if (!listed) out.rules.emplace_back(text, walk.total().summary());
  out.reuse = summarise(reuse);
  return out;
}

RequestReport inspect_requests(const formats::RequestTrace& trace, std::uint32_t block_tokens) {
  RequestReport out;
  std::unordered_map<std::uint64_t, std::uint32_t> dense;
  for (const std::uint64_t id : trace.hash_ids()) {
    dense.emplace(id, static_cast<std::uint32_t>(dense.size()));
  }
  out.requests = trace.requests().size();
  out.visits = trace.hash_ids().size();
  out.distinct = dense.size();
  out.block_tokens = block_tokens;

  ReuseProfile reuse(static_cast<std::uint32_t>(dense.size()));
  std::vector<std::uint64_t> counts(dense.size(), 0);
  std::set<std::int64_t> sessions;
  std::vector<std::uint32_t> inputs;
  std::vector<std::uint32_t> outputs;
  std::unordered_set<std::uint32_t> in_phase;
  double first_ms = trace.requests().front().timestamp_ms;
  double last_ms = first_ms;
  std::uint64_t seen = 0;
  std::uint64_t prefix = 0;
  RequestPhase phase;
  for (std::size_t i = 0; i < trace.requests().size(); ++i) {
    const formats::Request& request = trace.requests()[i];
    first_ms = std::min(first_ms, request.timestamp_ms);
    last_ms = std::max(last_ms, request.timestamp_ms);
    inputs.push_back(request.input_length);
    outputs.push_back(request.output_length);
    if (request.session >= 0) sessions.insert(request.session);
    if (request.block_size != 0) {
      out.block_tokens = request.block_size;
      out.block_tokens_recorded = true;
    }
    bool unbroken = true;
    for (const std::uint64_t id : trace.blocks(request)) {
      const std::uint32_t block = dense.find(id)->second;
      const bool before = counts[block]++ > 0;
      unbroken = unbroken && before;
      seen += before ? 1U : 0U;
      prefix += unbroken ? 1U : 0U;
      phase.seen_before += before ? 1U : 0U;
      ++phase.visits;
      in_phase.insert(block);
      reuse.access(block);
    }
    ++phase.requests;
    if (is_point(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(out.requests))) {
      phase.distinct = in_phase.size();
      out.phases.push_back(phase);
      phase = {};
      in_phase.clear();
    }
  }
  out.sessions = sessions.size();
  out.duration_ms = last_ms - first_ms;
  out.input = summarise(std::move(inputs));
  out.output = summarise(std::move(outputs));
  out.seen_before = ratio(seen, out.visits);
  out.prefix_before = ratio(prefix, out.visits);
  out.hottest_percent = hottest_share(std::move(counts), out.visits);
  out.reuse = summarise(reuse);
  return out;
}

}  // namespace lehr::tools
