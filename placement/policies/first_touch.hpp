// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "placement/policies/index_lists.hpp"
#include "placement/replacement.hpp"

namespace lehr::placement {

/// Keeps what came first: nothing leaves for a newcomer, and where room is needed in any case
/// (tails) the last to come leaves.
class FirstTouch final : public Replacement {
 public:
  void reset(std::uint32_t /*capacity*/, std::uint32_t id_bound) override {
    list_.reset(1, id_bound);
  }
  void hit(std::span<const PageId> /*ids*/, std::span<const Tick> /*next_use*/) override {
    list_.rewind();
  }
  PageId victim(PageId incoming, Tick /*next_use*/, std::span<const std::uint16_t> guard) override {
    return incoming != kNoPage ? incoming : list_.oldest_free(0, guard);
  }
  void evict(PageId id) override { list_.remove(0, id); }
  void insert(PageId id, Tick /*next_use*/) override {
    list_.reach(id);
    list_.push_oldest(0, id);  // in this list the last to come stands where victims are looked for
  }
  void erase(PageId id) override {
    if (list_.linked(id)) list_.remove(0, id);
  }

 private:
  IndexLists list_;
};

}  // namespace lehr::placement
