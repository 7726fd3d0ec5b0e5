// SPDX-License-Identifier: Apache-2.0
#include "runtime/selection.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"

namespace lehr {
namespace {

using Pages = std::vector<std::uint32_t>;
using Codes = std::vector<MassCode>;

SelectionRule rule_of(const std::string& text, std::uint32_t sinks = 0, std::uint32_t recent = 1) {
  auto rule = SelectionRule::parse(text);
  REQUIRE(rule);
  (*rule).sinks = sinks;
  (*rule).recent = recent;
  return *rule;
}

Pages select(const SelectionRule& rule, const Codes& mass, const Codes& peak = {}) {
  Selector selector(rule);
  Pages out;
  selector.select(mass.data(), peak.empty() ? nullptr : peak.data(),
                  static_cast<std::uint32_t>(mass.size()), out);
  return out;
}

/// A code's share in the selector's fixed point, from the definition and not from its table.
std::uint64_t weight(MassCode code) {
  if (code == kNoMass) return 0;
  return static_cast<std::uint64_t>(std::floor(std::exp2(31.0L - code / 8.0L)));
}

/// The definition, by sorting.
Pages brute_force(const SelectionRule& rule, const Codes& mass, const Codes& peak) {
  const std::size_t pages = mass.size();
  Pages order(pages);
  std::iota(order.begin(), order.end(), 0U);
  const auto key = [&](std::uint32_t p) {
    return peak.empty() ? int{mass[p]} : (mass[p] + peak[p] + 1) / 2;
  };
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return key(a) != key(b) ? key(a) < key(b) : a > b;
  });
  std::vector<bool> in(pages, rule.kind == SelectionRule::Kind::kAll);
  if (rule.kind == SelectionRule::Kind::kMass) {
    std::uint64_t total = 0;
    for (const MassCode code : mass) total += weight(code);
    const auto wanted = static_cast<std::uint64_t>(
        std::ceil(rule.amount * static_cast<double>(total) * (1 - 1e-12)));
    std::uint64_t have = 0;
    for (const std::uint32_t p : order) {
      if (have >= wanted) break;
      have += weight(mass[p]);
      in[p] = true;
    }
  } else if (rule.kind != SelectionRule::Kind::kAll) {
    const double k = rule.kind == SelectionRule::Kind::kCount
                         ? rule.amount
                         : std::ceil(rule.amount * static_cast<double>(pages) - 1e-9);
    for (std::size_t i = 0; i < pages && static_cast<double>(i) < k; ++i) in[order[i]] = true;
  }
  Pages out;
  for (std::uint32_t p = 0; p < pages; ++p) {
    const bool forced = p < rule.sinks || p + std::max(1U, rule.recent) >= pages;
    if (in[p] || forced) out.push_back(p);
  }
  return out;
}

TEST_CASE("a rule is read from its text and written back") {
  CHECK(rule_of("all").kind == SelectionRule::Kind::kAll);
  CHECK(rule_of("topk:0.1").amount == 0.1);
  CHECK(rule_of("topk:10%").amount == 0.1);
  CHECK(rule_of("count:64").amount == 64);
  CHECK(rule_of("mass:0.95").kind == SelectionRule::Kind::kMass);
  CHECK(rule_of("mass:100%").amount == 1.0);
  for (const std::string text : {"all", "topk:0.1", "count:64", "mass:0.95"}) {
    CHECK(rule_of(text).text() == text);
  }
  const auto defaults = SelectionRule::parse("all");
  CHECK((*defaults).sinks == 1);
  CHECK((*defaults).recent == 4);
}

TEST_CASE("nonsense for a rule is refused with what was expected") {
  const std::string bad = GENERATE(
      "", "al", "all:1", "topk", "topk:", "topk:0", "topk:1.1", "topk:101%", "topk:-0.1",
      "topk:nan", "topk:0.1x", "topk:%", "count:0", "count:-3", "count:2.5", "count:99999999999",
      "mass:0", "mass:1.01", "mass:inf", "mass:", "mass:0.9%%", "random:3");
  CAPTURE(bad);
  const auto rule = SelectionRule::parse(bad);
  REQUIRE_FALSE(rule);
  CHECK(rule.error().code == Code::kInvalid);
  CHECK(rule.error().what.find("expected") != std::string::npos);
  CHECK(rule.error().what.find("'" + bad + "'") != std::string::npos);
}

TEST_CASE("top-k takes the heaviest pages, of equals the latest") {
  //               page 0   1   2   3   4   5   6   7   8   9
  const Codes mass = {40, 16, 80, 16, 40, 99, 40, 80, 99, 99};
  CHECK(select(rule_of("count:2"), mass) == Pages{1, 3, 9});
  CHECK(select(rule_of("count:1"), mass) == Pages{3, 9});
  CHECK(select(rule_of("count:4"), mass) == Pages{1, 3, 4, 6, 9});
  CHECK(select(rule_of("topk:0.3"), mass) == Pages{1, 3, 6, 9});
  CHECK(select(rule_of("topk:0.21"), mass) == Pages{1, 3, 6, 9});  // ceil(2.1) pages
}

