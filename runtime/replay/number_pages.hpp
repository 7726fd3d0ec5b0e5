// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/formats/attention_trace.hpp"

namespace lehr::runtime {

/// By page of a sequence: 1 if one of its tokens is a digit. Known for the vocabulary of the
/// recorded models (SmolLM2: ids 32 to 41 are "0" to "9", single digits always); empty where the
/// trace has no tokens or is of another model.
inline std::vector<std::uint8_t> number_pages(const formats::AttentionTrace& trace) {
  const auto tokens = trace.parts().tokens;
  if (tokens.empty() || trace.meta().model.find("SmolLM2") == std::string::npos) return {};
  std::vector<std::uint8_t> out(trace.pages(), 0);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 32 && tokens[i] <= 41) out[i / trace.meta().page_tokens] = 1;
  }
  return out;
}

}  // namespace lehr::runtime
