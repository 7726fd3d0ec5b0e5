// SPDX-License-Identifier: Apache-2.0
#include "runtime/importance.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace lehr::runtime {

Result<Importance> Importance::create(const ImportanceOptions& options) {
  double sum = 0;
  for (const double w :
       {options.weights.attention, options.weights.position, options.weights.saliency}) {
    if (!(w >= 0) || !std::isfinite(w))
      return invalid("importance: a weight is negative or no number", Reason::kOutOfRange);
    sum += w;
  }
  if (!(sum > 0)) return invalid("importance: all weights are zero", Reason::kOutOfRange);
  if (!(options.peak >= 0 && options.peak <= 1))
    return invalid("importance: the share of the peak mass lies outside 0 to 1",
                   Reason::kOutOfRange);
  return Importance(options);
}

float Importance::position_term(PositionDecay decay, std::uint32_t position,
                                std::uint32_t context) {
  if (context <= 1) return 1;
  const double old =
      1 - static_cast<double>(std::min(position, context - 1)) / static_cast<double>(context - 1);
  if (decay == PositionDecay::kExponential) return static_cast<float>(std::exp2(-8 * old));
  return static_cast<float>(0.5 * (1 + std::cos(std::numbers::pi * old)));
}

float Importance::saliency_term(float norm_ratio, std::uint8_t token_classes) {
  const float ratio = std::isfinite(norm_ratio) && norm_ratio >= 0 ? norm_ratio : 1.0F;
  const float base = ratio / (1 + ratio);
  const bool rare = (token_classes & (kNumbers | kNames)) != 0;
  return std::min(1.0F, rare ? 1.5F * base : base);
}

float Importance::attention_term(float mean, float peak, double peak_share) {
  const auto octaves = [](float mass) {
    return mass > 0 ? std::clamp(1 + std::log2(static_cast<double>(mass)) / 20, 0.0, 1.0) : 0.0;
  };
  return static_cast<float>((1 - peak_share) * octaves(mean) + peak_share * octaves(peak));
}

ImportanceTerms Importance::terms(PageId page, const Heat& heat, Step now, std::uint32_t position,
                                  std::uint32_t context, float norm_ratio,
                                  std::uint8_t token_classes) const {
  return {attention_term(heat.mean_mass(page), heat.peak_mass(page, now), options_.peak),
          position_term(options_.decay, position, context),
          saliency_term(norm_ratio, token_classes)};
}

void Importance::rank(std::span<const double> raw, std::span<float> out) {
  const std::size_t n = raw.size();
  order_.resize(n);
  std::iota(order_.begin(), order_.end(), 0U);
  std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return raw[a] != raw[b] ? raw[a] < raw[b] : a < b;
  });
  for (std::size_t i = 0; i < n;) {
    std::size_t end = i + 1;
    while (end < n && raw[order_[end]] == raw[order_[i]]) ++end;
    const double middle = 0.5 * static_cast<double>(i + end - 1);
    const float r = n == 1 ? 0.5F : static_cast<float>(middle / static_cast<double>(n - 1));
    for (; i < end; ++i) out[order_[i]] = r;
  }
}

double Importance::learn(std::span<const ImportanceTerms> terms, std::span<const std::uint8_t> read,
                         double rate) {
  const std::size_t n = std::min(terms.size(), read.size());
  if (n == 0) return 0;
  constexpr double kSteepness = 8;  // scores span [0, 1]: a logit of their whole range
  ImportanceWeights& w = options_.weights;
  const double sum = w.attention + w.position + w.saliency;
  double loss = 0;
  double ga = 0, gp = 0, gs = 0, g0 = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double p = 1 / (1 + std::exp(-(kSteepness * weighed(terms[i]) / sum + offset_)));
    const double kept = std::clamp(p, 1e-9, 1 - 1e-9);
    loss -= std::log(read[i] != 0 ? kept : 1 - kept);
    const double error = static_cast<double>(read[i]) - p;
    ga += error * static_cast<double>(terms[i].attention);
    gp += error * static_cast<double>(terms[i].position);
    gs += error * static_cast<double>(terms[i].saliency);
    g0 += error;
  }
  const double scale = rate / static_cast<double>(n);
  w.attention = std::max(0.0, w.attention + scale * ga * sum);
  w.position = std::max(0.0, w.position + scale * gp * sum);
  w.saliency = std::max(0.0, w.saliency + scale * gs * sum);
  offset_ += 4 * scale * g0;
  const double now = w.attention + w.position + w.saliency;
  if (!(now > 0)) {
    w = ImportanceWeights{};
  } else {
    w.attention *= sum / now;
    w.position *= sum / now;
    w.saliency *= sum / now;
  }
  return loss / static_cast<double>(n);
}

}  // namespace lehr::runtime
