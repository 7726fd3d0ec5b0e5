// SPDX-License-Identifier: Apache-2.0
// Devices that all serve, each with a part of the heads or of the layers: stand-ins on the host.
#include "runtime/serving/serving_group.hpp"

#include <catch2/catch.hpp>

#include "runtime/serving/merge.hpp"
#include "tests/runtime/serving/group_world.hpp"

using namespace lehr;
using namespace lehr::serving;
using namespace lehr::test;

namespace {

/// Prompts, steps, a fork; `between` after each turn.
Told life(ServingGroup& group, const std::function<void(int)>& between = {}) {
  Told told;
  std::vector<SequenceId> ids;
  for (int i = 0; i < 2; ++i) {
    const auto made = group.create_sequence(21);
    REQUIRE(made);
    ids.push_back(*made);
  }
  step(group, ids, 21, 1, told);
  for (int turn = 0; turn < 12; ++turn) {
    step(group, ids, 1, 10 + static_cast<std::uint64_t>(turn), told);
    if (turn == 5) {
      const auto child = group.fork(ids[0]);
      REQUIRE(child);
      ids.push_back(*child);
    }
    if (turn == 9) {
      REQUIRE(group.release(ids[1]));
      ids.erase(ids.begin() + 1);
    }
    if (between) between(turn);
  }
  return told;
}

}  // namespace

TEST_CASE("devices with parts of the heads or layers give the bits of one that has everything") {
  Devices one{{2000}};
  const Told whole = life(*group_of(one, Split::kHeads));
  for (const Split split : {Split::kHeads, Split::kLayers}) {
    Devices two{{2000, 2000}}, three{{34, 2000, 17}};  // HBM for all, and for a part
    CHECK(same(life(*group_of(two, split)), whole));
    CHECK(same(life(*group_of(three, split)), whole));
    CHECK(same(life(*group_of(two, split, {3, 1})), whole));
  }
}

TEST_CASE("units change device between steps, and nothing else changes") {
  Devices one{{2000}};
  const Told whole = life(*group_of(one, Split::kLayers));
  for (const Split split : {Split::kHeads, Split::kLayers}) {
    Devices two{{44, 2000}};  // of about 300 pages
    const auto group = group_of(two, split);
    std::vector<std::uint32_t> units(group->units().begin(), group->units().end());
    const Told told = life(*group, [&](int turn) {
      if (turn % 3 != 1) return;
      const bool grow = turn % 2 == 0;
      units[grow ? 0 : 1] += 1;
      units[grow ? 1 : 0] -= 1;
      REQUIRE(group->redeal(units));
      CHECK(std::equal(units.begin(), units.end(), group->units().begin()));
      for (std::size_t d = 0; d < group->devices(); ++d) CHECK(group->runtime(d).validate());
    });
    CHECK(same(told, whole));
  }
}

TEST_CASE("dealing anew that fails leaves everything as it was") {
  Devices one{{2000}}, two{{2000, 2000}};
  const Told whole = life(*group_of(one, Split::kHeads));
  const auto group = group_of(two, Split::kHeads);
  const Told told = life(*group, [&](int turn) {
    if (turn == 3) {
      two.refuse_after = 1;
      const std::vector<std::uint32_t> units{3, 1};
      const auto failed = group->redeal(units);
      REQUIRE_FALSE(failed);
      CHECK(failed.error().reason == Reason::kOverBudget);
    }
    for (const std::vector<std::uint32_t>& wrong :
         {std::vector<std::uint32_t>{4, 0}, {2, 3}, {1, 1, 2}, {}})
      CHECK_FALSE(group->redeal(wrong));
    CHECK(group->units()[0] == 2);
  });
  CHECK(same(told, whole));
}

TEST_CASE("a device with little HBM hands units on until nothing is gained") {
  Devices two{{24, 2000}};
  const auto group = group_of(two, Split::kLayers, {4, 1});
  REQUIRE(group->units()[0] == 3);  // one each, of the other three 2.4
  std::vector<SequenceId> ids{*group->create_sequence()};
  Told told;
  step(*group, ids, 60, 1, told);
  const auto slowest = [&] {
    (void)group->take_loads();
    for (std::uint64_t i = 0; i < 4; ++i) step(*group, ids, 1, 20 + i, told);
    Seconds most = 0;
    std::vector<placement::DeviceLoad> loads = group->take_loads();
    for (placement::DeviceLoad& load : loads) {
      // Measured time of a stand-in says nothing of its device: the model's word instead.
      load.step = load.units * (load.hit_rate / load.hbm + (1 - load.hit_rate) / load.link);
      most = std::max(most, load.step);
    }
    return std::pair(most, placement::rebalanced(loads, {1, 0.02}));
  };
  auto [before, next] = slowest();
  int moves = 0;
  while (!std::equal(next.begin(), next.end(), group->units().begin())) {
    REQUIRE(group->redeal(next));
    const auto [now, after] = slowest();
    CHECK(now < before);
    before = now;
    next = after;
    REQUIRE(++moves < 6);
  }
  CHECK(moves >= 1);
  CHECK(group->units()[0] < 3);
}

