// SPDX-License-Identifier: Apache-2.0
#include "predictors/watch.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/simd.hpp"
#include "predictors/logit.hpp"

namespace lehr::predictors {

namespace {

constexpr double kSmooth = 0.2;           // weight of a step in what is said of late
constexpr std::uint32_t kLeastSteps = 4;  // before anything is concluded
constexpr float kLikely = 0.5F;
constexpr double kHarmless = 0.005;  // squared error for each read: no yardstick is that sure

bool sampled(const Run& run) {
  return (run.view->layer + run.view->step + run.group->kv_head + run.position / Run::kLength) %
             4 ==
         0;
}

bool is_odds(float x) { return x >= 0 && x <= 1; }

/// What was said of a page, if the predictor spoke of it in numbers; else the opposite of what
/// came.
double heard(float raw, float said, double read) {
  return is_odds(raw) ? static_cast<double>(said) : 1 - read;
}

std::uint32_t gap_of(std::uint64_t bits) {
  return bits == 0 ? 64U : static_cast<std::uint32_t>(__builtin_ctzll(bits));
}

/// Lies hide best among pages that nobody reads: where a predictor tells some, no page that was not
/// read for long may promise much more than others of its gap keep.
template <std::size_t Gaps>
void limit_cold(const std::uint64_t* bits, const std::array<double, Gaps>& yardstick,
                std::uint32_t n, float* odds) {
  constexpr std::uint32_t kCold = 16;
  constexpr double kTimes = 2;
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint32_t gap = gap_of(bits[i]);
    if (gap >= kCold) odds[i] = std::min(odds[i], static_cast<float>(kTimes * yardstick[gap]));
  }
}

LEHR_VECTOR_CLONES void shift_in(const std::uint8_t* read, std::uint32_t n, std::uint64_t* bits,
                                 std::uint8_t* known) {
  for (std::uint32_t i = 0; i < n; ++i) {
    bits[i] = bits[i] << 1 | read[i];
    known[i] = 1;
  }
}

LEHR_VECTOR_CLONES void add(const float* x, float share, std::uint32_t n, float* sum) {
  for (std::uint32_t i = 0; i < n; ++i) sum[i] += share * x[i];
}

LEHR_VECTOR_CLONES bool all_sound(const float* odds, std::uint32_t n) {
  std::uint32_t bad = 0;
  for (std::uint32_t i = 0; i < n; ++i) bad += odds[i] >= 0.0F && odds[i] <= 1.0F ? 0U : 1U;
  return bad == 0;
}

}  // namespace

void Watch::add_pages(std::span<const PageId> pages) {
  for (const PageId p : pages) {
    if (p >= bits_.size()) {
      bits_.resize(2 * std::size_t{p} + Run::kLength, 0);
      known_.resize(bits_.size(), 0);
    }
    bits_[p] = 0;
    known_[p] = 0;
  }
}

void Watch::compare(const LayerView& view, const Predictor& predictor) {
  if (view.step != step_) end_step(view.step);
  add_pages(view.filled);
  const auto odds = predictor.odds(1);
  runs_ = reader_.read(view);
  for (const Run& run : runs_) {
    if (run.first + run.length > bits_.size()) continue;
    const bool told = known_[run.first] != 0 && run.first + run.length <= odds.size();
    if (told && sampled(run)) hold_against(run, odds);
    shift_in(run.read, run.length, &bits_[run.first], &known_[run.first]);
  }
}

/// What was said of a run's pages against what came.
void Watch::hold_against(const Run& run, std::span<const float> odds) {
  std::array<float, Run::kLength> x{};
  const float* raw = &odds[run.first];
  const bool scaled = rescaling_ && run.first + run.length <= scaled_[0].size();
  const float* said = scaled ? &scaled_[0][run.first] : raw;
  for (std::uint32_t i = 0; i < run.length; ++i) {
    const auto r = static_cast<double>(run.read[i]);
    const double e = heard(raw[i], said[i], r);
    foretold_ += e;
    raw_foretold_ += heard(raw[i], raw[i], r);
    seen_ += r;
    covered_ += static_cast<double>(said[i] >= kLikely) * r;
    squares_ += (e - r) * (e - r);
    const std::uint32_t gap = gap_of(bits_[run.first + i]);
    const double y = yardstick_[gap];
    yardstick_squares_ += (y - r) * (y - r);
    gaps_[gap].seen += 1;
    gaps_[gap].read += r;
    x[i] = is_odds(raw[i]) ? logit(raw[i]) : 0;
  }
  compared_ += run.length;
  scaler_.learn(1, x.data(), run.read, run.length);
  if (all_sound(raw, run.length)) groups_.add(x.data(), raw, run.read, run.length);
}

void Watch::end_step(Step step) {
  step_ = step;
  if (compared_ > 0) {
    ++steps_compared_;
    smooth_foretold_ += kSmooth * (foretold_ - smooth_foretold_);
    smooth_raw_ += kSmooth * (raw_foretold_ - smooth_raw_);
    smooth_seen_ += kSmooth * (seen_ - smooth_seen_);
    smooth_covered_ += kSmooth * (covered_ - smooth_covered_);
    if (steps_compared_ > 1) {  // the yardstick of the first step is a guess
      smooth_squares_ += kSmooth * (squares_ - smooth_squares_);
      smooth_yardstick_ += kSmooth * (yardstick_squares_ - smooth_yardstick_);
    }
    error_ = std::abs(smooth_foretold_ - smooth_seen_) / std::max(smooth_seen_, 1.0);
    scaler_.end_step();
    groups_.end_step();
    for (std::uint32_t g = 0; g < kGaps; ++g) {
      yardstick_[g] = (gaps_[g].read + 0.1) / (gaps_[g].seen + 1);
      gaps_[g].seen *= 0.98;
      gaps_[g].read *= 0.98;
    }
  }
  if (steps_compared_ >= kLeastSteps) conclude(step);
  unsound_ = false;
  foretold_ = raw_foretold_ = seen_ = covered_ = compared_ = squares_ = yardstick_squares_ = 0;
}

