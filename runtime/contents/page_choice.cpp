// SPDX-License-Identifier: Apache-2.0
#include "runtime/contents/page_choice.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

namespace lehr::contents {

namespace {

float effective(float score) {
  return std::isnan(score) ? std::numeric_limits<float>::infinity() : score;
}

/// The fewest of `order` whose weights reach the rule's share of the sum.
std::uint32_t by_mass(const ChoiceRule& rule, std::span<const float> scores, double scale,
                      std::span<const std::uint32_t> order) {
  const double top = effective(scores[order[0]]);
  const auto weight = [&](std::uint32_t page) {
    const double s = effective(scores[page]);
    return s == top ? 1.0 : std::exp2((s - top) * scale * std::numbers::log2e);
  };
  double all = 0;
  for (std::uint32_t page = 0; page < scores.size(); ++page) all += weight(page);
  double sum = 0;
  std::uint32_t n = 0;
  while (n < order.size() && sum < rule.amount * all) sum += weight(order[n++]);
  return n;
}

}  // namespace

void choose_pages(const ChoiceRule& rule, std::span<const float> scores, double scale,
                  std::vector<std::uint32_t>& out) {
  const auto pages = static_cast<std::uint32_t>(scores.size());
  std::vector<std::uint32_t> order(pages);
  std::iota(order.begin(), order.end(), 0U);
  const std::uint32_t recent = std::max(rule.recent, 1U);
  const auto forced = [&](std::uint32_t page) {
    return page < rule.sinks || std::uint64_t{page} + recent >= pages;
  };
  std::uint32_t always = 0;
  for (std::uint32_t page = 0; page < pages; ++page) always += forced(page) ? 1U : 0U;
  std::uint32_t wanted = pages;
  if (rule.by == ChoiceRule::By::kCount) {
    wanted = static_cast<std::uint32_t>(std::min(rule.amount, static_cast<double>(pages)));
  } else if (rule.by == ChoiceRule::By::kRatio) {
    // In float, as the kernels do, so that both choose the same number.
    const float exact = static_cast<float>(rule.amount) * static_cast<float>(pages);
    wanted = std::min(pages, static_cast<std::uint32_t>(std::ceil(exact)));
  }
  if (rule.by != ChoiceRule::By::kAll && pages > 0) {
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return effective(scores[a]) > effective(scores[b]);
    });
    if (rule.by == ChoiceRule::By::kMass) wanted = by_mass(rule, scores, scale, order);
  }
  wanted = std::max(wanted, always);
  std::vector<bool> in(pages);
  std::uint32_t taken = always;
  for (std::uint32_t page = 0; page < pages; ++page) in[page] = forced(page);
  for (const std::uint32_t page : order) {
    if (taken >= wanted) break;
    if (in[page]) continue;
    in[page] = true;
    ++taken;
  }
  out.clear();
  for (std::uint32_t page = 0; page < pages; ++page) {
    if (in[page]) out.push_back(page);
  }
}

}  // namespace lehr::contents
