// SPDX-License-Identifier: Apache-2.0
// Pages at a lower precision, as placement decides it: what is known of masses, which groups lower
// how much, what a plan may name, and that bounds hold whatever is lowered.
#include "placement/lowering.hpp"

#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"
#include "placement/bounds.hpp"
#include "placement/plan_check.hpp"
#include "placement/shares.hpp"
#include "tests/support/policy_world.hpp"

namespace lehr::placement {
namespace {

/// One layer of one group: pages 0 and 1 are read, 2 is the tail. Masses 1/2, 1/4 and 1/4.
struct TinyLayer {
  std::vector<PageId> blocks{0, 1, 2};
  std::vector<PageId> selected{0, 1};
  std::vector<MassCode> mass{8, 16};
  std::vector<MassCode> of_group{8, 16, 16};
  std::vector<Residency> residency{2, 2, 1};
  std::vector<std::uint16_t> guard{1, 1, 1};
  std::vector<std::uint32_t> position{0, 1, 2};
  std::vector<std::uint16_t> zeros{0, 0, 0};
  std::vector<std::uint8_t> lowered{0, 0, 0};
  std::vector<std::uint8_t> zero_hits{0, 0};
  std::vector<GroupView> groups;
  LayerView view;

  TinyLayer() {
    groups.push_back({blocks, 0, of_group.data(), nullptr, 0, 2, 0, 0});
    view.selected = view.missed = selected;
    view.mass = mass;
    view.groups = groups;
    view.layers = 1;
    view.pages = {residency, guard, position, zeros, zeros, {}, {}, lowered};
  }
};

TEST_CASE("MassLedger: shares by hand") {
  MassLedger ledger;
  TinyLayer layer;
  CHECK_FALSE(ledger.known());
  CHECK(ledger.share(0, 1.0F, 0) == 1);  // of nothing known, all
  ledger.next_step();
  ledger.read(layer.view);
  CHECK_FALSE(ledger.known());  // a step counts when it has ended
  ledger.next_step();
  REQUIRE(ledger.known());
  // Read once: with certain odds all of its latest mass is expected, with odds of 1/2 half of it.
  CHECK(ledger.share(0, 1.0F, 0) == Approx(0.5));
  CHECK(ledger.share(1, 0.5F, 0) == Approx(0.125));
  CHECK(ledger.share(2, 1.0F, 0) == 0);  // tails are never asked for
  // Without odds what is left is its average: half a mass in one step of the half-life's average.
  const double step = std::exp2(-1.0 / MassLedger::kHalfLife);
  CHECK(ledger.share(0, 0.0F, 0) == Approx(0.5 * (1 - step)));
  CHECK(ledger.share(0, 0.0F, 16) == Approx(0.25 * (1 - step)));
  CHECK(ledger.used() == 0);
  ledger.lowered(0.125);
  CHECK(ledger.used() == Approx(0.125));
  layer.lowered[1] = 1;
  layer.view.step = 1;
  ledger.read(layer.view);
  ledger.next_step();
  CHECK(ledger.used() == Approx(0.25 + 0.125 * 0.75));  // a quarter of the step was read there
  const PageId gone = 0;
  ledger.forget({&gone, 1});
  CHECK(ledger.share(0, 1.0F, 1) == 0);
}

TEST_CASE(
    "MassLedger: the most on lowered pages fades slowly, and no page is a tail that was read") {
  MassLedger ledger;
  TinyLayer layer;
  layer.lowered[1] = 1;
  ledger.read(layer.view);
  ledger.next_step();
  CHECK(ledger.used() == Approx(0.25));
  layer.lowered[1] = 0;  // as if it were not read
  for (Step step = 1; step <= 10; ++step) {
    layer.view.step = step;
    ledger.read(layer.view);
    ledger.next_step();
    CHECK(ledger.used() == Approx(0.25 * std::pow(0.98, step)));
  }
  // Whole pages only: the last is one of those read, and 3/4 in all.
  MassLedger whole;
  layer.blocks.pop_back();
  layer.groups[0].blocks = layer.blocks;
  layer.view.groups = layer.groups;
  whole.read(layer.view);
  whole.next_step();
  CHECK(whole.share(0, 1.0F, layer.view.step) == Approx(0.5 / 0.75));
}

TEST_CASE("MassLedger: untold masses say nothing, so that nothing is lowered") {
  MassLedger ledger;
  TinyLayer layer;
  layer.view.mass = {};
  for (int i = 0; i < 3; ++i) {
    ledger.next_step();
    ledger.read(layer.view);
  }
  CHECK_FALSE(ledger.known());
  CHECK(ledger.share(0, 0.5F, 0) == 1);
}

TEST_CASE("MassLedger: what is read untold may have any mass, until it is told") {
  MassLedger ledger;
  TinyLayer layer;
  layer.view.selected = std::span(layer.selected).first(1);
  ledger.read(layer.view);
  ledger.next_step();
  REQUIRE(ledger.known());
  CHECK(ledger.share(1, 1.0F, 0) == 0);  // not read so far
  layer.view.step = 1;
  layer.view.selected = layer.selected;
  layer.view.mass = {};
  ledger.read(layer.view);
  ledger.next_step();
  CHECK(ledger.share(0, 0.1F, 1) == 1);
  CHECK(ledger.share(1, 0.1F, 1) == 1);
  layer.view.step = 2;
  layer.view.mass = layer.mass;
  ledger.read(layer.view);
  ledger.next_step();
  CHECK(ledger.share(0, 1.0F, 2) < 1);
  CHECK(ledger.share(1, 1.0F, 2) < 1);
}

TEST_CASE("MassLedger: of a page that sequences share the masses of all of them count") {
  // Two sequences with the same two pages and a tail each; page 0 is listed with the first alone.
  MassLedger ledger;
  TinyLayer layer;
  const std::vector<PageId> other{0, 1, 3};
  layer.groups.push_back({other, 0, layer.of_group.data(), nullptr, 2, 0, 1, 0});
  layer.view.groups = layer.groups;
  layer.lowered[1] = 1;
  ledger.read(layer.view);
  ledger.next_step();
  CHECK(ledger.share(0, 1.0F, 0) == Approx(0.5));  // 2 x 1/2 of 2
  CHECK(ledger.used() == Approx(0.25));
  // The second alone reads page 1: it is listed with that one, once.
  MassLedger apart;
  layer.groups[0].count = layer.groups[1].first = layer.groups[1].count = 1;
  layer.view.groups = layer.groups;
  apart.read(layer.view);
  apart.next_step();
  // Page 0: 1/2 twice. Page 1: 1/4 twice. Tails: 1/4 each.
  CHECK(apart.used() == Approx(0.25));
}

TEST_CASE("LowerHistogram: bins rise with what mass buys, and take any number") {
  CHECK(LowerHistogram::bin(0) == 0);
  CHECK(LowerHistogram::bin(-1) == 0);
  CHECK(LowerHistogram::bin(16) == 0);
  CHECK(LowerHistogram::bin(20) == 1);
  CHECK(LowerHistogram::bin(32) == 4);  // an octave is four bins
  CHECK(LowerHistogram::bin(0x1p59) == LowerHistogram::kBins - 1);
  CHECK(LowerHistogram::bin(HUGE_VAL) == LowerHistogram::kBins - 1);
  CHECK(LowerHistogram::bin(std::numeric_limits<double>::quiet_NaN()) == LowerHistogram::kBins - 1);
  std::uint32_t before = 0;
  for (int i = 0; i < 2800; ++i) {
    const std::uint32_t b = LowerHistogram::bin(std::pow(1.01, i));
    REQUIRE(b >= before);
    REQUIRE(b <= before + 1);
    before = b;
  }
}

constexpr Bytes kPage = 16 * kKiB;
constexpr Bytes kLow = 8 * kKiB + 16;

/// 32 crossings at 50 GB/s after 1 us: 11.486 us whole, 6.253 lowered.
PolicyContext lowers(const Platform& platform) {
  PolicyContext context{&platform, 8, kPage, 1, 1, 0};
  context.lowered_bytes = kLow;
  context.lowered_mass = 0.4;
  return context;
}

/// `steps` in which page 0 has half of the mass, page 1 a 64th, and the tail the rest.
void learn(Lowering& lowering, TinyLayer& layer, std::uint32_t steps) {
  layer.mass = {8, 48};
  layer.of_group = {8, 48, 8};
  for (std::uint32_t t = 0; t < steps; ++t) {
    layer.view.step = t;
    lowering.read(layer.view);
    lowering.next_step();
  }
}

TEST_CASE("Lowering: what is worth it pays for its write-back, by hand") {
  const Platform platform = test::small_platform();
  Lowering lowering;
  lowering.begin(lowers(platform), {.steps = 8, .price = 1, .reserve = 0.5});
  REQUIRE(lowering.allowed());
  CHECK(lowering.crossing() == Approx(6.25312 / 11.48576));
  // A write-back takes 6.253 us, each of 8 steps saves 5.233 us: odds of 0.1494.
  TinyLayer layer;
  learn(lowering, layer, 4);
  CHECK_FALSE(lowering.pays(1, 0.149F, 3, 0));
  CHECK(lowering.pays(1, 0.150F, 3, 0));
  CHECK_FALSE(lowering.pays(1, 1.0F, 3, LowerHistogram::kBins));
  // 64 crossings for each unit of mass, times all there is: bin 8 + a little.
  CHECK(lowering.pays(1, 1.0F, 3, LowerHistogram::bin(64)));
  CHECK_FALSE(lowering.pays(1, 1.0F, 3, LowerHistogram::bin(128)));
}

TEST_CASE("Lowering: pages are counted that cross, are whole, and pay") {
  const Platform platform = test::small_platform();
  Lowering lowering;
  lowering.begin(lowers(platform), {.steps = 8, .price = 1, .reserve = 0.5});
  TinyLayer layer;
  learn(lowering, layer, 4);
  LowerHistogram group;
  const auto sums = [&] {
    double saved = 0, mass = 0;
    for (std::uint32_t b = 0; b < LowerHistogram::kBins; ++b) {
      saved += group.saved(b);
      mass += group.mass(b);
    }
    return std::pair(saved, mass);
  };
  lowering.count(1, 0.149F, layer.view, group);
  layer.residency[1] = 3;
  lowering.count(1, 1.0F, layer.view, group);  // in HBM
  layer.residency[1] = 2;
  layer.lowered[1] = 1;
  lowering.count(1, 1.0F, layer.view, group);  // lowered
  CHECK(sums() == std::pair(0.0, 0.0));
  layer.lowered[1] = 0;
  lowering.count(1, 0.5F, layer.view, group);
  CHECK(sums().first == Approx(0.5 * (1 - 6.25312 / 11.48576)));
  CHECK(sums().second == Approx(0.5 / 64 / (1 + 1.0 / 64)).epsilon(1e-3));
}

TEST_CASE("Lowering: the write-backs of a layer fit beside it, and none is made unknown") {
  const Platform platform = test::small_platform();
  Lowering lowering;
  lowering.begin(lowers(platform), {});
  CHECK(lowering.begin_layer(1) == 0);  // nothing is known yet
  TinyLayer layer;
  learn(lowering, layer, 1);
  CHECK(lowering.begin_layer(0.9e-6) == 0);  // the link's latency
  CHECK(lowering.begin_layer(1e-6 + 2.5 * kLow / 50e9) == 2);
  CHECK(lowering.begin_layer(1e-6 + 100.5 * kLow / 50e9) == 100);
}

TEST_CASE("Lowering: as much mass as the budget has left, and less while little is known") {
  const Platform platform = test::small_platform();
  Lowering lowering;
  lowering.begin(lowers(platform), {.steps = 8, .price = 1, .reserve = 0.49});
  TinyLayer layer;
  learn(lowering, layer, 1);
  const double one_step = 1 - std::exp2(-1.0 / MassLedger::kHalfLife);
  CHECK(lowering.mass_left() == Approx(0.196 * one_step));
  learn(lowering, layer, 400);
  CHECK(lowering.mass_left() == Approx(0.196));
  LayerPlan plan;
  CHECK_FALSE(lowering.lower(0, 1.0F, 399, plan));  // half of the mass
  while (lowering.lower(1, 1.0F, 399, plan)) REQUIRE(plan.lower.size() < 100);
  CHECK(plan.lower == std::vector<PageId>(12, 1));  // of 0.01538 each
  CHECK(lowering.mass_left() == Approx(0.196 - 12 * (1.0 / 64) / (1 + 1.0 / 64)).margin(1e-4));
}

TEST_CASE("Lowering: not where nobody allows it, nor where it saves no time") {
  const Platform platform = test::small_platform();
  Lowering lowering;
  const auto allowed = [&](const PolicyContext& context) {
    lowering.begin(context, {});
    return lowering.allowed();
  };
  PolicyContext context = lowers(platform);
  CHECK(allowed(context));
  context.lowered_mass = 0;
  CHECK_FALSE(allowed(context));
  CHECK(lowering.crossing() == 1);
  CHECK(lowering.begin_layer(1) == 0);
  context = lowers(platform);
  context.lowered_bytes = 0;
  CHECK_FALSE(allowed(context));
  context = lowers(platform);
  context.platform = nullptr;
  CHECK_FALSE(allowed(context));
  Platform odd = platform;  // small transfers are so slow that half the bytes take as long
  odd.links[odd.link(odd.home, kHbm)].curve =
      BandwidthCurve({kLow, kPage}, {1, 64}, {1e9, 1e9, 50e9, 50e9});
  CHECK_FALSE(allowed(lowers(odd)));
}

struct Case {
  std::vector<OddsHistogram> groups;
  std::vector<LowerHistogram> lower;
  std::vector<Share> shares;
  std::uint32_t layers = 0;
  double all_mass = 0;

