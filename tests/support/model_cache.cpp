// SPDX-License-Identifier: Apache-2.0
#include "tests/support/model_cache.hpp"

#include <algorithm>
#include <bit>
#include <deque>
#include <map>

namespace lehr::test {

namespace {

using Queue = std::deque<PageId>;  // front: next to leave

bool has(const Queue& q, PageId id) { return std::find(q.begin(), q.end(), id) != q.end(); }
bool take(Queue& q, PageId id) {
  const auto it = std::find(q.begin(), q.end(), id);
  if (it == q.end()) return false;
  q.erase(it);
  return true;
}
PageId pop(Queue& q) {
  const PageId id = q.front();
  q.pop_front();
  return id;
}

class Lru final : public ModelCache {
 public:
  explicit Lru(std::size_t capacity) : capacity_(capacity) {}
  bool visit(PageId id) override {
    const bool hit = take(queue_, id);
    if (!hit && queue_.size() == capacity_) queue_.pop_front();
    queue_.push_back(id);
    return hit;
  }

 private:
  std::size_t capacity_;
  Queue queue_;
};

class Lfu final : public ModelCache {
 public:
  explicit Lfu(std::size_t capacity) : capacity_(capacity) {}
  bool visit(PageId id) override {
    std::size_t residents = 0;
    unsigned count = 0;
    bool hit = false;
    for (auto& [c, queue] : queues_) {
      if (take(queue, id)) {
        hit = true;
        count = c;
      }
      residents += queue.size();
    }
    if (!hit && residents == capacity_) {
      for (auto& [c, queue] : queues_) {
        if (queue.empty()) continue;
        queue.pop_front();
        break;
      }
    }
    queues_[hit ? std::min(count + 1, 255U) : 1].push_back(id);
    if (++visits_ >= 10 * capacity_ + 1) {
      visits_ = 0;
      std::map<unsigned, Queue> halved;
      for (const auto& [c, queue] : queues_) {
        Queue& to = halved[c / 2];
        to.insert(to.end(), queue.begin(), queue.end());
      }
      queues_ = std::move(halved);
    }
    return hit;
  }

 private:
  std::size_t capacity_;
  std::size_t visits_ = 0;
  std::map<unsigned, Queue> queues_;
};

/// Figure 4 of the paper, case by case.
class Arc final : public ModelCache {
 public:
  explicit Arc(std::size_t capacity) : c_(capacity) {}
  bool visit(PageId x) override {
    if (take(t1_, x) || take(t2_, x)) {
      t2_.push_back(x);
      return true;
    }
    if (has(b1_, x)) {
      p_ = std::min(c_, p_ + std::max<std::size_t>(1, b2_.size() / b1_.size()));
      replace(false);
      take(b1_, x);
      t2_.push_back(x);
    } else if (has(b2_, x)) {
      p_ -= std::min(p_, std::max<std::size_t>(1, b1_.size() / b2_.size()));
      replace(true);
      take(b2_, x);
      t2_.push_back(x);
    } else {
      const std::size_t l1 = t1_.size() + b1_.size();
      const std::size_t l2 = t2_.size() + b2_.size();
      if (l1 == c_) {
        if (t1_.size() < c_) {
          b1_.pop_front();
          replace(false);
        } else {
          t1_.pop_front();
        }
      } else if (l1 + l2 >= c_) {
        if (l1 + l2 == 2 * c_) b2_.pop_front();
        replace(false);
      }
      t1_.push_back(x);
    }
    return false;
  }

 private:
  void replace(bool in_b2) {
    if (!t1_.empty() && ((in_b2 && t1_.size() == p_) || t1_.size() > p_)) {
      b1_.push_back(pop(t1_));
    } else {
      b2_.push_back(pop(t2_));
    }
  }
  std::size_t c_;
  std::size_t p_ = 0;
  Queue t1_, t2_, b1_, b2_;
};

class S3Fifo final : public ModelCache {
 public:
  explicit S3Fifo(std::size_t capacity)
      : capacity_(capacity),
        small_target_(std::max<std::size_t>(1, capacity / 10)),
        ghosts_(static_cast<std::size_t>(0.9 * static_cast<double>(capacity))) {}
  bool visit(PageId id) override {
    if (has(small_, id) || has(main_, id)) {
      visits_[id] = std::min(visits_[id] + 1, 3);
      return true;
    }
    while (small_.size() + main_.size() >= capacity_) evict();
    if (take(ghost_, id)) {
      main_.push_back(id);
    } else {
      small_.push_back(id);
    }
    visits_[id] = 0;
    return false;
  }

