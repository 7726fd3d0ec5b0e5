// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <vector>

#include "placement/policies/index_lists.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"hir", "share of HBM for pages of long or unknown reuse distance", 0.01, 0.0001,
                  0.9},
    ParameterInfo{"ghosts", "pages remembered after they left, by capacity", 2, 0, 16},
};

/// Low inter-reference recency set (Jiang and Zhang, SIGMETRICS 2002). Pages of short reuse
/// distance (LIR) stay; the others (HIR) share a small queue. The stack holds, by recency, all LIR
/// pages and those HIR pages and ghosts seen since the oldest LIR page was: a HIR page found in it
/// has the shorter distance and takes that page's place.
///
/// A whole layer is missed at once and may not push itself out: where the queue holds nothing that
/// may leave, the newcomer is read in place and remembered, as if it had gone through the queue.
class Lirs final : public Replacement {
 public:
  explicit Lirs(const Parameters& p) : hir_(p.at("hir")), ghosts_(p.at("ghosts")) {}

  void reset(std::uint32_t capacity, std::uint32_t id_bound) override {
    stack_.reset(1, id_bound);
    queue_.reset(2, id_bound);
    kind_.assign(id_bound, kUnknown);
    ghost_limit_ = static_cast<std::uint32_t>(ghosts_ * capacity);
    lir_count_ = 0;
    set_room(capacity);
  }

  void hit(std::span<const PageId> ids, std::span<const Tick> /*next_use*/) override {
    stack_.rewind();
    queue_.rewind();
    for (const PageId id : ids) {
      if (kind_[id] == kLir) {
        const bool bottom = stack_.oldest(0) == id;
        stack_.move_to_newest(0, id);
        if (bottom) prune();
      } else if (stack_.linked(id)) {
        queue_.remove(kResident, id);
        promote(id);
      } else {
        stack_.push_newest(0, id);
        queue_.move_to_newest(kResident, id);
        prune();  // without a LIR page nothing stays in the stack
      }
    }
  }

  PageId victim(PageId incoming, Tick /*next_use*/, std::span<const std::uint16_t> guard) override {
    const std::uint32_t residents = lir_count_ + queue_.size(kResident);
    set_room(residents - (incoming == kNoPage && residents > 0 ? 1 : 0));
    while (lir_count_ > lir_target_) demote();
    const PageId queued = queue_.oldest_free(kResident, guard);
    if (queued != kNoPage) return queued;
    if (incoming != kNoPage && kind(incoming) != kGhost) {
      remember(incoming);
      return incoming;
    }
    for (PageId id = stack_.oldest_free(0, guard); id != kNoPage; id = stack_.newer(id)) {
      if (kind_[id] == kLir && !held(guard, id)) return id;
    }
    return kNoPage;
  }

  void evict(PageId id) override {
    if (kind_[id] == kLir) {
      stack_.remove(0, id);
      kind_[id] = kUnknown;
      --lir_count_;
      prune();
      return;
    }
    queue_.remove(kResident, id);
    kind_[id] = kUnknown;
    if (stack_.linked(id)) make_ghost(id);
  }

  void insert(PageId id, Tick /*next_use*/) override {
    reach(id);
    if (kind_[id] == kGhost) {
      queue_.remove(kGhosts, id);
      promote(id);
    } else if (lir_count_ < lir_target_) {
      stack_.push_newest(0, id);
      kind_[id] = kLir;
      ++lir_count_;
    } else {
      stack_.push_newest(0, id);
      queue_.push_newest(kResident, id);
      kind_[id] = kHir;
      prune();
    }
  }

  void erase(PageId id) override {
    if (kind(id) == kUnknown) return;
    if (stack_.linked(id)) stack_.remove(0, id);
    if (queue_.linked(id)) queue_.remove(kind_[id] == kGhost ? kGhosts : kResident, id);
    if (kind_[id] == kLir) --lir_count_;
    kind_[id] = kUnknown;
    prune();
  }

 private:
  static constexpr std::uint8_t kUnknown = 0, kLir = 1, kHir = 2, kGhost = 3;
  static constexpr std::uint32_t kResident = 0, kGhosts = 1;  // the lists of queue_

  std::uint8_t kind(PageId id) const { return id < kind_.size() ? kind_[id] : kUnknown; }
  void reach(PageId id) {
    stack_.reach(id);
    queue_.reach(id);
    if (id >= kind_.size()) {
      kind_.resize(std::max<std::size_t>(id + std::size_t{1}, kind_.size() * 2), kUnknown);
    }
  }

  /// Tails take slots too: the sets share what was there when room last ran out.
  void set_room(std::uint32_t room) {
    const auto hir = std::max(1U, static_cast<std::uint32_t>(hir_ * room));
    lir_target_ = room > hir ? room - hir : 0;
  }

  /// Found in the stack: becomes LIR, newest of all; the oldest LIR page gives way.
  void promote(PageId id) {
    stack_.remove(0, id);
    stack_.push_newest(0, id);
    kind_[id] = kLir;
    ++lir_count_;
    prune();
    if (lir_count_ > lir_target_) demote();
  }

  void demote() {
    const PageId id = stack_.oldest(0);
    stack_.remove(0, id);
    kind_[id] = kHir;
    --lir_count_;
    queue_.push_newest(kResident, id);
    prune();
  }

  /// The stack ends in a LIR page: what is older says nothing any more.
  void prune() {
    for (;;) {
      const PageId id = stack_.oldest(0);
      if (id == kNoPage || kind_[id] == kLir) return;
      stack_.remove(0, id);
      if (kind_[id] == kGhost) {
        queue_.remove(kGhosts, id);
        kind_[id] = kUnknown;
      }
    }
  }

  void remember(PageId id) {
    reach(id);
    stack_.push_newest(0, id);
    make_ghost(id);
    prune();
  }

  void make_ghost(PageId id) {
    kind_[id] = kGhost;
    queue_.push_newest(kGhosts, id);
    if (queue_.size(kGhosts) <= ghost_limit_) return;
    const PageId oldest = queue_.oldest(kGhosts);
    queue_.remove(kGhosts, oldest);
    stack_.remove(0, oldest);
    kind_[oldest] = kUnknown;
  }

  double hir_;
  double ghosts_;
  std::uint32_t ghost_limit_ = 0;
  std::uint32_t lir_target_ = 0;
  std::uint32_t lir_count_ = 0;
  IndexLists stack_;
  IndexLists queue_;  ///< resident HIR pages, and ghosts in the order in which they left
  std::vector<std::uint8_t> kind_;
};

}  // namespace

const PolicyDescriptor& lirs_descriptor() {
  static const PolicyDescriptor descriptor{
      "lirs",
      "keeps the pages of shortest reuse distance; the others pass through a small queue",
      kParameters,
      {.block_cache = true},
      nullptr,
      [](const Parameters& p) -> std::unique_ptr<Replacement> { return std::make_unique<Lirs>(p); },
  };
  return descriptor;
}

}  // namespace lehr::placement
