// SPDX-License-Identifier: Apache-2.0
#include "transfer/scheduler.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/base/check.hpp"

namespace lehr::transfer {

Scheduler::Scheduler(const std::vector<LinkLimits>& links) {
  for (const LinkLimits& limits : links) {
    links_.emplace_back();
    Link& link = links_.back();
    link.limits = limits;
    link.pacer = Pacer(limits.allowed_slowdown);
    link.stagger =
        Stagger(limits.stagger_devices, static_cast<std::int64_t>(limits.stagger_phase * 1e9));
  }
  begin_step();
}

std::int64_t Scheduler::full_budget(const Link& link) {
  return static_cast<std::int64_t>(static_cast<double>(link.limits.step_budget) * link.share);
}

Status Scheduler::admit(LinkId link, Bytes bytes, Urgency urgency, Bytes held) const {
  const Link& l = links_[link];
  if (urgency == Urgency::kUrgent || l.limits.queue_limit == 0) return {};
  const Bytes ahead = l.load.waiting + held;
  // An empty queue takes one job of any size.
  if (ahead != 0 && ahead + bytes > l.limits.queue_limit) {
    return refused(Reason::kLowerTierBusy, std::to_string(ahead) + " bytes wait for link " +
                                               std::to_string(link) + " already");
  }
  return {};
}

void Scheduler::enqueue(LinkId link, const Item& item) {
  Link& l = links_[link];
  l.queues[static_cast<std::size_t>(item.urgency)].push_back(item);
  l.load.waiting += item.bytes;
  l.load.peak_waiting_jobs = std::max(l.load.peak_waiting_jobs, ++l.load.waiting_jobs);
}

bool Scheduler::may_start(const Link& link, const Item& item, std::int64_t now_ns) {
  const LinkLoad& load = link.load;
  const LinkLimits& limits = link.limits;
  const double depth = limits.bytes_per_second * limits.depth_seconds;
  const auto after = static_cast<double>(load.in_flight + item.bytes);
  if (item.urgency == Urgency::kUrgent) {
    return load.jobs_in_flight < std::max(1U, limits.urgent_depth) || after <= depth;
  }
  if (now_ns < link.hold_until_ns) return false;
  // At most one depth's time ahead of its share of the rate.
  const auto ahead = static_cast<std::int64_t>(limits.depth_seconds * 1e9);
  if (link.share < 1 && link.paced_ns > now_ns + ahead) return false;
  const auto need = static_cast<std::int64_t>(after * 1e9 / limits.bytes_per_second);
  if (link.stagger.next_start(limits.stagger_device, now_ns, need) != now_ns) return false;
  // One job is always allowed: a page larger than the depth must move too.
  if (load.jobs_in_flight != 0 && after > depth * link.share) return false;
  if (limits.step_budget == 0) return true;
  const auto bytes = static_cast<std::int64_t>(item.bytes);
  const std::int64_t full = full_budget(link);
  // A job larger than a step's whole budget takes a fresh one and leaves a debt.
  return bytes <= load.budget_left || (bytes > full && load.budget_left >= full);
}

/// Link time that background bytes take at the link's share.
std::int64_t Scheduler::paced_time(const Link& link, Bytes bytes) {
  return static_cast<std::int64_t>(static_cast<double>(bytes) * 1e9 /
                                   (link.limits.bytes_per_second * link.share));
}

std::optional<Scheduler::Item> Scheduler::next(LinkId link, std::int64_t now_ns) {
  Link& l = links_[link];
  for (auto& queue : l.queues) {
    if (queue.empty()) continue;
    const Item item = queue.front();
    if (!may_start(l, item, now_ns)) return std::nullopt;
    queue.pop_front();
    l.load.waiting -= item.bytes;
    --l.load.waiting_jobs;
    l.load.in_flight += item.bytes;
    ++l.load.jobs_in_flight;
    if (l.limits.step_budget != 0) l.load.budget_left -= static_cast<std::int64_t>(item.bytes);
    if (item.urgency == Urgency::kBackground) {
      l.moved_background = true;
      l.paced_ns = std::max(l.paced_ns, now_ns) + paced_time(l, item.bytes);
    }
    return item;
  }
  return std::nullopt;
}

void Scheduler::undo(LinkId link, const Item& item) {
  Link& l = links_[link];
  finished(link, item.bytes);
  if (l.limits.step_budget != 0) l.load.budget_left += static_cast<std::int64_t>(item.bytes);
  if (item.urgency == Urgency::kBackground) l.paced_ns -= paced_time(l, item.bytes);
  l.queues[static_cast<std::size_t>(item.urgency)].push_front(item);
  l.load.waiting += item.bytes;
  ++l.load.waiting_jobs;
}

void Scheduler::finished(LinkId link, Bytes bytes) {
  LinkLoad& load = links_[link].load;
  LEHR_CHECK(1, load.jobs_in_flight != 0 && load.in_flight >= bytes);
  load.in_flight -= bytes;
  --load.jobs_in_flight;
}

bool Scheduler::remove(LinkId link, std::uint64_t id) {
  Link& l = links_[link];
  for (auto& queue : l.queues) {
    const auto found =
        std::find_if(queue.begin(), queue.end(), [&](const Item& item) { return item.id == id; });
    if (found == queue.end()) continue;
    l.load.waiting -= found->bytes;
    --l.load.waiting_jobs;
    queue.erase(found);
    return true;
  }
  return false;
}

void Scheduler::begin_step() {
  for (Link& l : links_) {
    l.load.budget_left = std::min<std::int64_t>(l.load.budget_left, 0) + full_budget(l);
  }
}

void Scheduler::set_share(LinkId link, double share) {
  links_[link].share = std::clamp(share, 1.0 / 1024, 1.0);
}

void Scheduler::measured_slowdown(double slowdown) {
  for (Link& l : links_) {
    if (!(l.limits.allowed_slowdown > 0) || !std::exchange(l.moved_background, false)) continue;
    l.pacer.measured(slowdown);
    l.share = l.pacer.share();
  }
}

void Scheduler::hold_background(LinkId link, std::int64_t until_ns) {
  links_[link].hold_until_ns = until_ns;
}

LinkLoad Scheduler::load(LinkId link) const { return links_[link].load; }

}  // namespace lehr::transfer
