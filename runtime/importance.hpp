// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/exchange.hpp"
#include "kernels/base/result.hpp"
#include "runtime/heat.hpp"

namespace lehr::runtime {

/// How the position term falls from the newest page to the oldest.
enum class PositionDecay : std::uint8_t {
  kCosine,       ///< half a cosine over the context: flat at both ends
  kExponential,  ///< halves each eighth of the context
};

/// Weights of the terms; they need not sum to 1, since scores are ranks.
struct ImportanceWeights {
  double attention = 0.4;
  double position = 0.3;
  double saliency = 0.3;
};

struct ImportanceOptions {
  ImportanceWeights weights;
  PositionDecay decay = PositionDecay::kCosine;
  double peak = 0.5;  ///< of the attention term: share of the peak mass, the rest is the mean
  double learn = 0;   ///< rate at which the weights follow what is read next; 0: they stay
};

/// By the name of a decay: "cosine" or "exponential"; none for another.
std::optional<ImportanceOptions> importance_of(std::string_view decay, double learn);
/// The reverse; "none" where there are no options.
const char* decay_name(const std::optional<ImportanceOptions>& options);

/// One term of a page, each in [0, 1] before it is weighed.
struct ImportanceTerms {
  float attention = 0;
  float position = 0;
  float saliency = 0;
};

/// Scores what a page matters: what attention says of it (mean and peak mass corrected for
/// exposure), where it stands, and what it holds (the spread of its keys and values, numbers and
/// names among its tokens). Scores are ranks in [0, 1] among the pages scored together, so that
/// thresholds such as 0.7 and 0.3 mean the same shares in every model. Ties share their mean rank.
/// Not thread-safe: holds scratch memory.
class Importance {
 public:
  /// Refuses weights that are negative, no numbers, or all zero.
  static Result<Importance> create(const ImportanceOptions& options = {});

  /// By position in a context of `context` pages, newest last: 1 for the newest, 0 for the oldest.
  static float position_term(PositionDecay decay, std::uint32_t position, std::uint32_t context);
  /// From the norms of keys and values (means over a page's tokens), each against the mean of the
  /// context; 0.5 where they are unknown. Pages that hold numbers or names count half as much
  /// again.
  static float saliency_term(float norm_ratio, std::uint8_t token_classes);
  /// Of mean and peak mass by their logarithm: octaves below 1, 20 and more are 0.
  static float attention_term(float mean, float peak, double peak_share);

  ImportanceTerms terms(PageId page, const Heat& heat, Step now, std::uint32_t position,
                        std::uint32_t context, float norm_ratio, std::uint8_t token_classes) const;
  double weighed(const ImportanceTerms& t) const {
    return options_.weights.attention * static_cast<double>(t.attention) +
           options_.weights.position * static_cast<double>(t.position) +
           options_.weights.saliency * static_cast<double>(t.saliency);
  }

  /// The same of neighbouring pages at once: `raw` as long as `position` and `saliency`, their
  /// terms. About 2 ns a page.
  void weigh(PageId first, const HeatColumns& heat, Step now, std::span<const float> position,
             std::span<const float> saliency, float* raw) const;

  /// Ranks in [0, 1] of raw scores, aligned. Scores that differ by less than 1/16384 of their range
  /// are equal. One page alone gets 0.5.
  void rank(std::span<const float> raw, std::span<float> out);

  /// Moves the weights by one gradient step towards scores that tell pages which were read later
  /// (1) from those which were not (0): a logistic regression on the three terms. They stay
  /// non-negative and keep their sum. Returns the log loss before the step.
  double learn(std::span<const ImportanceTerms> terms, std::span<const std::uint8_t> read,
               double rate);

  const ImportanceWeights& weights() const { return options_.weights; }

 private:
  explicit Importance(const ImportanceOptions& options) : options_(options) {}

  ImportanceOptions options_;
  double offset_ = 0;
  std::vector<std::uint16_t> bin_;    ///< of each score
  std::vector<std::uint32_t> count_;  ///< by bin
  std::vector<float> rank_;           ///< by bin
};

}  // namespace lehr::runtime
