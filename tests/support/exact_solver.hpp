// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "placement/instance.hpp"
#include "placement/policy.hpp"

namespace lehr::test {

/// An instance with the platform it points to.
struct TinyReplay {
  std::unique_ptr<placement::Platform> platform;
  placement::Instance instance;
  std::vector<LinkId> link{};  ///< over which each page crosses; empty: from the home tier, all
  std::vector<float> odds{};   ///< of a read of each page when its layer runs; empty: nobody says
};

/// Round figures: HBM `hbm` bytes/s, both links `link` bytes/s, no latency, no control time.
std::unique_ptr<placement::Platform> round_platform(double hbm, double link);

/// One layer of pages of 100 bytes on round_platform(), without pages and ticks yet.
TinyReplay empty_replay(double hbm, double link, std::uint32_t capacity);

/// Two ticks that read two pages each, none in HBM: a transfer starts for 1 s, and each page takes
/// 0.01 s more.
TinyReplay two_bursts();

/// A random replay of at most 7 pages and 12 ticks on a random machine: curves, latency, compute,
/// shared media, write-backs and births included. Feasible: what must be in HBM fits.
TinyReplay random_replay(std::uint64_t seed);

/// The same with pages that live in three tiers below HBM, or two, on links of unequal price: all
/// can be read in place, side by side. Reads are drawn with each page's own odds.
TinyReplay unequal_replay(std::uint64_t seed, std::uint32_t tiers_below);

struct ExactOptions {
  bool promotions = true;  ///< without, the optimum of plans that only keep, drop and install
  Tick from = 0;           ///< ticks before cost nothing
};
/// The least time of all plans, by going through every state of HBM in every tick.
Seconds exact_optimum(const placement::Instance& instance, const ExactOptions& options = {});
Seconds exact_optimum(const TinyReplay& replay);

/// A replay played by a policy, with plain sets; every plan is checked before it is applied.
struct PlayedReplay {
  std::string broken;  ///< the first rule broken; empty if none
  Seconds total = 0;
  std::uint64_t misses = 0;
  std::uint64_t promotions = 0;
};
PlayedReplay play(const placement::Instance& instance, placement::Policy& policy);
PlayedReplay play(const TinyReplay& replay, placement::Policy& policy);

}  // namespace lehr::test