TEST_CASE("a mass target takes the fewest pages that reach it") {
  // Shares 1/2, 1/4, 1/8, 1/16, 1/16 in another order.
  const Codes mass = {16, 32, 8, 24, 32};
  CHECK(select(rule_of("mass:0.5"), mass) == Pages{2, 4});
  CHECK(select(rule_of("mass:0.51"), mass) == Pages{0, 2, 4});
  CHECK(select(rule_of("mass:0.75"), mass) == Pages{0, 2, 4});
  CHECK(select(rule_of("mass:0.9"), mass) == Pages{0, 2, 3, 4});  // 7/8 is short: the later 1/16
  CHECK(select(rule_of("mass:1"), mass) == Pages{0, 1, 2, 3, 4});
}

TEST_CASE("a mass target is relative to what the row holds, and pages without mass never count") {
  const Codes mass = {255, 32, 255, 24, 255, 255};
  CHECK(select(rule_of("mass:0.6"), mass) == Pages{3, 5});
  CHECK(select(rule_of("mass:1"), mass) == Pages{1, 3, 5});
  CHECK(select(rule_of("mass:0.9"), Codes(6, 255)) == Pages{5});
}

TEST_CASE("a page that one query head asks for beats an equal that all share") {
  const Codes mass = {255, 40, 40, 41, 255};
  // Page 1: one head of the group holds all of it; page 2: shared. Without peak the later one wins.
  const Codes peak = {255, 24, 40, 40, 255};
  CHECK(select(rule_of("count:1"), mass) == Pages{2, 4});
  CHECK(select(rule_of("count:1"), mass, peak) == Pages{1, 4});
}

TEST_CASE("sinks, the recent window and the tail are always in") {
  const Codes mass = {99, 99, 8, 99, 99, 99, 99, 99};
  CHECK(select(rule_of("count:1", 2, 3), mass) == Pages{0, 1, 2, 5, 6, 7});
  CHECK(select(rule_of("count:1", 0, 0), mass) == Pages{2, 7});  // the tail, even with no window
  CHECK(select(rule_of("count:1", 99, 99), mass) == Pages{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(select(rule_of("count:99"), mass).size() == 8);
  CHECK(select(rule_of("all"), mass).size() == 8);
  CHECK(select(rule_of("topk:0.1", 1, 4), Codes{255}) == Pages{0});
}

TEST_CASE("no pages, no selection") {
  Selector selector(rule_of("mass:0.5"));
  Pages out = {1, 2, 3};
  selector.select(nullptr, nullptr, 0, out);
  CHECK(out.empty());
}

TEST_CASE("shares are 2^(-c/8) to seven digits") {
  const int octave_step = GENERATE(1, 2, 3, 4, 5, 6, 7);
  // Codes c and 0: the target lies just under, then just over, what page 1 holds of the two.
  const Codes mass = {static_cast<MassCode>(octave_step), 0, 255};
  const double heavy = 1.0 / (1.0 + std::exp2(-octave_step / 8.0));
  SelectionRule rule = rule_of("mass:0.5");
  rule.amount = heavy * (1 - 1e-7);
  CHECK(select(rule, mass) == Pages{1, 2});
  rule.amount = heavy * (1 + 1e-7);
  CHECK(select(rule, mass) == Pages{0, 1, 2});
}

TEST_CASE("selection equals sorting, whatever the row") {
  const auto seed = GENERATE(range(std::uint64_t{1}, std::uint64_t{9}));
  CAPTURE(seed);
  Rng rng(seed);
  for (int round = 0; round < 400; ++round) {
    const std::uint32_t pages = 1 + rng.below(round % 50 == 0 ? 20000 : 700);
    const std::uint32_t grain = 1U << rng.below(5);  // coarse codes: many ties
    const std::uint32_t span = 1 + rng.below(256);
    Codes mass(pages);
    Codes peak(rng.below(2) == 0 ? 0 : pages);
    for (MassCode& c : mass) c = static_cast<MassCode>(rng.below(span) / grain * grain);
    for (MassCode& c : peak) c = static_cast<MassCode>(rng.below(256) / 8 * 8);
    if (rng.below(4) == 0)
      std::fill(mass.begin(), mass.end(), static_cast<MassCode>(rng.below(256)));
    SelectionRule rule;
    rule.kind = static_cast<SelectionRule::Kind>(rng.below(4));
    rule.amount = rule.kind == SelectionRule::Kind::kCount ? 1 + rng.below(pages + 3)
                                                           : (1 + rng.below(1000)) / 1000.0;
    rule.sinks = rng.below(4);
    rule.recent = rng.below(6);
    CAPTURE(round, pages, rule.text(), rule.sinks, rule.recent);
    REQUIRE(select(rule, mass, peak) == brute_force(rule, mass, peak));
  }
}

TEST_CASE("one selector serves rows of any length in any order") {
  Selector selector(rule_of("topk:0.5"));
  const Codes mass(300, 16);
  CHECK(selector.select(mass.data(), nullptr, 300).size() == 150);
  CHECK(selector.select(mass.data(), nullptr, 2).size() == 1);
  CHECK(selector.select(mass.data(), nullptr, 200).size() == 100);
}

}  // namespace
}  // namespace lehr
