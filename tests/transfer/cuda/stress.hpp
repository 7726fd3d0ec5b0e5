// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "transfer/device_engine.hpp"

namespace lehr::transfer::test {

/// Pages wander between hbm, host and (with a donor) peer in random directions. A source slot is
/// given up as soon as its move is submitted, so that slots are filled again right behind their
/// readers; beside that, readers on a stream of their own look at pages that are on the move.
struct StressConfig {
  std::uint64_t moves = 10'000'000;
  std::int32_t donor = -1;
  Bytes page_bytes = 8192;
  SlotId hbm_pages = 16384, host_pages = 32768, peer_pages = 16384;
  std::uint32_t round = 8192;   ///< moves submitted together
  std::uint32_t readers = 512;  ///< pages looked at beside each round
  std::uint32_t rewrites = 64;  ///< pages written anew before each round
  std::uint64_t seed = 1;
};

struct StressResult {
  bool ok = false;
  std::string problem;
  std::uint64_t moves = 0, rewrites = 0, refused = 0, read = 0, verified = 0, wrong = 0;
  double seconds = 0;
};

StressResult run_stress(const StressConfig& config);

}  // namespace lehr::transfer::test