namespace {

bool close(const Told& a, const Told& b) {
  REQUIRE(a.outputs.size() == b.outputs.size());
  for (std::size_t i = 0; i < a.outputs.size(); ++i) {
    if (!(std::abs(a.outputs[i] - b.outputs[i]) < 2e-6F)) return false;
  }
  return true;
}

std::uint32_t live_pages(const ServingGroup& group) {
  std::uint32_t pages = 0;
  for (std::size_t d = 0; d < group.devices(); ++d) pages += group.runtime(d).table().live_pages();
  return pages;
}

}  // namespace

TEST_CASE("ranges of tokens on several devices give what one device gives") {
  Devices one{{2000}};
  const Told whole = life(*group_of(one, Split::kHeads));
  CHECK(same(life(*group_of(one, Split::kTokens)).outputs, whole.outputs));  // alone: the same bits
  Devices two{{2000, 2000}}, three{{70, 2000, 80}}, slow{{90, 90, 2000}};
  const Told halves = life(*group_of(two, Split::kTokens));
  CHECK(close(halves, whole));
  CHECK(close(life(*group_of(two, Split::kTokens, {3, 1})), whole));
  // The same division gives the same bits wherever its pages live.
  const Told thirds = life(*group_of(three, Split::kTokens));
  CHECK(close(thirds, whole));
  CHECK(same(life(*group_of(slow, Split::kTokens)).outputs, thirds.outputs));
}

TEST_CASE("ranges are whole pages, and what comes later lies on the last device") {
  Devices three{{2000, 2000, 2000}};
  const auto group = group_of(three, Split::kTokens);
  Told told;
  // 25 tokens are seven pages: three, two, and two of which the last is partial.
  const std::vector<SequenceId> ids{*group->create_sequence(25)};
  const auto lengths = [&] {
    std::vector<std::uint64_t> out;
    for (std::size_t d = 0; d < 3; ++d) out.push_back(group->runtime(d).tokens(0).value_or(99));
    return out;
  };
  step(*group, ids, 5, 1, told);  // chunks fill one range after the other
  const auto first = lengths();
  CHECK(first[0] + first[1] + first[2] == 5);
  CHECK(first[0] == 5);
  step(*group, ids, 20, 2, told);
  const auto dealt = lengths();
  CHECK(dealt == std::vector<std::uint64_t>{12, 8, 5});
  for (std::uint64_t i = 0; i < 9; ++i) step(*group, ids, 1, 3 + i, told);
  CHECK(lengths()[0] == dealt[0]);
  CHECK(lengths()[2] == dealt[2] + 9);
  CHECK(group->tokens(ids[0]) == 34);
  // What nobody announced goes to the last; so does what is shorter than the devices are many.
  const auto unknown = *group->create_sequence();
  const auto tiny = *group->create_sequence(7);
  step(*group, {unknown, tiny}, 7, 50, told);
  for (const SequenceId local : {1U, 2U}) {
    CHECK(group->runtime(0).tokens(local) == 0U);
    CHECK(group->runtime(2).tokens(local) == 7U);
  }
  // And all of them in one step, some with nothing on a device.
  const std::vector<SequenceId> all{ids[0], unknown, tiny};
  Told mixed;
  step(*group, all, 1, 60, mixed);
  CHECK(std::all_of(mixed.outputs.begin(), mixed.outputs.end(),
                    [](float x) { return std::isfinite(x); }));
}

TEST_CASE("ranges of tokens are dealt anew, and nothing is lost") {
  Devices one{{2000}}, two{{60, 2000}};
  const Told whole = life(*group_of(one, Split::kHeads));
  const auto group = group_of(two, Split::kTokens);
  const Told told = life(*group, [&](int turn) {
    if (turn != 2 && turn != 6) return;
    const std::vector<std::uint32_t> units{turn == 2 ? 200U : 700U, turn == 2 ? 800U : 300U};
    const auto moved = group->redeal(units);
    REQUIRE(moved);
    CHECK(moved->tokens > 0);
    CHECK(moved->bytes == moved->tokens * 2 * 4 * kDim * 20);  // K and V, float32, 20 groups
    for (std::size_t d = 0; d < 2; ++d) CHECK(group->runtime(d).validate());
  });
  CHECK(close(told, whole));
}

