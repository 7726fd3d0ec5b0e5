// SPDX-License-Identifier: Apache-2.0
// A group whose parts are devices of their own: stand-ins that run what is enqueued as late as they
// may.
#include <functional>

#include "runtime/serving/serving_group.hpp"
#include "tests/runtime/contents/device_world.hpp"

using namespace lehr;
using namespace lehr::serving;
using namespace lehr::test;
using contents::Element;
using contents::Tensor;

namespace {

constexpr std::uint32_t kTokens = 40;

/// Rows of one sequence, [1, heads, tokens, dim], in memory that both sides see.
struct Rows {
  std::vector<std::uint16_t> memory;
  Tensor tensor;

  Rows(std::uint32_t heads, std::uint32_t tokens) : memory(std::size_t{heads} * tokens * kDim) {
    const std::int64_t h = heads, n = tokens, d = kDim;
    tensor = {reinterpret_cast<std::byte*>(memory.data()),
              Element::kF16,
              {1, h, n, d},
              {h * n * d, n * d, d, 1}};
  }
  void fill(std::uint32_t what, std::uint32_t layer, std::uint64_t first_token) {
    const auto tokens = static_cast<std::size_t>(tensor.shape[2]);
    for (std::uint32_t h = 0; h < tensor.shape[1]; ++h) {
      for (std::size_t t = 0; t < tokens; ++t) {
        for (std::uint32_t c = 0; c < kDim; ++c)
          memory[(h * tokens + t) * kDim + c] = model_value(what, first_token + t, layer, h, c);
      }
    }
  }
};

class DeviceGroup {
 public:
  explicit DeviceGroup(std::uint64_t seed) {
    ServingGroupOptions options;
    options.geometry = DeviceWorld::geometry();
    options.element = Element::kF16;
    options.split = Split::kLayers;
    options.weights = {2, 1};
    options.host_memory = false;
    options.make = [this, seed](std::uint32_t device, const KvGeometry& part) {
      return make(part, seed + device);
    };
    auto made = ServingGroup::create(std::move(options));
    REQUIRE(made);
    group = *std::move(made);
  }

  /// `tokens` more, attended; the outputs.
  std::vector<std::uint16_t> step(SequenceId id, std::uint32_t tokens) {
    const std::uint64_t before = group->tokens(id);
    REQUIRE(group->begin({&id, 1}, {&tokens, 1}));
    std::vector<std::unique_ptr<Rows>> rows;  // until all has run
    std::vector<Rows*> outs;
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      for (const std::uint32_t what : {0U, 1U, 2U}) {
        rows.push_back(std::make_unique<Rows>(what == 2 ? kQHeads : kHeads, tokens));
        rows.back()->fill(what, layer, before);
      }
      rows.push_back(std::make_unique<Rows>(kQHeads, tokens));
      outs.push_back(rows.back().get());
      const std::size_t at = rows.size() - 4;
      REQUIRE(group->append(layer, rows[at]->tensor, rows[at + 1]->tensor));
      contents::AttendCall call;
      call.q = rows[at + 2]->tensor;
      call.out = rows[at + 3]->tensor;
      REQUIRE(group->attend(layer, call));
    }
    REQUIRE(group->end());
    for (std::size_t d = 0; d < group->devices(); ++d) REQUIRE(group->contents(d).stats());
    std::vector<std::uint16_t> all;
    for (const Rows* out : outs) all.insert(all.end(), out->memory.begin(), out->memory.end());
    return all;
  }

  std::uint32_t parts_left = ~0U;  ///< that can be made
  std::unique_ptr<ServingGroup> group;

 private:
  Result<Part> make(const KvGeometry& geometry, std::uint64_t seed) {
    if (parts_left-- == 0) return refused(Reason::kNoSpace, "no memory on that device");
    contents::DeviceContentsOptions options;
    options.contents.geometry = geometry;
    options.contents.element = Element::kF16;
    options.tier_pages = {24, 400};
    options.home = 1;
    LEHR_ASSIGN(auto made,
                contents::DeviceContents::create(options, std::make_unique<FakeKvDevice>(seed)));
    runtime::RuntimeOptions r;
    r.platform = tiny_platform();
    r.geometry = geometry;
    r.tier_pages = options.tier_pages;
    Part part;
    LEHR_ASSIGN(part.runtime, runtime::Runtime::create(r, made->make_machine()));
    made->attach(*part.runtime);
    part.contents = std::move(made);
    return part;
  }
};

}  // namespace

TEST_CASE("devices of their own: layers change device, and outputs stay the same bits") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(1, 5)));
  DeviceGroup stays(seed), moves(seed + 100);
  const auto life = [](DeviceGroup& g, const std::function<void(int)>& between) {
    std::vector<std::uint16_t> all;
    const auto note = [&](const std::vector<std::uint16_t>& out) {
      all.insert(all.end(), out.begin(), out.end());
    };
    const auto first = g.group->create_sequence();
    REQUIRE(first);
    note(g.step(*first, kTokens));
    const auto child = g.group->fork(*first);
    REQUIRE(child);
    for (int turn = 0; turn < 6; ++turn) {
      between(turn);
      note(g.step(*first, 1));
      note(g.step(*child, turn == 4 ? 21 : 1));
    }
    return all;
  };
  const auto expected = life(stays, [](int) {});
  const auto told = life(moves, [&](int turn) {
    if (turn != 2 && turn != 4) return;
    const std::vector<std::uint32_t> units =
        turn == 2 ? std::vector<std::uint32_t>{1, 2} : std::vector<std::uint32_t>{2, 1};
    const auto moved = moves.group->redeal(units);
    INFO((moved ? std::string() : moved.error().what));
    REQUIRE(moved);
    CHECK(moved->shared_tokens == 32);              // two whole pages of the fork
    CHECK(moved->tokens == (turn == 2 ? 52 : 56));  // of twice 42, and twice 44
    for (std::size_t d = 0; d < 2; ++d) CHECK(moves.group->runtime(d).validate());
  });
  CHECK(told == expected);
}

TEST_CASE("devices of their own: no memory for the new division leaves the old one") {
  DeviceGroup group(7), other(9);
  const auto id = group.group->create_sequence();
  REQUIRE(id);
  REQUIRE(other.group->create_sequence());
  CHECK(group.step(*id, kTokens) == other.step(*id, kTokens));
  group.parts_left = 1;
  const auto refused = group.group->redeal(std::vector<std::uint32_t>{1, 2});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().reason == Reason::kNoSpace);
  CHECK(group.group->units()[0] == 2);
  CHECK(group.step(*id, 1) == other.step(*id, 1));
}
