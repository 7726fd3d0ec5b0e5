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

namespace {

/// A link at the points of `now` that lie within the other's grid, and at best.
void compare_links(const placement::Link& then, const placement::Link& now,
                   std::vector<Drift>& drifts) {
  const auto within = [](const std::vector<double>& axis, double x) {
    return x >= axis.front() && x <= axis.back();
  };
  for (const double size : now.curve.sizes()) {
    if (!within(then.curve.sizes(), size)) continue;
    for (const double count : now.curve.counts()) {
      if (!within(then.curve.counts(), count)) continue;
      // As bytes over the whole time: where latency is most of it, bandwidth alone is noise.
      const auto rate = [&](const placement::Link& l) {
        return size * count / (l.latency + size * count / l.curve.at(size, count));
      };
      drifts.push_back({now.name + " " + std::to_string(std::llround(size)) + " x " +
                            std::to_string(std::llround(count)),
                        rate(then), rate(now)});
    }
  }
  drifts.push_back({now.name + " at best", then.curve.peak(), now.curve.peak()});
}

}  // namespace

std::vector<Drift> compare_profiles(const placement::Platform& then, const ProbeResult& result) {
  const placement::Platform& now = result.profile.platform;
  const auto measured = [&](const std::string& name) {
    return std::find(result.measured.begin(), result.measured.end(), name) != result.measured.end();
  };
  std::vector<Drift> drifts;
  if (measured("hbm")) drifts.push_back({"hbm", then.hbm.peak(), now.hbm.peak()});
  for (const placement::Link& link : now.links) {
    const auto old = std::find_if(then.links.begin(), then.links.end(),
                                  [&](const auto& l) { return l.name == link.name; });
    if (old != then.links.end() && measured(link.name)) compare_links(*old, link, drifts);
  }
  for (const placement::SharedMedium& medium : now.shared) {
    const std::string &first = now.links[medium.first].name,
                      &second = now.links[medium.second].name;
    const auto old =
        std::find_if(then.shared.begin(), then.shared.end(), [&](const placement::SharedMedium& m) {
          return then.links[m.first].name == first && then.links[m.second].name == second;
        });
    if (old == then.shared.end() || !measured(first)) continue;
    drifts.push_back(
        {"both of " + first + " and " + second, old->bytes_per_second, medium.bytes_per_second});
  }
  return drifts;
}

}  // namespace lehr::tools
