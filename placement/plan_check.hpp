// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/base/exchange.hpp"
#include "kernels/base/result.hpp"

namespace lehr::placement {

/// Whether a plan keeps the contract of Policy::decide for this view. Linear in the plan; used in
/// tests and, from check level 2, on every layer.
Status check_plan(const LayerView& view, const LayerPlan& plan);

}  // namespace lehr::placement
