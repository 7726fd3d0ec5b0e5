// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "predictors/column_predictor.hpp"
#include "predictors/logit.hpp"

namespace lehr::predictors {

/// The odds of another predictor, corrected layer by layer within a step: a position of which the
/// layers done read more than was expected is read more in the layers to come, too.
class SameStep final : public ColumnPredictor {
 public:
  SameStep(std::unique_ptr<Predictor> base, double forget, double fade)
      : forget_(forget), fade_(static_cast<float>(fade)), base_(std::move(base)) {}

 private:
  static constexpr std::uint32_t kOddsBins = 16;
  static constexpr std::uint32_t kSurprises = 11;
  struct Correction {
    double expected_read = 0;
    double expected_unread = 0;
    double read = 0;
    double unread = 0;
  };

  Status start(const PredictorContext& context) override {
    PredictorContext one = context;
    one.horizon = 1;
    return base_->begin(one);
  }
  void forget(PageId page) override { base_->add_pages({&page, 1}, {}); }

  static std::uint32_t surprise_bin(float s) {
    constexpr std::array<float, kSurprises - 1> kEdges{-1.2F, -0.7F, -0.35F, -0.12F, -0.03F,
                                                       0.03F, 0.12F, 0.35F,  0.8F,   1.5F};
    return static_cast<std::uint32_t>(std::upper_bound(kEdges.begin(), kEdges.end(), s) -
                                      kEdges.begin());
  }
  static std::uint32_t odds_bin(float odds) {
    return static_cast<std::uint32_t>(
        std::clamp(logit(odds) * 1.2F + 8.0F, 0.0F, kOddsBins - 1.0F));
  }
  std::vector<float>& surprise(std::uint32_t sequence) {
    if (sequence >= surprise_.size()) surprise_.resize(sequence + 1);
    return surprise_[sequence];
  }

  /// What the base expected of this layer, against what came; and what the correction would have
  /// had to be, for the surprise that the layers before had left.
  void note(const Run& run) override {
    start_layer(*run.view);
    auto& s = surprise(run.group->sequence);
    auto& next = next_surprise_[run.group->sequence];
    const std::size_t n = run.group->blocks.size();
    if (s.size() < n) s.resize(n, 0);
    if (next.size() < n) next.resize(n, 0);
    const auto expected = base_->odds(1);
    for (std::uint32_t i = 0; i < run.length; ++i) {
      const PageId p = run.first + i;
      if (!has_past(p)) continue;
      const float e = expected[p];
      const auto r = static_cast<float>(run.read[i]);
      next[run.position + i] += r - e;
      if (run.view->layer == 0) continue;
      Correction& c = corrections_[odds_bin(e) * kSurprises + surprise_bin(s[run.position + i])];
      c.expected_read += static_cast<double>(e);
      c.expected_unread += static_cast<double>(1 - e);
      c.read += static_cast<double>(r);
      c.unread += static_cast<double>(1 - r);
    }
  }
  void start_layer(const LayerView& view) {
    if (at_ == view.tick) return;
    at_ = view.tick;
    if (view.layer == 0) {
      for (auto& s : surprise_) std::fill(s.begin(), s.end(), 0.0F);
      fold();
    }
    next_surprise_.resize(std::max(next_surprise_.size(), surprise_.size()));
    for (const GroupView& g : view.groups) {
      if (g.sequence >= next_surprise_.size()) next_surprise_.resize(g.sequence + 1);
      auto& next = next_surprise_[g.sequence];
      std::fill(next.begin(), next.end(), 0.0F);
    }
  }
  void fold() {
    for (std::size_t i = 0; i < corrections_.size(); ++i) {
      Correction& c = corrections_[i];
      const double read = (c.read + 8) / (c.expected_read + 8);
      const double unread = (c.unread + 8) / (c.expected_unread + 8);
      change_[i] = static_cast<float>(std::log(read / unread));
      c.read *= forget_;
      c.unread *= forget_;
      c.expected_read *= forget_;
      c.expected_unread *= forget_;
    }
  }
  void noted(const LayerView& view) override {
    start_layer(view);
    LayerView seen = view;
    seen.filled = {};  // they were told by forget()
    base_->observe(seen);
    work_.flops = base_->work().flops;
    for (const GroupView& g : view.groups) {
      auto& s = surprise(g.sequence);
      auto& next = next_surprise_[g.sequence];
      for (std::size_t i = 0; i < std::min(s.size(), next.size()); ++i) {
        s[i] = fade_ * s[i] + next[i];
        next[i] = 0;
      }
    }
  }
  void judge(const Run& run, Logits& x) override {
    const auto expected = base_->odds(1);
    for (std::uint32_t i = 0; i < run.length; ++i) x[0][i] = logit(expected[run.first + i]);
  }
  void judged(const LayerView& view) override {
    if (view.layer + 1 >= layers_) return;
    std::array<float, Run::kLength> change{};
    const auto expected = base_->odds(1);
    for (const Place& place : places(view.layer + 1)) {
      const auto& s = surprise(place.sequence);
      for (std::uint32_t i = 0; i < place.length; ++i) {
        const std::size_t at = place.position + i;
        change[i] =
            at < s.size()
                ? change_[odds_bin(expected[place.first + i]) * kSurprises + surprise_bin(s[at])]
                : 0.0F;
      }
      revise(place, change.data());
    }
  }

  double forget_;
  float fade_;
  std::unique_ptr<Predictor> base_;
  Tick at_ = kNever;
  std::array<Correction, std::size_t{kOddsBins} * kSurprises> corrections_{};
  std::array<float, std::size_t{kOddsBins} * kSurprises> change_{};
  std::vector<std::vector<float>> surprise_;  ///< by sequence and position: reads beyond expected
  std::vector<std::vector<float>> next_surprise_;
};

}  // namespace lehr::predictors
