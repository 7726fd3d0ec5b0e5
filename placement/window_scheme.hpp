// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "placement/instance.hpp"

namespace lehr::placement {

/// The two numbers of the published scheme: pages are ranked by their visits in the next `window`
/// steps, and of the moves that the ranking wants a share `share` is done in each step.
struct WindowChoice {
  std::uint32_t window = 1;
  double share = 1;
};

/// How an instance is played without an online policy: the rivals of the published setting.
enum class Scheme : std::uint8_t {
  kStatic,    ///< what is in HBM at the start stays; the rest is read in place
  kReactive,  ///< every miss is installed, for the page whose last read is longest ago
  kPage,  ///< page granularity: reads of the last steps decide what is installed; the rest is read
          ///< in place
  kWindow,  ///< the published ranking, with full knowledge of the coming steps
};

struct SchemeTime {
  Seconds total = 0;
  Seconds without_warmup = 0;
  std::uint64_t visits = 0;  ///< both without the warm-up
  std::uint64_t misses = 0;
};

/// The model's time of an instance under a scheme. `choice` is read by kWindow only.
Result<SchemeTime> scheme_time(const Instance& instance, Scheme scheme, const WindowChoice& choice,
                               std::uint32_t warmup_steps = 16);

struct WindowOptions {
  std::uint64_t seed = 1;
  WindowChoice start{50, 0.5};
  std::uint32_t per_temperature = 8;  ///< evaluations
  std::uint32_t most = 64;            ///< evaluations in all
  std::uint32_t warmup_steps = 16;
};

struct WindowPlan {
  WindowChoice choice;
  SchemeTime time;
  Seconds before = 0;             ///< of the starting choice
  std::uint32_t evaluations = 0;  ///< different choices that were played
};

/// Simulated annealing over (window, share) as published: moves of 1 or 2 steps on the window, of
/// 0.1 on the share, or both (0.4 / 0.4 / 0.2), start temperature for an acceptance of 0.8, cooling
/// 0.9, end when a temperature gains less than 0.1 %. It knows the future: an upper estimate of the
/// scheme, no product, and no bound either. A window longer than the instance counts as its length.
Result<WindowPlan> anneal_window(const Instance& instance, const WindowOptions& options = {});

}  // namespace lehr::placement
