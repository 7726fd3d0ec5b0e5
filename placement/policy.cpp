// SPDX-License-Identifier: Apache-2.0
#include "placement/policy.hpp"

#include <string>

namespace lehr::placement {

Result<const PolicyDescriptor*> find_policy(std::string_view name) {
  std::string known;
  for (const PolicyDescriptor* descriptor : policies()) {
    if (name == descriptor->name) return descriptor;
    known += known.empty() ? "" : ", ";
    known += descriptor->name;
  }
  return not_found("no policy '" + std::string(name) + "'; known: " + known);
}

Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const Parameters& parameters) {
  LEHR_ASSIGN(const PolicyDescriptor* descriptor, find_policy(name));
  LEHR_ASSIGN(const Parameters complete,
              resolve_parameters(descriptor->name, descriptor->parameters, parameters));
  if (descriptor->make != nullptr) return descriptor->make(complete);
  return fill_on_read(descriptor->make_replacement(complete));
}

}  // namespace lehr::placement