  double mass(const std::vector<Share>& of) const {
    double sum = 0;
    for (const Share& s : of) {
      for (std::uint32_t b = s.lowers; b < LowerHistogram::kBins; ++b)
        sum += lower[s.group].mass(b);
    }
    return sum;
  }
  Seconds time(const std::vector<Share>& of, const MissCost& cost) const {
    std::vector<double> misses(layers, 0.0);
    for (const Share& s : of) {
      for (std::uint32_t b = 0; b < s.least; ++b) misses[s.layer] += groups[s.group].odds(b);
      for (std::uint32_t b = s.lowers; b < LowerHistogram::kBins; ++b)
        misses[s.layer] -= lower[s.group].saved(b);
    }
    Seconds sum = 0;
    for (const double m : misses) sum += cost.at(std::max(m, 0.0));
    return sum;
  }
};

Case random_case(std::uint64_t seed) {
  Rng rng(seed);
  Case out;
  out.layers = static_cast<std::uint32_t>(1 + seed % 3);
  for (std::uint32_t l = 0; l < out.layers; ++l) {
    out.groups.emplace_back();
    out.lower.emplace_back();
    out.shares.push_back({l, l, OddsHistogram::kBins});
    for (std::uint32_t i = 0; i < 12; ++i) {
      const double odds = rng.uniform();
      const double mass = 1e-4 + 1e-2 * rng.uniform();
      out.groups.back().add(static_cast<float>(odds));
      out.lower.back().add(LowerHistogram::bin(odds / mass), 0.5 * odds, mass);
      out.all_mass += mass;
    }
  }
  return out;
}

TEST_CASE("Shares: lowering stays within the mass, and is never worse than doing without") {
  const MissCost cost(test::small_platform(), kPage, 0);
  ShareAnnealer annealer;
  std::uint64_t lowered = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const Case c = random_case(seed);
    const double budget = c.all_mass * 0.3 * static_cast<double>(seed % 5) / 4;
    const Lowerable lowerable{c.lower, budget};
    SharesResult result;
    std::vector<Share> shares = c.shares;
    REQUIRE(annealer.run(c.groups, cost, c.layers, 0, 4000, seed, shares, result, &lowerable));
    CHECK(c.mass(shares) <= budget + 1e-12);
    CHECK(c.time(shares, cost) <= c.time(c.shares, cost));
    CHECK(result.after == Approx(c.time(shares, cost)));
    if (budget == 0) CHECK(c.mass(shares) == 0);
    lowered += c.mass(shares) > 0 ? 1 : 0;
    // A warm start over a budget that has shrunk gives way.
    std::vector<Share> again = shares;
    const Lowerable less{c.lower, budget / 2};
    REQUIRE(annealer.run(c.groups, cost, c.layers, 0, 0, seed, again, result, &less));
    CHECK(c.mass(again) <= budget / 2 + 1e-12);
    // The same seed gives the same.
    std::vector<Share> twice = c.shares;
    REQUIRE(annealer.run(c.groups, cost, c.layers, 0, 4000, seed, twice, result, &lowerable));
    for (std::size_t i = 0; i < twice.size(); ++i) CHECK(twice[i].lowers == shares[i].lowers);
  }
  CHECK(lowered == 48);  // all with a budget
}

TEST_CASE("Shares: lowering is close to the best of all choices") {
  const MissCost cost(test::small_platform(), kPage, 0);
  ShareAnnealer annealer;
  double worst = 1;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    // Two groups, every pair of thresholds tried.
    const Case c = random_case(1 + 3 * seed);
    REQUIRE(c.shares.size() == 2);
    const double budget = c.all_mass * 0.2;
    std::vector<Share> shares = c.shares;
    Seconds best = HUGE_VAL;
    for (std::uint32_t a = 0; a <= LowerHistogram::kBins; ++a) {
      for (std::uint32_t b = 0; b <= LowerHistogram::kBins; ++b) {
        shares[0].lowers = a;
        shares[1].lowers = b;
        if (c.mass(shares) <= budget) best = std::min(best, c.time(shares, cost));
      }
    }
    shares = c.shares;
    const Lowerable lowerable{c.lower, budget};
    SharesResult result;
    REQUIRE(annealer.run(c.groups, cost, c.layers, 0, 20000, seed, shares, result, &lowerable));
    worst = std::max(worst, c.time(shares, cost) / best);
    CHECK(c.time(shares, cost) >= best * (1 - 1e-12));
  }
  CHECK(worst < 1.01);
}

