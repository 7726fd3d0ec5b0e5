// SPDX-License-Identifier: Apache-2.0
// Who takes part in `lehr experiment ablation`.
#include <algorithm>
#include <string_view>

#include <fmt/core.h>

#include "placement/policy.hpp"
#include "tools/lehr/ablation.hpp"

namespace lehr::tools::ablation {

namespace {

Role role_of(const placement::PolicyDescriptor& d) {
  const std::string_view name = d.name;
  const bool ours = name == "table" || name == "sa" || name == "sa-adaptive" || name == "knapsack";
  return d.traits.needs_future ? Role::kFullKnowledge : ours ? Role::kOurs : Role::kRival;
}

Contestant variant(std::string base, const std::string& change, Parameters parameters) {
  Contestant c;
  c.label = fmt::format("{} {}", base, change);
  c.policy = base;
  c.parameters = std::move(parameters);
  c.role = Role::kVariant;
  c.narrow = true;
  c.base = std::move(base);
  return c;
}

/// Of interest besides the features that must be shown: fewer cells.
Contestant aside(Contestant c) {
  c.once = true;
  return c;
}

}  // namespace

std::vector<Contestant> contestants() {
  std::vector<Contestant> out;
  for (const placement::PolicyDescriptor* d : placement::policies()) {
    if (d->traits.unlimited) continue;
    if (d->name == std::string_view("hit-density")) continue;  // made for request traces, and slow
    Contestant c;
    c.policy = d->name;
    c.role = role_of(*d);
    c.label =
        c.role == Role::kFullKnowledge ? fmt::format("{} (full knowledge)", d->name) : d->name;
    c.seeded = c.policy == "sa" || c.policy == "sa-adaptive";
    c.blind = d->make == nullptr;    // an order alone sees neither platform nor layers
    if (d->traits.needs_instance) {  // anneals on the whole replay: few evaluations, few cells
      c.parameters = {{"evaluations", 6}};
      c.narrow = true;
    }
    out.push_back(std::move(c));
  }
  const auto add = [&](Contestant c) { out.push_back(std::move(c)); };
  add(variant("table", "without fill on read", {{"fill", 0}}));
  Contestant again = variant("table", "without write-back once", {});
  again.write_back_once = false;
  add(std::move(again));
  add(variant("table", "without prefetch", {{"prefetch", 1}}));
  add(aside(variant("table", "without bursts that fetch ahead", {{"ahead", 0}})));
  Contestant mass = variant("table", "without importance (mass)", {});
  mass.predictor = {{"mass", 0}};
  add(std::move(mass));
  Contestant company = variant("table", "without company (neighbours, layers)", {});
  company.predictor = {{"company", 0}};
  add(aside(std::move(company)));
  add(aside(variant("table", "without order of ticks", {{"order", 0}})));
  add(variant("table", "without budget of promotions", {{"budget", 0}}));
  add(aside(variant("table", "without guards", {{"guards", 0}})));
  add(variant("lfu-importance", "without importance",
              {{"frequency-weight", 1}, {"importance-weight", 0}}));
  // The shipped policy keeps an exact order; this one decides by the threshold of a histogram.
  Contestant threshold = variant("histogram", "without its threshold", {{"threshold", 0}});
  threshold.blind = true;
  add(std::move(threshold));
  add(variant("sa", "without annealing", {{"box", 0}}));
  add(aside(variant("sa", "with the time of a whole step", {{"box", 1}})));
  return out;
}

std::size_t find(const std::vector<Contestant>& all, const std::string& label) {
  const auto it =
      std::find_if(all.begin(), all.end(), [&](const Contestant& c) { return c.label == label; });
  return static_cast<std::size_t>(it - all.begin());
}

}  // namespace lehr::tools::ablation
