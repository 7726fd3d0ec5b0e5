// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/predictor_trial.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "runtime/replay/number_pages.hpp"

namespace lehr::tools {

namespace {

/// CPU time of this thread: other work on the machine does not count.
double thread_seconds() {
  std::timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Pages by their odds, finely enough that a bin's pages are alike.
class Ranking {
 public:
  void clear() {
    pages_.fill(0);
    reads_.fill(0);
    marked_.fill(0);
  }
  void add(float x, bool read, bool marked) {
    const auto b = static_cast<std::size_t>(std::clamp((x + 14) / 28 * kBins, 0.0F, kBins - 1.0F));
    pages_[b] += 1;
    if (!read) return;
    reads_[b] += 1;
    if (marked) marked_[b] += 1;
  }
  struct Taken {
    double pages = 0;
    double reads = 0;
    double marked = 0;  ///< reads of marked pages
  };
  /// The likeliest `count` pages, equals in part.
  Taken take(double count) const {
    Taken t;
    for (std::size_t b = kBins; b-- > 0 && t.pages < count;) {
      if (pages_[b] == 0) continue;
      const double part = std::min(1.0, (count - t.pages) / pages_[b]);
      t.pages += part * pages_[b];
      t.reads += part * reads_[b];
      t.marked += part * marked_[b];
    }
    return t;
  }

 private:
  static constexpr std::size_t kBins = 2048;
  std::array<double, kBins> pages_{};
  std::array<double, kBins> reads_{};
  std::array<double, kBins> marked_{};
};

float logit_of(float odds) {
  const float p = std::clamp(odds, 1e-6F, 1 - 1e-6F);
  return std::log(p / (1 - p));
}

class Player {
 public:
  Player(const runtime::TraceSelection& selection, const TrialOptions& options,
         predictors::Predictor& predictor)
      : feed_(selection, options.masses),
        options_(options),
        predictor_(predictor),
        numbers_(runtime::number_pages(selection.trace())) {
    trial_.numbers_known = !numbers_.empty();
    last_.resize(feed_.pages(), 0);
    for (auto& ring : said_) ring.assign(kTrialSteps, std::vector<float>(feed_.pages(), 0));
    for (auto& of_step : rankings_) of_step.resize(kLayerGroups + 1);
    for (auto& of_step : trial_.cells) {
      for (TrialCell& c : of_step) c.named.resize(options.budgets.size());
    }
    trial_.fetched.resize(options.budgets.size());
  }

  Trial play() {
    predictor_.add_pages(feed_.prompt_pages(), feed_.columns());
    for (std::uint32_t t = 0; t < feed_.steps(); ++t) {
      begin_step();
      for (std::uint32_t l = 0; l < feed_.layers(); ++l) layer(t, l);
      if (t >= options_.warmup) end_step();
      last_reads_ = reads_;
    }
    trial_.work = predictor_.work();
    return trial_;
  }

 private:
  void begin_step() {
    for (auto& of_step : rankings_) {
      for (Ranking& r : of_step) r.clear();
    }
    unread_.clear();
    reads_.fill(0);
    returns_ = 0;
  }

  std::uint32_t part_of(std::uint32_t layer) const { return layer * kLayerGroups / feed_.layers(); }

  void layer(std::uint32_t t, std::uint32_t l) {
    const bool judged = t >= options_.warmup;
    const LayerView& view = feed_.view(t, l);
    for (std::uint32_t h = 0; h < feed_.kv_heads(); ++h) {
      feed_.reads(t, l, h, now_);
      if (judged) judge(t, l, h);
      for (std::uint32_t i = 0; i < now_.size(); ++i) {
        reads_[kLayerGroups] += now_[i];
        reads_[part_of(l)] += now_[i];
        last_[feed_.page(l, h, i)] = now_[i];
      }
    }
    const double began = thread_seconds();
    predictor_.observe(view);
    trial_.seconds += thread_seconds() - began;
    for (std::uint32_t k = 1; k < kTrialSteps; ++k) {
      const auto odds = predictor_.odds(k + 1);
      auto& to = said_[k][t % kTrialSteps];
      const PageId first = feed_.page(l, 0, 0);
      const PageId end =
          std::min<PageId>(feed_.page(l + 1, 0, 0), static_cast<PageId>(odds.size()));
      std::copy(odds.begin() + first, odds.begin() + std::max(first, end), to.begin() + first);
    }
  }

  void judge(std::uint32_t t, std::uint32_t l, std::uint32_t h) {
    const std::uint32_t part = part_of(l);
    const auto next = predictor_.odds(1);
    const std::uint32_t before = feed_.full_pages(t - 1);
    for (std::uint32_t i = 0; i < std::min<std::size_t>(now_.size(), before); ++i) {
      const PageId p = feed_.page(l, h, i);
      const bool read = now_[i] != 0;
      const bool number = i < numbers_.size() && numbers_[i] != 0;
      if (number && read) trial_.numbers += 1;
      if (last_[p] == 0) {
        unread_.add(logit_of(next[p]), read, false);
        returns_ += read ? 1 : 0;
      }
      for (std::uint32_t k = 0; k < kTrialSteps; ++k) {
        if (i >= feed_.full_pages(t - k - 1)) continue;
        const float odds = k == 0 ? next[p] : said_[k][(t - k - 1) % kTrialSteps][p];
        TrialCell& c = trial_.cells[k][part];
        const double r = read ? 1 : 0;
        c.pages += 1;
        c.reads += r;
        c.brier += (static_cast<double>(odds) - r) * (static_cast<double>(odds) - r);
        const float x = logit_of(odds);
        const auto bin = static_cast<std::size_t>(std::clamp(x + 9.0F, 0.0F, 15.0F));
        c.count[bin] += 1;
        c.said[bin] += static_cast<double>(odds);
        c.came[bin] += r;
        rankings_[k][part].add(x, read, number);
        rankings_[k][kLayerGroups].add(x, read, number);
      }
    }
  }

  void end_step() {
    ++trial_.steps;
    for (std::uint32_t k = 0; k < kTrialSteps; ++k) {
      for (std::uint32_t g = 0; g <= kLayerGroups; ++g) {
        for (std::size_t b = 0; b < options_.budgets.size(); ++b) {
          const auto taken = rankings_[k][g].take(last_reads_[g] * (1 + options_.budgets[b]));
          trial_.cells[k][g].named[b].pages += taken.pages;
          trial_.cells[k][g].named[b].reads += taken.reads;
          if (k == 0 && g == kLayerGroups && b == 0) trial_.numbers_named += taken.marked;
        }
      }
    }
    trial_.returns += returns_;
    for (std::size_t b = 0; b < options_.budgets.size(); ++b) {
      const auto taken = unread_.take(last_reads_[kLayerGroups] * options_.budgets[b]);
      trial_.fetched[b].pages += taken.pages;
      trial_.fetched[b].reads += taken.reads;
    }
  }

  runtime::LayerFeed feed_;
  TrialOptions options_;
  predictors::Predictor& predictor_;
  std::vector<std::uint8_t> numbers_;
  std::vector<std::uint8_t> now_;
  std::vector<std::uint8_t> last_;  ///< by page: read in the step before
  std::array<std::vector<std::vector<float>>, kTrialSteps>
      said_;  ///< [ahead - 1][step % kTrialSteps]
  std::array<std::vector<Ranking>, kTrialSteps> rankings_;
  Ranking unread_;
  std::array<double, kLayerGroups + 1> reads_{};
  std::array<double, kLayerGroups + 1> last_reads_{};
  double returns_ = 0;
  Trial trial_;
};

}  // namespace

void TrialCell::add(const TrialCell& o) {
  pages += o.pages;
  reads += o.reads;
  brier += o.brier;
  for (std::size_t b = 0; b < said.size(); ++b) {
    count[b] += o.count[b];
    said[b] += o.said[b];
    came[b] += o.came[b];
  }
}

double TrialCell::calibration_error() const {
  double sum = 0;
  for (std::size_t b = 0; b < said.size(); ++b) sum += std::abs(said[b] - came[b]);
  return pages > 0 ? sum / pages : 0;
}

Result<Trial> try_predictor(const runtime::TraceSelection& selection, const std::string& name,
                            const TrialOptions& options) {
  LEHR_ASSIGN(auto predictor, predictors::make_predictor(name, options.parameters));
  predictors::PredictorContext told;
  told.layers = selection.trace().layers();
  told.kv_heads = selection.trace().kv_heads();
  told.page_tokens = selection.trace().meta().page_tokens;
  told.horizon = kTrialSteps;
  told.weights = options.weights;
  LEHR_TRY(predictor->begin(told));
  Trial trial = Player(selection, options, *predictor).play();
  for (auto& of_step : trial.cells) {
    TrialCell all;
    for (std::uint32_t g = 0; g < kLayerGroups; ++g) all.add(of_step[g]);
    all.named = of_step[kLayerGroups].named;
    of_step[kLayerGroups] = all;
  }
  return trial;
}

}  // namespace lehr::tools