TEST_CASE("forks that are dealt anew go on sharing what they share") {
  for (const Split split : {Split::kHeads, Split::kLayers, Split::kTokens}) {
    Devices two{{2000, 2000}};
    const auto group = group_of(two, split);
    Told told;
    std::vector<SequenceId> ids{*group->create_sequence(30)};
    step(*group, ids, 30, 1, told);
    for (int i = 0; i < 3; ++i) ids.push_back(*group->fork(ids[0]));
    step(*group, {ids[1]}, 9, 2, told);  // one goes its own way, two stay as the parent was
    step(*group, {ids[0], ids[2]}, 1, 3, told);
    const std::uint32_t before = live_pages(*group);
    std::vector<std::uint32_t> units{300, 700};
    if (split != Split::kTokens) units = {group->units()[0] + 1, group->units()[1] - 1};
    const auto moved = group->redeal(units);
    REQUIRE(moved);
    CHECK(live_pages(*group) <= before + 20);  // a page a group at most, where ranges are cut anew
    CHECK(moved->shared_tokens >= 3 * 28);     // seven whole pages for each of three
    CHECK(moved->tokens + moved->shared_tokens == 30 + 31 + 39 + 31);
    // The control: four sequences that share nothing take as many pages as they have.
    Devices others{{2000, 2000}};
    const auto apart = group_of(others, split);
    std::vector<SequenceId> four(4);
    for (SequenceId& id : four) id = *apart->create_sequence(30);
    step(*apart, four, 30, 1, told);
    CHECK(live_pages(*apart) > 2 * live_pages(*group));
    // They still go apart where they write.
    Told a, b;
    step(*group, {ids[2]}, 1, 7, a);
    step(*group, {ids[3]}, 1, 7, b);
    CHECK_FALSE(same(a, b));
  }
}

TEST_CASE("what ranges of tokens cannot do is refused by reason") {
  Devices two{{2000, 2000}};
  ServingGroupOptions options;
  options.geometry = model();
  options.split = Split::kTokens;
  options.weights = {1, 1};
  options.make = two.maker();
  options.host_memory = false;
  CHECK(ServingGroup::create(options).error().code == Code::kUnsupported);
  const auto group = group_of(two, Split::kTokens);
  const std::vector<SequenceId> ids{*group->create_sequence(20)};
  Told told;
  step(*group, ids, 20, 1, told);
  const std::uint32_t one = 1;
  REQUIRE(group->begin(ids, {&one, 1}));
  Own k(1, 4, 1), q(1, 8, 1), out(1, 8, 1);
  CHECK(group->append_part(0, 0, k.tensor, k.tensor).error().code == Code::kUnsupported);
  REQUIRE(group->append(0, k.tensor, k.tensor));
  AttendCall call;
  call.q = q.tensor;
  call.out = out.tensor;
  call.choice.by = contents::ChoiceRule::By::kRatio;
  call.choice.amount = 0.5;
  CHECK(group->attend(0, call).error().code == Code::kUnsupported);
  call.choice = {};
  std::vector<MassCode> mass(200);
  call.mass = mass.data();
  call.code_pitch = 50;
  CHECK(group->attend(0, call).error().code == Code::kUnsupported);
  CHECK(group->attend_part(0, 0, call).error().code == Code::kUnsupported);
  call.mass = nullptr;
  CHECK(group->attend(0, call));
  REQUIRE(group->abandon());
  CHECK(group->tokens(ids[0]) == 20);
}

