// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "placement/policies/table.hpp"
#include "placement/shares.hpp"

namespace lehr::placement {

/// Table's parameters, and those of SharedTable.
std::vector<ParameterInfo> shared_table_parameters();

/// Table, in which layers and sequences get shares of HBM: once a step somebody finds thresholds of
/// the odds, one for each layer of each sequence, and odds are weighed by them.
class SharedTable : public Table {
 protected:
  explicit SharedTable(const Parameters& p)
      : Table(p), follow_(p.at("follow")), firm_(p.at("firm")) {}

  /// False: it is plain Table.
  virtual bool wants_shares() const { return true; }
  /// Changes `shares` from what was found last (at first nothing is held). False: leave all as it
  /// is.
  virtual bool find_shares(const LayerView& view, std::span<const OddsHistogram> groups,
                           std::vector<Share>& shares) = 0;
  /// After the histograms of a layer were counted afresh.
  virtual void note_counted(const LayerView& /*view*/) {}
  /// What was found last; the sequence is one that some layer has shown.
  const Share& share_of(std::uint32_t layer, std::uint32_t sequence) const {
    return shares_[std::size_t{layer} * weight_stride_ + sequence];
  }

 private:
  void note_layer(const LayerView& view) final;
  void plan_step(const LayerView& view) final;
  void widen(std::uint32_t sequences);

  double follow_;
  double firm_;
  std::vector<std::uint8_t> counted_;  ///< by layer: its histograms are filled
  std::vector<OddsHistogram> groups_;  ///< by layer and sequence
  std::vector<Share> shares_;          ///< the same
};

}  // namespace lehr::placement
