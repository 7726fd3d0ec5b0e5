// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "placement/policies/index_lists.hpp"
#include "placement/replacement.hpp"

namespace lehr::placement {

/// Least recently used.
class Recency final : public Replacement {
 public:
  void reset(std::uint32_t /*capacity*/, std::uint32_t id_bound) override {
    list_.reset(1, id_bound);
  }
  void hit(std::span<const PageId> ids, std::span<const Tick> /*next_use*/) override {
    list_.rewind();
    for (const PageId id : ids) list_.move_to_newest(0, id);
  }
  PageId victim(PageId /*incoming*/, Tick /*next_use*/,
                std::span<const std::uint16_t> guard) override {
    return list_.oldest_free(0, guard);
  }
  void evict(PageId id) override { list_.remove(0, id); }
  void insert(PageId id, Tick /*next_use*/) override {
    list_.reach(id);
    list_.push_newest(0, id);
  }
  void erase(PageId id) override {
    if (list_.linked(id)) list_.remove(0, id);
  }

 private:
  IndexLists list_;
};

}  // namespace lehr::placement
