// SPDX-License-Identifier: Apache-2.0
#include "tests/support/policy_world.hpp"

#include <algorithm>

#include "kernels/base/mass.hpp"
#include "kernels/base/rng.hpp"
#include "placement/plan_check.hpp"

namespace lehr::test {

placement::Platform small_platform() {
  placement::Platform p;
  p.name = "small";
  p.tiers = {{"hbm", kGiB, true}, {"host", 64 * kGiB, true}};
  p.links = {{"h2d", 1, 0, BandwidthCurve(50 * kGB), 1e-6},
             {"d2h", 0, 1, BandwidthCurve(50 * kGB), 1e-6}};
  p.hbm = BandwidthCurve(4000 * kGB);
  p.flops = 1e15;
  p.home = 1;
  return p;
}

PolicyWorld::PolicyWorld(const WorldShape& shape) : shape_(shape), platform_(small_platform()) {
  draw();
}

PageId PolicyWorld::page(std::uint32_t layer, std::uint32_t sequence, std::uint32_t head,
                         std::uint32_t position) const {
  const std::uint32_t group = (layer * shape_.sequences + sequence) * shape_.kv_heads + head;
  return group * pages_a_group() + position;
}

placement::PolicyContext PolicyWorld::context() const {
  placement::PolicyContext context{&platform_,    shape_.capacity, 16 * kKiB,
                                   shape_.layers, shape_.kv_heads, shape_.seed};
  if (shape_.lowered_mass > 0) {
    context.lowered_bytes = 8 * kKiB + 16;
    context.lowered_mass = shape_.lowered_mass;
  }
  return context;
}

void PolicyWorld::draw() {
  Rng rng(shape_.seed);
  const std::uint32_t per_layer = shape_.sequences * shape_.kv_heads;
  std::vector<double> warmth(std::size_t{groups()} * pages_a_group());
  for (double& w : warmth) w = 2 * rng.uniform();
  for (std::uint32_t step = 0; step < shape_.steps; ++step) {
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
      std::vector<PageId> reads;
      std::vector<MassCode> mass;
      for (std::uint32_t g = 0; g < per_layer; ++g) {
        const PageId first = (layer * per_layer + g) * pages_a_group();
        std::vector<std::pair<double, PageId>> order;
        for (std::uint32_t i = 0; i < pages_a_group(); ++i) {
          const double score = warmth[first + i] + rng.uniform();
          const bool full = i < full_pages(step);
          if (full) order.emplace_back(-score, first + i);
          mass.push_back(full ? mass_code(static_cast<float>(0.1 * score)) : kNoMass);
        }
        std::sort(order.begin(), order.end());
        order.resize(std::min<std::size_t>(order.size(), shape_.selected));
        for (const auto& entry : order) reads.push_back(entry.second);
      }
      std::sort(reads.begin(), reads.end());
      reads_.push_back(std::move(reads));
      mass_.push_back(std::move(mass));
    }
  }
}

/// The state of one replay.
class WorldPlay {
 public:
  WorldPlay(const PolicyWorld& world, placement::Policy& policy, predictors::Predictor* predictor)
      : w_(world), policy_(policy), predictor_(predictor) {
    const std::size_t pages = std::size_t{w_.groups()} * w_.pages_a_group();
    residency_.assign(pages, 0);
    guard_.assign(pages, 0);
    if (w_.shape_.lowered_mass > 0) lowered_.assign(pages, 0);
    position_.resize(pages);
    layer_.resize(pages);
    sequence_.resize(pages);
    for (std::size_t p = 0; p < pages; ++p) {
      const std::size_t group = p / w_.pages_a_group();
      position_[p] = static_cast<std::uint32_t>(p % w_.pages_a_group());
      layer_[p] = static_cast<std::uint16_t>(group / (w_.shape_.sequences * w_.shape_.kv_heads));
      sequence_[p] = static_cast<std::uint16_t>(group / w_.shape_.kv_heads % w_.shape_.sequences);
    }
  }

  WorldRun run() {
    policy_.begin(w_.context());
    if (predictor_ != nullptr) {
      predictors::PredictorContext told;
      told.layers = w_.shape_.layers;
      told.kv_heads = w_.shape_.kv_heads;
      told.page_tokens = w_.shape_.page_tokens;
      told.horizon = kHorizon;
      const Status begun = predictor_->begin(told);
      if (!begun) out_.broken = begun.error().what;
    }
    fill_hbm();
    Rng pins(w_.shape_.seed ^ 0xF00D);
    for (std::uint32_t step = 0; step < w_.shape_.steps && out_.broken.empty(); ++step) {
      std::vector<PageId> pinned;
      for (std::size_t p = 0; p < guard_.size(); ++p) {
        if (resident(residency_[p], kHbm) && guard_[p] == 0 && pins.uniform() < w_.shape_.pinned) {
          ++guard_[p];
          pinned.push_back(static_cast<PageId>(p));
        }
      }
      for (std::uint32_t layer = 0; layer < w_.shape_.layers && out_.broken.empty(); ++layer) {
        play_layer(step, layer);
      }
      for (const PageId p : pinned) --guard_[p];
      note_masses();
    }
    return out_;
  }

