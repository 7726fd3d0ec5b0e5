// SPDX-License-Identifier: Apache-2.0
#include "placement/greedy_shares.hpp"

#include <queue>

namespace lehr::placement {

namespace {

constexpr std::uint32_t kTogether = 16;  // bins weighed as one: two octaves

/// Bins that a group could get next.
struct Offer {
  double density = 0;  ///< seconds saved a page
  std::uint32_t share = 0;
  std::uint32_t bins = 0;
  std::uint64_t pages = 0;
  double odds = 0;
  std::uint32_t version = 0;  ///< of the layer's misses that it was made for

  bool operator<(const Offer& o) const {  // queues of std put the largest first
    return density != o.density ? density < o.density : share > o.share;
  }
};

class Greedy {
 public:
  Greedy(std::span<const OddsHistogram> groups, const MissCost& cost, std::uint32_t layers,
         std::uint64_t capacity, std::vector<Share>& shares)
      : groups_(groups),
        cost_(cost),
        room_(capacity),
        shares_(shares),
        misses_(layers, 0.0),
        version_(layers, 0) {
    for (Share& s : shares_) {
      s.least = OddsHistogram::kBins;
      for (std::uint32_t b = 0; b < OddsHistogram::kBins; ++b) {
        misses_[s.layer] += groups_[s.group].odds(b);
      }
    }
  }

  Seconds run() {
    for (std::uint32_t i = 0; i < shares_.size(); ++i) offer(i);
    while (!offers_.empty()) {
      const Offer best = offers_.top();
      offers_.pop();
      Share& share = shares_[best.share];
      if (best.version == version_[share.layer] && best.pages <= room_) {
        share.least -= best.bins;
        room_ -= best.pages;
        misses_[share.layer] -= best.odds;
        ++version_[share.layer];
      }
      offer(best.share);
    }
    Seconds sum = 0;
    for (const double m : misses_) sum += cost_.at(m);
    return sum;
  }

 private:
  /// The group's best next bins, if any fit and save time.
  void offer(std::uint32_t index) {
    const Share& share = shares_[index];
    const OddsHistogram& h = groups_[share.group];
    const double misses = misses_[share.layer];
    const Seconds now = cost_.at(misses);
    Offer best{0, index, 0, 0, 0, version_[share.layer]};
    std::uint64_t pages = 0;
    double odds = 0;
    std::uint32_t filled = 0;  // bins with pages in them
    for (std::uint32_t n = 1; n <= share.least && filled < kTogether; ++n) {
      const std::uint32_t in_bin = h.pages(share.least - n);
      if (in_bin == 0) continue;
      ++filled;
      pages += in_bin;
      odds += h.odds(share.least - n);
      if (pages > room_) break;
      const double density = (now - cost_.at(misses - odds)) / static_cast<double>(pages);
      if (density <= best.density) continue;
      best.density = density;
      best.bins = n;
      best.pages = pages;
      best.odds = odds;
    }
    if (best.bins > 0) offers_.push(best);
  }

  std::span<const OddsHistogram> groups_;
  const MissCost& cost_;
  std::uint64_t room_;
  std::vector<Share>& shares_;
  std::vector<double> misses_;          ///< by layer
  std::vector<std::uint32_t> version_;  ///< by layer: how often its misses have changed
  std::priority_queue<Offer> offers_;
};

}  // namespace

Result<Seconds> greedy_shares(std::span<const OddsHistogram> groups, const MissCost& cost,
                              std::uint32_t layers, std::uint64_t capacity,
                              std::vector<Share>& shares) {
  LEHR_TRY(check_shares(groups, layers, shares));
  return Greedy(groups, cost, layers, capacity, shares).run();
}

}  // namespace lehr::placement
