// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "placement/bounds.hpp"
#include "placement/oracle.hpp"
#include "runtime/replay/replay.hpp"

namespace lehr::tools {

/// What plans with full knowledge can and cannot reach on a workload at one capacity.
struct Certified {
  placement::Bound bound;
  placement::OraclePlan oracle;
  double bound_seconds = 0;  ///< CPU time that they took
  double oracle_seconds = 0;
};

struct CertifyOptions {
  std::uint64_t seed = 1;   ///< of the oracle
  std::uint32_t seeds = 1;  ///< it is run with, from that on; the best counts
  bool brief = false;       ///< for many pages: less time for each
};

Result<Certified> certify(const runtime::Workload& workload, const runtime::ReplayOptions& replay,
                          const CertifyOptions& options = {});

}  // namespace lehr::tools