 private:
  static constexpr std::uint32_t kHorizon = 3;

  PageColumns columns() const {
    return {residency_, guard_, position_, layer_, sequence_, {}, {}, lowered_};
  }

  /// What of the step's mass was read at the lower precision: lowering counts from the next read
  /// on.
  void note_masses() {
    if (lowered_.empty()) return;
    if (mass_read_ > 0)
      out_.most_lowered_mass = std::max(out_.most_lowered_mass, mass_lowered_ / mass_read_);
    constexpr double kSixteenSteps = 0.9576;  // half-life, a step
    mass_read_ *= kSixteenSteps;
    mass_lowered_ *= kSixteenSteps;
  }

  /// Later than `tick`: when `page` is read next.
  Tick next_read(PageId page, std::int64_t tick) const {
    for (std::size_t t = static_cast<std::size_t>(tick + 1); t < w_.reads_.size(); ++t) {
      if (std::binary_search(w_.reads_[t].begin(), w_.reads_[t].end(), page))
        return static_cast<Tick>(t);
    }
    return kNever;
  }

  /// Prompt pages exist; the latest positions fill what the tails leave of HBM.
  void fill_hbm() {
    used_ = w_.groups();  // tails
    std::vector<PageId> pages;
    std::vector<Tick> first;
    for (std::uint32_t position = w_.shape_.prompt_pages; position-- > 0;) {
      for (std::uint32_t g = 0; g < w_.groups(); ++g) {
        const PageId p = g * w_.pages_a_group() + position;
        residency_[p] = tier_bit(1);
        if (!w_.shape_.cold && used_ < w_.shape_.capacity) {
          residency_[p] |= tier_bit(kHbm);
          ++used_;
        }
        pages.push_back(p);
        first.push_back(next_read(p, -1));
      }
    }
    if (predictor_ != nullptr) {
      predictor_->add_pages(pages, columns());
      watch_.add_pages(pages);
    }
    policy_.add_pages(pages, first, columns());
  }

  /// What a layer's view points at.
  struct Told {
    std::vector<PageId> filled, missed;
    std::vector<Tick> filled_next, next;
    std::vector<std::uint8_t> hit;
    std::vector<MassCode> mass;
    std::vector<std::vector<PageId>> blocks;
    std::vector<GroupView> groups;
  };

  std::uint32_t groups_of_layer() const { return w_.shape_.sequences * w_.shape_.kv_heads; }

  /// Tails that became full in the step before; as many new ones want slots.
  void fill_pages(const LayerView& view, Told& told) {
    if (view.step == 0 || view.step % w_.shape_.page_tokens != 0) return;
    const std::uint32_t first = view.layer * groups_of_layer();
    for (std::uint32_t g = first; g < first + groups_of_layer(); ++g) {
      const PageId p = g * w_.pages_a_group() + w_.full_pages(view.step) - 1;
      residency_[p] = tier_bit(kHbm) | tier_bit(1);
      told.filled.push_back(p);
      told.filled_next.push_back(next_read(p, std::int64_t{view.tick} - 1));
    }
  }

  void read_pages(const LayerView& view, Told& told) {
    const PageId first = view.layer * groups_of_layer() * w_.pages_a_group();
    for (const PageId p : view.selected) {
      told.hit.push_back(resident(residency_[p], kHbm) ? 1 : 0);
      if (told.hit.back() == 0) told.missed.push_back(p);
      told.mass.push_back(w_.mass_[view.tick][p - first]);
      told.next.push_back(next_read(p, view.tick));
      ++guard_[p];
    }
  }

  void list_groups(const LayerView& view, Told& told) {
    told.blocks.resize(groups_of_layer());
    std::uint32_t first_of_group = 0;
    for (std::uint32_t g = 0; g < groups_of_layer(); ++g) {
      const PageId first = (view.layer * groups_of_layer() + g) * w_.pages_a_group();
      for (std::uint32_t i = 0; i < w_.full_pages(view.step); ++i)
        told.blocks[g].push_back(first + i);
      GroupView& group = told.groups.emplace_back();
      group.blocks = told.blocks[g];
      group.mass = &w_.mass_[view.tick][std::size_t{g} * w_.pages_a_group()];
      group.peak = group.mass;
      group.first = first_of_group;
      group.count = static_cast<std::uint32_t>(
          std::count_if(view.selected.begin(), view.selected.end(),
                        [&](PageId p) { return p >= first && p < first + w_.pages_a_group(); }));
      group.sequence = g / w_.shape_.kv_heads;
      group.kv_head = g % w_.shape_.kv_heads;
      first_of_group += group.count;
    }
  }

