// SPDX-License-Identifier: Apache-2.0
#include "runtime/replay/replay.hpp"

#include <algorithm>
#include <chrono>
#include <optional>

#include <fmt/core.h>

#include "runtime/replay/lowered_masses.hpp"
#include "runtime/replay/saliency.hpp"
#include "runtime/replay/target.hpp"

namespace lehr::runtime {

namespace {

/// A runtime of this process, called directly.
class DirectTarget final : public ReplayTarget {
 public:
  explicit DirectTarget(std::unique_ptr<Runtime> runtime) : runtime_(std::move(runtime)) {}
  Result<std::vector<SequenceId>> create(std::span<const SequenceInfo> infos) override {
    return runtime_->create_sequences(infos);
  }
  Status begin_step(std::span<const SequenceId> sequences) override {
    return runtime_->begin_step(sequences);
  }
  Status run_layer(std::uint32_t layer, std::span<const GroupSelection> groups,
                   std::span<const std::uint32_t>) override {
    return runtime_->run_layer(layer, groups);
  }
  Result<StepReport> end_step() override { return runtime_->end_step(); }
  Status release(SequenceId sequence) override { return runtime_->release(sequence); }
  std::vector<std::string> notes() override { return runtime_->machine().notes(); }
  Status finish() override {
    LEHR_TRY(runtime_->machine().drain());
    return runtime_->machine().check();
  }

 private:
  std::unique_ptr<Runtime> runtime_;
};

/// Feeds one workload into one target, step by step.
class Driver {
 public:
  Driver(const Workload& workload, ReplayTarget& runtime, bool future, bool scores)
      : workload_(workload),
        runtime_(runtime),
        future_(future),
        scores_(scores),
        ids_(workload.sequences.size()),
        layers_(workload.layers()) {}

  Status step(std::uint32_t t) {
    LEHR_TRY(arrive(t));
    batch_.clear();
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      if (ids_[i]) batch_.push_back(*ids_[i]);
    }
    LEHR_TRY(runtime_.begin_step(batch_));
    for (std::uint32_t l = 0; l < layers_; ++l) LEHR_TRY(layer(t, l));
    LEHR_ASSIGN(report_, runtime_.end_step());
    return leave(t);
  }
  const StepReport& report() const { return report_; }
  std::size_t batch_size() const { return batch_.size(); }

 private:
  Tick tick(std::uint32_t start, std::uint32_t trace_step, std::uint32_t l) const {
    return trace_step == TraceSelection::kNoStep ? kNever : (start + trace_step) * layers_ + l;
  }

  Status arrive(std::uint32_t t) {
    std::vector<SequenceInfo> infos;
    std::vector<std::size_t> who;
    std::vector<std::vector<Tick>> first_use;
    std::vector<std::vector<float>> saliency;
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      const ReplaySequence& s = workload_.sequences[i];
      if (s.start != t) continue;
      who.push_back(i);
      infos.push_back({s.selection->trace().meta().prompt_tokens, {}});
      if (future_) first_use.push_back(first_uses(s));
      if (scores_) saliency.push_back(saliency_of(s.selection->trace()));
    }
    if (infos.empty()) return {};
    for (std::size_t i = 0; i < saliency.size(); ++i) infos[i].saliency = saliency[i];
    for (std::size_t i = 0; i < first_use.size(); ++i) infos[i].first_use = first_use[i];
    LEHR_ASSIGN(const auto made, runtime_.create(infos));
    for (std::size_t i = 0; i < who.size(); ++i) ids_[who[i]] = made[i];
    return {};
  }

  std::vector<Tick> first_uses(const ReplaySequence& s) const {
    const auto& trace = s.selection->trace();
    const std::uint32_t full = trace.meta().prompt_tokens / trace.meta().page_tokens;
    std::vector<Tick> out;
    for (std::uint32_t l = 0; l < layers_; ++l) {
      for (std::uint32_t h = 0; h < trace.kv_heads(); ++h) {
        for (std::uint32_t p = 0; p < full; ++p) {
          out.push_back(tick(s.start, s.selection->first_step(l, h, p), l));
        }
      }
    }
    return out;
  }

