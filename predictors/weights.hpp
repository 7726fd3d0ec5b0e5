// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "kernels/base/result.hpp"
#include "predictors/predictor.hpp"

namespace lehr::predictors {

/// Steps ahead that trained models speak of.
inline constexpr std::uint32_t kTrainedSteps = 3;

/// The tensor of that name. Refused: absent, another shape, a value that is no finite number or
/// larger than 1e4 (no trained weight is; sums of such stay finite).
Result<std::span<const float>> find_weights(std::span<const Tensor> weights, std::string_view name,
                                            std::initializer_list<std::uint32_t> shape);

}  // namespace lehr::predictors