 private:
  void evict() {
    for (;;) {
      if (!small_.empty() && (small_.size() >= small_target_ || main_.empty())) {
        const PageId id = pop(small_);
        if (visits_[id] >= 2) {
          main_.push_back(id);
          visits_[id] = 0;
          continue;
        }
        ghost_.push_back(id);
        while (ghost_.size() > ghosts_) ghost_.pop_front();
        return;
      }
      const PageId id = pop(main_);
      if (visits_[id] == 0) return;
      --visits_[id];
      main_.push_back(id);
    }
  }
  std::size_t capacity_, small_target_, ghosts_;
  Queue small_, main_, ghost_;
  std::map<PageId, int> visits_;
};

/// The paper's description, with a limit on the ghosts: the oldest to leave is forgotten first.
class Lirs final : public ModelCache {
 public:
  explicit Lirs(std::size_t capacity) : capacity_(capacity) {
    const std::size_t hir =
        std::max<std::size_t>(1, static_cast<std::size_t>(0.01 * static_cast<double>(capacity)));
    lir_target_ = capacity > hir ? capacity - hir : 0;
  }
  bool visit(PageId id) override {
    if (has(lir_, id)) {
      take(stack_, id);
      stack_.push_back(id);
      prune();
      return true;
    }
    if (has(queue_, id)) {
      take(queue_, id);
      if (take(stack_, id)) {
        become_lir(id);
      } else {
        stack_.push_back(id);
        queue_.push_back(id);
      }
      return true;
    }
    if (lir_.size() + queue_.size() == capacity_) {
      const PageId out = pop(queue_);
      if (has(stack_, out)) {
        ghosts_.push_back(out);
        if (ghosts_.size() > 2 * capacity_) take(stack_, pop(ghosts_));
      }
    }
    if (take(ghosts_, id)) {
      take(stack_, id);
      become_lir(id);
    } else if (lir_.size() < lir_target_) {
      stack_.push_back(id);
      lir_.push_back(id);
    } else {
      stack_.push_back(id);
      queue_.push_back(id);
    }
    return false;
  }

 private:
  void become_lir(PageId id) {
    stack_.push_back(id);
    lir_.push_back(id);
    prune();
    if (lir_.size() <= lir_target_) return;
    const PageId bottom = pop(stack_);
    take(lir_, bottom);
    queue_.push_back(bottom);
    prune();
  }
  void prune() {
    while (!stack_.empty() && !has(lir_, stack_.front())) take(ghosts_, pop(stack_));
  }
  std::size_t capacity_;
  std::size_t lir_target_;
  Queue stack_, queue_, ghosts_, lir_;  // lir_ is a set
};

}  // namespace

std::unique_ptr<ModelCache> model_cache(const std::string& name, std::uint32_t capacity) {
  if (name == "lru") return std::make_unique<Lru>(capacity);
  if (name == "lfu") return std::make_unique<Lfu>(capacity);
  if (name == "arc") return std::make_unique<Arc>(capacity);
  if (name == "s3-fifo") return std::make_unique<S3Fifo>(capacity);
  if (name == "lirs") return std::make_unique<Lirs>(capacity);
  return nullptr;
}

DrivenCache::DrivenCache(placement::Replacement& order, std::uint32_t capacity)
    : order_(order), capacity_(capacity) {
  order_.reset(capacity, 0);
}

void DrivenCache::hold(PageId id) {
  if (id >= guard_.size()) guard_.resize(id + std::size_t{1}, 0);
  ++guard_[id];
}

void DrivenCache::release(PageId id) {
  --guard_[id];
  order_.hit({}, {});
}

bool DrivenCache::visit(PageId id, Tick next_use) {
  if (id >= resident_.size()) resident_.resize(id + std::size_t{1}, false);
  if (resident_[id]) {
    order_.hit({&id, 1}, {&next_use, 1});
    return true;
  }
  if (residents_ == capacity_) {
    const PageId v = order_.victim(id, next_use, guard_);
    if (v == id || v == kNoPage) return false;
    if (!resident(v) || (v < guard_.size() && guard_[v] != 0)) broken_ = true;
    if (broken_) return false;
    order_.evict(v);
    resident_[v] = false;
    --residents_;
    evicted_.push_back(v);
  }
  order_.insert(id, next_use);
  resident_[id] = true;
  ++residents_;
  return false;
}

std::uint64_t fewest_misses(const std::vector<std::vector<PageId>>& batches,
                            std::uint32_t capacity) {
  std::map<unsigned, std::uint64_t> cost{{0U, 0U}};  // by resident set
  for (const auto& batch : batches) {
    unsigned read = 0;
    for (const PageId id : batch) read |= 1U << id;
    std::map<unsigned, std::uint64_t> next;
    for (const auto& [set, misses] : cost) {
      const std::uint64_t now = misses + static_cast<unsigned>(std::popcount(read & ~set));
      const unsigned all = set | read;
      const unsigned stays = set & read;
      for (unsigned sub = all;; sub = (sub - 1) & all) {
        if ((sub & stays) == stays && static_cast<unsigned>(std::popcount(sub)) <= capacity) {
          const auto [it, fresh] = next.emplace(sub, now);
          if (!fresh) it->second = std::min(it->second, now);
        }
        if (sub == 0) break;
      }
    }
    cost = std::move(next);
  }
  std::uint64_t best = ~std::uint64_t{0};
  for (const auto& entry : cost) best = std::min(best, entry.second);
  return best;
}

}  // namespace lehr::test
