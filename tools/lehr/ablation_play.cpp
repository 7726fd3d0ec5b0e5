// SPDX-License-Identifier: Apache-2.0
// The replays, bounds and oracles of `lehr experiment ablation`.
#include <algorithm>
#include <chrono>
#include <mutex>
#include <numeric>

#include <fmt/core.h>

#include "runtime/machines/sim.hpp"
#include "tools/lehr/ablation.hpp"
#include "tools/lehr/certify.hpp"
#include "tools/lehr/parallel.hpp"
#include "tools/lehr/replay_options.hpp"

namespace lehr::tools::ablation {

double Figures::mean_seconds() const {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) /
         static_cast<double>(std::max<std::size_t>(1, seconds.size()));
}

namespace {

/// Predicts what the same decisions take on other platforms. Right for policies that cannot see the
/// platform: they promote nothing in the background, and each layer moves the same everywhere.
class AlsoOn final : public runtime::Machine {
 public:
  AlsoOn(std::vector<const placement::Platform*> platforms, std::uint32_t warmup_steps,
         std::vector<double>& seconds)
      : platforms_(std::move(platforms)), warmup_steps_(warmup_steps), seconds_(seconds) {
    seconds_.assign(platforms_.size(), 0);
  }
  runtime::MachineTraits traits() const override { return {.moves_bytes = true, .attends = true}; }
  Status set_up(std::span<const runtime::PageOp>) override { return {}; }
  Status run_layer(Step, std::uint32_t, std::span<const runtime::PageOp>) override { return {}; }
  Status run(const runtime::LayerWork& work) override {
    if (work.step < warmup_steps_) return {};
    for (std::size_t i = 0; i < platforms_.size(); ++i) {
      seconds_[i] += placement::layer_time(*platforms_[i], *work.load).total();
    }
    return {};
  }
  Status drain() override { return {}; }
  Seconds take_measured() override { return 0; }
  std::vector<std::string> notes() const override { return {}; }

 private:
  std::vector<const placement::Platform*> platforms_;
  std::uint32_t warmup_steps_;
  std::vector<double>& seconds_;
};

/// Same tiers and links under the same numbers, same capacities in pages.
bool alike(const runtime::RuntimeOptions& a, const runtime::RuntimeOptions& b) {
  if (a.tier_pages[kHbm] != b.tier_pages[kHbm] || a.platform.home != b.platform.home ||
      a.platform.links.size() != b.platform.links.size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.platform.links.size(); ++i) {
    const placement::Link& x = a.platform.links[i];
    const placement::Link& y = b.platform.links[i];
    if (x.from != y.from || x.to != y.to) return false;
  }
  return true;
}

/// One trace, or the mixed batch of several, under one rule.
struct Batch {
  std::string name;
  bool mixed = false;
  ReplayArguments replay;
  std::vector<std::unique_ptr<Prepared>> on;  ///< by profile
};

/// The traces that can share a batch with the first; the others are named in a note.
Result<std::vector<std::string>> of_one_shape(const std::vector<std::string>& traces,
                                              std::vector<std::string>& notes) {
  std::vector<std::string> out;
  std::optional<KvGeometry> first;
  for (const std::string& file : traces) {
    LEHR_ASSIGN(const auto trace, formats::AttentionTrace::open(file));
    const KvGeometry g = trace.geometry();
    if (!first) first = g;
    if (g.layers == first->layers && g.kv_heads == first->kv_heads &&
        g.page_tokens == first->page_tokens && g.page_bytes() == first->page_bytes()) {
      out.push_back(file);
    } else {
      notes.push_back(fmt::format("{}: of another shape, not in the mixed batch", file));
    }
  }
  return out;
}

Result<std::vector<Batch>> batches(const Arguments& arguments, std::vector<std::string>& notes) {
  std::vector<Batch> out;
  const auto add = [&](const std::string& name, const std::vector<std::string>& traces,
                       std::uint32_t sequences) {
    for (const std::string& select : arguments.select) {
      Batch b{name, sequences > 1, {}, {}};
      b.replay.traces = traces;
      b.replay.select = select;
      b.replay.sequences = sequences;
      b.replay.stagger = sequences > 1 ? arguments.stagger : 0;
      b.replay.warmup = arguments.warmup;
      out.push_back(std::move(b));
    }
  };
  if (arguments.mixed > 1) {  // the longest first
    LEHR_ASSIGN(const auto traces, of_one_shape(arguments.traces, notes));
    add(fmt::format("mixed-{}", arguments.mixed), traces, arguments.mixed);
  }
  for (const std::string& trace : arguments.traces) {
    const std::size_t slash = trace.find_last_of('/');
    const std::string file = trace.substr(slash == std::string::npos ? 0 : slash + 1);
    add(file.substr(0, file.find('.')), {trace}, 1);
  }
  return out;
}

Status prepare_on_all(const Arguments& arguments, Batch& batch) {
  for (const std::string& profile : arguments.profiles) {
    batch.replay.profile = profile;
    if (batch.on.empty()) {
      LEHR_ASSIGN(auto first, prepare(batch.replay, {}));
      batch.on.push_back(std::move(first));
    } else {
      LEHR_ASSIGN(auto other, on_profile(*batch.on.front(), batch.replay));
      batch.on.push_back(std::move(other));
    }
  }
  return {};
}

class Player {
 public:
  Player(const Arguments& arguments, Results& results, std::vector<Batch>& work)
      : arguments_(arguments), results_(results), work_(work) {
    results_.cpu_seconds.assign(results_.contestants.size() + 2, 0);
    for (const Batch& b : work_) {
      for (const std::string& hbm : arguments_.hbm) {
        for (const std::string& profile : arguments_.profiles) {
          Cell& cell = results_.cells.emplace_back();
          cell.trace = b.name;
          cell.select = b.replay.select;
          cell.hbm = hbm;
          cell.profile = profile;
          cell.mixed = b.mixed;
          cell.by.resize(results_.contestants.size());
        }
      }
    }
  }