TEST_CASE("Shares: what may be lowered has to be of the same groups") {
  const MissCost cost(test::small_platform(), kPage, 0);
  const Case c = random_case(3);
  const Lowerable lowerable{std::span(c.lower).first(0), 1};
  ShareAnnealer annealer;
  SharesResult result;
  std::vector<Share> shares = c.shares;
  CHECK_FALSE(annealer.run(c.groups, cost, c.layers, 0, 10, 1, shares, result, &lowerable));
  shares[0].lowers = LowerHistogram::kBins + 1;
  CHECK_FALSE(annealer.run(c.groups, cost, c.layers, 0, 10, 1, shares, result));
}

TEST_CASE("a plan lowers only what is allowed, at hand, whole, at home and held by nobody else") {
  TinyLayer layer;
  layer.view.free_slots = 1;
  LayerPlan plan;
  plan.lower = {0, 1};
  REQUIRE(check_plan(layer.view, plan));
  const auto refused = [&](const char* why) {
    const Status said = check_plan(layer.view, plan);
    REQUIRE_FALSE(said);
    CHECK(said.error().what.find(why) != std::string::npos);
  };
  plan.lower = {0, 0};
  refused("twice");
  plan.lower = {2};
  refused("not at hand");
  plan.lower = {1};
  layer.guard[1] = 2;
  refused("held");
  layer.guard[1] = 1;
  layer.residency[1] = tier_bit(kHbm);
  refused("without a home");
  layer.residency[1] = 2;
  layer.lowered[1] = 1;
  refused("lowered page");
  layer.view.pages.lowered = {};
  refused("not allowed");
}

