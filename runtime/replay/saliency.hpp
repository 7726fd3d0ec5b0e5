// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "runtime/formats/attention_trace.hpp"

namespace lehr::runtime {

/// Saliency of each page of a recorded sequence, by layer, KV head and page (SequenceInfo): from
/// the norms of its keys and values against those of the prompt, where the trace has them, and
/// whether its tokens hold digits, where it says so. Empty where it has neither.
std::vector<float> saliency_of(const formats::AttentionTrace& trace);

}  // namespace lehr::runtime
