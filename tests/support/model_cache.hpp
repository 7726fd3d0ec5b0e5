// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "placement/replacement.hpp"

namespace lehr::test {

/// A cache of equally large objects as the papers write it down: plain lists and searches, one
/// visit at a time. What the fast orders are compared with.
class ModelCache {
 public:
  virtual ~ModelCache() = default;
  /// Whether it hit.
  virtual bool visit(PageId id) = 0;
};

/// Names: lru, lfu (halving after 10 capacities), arc, s3-fifo (0.1, 0.9, 2), lirs (0.01, ghosts
/// 2).
std::unique_ptr<ModelCache> model_cache(const std::string& name, std::uint32_t capacity);

/// Plays a Replacement the way its contract says, one visit at a time, and checks what it names.
class DrivenCache final : public ModelCache {
 public:
  DrivenCache(placement::Replacement& order, std::uint32_t capacity);
  bool visit(PageId id) override { return visit(id, kNever); }
  bool visit(PageId id, Tick next_use);

  const std::vector<PageId>& evicted() const { return evicted_; }
  bool resident(PageId id) const { return id < resident_.size() && resident_[id]; }
  /// May not leave until release().
  void hold(PageId id);
  void release(PageId id);
  bool broken() const { return broken_; }

 private:
  placement::Replacement& order_;
  std::uint32_t capacity_;
  std::uint32_t residents_ = 0;
  std::vector<bool> resident_;
  std::vector<std::uint16_t> guard_;
  std::vector<PageId> evicted_;
  bool broken_ = false;  ///< the order named a held or absent object
};

/// Fewest misses of any way to serve the batches: what is read hits if it is resident at the
/// batch's start, pages of the batch may not leave before its end, and a miss may be kept or not.
/// Exact, by trying every resident set; ids below 16.
std::uint64_t fewest_misses(const std::vector<std::vector<PageId>>& batches,
                            std::uint32_t capacity);

}  // namespace lehr::test