test::WorldShape tight(std::uint64_t seed, double mass) {
  test::WorldShape shape;
  shape.sequences = 2;
  shape.layers = 4;
  shape.prompt_pages = 40;
  shape.steps = 60;
  shape.selected = 12;
  shape.capacity = 60;
  shape.lowered_mass = mass;
  shape.seed = seed;
  return shape;
}

TEST_CASE("sa lowers pages under its plans' rules, the more the more mass it may") {
  std::uint64_t before = 0;
  for (const double mass : {0.0, 0.05, 0.2, 0.5}) {
    std::uint64_t lowered = 0;
    double most = 0;
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      CAPTURE(seed, mass);
      const test::PolicyWorld world(tight(seed, mass));
      const test::WorldRun run = world.play("sa", {{"proposals", 2000}, {"box", 100}});
      CHECK(run.broken == "");
      lowered += run.lowered;
      most = std::max(most, run.most_lowered_mass);
    }
    CAPTURE(lowered, most);
    CHECK((mass == 0 ? lowered == 0 : lowered > before));
    CHECK(most <= mass);
    before = lowered;
  }
}

/// Looks over another's shoulder, and tells it of a slow link home.
class Watching final : public Policy {
 public:
  static constexpr double kDown = 5e9;

  explicit Watching(std::unique_ptr<Policy> inner) : inner_(std::move(inner)) {
    slow_ = test::small_platform();
    slow_.links[slow_.link(kHbm, slow_.home)].curve = BandwidthCurve(kDown);
  }
  std::uint64_t lowered = 0, full_layers = 0;

