// SPDX-License-Identifier: Apache-2.0
#include "placement/model.hpp"

#include <algorithm>
#include <cmath>

namespace lehr::placement {

LinkId Platform::link(TierId from, TierId to) const {
  for (std::size_t i = 0; i < links.size(); ++i) {
    if (links[i].from == from && links[i].to == to) return static_cast<LinkId>(i);
  }
  return kNoLink;
}

std::optional<TierId> Platform::tier(std::string_view tier_name) const {
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    if (tiers[i].name == tier_name) return static_cast<TierId>(i);
  }
  return std::nullopt;
}

namespace {

Status validate_curve(const BandwidthCurve& curve, const std::string& what) {
  if (curve.empty()) return invalid(what + ": no bandwidth given");
  for (const double v : curve.values()) {
    if (!(v > 0) || !std::isfinite(v)) {
      return invalid(what + ": bandwidth " + std::to_string(v) + " is not a positive number");
    }
  }
  return {};
}

}  // namespace

Status Platform::validate() const {
  const std::string where = "profile " + name;
  if (tiers.size() < 2 || tiers.size() > kMaxTiers) {
    return invalid(where + ": expected 2 to " + std::to_string(kMaxTiers) + " tiers, found " +
                   std::to_string(tiers.size()));
  }
  if (links.size() > kMaxLinks) return invalid(where + ": too many links");
  if (tiers[kHbm].name != "hbm") return invalid(where + ": the first tier must be hbm");
  LEHR_TRY(validate_curve(hbm, where + ", hbm"));
  for (const Link& l : links) {
    if (l.from >= tiers.size() || l.to >= tiers.size() || l.from == l.to) {
      return invalid(where + ", link " + l.name + ": joins no two tiers");
    }
    if (!(l.latency >= 0) || !std::isfinite(l.latency)) {
      return invalid(where + ", link " + l.name + ": latency is not a time");
    }
    LEHR_TRY(validate_curve(l.curve, where + ", link " + l.name));
  }
  for (const SharedMedium& s : shared) {
    if (s.first >= links.size() || s.second >= links.size() || !(s.bytes_per_second > 0)) {
      return invalid(where + ": a shared medium names no two links or no bandwidth");
    }
  }
  if (home == kHbm || home >= tiers.size()) return invalid(where + ": no home tier");
  if (link(home, kHbm) == kNoLink || link(kHbm, home) == kNoLink) {
    return invalid(where + ": the home tier has no links to and from hbm");
  }
  if (!tiers[home].directly_readable) {
    return invalid(where + ": the home tier is not directly readable");
  }
  if (!(flops > 0) || !std::isfinite(flops)) return invalid(where + ": flops must be positive");
  if (!(control_per_layer >= 0)) return invalid(where + ": control time must not be negative");
  return {};
}

Seconds link_time(const Link& link, const LinkLoad& load) {
  if (load.bytes == 0) return 0;
  const double count = std::max<std::uint32_t>(load.count, 1);
  const double bytes = static_cast<double>(load.bytes);
  return link.latency + bytes / link.curve.at(bytes / count, count);
}

Bytes link_bytes(const Link& link, Seconds window, Bytes size) {
  const double usable = window - link.latency;
  if (usable <= 0 || size == 0) return 0;
  // B depends on the count it allows: two rounds settle it well enough for a budget.
  double bytes = usable * link.curve.best_for_size(static_cast<double>(size));
  for (int round = 0; round < 2; ++round) {
    const double count = std::max(1.0, bytes / static_cast<double>(size));
    bytes = usable * link.curve.at(static_cast<double>(size), count);
  }
  return static_cast<Bytes>(bytes);
}

LayerTime layer_time(const Platform& platform, const LayerLoad& load) {
  LayerTime t;
  t.compute = load.flops / platform.flops;
  t.hbm =
      static_cast<double>(load.hbm_bytes) / platform.hbm.at(static_cast<double>(load.hbm_bytes), 1);
  t.control = platform.control_per_layer;
  for (std::size_t i = 0; i < platform.links.size(); ++i) {
    t.link[i] = link_time(platform.links[i], load.link[i]);
    t.links = std::max(t.links, t.link[i]);
    t.stall = std::max(t.stall, link_time(platform.links[i], load.stall[i]));
  }
  for (const SharedMedium& s : platform.shared) {
    const double both = static_cast<double>(load.link[s.first].bytes + load.link[s.second].bytes);
    t.links = std::max(t.links, both / s.bytes_per_second);
  }
  return t;
}

}  // namespace lehr::placement
