// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/probe.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>

#include "transfer/device.hpp"

namespace lehr::tools {
namespace {

std::string today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[16] = {};
  std::strftime(text, sizeof text, "%Y-%m-%d", &utc);
  return text;
}

/// The profile to start from: the one asked for, else the shipped one of this GPU.
Result<config::Profile> base_profile(const ProbeOptions& options, ProbeResult& result) {
  if (!options.base.empty()) return config::read_profile(options.base);
  const std::vector<transfer::DeviceInfo> devices = transfer::devices();
  if (options.devices && !devices.empty()) {
    for (const config::ProfileInfo& info : config::shipped_profiles()) {
      auto profile = config::parse_profile(info.text, info.name);
      if (profile && profile->source["gpu"] == devices[0].name) return profile;
    }
    result.notices.push_back("no shipped profile knows " + devices[0].name +
                             ": its arithmetic rate is that of h200-pcie5, not measured");
  }
  return config::read_profile("h200-pcie5");
}

}  // namespace

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::pair<BandwidthCurve, Seconds> curve_of(const TimedGrid& grid) {
  const std::size_t columns = grid.counts.size();
  // A single smallest transfer is all latency; what it takes beside that is the link's at best.
  const std::size_t last = grid.seconds.size() - 1;
  const double peak = grid.sizes.back() * grid.counts.back() / grid.seconds[last];
  const Seconds latency =
      std::max(0.0, grid.seconds.front() - grid.sizes.front() * grid.counts.front() / peak);
  std::vector<double> values;
  for (std::size_t s = 0; s < grid.sizes.size(); ++s) {
    for (std::size_t c = 0; c < columns; ++c) {
      const double bytes = grid.sizes[s] * grid.counts[c];
      // Never less than a quarter: noise in the latency must not make bandwidth out of nothing.
      const double all = grid.seconds[s * columns + c];
      values.push_back(bytes / std::max(all - latency, 0.25 * all));
    }
  }
  for (double& value : values) value = std::min(value, 1.05 * peak);
  return {BandwidthCurve(grid.sizes, grid.counts, std::move(values)), latency};
}

TierId put_tier(placement::Platform& platform, const placement::Tier& tier) {
  if (const auto known = platform.tier(tier.name)) {
    platform.tiers[*known] = tier;
    return *known;
  }
  platform.tiers.push_back(tier);
  return static_cast<TierId>(platform.tiers.size() - 1);
}

void put_link(ProbeResult& result, placement::Link link) {
  placement::Platform& platform = result.profile.platform;
  const LinkId known = platform.link(link.from, link.to);
  if (known == placement::kNoLink) {
    result.measured.push_back(link.name);
    platform.links.push_back(std::move(link));
    return;
  }
  link.name = platform.links[known].name;
  result.measured.push_back(link.name);
  platform.links[known] = std::move(link);
}

Result<ProbeResult> run_probe(const ProbeOptions& options, const ProbeProgress& progress) {
  ProbeResult result;
  LEHR_ASSIGN(result.profile, base_profile(options, result));
  result.profile.source["date"] = today();
  result.profile.source["method"] = "lehr probe: medians, scattered pages, through the movers";
  if (options.devices && !transfer::devices().empty()) {
    LEHR_TRY(probe_devices(result, progress));
  } else {
    result.notices.push_back("no GPU was measured: its figures are those of " +
                             result.profile.platform.name);
    result.profile.source["gpu_figures"] = "not measured here";
  }
  LEHR_TRY(probe_host(result, progress));
  if (options.nvme.empty()) {
    result.notices.push_back("no drive was measured (--nvme DIR): its figures are those of " +
                             result.profile.platform.name);
  } else {
    LEHR_TRY(probe_nvme(options.nvme, result, progress));
  }
  progress("done", 1);
  LEHR_TRY(result.profile.platform.validate());
  return result;
}

std::vector<Drift> compare_profiles(const placement::Platform& then, const ProbeResult& result) {
  const placement::Platform& now = result.profile.platform;
  const auto measured = [&](const std::string& name) {
    return std::find(result.measured.begin(), result.measured.end(), name) != result.measured.end();
  };
  std::vector<Drift> drifts;
  if (measured("hbm")) drifts.push_back({"hbm", then.hbm.peak(), now.hbm.peak()});
  for (const placement::Link& link : now.links) {
    if (!measured(link.name)) continue;
    for (const placement::Link& old : then.links) {
      if (old.name != link.name) continue;
      for (const double size : link.curve.sizes()) {
        for (const double count : link.curve.counts()) {
          // Past the other's grid its curve is only its last point.
          if (size < old.curve.sizes().front() || size > old.curve.sizes().back()) continue;
          if (count < old.curve.counts().front() || count > old.curve.counts().back()) continue;
          // As bytes over the whole time: where latency is most of it, bandwidth alone is noise.
          const auto rate = [&](const placement::Link& l) {
            return size * count / (l.latency + size * count / l.curve.at(size, count));
          };
          drifts.push_back({link.name + " " + std::to_string(std::llround(size)) + " x " +
                                std::to_string(std::llround(count)),
                            rate(old), rate(link)});
        }
      }
      drifts.push_back({link.name + " at best", old.curve.peak(), link.curve.peak()});
    }
  }
  for (const placement::SharedMedium& medium : now.shared) {
    if (!measured(now.links[medium.first].name)) continue;
    for (const placement::SharedMedium& old : then.shared) {
      if (then.links[old.first].name != now.links[medium.first].name) continue;
      if (then.links[old.second].name != now.links[medium.second].name) continue;
      drifts.push_back(
          {"both of " + now.links[medium.first].name + " and " + now.links[medium.second].name,
           old.bytes_per_second, medium.bytes_per_second});
    }
  }
  return drifts;
}

}  // namespace lehr::tools
