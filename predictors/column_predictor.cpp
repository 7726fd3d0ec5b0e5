// SPDX-License-Identifier: Apache-2.0
#include "predictors/column_predictor.hpp"

#include <algorithm>

#include "kernels/base/simd.hpp"
#include "predictors/logit.hpp"

namespace lehr::predictors {

namespace {

constexpr float kTenths = 10.0F;  // of a logit, as they are kept in a byte

/// A quarter of the runs, another one each step.
bool sampled(const Run& run) {
  const std::uint32_t key = run.view->layer * 7 + run.group->kv_head * 3 + run.group->sequence +
                            run.position / Run::kLength + run.view->step;
  return key % 4 == 0;
}

LEHR_VECTOR_CLONES void to_tenths(const float* x, std::uint32_t n, std::int8_t* said) {
  for (std::uint32_t i = 0; i < n; ++i) {
    const float raw = std::min(std::max(x[i], -kMostLogit), kMostLogit);
    said[i] = static_cast<std::int8_t>(raw * kTenths);
  }
}

LEHR_VECTOR_CLONES void from_tenths(const std::int8_t* said, std::uint32_t n, float* x) {
  for (std::uint32_t i = 0; i < n; ++i) x[i] = static_cast<float>(said[i]) / kTenths;
}

LEHR_VECTOR_CLONES void shift_odds(const float* change, std::uint32_t n, float* odds) {
  for (std::uint32_t i = 0; i < n; ++i) odds[i] = sigmoid(logit(odds[i]) + change[i]);
}

}  // namespace

Status ColumnPredictor::begin(const PredictorContext& context) {
  if (context.layers == 0 || context.kv_heads == 0)
    return invalid("predictor: a model has at least one layer and one KV head");
  if (context.horizon == 0 || context.horizon > kMaxHorizon) {
    return invalid("predictor: horizon " + std::to_string(context.horizon) + ", expected 1 to " +
                       std::to_string(kMaxHorizon),
                   Reason::kOutOfRange);
  }
  horizon_ = context.horizon;
  layers_ = context.layers;
  places_.assign(layers_, {});
  needs_ = needs();
  reader_ = GroupReader(needs_.mass);
  return start(context);
}

void ColumnPredictor::reach(PageId page) {
  if (page < odds_[0].size()) return;
  const std::size_t n = std::max<std::size_t>(page + std::size_t{1}, odds_[0].size() * 2);
  for (std::uint32_t k = 0; k < horizon_; ++k) odds_[k].resize(n, 0);
  seen_.resize(n, kNever);
  history_.cover(static_cast<PageId>(n - 1));
  const std::uint32_t rows = std::min(steps_told(), horizon_);
  for (std::uint32_t slot = 0; slot < kMaxHorizon; ++slot) {
    for (std::uint32_t row = 0; row < rows; ++row) said_[slot * kMaxHorizon + row].resize(n, 0);
  }
}

void ColumnPredictor::add_pages(std::span<const PageId> pages, const PageColumns& /*columns*/) {
  for (const PageId p : pages) {
    reach(p);
    history_.reset(p);
    seen_[p] = kNever;
    for (std::uint32_t k = 0; k < horizon_; ++k) odds_[k][p] = 0;
    forget(p);
  }
}

void ColumnPredictor::remove_pages(std::span<const PageId> pages) {
  for (const PageId p : pages) {
    for (std::uint32_t k = 0; p < odds_[0].size() && k < horizon_; ++k) odds_[k][p] = 0;
  }
}

void ColumnPredictor::learn(const Run& run) {
  if (!sampled(run)) return;
  const std::uint32_t rows = std::min(steps_told(), horizon_);
  std::array<float, Run::kLength> x{};
  for (std::uint32_t ahead = 1; ahead <= horizon_; ++ahead) {
    if (run.view->step < ahead || history_.age[run.first] < ahead) continue;
    const std::uint32_t slot = (run.view->step - ahead) % kMaxHorizon;
    const auto& said = said_[slot * kMaxHorizon + std::min(ahead, rows) - 1];
    from_tenths(&said[run.first], run.length, x.data());
    scaler_.learn(ahead, x.data(), run.read, run.length);
  }
}

void ColumnPredictor::publish(const Run& run, const Logits& x) {
  const std::uint32_t rows = std::min(steps_told(), horizon_);
  const std::uint32_t slot = run.view->step % kMaxHorizon;
  for (std::uint32_t k = 0; k < rows; ++k) {
    auto& said = said_[slot * kMaxHorizon + k];
    to_tenths(x[k].data(), run.length, &said[run.first]);
  }
  for (std::uint32_t k = 0; k < horizon_; ++k)
    scaler_.apply(k + 1, x[std::min(k, rows - 1)].data(), run.length, &odds_[k][run.first]);
}

void ColumnPredictor::remember(const Run& run) {
  if (needs_.history) {
    history_.add(run);
  } else {
    history_.grow_older(run);
  }
  if (needs_.warmth) warmth_.add(run, history_);
}

void ColumnPredictor::observe(const LayerView& view) {
  if (view.step != step_) scaler_.end_step();
  step_ = view.step;
  add_pages(view.filled, view.pages);
  places_[view.layer].clear();
  if (needs_.warmth) warmth_.begin_layer(view);
  for (const GroupView& group : view.groups) {
    reader_.for_each(group, view, [&](const Run& run) {
      reach(run.first + run.length - 1);
      if (seen_[run.first] == view.tick) {  // of a prefix that another sequence of the batch shares
        if (needs_.history) history_.join(run);
        return;
      }
      seen_[run.first] = view.tick;
      learn(run);
      note(run);
      remember(run);
      places_[view.layer].push_back({run.first, run.position, run.length, group.sequence,
                                     group.kv_head,
                                     static_cast<std::uint32_t>(&group - view.groups.data())});
      work_.pages += run.length;
    });
  }
  noted(view);
  Logits x{};
  for (const Place& place : places_[view.layer]) {
    const Run run{place.first, place.position, place.length,
                  nullptr,     nullptr,        &view.groups[place.group],
                  &view};
    judge(run, x);
    publish(run, x);
  }
  judged(view);
}

void ColumnPredictor::revise(const Place& place, const float* change) {
  shift_odds(change, place.length, &odds_[0][place.first]);
}

}  // namespace lehr::predictors
