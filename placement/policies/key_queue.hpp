// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "kernels/base/ids.hpp"

namespace lehr::placement {

/// Dense ids ordered by an integer key: a bucket a key, and a tree of bits over the buckets.
/// Insert, remove and the ends cost O(log64 of the largest key); memory is linear in ids plus the
/// largest key. Within a bucket the latest comes first. The key kNever stands above all others.
class KeyQueue {
 public:
  void reset(std::uint32_t ids) {
    nodes_.assign(ids, Node{});
    heads_.assign(1, kNoPage);
    for (auto& level : bits_) level.assign(1, 0);
    size_ = 0;
  }

  std::uint32_t size() const { return size_; }
  bool contains(PageId id) const { return id < nodes_.size() && nodes_[id].in; }
  Tick key(PageId id) const { return nodes_[id].key; }

  void insert(PageId id, Tick key) {
    if (id >= nodes_.size())
      nodes_.resize(std::max<std::size_t>(id + std::size_t{1}, nodes_.size() * 2));
    const std::size_t b = bucket(key);
    if (b >= heads_.size()) grow(b);
    const PageId next = heads_[b];
    nodes_[id] = {kNoPage, next, key, true};
    if (next != kNoPage) {
      nodes_[next].before = id;
    } else if (b != 0) {
      set(b);
    }
    heads_[b] = id;
    ++size_;
  }

  void remove(PageId id) {
    Node& n = nodes_[id];
    if (n.after != kNoPage) nodes_[n.after].before = n.before;
    if (n.before != kNoPage) {
      nodes_[n.before].after = n.after;
    } else {
      const std::size_t b = bucket(n.key);
      heads_[b] = n.after;
      if (n.after == kNoPage && b != 0) clear(b);
    }
    n.in = false;
    --size_;
  }

  /// The first of the largest key, or kNoPage; and the next one downwards.
  PageId max() const { return heads_[0] != kNoPage ? heads_[0] : head_below(heads_.size()); }
  PageId down(PageId id) const {
    if (nodes_[id].after != kNoPage) return nodes_[id].after;
    return head_below(nodes_[id].key == kNever ? heads_.size() : bucket(nodes_[id].key));
  }

  /// The first of the smallest key, or kNoPage; and the next one upwards.
  PageId min() const { return head_above(0); }
  PageId up(PageId id) const {
    if (nodes_[id].after != kNoPage) return nodes_[id].after;
    return nodes_[id].key == kNever ? kNoPage : head_above(bucket(nodes_[id].key));
  }

 private:
  struct Node {
    PageId before = kNoPage;
    PageId after = kNoPage;
    Tick key = 0;
    bool in = false;
  };
  static constexpr std::size_t kLevels = 6;  // 64^6 covers every key

  /// Bucket 0 is kNever's; the bits never name it.
  static std::size_t bucket(Tick key) { return key == kNever ? 0 : std::size_t{key} + 1; }

  void grow(std::size_t b) {
    std::size_t n = std::max(b + 1, heads_.size() * 2);
    heads_.resize(n, kNoPage);
    for (auto& level : bits_) {
      n = (n + 63) / 64;
      level.resize(std::max(n, level.size()), 0);
    }
  }
  void set(std::size_t b) {
    for (auto& level : bits_) {
      const bool had = level[b / 64] != 0;
      level[b / 64] |= std::uint64_t{1} << (b % 64);
      if (had) return;
      b /= 64;
    }
  }
  void clear(std::size_t b) {
    for (auto& level : bits_) {
      level[b / 64] &= ~(std::uint64_t{1} << (b % 64));
      if (level[b / 64] != 0) return;
      b /= 64;
    }
  }
  PageId head_below(std::size_t b) const {
    for (std::size_t l = 0; l < kLevels; ++l, b /= 64) {
      if (b / 64 >= bits_[l].size()) continue;
      const std::uint64_t lower = bits_[l][b / 64] & ((std::uint64_t{1} << (b % 64)) - 1);
      if (lower == 0) continue;
      b = b / 64 * 64 + static_cast<std::size_t>(63 - std::countl_zero(lower));
      while (l-- > 0) b = b * 64 + static_cast<std::size_t>(63 - std::countl_zero(bits_[l][b]));
      return heads_[b];
    }
    return kNoPage;
  }
  PageId head_above(std::size_t b) const {
    for (std::size_t l = 0; l < kLevels; ++l, b /= 64) {
      if (b / 64 >= bits_[l].size()) break;
      const std::uint64_t higher = bits_[l][b / 64] & (~std::uint64_t{1} << (b % 64));
      if (higher == 0) continue;
      b = b / 64 * 64 + static_cast<std::size_t>(std::countr_zero(higher));
      while (l-- > 0) b = b * 64 + static_cast<std::size_t>(std::countr_zero(bits_[l][b]));
      return heads_[b];
    }
    return heads_[0];
  }

  std::vector<Node> nodes_;
  std::vector<PageId> heads_;
  std::array<std::vector<std::uint64_t>, kLevels> bits_;
  std::uint32_t size_ = 0;
};

}  // namespace lehr::placement