TEST_CASE("parts can be fed with their own heads, and give the same bits") {
  for (const Split split : {Split::kHeads, Split::kLayers}) {
    Devices two{{2000, 2000}};
    const auto whole = group_of(two, split), parts = group_of(two, split);
    Told told;
    const std::vector<SequenceId> a{*whole->create_sequence()}, b{*parts->create_sequence()};
    step(*whole, a, 9, 1, told);
    step(*parts, b, 9, 1, told);
    Told expected;
    step(*whole, a, 1, 5, expected);
    const std::uint32_t one = 1;
    REQUIRE(parts->begin(b, {&one, 1}));
    std::vector<float> outputs;
    std::uint32_t fed = 0;
    for (std::uint32_t layer = 0; layer < model().layers; ++layer) {
      Own k(1, 4, 1), v(1, 4, 1), q(1, 8, 1), out(1, 8, 1);
      k.fill(500 + layer);
      v.fill(1000 + layer);
      q.fill(1500 + layer);
      for (std::size_t d = 0; d < 2; ++d) {
        const std::uint32_t first = d == 0 ? 0 : parts->units()[0], mine = parts->units()[d];
        const bool by_heads = split == Split::kHeads;
        const auto cut = [&](const Tensor& t, std::int64_t ratio) {
          Tensor part = t;
          if (!by_heads) return part;
          part.data = t.row(0, static_cast<std::size_t>(first * ratio), 0);
          part.shape[1] = mine * ratio;
          return part;
        };
        if (!by_heads && (layer < first || layer >= first + mine)) {
          CHECK(parts->append_part(d, layer, k.tensor, v.tensor).error().reason ==
                Reason::kOutOfRange);
          continue;
        }
        REQUIRE(parts->append_part(d, layer, cut(k.tensor, 1), cut(v.tensor, 1)));
        AttendCall call;
        call.q = cut(q.tensor, 2);
        call.out = cut(out.tensor, 2);
        REQUIRE(parts->attend_part(d, layer, call));
        ++fed;
      }
      outputs.insert(outputs.end(), out.memory.begin(), out.memory.end());
    }
    CHECK(fed == (split == Split::kHeads ? 10 : 5));
    REQUIRE(parts->end());
    CHECK(same(outputs, expected.outputs));
    CHECK_FALSE(parts->append_part(2, 0, {}, {}));
  }
}

TEST_CASE("loads are of the steps since they were taken") {
  Devices two{{2000, 2000}};
  const auto group = group_of(two, Split::kHeads);
  const std::vector<SequenceId> ids{*group->create_sequence()};
  Told told;
  step(*group, ids, 9, 1, told);
  (void)group->take_loads();
  CHECK(group->take_loads()[0].step == 0);
  step(*group, ids, 1, 2, told);
  const auto loads = group->take_loads();
  CHECK(loads[1].units == 2);
  CHECK(loads[1].step > 0);
  CHECK(loads[1].hit_rate == 1);
  CHECK(loads[1].hbm == 1000);  // the tiny platform's
  CHECK(loads[1].link == 100);
  step(*group, ids, 1, 3, told);  // of units that are other ones now
  REQUIRE(group->redeal(std::vector<std::uint32_t>{1, 3}));
  CHECK(group->take_loads()[1].step == 0);
}

TEST_CASE("what a group cannot do is refused, and a step that fails can be given up") {
  ServingGroupOptions options;
  options.geometry = model();
  Devices three{{100, 100, 100}};
  options.make = three.maker();
  CHECK_FALSE(ServingGroup::create(options));  // no device
  options.weights.assign(5, 1);                // more than heads
  CHECK_FALSE(ServingGroup::create(options));
  options.weights.assign(3, 1);
  three.refuse_after = 2;
  const auto short_of_one = ServingGroup::create(options);
  REQUIRE_FALSE(short_of_one);
  CHECK(short_of_one.error().reason == Reason::kOverBudget);

  const auto group = group_of(three, Split::kHeads);
  const std::vector<SequenceId> ids{*group->create_sequence()};
  const std::uint32_t one = 1;
  const SequenceId nobody = 99;
  CHECK_FALSE(group->begin({&nobody, 1}, {&one, 1}));
  CHECK_FALSE(group->release(nobody));
  CHECK_FALSE(group->fork(nobody));
  Told told;
  step(*group, ids, 6, 1, told);
  REQUIRE(group->begin(ids, {&one, 1}));
  Own few(1, 3, 1);
  CHECK_FALSE(group->append(0, few.tensor, few.tensor));
  CHECK_FALSE(group->append(5, few.tensor, few.tensor));
  CHECK_FALSE(group->redeal(std::vector<std::uint32_t>{1, 2, 1}));
  REQUIRE(group->abandon());
  Told a, b;
  step(*group, ids, 1, 2, a);
  Devices alone{{100}};
  const auto other = group_of(alone, Split::kHeads);
  const std::vector<SequenceId> same_ids{*other->create_sequence()};
  step(*other, same_ids, 6, 1, told);
  step(*other, same_ids, 1, 2, b);
  CHECK(same(a, b));
}

