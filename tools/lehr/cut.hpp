// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/formats/attention_trace.hpp"

namespace lehr::tools {

/// Which part of a trace to keep.
struct CutSpec {
  std::uint32_t first_step = 0;                   ///< steps before it become part of the prompt
  std::optional<std::uint32_t> steps = {};        ///< all from first_step on when not set
  std::vector<std::uint32_t> layer_ids = {};      ///< all when empty
  std::optional<std::uint32_t> prompt_tail = {};  ///< prompt tokens to keep at least, from the end
};

/// A trace that owns its arrays; `parts` points into them. Movable.
struct OwnedTrace {
  formats::AttentionParts parts;
  std::vector<MassCode> mass;
  std::vector<MassCode> peak;
  std::vector<std::int32_t> tokens;
  std::vector<std::uint16_t> q;
  std::vector<std::uint16_t> k;
  std::vector<std::uint16_t> v;
};

/// A smaller valid trace. `prompt_tail` drops whole pages, and the mass that was on them. Tensors
/// that Lehr does not know are left out, since their axes are unknown.
Result<OwnedTrace> cut_trace(const formats::AttentionTrace& trace, const CutSpec& spec);

/// "0,2,5-9" as ascending numbers; refuses what is not such a list.
Result<std::vector<std::uint32_t>> parse_layer_list(std::string_view text);

/// The first `requests` lines of a request trace, as they are.
Result<std::string> cut_requests(std::string_view text, std::string_view name,
                                 std::uint64_t requests);

}  // namespace lehr::tools
