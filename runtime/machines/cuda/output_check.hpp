// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "kernels/made_page.hpp"
#include "kernels/shape.hpp"

namespace lehr::runtime::cuda {

/// Attention of one step in float64 over the contents that pages should have, against what came
/// out. `lists` is the step as it was handed over, with names of pages; `outputs` fp16, [layers]
/// [sequences][q_heads][head_dim]. Looks at no more than `most` groups, evenly chosen. Returns the
/// largest norm of a group's error over the norm of its result; 0 where nothing was to compare.
double output_error(const kernels::StepShape& shape, const kernels::PageSource& source,
                    std::span<const std::byte> lists, std::span<const std::uint16_t> outputs,
                    std::uint32_t most);

}  // namespace lehr::runtime::cuda
