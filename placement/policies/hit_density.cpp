// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "placement/policies/index_lists.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"forget", "share of the statistics that is kept at each renewal", 0.995, 0.1, 1},
    ParameterInfo{"renewal", "visits between renewals, in multiples of the capacity", 1, 0.01, 100},
    ParameterInfo{"prior", "visits that a class must have seen to count half for itself", 64, 0,
                  1e6},
};

/// Ranks objects by the hits that they bring for the room they take: the largest ratio, over all
/// times to wait, of the odds of a visit until then to the visits it is held for (the Gittins index
/// of waiting for the next visit). The odds are learnt from all visits, resident or not, by class
/// (visits so far; last and mean gap) and by age since the last visit; ages grow by half octaves
/// around the capacity. A newcomer that ranks below all residents is bypassed. Of equal rank what
/// came last leaves first: of a chain of blocks its end, of a scan what it comes back to last.
///
/// Requests read chains of blocks: a new block takes over the count of the block read just before,
/// so that what continues a long conversation is told from what begins one.
class HitDensity final : public Replacement {
 public:
  explicit HitDensity(const Parameters& p)
      : forget_(p.at("forget")), renewal_(p.at("renewal")), prior_(p.at("prior")) {}

  void reset(std::uint32_t capacity, std::uint32_t id_bound) override {
    const double unit = std::max(1.0, capacity / 64.0);
    for (std::uint32_t b = 0; b < kBins; ++b) {
      edge_[b] = static_cast<std::uint64_t>(std::ceil(unit * std::exp2(0.5 * b)));
      if (b > 0) edge_[b] = std::max(edge_[b], edge_[b - 1] + 1);
    }
    period_ = std::max<std::uint64_t>(kShortest, static_cast<std::uint64_t>(renewal_ * capacity));
    std::uint64_t length = 1;
    while (length <= edge_[kBins - 2]) length *= 2;
    log_.assign(length, kNoPage);
    lists_.reset(kClasses * kBins, id_bound);
    objects_.assign(id_bound, Object{});
    seen_.fill({});
    now_ = 0;
    due_ = period_;
    before_ = 0;
    counted_ = kNoPage;
    renew();
  }

  void hit(std::span<const PageId> ids, std::span<const Tick> /*next_use*/) override {
    lists_.rewind();
    for (const PageId id : ids) {
      const std::uint32_t from = cell(id);
      visit(id);
      lists_.transfer(from, cell(id), id);
    }
  }

  PageId victim(PageId incoming, Tick /*next_use*/, std::span<const std::uint16_t> guard) override {
    double limit = HUGE_VAL;
    if (incoming != kNoPage) {
      count_miss(incoming);
      limit = index_[cell(incoming)];
    }
    const PageId found = lowest(limit, guard);
    if (found != kNoPage) return found;
    // Searches pass over what came since they began: look at all once more.
    lists_.rewind();
    const PageId again = lowest(limit, guard);
    if (again != kNoPage) return again;
    counted_ = kNoPage;
    return incoming;
  }

  void evict(PageId id) override { lists_.remove(cell(id), id); }

  void insert(PageId id, Tick /*next_use*/) override {
    count_miss(id);
    counted_ = kNoPage;
    lists_.reach(id);
    lists_.push_newest(cell(id), id);
  }

  void erase(PageId id) override {
    if (id >= objects_.size()) return;
    if (lists_.linked(id)) lists_.remove(cell(id), id);
    objects_[id] = {};
    if (counted_ == id) counted_ = kNoPage;
  }

 private:
  static constexpr std::uint32_t kBins = 28;
  static constexpr std::uint32_t kTurns = 8;
  static constexpr std::uint32_t kGaps = 7;
  static constexpr std::uint32_t kClasses = kTurns * kGaps;
  static constexpr std::uint16_t kMostTurns = 60'000;
  static constexpr std::uint64_t kShortest = 1024;  ///< visits between renewals

  struct Object {
    std::uint64_t first = 0;   ///< visit number, from 1; 0: never
    std::uint64_t last = 0;    ///< the same
    std::uint32_t visits = 0;  ///< of its own
    std::uint16_t turns = 0;   ///< those of the chain it continues, and its own since
    std::uint8_t gap = 0;      ///< class
    std::uint8_t bin = 0;      ///< of the age
  };
  struct Seen {
    double reached = 0;  ///< objects that came to this age
    double visited = 0;  ///< and were visited at it
  };

  static std::uint32_t turn_class(std::uint32_t turns) {
    constexpr std::array<std::uint32_t, kTurns - 1> kLast{1, 2, 4, 8, 16, 32, 100};
    return static_cast<std::uint32_t>(std::lower_bound(kLast.begin(), kLast.end(), turns) -
                                      kLast.begin());
  }
  /// 0 is for objects that were visited once.
  static std::uint8_t gap_class(std::uint32_t bin) {
    constexpr std::array<std::uint32_t, kGaps - 2> kFirst{6, 10, 13, 16, 19};
    return static_cast<std::uint8_t>(
        1 + (std::upper_bound(kFirst.begin(), kFirst.end(), bin) - kFirst.begin()));
  }
  std::uint32_t cell(PageId id) const {
    const Object& o = objects_[id];
    return (turn_class(o.turns) * kGaps + o.gap) * kBins + o.bin;
  }

