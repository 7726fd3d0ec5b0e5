// SPDX-License-Identifier: Apache-2.0
#include "placement/promotion_times.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/rng.hpp"

namespace lehr::placement {

namespace {

Status check(const PromotionProblem& problem) {
  if (problem.cost == nullptr) return invalid("promotion times: no cost");
  if (!(problem.hold >= 0) || !std::isfinite(problem.hold))
    return invalid("promotion times: a slot's worth is no time");
  for (const PromotionProblem::Layer& layer : problem.layers) {
    bool numbers = layer.misses >= 0 && std::isfinite(layer.misses) && layer.idle_pages >= 0 &&
                   std::isfinite(layer.idle_pages);
    for (const double odds : layer.odds) numbers = numbers && odds >= 0 && odds <= 1;
    if (!numbers) return invalid("promotion times: a layer's expectations are no numbers");
  }
  return {};
}

}  // namespace

Seconds PromotionTimes::time(const PromotionProblem& problem,
                             std::span<const std::uint32_t> starts) {
  const auto count = static_cast<std::uint32_t>(problem.layers.size());
  order_.resize(count);
  for (std::uint32_t l = 0; l < count; ++l) order_[l] = l;
  std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return starts[a] != starts[b] ? starts[a] < starts[b] : a < b;
  });
  saved_.assign(count, 0);
  Seconds held = 0;
  std::size_t next = 0;  // in order_
  std::size_t page = 0;  // of that layer
  double left = 0;       // of the link in `now`, in pages
  for (std::uint32_t now = 0; now < count && next < count; ++now) {
    left += problem.layers[now].idle_pages;
    while (next < count) {
      const std::uint32_t layer = order_[next];
      if (starts[layer] > now) break;
      const std::vector<double>& odds = problem.layers[layer].odds;
      if (page == odds.size() || layer <= now) {  // all across, or too late
        ++next;
        page = 0;
        continue;
      }
      if (left < 1) break;
      left -= 1;
      saved_[layer] += odds[page++];
      held += problem.hold * (layer - now);
    }
    // What nobody asked for is lost; a page under way goes on.
    if (next == count || starts[order_[next]] > now) left = 0;
  }
  Seconds sum = held;
  for (std::uint32_t l = 0; l < count; ++l)
    sum += problem.cost->at(std::max(0.0, problem.layers[l].misses - saved_[l]));
  return sum;
}

Status PromotionTimes::run(const PromotionProblem& problem, std::uint64_t proposals,
                           std::uint64_t seed, std::vector<std::uint32_t>& starts,
                           PromotionTimesResult& result) {
  result = {};
  LEHR_TRY(check(problem));
  const auto count = static_cast<std::uint32_t>(problem.layers.size());
  starts.resize(count, 0);
  for (std::uint32_t l = 0; l < count; ++l) {
    if (starts[l] >= std::max(l, 1U)) starts[l] = 0;
  }
  Seconds now = result.before = result.after = time(problem, starts);
  if (count < 2) return {};
  constexpr double kHot = 1e-3;
  Rng rng(seed);
  best_ = starts;
  for (std::uint64_t n = 0; n < proposals; ++n) {
    const std::uint32_t l = 1 + rng.below(count - 1);
    const std::uint32_t was = starts[l];
    starts[l] = rng.below(l);
    if (starts[l] == was) continue;
    const Seconds then = time(problem, starts);
    const double rest = 1 - static_cast<double>(n) / static_cast<double>(proposals);
    if (then > now && then - now > kHot * rest * now * rng.uniform() * rng.uniform()) {
      starts[l] = was;
      continue;
    }
    now = then;
    if (now < result.after) {
      result.after = now;
      best_ = starts;
    }
  }
  starts = best_;
  return {};
}

}  // namespace lehr::placement