  void run(const std::function<void(double)>& progress) {
    std::vector<std::pair<std::size_t, std::size_t>> jobs;  // cell, contestant or all of them
    const std::size_t all = results_.contestants.size();
    for (std::size_t c = 0; c < results_.cells.size(); ++c) {
      jobs.emplace_back(c, all);  // bounds and oracle: they take longest
      for (std::size_t i = 0; i < all; ++i) {
        if (wanted(c, results_.contestants[i])) jobs.emplace_back(c, i);
      }
    }
    parallel(
        jobs.size(),
        [&](std::size_t j) {
          const auto [c, i] = jobs[j];
          const Status done = i == all ? certify_cell(c) : contest(c, i);
          if (done) return;
          const std::scoped_lock held(lock_);
          results_.cells[c].failed = done.error();
        },
        progress);
  }

 private:
  std::size_t profiles() const { return arguments_.profiles.size(); }
  std::size_t profile(std::size_t cell) const { return cell % profiles(); }
  Batch& batch(std::size_t cell) const {
    return work_[cell / (profiles() * arguments_.hbm.size())];
  }
  Result<runtime::ReplayOptions> options(std::size_t cell) const {
    LEHR_ASSIGN(runtime::ReplayOptions out,
                batch(cell).on[profile(cell)]->at(results_.cells[cell].hbm));
    out.warmup_steps = arguments_.warmup;
    return out;
  }

  bool narrow(const Cell& cell) const {
    return cell.select == arguments_.select.front() && !cell.mixed;
  }
  bool wanted(std::size_t c, const Contestant& contestant) const {
    if (contestant.narrow && !narrow(results_.cells[c])) return false;
    return !(contestant.blind || contestant.once) || profile(c) == 0;
  }
  /// Further seeds are played in the narrow cells of the first profile only: time.
  std::uint32_t seeds(std::size_t c, const Contestant& contestant) const {
    const bool many = contestant.seeded && narrow(results_.cells[c]) && profile(c) == 0;
    return many ? arguments_.seeds : 1;
  }

  void charge(std::size_t to, double spent) {
    const std::scoped_lock held(lock_);
    results_.cpu_seconds[to] += spent;
  }

  /// Bounds and oracle of a cell.
  Status certify_cell(std::size_t c) {
    Cell& cell = results_.cells[c];
    LEHR_ASSIGN(const runtime::ReplayOptions own, options(c));
    LEHR_ASSIGN(const Certified certified,
                certify(batch(c).on[profile(c)]->workload, own, {.seed = 1, .brief = cell.mixed}));
    cell.bound = certified.bound.best.without_warmup;
    for (const placement::BoundValue& v : certified.bound.each) {
      if (v.without_warmup >= cell.bound && cell.bound_name.empty()) cell.bound_name = v.name;
    }
    cell.oracle = certified.oracle.predicted.without_warmup;
    charge(results_.contestants.size(), certified.bound_seconds);
    charge(results_.contestants.size() + 1, certified.oracle_seconds);
    return {};
  }

