// SPDX-License-Identifier: Apache-2.0
// The guards in the policies that ship: what stops moves, what takes them back and what never
// leaves, each beside a control in which the guard is off.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "placement/plan_check.hpp"
#include "placement/policy.hpp"
#include "tests/support/policy_world.hpp"

namespace lehr::placement {
namespace {

/// One sequence whose reads and odds a test writes down. Promotions arrive when their layer ends,
/// which leaves the link idle.
class Stage {
 public:
  static constexpr std::uint32_t kLayers = 6;
  static constexpr std::uint32_t kGroup = 48;  ///< full pages a layer, and a tail
  static constexpr PageId kPages = kLayers * kGroup;

  struct Outcome {
    std::vector<PageId> promoted;
    std::vector<PageId> dropped;
    std::uint32_t misses = 0;
    Restraint restraint = Restraint::kNone;
  };

  Stage(const char* name, const Parameters& parameters, std::uint32_t slots,
        std::uint32_t resident_a_layer)
      : capacity(slots), platform_(test::small_platform()) {
    auto made = make_policy(name, parameters);
    REQUIRE(made);
    policy_ = std::move(*made);
    policy_->begin({&platform_, capacity, 16 * kKiB, kLayers, 1, 1});
    std::vector<PageId> all;
    for (PageId p = 0; p < kPages; ++p) {
      layer_[p] = static_cast<std::uint16_t>(p / kGroup);
      position_[p] = p % kGroup;
      if (position_[p] < resident_a_layer) residency_[p] |= tier_bit(kHbm);
      all.push_back(p);
    }
    policy_->add_pages(all, {}, columns());
    used_ = kLayers * resident_a_layer;
    for (std::uint32_t l = 0; l < kLayers; ++l) {
      for (std::uint32_t i = 0; i <= kGroup; ++i) blocks_[l].push_back(l * kGroup + i);
    }
  }

  static PageId page(std::uint32_t layer, std::uint32_t index) { return layer * kGroup + index; }
  bool in_hbm(PageId p) const { return resident(residency_[p], kHbm); }
  std::vector<std::uint16_t>& guard() { return guard_; }

  /// Plays one step; `reads(layer)` gives indices in rising order, `odds` is read after that.
  Outcome step(const std::function<std::vector<std::uint32_t>(std::uint32_t)>& reads) {
    Outcome out;
    for (std::uint32_t l = 0; l < kLayers; ++l) layer(l, reads(l), out);
    ++step_;
    return out;
  }

  std::uint32_t capacity;
  std::uint32_t must_free = 0;  ///< in the next layer
  std::vector<float> odds = std::vector<float>(kPages, 0);
  bool predictor_paused = false;

 private:
  PageColumns columns() const { return {residency_, guard_, position_, layer_, sequence_}; }

  void layer(std::uint32_t l, const std::vector<std::uint32_t>& indices, Outcome& out) {
    std::vector<PageId> selected;
    std::vector<PageId> missed;
    std::vector<std::uint8_t> hit;
    for (const std::uint32_t i : indices) {
      const PageId p = page(l, i);
      selected.push_back(p);
      hit.push_back(in_hbm(p) ? 1 : 0);
      if (!in_hbm(p)) missed.push_back(p);
      ++guard_[p];
    }
    GroupView group;
    group.blocks = blocks_[l];
    group.count = static_cast<std::uint32_t>(selected.size());
    LayerView view;
    view.step = step_;
    view.layer = l;
    view.layers = kLayers;
    view.tick = step_ * kLayers + l;
    view.selected = selected;
    view.hit = hit;
    view.missed = missed;
    view.groups = {&group, 1};
    view.capacity = capacity;
    view.free_slots = capacity > used_ ? capacity - used_ : 0;
    view.must_free = must_free;
    view.odds = odds;
    view.forecast.odds[0] = odds;
    view.forecast.horizon = 1;
    view.forecast.paused = predictor_paused;
    view.pages = columns();
    LayerPlan plan;
    policy_->decide(view, plan);
    const Status checked = check_plan(view, plan);
    INFO((checked ? std::string() : checked.error().what));
    REQUIRE(checked);
    for (const PageId p : plan.drop) {
      residency_[p] = tier_bit(1);
      --used_;
      out.dropped.push_back(p);
    }
    for (const PageId p : plan.install) arrive(p);
    for (const Promotion& m : plan.promote) {
      arrive(m.page);
      out.promoted.push_back(m.page);
    }
    used_ += must_free;
    must_free = 0;
    for (const PageId p : selected) --guard_[p];
    out.misses += static_cast<std::uint32_t>(missed.size());
    out.restraint = policy_->restraint();
  }
  void arrive(PageId p) {
    residency_[p] |= tier_bit(kHbm);
    ++used_;
  }