  void begin(const PolicyContext& context) override {
    PolicyContext told = context;
    told.platform = &slow_;
    cost_.emplace(slow_, context.page_bytes, 0);
    inner_->begin(told);
  }
  void add_pages(std::span<const PageId> pages, std::span<const Tick> first,
                 const PageColumns& columns) override {
    inner_->add_pages(pages, first, columns);
  }
  void remove_pages(std::span<const PageId> pages) override { inner_->remove_pages(pages); }
  void decide(const LayerView& view, LayerPlan& plan) override {
    inner_->decide(view, plan);
    // The longest that the layer's crossings take, whatever they hide behind.
    const Seconds layer = cost_->at(static_cast<double>(view.missed.size()));
    const double room = std::max(0.0, (layer - 1e-6) * kDown / kLow);
    CHECK(static_cast<double>(plan.lower.size()) <= room);
    full_layers += static_cast<double>(plan.lower.size()) > room - 1 && !plan.lower.empty();
    for (const PageId page : plan.lower) {
      CHECK(view.pages.position[page] > 0);  // sinks are whole
      CHECK(std::count(view.missed.begin(), view.missed.end(), page) == 1);
      CHECK(std::count(plan.install.begin(), plan.install.end(), page) == 0);  // it crosses again
    }
    lowered += plan.lower.size();
  }