  Status contest(std::size_t c, std::size_t i) {
    const double since = thread_seconds();
    const Contestant& contestant = results_.contestants[i];
    LEHR_ASSIGN(runtime::ReplayOptions own, options(c));
    own.runtime.policy = contestant.policy;
    own.runtime.policy_parameters = contestant.parameters;
    own.runtime.predictor_parameters = contestant.predictor;
    own.runtime.write_back_once = contestant.write_back_once;
    for (std::uint32_t seed = 1; seed <= seeds(c, contestant); ++seed) {
      own.runtime.seed = seed;
      LEHR_TRY(contestant.blind ? replay_on_all(c, i, own) : replay_here(c, i, own));
    }
    charge(i, thread_seconds() - since);
    return {};
  }

  Status replay_here(std::size_t c, std::size_t i, const runtime::ReplayOptions& own) {
    LEHR_ASSIGN(const auto result, runtime::replay(batch(c).on[profile(c)]->workload, own,
                                                   runtime::make_sim_machine()));
    note(results_.cells[c].by[i], result.warm, result.warm.total);
    return {};
  }

  /// The profiles of a cell follow one another; `c` is the first.
  Status replay_on_all(std::size_t c, std::size_t i, const runtime::ReplayOptions& own) {
    std::vector<runtime::ReplayOptions> others;
    std::vector<std::size_t> who;
    for (std::size_t k = 1; k < profiles(); ++k) {
      LEHR_ASSIGN(auto other, options(c + k));
      if (!alike(own.runtime, other.runtime)) {
        other.runtime.policy = own.runtime.policy;
        other.runtime.policy_parameters = own.runtime.policy_parameters;
        other.runtime.seed = own.runtime.seed;
        LEHR_TRY(replay_here(c + k, i, other));
        continue;
      }
      others.push_back(std::move(other));
      who.push_back(c + k);
    }
    std::vector<const placement::Platform*> platforms;
    platforms.reserve(others.size());
    for (const auto& o : others) platforms.push_back(&o.runtime.platform);
    std::vector<double> seconds;
    LEHR_ASSIGN(const auto result,
                runtime::replay(batch(c).on[0]->workload, own,
                                std::make_unique<AlsoOn>(platforms, arguments_.warmup, seconds)));
    note(results_.cells[c].by[i], result.warm, result.warm.total);
    for (std::size_t k = 0; k < who.size(); ++k) {
      note(results_.cells[who[k]].by[i], result.warm, seconds[k]);
    }
    return {};
  }

  static void note(Figures& f, const runtime::StepReport& warm, double seconds) {
    f.misses += static_cast<double>(warm.misses);
    f.reads += static_cast<double>(warm.reads);
    f.seconds.push_back(seconds);
  }

  const Arguments& arguments_;
  Results& results_;
  std::vector<Batch>& work_;
  std::mutex lock_;
};

}  // namespace

Result<Results> play(const Arguments& arguments, const std::function<void(double)>& progress) {
  const auto began = std::chrono::steady_clock::now();
  Results results;
  results.contestants = contestants();
  LEHR_ASSIGN(std::vector<Batch> work, batches(arguments, results.notes));
  std::vector<Status> prepared(work.size());
  constexpr double kReading = 0.02;  // of the time
  parallel(
      work.size(), [&](std::size_t b) { prepared[b] = prepare_on_all(arguments, work[b]); },
      [&](double share) { progress(kReading * share); });
  for (const Status& s : prepared) LEHR_TRY(s);
  Player player(arguments, results, work);
  player.run([&](double share) { progress(kReading + (1 - kReading) * share); });
  for (const Cell& cell : results.cells) {
    if (!cell.failed) continue;
    Error why = *cell.failed;
    why.what = fmt::format("{}, {}, HBM {}, {}: {}", cell.trace, cell.select, cell.hbm,
                           cell.profile, why.what);
    return why;
  }
  results.wall_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return results;
}

}  // namespace lehr::tools::ablation