  Platform platform_;
  std::unique_ptr<Policy> policy_;
  Step step_ = 0;
  std::uint32_t used_ = 0;
  std::vector<Residency> residency_ = std::vector<Residency>(kPages, tier_bit(1));
  std::vector<std::uint16_t> guard_ = std::vector<std::uint16_t>(kPages + 1, 0);
  std::vector<std::uint32_t> position_ = std::vector<std::uint32_t>(kPages, 0);
  std::vector<std::uint16_t> layer_ = std::vector<std::uint16_t>(kPages, 0);
  std::vector<std::uint16_t> sequence_ = std::vector<std::uint16_t>(kPages, 0);
  std::vector<PageId> blocks_[kLayers];
};

const char* shipped() { return GENERATE("table", "sa"); }

/// Reads that move through the pages by four a step and are foretold; promotions serve them.
struct Moving {
  Stage stage;
  std::uint32_t at = 0;

  explicit Moving(const char* name, const Parameters& parameters, std::uint32_t capacity = 96)
      : stage(name, parameters, capacity, 12) {}

  std::vector<std::uint32_t> window(std::uint32_t from) const {
    std::vector<std::uint32_t> indices;
    for (std::uint32_t i = 0; i < 8; ++i) indices.push_back((4 * from + i) % Stage::kGroup);
    std::sort(indices.begin(), indices.end());
    return indices;
  }
  /// `extra`: pages read beyond those that were foretold, and that no step is about to read.
  Stage::Outcome step(std::uint32_t extra = 0) {
    ++at;
    std::fill(stage.odds.begin(), stage.odds.end(), 0.0F);
    for (std::uint32_t l = 0; l < Stage::kLayers; ++l) {
      for (const std::uint32_t i : window(at + 1)) stage.odds[Stage::page(l, i)] = 0.6F;
    }
    return stage.step([&](std::uint32_t) {
      std::vector<std::uint32_t> indices = window(at);
      for (std::uint32_t i = 0; i < extra; ++i) {
        indices.push_back((4 * at + 20 + i) % Stage::kGroup);
      }
      std::sort(indices.begin(), indices.end());
      return indices;
    });
  }
};

std::size_t common(const std::vector<PageId>& a, const std::vector<PageId>& b) {
  return static_cast<std::size_t>(std::count_if(
      a.begin(), a.end(), [&](PageId p) { return std::find(b.begin(), b.end(), p) != b.end(); }));
}

TEST_CASE(
    "a step that takes much longer than foretold pauses promotions and takes the latest back") {
  const char* name = shipped();
  CAPTURE(name);
  const auto play = [name](double guards) {
    struct {
      std::size_t before = 0, after = 0, resumed = 0, undone = 0;
      bool said = false;
    } seen;
    Moving run(name, {{"guards", guards}});
    for (int i = 0; i < 40; ++i) seen.before += run.step().promoted.size();
    const std::vector<PageId> last = run.step(20).promoted;
    const std::size_t tail = last.size() < 5 ? last.size() : 5;
    const std::vector<PageId> latest(last.end() - static_cast<std::ptrdiff_t>(tail), last.end());
    for (int i = 0; i < 6; ++i) {
      const Stage::Outcome out = run.step();
      if (i == 0) seen.undone = common(latest, out.dropped);
      seen.said |= out.restraint == Restraint::kWrongPredictions;
      seen.after += out.promoted.size();
    }
    for (int i = 0; i < 40; ++i) seen.resumed += run.step().promoted.size();
    return seen;
  };
  const auto guarded = play(1);
  CHECK(guarded.before > 0);
  CHECK(guarded.after == 0);
  CHECK(guarded.said);
  CHECK(guarded.undone > 0);
  CHECK(guarded.resumed > 0);  // recalibrated
  const auto bare = play(0);   // control
  CHECK(bare.after > 0);
  CHECK_FALSE(bare.said);
  CHECK(bare.undone < guarded.undone);
}

TEST_CASE("a predictor that says its odds are off pauses promotions too") {
  const char* name = shipped();
  CAPTURE(name);
  const auto promoted_while_off = [name](double guards) {
    Moving run(name, {{"guards", guards}});
    for (int i = 0; i < 40; ++i) run.step();
    run.stage.predictor_paused = true;
    run.step();
    std::size_t promoted = 0;
    for (int i = 0; i < 5; ++i) promoted += run.step().promoted.size();
    return promoted;
  };
  CHECK(promoted_while_off(1) == 0);
  CHECK(promoted_while_off(0) > 0);  // control
}

TEST_CASE(
    "promotions that leave unread stop while a step reads more than HBM holds, and it is said") {
  const char* name = shipped();
  CAPTURE(name);
  // Each step foretells other pages than it reads, steadily: its time is as foretold.
  const auto play = [name](double guards, std::uint32_t capacity) {
    struct {
      std::uint32_t thrashing = 0;
      std::size_t promoted_in_it = 0, promoted = 0;
    } seen;
    Stage stage(name, {{"guards", guards}}, capacity, 6);
    for (std::uint32_t s = 0; s < 120; ++s) {
      std::fill(stage.odds.begin(), stage.odds.end(), 0.0F);
      for (std::uint32_t l = 0; l < Stage::kLayers; ++l) {
        for (std::uint32_t i = 0; i < 12; ++i) {
          stage.odds[Stage::page(l, 24 + (5 * s + i) % 24)] = 0.3F;
        }
      }
      const Stage::Outcome out = stage.step([s](std::uint32_t) {
        std::vector<std::uint32_t> indices;
        for (std::uint32_t i = 0; i < 12; ++i) indices.push_back((5 * s + i) % 24);
        std::sort(indices.begin(), indices.end());
        return indices;
      });
      seen.promoted += out.promoted.size();
      if (out.restraint != Restraint::kThrashing) continue;
      ++seen.thrashing;
      seen.promoted_in_it += out.promoted.size();
    }
    return seen;
  };
  const auto guarded = play(1, 60);  // 72 pages a step
  CHECK(guarded.thrashing > 0);
  CHECK(guarded.promoted_in_it == 0);
  CHECK(play(1, 200).thrashing == 0);  // control: it fits
  const auto bare = play(0, 60);       // control: no guard
  CHECK(bare.thrashing == 0);
  CHECK(bare.promoted > guarded.promoted);
}

TEST_CASE("a page does not come a second time within the window unless its visits pay for it") {
  const char* name = shipped();
  CAPTURE(name);
  // All residents are likelier than the one page outside; it gets in only where a slot is free.
  const auto crossings = [name](double guards, float odds, std::uint32_t every) {
    constexpr std::uint32_t kEach = 8;
    Stage stage(name, {{"guards", guards}}, Stage::kLayers * kEach, kEach);
    const PageId p = Stage::page(3, 20);
    for (PageId q = 0; q < Stage::kPages; ++q) stage.odds[q] = q % Stage::kGroup < kEach ? 0.9F : 0;
    stage.odds[p] = odds;
    const auto reads = [](std::uint32_t) {
      std::vector<std::uint32_t> indices(kEach);
      for (std::uint32_t i = 0; i < kEach; ++i) indices[i] = i;
      return indices;
    };
    for (int i = 0; i < 4; ++i) stage.step(reads);
    std::size_t came = 0;
    for (std::uint32_t i = 0; i < 2; ++i) {
      ++stage.capacity;  // a slot becomes free
      for (std::uint32_t k = 0; k < every; ++k) {
        const Stage::Outcome out = stage.step(reads);
        came += static_cast<std::size_t>(std::count(out.promoted.begin(), out.promoted.end(), p));
      }
      if (stage.in_hbm(p)) stage.must_free = 1;  // a tail takes it
      stage.step(reads);
      CHECK_FALSE(stage.in_hbm(p));
    }
    return came;
  };
  CHECK(crossings(1, 0.1F, 3) == 1);   // 8 x 0.1 visits do not pay
  CHECK(crossings(1, 0.5F, 3) == 2);   // 8 x 0.5 do
  CHECK(crossings(1, 0.1F, 20) == 2);  // nor is the window for ever
  CHECK(crossings(0, 0.1F, 3) == 2);   // control
}

TEST_CASE("sinks stay while anything else can leave, held pages stay in any case") {
  const char* name = shipped();
  CAPTURE(name);
  const auto sinks_dropped = [name](double sinks) {
    Stage stage(name, {{"sinks", sinks}}, 60, 10);
    std::size_t dropped = 0;
    // A cyclic scan of what does not fit, in which nothing is foretold and the sinks are not read.
    for (std::uint32_t s = 0; s < 20; ++s) {
      const Stage::Outcome out = stage.step([s](std::uint32_t) {
        std::vector<std::uint32_t> indices;
        for (std::uint32_t i = 0; i < 11; ++i) indices.push_back(1 + (11 * s + i) % 44);
        std::sort(indices.begin(), indices.end());
        return indices;
      });
      for (const PageId p : out.dropped) dropped += p % Stage::kGroup == 0 ? 1 : 0;
    }
    return dropped;
  };
  CHECK(sinks_dropped(1) == 0);
  CHECK(sinks_dropped(0) > 0);  // control

  // All but the sinks are held: tails take the sinks' places. With those held too nothing leaves.
  Stage stage(name, {}, 60, 10);
  for (PageId p = 0; p < Stage::kPages; ++p) stage.guard()[p] = p % Stage::kGroup != 0 ? 1 : 0;
  stage.must_free = 2;
  const auto none = [](std::uint32_t) { return std::vector<std::uint32_t>(); };
  const Stage::Outcome out = stage.step(none);
  REQUIRE(out.dropped.size() == 2);
  for (const PageId p : out.dropped) CHECK(p % Stage::kGroup == 0);
}

TEST_CASE("odds that are no probabilities are taken as nothing or as certainty") {
  const char* name = shipped();
  CAPTURE(name);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  const auto play = [name](const std::vector<float>& odds) {
    Stage stage(name, {}, 70, 10);
    std::vector<PageId> moves;
    for (std::uint32_t s = 0; s < 40; ++s) {
      for (PageId p = 0; p < Stage::kPages; ++p) stage.odds[p] = odds[(p + s) % odds.size()];
      if (s % 5 == 4) stage.must_free = 1, ++stage.capacity;
      const Stage::Outcome out = stage.step([s](std::uint32_t l) {
        std::vector<std::uint32_t> indices;
        for (std::uint32_t i = (s + l) % 4; i < Stage::kGroup; i += 4) indices.push_back(i);
        return indices;
      });
      moves.insert(moves.end(), out.promoted.begin(), out.promoted.end());
      moves.insert(moves.end(), out.dropped.begin(), out.dropped.end());
    }
    return moves;
  };
  const std::vector<PageId> bad = play({kNan, 0.3F, -1.0F, kInfinite, -kInfinite, 7.0F, 0.1F});
  CHECK_FALSE(bad.empty());
  CHECK(bad == play({0.0F, 0.3F, 0.0F, 1.0F, 0.0F, 1.0F, 0.1F}));
}

}  // namespace
}  // namespace lehr::placement
