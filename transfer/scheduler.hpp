// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "kernels/base/ids.hpp"
#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"
#include "transfer/address.hpp"
#include "transfer/pacing.hpp"

namespace lehr::transfer {

struct LinkLimits {
  double bytes_per_second = 1e9;
  /// Background work in flight stays below this much link time, so that an urgent page waits no
  /// longer.
  Seconds depth_seconds = 1e-3;
  /// Urgent work may have this many jobs in flight even where that is more link time: devices with
  /// a long latency (NVMe) reach their bandwidth only with depth.
  std::uint32_t urgent_depth = 64;
  Bytes step_budget =
      0;  ///< bytes a step; 0: no budget. Urgent work may overdraw, the next step pays
  Bytes queue_limit = 0;        ///< bytes of background work that may wait; 0: no limit
  double allowed_slowdown = 0;  ///< of attention, by background work; 0: no limit
  /// Devices that share this link's medium take turns with background work; see Stagger.
  std::uint32_t stagger_devices = 1, stagger_device = 0;
  Seconds stagger_phase = 10e-3;
};

struct LinkLoad {
  Bytes waiting = 0;
  Bytes in_flight = 0;
  std::uint32_t waiting_jobs = 0;
  std::uint32_t jobs_in_flight = 0;
  std::uint32_t peak_waiting_jobs = 0;
  std::int64_t budget_left = 0;  ///< of this step; negative when urgent work overdrew
};

/// Which queued job may start on which link. Urgent before background, each in order of arrival.
/// Pure: no I/O, no clock, no thread; every call is O(1) but remove().
class Scheduler {
 public:
  struct Item {
    std::uint64_t id = 0;
    Bytes bytes = 0;
    Urgency urgency = Urgency::kBackground;
  };

  explicit Scheduler(const std::vector<LinkLimits>& links);

  /// Room for background work on a link, or kLowerTierBusy. Urgent work always has room here; its
  /// number is bounded by who submits it.
  /// `held`: bytes for this link that are not enqueued yet.
  Status admit(LinkId link, Bytes bytes, Urgency urgency, Bytes held = 0) const;
  void enqueue(LinkId link, const Item& item);
  /// The job that starts now, counted as in flight; nothing when limits or budget say wait.
  std::optional<Item> next(LinkId link, std::int64_t now_ns);
  /// Gives an item from next() back: it could not start.
  void undo(LinkId link, const Item& item);
  void finished(LinkId link, Bytes bytes);
  /// Takes a waiting item out; false when it is not waiting.
  bool remove(LinkId link, std::uint64_t id);

  /// A new step: budgets are filled again, less what was overdrawn.
  void begin_step();
  /// Share of rate, depth and budget for background work, (0, 1].
  void set_share(LinkId link, double share);
  double share(LinkId link) const { return links_[link].share; }
  /// How much slower the last step was than an undisturbed one: links with an allowed slow-down
  /// that moved background work since the last call adapt their share to it.
  void measured_slowdown(double slowdown);
  /// No background work before this moment (from a Stagger, or pacing).
  void hold_background(LinkId link, std::int64_t until_ns);

  LinkLoad load(LinkId link) const;
  std::size_t links() const { return links_.size(); }

 private:
  struct Link {
    LinkLimits limits;
    std::deque<Item> queues[2];
    LinkLoad load;
    double share = 1.0;
    std::int64_t hold_until_ns = 0;
    std::int64_t paced_ns = 0;  ///< link time that background work has used up at its share
    Pacer pacer{0};
    Stagger stagger;
    bool moved_background = false;
  };
  static std::int64_t full_budget(const Link& link);
  static std::int64_t paced_time(const Link& link, Bytes bytes);
  static bool may_start(const Link& link, const Item& item, std::int64_t now_ns);
  std::vector<Link> links_;
};

}  // namespace lehr::transfer
