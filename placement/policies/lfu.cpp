// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "placement/policies/aged_counts.hpp"
#include "placement/policies/index_lists.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"ageing",
                  "visits after which all counts are halved, in multiples of the capacity", 10, 0.1,
                  1e6},
    ParameterInfo{"remember", "1: a page that left keeps its count; 0: it starts again", 0, 0, 1},
};

/// The least frequently used leaves, of equally used ones the least recently used. One list a
/// count, so that a visit moves a page by one list and a halving joins neighbouring lists.
class Lfu final : public Replacement {
 public:
  explicit Lfu(const Parameters& p) : ageing_(p.at("ageing")), remember_(p.at("remember") != 0) {}

  void reset(std::uint32_t capacity, std::uint32_t id_bound) override {
    lists_.reset(kTop + 1, id_bound);
    counts_.reset(id_bound, kTop);
    period_ = static_cast<std::uint64_t>(ageing_ * capacity) + 1;
    visits_ = 0;
    lowest_ = 0;
  }

  void hit(std::span<const PageId> ids, std::span<const Tick> /*next_use*/) override {
    lists_.rewind();
    for (const PageId id : ids) {
      const std::uint32_t count = counts_.count(id);
      counts_.set(id, count + 1);
      lists_.transfer(count, count < kTop ? count + 1 : kTop, id);
      if (++visits_ >= period_) age();
    }
  }

  PageId victim(PageId /*incoming*/, Tick /*next_use*/,
                std::span<const std::uint16_t> guard) override {
    while (lowest_ < kTop && lists_.size(lowest_) == 0) ++lowest_;
    for (std::uint32_t c = lowest_; c <= kTop; ++c) {
      if (lists_.size(c) == 0) continue;
      const PageId v = lists_.oldest_free(c, guard);
      if (v != kNoPage) return v;
    }
    return kNoPage;
  }

  void evict(PageId id) override { lists_.remove(counts_.count(id), id); }

  void insert(PageId id, Tick /*next_use*/) override {
    lists_.reach(id);
    counts_.reach(id);
    counts_.set(id, remember_ ? counts_.count(id) + 1 : 1);
    const std::uint32_t count = counts_.count(id);
    lists_.push_newest(count, id);
    lowest_ = std::min(lowest_, count);
    if (++visits_ >= period_) age();
  }

  void erase(PageId id) override {
    if (!lists_.linked(id)) return;
    lists_.remove(counts_.count(id), id);
    counts_.set(id, 0);
  }

 private:
  static constexpr std::uint32_t kTop = 255;

  void age() {
    visits_ = 0;
    lists_.rewind();
    counts_.age();
    for (std::uint32_t c = 1; c <= kTop; ++c) lists_.splice(c, c / 2);
    lowest_ = 0;
  }

  double ageing_;
  bool remember_;
  IndexLists lists_;
  AgedCounts counts_;
  std::uint64_t period_ = 1;
  std::uint64_t visits_ = 0;
  std::uint32_t lowest_ = 0;  ///< no list below it has a page
};

}  // namespace

const PolicyDescriptor& lfu_descriptor() {
  static const PolicyDescriptor descriptor{
      "lfu",
      "fill on read, the least frequently used leaves; counts are halved now and then",
      kParameters,
      {.block_cache = true},
      nullptr,
      [](const Parameters& p) -> std::unique_ptr<Replacement> { return std::make_unique<Lfu>(p); },
  };
  return descriptor;
}

}  // namespace lehr::placement
