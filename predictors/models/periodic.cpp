// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "predictors/column_predictor.hpp"

namespace lehr::predictors {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"forget", "weight of what was learnt after a step", 0.97, 0.5, 1},
};

/// Slash lines: attention that comes back to a page after a fixed number of steps, or that keeps
/// its distance to the tail and so reaches the next page when a page of tokens has been written.
/// Each group keeps to the lag that foretold its changes best.
class Periodic final : public ColumnPredictor {
 public:
  explicit Periodic(const Parameters& p) : forget_(p.at("forget")) {}

 private:
  static constexpr std::array<std::uint32_t, 10> kLags{1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
  static constexpr std::size_t kLines = kLags.size() + 1;  ///< the last one moves with the tail

  /// Of one line: how often it said "read" and was right or wrong, by what the last step did.
  struct Record {
    double right = 0;
    double wrong = 0;
  };
  struct Group {
    std::array<Record, kLines> records;
    std::size_t best = 0;
  };

  Status start(const PredictorContext& context) override {
    kv_heads_ = context.kv_heads;
    lag_of_slash_ = std::min<std::uint32_t>(context.page_tokens, 63);
    return {};
  }
  Group& group(const Run& run) {
    const std::size_t i =
        (std::size_t{run.group->sequence} * layers_ + run.view->layer) * kv_heads_ +
        run.group->kv_head;
    if (i >= groups_.size()) groups_.resize(i + 1);
    return groups_[i];
  }
  /// Does the line say that page i of the run is read next?
  bool says(std::size_t line, const Run& run, std::uint32_t i) const {
    const PageId p = run.first + i;
    if (line < kLags.size()) return (history_.bits[p] >> (kLags[line] - 1) & 1U) != 0;
    return i > 0 && (history_.bits[p - 1] >> (lag_of_slash_ - 1) & 1U) != 0;
  }
  void note(const Run& run) override {
    if (!has_past(run.first)) return;
    Group& g = group(run);
    for (std::size_t line = 0; line < kLines; ++line) {
      std::uint32_t right = 0;
      std::uint32_t wrong = 0;
      for (std::uint32_t i = 0; i < run.length; ++i) {
        if ((history_.bits[run.first + i] & 1U) != 0 || !says(line, run, i)) continue;
        right += run.read[i];
        wrong += 1U - run.read[i];
      }
      g.records[line].right += right;
      g.records[line].wrong += wrong;
    }
    if (run.position != 0) return;
    for (std::size_t line = 0; line < kLines; ++line) {
      Record& r = g.records[line];
      const Record& b = g.records[g.best];
      if ((r.right + 0.1) * (b.right + b.wrong + 2) > (b.right + 0.1) * (r.right + r.wrong + 2))
        g.best = line;
      r.right *= forget_;
      r.wrong *= forget_;
    }
  }
  void judge(const Run& run, Logits& x) override {
    const Group& g = group(run);
    for (std::uint32_t i = 0; i < run.length; ++i) {
      const bool now = (history_.bits[run.first + i] & 1U) != 0;
      const bool line = says(g.best, run, i);
      x[0][i] = now ? 2.0F : line ? -1.5F : -3.5F;
    }
  }

  double forget_;
  std::uint32_t kv_heads_ = 1;
  std::uint32_t lag_of_slash_ = 16;
  std::vector<Group> groups_;
};

}  // namespace

const PredictorDescriptor& periodic_descriptor() {
  static const PredictorDescriptor descriptor{
      "periodic",
      "a group's best fixed lag, or a line that moves with the tail",
      kParameters,
      {},
      [](const Parameters& p) -> std::unique_ptr<Predictor> {
        return std::make_unique<Periodic>(p);
      },
  };
  return descriptor;
}

}  // namespace lehr::predictors
