// SPDX-License-Identifier: Apache-2.0
#include "placement/oracle/ledger.hpp"

#include <algorithm>
#include <numeric>

namespace lehr::placement {

Ledger::Ledger(const Instance& instance)
    : instance_(&instance),
      home_(instance.platform->link(instance.platform->home, kHbm)),
      flat_(instance.platform->hbm.values().size() == 1 ? 1 / instance.platform->hbm.peak() : 0) {
  const Tick ticks = instance.ticks();
  plain_.resize(ticks);
  compute_.resize(ticks);
  hbm_.assign(ticks, 0);
  crossings_.assign(ticks, 0);
  free_.resize(ticks);
  time_.resize(ticks);
  read_.resize(ticks);
  cross_.resize(ticks);
  bring_.resize(ticks);
  for (Tick t = 0; t < ticks; ++t) {
    plain_[t] = instance.transfers_at(t).empty() ? 1 : 0;
    compute_[t] = instance.flops[t] / instance.platform->flops;
    free_[t] = static_cast<int>(instance.capacity - instance.pinned[t]);
    add(t, 0, 0);
  }
}

Seconds Ledger::total(Tick from) const {
  return std::accumulate(time_.begin() + from, time_.end(), Seconds{0});
}

Seconds Ledger::crossing_time(int crossings) {
  const auto n = static_cast<std::size_t>(crossings);
  while (crossing_times_.size() <= n) {
    LayerLoad load;
    load.link[home_].add(instance_->page_bytes, static_cast<std::uint32_t>(crossing_times_.size()));
    crossing_times_.push_back(layer_time(*instance_->platform, load).links);
  }
  return crossing_times_[n];
}

Seconds Ledger::hbm_time(double bytes) const {
  return flat_ > 0 ? bytes * flat_ : bytes / instance_->platform->hbm.at(bytes, 1);
}

Seconds Ledger::time(Tick t, int hbm, int crossings) {
  const auto pages = static_cast<std::uint32_t>(hbm);
  if (plain_[t] == 0) {
    const LayerLoad load = instance_->load(t, pages, static_cast<std::uint32_t>(crossings));
    return layer_time(*instance_->platform, load).total();
  }
  const Bytes bytes = instance_->fixed_hbm[t] + instance_->page_bytes * pages;
  return std::max({compute_[t], hbm_time(static_cast<double>(bytes)), crossing_time(crossings)}) +
         instance_->platform->control_per_layer;
}

void Ledger::add(Tick t, int hbm, int crossings) {
  const int h = hbm_[t] += hbm;
  const int c = crossings_[t] += crossings;
  const Seconds now = time(t, h, c);
  time_[t] = now;
  read_[t] = time(t, h + 1, c) - now;
  cross_[t] = time(t, h, c + 1) - now;
  bring_[t] = time(t, h + 1, c + 1) - now;
}

}  // namespace lehr::placement
