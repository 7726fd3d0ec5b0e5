// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tools/lehr/probe.hpp"
#include "transfer/device.hpp"

/// How a probe moves pages between two memories, and how long that takes.
namespace lehr::tools {

inline constexpr Bytes kProbeSpan = 2 * kGiB;  ///< pages are scattered over this much on each side

/// Memory on one side of a link.
struct Side {
  transfer::MemoryRegion region;
  transfer::Address at(Bytes offset) const {
    return {region.space, region.unit, region.base + offset, 0};
  }
};

struct Way {
  std::string name;  ///< of the link
  const Side* from;
  const Side* to;
  std::int32_t device;  ///< whose SMs and streams move
  bool peer;
};

transfer::DeviceMoverConfig mover_for(const Way& way, transfer::DeviceCopy copy);

/// Pages in runs of `run` that follow each other at both ends; where the runs lie is random.
std::vector<transfer::Job> jobs_of(const Way& way, Bytes size, std::size_t count, std::size_t run);

struct JobsTime {
  double all = 0;     ///< from submit() to the last completion
  double submit = 0;  ///< in submit() alone
};
Result<JobsTime> time_jobs(transfer::Mover& mover, std::span<const transfer::Job> jobs);

/// Times every mover of a way at each size and count, scattered and in runs; the link's own curve
/// is the best of what scattered pages reach.
Status probe_way(const Way& way, TierId from, TierId to, ProbeResult& result,
                 const ProbeProgress& progress, double begin, double end);

}  // namespace lehr::tools
