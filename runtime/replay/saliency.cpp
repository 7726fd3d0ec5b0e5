// SPDX-License-Identifier: Apache-2.0
#include "runtime/replay/saliency.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/half.hpp"
#include "runtime/importance.hpp"
#include "runtime/replay/number_pages.hpp"

namespace lehr::runtime {

namespace {

/// Mean norm of the tokens of each page of a group, over that of the prompt's tokens.
std::vector<float> norm_ratios(std::span<const std::uint16_t> rows,
                               const formats::AttentionMeta& m) {
  const std::size_t tokens = m.tokens();
  std::vector<double> norm(tokens, 0);
  for (std::size_t t = 0; t < tokens; ++t) {
    double squares = 0;
    for (std::size_t d = 0; d < m.head_dim; ++d) {
      const auto x = static_cast<double>(from_f16(rows[t * m.head_dim + d]));
      squares += x * x;
    }
    norm[t] = std::sqrt(squares);
  }
  double prompt = 0;
  for (std::size_t t = 0; t < m.prompt_tokens; ++t) prompt += norm[t];
  const double mean = m.prompt_tokens > 0 ? prompt / m.prompt_tokens : 0;
  std::vector<float> out(m.pages(), 1);
  for (std::size_t p = 0; p < out.size() && mean > 0; ++p) {
    const std::size_t begin = p * m.page_tokens;
    const std::size_t end = std::min<std::size_t>(begin + m.page_tokens, tokens);
    double sum = 0;
    for (std::size_t t = begin; t < end; ++t) sum += norm[t];
    out[p] = static_cast<float>(sum / static_cast<double>(end - begin) / mean);
  }
  return out;
}

}  // namespace

std::vector<float> saliency_of(const formats::AttentionTrace& trace) {
  const formats::AttentionMeta& m = trace.meta();
  const formats::AttentionParts& parts = trace.parts();
  const std::vector<std::uint8_t> numbers = number_pages(trace);
  const bool norms = !parts.k.empty() && !parts.v.empty();
  if (!norms && numbers.empty()) return {};
  const std::size_t groups = std::size_t{m.layers()} * m.kv_heads;
  const std::size_t group_size = std::size_t{m.tokens()} * m.head_dim;
  std::vector<float> out;
  out.reserve(groups * m.pages());
  for (std::size_t g = 0; g < groups; ++g) {
    std::vector<float> k(m.pages(), 1);
    std::vector<float> v(m.pages(), 1);
    if (norms) {
      k = norm_ratios(parts.k.subspan(g * group_size, group_size), m);
      v = norm_ratios(parts.v.subspan(g * group_size, group_size), m);
    }
    for (std::size_t p = 0; p < m.pages(); ++p) {
      const bool number = p < numbers.size() && numbers[p] != 0;
      out.push_back(Importance::saliency_term(0.5F * (k[p] + v[p]),
                                              number ? std::uint8_t{kNumbers} : std::uint8_t{0}));
    }
  }
  return out;
}

}  // namespace lehr::runtime
