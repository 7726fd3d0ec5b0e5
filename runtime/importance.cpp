// SPDX-License-Identifier: Apache-2.0
#include "runtime/importance.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "kernels/base/simd.hpp"
#include "predictors/logit.hpp"

namespace lehr::runtime {

namespace {

constexpr float kOctaves = 20;  // below 1, that the attention term spans
constexpr std::uint32_t kBins = 1U << 14;

/// 1 + log2(mass) / 20 in [0, 1]. Loops over it vectorise.
inline float loudness(float mass) {
  constexpr float kNothing = 1e-12F;  // added, so that no mass has a logarithm, too
  constexpr float kPerLog = 1.44269504F / kOctaves;
  const float x = 1.0F + kPerLog * predictors::log_of(mass + kNothing);
  return std::min(std::max(x, 0.0F), 1.0F);
}

struct Weights {
  float mean, peak, position, saliency;
};

LEHR_VECTOR_CLONES void weigh_pages(const float* mass, const float* exposure, const float* peak,
                                    const float* faded, const float* position,
                                    const float* saliency, Weights w, std::size_t n, float* raw) {
  for (std::size_t i = 0; i < n; ++i) {
    // A page that was never seen has no mass either; exposures are far above the least.
    const float seen = exposure[i];
    const float mean = mass[i] / std::max(seen, 1e-20F);
    raw[i] = w.mean * loudness(mean) + w.peak * loudness(peak[i] * faded[i]) +
             w.position * position[i] + w.saliency * saliency[i];
  }
}

LEHR_VECTOR_CLONES void to_bins(const float* raw, float from, float scale, std::size_t n,
                                std::uint16_t* bin) {
  for (std::size_t i = 0; i < n; ++i)
    bin[i] = static_cast<std::uint16_t>(static_cast<std::int32_t>((raw[i] - from) * scale));
}

}  // namespace

std::optional<ImportanceOptions> importance_of(std::string_view decay, double learn) {
  if (decay != "cosine" && decay != "exponential") return std::nullopt;
  ImportanceOptions options;
  options.decay = decay == "cosine" ? PositionDecay::kCosine : PositionDecay::kExponential;
  options.learn = learn;
  return options;
}

const char* decay_name(const std::optional<ImportanceOptions>& options) {
  if (!options) return "none";
  return options->decay == PositionDecay::kCosine ? "cosine" : "exponential";
}

Result<Importance> Importance::create(const ImportanceOptions& options) {
  double sum = 0;
  for (const double w :
       {options.weights.attention, options.weights.position, options.weights.saliency}) {
    if (!(w >= 0) || !std::isfinite(w))
      return invalid("importance: a weight is negative or no number", Reason::kOutOfRange);
    sum += w;
  }
  if (!(sum > 0)) return invalid("importance: all weights are zero", Reason::kOutOfRange);
  if (!(options.learn >= 0 && options.learn <= 1))
    return invalid("importance: the rate of learning lies outside 0 to 1", Reason::kOutOfRange);
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

void Importance::weigh(PageId first, const HeatColumns& heat, Step now,
                       std::span<const float> position, std::span<const float> saliency,
                       float* raw) const {
  const auto attention = static_cast<float>(options_.weights.attention);
  const auto share = static_cast<float>(options_.peak);
  const Weights w{attention * (1 - share), attention * share,
                  static_cast<float>(options_.weights.position),
                  static_cast<float>(options_.weights.saliency)};
  constexpr std::size_t kSome = 64;
  std::array<float, kSome> faded{};
  for (std::size_t i = 0; i < position.size(); i += kSome) {
    const std::size_t n = std::min(kSome, position.size() - i);
    for (std::size_t k = 0; k < n; ++k) {
      const std::uint32_t age = now - heat.last[first + i + k];
      faded[k] = age < heat.decay.size() ? heat.decay[age] : 0.0F;
    }
    weigh_pages(&heat.mass[first + i], &heat.exposure[first + i], &heat.peak[first + i],
                faded.data(), &position[i], &saliency[i], w, n, raw + i);
  }
}

void Importance::rank(std::span<const float> raw, std::span<float> out) {
  const std::size_t n = raw.size();
  if (n == 0) return;
  const auto [least, most] = std::minmax_element(raw.begin(), raw.end());
  if (!(*most > *least)) {
    std::fill_n(out.begin(), n, 0.5F);
    return;
  }
  bin_.resize(n);
  count_.assign(kBins, 0);
  rank_.resize(kBins);
  to_bins(raw.data(), *least, (kBins - 1) / (*most - *least), n, bin_.data());
  for (std::size_t i = 0; i < n; ++i) ++count_[bin_[i]];
  const float unit = 1.0F / static_cast<float>(n - 1);
  std::uint32_t below = 0;
  for (std::uint32_t b = 0; b < kBins; ++b) {
    const std::uint32_t c = count_[b];
    if (c == 0) continue;
    rank_[b] = (static_cast<float>(below) + 0.5F * static_cast<float>(c - 1)) * unit;
    below += c;
  }
  for (std::size_t i = 0; i < n; ++i) out[i] = rank_[bin_[i]];
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