 private:
  std::unique_ptr<Policy> inner_;
  Platform slow_;
  std::optional<MissCost> cost_;
};

TEST_CASE("sa lowers pages that cross again, no sinks, and no more than the link home takes") {
  std::uint64_t lowered = 0, full_layers = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    CAPTURE(seed);
    const test::PolicyWorld world(tight(seed, 1.0));
    auto sa = make_policy("sa", {{"box", 100}, {"lower-price", 0}});
    auto predictor = predictors::make_predictor("table", {});
    REQUIRE(sa);
    REQUIRE(predictor);
    Watching watching(*std::move(sa));
    CHECK(world.play(watching, predictor->get()).broken == "");
    lowered += watching.lowered;
    full_layers += watching.full_layers;
  }
  CHECK(lowered > 100);
  CHECK(full_layers > 10);  // the limit was felt
}

TEST_CASE("a miss of a lowered page costs less: of two alike the whole one is kept") {
  const Platform platform = test::small_platform();
  const auto kept = [&](std::vector<std::uint8_t> lowered) {
    auto sa = make_policy("sa", {{"sinks", 0}});
    REQUIRE(sa);
    (*sa)->begin(lowers(platform));
    TinyLayer layer;
    layer.lowered = std::move(lowered);
    layer.view.pages.lowered = layer.lowered;
    layer.view.hit = layer.zero_hits;
    layer.view.capacity = 2;
    layer.view.free_slots = 1;
    const std::vector<float> odds{0.9F, 0.9F, 0};
    layer.view.odds = odds;
    const std::vector<PageId> pages{0, 1};
    (*sa)->add_pages(pages, {}, layer.view.pages);
    LayerPlan plan;
    (*sa)->decide(layer.view, plan);
    CHECK(check_plan(layer.view, plan));
    return plan.install;
  };
  CHECK(kept({1, 0, 0}) == std::vector<PageId>{1});
  CHECK(kept({0, 1, 0}) == std::vector<PageId>{0});
  CHECK(kept({0, 0, 0}) == std::vector<PageId>{1});  // else the one near the tail
}

TEST_CASE("when promotions start is annealed where that is asked for") {
  std::uint32_t differ = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    test::WorldShape shape = tight(seed, 0);
    shape.layers = 8;
    shape.capacity = 140;
    const test::PolicyWorld world(shape);
    const test::WorldRun at_once = world.play("sa", {{"box", 100}});
    const test::WorldRun annealed = world.play("sa", {{"box", 100}, {"starts", 1000}});
    CHECK(annealed.broken == "");
    CHECK(at_once.promotions > 0);
    differ += at_once.plan_digest != annealed.plan_digest ? 1 : 0;
  }
  CHECK(differ >= 3);
}

TEST_CASE("without guards shares are annealed and pages lowered all the same") {
  for (const char* policy : {"sa", "knapsack"}) {
    CAPTURE(policy);
    std::uint32_t differ = 0;
    std::uint64_t lowered = 0;
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      const test::PolicyWorld world(tight(seed, 0.5));
      const Parameters off{{"guards", 0}};
      const test::WorldRun run = world.play(policy, off);
      CHECK(run.broken == "");
      differ += run.plan_digest != world.play("table", off).plan_digest ? 1 : 0;
      lowered += run.lowered;
    }
    CHECK(differ == 4);
    CHECK((lowered > 0) == (policy == std::string("sa")));
  }
}

