// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"
#include "predictors/predictor.hpp"

namespace lehr::test {

/// What is done to the odds of a page.
using Spoil = std::function<float(float, PageId)>;

/// Odds of `table`, changed by a function before anybody sees them.
class SpoiltPredictor final : public predictors::Predictor {
 public:
  explicit SpoiltPredictor(Spoil change) : change_(std::move(change)) {
    auto made = predictors::make_predictor("table", {});
    REQUIRE(made);
    inner_ = std::move(*made);
  }
  Status begin(const predictors::PredictorContext& context) override {
    return inner_->begin(context);
  }
  void add_pages(std::span<const PageId> pages, const PageColumns& columns) override {
    inner_->add_pages(pages, columns);
    change();
  }
  void remove_pages(std::span<const PageId> pages) override { inner_->remove_pages(pages); }
  void observe(const LayerView& view) override {
    inner_->observe(view);
    change();
  }
  std::span<const float> odds(std::uint32_t /*step*/) const override { return odds_; }
  predictors::Work work() const override { return inner_->work(); }

 private:
  void change() {
    const auto from = inner_->odds(1);
    odds_.resize(from.size());
    for (std::size_t p = 0; p < from.size(); ++p)
      odds_[p] = change_(from[p], static_cast<PageId>(p));
  }
  Spoil change_;
  std::unique_ptr<predictors::Predictor> inner_;
  std::vector<float> odds_;
};

inline const std::vector<std::string>& poisons() {
  static const std::vector<std::string> all{"inverted",  "constant", "always",  "nan",
                                            "too large", "noise",    "whispers"};
  return all;
}

inline Spoil poison(const std::string& form) {
  if (form == "inverted") return [](float p, PageId) { return 1 - p; };
  if (form == "constant") return [](float, PageId) { return 0.3F; };
  if (form == "always") return [](float, PageId) { return 1.0F; };
  if (form == "nan") return [](float, PageId) { return std::numeric_limits<float>::quiet_NaN(); };
  if (form == "too large") return [](float, PageId) { return 1e6F; };
  if (form == "whispers") {  // right of most pages; some cold ones are told to be lukewarm
    return [](float p, PageId page) { return p < 0.01F && Rng::mix(page) % 6 == 0 ? 0.08F : p; };
  }
  return [](float, PageId page) { return static_cast<float>(Rng::mix(page) % 1000) / 1000; };
}

}  // namespace lehr::test
