// SPDX-License-Identifier: Apache-2.0
// Devices that all serve, each with a part of the heads or of the layers: stand-ins on the host.
#include "runtime/serving/serving_group.hpp"

#include <cstring>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"
#include "runtime/contents/host_contents.hpp"
#include "runtime/serving/merge.hpp"
#include "tests/support/tiny_platform.hpp"

using namespace lehr;
using namespace lehr::serving;
using contents::AttendCall;
using contents::Element;
using contents::Tensor;

namespace {

constexpr std::int64_t kDim = 8;

KvGeometry model() {
  KvGeometry g;
  g.layers = 5;
  g.kv_heads = 4;
  g.q_heads = 8;
  g.head_dim = kDim;
  g.page_tokens = 4;
  g.element_bytes = 4;
  return g;
}

/// A dense tensor with memory of its own.
struct Own {
  std::vector<float> memory;
  Tensor tensor;

  Own(std::int64_t batch, std::int64_t heads, std::int64_t tokens)
      : memory(static_cast<std::size_t>(batch * heads * tokens * kDim)) {
    tensor = {reinterpret_cast<std::byte*>(memory.data()),
              Element::kF32,
              {batch, heads, tokens, kDim},
              {heads * tokens * kDim, tokens * kDim, kDim, 1}};
  }
  void fill(std::uint64_t seed) {
    Rng rng(seed);
    for (float& x : memory) x = static_cast<float>(2 * rng.uniform() - 1);
  }
};

/// Pages of HBM for each unit of each device; fewer than its pages: it reads over the link too.
struct Devices {
  std::vector<std::uint32_t> hbm;
  int refuse_after = -1;  ///< parts made before one is refused

  MakePart maker() {
    return [this](std::uint32_t device, const KvGeometry& geometry) -> Result<Part> {
      if (refuse_after-- == 0) return refused(Reason::kOverBudget, "no memory on that device");
      Part part;
      runtime::HostMachineOptions host;
      host.platform = test::tiny_platform();
      host.tier_pages = {hbm[device], 2000};
      host.page_bytes = geometry.page_bytes();
      contents::ContentsOptions kv;
      kv.geometry = geometry;
      LEHR_ASSIGN(auto made, contents::HostContents::create(kv));
      LEHR_ASSIGN(auto machine, runtime::make_host_machine(host, *made));
      runtime::HostMachine& keeper = *machine;
      runtime::RuntimeOptions options;
      options.platform = host.platform;
      options.geometry = geometry;
      options.tier_pages = host.tier_pages;
      LEHR_ASSIGN(part.runtime, runtime::Runtime::create(std::move(options), std::move(machine)));
      made->attach(*part.runtime, keeper);
      part.contents = std::move(made);
      return part;
    };
  }
};

std::unique_ptr<ServingGroup> group_of(Devices& devices, Split split,
                                       const std::vector<double>& weights = {}) {
  ServingGroupOptions options;
  options.geometry = model();
  options.split = split;
  options.weights = weights.empty() ? std::vector<double>(devices.hbm.size(), 1) : weights;
  options.make = devices.maker();
  auto made = ServingGroup::create(options);
  INFO((made ? std::string() : made.error().what));
  REQUIRE(made);
  return *std::move(made);
}

/// All outputs and masses of one step or chunk of a batch; contents follow from `seed`.
struct Told {
  std::vector<float> outputs;
  std::vector<MassCode> mass;
};
void step(ServingGroup& group, const std::vector<SequenceId>& batch, std::uint32_t tokens,
          std::uint64_t seed, Told& told) {
  const auto count = static_cast<std::int64_t>(batch.size());
  const std::vector<std::uint32_t> each(batch.size(), tokens);
  REQUIRE(group.begin(batch, each));
  const KvGeometry g = model();
  constexpr std::uint32_t kPitch = 32;
  for (std::uint32_t layer = 0; layer < g.layers; ++layer) {
    Own k(count, g.kv_heads, tokens), v(count, g.kv_heads, tokens), q(count, g.q_heads, tokens),
        out(count, g.q_heads, tokens);
    k.fill(seed * 100 + layer);
    v.fill(seed * 200 + layer);
    q.fill(seed * 300 + layer);
    std::vector<MassCode> mass(batch.size() * g.kv_heads * kPitch, 7);
    REQUIRE(group.append(layer, k.tensor, v.tensor));
    AttendCall call;
    call.q = q.tensor;
    call.out = out.tensor;
    call.code_pitch = kPitch;
    call.mass = mass.data();
    const Status attended = group.attend(layer, call);
    INFO((attended ? std::string() : attended.error().what));
    REQUIRE(attended);
    told.outputs.insert(told.outputs.end(), out.memory.begin(), out.memory.end());
    told.mass.insert(told.mass.end(), mass.begin(), mass.end());
  }
  REQUIRE(group.end());
}

/// Prompts, steps, a fork; `between` after each turn.
Told life(ServingGroup& group, const std::function<void(int)>& between = {}) {
  Told told;
  std::vector<SequenceId> ids;
  for (int i = 0; i < 2; ++i) {
    const auto made = group.create_sequence();
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

bool same(const Told& a, const Told& b) {
  return a.outputs.size() == b.outputs.size() && a.mass == b.mass &&
         std::memcmp(a.outputs.data(), b.outputs.data(), a.outputs.size() * sizeof(float)) == 0;
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
      const Status failed = group->redeal(units);
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