  /// Of lowest index below `limit`, or kNoPage.
  PageId lowest(double limit, std::span<const std::uint16_t> guard) {
    for (const std::uint32_t c : order_) {
      if (index_[c] >= limit) break;
      if (lists_.size(c) == 0) continue;
      const PageId v = lists_.newest_free(c, guard);
      if (v != kNoPage) return v;
    }
    return kNoPage;
  }

  /// A miss is counted once, whether victim() or insert() hears of it first.
  void count_miss(PageId id) {
    if (counted_ == id) return;
    if (id >= objects_.size()) objects_.resize(std::max<std::size_t>(id + 1, 2 * objects_.size()));
    visit(id);
    counted_ = id;
  }

  void visit(PageId id) {
    counted_ = kNoPage;
    ++now_;
    Object& o = objects_[id];
    if (o.last == 0) {
      o.turns = std::max<std::uint16_t>(1, before_);
      o.first = now_;
    } else {
      seen_[cell(id)].visited += 1;
      const std::uint64_t mean = (now_ - o.first + o.visits - 1) / o.visits;
      const auto mean_bin = static_cast<std::uint32_t>(
          std::lower_bound(edge_.begin(), edge_.end() - 1, mean) - edge_.begin());
      o.gap = gap_class((mean_bin + o.bin + 1) / 2);
      if (o.turns < kMostTurns) ++o.turns;
    }
    ++o.visits;
    before_ = o.turns;
    o.last = now_;
    o.bin = 0;
    seen_[cell(id)].reached += 1;
    grow_older();
    log_[now_ & (log_.size() - 1)] = id;
    if (now_ >= due_) {
      due_ = now_ + period_;
      for (Seen& s : seen_) {
        s.reached *= forget_;
        s.visited *= forget_;
      }
      renew();
    }
  }

  /// Objects last visited exactly an edge ago come to the next bin.
  void grow_older() {
    for (std::uint32_t b = 0; b + 1 < kBins; ++b) {
      if (now_ <= edge_[b]) break;
      const std::uint64_t then = now_ - edge_[b];
      const PageId id = log_[then & (log_.size() - 1)];
      if (id == kNoPage || objects_[id].last != then) continue;
      const std::uint32_t from = cell(id);
      objects_[id].bin = static_cast<std::uint8_t>(b + 1);
      seen_[from + 1].reached += 1;
      if (lists_.linked(id)) {
        lists_.rewind();
        lists_.transfer(from, from + 1, id);
      }
    }
  }

  /// The largest ratio of hits to room over all times to wait, for an object of that age.
  double best_ratio(const std::array<double, kBins>& odds, std::uint32_t age) const {
    double alive = 1;
    double hits = 0;
    double room = 0;
    double best = 0;
    for (std::uint32_t b = age; b < kBins; ++b) {
      // Past the last edge: as long again.
      const std::uint64_t from = b == 0 ? 0 : b + 1 < kBins ? edge_[b - 1] : 0;
      const std::uint64_t to = b + 1 < kBins ? edge_[b] : edge_[kBins - 2];
      hits += alive * odds[b];
      room += alive * static_cast<double>(to - from) * (1 - odds[b] / 2);
      alive *= 1 - odds[b];
      best = std::max(best, hits / room);
    }
    return best;
  }

  void renew() {
    std::array<Seen, kBins> all{};
    for (std::uint32_t c = 0; c < kClasses * kBins; ++c) {
      all[c % kBins].reached += seen_[c].reached;
      all[c % kBins].visited += seen_[c].visited;
    }
    std::array<double, kBins> odds{};
    for (std::uint32_t c = 0; c < kClasses; ++c) {
      for (std::uint32_t b = 0; b < kBins; ++b) {
        const Seen& s = seen_[c * kBins + b];
        const double common = (all[b].visited + 1e-3) / (all[b].reached + 1);
        odds[b] = std::min(0.999, (s.visited + prior_ * common) / (s.reached + prior_ + 1e-9));
      }
      for (std::uint32_t b = 0; b < kBins; ++b) index_[c * kBins + b] = best_ratio(odds, b);
    }
    order_.resize(kClasses * kBins);
    std::iota(order_.begin(), order_.end(), 0U);
    std::stable_sort(order_.begin(), order_.end(),
                     [this](std::uint32_t a, std::uint32_t b) { return index_[a] < index_[b]; });
  }

  double forget_;
  double renewal_;
  double prior_;
  std::array<std::uint64_t, kBins>
      edge_{};  ///< last age of each bin, in visits; the last bin has none
  std::uint64_t period_ = 1;
  std::uint64_t now_ = 0;
  std::uint64_t due_ = 0;
  std::vector<PageId> log_;  ///< who was visited, by visit number
  std::vector<Object> objects_;
  IndexLists lists_;  ///< residents, by class and age
  std::array<Seen, kClasses * kBins> seen_{};
  std::array<double, kClasses * kBins> index_{};
  std::vector<std::uint32_t> order_;  ///< cells, the lowest index first
  std::uint16_t before_ = 0;          ///< turns of the object visited last
  PageId counted_ = kNoPage;
};

}  // namespace

const PolicyDescriptor& hit_density_descriptor() {
  static const PolicyDescriptor descriptor{
      "hit-density",
      "keeps what brings most hits for the room it takes, by odds learnt for classes and ages",
      kParameters,
      {.block_cache = true},
      nullptr,
      [](const Parameters& p) -> std::unique_ptr<Replacement> {
        return std::make_unique<HitDensity>(p);
      },
  };
  return descriptor;
}

}  // namespace lehr::placement
