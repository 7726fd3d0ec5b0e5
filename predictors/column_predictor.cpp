// SPDX-License-Identifier: Apache-2.0
#include "predictors/column_predictor.hpp"

#include <algorithm>

#include "kernels/base/simd.hpp"
#include "predictors/logit.hpp"

namespace lehr::predictors {

namespace {

/// A quarter of the runs, another one each step.
bool sampled(const Run& run) {
  const std::uint32_t key = run.view->layer * 7 + run.group->kv_head * 3 + run.group->sequence +
                            run.position / Run::kLength + run.view->step;
  return key % 4 == 0;
}

LEHR_VECTOR_CLONES void shift_odds(const float* change, std::uint32_t n, float* odds) {
  for (std::uint32_t i = 0; i < n; ++i) odds[i] = sigmoid(logit(odds[i]) + change[i]);
}

}  // namespace

Status ColumnPredictor::begin(const PredictorContext& context) {
  LEHR_TRY(check_context(context));
  horizon_ = context.horizon;
  layers_ = context.layers;
  places_.assign(layers_, {});
  needs_ = needs();
  reader_ = LayerReader(needs_.mass);
  said_ = Said(rows());
  return start(context);
}

void ColumnPredictor::reach(PageId page) {
  if (page < odds_[0].size()) return;
  const std::size_t n = std::max<std::size_t>(page + std::size_t{1}, odds_[0].size() * 2);
  for (std::uint32_t k = 0; k < horizon_; ++k) odds_[k].resize(n, 0);
  said_.cover(n);
  history_.cover(static_cast<PageId>(n - 1));
}

void ColumnPredictor::add_pages(std::span<const PageId> pages, const PageColumns& /*columns*/) {
  for (const PageId p : pages) {
    reach(p);
    history_.reset(p);
    said_.forget(p);
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
  std::array<float, Run::kLength> x{};
  for (std::uint32_t ahead = 1; ahead <= horizon_; ++ahead) {
    const std::uint32_t n = said_.ago(run, ahead, std::min(ahead, rows()) - 1, x.data());
    scaler_.learn(ahead, x.data(), run.read, n);
  }
}

void ColumnPredictor::publish(const Run& run, const Logits& x) {
  for (std::uint32_t k = 0; k < rows(); ++k) said_.keep(run, k, x[k].data());
  for (std::uint32_t k = 0; k < horizon_; ++k)
    scaler_.apply(k + 1, x[std::min(k, rows() - 1)].data(), run.length, &odds_[k][run.first]);
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
  for (const Run& run : reader_.read(view)) {
    reach(run.first + run.length - 1);
    said_.take_part(run);
    learn(run);
    note(run);
    remember(run);
    places_[view.layer].push_back({run.first, run.position, run.length, run.group->sequence,
                                   run.group->kv_head,
                                   static_cast<std::uint32_t>(run.group - view.groups.data())});
    work_.pages += run.length;
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