namespace {

/// One row over all tokens in float64.
std::vector<double> attended(const std::vector<float>& q, const std::vector<float>& k,
                             const std::vector<float>& v, double scale) {
  const auto dim = static_cast<std::size_t>(kDim);
  const std::size_t tokens = k.size() / dim;
  std::vector<double> weights, out(dim, 0.0);
  double most = -1e300, sum = 0;
  for (std::size_t t = 0; t < tokens; ++t) {
    double s = 0;
    for (std::size_t c = 0; c < dim; ++c) s += double{q[c]} * double{k[t * dim + c]};
    weights.push_back(s * scale);
    most = std::max(most, weights.back());
  }
  for (double& w : weights) sum += w = std::exp(w - most);
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t c = 0; c < dim; ++c) out[c] += weights[t] / sum * double{v[t * dim + c]};
  }
  return out;
}

}  // namespace

TEST_CASE("ranges of tokens attended apart merge into attention over all of them") {
  Rng rng(3);
  const auto dim = static_cast<std::size_t>(kDim);
  contents::AttendScratch scratch;
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    const std::size_t tokens = 1 + rng.below(70), devices = 1 + rng.below(4);
    const float scale = round % 3 == 0 ? 20.0F : 0.4F;  // peaked or flat
    std::vector<float> q(dim), k(tokens * dim), v(tokens * dim);
    for (auto* x : {&q, &k, &v}) {
      for (float& value : *x) value = static_cast<float>(2 * rng.uniform() - 1);
    }
    // Cut anywhere; some ranges are empty.
    std::vector<std::size_t> cuts{0, tokens};
    while (cuts.size() <= devices)
      cuts.push_back(rng.below(static_cast<std::uint32_t>(tokens + 1)));
    std::sort(cuts.begin(), cuts.end());
    std::vector<std::vector<float>> outs(devices, std::vector<float>(dim, 3.0F));
    std::vector<AttendedPart> parts(devices);
    for (std::size_t d = 0; d < devices; ++d) {
      const std::size_t here = cuts[d + 1] - cuts[d];
      std::vector<float> page(2 * std::max<std::size_t>(here, 1) * dim);
      const contents::PageShape shape{static_cast<std::uint32_t>(std::max<std::size_t>(here, 1)),
                                      static_cast<std::uint32_t>(dim), Element::kF32};
      std::copy_n(k.begin() + static_cast<std::ptrdiff_t>(cuts[d] * dim), here * dim, page.begin());
      std::copy_n(v.begin() + static_cast<std::ptrdiff_t>(cuts[d] * dim), here * dim,
                  page.begin() + static_cast<std::ptrdiff_t>(page.size() / 2));
      parts[d].out = outs[d].data();
      if (here == 0) continue;
      contents::GroupQuery query;
      query.q = q.data();
      query.out = outs[d].data();
      query.rows = 1;
      query.first = here - 1;
      query.scale = scale;
      const contents::PageRef ref{reinterpret_cast<const std::byte*>(page.data()), 0,
                                  static_cast<std::uint32_t>(here)};
      contents::attend_group(shape, query, {&ref, 1}, nullptr, &parts[d].total, scratch);
    }
    std::vector<float> merged(dim, -1.0F);
    const contents::SoftmaxPair total = merge_parts(parts, dim, merged.data());
    CHECK(total.d > 0);
    const std::vector<double> exact = attended(q, k, v, double{scale});
    for (std::size_t c = 0; c < dim; ++c) CHECK(double{merged[c]} == Approx(exact[c]).margin(2e-6));
  }
}

TEST_CASE("merging by hand") {
  // Weights 1 * 2^3 and 3 * 2^2: 8 and 12 of 20.
  const float a = 1, b = 11;
  const AttendedPart parts[] = {{&a, {3, 1}}, {&b, {2, 3}}, {nullptr, {}}};
  float out = 0;
  const contents::SoftmaxPair total = merge_parts(parts, 1, &out);
  CHECK(out == 7.0F);
  CHECK(total.m == 3.0F);
  CHECK(total.d == 2.5F);  // 20 / 2^3
  // A part whose logits lie far below counts for nothing, without a nan.
  const AttendedPart far[] = {{&a, {400, 1}}, {&b, {-400, 1}}};
  (void)merge_parts(far, 1, &out);
  CHECK(out == 1.0F);
  const AttendedPart none[] = {{nullptr, {}}};
  CHECK(merge_parts(none, 1, &out).d == 0.0F);
  CHECK(out == 0.0F);
}