  Status layer(std::uint32_t t, std::uint32_t l) {
    groups_.clear();
    ticks_.clear();
    contexts_.clear();
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      if (!ids_[i]) continue;
      const ReplaySequence& s = workload_.sequences[i];
      const auto& trace = s.selection->trace();
      const std::uint32_t own = t - s.start;
      for (std::uint32_t h = 0; h < trace.kv_heads(); ++h) {
        const std::size_t g = s.selection->group(own, l, h);
        GroupSelection group;
        group.sequence = *ids_[i];
        group.kv_head = h;
        group.pages = s.selection->pages(g);
        group.mass = trace.mass_row(own, l, h);
        group.peak = trace.peak_row(own, l, h);
        if (future_) {
          const std::uint32_t pages = trace.pages_at(own);
          if (pages >= 2)
            group.filled_next_use = tick(s.start, s.selection->first_step(l, h, pages - 2), l);
          for (const std::uint32_t next : s.selection->next_step(g))
            ticks_.push_back(tick(s.start, next, l));
        }
        groups_.push_back(group);
        contexts_.push_back(trace.pages_at(own));
      }
    }
    std::size_t at = 0;
    for (GroupSelection& group : groups_) {
      if (!future_) break;
      group.next_use = std::span(ticks_).subspan(at, group.pages.size());
      at += group.pages.size();
    }
    return runtime_.run_layer(l, groups_, contexts_);
  }

  Status leave(std::uint32_t t) {
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      const ReplaySequence& s = workload_.sequences[i];
      if (!ids_[i] || s.start + s.selection->trace().steps() != t + 1) continue;
      LEHR_TRY(runtime_.release(*ids_[i]));
      ids_[i].reset();
    }
    return {};
  }

  const Workload& workload_;
  ReplayTarget& runtime_;
  bool future_;
  bool scores_;
  std::vector<std::optional<SequenceId>> ids_;
  std::uint32_t layers_;
  std::vector<SequenceId> batch_;
  std::vector<GroupSelection> groups_;
  std::vector<Tick> ticks_;
  std::vector<std::uint32_t> contexts_;
  StepReport report_;
};

}  // namespace

void note_policy(const RuntimeOptions& options, std::uint32_t layers,
                 const placement::PolicyDescriptor& policy, ReplayResult& result) {
  const auto held = [&](std::uint64_t count, const char* why) {
    if (count == 0) return;
    result.notes.push_back(fmt::format("no promotions in {:.1f} of {} steps: {}",
                                       static_cast<double>(count) / layers, result.steps, why));
  };
  held(result.all.paused_layers, "predictions were off");
  held(result.all.thrashing_layers,
       "a step reads more than HBM holds, and what was promoted left unread");
  if (options.plan_every > 1 && policy.traits.needs_odds == 0)
    result.notes.push_back(fmt::format("{} ranks no pages by odds: it plans as ever", policy.name));
}

Result<ReplayResult> replay_on(ReplayTarget& target, const Workload& workload,
                               const ReplayOptions& options, const Progress& progress) {
  LEHR_ASSIGN(const placement::PolicyDescriptor* descriptor,
              placement::find_policy(options.runtime.policy));
  LoweredMasses masses(options.runtime.heat_half_life);
  Driver driver(workload, target, descriptor->traits.needs_future,
                options.runtime.importance.has_value());
  ReplayResult result;
  result.policy = options.runtime.policy;
  result.steps = workload.steps();
  if (options.runtime.precision) result.lowering.emplace();
  if (options.max_steps != 0) result.steps = std::min(result.steps, options.max_steps);
  const auto began = std::chrono::steady_clock::now();
  for (std::uint32_t t = 0; t < result.steps; ++t) {
    if (progress) progress(static_cast<double>(t) / result.steps);
    LEHR_TRY(driver.step(t));
    const StepReport& report = driver.report();
    result.all.add(report);
    if (result.lowering) masses.note(report, *result.lowering);
    result.tokens += driver.batch_size();
    result.step_seconds.push_back(report.total);
    if (report.measured > 0) result.measured_seconds.push_back(report.measured);
    if (t < options.warmup_steps) continue;
    result.warm.add(report);
    result.warm_tokens += driver.batch_size();
    ++result.warm_steps;
  }
  result.wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  LEHR_TRY(target.finish());
  result.notes = target.notes();
  LEHR_TRY(note_lowering(options.runtime, workload.sequences.front().selection->trace().geometry(),
                         result));
  note_policy(options.runtime, workload.layers(), *descriptor, result);
  return result;
}

Result<ReplayResult> replay(const Workload& workload, const ReplayOptions& options,
                            std::unique_ptr<Machine> machine, const Progress& progress) {
  LEHR_TRY(workload.validate());
  RuntimeOptions runtime_options = options.runtime;
  runtime_options.geometry = workload.sequences.front().selection->trace().geometry();
  LEHR_ASSIGN(const placement::PolicyDescriptor* descriptor,
              placement::find_policy(options.runtime.policy));
  placement::Instance future;  // outlives the runtime
  if (descriptor->traits.needs_instance) {
    LEHR_ASSIGN(future, replay_instance(workload, options));
    runtime_options.future = &future;
  }
  LEHR_ASSIGN(auto runtime, Runtime::create(std::move(runtime_options), std::move(machine)));
  DirectTarget target(std::move(runtime));
  return replay_on(target, workload, options, progress);
}

}  // namespace lehr::runtime
