// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace lehr::transfer {

/// Turns for N devices that share a link: device d may start background work in its own phase of a
/// cycle of N phases. One device is never held back. Pure.
class Stagger {
 public:
  explicit Stagger(std::uint32_t devices = 1, std::int64_t phase_ns = 10'000'000)
      : devices_(std::max(1U, devices)), phase_ns_(std::max<std::int64_t>(1, phase_ns)) {}

  /// The first moment from `now_ns` on at which `device` may start background work that the link
  /// needs `need_ns` for, so that it ends before the next device's phase. What takes longer than a
  /// phase starts at any moment of it.
  std::int64_t next_start(std::uint32_t device, std::int64_t now_ns,
                          std::int64_t need_ns = 0) const {
    if (devices_ == 1) return now_ns;
    const std::int64_t cycle = phase_ns_ * devices_;
    const std::int64_t open = phase_ns_ * (device % devices_);
    const std::int64_t at = ((now_ns % cycle) + cycle) % cycle;
    const std::int64_t need = need_ns > phase_ns_ ? 0 : need_ns;
    const bool inside = at >= open && at < open + phase_ns_;
    if (inside && at + need <= open + phase_ns_) return now_ns;
    return now_ns + (open - at + cycle) % cycle;
  }

 private:
  std::uint32_t devices_;
  std::int64_t phase_ns_;
};

/// Keeps migration's slow-down of attention within what is allowed: told the measured slow-down, it
/// lowers the share of the link quickly when it was too much and raises it slowly when there is
/// room. Pure.
class Pacer {
 public:
  explicit Pacer(double allowed_slowdown, double floor_share = 1.0 / 64)
      : allowed_(allowed_slowdown), floor_(floor_share) {}

  /// `slowdown` = measured step time over undisturbed step time, minus 1.
  void measured(double slowdown) {
    if (!(slowdown >= 0)) slowdown = 0;  // noise, or no figure
    if (slowdown > allowed_) {
      // Disturbance grows about linearly with the share: aim a little below the allowed one.
      const double aim = allowed_ > 0 ? 0.9 * allowed_ / slowdown : 0.5;
      share_ = std::max(floor_, share_ * std::max(0.25, aim));
    } else {
      share_ = std::min(1.0, share_ + (slowdown < 0.8 * allowed_ ? 0.05 : 0.01));
    }
  }
  /// Share of the link's rate that background work may use now, (0, 1].
  double share() const { return share_; }

 private:
  double allowed_;
  double floor_;
  double share_ = 1.0;
};

}  // namespace lehr::transfer
