// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/name_list.hpp"

#include <algorithm>

namespace lehr::tools {

std::vector<std::string> split_names(const std::vector<std::string>& arguments) {
  std::vector<std::string> names;
  for (const std::string& argument : arguments) {
    bool parameters = false;  // of the last name, in this argument
    for (std::size_t at = 0; at <= argument.size();) {
      const std::size_t end = std::min(argument.find(',', at), argument.size());
      const std::string part = argument.substr(at, end - at);
      const std::size_t colon = part.find(':');
      if (parameters && colon == std::string::npos && part.find('=') != std::string::npos) {
        names.back() += "," + part;
      } else {
        names.push_back(part);
        parameters = colon != std::string::npos;
      }
      at = end + 1;
    }
  }
  return names;
}

}  // namespace lehr::tools
