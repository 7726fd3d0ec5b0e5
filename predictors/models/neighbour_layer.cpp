// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "predictors/column_predictor.hpp"
#include "predictors/logit.hpp"

namespace lehr::predictors {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"forget", "weight of what was learnt after a step", 0.99, 0.5, 1},
};

/// Layer l from layer l - 1 of the same step: a position that the layer below reads now, by this
/// many of its groups, is read in this layer as often as that was so before.
class NeighbourLayer final : public ColumnPredictor {
 public:
  explicit NeighbourLayer(const Parameters& p) : forget_(p.at("forget")) {}

 private:
  static constexpr std::uint32_t kReaders = 4;  ///< groups of the layer below: 0, 1, 2, more
  static constexpr std::uint32_t kPasts = 3;    ///< read in the last step, of late, not
  struct Counts {
    double seen = 0;
    double read = 0;
  };

  Status start(const PredictorContext& /*context*/) override {
    counts_.assign(std::size_t{layers_} * kReaders * kPasts, {});
    readers_.assign(layers_, {});
    return {};
  }
  std::uint32_t past(PageId page) const {
    const std::uint64_t bits = history_.bits[page];
    return (bits & 1U) != 0 ? 0U : (bits & 0xFFU) != 0 ? 1U : 2U;
  }
  Counts& counts(std::uint32_t layer, std::uint32_t readers, PageId page) {
    return counts_[(std::size_t{layer} * kReaders + std::min(readers, kReaders - 1)) * kPasts +
                   past(page)];
  }
  std::vector<std::uint8_t>& readers(std::uint32_t layer, std::uint32_t sequence) {
    auto& all = readers_[layer];
    if (sequence >= all.size()) all.resize(sequence + 1);
    return all[sequence];
  }
  std::uint32_t below(std::uint32_t layer, std::uint32_t sequence, std::uint32_t position) {
    if (layer == 0) return 0;
    const auto& r = readers(layer - 1, sequence);
    return position < r.size() ? r[position] : 0U;
  }
  void note(const Run& run) override {
    const std::uint32_t layer = run.view->layer;
    auto& mine = readers(layer, run.group->sequence);
    const std::size_t n = run.group->blocks.size();
    if (clear_ != run.view->tick) {
      clear_ = run.view->tick;
      for (auto& r : readers_[layer]) std::fill(r.begin(), r.end(), std::uint8_t{0});
    }
    if (mine.size() < n) mine.resize(n, 0);
    for (std::uint32_t i = 0; i < run.length; ++i) {
      const PageId p = run.first + i;
      mine[run.position + i] = static_cast<std::uint8_t>(mine[run.position + i] + run.read[i]);
      if (!has_past(p)) continue;
      Counts& c = counts(layer, below(layer, run.group->sequence, run.position + i), p);
      c.seen += 1;
      c.read += run.read[i];
    }
  }
  float odds_of(std::uint32_t layer, std::uint32_t readers, PageId page) {
    const Counts& c = counts(layer, readers, page);
    constexpr std::array<double, kPasts> kGuess{0.75, 0.1, 0.01};
    return static_cast<float>((c.read + 8 * kGuess[past(page)]) / (c.seen + 8));
  }
  /// Before the layer below has run again: what it did this time stands for it.
  void judge(const Run& run, Logits& x) override {
    for (std::uint32_t i = 0; i < run.length; ++i) {
      x[0][i] = logit(odds_of(run.view->layer,
                              below(run.view->layer, run.group->sequence, run.position + i),
                              run.first + i));
    }
  }
  void judged(const LayerView& view) override {
    for (std::size_t c = 0; c < std::size_t{kReaders} * kPasts; ++c) {
      Counts& k = counts_[std::size_t{view.layer} * kReaders * kPasts + c];
      k.seen *= forget_;
      k.read *= forget_;
    }
    if (view.layer + 1 >= layers_) return;
    std::array<float, Run::kLength> change{};
    for (const Place& place : places(view.layer + 1)) {
      const auto now = odds(1);
      for (std::uint32_t i = 0; i < place.length; ++i) {
        const PageId p = place.first + i;
        const std::uint32_t readers = below(view.layer + 1, place.sequence, place.position + i);
        change[i] = logit(odds_of(view.layer + 1, readers, p)) - logit(now[p]);
      }
      revise(place, change.data());
    }
  }

  double forget_;
  Tick clear_ = kNever;
  std::vector<Counts> counts_;                                   ///< by layer, readers below, past
  std::vector<std::vector<std::vector<std::uint8_t>>> readers_;  ///< by layer, sequence, position
};

}  // namespace

const PredictorDescriptor& neighbour_layer_descriptor() {
  static const PredictorDescriptor descriptor{
      "neighbour-layer",
      "a layer from what the layer below reads in the same step",
      kParameters,
      {.within_step = true},
      [](const Parameters& p) -> std::unique_ptr<Predictor> {
        return std::make_unique<NeighbourLayer>(p);
      },
  };
  return descriptor;
}

}  // namespace lehr::predictors
