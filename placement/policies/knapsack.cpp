// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "placement/greedy_shares.hpp"
#include "placement/policies/shared_table.hpp"

namespace lehr::placement {

namespace {

std::span<const ParameterInfo> parameters() {
  static const std::vector<ParameterInfo> all = shared_table_parameters();
  return all;
}

/// The shares of HBM are found once a step by the greedy of the multiple-choice knapsack, anew each
/// time: what `sa` anneals, without annealing. Takes as long as it takes.
class Knapsack final : public SharedTable {
 public:
  explicit Knapsack(const Parameters& p) : SharedTable(p) {}

 private:
  bool find_shares(const LayerView& view, std::span<const OddsHistogram> groups,
                   std::vector<Share>& shares) override {
    return greedy_shares(groups, cost_[0], layers_, view.capacity, shares).has_value();
  }
};

}  // namespace

const PolicyDescriptor& knapsack_descriptor() {
  static const PolicyDescriptor descriptor{
      "knapsack",
      "table, with the shares of HBM that layers and sequences get by a greedy knapsack",
      parameters(),
      {.needs_odds = 1},
      [](const Parameters& p) -> std::unique_ptr<Policy> { return std::make_unique<Knapsack>(p); },
      nullptr,
  };
  return descriptor;
}

}  // namespace lehr::placement
