// SPDX-License-Identifier: Apache-2.0
#include "kernels/select.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <vector>

#include <fmt/format.h>

namespace lehr::kernels {
namespace {

float effective(float score) {
  return std::isnan(score) ? std::numeric_limits<float>::infinity() : score;
}

bool forced(const SelectParams& params, std::uint32_t pages, std::uint32_t page) {
  const std::uint32_t recent = std::max(params.recent, 1U);
  return page < params.sinks || page + recent >= pages;
}

/// Pages best first: higher score, then lower page.
std::vector<std::uint32_t> ranked(const float* scores, std::uint32_t pages) {
  std::vector<std::uint32_t> order(pages);
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return effective(scores[a]) > effective(scores[b]);
  });
  return order;
}

std::uint32_t wanted_by_ratio(float ratio, std::uint32_t pages) {
  const float exact = ratio * static_cast<float>(pages);
  return std::min(pages, static_cast<std::uint32_t>(std::ceil(exact)));
}

/// The fewest of the best pages that hold the share, at most `most`.
std::uint32_t wanted_by_mass(const float* scores, const std::vector<std::uint32_t>& order,
                             float share, double scale, std::uint32_t most) {
  if (order.empty()) return 0;
  const double top = effective(scores[order[0]]);
  const auto weight = [&](std::uint32_t page) {
    const double s = effective(scores[page]);
    return s == top ? 1.0 : std::exp2((s - top) * scale * std::numbers::log2e);
  };
  double all = 0;
  for (std::uint32_t page = 0; page < order.size(); ++page) all += weight(page);
  double sum = 0;
  std::uint32_t n = 0;
  while (n < most && sum < double{share} * all) sum += weight(order[n++]);
  return n;
}

/// By page: what is always in, then the best until there are `wanted`.
std::vector<bool> chosen(const SelectParams& params, const std::vector<std::uint32_t>& order,
                         std::uint32_t wanted) {
  const auto pages = static_cast<std::uint32_t>(order.size());
  std::vector<bool> in(pages, false);
  std::uint32_t taken = 0;
  for (std::uint32_t page = 0; page < pages; ++page) {
    in[page] = forced(params, pages, page);
    taken += in[page] ? 1 : 0;
  }
  const std::uint32_t room = std::min(std::max(wanted, taken), params.pitch);
  for (const std::uint32_t page : order) {
    if (taken >= room) break;
    if (in[page]) continue;
    in[page] = true;
    ++taken;
  }
  return in;
}

}  // namespace

Status check_select(const StepShape& shape, const SelectParams& params) {
  LEHR_TRY(check_shape(shape));
  if (static_cast<std::uint32_t>(params.by) > 2) return invalid("select by: an unknown rule");
  if (params.by != SelectBy::kCount && !(params.ratio >= 0.0F && params.ratio <= 1.0F)) {
    return invalid("ratio must be 0 to 1");
  }
  if (!std::isfinite(params.scale)) return invalid("scale must be finite");
  const std::uint64_t always = std::uint64_t{params.sinks} + std::max(params.recent, 1U);
  if (params.pitch == 0 || params.pitch > shape.max_pages ||
      std::min<std::uint64_t>(always, shape.max_pages) > params.pitch) {
    return invalid(
        fmt::format(
            "pitch {}; it must hold sinks and recent pages ({}) and not pass max_pages ({})",
            params.pitch, always, shape.max_pages),
        Reason::kOutOfRange);
  }
  if (shape.sequences == 0) return {};
  LEHR_TRY(check_pointer(params.scores, 4, "scores"));
  LEHR_TRY(check_pointer(params.lengths, 4, "lengths"));
  LEHR_TRY(check_pointer(params.selection, 4, "selection"));
  return check_pointer(params.counts, 4, "counts");
}

Status select_reference(const StepShape& shape, const SelectParams& params) {
  LEHR_TRY(check_select(shape, params));
  const double scale =
      params.scale != 0 ? double{params.scale} : 1 / std::sqrt(double(shape.head_dim));
  for (std::size_t group = 0; group < shape.groups(); ++group) {
    const std::uint32_t pages =
        std::min(shape.pages_for(params.lengths[group / shape.kv_heads]), shape.max_pages);
    const float* scores = params.scores + group * shape.max_pages;
    const std::vector<std::uint32_t> order = ranked(scores, pages);
    std::uint32_t wanted = std::min(params.count, pages);
    if (params.by == SelectBy::kRatio) wanted = wanted_by_ratio(params.ratio, pages);
    if (params.by == SelectBy::kMass)
      wanted = wanted_by_mass(scores, order, params.ratio, scale, wanted);
    const std::vector<bool> in = chosen(params, order, wanted);
    std::uint32_t n = 0;
    for (std::uint32_t page = 0; page < pages; ++page) {
      if (in[page]) params.selection[group * params.pitch + n++] = page;
    }
    params.counts[group] = n;
  }
  return {};
}

}  // namespace lehr::kernels
