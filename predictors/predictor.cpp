// SPDX-License-Identifier: Apache-2.0
#include "predictors/predictor.hpp"

#include <string>

namespace lehr::predictors {

Status check_context(const PredictorContext& context) {
  if (context.layers == 0 || context.kv_heads == 0)
    return invalid("predictor: a model has at least one layer and one KV head");
  if (context.horizon == 0 || context.horizon > kMaxHorizon) {
    return invalid("predictor: horizon " + std::to_string(context.horizon) + ", expected 1 to " +
                       std::to_string(kMaxHorizon),
                   Reason::kOutOfRange);
  }
  return {};
}

Result<const PredictorDescriptor*> find_predictor(std::string_view name) {
  std::string known;
  for (const PredictorDescriptor* descriptor : models()) {
    if (name == descriptor->name) return descriptor;
    known += known.empty() ? "" : ", ";
    known += descriptor->name;
  }
  return not_found("no predictor '" + std::string(name) + "'; known: " + known);
}

Result<std::unique_ptr<Predictor>> make_predictor(std::string_view name,
                                                  const Parameters& parameters) {
  LEHR_ASSIGN(const PredictorDescriptor* descriptor, find_predictor(name));
  LEHR_ASSIGN(const Parameters complete,
              resolve_parameters(descriptor->name, descriptor->parameters, parameters));
  return descriptor->make(complete);
}

}  // namespace lehr::predictors
