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

namespace within {

inline constexpr std::array<float, 10> kEdges{-1.2F, -0.7F, -0.35F, -0.12F, -0.03F,
                                              0.03F, 0.12F, 0.35F,  0.8F,   1.5F};
inline constexpr std::uint32_t kSurprises = kEdges.size() + 1;
inline constexpr std::uint8_t kNoSurprise = 5;  ///< the bin of 0

/// next += read - expected, of pages that have a past.
void add_surprise(const std::uint8_t* read, const float* expected, const std::uint32_t* age,
                  std::uint32_t n, float* next);
/// sum = fade * sum + gain * next, and the bins of that.
void surprise_bins(const float* next, float gain, float fade, std::uint32_t n, float* sum,
                   std::uint8_t* bin);
/// Bins even in the logit, the last one open.
void odds_bins(const float* x, std::uint32_t n, std::uint32_t bins, std::uint8_t* bin);

}  // namespace within

/// The odds of another predictor, corrected layer by layer within a step: a position of which the
/// layers done read more than was expected is read more in the layers to come, too.
class SameStep final : public ColumnPredictor {
 public:
  /// `spare`, if any, takes the place of a base that needs weights where there are none.
  SameStep(std::unique_ptr<Predictor> base, std::unique_ptr<Predictor> spare, double forget,
           double fade)
      : forget_(forget),
        fade_(static_cast<float>(fade)),
        base_(std::move(base)),
        spare_(std::move(spare)) {}

 private:
  static constexpr std::uint32_t kOddsBins = 16;
  static constexpr float kGain = 1.5F;  ///< of a layer's surprise, in units of the bins
  static constexpr std::uint32_t kCells = kOddsBins * within::kSurprises;
  struct Correction {
    double expected_read = 0;
    double expected_unread = 0;
    double read = 0;
    double unread = 0;
  };
  /// Of one step: pages seen and read, and reads expected.
  struct Fresh {
    std::uint32_t seen = 0;
    std::uint32_t read = 0;
    double expected = 0;
  };
  /// By position: reads beyond expected in the layers done, in the mean over their groups, and the
  /// bin of that.
  struct Surprise {
    std::vector<float> sum;
    std::vector<float> next;  ///< of the layer in hand
    std::vector<std::uint8_t> bin;
    Tick noted = kNever;
  };

  Status start(const PredictorContext& context) override {
    PredictorContext one = context;
    one.horizon = 1;
    gain_ = kGain / static_cast<float>(context.kv_heads);
    if (spare_ && context.weights.empty()) base_ = std::move(spare_);
    return base_->begin(one);
  }
  Needs needs() const override { return {.history = false}; }
  void forget(PageId page) override {
    base_->add_pages({&page, 1}, {});
    if (page < x_.size()) return;
    const std::size_t n = 2 * std::size_t{page} + Run::kLength;
    x_.resize(n, 0);
    bin_.resize(n, 0);
  }
  Surprise& surprise(std::uint32_t sequence, std::size_t positions) {
    if (sequence >= surprise_.size()) surprise_.resize(sequence + 1);
    Surprise& s = surprise_[sequence];
    if (s.sum.size() < positions) {
      s.sum.resize(positions, 0);
      s.next.resize(positions, 0);
      s.bin.resize(positions, within::kNoSurprise);
    }
    return s;
  }

  /// What the base expected of this layer, against what came; and what the correction would have
  /// had to be, for the surprise that the layers before had left.
  void note(const Run& run) override {
    start_layer(*run.view);
    Surprise& s = surprise(run.group->sequence, run.group->blocks.size());
    const float* expected = &base_->odds(1)[run.first];
    within::add_surprise(run.read, expected, &history_.age[run.first], run.length,
                         &s.next[run.position]);
    if (run.view->layer == 0) return;
    for (std::uint32_t i = 0; i < run.length; ++i) {
      const PageId p = run.first + i;
      if (!has_past(p)) continue;
      Fresh& f = fresh_[bin_[p] * within::kSurprises + s.bin[run.position + i]];
      ++f.seen;
      f.read += run.read[i];
      f.expected += static_cast<double>(expected[i]);
    }
  }
  void start_layer(const LayerView& view) {
    if (at_ == view.tick) return;
    at_ = view.tick;
    if (view.layer == 0) {
      for (Surprise& s : surprise_) {
        std::fill(s.sum.begin(), s.sum.end(), 0.0F);
        std::fill(s.bin.begin(), s.bin.end(), within::kNoSurprise);
      }
      fold();
    }
    for (const GroupView& g : view.groups) {
      Surprise& s = surprise(g.sequence, g.blocks.size());
      std::fill(s.next.begin(), s.next.end(), 0.0F);
    }
  }
  void fold() {
    for (std::size_t i = 0; i < kCells; ++i) {
      Correction& c = corrections_[i];
      Fresh& f = fresh_[i];
      c.expected_read += f.expected;
      c.expected_unread += f.seen - f.expected;
      c.read += f.read;
      c.unread += f.seen - f.read;
      f = {};
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
      Surprise& s = surprise_[g.sequence];
      if (std::exchange(s.noted, view.tick) == view.tick) continue;  // with another of its groups
      within::surprise_bins(s.next.data(), gain_, fade_, static_cast<std::uint32_t>(s.sum.size()),
                            s.sum.data(), s.bin.data());
    }
  }
  void judge(const Run& run, Logits& x) override {
    float* raw = &x_[run.first];
    logits_of(&base_->odds(1)[run.first], run.length, raw);
    within::odds_bins(raw, run.length, kOddsBins, &bin_[run.first]);
    std::copy_n(raw, run.length, x[0].begin());
  }
  void judged(const LayerView& view) override {
    if (view.layer + 1 >= layers_) return;
    std::array<float, Run::kLength> change{};
    for (const Place& place : places(view.layer + 1)) {
      const std::size_t end = std::size_t{place.position} + place.length;
      const Surprise& s = surprise(place.sequence, end);
      for (std::uint32_t i = 0; i < place.length; ++i) {
        change[i] = change_[bin_[place.first + i] * within::kSurprises + s.bin[place.position + i]];
      }
      revise(place, change.data());
    }
  }

  double forget_;
  float fade_;
  float gain_ = kGain;
  std::unique_ptr<Predictor> base_;
  std::unique_ptr<Predictor> spare_;
  Tick at_ = kNever;
  std::array<Correction, kCells> corrections_{};
  std::array<Fresh, kCells> fresh_{};
  std::array<float, kCells> change_{};
  std::vector<Surprise> surprise_;  ///< by sequence
  std::vector<float> x_;            ///< by page: logits of the base's odds, and their bins
  std::vector<std::uint8_t> bin_;
};

}  // namespace lehr::predictors
