// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "runtime/predictor_weights.hpp"
#include "tests/fuzz/fuzz_input.hpp"

/// Whatever a weights file holds, each predictor refuses it or says odds that are numbers.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lehr;
  const fuzz::AlignedInput input(data, size);
  const auto weights = runtime::PredictorWeights::parse(input.bytes(), "fuzz");
  if (!weights) {
    fuzz::require(!weights.error().what.empty(), "an error without a text");
    return 0;
  }
  for (const auto* d : predictors::models()) {
    if (!d->traits.needs_weights) continue;
    auto made = predictors::make_predictor(d->name, {});
    fuzz::require(made.has_value(), "a predictor cannot be made");
    predictors::PredictorContext context;
    context.layers = context.kv_heads = 1;
    context.weights = (*weights).tensors();
    if (!(*made)->begin(context)) continue;
    const std::vector<PageId> pages{0, 1, 2};
    const std::vector<std::uint32_t> position{0, 1, 2};
    const std::vector<std::uint16_t> zero(3, 0);
    LayerView view;
    view.layers = 1;
    view.pages = {{}, {}, position, zero, zero};
    GroupView group;
    group.blocks = pages;
    view.groups = {&group, 1};
    (*made)->add_pages(pages, view.pages);
    (*made)->observe(view);
    for (std::size_t p = 0; p < 2; ++p) {
      const float odds = (*made)->odds(1)[p];
      fuzz::require(odds >= 0 && odds <= 1, "odds are no probability");
    }
  }
  return 0;
}
