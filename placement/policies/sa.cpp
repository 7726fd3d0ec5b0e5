// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "placement/policies/shared_table.hpp"

namespace lehr::placement {

namespace {

std::span<const ParameterInfo> parameters() {
  static const std::vector<ParameterInfo> all = [] {
    std::vector<ParameterInfo> v = shared_table_parameters();
    v.push_back({"box", "time box, as a share of the predicted step", 0.01, 0, 100});
    v.push_back({"proposal-ns", "what a proposal counts for in it", 30, 1, 10000});
    v.push_back({"proposals", "most proposals a step, whatever the time box", 20000, 0, 1e6});
    return v;
  }();
  return all;
}

/// The shares of HBM are annealed once a step, so that the layers' expected times, taken together,
/// are least. Warm start: the shares of the step before, or one threshold for all, as `table` has
/// it. The time box counts proposals, so that no clock is read and the same seed gives the same
/// plan.
class Annealed final : public SharedTable {
 public:
  explicit Annealed(const Parameters& p)
      : SharedTable(p),
        box_(p.at("box")),
        proposal_(p.at("proposal-ns") * 1e-9),
        most_(static_cast<std::uint64_t>(p.at("proposals"))) {}

 private:
  bool wants_shares() const override { return most_ > 0; }

  bool find_shares(const LayerView& view, std::span<const OddsHistogram> groups,
                   std::vector<Share>& shares) override {
    std::uint64_t proposals = most_;
    const double boxed = box_ * predicted_ / proposal_;
    if (boxed < static_cast<double>(most_)) proposals = static_cast<std::uint64_t>(boxed);
    if (proposals == 0) return false;
    const std::uint64_t seed = context_.seed * 0x9E3779B97F4A7C15ULL + view.step;
    return annealer_.run(groups, cost_[0], layers_, view.capacity, proposals, seed, shares, result_)
        .has_value();
  }

  double box_;
  Seconds proposal_;
  std::uint64_t most_;
  ShareAnnealer annealer_;
  SharesResult result_;
};

}  // namespace

const PolicyDescriptor& sa_descriptor() {
  static const PolicyDescriptor descriptor{
      "sa",
      "table, with the shares of HBM that layers and sequences get annealed once a step",
      parameters(),
      {.needs_odds = 1},
      [](const Parameters& p) -> std::unique_ptr<Policy> { return std::make_unique<Annealed>(p); },
      nullptr,
  };
  return descriptor;
}

}  // namespace lehr::placement
