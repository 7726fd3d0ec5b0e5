// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/registry.hpp"

namespace lehr::tools {

/// Policies by name, each with its parameters.
using Policies = std::vector<std::pair<std::string, Parameters>>;

struct RequestArguments {
  std::vector<std::string> cache = {"1%", "5%",
                                    "20%"};  ///< shares of the distinct blocks, or "N blocks"
  std::string evict = "any";
  std::uint32_t block_tokens = 512;  ///< where the trace does not say
};

/// lehr compare on a request trace: hit ratios of the block policies at each cache size. Policies
/// that hold no blocks are passed over if `all_policies` were meant. Leaves the command by fail()
/// where it cannot.
void compare_requests(const std::string& trace, const RequestArguments& arguments,
                      const Policies& policies, bool all_policies, const std::string& json);

}  // namespace lehr::tools
