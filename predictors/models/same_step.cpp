// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "predictors/models/within_step.hpp"

namespace lehr::predictors {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"forget", "weight of what was learnt after a step", 0.99, 0.5, 1},
    ParameterInfo{"fade", "weight of a layer's surprise one layer on", 0.35, 0, 1},
    ParameterInfo{"base", "1: net is corrected, or table without weights; 0: table", 1, 0, 1},
};

}  // namespace

const PredictorDescriptor& same_step_descriptor() {
  static const PredictorDescriptor descriptor{
      "same-step",
      "net, corrected by the layers already done in the step",
      kParameters,
      {.within_step = true},
      [](const Parameters& p) -> std::unique_ptr<Predictor> {
        auto table = make_predictor("table", {});
        if (p.at("base") == 0) {
          return std::make_unique<SameStep>(std::move(*table), nullptr, p.at("forget"),
                                            p.at("fade"));
        }
        auto net = make_predictor("net", {});
        return std::make_unique<SameStep>(std::move(*net), std::move(*table), p.at("forget"),
                                          p.at("fade"));
      },
  };
  return descriptor;
}

}  // namespace lehr::predictors
