// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "predictors/predictor.hpp"
#include "tests/support/some_weights.hpp"

namespace lehr::test {

/// A sequence of a batch: its pages in the first group, the tail last. Other groups' pages lie
/// kGroupStride further each.
struct SceneSequence {
  std::vector<PageId> blocks;
  std::set<std::uint32_t> reads;  ///< positions that it reads, in every group
};

/// Shows predictors one layer after another, the pages and reads being whatever the test says:
/// shared pages, sequences that sit out, pages that come back.
class Scene {
 public:
  static constexpr PageId kGroupStride = 1024;

  explicit Scene(std::uint32_t layers = 2, std::uint32_t kv_heads = 1)
      : layers_(layers), kv_heads_(kv_heads) {}

  std::unique_ptr<predictors::Predictor> make(const std::string& name, std::uint32_t horizon = 3,
                                              const Parameters& parameters = {}) const {
    auto made = predictors::make_predictor(name, parameters);
    REQUIRE(made);
    const SomeWeights weights;
    const auto tensors = weights.tensors();
    predictors::PredictorContext context;
    context.layers = layers_;
    context.kv_heads = kv_heads_;
    context.horizon = horizon;
    context.weights = tensors;
    REQUIRE((*made)->begin(context));
    return std::move(*made);
  }

  PageId page(PageId block, std::uint32_t layer, std::uint32_t head = 0) const {
    return block + (layer * kv_heads_ + head) * kGroupStride;
  }
  std::vector<PageId> pages(const std::vector<PageId>& blocks) const {
    std::vector<PageId> out;
    for (std::uint32_t l = 0; l < layers_; ++l) {
      for (std::uint32_t h = 0; h < kv_heads_; ++h) {
        for (const PageId b : blocks) out.push_back(page(b, l, h));
      }
    }
    return out;
  }

  /// One layer of a step; valid until the next call. A page that several sequences read is told
  /// with the first of them, as the step loop does. Masses: 2^-1 of what is read, 2^-10 of the
  /// rest.
  const LayerView& layer(std::uint32_t step, std::uint32_t layer,
                         std::vector<SceneSequence> batch) {
    batch_ = std::move(batch);
    view_ = {};
    selected_.clear();
    groups_.clear();
    mass_.clear();
    next_use_.clear();
    position_.resize(std::size_t{layers_} * kv_heads_ * kGroupStride);
    mass_.reserve(batch_.size() * kv_heads_);
    std::set<PageId> told;
    for (std::uint32_t s = 0; s < batch_.size(); ++s) {
      for (std::uint32_t h = 0; h < kv_heads_; ++h) {
        const SceneSequence& q = batch_[s];
        GroupView g;
        g.blocks = q.blocks;
        g.offset = page(0, layer, h);
        g.sequence = s;
        g.kv_head = h;
        g.first = static_cast<std::uint32_t>(selected_.size());
        auto& mass = mass_.emplace_back(q.blocks.size(), MassCode{80});
        for (const std::uint32_t i : q.reads) {
          mass[i] = 8;
          if (i + 1 < q.blocks.size() && told.insert(g.page(i)).second)
            selected_.push_back(g.page(i));
        }
        g.mass = masses ? mass.data() : nullptr;
        g.count = static_cast<std::uint32_t>(selected_.size()) - g.first;
        for (std::uint32_t i = 0; i < q.blocks.size(); ++i) position_[g.page(i)] = i;
        groups_.push_back(g);
      }
    }
    next_use_.assign(selected_.size(), next_use);
    view_.step = step;
    view_.layer = layer;
    view_.layers = layers_;
    view_.tick = Tick{step} * layers_ + layer;
    view_.selected = selected_;
    view_.next_use = next_use_;
    view_.groups = groups_;
    view_.pages.position = position_;
    return view_;
  }

  /// All layers of a step.
  void play(predictors::Predictor& predictor, std::uint32_t step,
            const std::vector<SceneSequence>& batch) {
    for (std::uint32_t l = 0; l < layers_; ++l) predictor.observe(layer(step, l, batch));
  }

  bool masses = true;
  Tick next_use = 0;  ///< what views say of the future

 private:
  std::uint32_t layers_;
  std::uint32_t kv_heads_;
  std::vector<SceneSequence> batch_;
  LayerView view_;
  std::vector<PageId> selected_;
  std::vector<GroupView> groups_;
  std::vector<std::vector<MassCode>> mass_;
  std::vector<Tick> next_use_;
  std::vector<std::uint32_t> position_;
};

inline std::vector<PageId> blocks_from(PageId first, std::uint32_t count) {
  std::vector<PageId> out(count);
  for (std::uint32_t i = 0; i < count; ++i) out[i] = first + i;
  return out;
}

}  // namespace lehr::test