  void foresee(LayerView& view) {
    if (predictor_ == nullptr) return;
    watch_.compare(view, *predictor_);
    predictor_->observe(view);
    view.forecast = watch_.tell(view, *predictor_, kHorizon);
    if (!watch_.trusted()) ++out_.layers_without_odds;
    if (view.forecast.paused) ++out_.layers_paused;
    view.odds = view.forecast.odds[0];
  }

  void play_layer(std::uint32_t step, std::uint32_t layer) {
    LayerView view;
    view.step = step;
    view.layer = layer;
    view.layers = w_.shape_.layers;
    view.tick = step * w_.shape_.layers + layer;
    view.selected = w_.reads_[view.tick];
    Told told;
    fill_pages(view, told);
    read_pages(view, told);
    list_groups(view, told);
    view.hit = told.hit;
    view.missed = told.missed;
    view.mass = told.mass;
    view.peak = told.mass;
    view.next_use = told.next;
    view.groups = told.groups;
    view.filled = told.filled;
    view.filled_next_use = told.filled_next;
    view.must_free = static_cast<std::uint32_t>(told.filled.size());
    view.capacity = w_.shape_.capacity;
    view.free_slots = w_.shape_.capacity - used_;
    view.from_tier[1] = {16 * kKiB, 1e-6};
    view.pages = columns();
    foresee(view);

    LayerPlan plan;
    policy_.decide(view, plan);
    out_.visits += view.selected.size();
    out_.misses += told.missed.size();
    out_.misses_of_layer.push_back(static_cast<std::uint32_t>(told.missed.size()));
    apply(view, plan);
    for (const PageId p : view.selected) --guard_[p];
  }

  void apply(const LayerView& view, const LayerPlan& plan) {
    const Status checked = placement::check_plan(view, plan);
    if (!checked) {
      out_.broken = checked.error().what;
      return;
    }
    for (const PageId p : plan.drop) leave(p);
    for (const PageId p : plan.install) arrive(p);
    for (const Promotion& m : plan.promote) arrive(m.page);
    used_ += view.must_free;
    if (used_ > w_.shape_.capacity) out_.broken = "more pages than slots";
    for (const PageId p : plan.drop_after) leave(p);
    out_.drops += plan.drop.size() + plan.drop_after.size();
    out_.installs += plan.install.size();
    out_.promotions += plan.promote.size();
    for (std::size_t i = 0; i < view.selected.size() && !lowered_.empty(); ++i) {
      const double mass = static_cast<double>(mass_table()[view.mass[i]]);
      mass_read_ += mass;
      if (lowered_[view.selected[i]] != 0) mass_lowered_ += mass;
    }
    for (const PageId p : plan.lower) {
      lowered_[p] = 1;
      digest(std::uint64_t{p} << 2 | 2);
    }
    out_.lowered += plan.lower.size();
  }

  void arrive(PageId page) {
    residency_[page] |= tier_bit(kHbm);
    ++used_;
    digest(std::uint64_t{page} << 1);
  }
  void leave(PageId page) {
    residency_[page] &= static_cast<Residency>(~tier_bit(kHbm));
    --used_;
    digest(std::uint64_t{page} << 1 | 1);
  }
  void digest(std::uint64_t x) { out_.plan_digest = Rng::mix(out_.plan_digest ^ (x + 0x51ED)); }

  const PolicyWorld& w_;
  placement::Policy& policy_;
  predictors::Predictor* predictor_;
  predictors::Watch watch_;
  WorldRun out_;
  std::uint32_t used_ = 0;
  std::vector<Residency> residency_;
  std::vector<std::uint16_t> guard_;
  std::vector<std::uint8_t> lowered_;  ///< empty where no page may be
  double mass_read_ = 0;               ///< in the latest steps, decayed
  double mass_lowered_ = 0;
  std::vector<std::uint32_t> position_;
  std::vector<std::uint16_t> layer_;
  std::vector<std::uint16_t> sequence_;
};

WorldRun PolicyWorld::play(placement::Policy& policy, predictors::Predictor* predictor) const {
  return WorldPlay(*this, policy, predictor).run();
}

WorldRun PolicyWorld::play(const char* policy, const Parameters& parameters) const {
  WorldRun none;
  const auto descriptor = placement::find_policy(policy);
  auto made = placement::make_policy(policy, parameters);
  auto predictor = predictors::make_predictor("table", {});
  if (!descriptor || !made || !predictor) {
    none.broken = !made ? made.error().what : "no such policy or predictor";
    return none;
  }
  return play(**made, (*descriptor)->traits.needs_odds > 0 ? predictor->get() : nullptr);
}

}  // namespace lehr::test
