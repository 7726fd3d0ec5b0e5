// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lehr::tools {

/// The entries of a list of names with parameters, given as several arguments, with commas, or
/// both: "lru,table:a=1,b=2" is "lru" and "table:a=1,b=2", since a KEY=VALUE belongs to the name
/// before it. What is no name at all is left for the look-up to refuse.
std::vector<std::string> split_names(const std::vector<std::string>& arguments);

}  // namespace lehr::tools
