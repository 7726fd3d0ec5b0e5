// SPDX-License-Identifier: Apache-2.0
#include "transfer/reservation.hpp"

#include <algorithm>
#include <string>

namespace lehr::transfer {

Reservations::Entry* Reservations::find(Group group) {
  for (Entry& e : entries_) {
    if (e.group == group) return &e;
  }
  return nullptr;
}

Status Reservations::request(Group group, std::uint64_t need, std::uint64_t held) {
  if (held > capacity_ || need > capacity_ - held) {
    return refused(Reason::kOverBudget, "a group of " + std::to_string(held) + " held and " +
                                            std::to_string(need) + " needed slots in a tier of " +
                                            std::to_string(capacity_));
  }
  Entry* known = find(group);
  const std::uint64_t known_held = known != nullptr ? known->held : 0;
  if (held > known_held && held - known_held > free()) {
    return refused(Reason::kOverBudget, "a group says that it holds more slots than are in use");
  }
  if (known == nullptr) {
    entries_.push_back({group, 0, 0, 0});
    known = &entries_.back();
  } else if (known->need != 0) {
    return refused(Reason::kPending, "the group already waits for room");
  }
  held_ += held - known->held;
  known->held = held;
  known->need = need;
  known->passes = 0;
  return {};
}

Reservations::Entry* Reservations::choose() {
  const std::uint64_t room = free();
  const auto fits = [&](const Entry& e) {
    return e.need != 0 && (whole_needs_ ? e.need <= room : room != 0);
  };
  // Holders first: serving one ends with its room being free again.
  for (Entry& e : entries_) {
    if (fits(e) && e.held != 0) return &e;
  }
  // A head that has been passed often enough keeps what becomes free for itself.
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& head = entries_[i];
    if (fits(head)) {
      for (std::size_t j = 0; j < i; ++j) entries_[j].passes += entries_[j].need != 0;
      return &entries_[i];
    }
    if (head.need != 0 && head.held == 0 && head.passes >= max_passes_) return nullptr;
  }
  return nullptr;
}

void Reservations::grant(Entry& entry) {
  const std::uint64_t given = std::min(entry.need, free());
  entry.held += given;
  entry.need -= given;
  held_ += given;
}

std::optional<Reservations::Decision> Reservations::next() {
  if (Entry* chosen = choose()) {
    grant(*chosen);
    return Decision{Decision::kGrant, chosen->group};
  }
  // Somebody served will finish, or somebody outside holds slots: wait. Else all holders wait for
  // each other, and the smallest gives way (the least to load again).
  Entry* victim = nullptr;
  for (Entry& e : entries_) {
    if (e.need == 0 && e.held != 0) return std::nullopt;
    if (e.held != 0 && (victim == nullptr || e.held < victim->held)) victim = &e;
  }
  if (victim == nullptr || !whole_needs_) return std::nullopt;
  victim->need += victim->held;
  held_ -= victim->held;
  victim->held = 0;
  return Decision{Decision::kRollBack, victim->group};
}

void Reservations::finish(Group group) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& e) { return e.group == group; });
  if (found == entries_.end()) return;
  held_ -= found->held;
  entries_.erase(found);
}

Status Reservations::take(std::uint64_t slots) {
  if (slots > free()) {
    return refused(Reason::kOverBudget, std::to_string(slots) + " slots asked for, " +
                                            std::to_string(free()) + " are not reserved");
  }
  taken_ += slots;
  return {};
}

std::size_t Reservations::waiting() const {
  return static_cast<std::size_t>(
      std::count_if(entries_.begin(), entries_.end(), [](const Entry& e) { return e.need != 0; }));
}

}  // namespace lehr::transfer