/// From what was compared of late: are the odds to be rescaled, are they to be told at all?
void Watch::conclude(Step step) {
  constexpr double kMended = 0.75;  // of what a group may promise, below which it is right again
  const double raw_error = std::abs(smooth_raw_ - smooth_seen_) / std::max(smooth_seen_, 1.0);
  const bool misled = groups_.misled(options_.misled);
  if (!rescaling_ && (!(raw_error <= options_.error_limit) || misled)) {
    ++recalibrations_;
    rescaling_ = true;
    grouped_ = misled;
    paused_until_ = step + options_.pause_steps;
  } else if (raw_error <= 0.5 * options_.error_limit &&
             !groups_.misled(kMended * options_.misled)) {
    rescaling_ = grouped_ = false;
  } else {
    grouped_ = grouped_ || (rescaling_ && misled);
  }
  // Where everything is read every time the yardstick is right too, and nothing is better.
  const double limit = std::max(options_.worse * smooth_yardstick_, kHarmless * smooth_seen_);
  const bool better = smooth_squares_ <= limit;
  trusted_ = better && !unsound_;
}

bool Watch::sound(std::span<const float> odds) const {
  return std::all_of(runs_.begin(), runs_.end(), [odds](const Run& run) {
    return run.first + run.length <= odds.size() && all_sound(&odds[run.first], run.length);
  });
}

void Watch::rescale(const Predictor& predictor, std::uint32_t horizon) {
  std::array<float, Run::kLength> x{};
  for (std::uint32_t k = 0; k < horizon; ++k) {
    const auto odds = predictor.odds(k + 1);
    if (scaled_[k].size() < odds.size())  // pages of layers still to come keep what was said
      scaled_[k].insert(scaled_[k].end(),
                        odds.begin() + static_cast<std::ptrdiff_t>(scaled_[k].size()), odds.end());
    for (const Run& run : runs_) {
      if (run.first + run.length > bits_.size()) continue;  // nobody named them
      for (std::uint32_t i = 0; i < run.length; ++i) x[i] = logit(odds[run.first + i]);
      float* scaled = &scaled_[k][run.first];
      if (grouped_) {
        groups_.apply(x.data(), run.length, scaled);
        limit_cold(&bits_[run.first], yardstick_, run.length, scaled);
      } else {
        scaler_.apply(1, x.data(), run.length, scaled);
      }
    }
  }
}

Forecast Watch::tell(const LayerView& view, const Predictor& predictor, std::uint32_t horizon) {
  bool all = true;
  for (std::uint32_t k = 0; k < horizon; ++k) all = all && sound(predictor.odds(k + 1));
  if (!all) {
    unsound_ = true;
    trusted_ = false;
  }
  if (!rescaling_) {
    for (auto& s : scaled_) s.clear();
  } else if (all) {  // told or not: what is told next is held against what comes
    rescale(predictor, horizon);
  }
  return retell(view.step, predictor, horizon);
}

Forecast Watch::retell(Step step, const Predictor& predictor, std::uint32_t horizon) {
  Forecast out;
  out.error = static_cast<float>(std::min(error_, 1e6));
  out.confidence =
      static_cast<float>(std::clamp(smooth_covered_ / std::max(smooth_seen_, 1.0), 0.0, 1.0));
  out.paused = !trusted_ || (rescaling_ && step < paused_until_) ||
               (steps_compared_ >= kLeastSteps && !(error_ <= options_.error_limit));
  if (!trusted_) return out;
  out.horizon = horizon;
  for (std::uint32_t k = 0; k < horizon; ++k) {
    const std::span<const float> raw = predictor.odds(k + 1);
    if (rescaling_ && scaled_[k].size() < raw.size()) scaled_[k].resize(raw.size(), 0);
    out.odds[k] = rescaling_ ? std::span<const float>(scaled_[k]) : raw;
  }
  return out;
}

std::span<const float> Watch::over_window(const Forecast& forecast) {
  const std::uint32_t steps = std::min(forecast.window, forecast.horizon);
  if (steps <= 1) return forecast.odds[0];
  if (mean_.size() < forecast.odds[0].size()) mean_.resize(forecast.odds[0].size(), 0);
  const float share = 1.0F / static_cast<float>(steps);
  for (const Run& run : runs_) {  // the other layers' are as they were
    float* mean = &mean_[run.first];
    std::fill_n(mean, run.length, 0.0F);
    for (std::uint32_t k = 0; k < steps; ++k)
      add(&forecast.odds[k][run.first], share, run.length, mean);
  }
  return mean_;
}

std::uint32_t prefetch_window(Seconds step, Seconds link_per_page, double pages, float confidence) {
  constexpr double kFewest = 2;
  constexpr double kMost = kLongestWindow;
  if (!(step > 0) || !(link_per_page > 0) || !(pages > 0) || !(confidence >= kLikely)) return 2;
  const double steps = std::ceil(pages * link_per_page / step);
  return static_cast<std::uint32_t>(std::clamp(1 + steps, kFewest, kMost));
}

}  // namespace lehr::predictors
