// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/curve.hpp"
#include "kernels/base/ids.hpp"
#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"

namespace lehr::placement {

inline constexpr std::size_t kMaxLinks = 16;
inline constexpr LinkId kNoLink = 0xFF;

/// A memory that pages can live in.
struct Tier {
  std::string name;
  Bytes capacity = 0;
  bool directly_readable = false;  ///< attention can read it in place
};

/// What a transfer from one tier to another crosses.
struct Link {
  std::string name;
  TierId from = 0;
  TierId to = 0;
  BandwidthCurve curve;
  Seconds latency = 0;
};

/// Two links that share a medium: together they move at most this many bytes/s.
struct SharedMedium {
  LinkId first = kNoLink;
  LinkId second = kNoLink;
  double bytes_per_second = 0;
};

/// A machine as placement sees it (DESIGN §2). Tier 0 is HBM; `home` is the tier that every filled
/// page is written back to once.
struct Platform {
  std::string name;
  std::vector<Tier> tiers;
  std::vector<Link> links;
  std::vector<SharedMedium> shared;
  BandwidthCurve hbm;             ///< bytes/s of HBM, read or written
  double flops = 0;               ///< of attention arithmetic, per second
  Seconds control_per_layer = 0;  ///< launch and table work that nothing hides
  TierId home = 1;

  LinkId link(TierId from, TierId to) const;
  std::optional<TierId> tier(std::string_view tier_name) const;
  /// Consistent and usable: tiers and links in range, positive finite bandwidths, HBM first, a home
  /// with links to and from HBM.
  Status validate() const;
};

struct LinkLoad {
  Bytes bytes = 0;
  std::uint32_t count = 0;

  void add(Bytes size, std::uint32_t transfers = 1) {
    bytes += size * transfers;
    count += transfers;
  }
};

/// What one layer of one step moves.
struct LayerLoad {
  Bytes hbm_bytes = 0;  ///< read or written in HBM, weights included
  double flops = 0;
  std::array<LinkLoad, kMaxLinks> link{};   ///< runs beside the layer
  std::array<LinkLoad, kMaxLinks> stall{};  ///< must end before the layer can start
};

struct LayerTime {
  Seconds compute = 0;
  Seconds hbm = 0;
  Seconds control = 0;
  Seconds stall = 0;
  std::array<Seconds, kMaxLinks> link{};
  Seconds links = 0;  ///< the slowest link or shared medium

  Seconds under_compute() const { return compute > hbm ? compute : hbm; }
  Seconds total() const {
    return (under_compute() > links ? under_compute() : links) + control + stall;
  }
  /// Transfer time that the step had to wait for.
  Seconds exposed() const {
    return (links > under_compute() ? links - under_compute() : 0.0) + stall;
  }
};

/// T(t,l) of DESIGN §2: max(compute, HBM, each link) + control + stall.
LayerTime layer_time(const Platform& platform, const LayerLoad& load);

/// Time of `load` on one link: latency + bytes / B(mean size, count); 0 if empty.
Seconds link_time(const Link& link, const LinkLoad& load);

/// Bytes that the link can carry within `window`, in transfers of `size` bytes.
Bytes link_bytes(const Link& link, Seconds window, Bytes size);

}  // namespace lehr::placement
