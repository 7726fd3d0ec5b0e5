// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/curve.hpp"
#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"
#include "runtime/config/profile.hpp"

namespace lehr::tools {

struct ProbeOptions {
  std::string nvme;  ///< a folder on the drive to measure; empty: none
  std::string base;  ///< profile whose figures stand where nothing was measured
  bool devices = true;
};

/// One measured figure.
struct ProbeFigure {
  std::string name;
  double value = 0;
  std::string unit;
};

/// What was measured on this machine: a profile, and the figures that a profile has no place for.
struct ProbeResult {
  config::Profile profile;
  std::vector<ProbeFigure> figures;
  std::vector<std::string> measured;  ///< "hbm", and the names of links
  std::vector<std::string> notices;   ///< what could not be measured, and what stands instead
};

/// Called before each part: its name, and the share of the whole that is done.
using ProbeProgress = std::function<void(const std::string& part, double done)>;

Result<ProbeResult> run_probe(const ProbeOptions& options, const ProbeProgress& progress);

// The parts; each adds to `result`.
Status probe_devices(ProbeResult& result, const ProbeProgress& progress);
Status probe_host(ProbeResult& result, const ProbeProgress& progress);
Status probe_nvme(const std::string& folder, ProbeResult& result, const ProbeProgress& progress);

/// A curve from measured times of `count` transfers of `size` bytes: latency is what the smallest
/// single transfer takes, and is not part of the bandwidths.
struct TimedGrid {
  std::vector<double> sizes, counts;
  std::vector<double> seconds;  ///< [size][count]
};
std::pair<BandwidthCurve, Seconds> curve_of(const TimedGrid& grid);

/// A figure of a profile that this machine no longer shows.
struct Drift {
  std::string what;
  double profile = 0, measured = 0;  ///< bytes/s
  double ratio() const { return measured / profile; }
};
/// Compares by name what was measured: HBM, links (at the points of `now` that lie within the
/// other's grid; by the fastest mover of each where both profiles know movers), and media that two
/// of them share.
std::vector<Drift> compare_profiles(const config::Profile& then, const ProbeResult& now);

double median_of(std::vector<double> values);
/// Adds or replaces a tier and the links named; keeps ids of what is there.
TierId put_tier(placement::Platform& platform, const placement::Tier& tier);
void put_link(ProbeResult& result, placement::Link link);

}  // namespace lehr::tools
