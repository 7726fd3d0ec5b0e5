// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "runtime/directory/types.hpp"

namespace lehr::directory {

/// The latest events, in order; when full, the oldest make room and are counted.
class EventRing {
 public:
  explicit EventRing(std::size_t capacity) : capacity_(capacity) {}

  void push(Event event) {
    if (events_.size() == capacity_) {
      events_.pop_front();
      ++dropped_;
    }
    events_.push_back(std::move(event));
  }
  bool pop(Event& out) {
    if (events_.empty()) return false;
    out = std::move(events_.front());
    events_.pop_front();
    return true;
  }
  std::uint64_t dropped() const { return dropped_; }
  std::size_t size() const { return events_.size(); }

 private:
  std::size_t capacity_;
  std::deque<Event> events_;
  std::uint64_t dropped_ = 0;
};

}  // namespace lehr::directory
