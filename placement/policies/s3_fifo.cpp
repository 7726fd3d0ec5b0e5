// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <vector>

#include "placement/policies/index_lists.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"small", "share of the capacity for pages on trial", 0.1, 0.001, 0.9},
    ParameterInfo{"ghosts", "pages remembered after they failed the trial, by capacity", 0.9, 0,
                  16},
    ParameterInfo{"promote", "visits on trial (beyond the first) that make a page stay", 2, 1, 3},
};

/// Three queues without order among hits (Yang et al., SOSP 2023): a small one on trial, a main one
/// with lazy second chances, and ghosts of what failed the trial.
class S3Fifo final : public Replacement {
 public:
  explicit S3Fifo(const Parameters& p)
      : small_(p.at("small")),
        ghosts_(p.at("ghosts")),
        promote_(static_cast<std::uint8_t>(p.at("promote"))) {}

  void reset(std::uint32_t capacity, std::uint32_t id_bound) override {
    small_target_ = std::max(1U, static_cast<std::uint32_t>(small_ * capacity));
    ghost_limit_ = static_cast<std::uint32_t>(ghosts_ * capacity);
    lists_.reset(kLists, id_bound);
    pages_.assign(id_bound, Page{});
  }

  void hit(std::span<const PageId> ids, std::span<const Tick> /*next_use*/) override {
    for (const PageId id : ids) {
      if (pages_[id].visits < kMost) ++pages_[id].visits;
    }
  }

  PageId victim(PageId /*incoming*/, Tick /*next_use*/,
                std::span<const std::uint16_t> guard) override {
    // A held page goes round its queue once; when a whole round found nothing else, the other is
    // tried.
    std::uint32_t held_small = 0;
    std::uint32_t held_main = 0;
    for (;;) {
      const bool has_small = lists_.size(kSmall) > held_small;
      const bool has_main = lists_.size(kMain) > held_main;
      if (!has_small && !has_main) return kNoPage;
      if (has_small && (lists_.size(kSmall) >= small_target_ || !has_main)) {
        const PageId id = lists_.oldest(kSmall);
        if (pages_[id].visits >= promote_) {
          put(id, kMain);
          pages_[id].visits = 0;
          // One that may leave stands behind those that were passed: they are passed once more.
          held_main = held(guard, id) ? held_main + 1 : 0;
        } else if (held(guard, id)) {
          put(id, kSmall);
          ++held_small;
        } else {
          return id;
        }
      } else {
        const PageId id = lists_.oldest(kMain);
        if (held(guard, id)) {
          put(id, kMain);
          ++held_main;
        } else if (pages_[id].visits > 0) {
          --pages_[id].visits;
          put(id, kMain);
          held_main = 0;  // the queue has moved on: count a new round
        } else {
          return id;
        }
      }
    }
  }

  void evict(PageId id) override {
    if (pages_[id].list == kMain) {
      lists_.remove(kMain, id);
      pages_[id] = Page{};
      return;
    }
    put(id, kGhost);
    while (lists_.size(kGhost) > ghost_limit_) erase(lists_.oldest(kGhost));
  }

  void insert(PageId id, Tick /*next_use*/) override {
    lists_.reach(id);
    if (id >= pages_.size()) {
      pages_.resize(std::max<std::size_t>(id + std::size_t{1}, pages_.size() * 2));
    }
    if (pages_[id].list == kGhost) {
      put(id, kMain);
    } else {
      lists_.push_newest(kSmall, id);
      pages_[id].list = kSmall;
    }
    pages_[id].visits = 0;
  }

  void erase(PageId id) override {
    if (id >= pages_.size() || pages_[id].list == kNowhere) return;
    lists_.remove(pages_[id].list, id);
    pages_[id] = Page{};
  }

 private:
  static constexpr std::uint8_t kSmall = 0, kMain = 1, kGhost = 2, kLists = 3, kNowhere = 3;
  static constexpr std::uint8_t kMost = 3;
  struct Page {
    std::uint8_t list = kNowhere;
    std::uint8_t visits = 0;
  };

  void put(PageId id, std::uint8_t list) {
    lists_.transfer(pages_[id].list, list, id);
    pages_[id].list = list;
  }

  double small_;
  double ghosts_;
  std::uint8_t promote_;
  std::uint32_t small_target_ = 1;
  std::uint32_t ghost_limit_ = 0;
  IndexLists lists_;
  std::vector<Page> pages_;
};

}  // namespace

const PolicyDescriptor& s3_fifo_descriptor() {
  static const PolicyDescriptor descriptor{
      "s3-fifo",
      "three FIFO queues: newcomers on trial, those that stay, ghosts of those that left",
      kParameters,
      {.block_cache = true},
      nullptr,
      [](const Parameters& p) -> std::unique_ptr<Replacement> {
        return std::make_unique<S3Fifo>(p);
      },
  };
  return descriptor;
}

}  // namespace lehr::placement
