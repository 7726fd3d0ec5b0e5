// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/probe.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <span>

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
  double seen = 0;
  for (std::size_t s = 0; s < grid.sizes.size(); ++s) {
    for (std::size_t c = 0; c < columns; ++c) {
      const double bytes = grid.sizes[s] * grid.counts[c];
      seen = std::max(seen, bytes / grid.seconds[s * columns + c]);
      // Never less than a quarter: noise in the latency must not make bandwidth out of nothing.
      const double all = grid.seconds[s * columns + c];
      values.push_back(bytes / std::max(all - latency, 0.25 * all));
    }
  }
  // Nor more of it than any whole transfer reached.
  for (double& value : values) value = std::min(value, seen);
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

bool within(const std::vector<double>& axis, double x) {
  return x >= axis.front() && x <= axis.back();
}

std::string point_name(const std::string& link, double size, double count) {
  return link + " " + std::to_string(std::llround(size)) + " x " +
         std::to_string(std::llround(count));
}

/// A link by whichever of its movers is the fastest at each point, called from the host: scattered
/// pages, and pages in runs. False when the other profile knows no movers of it.
bool compare_movers(const std::string& link, std::span<const transfer::MoverCurve> then,
                    std::span<const transfer::MoverCurve> now, std::vector<Drift>& drifts) {
  const auto of_link = [&](std::span<const transfer::MoverCurve> all) {
    std::vector<transfer::MoverCurve> curves;
    for (const transfer::MoverCurve& m : all) {
      if (m.link == link) curves.push_back(m);
    }
    return curves;
  };
  const auto old = of_link(then), fresh = of_link(now);
  if (old.empty() || fresh.empty()) return false;
  std::vector<double> runs;
  for (const transfer::MoverCurve& m : fresh) {
    if (std::find(runs.begin(), runs.end(), m.run_pages) == runs.end()) runs.push_back(m.run_pages);
  }
  const auto rate = [](const std::vector<transfer::MoverCurve>& curves,
                       const transfer::BatchShape& batch) {
    const std::size_t best = transfer::fastest(curves, batch);
    if (best == curves.size()) return 0.0;
    return batch.page_bytes * batch.pages / curves[best].time(batch.page_bytes, batch.pages);
  };
  for (const double run : runs) {
    for (const double size : fresh.front().curve.sizes()) {
      for (const double count : fresh.front().curve.counts()) {
        if (count < run || !within(old.front().curve.sizes(), size) ||
            !within(old.front().curve.counts(), count))
          continue;
        const std::string runs_of =
            run > 1 ? " in runs of " + std::to_string(std::llround(run)) : std::string();
        drifts.push_back({point_name(link, size, count) + runs_of, rate(old, {size, count, run}),
                          rate(fresh, {size, count, run})});
      }
    }
  }
  return true;
}

/// A link at the points of `now` that lie within the other's grid.
void compare_links(const placement::Link& then, const placement::Link& now,
                   std::vector<Drift>& drifts) {
  for (const double size : now.curve.sizes()) {
    if (!within(then.curve.sizes(), size)) continue;
    for (const double count : now.curve.counts()) {
      if (!within(then.curve.counts(), count)) continue;
      // As bytes over the whole time: where latency is most of it, bandwidth alone is noise.
      const auto rate = [&](const placement::Link& l) {
        return size * count / (l.latency + size * count / l.curve.at(size, count));
      };
      drifts.push_back({point_name(now.name, size, count), rate(then), rate(now)});
    }
  }
}

}  // namespace

std::vector<Drift> compare_profiles(const config::Profile& profile, const ProbeResult& result) {
  const placement::Platform& then = profile.platform;
  const placement::Platform& now = result.profile.platform;
  const auto measured = [&](const std::string& name) {
    return std::find(result.measured.begin(), result.measured.end(), name) != result.measured.end();
  };
  std::vector<Drift> drifts;
  if (measured("hbm")) drifts.push_back({"hbm", then.hbm.peak(), now.hbm.peak()});
  for (const placement::Link& link : now.links) {
    const auto old = std::find_if(then.links.begin(), then.links.end(),
                                  [&](const auto& l) { return l.name == link.name; });
    if (old == then.links.end() || !measured(link.name)) continue;
    if (!compare_movers(link.name, profile.movers, result.profile.movers, drifts))
      compare_links(*old, link, drifts);
    drifts.push_back({link.name + " at best", old->curve.peak(), link.curve.peak()});
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
