// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/base/result.hpp"

namespace lehr::runtime::cuda {

/// Bytes a second, as reached in the run that asks: what steps are shares of.
struct DecodeCeilings {
  double hbm = 0;       ///< read by kernels, far more than L2 holds
  double in_place = 0;  ///< pinned host memory read by kernels
  double up = 0;        ///< pinned host memory to HBM by a copy engine
};

/// Takes 3 GiB of HBM and 256 MiB of pinned memory for as long as it runs, about a tenth of a
/// second.
Result<DecodeCeilings> measure_ceilings(std::int32_t device);

}  // namespace lehr::runtime::cuda
