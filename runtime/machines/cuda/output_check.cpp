// SPDX-License-Identifier: Apache-2.0
#include "runtime/machines/cuda/output_check.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/half.hpp"
#include "kernels/base/ids.hpp"
#include "kernels/decode_step.hpp"

namespace lehr::runtime::cuda {

namespace {

/// One KV group of one layer.
struct Group {
  const kernels::StepShape& shape;
  const kernels::PageSource& source;
  std::span<const std::uint16_t> pages;
  std::span<const std::uint32_t> names;
  std::uint32_t length;
  std::uint32_t tail;

  double element(std::uint32_t word, std::uint32_t channel) const {
    const std::uint32_t bits = channel % 2 == 0 ? word & 0xFFFFU : word >> 16;
    return from_f16(static_cast<std::uint16_t>(bits));
  }
  double value(std::uint32_t page, std::uint32_t what, std::uint32_t token,
               std::uint32_t channel) const {
    const std::uint32_t pairs = shape.head_dim / 2;
    const std::uint32_t index = (what * shape.page_tokens + token) * pairs + channel / 2;
    return element(source.word(page, index), channel);
  }

  /// Of one query head of the group.
  std::vector<double> attend(std::uint32_t head) const {
    const std::uint32_t dim = shape.head_dim, token = (length - 1) % shape.page_tokens;
    std::vector<double> q(dim), out(dim, 0.0);
    for (std::uint32_t c = 0; c < dim; ++c) {
      q[c] = element(source.query(tail, token, (head * dim + c) / 2, shape.ratio(), dim / 2,
                                  shape.page_tokens),
                     c);
    }
    std::vector<double> scores;
    double most = -std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const std::uint32_t tokens =
          std::min(length - pages[i] * shape.page_tokens, shape.page_tokens);
      for (std::uint32_t t = 0; t < tokens; ++t) {
        double score = 0;
        for (std::uint32_t c = 0; c < dim; ++c) score += q[c] * value(names[i], 0, t, c);
        scores.push_back(score / std::sqrt(dim));
        most = std::max(most, scores.back());
      }
    }
    double sum = 0;
    std::size_t at = 0;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const std::uint32_t tokens =
          std::min(length - pages[i] * shape.page_tokens, shape.page_tokens);
      for (std::uint32_t t = 0; t < tokens; ++t) {
        const double weight = std::exp(scores[at++] - most);
        sum += weight;
        for (std::uint32_t c = 0; c < dim; ++c) out[c] += weight * value(names[i], 1, t, c);
      }
    }
    for (double& x : out) x /= sum;
    return out;
  }
};

}  // namespace

double output_error(const kernels::StepShape& shape, const kernels::PageSource& source,
                    std::span<const std::byte> lists, std::span<const std::uint16_t> outputs,
                    std::uint32_t most) {
  const auto at = [&](std::uint32_t offset) { return lists.data() + offset; };
  const auto* header = reinterpret_cast<const kernels::StepHeader*>(at(0));
  const auto* layers =
      reinterpret_cast<const kernels::LayerLists*>(at(sizeof(kernels::StepHeader)));
  const auto* lengths = reinterpret_cast<const std::uint32_t*>(at(header->lengths_at));
  const auto groups = static_cast<std::uint32_t>(shape.groups());
  const std::uint32_t all = header->layers * groups;
  const std::uint32_t stride = std::max(1U, (all + most - 1) / std::max(1U, most));
  double worst = 0;
  for (std::uint32_t n = 0; n < all; n += stride) {
    const std::uint32_t layer = n / groups, group = n % groups;
    const kernels::LayerLists& l = layers[layer];
    const auto* rows = reinterpret_cast<const std::uint32_t*>(at(l.rows_at));
    const std::uint32_t count = rows[group + 1] - rows[group];
    if (l.names_at == 0 || count == 0) continue;
    const Group g{shape,
                  source,
                  {reinterpret_cast<const std::uint16_t*>(at(l.pages_at)) + rows[group], count},
                  {reinterpret_cast<const std::uint32_t*>(at(l.names_at)) + rows[group], count},
                  lengths[group / shape.kv_heads],
                  reinterpret_cast<const std::uint32_t*>(at(l.tails_at))[group]};
    double error = 0, norm = 0;
    for (std::uint32_t head = 0; head < shape.ratio(); ++head) {
      const std::vector<double> expected = g.attend(head);
      const std::size_t row =
          (std::size_t{layer} * shape.sequences + group / shape.kv_heads) * shape.q_heads +
          group % shape.kv_heads * shape.ratio() + head;
      for (std::uint32_t c = 0; c < shape.head_dim; ++c) {
        const double got = from_f16(outputs[row * shape.head_dim + c]);
        error += (got - expected[c]) * (got - expected[c]);
        norm += expected[c] * expected[c];
      }
    }
    const double relative = std::sqrt(error / norm);
    worst =
        std::isnan(relative) ? std::numeric_limits<double>::infinity() : std::max(worst, relative);
  }
  return worst;
}

}  // namespace lehr::runtime::cuda