TEST_CASE("control: without the ledger's reserve the same pages would hold more than the budget") {
  // All that may be lowered, without a budget to speak of.
  double most = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const test::PolicyWorld world(tight(seed, 1.0));
    most = std::max(most, world.play("sa", {{"proposals", 2000}, {"box", 100}}).most_lowered_mass);
  }
  CHECK(most > 0.5);
}

TEST_CASE("a policy that lowers nothing decides as if it were not allowed") {
  for (const char* policy : {"lru", "table", "knapsack"}) {
    const test::PolicyWorld with(tight(1, 0.2));
    const test::PolicyWorld without(tight(1, 0));
    CHECK(with.play(policy).lowered == 0);
    CHECK(with.play(policy).plan_digest == without.play(policy).plan_digest);
  }
}

/// Every page read in each tick over the link or from HBM at random, whole or lowered at random.
Seconds mixed_time(const Instance& instance, Rng& rng, double lowered_share) {
  const Platform& platform = *instance.platform;
  const LinkId up = platform.link(platform.home, kHbm);
  Seconds sum = 0;
  for (Tick t = 0; t < instance.ticks(); ++t) {
    LayerLoad load = instance.load(t, 0, 0);
    for (std::size_t i = 0; i < instance.visits_at(t).size(); ++i) {
      const bool lowered = rng.uniform() < lowered_share;
      load.link[up].add(lowered ? instance.least_page_bytes : instance.page_bytes);
    }
    sum += layer_time(platform, load).total();
  }
  return sum;
}

Instance random_instance(const Platform& platform, Rng& rng) {
  Instance in;
  in.platform = &platform;
  in.capacity = 0;  // all of it crosses: a plan's only choice is precision
  in.page_bytes = 16384;
  in.least_page_bytes = 8208;
  in.layers = 2;
  for (std::uint32_t p = 0; p < 12; ++p) in.add_page(0, false);
  for (Tick t = 0; t < 10; ++t) {
    in.open_tick(1000, 1e6, 0);
    for (PageId p = 0; p < 12; ++p) {
      if (rng.below(2) == 0) in.add_visit(p);
    }
  }
  return in;
}

TEST_CASE("no mix of whole and lowered pages is faster than the bound") {
  Platform platform = test::small_platform();
  Link& up = platform.links[platform.link(platform.home, kHbm)];
  // The last has a stretch in which larger pages take less time each, whatever that may be.
  const std::vector<BandwidthCurve> curves = {
      BandwidthCurve(50e9),
      BandwidthCurve({4096, 16384, 65536}, {1, 8}, {1e9, 8e9, 4e9, 20e9, 9e9, 40e9}),
      BandwidthCurve({8192, 12000, 32768}, {1, 4}, {1e9, 2e9, 9e9, 20e9, 9.5e9, 21e9})};
  std::uint32_t beaten = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    up.curve = curves[seed % curves.size()];
    Rng rng(seed);
    Instance instance = random_instance(platform, rng);
    const auto bound = lower_bound(instance);
    REQUIRE(bound);
    Seconds least = HUGE_VAL;
    for (const double share : {0.0, 0.3, 0.7, 1.0})
      least = std::min(least, mixed_time(instance, rng, share));
    CHECK(bound->best.total <= least * (1 + 1e-12));
    Instance whole = instance;
    whole.least_page_bytes = 0;
    const auto of_whole = lower_bound(whole);
    REQUIRE(of_whole);
    CHECK(bound->best.total <= of_whole->best.total * (1 + 1e-9));
    beaten += of_whole->best.total > least * (1 + 1e-9) ? 1 : 0;
  }
  CHECK(beaten > 10);  // control: counted as whole pages, the bound is beaten
}

TEST_CASE("an instance's lowered pages are no larger than whole ones") {
  const Platform platform = test::small_platform();
  Rng rng(1);
  Instance instance = random_instance(platform, rng);
  instance.least_page_bytes = instance.page_bytes + 1;
  CHECK_FALSE(lower_bound(instance));
}

}  // namespace
}  // namespace lehr::placement
