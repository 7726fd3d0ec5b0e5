// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "predictors/networks.hpp"

namespace lehr::predictors {

namespace {

/// The bidirectional recurrent network over the blocks of each group. A layer's groups run side by
/// side.
class Gru final : public ColumnPredictor {
 private:
  struct Block {
    std::uint32_t batch;
    std::uint32_t lane;
    std::uint32_t index;
  };

  Status start(const PredictorContext& context) override {
    LEHR_ASSIGN(weights_, GruWeights::from(context.weights));
    return {};
  }
  std::uint32_t steps_told() const override { return kTrainedSteps; }

  std::uint32_t told() const { return std::min(horizon_, kTrainedSteps); }

  /// Runs come group by group; sixteen groups fill a batch. judge() meets them in the same order.
  void noted(const LayerView& view) override {
    blocks_.clear();
    std::uint32_t batch = 0;
    for (std::size_t i = 0; i < places(view.layer).size(); ++batch) i = run_batch(view, i, batch);
    next_ = 0;
  }

  std::size_t run_batch(const LayerView& view, std::size_t from, std::uint32_t index) {
    if (index == batches_.size()) batches_.emplace_back();
    GruBatch& batch = batches_[index];
    const auto runs = places(view.layer);
    std::array<std::uint32_t, GruBatch::kLanes> length{};
    std::uint32_t lanes = 0;
    std::size_t end = from;
    for (; end < runs.size(); ++end) {
      const bool starts = end == from || runs[end].group != runs[end - 1].group;
      if (starts && lanes == GruBatch::kLanes) break;
      lanes += starts ? 1U : 0U;
      blocks_.push_back({index, lanes - 1, length[lanes - 1]++});
    }
    batch.shape(*std::max_element(length.begin(), length.end()));
    for (std::uint32_t l = 0; l < lanes; ++l) batch.set_length(l, length[l]);
    for (std::size_t i = from; i < end; ++i) {
      const Place& r = runs[i];
      const Run run{r.first, r.position, r.length, nullptr, nullptr, &view.groups[r.group], &view};
      make_features(run, history_, warmth_, kOwnFeatures, features_);
      gru_inputs(features_, r.length, batch.input(blocks_[i].index, blocks_[i].lane),
                 GruBatch::kLanes);
    }
    batch.run(weights_, told());
    work_.flops += GruWeights::kFlopsOfBlock * (end - from);
    return end;
  }

  void judge(const Run& run, Logits& x) override {
    const Block at = blocks_[next_++];
    make_features(run, history_, warmth_, kOwnFeatures, features_);
    gru_logits(features_, batches_[at.batch].output(at.index, at.lane), GruBatch::kLanes, x,
               told());
    work_.flops += std::uint64_t{2} * GruWeights::kOutputs * run.length;
  }

  GruWeights weights_;
  std::vector<GruBatch> batches_;
  std::vector<Block> blocks_;
  std::size_t next_ = 0;
  Features features_{};
};

}  // namespace

const PredictorDescriptor& gru_descriptor() {
  static const PredictorDescriptor descriptor{
      "gru",
      "trained recurrent network over blocks of positions, both ways",
      {},
      {.needs_weights = true},
      [](const Parameters&) -> std::unique_ptr<Predictor> { return std::make_unique<Gru>(); },
  };
  return descriptor;
}

}  // namespace lehr::predictors
