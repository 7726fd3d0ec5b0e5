// SPDX-License-Identifier: Apache-2.0
#include "placement/block_cache.hpp"

#include <algorithm>
#include <string>

namespace lehr::placement {

namespace {

Status validate(const RequestBlocks& t) {
  if (t.block_tokens == 0) return invalid("requests: blocks of no tokens");
  if (t.first.size() != t.requests() + 1 || t.first.front() != 0 ||
      t.first.back() != t.blocks.size()) {
    return invalid("requests: offsets do not cover the blocks");
  }
  if (t.blocks.size() >= kNever) return invalid("requests: too many block visits");
  for (std::size_t r = 0; r < t.requests(); ++r) {
    if (t.first[r] > t.first[r + 1]) {
      return invalid("request " + std::to_string(r) + ": offsets fall");
    }
  }
  for (const PageId b : t.blocks) {
    if (b >= t.distinct) {
      return invalid("requests: block id " + std::to_string(b) + " is not below " +
                     std::to_string(t.distinct));
    }
  }
  return {};
}

/// For each visit the next visit of the same block.
std::vector<Tick> next_visits(const RequestBlocks& t) {
  std::vector<Tick> next(t.blocks.size(), kNever);
  std::vector<Tick> seen(t.distinct, kNever);
  for (std::size_t i = t.blocks.size(); i-- > 0;) {
    next[i] = seen[t.blocks[i]];
    seen[t.blocks[i]] = static_cast<Tick>(i);
  }
  return next;
}

class BlockCache {
 public:
  BlockCache(const RequestBlocks& trace, std::span<const Tick> next, Replacement& order,
             std::uint32_t capacity, EvictForm form)
      : t_(trace),
        next_(next),
        order_(order),
        capacity_(capacity),
        form_(form),
        resident_(trace.distinct, 0),
        guard_(trace.distinct, 0),
        children_(trace.distinct, 0),
        parent_(trace.distinct, kNoPage) {
    order_.reset(capacity, trace.distinct);
  }

  BlockCacheRun run() {
    BlockCacheRun out;
    out.capacity = capacity_;
    for (std::size_t r = 0; r < t_.requests(); ++r) {
      const BlockHits here = request(r);
      add(out.all, here);
      if (r >= t_.requests() / 2) add(out.last_half, here);
    }
    return out;
  }

 private:
  static void add(BlockCount& to, const BlockCount& from) {
    to.blocks += from.blocks;
    to.tokens += from.tokens;
  }
  static void add(BlockHits& to, const BlockHits& from) {
    add(to.visits, from.visits);
    add(to.hits, from.hits);
    add(to.prefix_hits, from.prefix_hits);
  }

  BlockHits request(std::size_t r) {
    BlockHits out;
    bool prefix = true;
    PageId before = kNoPage;  // the block before, if it is resident
    std::uint64_t tokens_left = t_.input_length[r];
    for (std::uint64_t i = t_.first[r]; i < t_.first[r + 1]; ++i) {
      const PageId block = t_.blocks[i];
      const BlockCount one{1, std::min<std::uint64_t>(tokens_left, t_.block_tokens)};
      tokens_left -= one.tokens;
      add(out.visits, one);
      const Tick next = next_.empty() ? kNever : next_[i];
      if (resident_[block] != 0) {
        add(out.hits, one);
        if (prefix) add(out.prefix_hits, one);
        order_.hit({&block, 1}, next_.empty() ? std::span<const Tick>() : std::span(&next, 1));
      } else {
        prefix = false;
        // In a radix cache a block hangs on the one before it.
        const bool hangs = form_ == EvictForm::kAny || i == t_.first[r] || before != kNoPage;
        if (hangs) {
          admit(block, next, before);
        } else if (residents_ >= capacity_) {
          order_.victim(block, next, guard_);  // a visit all the same: counts may admit it later
        }
      }
      before = resident_[block] != 0 ? block : kNoPage;
    }
    return out;
  }

  void admit(PageId block, Tick next, PageId before) {
    const bool leaf = form_ == EvictForm::kLeaf && before != kNoPage;
    if (leaf) hold(before);  // it must not leave to make room for its own continuation
    if (make_room(block, next)) {
      order_.insert(block, next);
      resident_[block] = 1;
      ++residents_;
      if (leaf) {
        parent_[block] = before;
        return;  // and stays held by it
      }
    } else if (leaf) {
      release(before);
    }
  }

  bool make_room(PageId block, Tick next) {
    while (residents_ >= capacity_) {
      const PageId v = order_.victim(block, next, guard_);
      if (v == kNoPage || v == block) return false;
      order_.evict(v);
      resident_[v] = 0;
      --residents_;
      if (parent_[v] != kNoPage) release(parent_[v]);
      parent_[v] = kNoPage;
    }
    return true;
  }

  void hold(PageId block) {
    ++children_[block];
    guard_[block] = 1;
  }
  void release(PageId block) {
    if (--children_[block] != 0) return;
    guard_[block] = 0;
    order_.hit({}, {});  // a guard fell: searches start afresh
  }

  const RequestBlocks& t_;
  std::span<const Tick> next_;
  Replacement& order_;
  std::uint32_t capacity_;
  EvictForm form_;
  std::uint32_t residents_ = 0;
  std::vector<std::uint8_t> resident_;
  std::vector<std::uint16_t> guard_;  ///< 1 with resident children; leaf form only
  std::vector<std::uint32_t> children_;
  std::vector<PageId> parent_;  ///< whom a resident block holds
};

}  // namespace

Result<std::vector<BlockCacheRun>> replay_blocks(const RequestBlocks& trace,
                                                 const PolicyDescriptor& policy,
                                                 const Parameters& parameters,
                                                 std::span<const std::uint32_t> capacities,
                                                 EvictForm form) {
  if (policy.make_replacement == nullptr) {
    return unsupported(std::string("policy ") + policy.name + " is no block cache");
  }
  LEHR_ASSIGN(const Parameters complete,
              resolve_parameters(policy.name, policy.parameters, parameters));
  LEHR_TRY(validate(trace));
  const std::vector<Tick> next =
      policy.traits.needs_future ? next_visits(trace) : std::vector<Tick>();
  std::vector<BlockCacheRun> out;
  for (const std::uint32_t capacity : capacities) {
    if (capacity == 0) return invalid("requests: a cache of no blocks");
    const std::unique_ptr<Replacement> order = policy.make_replacement(complete);
    out.push_back(BlockCache(trace, next, *order, capacity, form).run());
  }
  return out;
}

}  // namespace lehr::placement
