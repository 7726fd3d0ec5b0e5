// SPDX-License-Identifier: Apache-2.0
#include "tools/train/samples.hpp"

#include "runtime/replay/number_pages.hpp"

namespace lehr::train {

namespace {

using predictors::History;
using predictors::kTrainedSteps;
using predictors::LayerReader;
using predictors::Run;
using predictors::Warmth;

class Player {
 public:
  Player(const runtime::TraceSelection& selection, const SampleOptions& options)
      : feed_(selection),
        options_(options),
        rng_(options.seed),
        numbers_(runtime::number_pages(selection.trace())) {
    for (const PageId p : feed_.prompt_pages()) history_.reset(p);
  }

  void play(const std::function<void(const Sample&)>& take) {
    for (std::uint32_t t = 0; t + kTrainedSteps < feed_.steps(); ++t) {
      for (std::uint32_t l = 0; l < feed_.layers(); ++l) layer(t, l, take);
    }
  }

 private:
  void layer(std::uint32_t t, std::uint32_t l, const std::function<void(const Sample&)>& take) {
    const LayerView& view = feed_.view(t, l);
    for (const PageId p : view.filled) history_.reset(p);
    warmth_.begin_layer(view);
    const std::span<const Run> runs = reader_.read(view);
    for (const Run& run : runs) {
      history_.add(run);
      warmth_.add(run, history_);
    }
    if (t < options_.warmup) return;
    for (const GroupView& g : view.groups) {
      if (rng_.uniform() >= options_.share) continue;
      make(g, view, runs);
      take(sample_);
    }
  }

  void make(const GroupView& g, const LayerView& view, std::span<const Run> runs) {
    for (std::uint32_t k = 0; k < kTrainedSteps; ++k)
      feed_.reads(view.step + k + 1, view.layer, g.kv_head, later_[k]);
    std::size_t n = 0;
    for (const Run& run : runs) {
      if (run.group != &g) continue;
      if (n == sample_.blocks.size()) sample_.blocks.emplace_back();
      Block& b = sample_.blocks[n++];
      b.pages = run.length;
      predictors::make_features(run, history_, warmth_, predictors::kFeatures, b.features);
      for (std::uint32_t i = 0; i < run.length; ++i) {
        const std::size_t at = run.position + i;
        b.numbers[i] = at < numbers_.size() ? numbers_[at] : std::uint8_t{0};
        b.weight[i] = b.numbers[i] != 0 ? static_cast<float>(options_.number_weight) : 1.0F;
        for (std::uint32_t k = 0; k < kTrainedSteps; ++k)
          b.read[k][i] = static_cast<float>(later_[k][at]);
      }
      for (std::uint32_t i = run.length; i < Run::kLength; ++i) b.weight[i] = 0;
    }
    sample_.blocks.resize(n);
  }

  runtime::LayerFeed feed_;
  SampleOptions options_;
  Rng rng_;
  std::vector<std::uint8_t> numbers_;
  History history_;
  Warmth warmth_;
  LayerReader reader_;
  std::array<std::vector<std::uint8_t>, kTrainedSteps> later_;
  Sample sample_;
};

}  // namespace

void for_each_sample(const runtime::TraceSelection& selection, const SampleOptions& options,
                     const std::function<void(const Sample&)>& take) {
  Player(selection, options).play(take);
}

}  // namespace lehr::train
