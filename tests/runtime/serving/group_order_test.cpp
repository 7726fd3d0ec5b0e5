// SPDX-License-Identifier: Apache-2.0
// Calls on a group in a wrong order, and with numbers that cannot be: refused, and nothing changed.
#include <algorithm>
#include <limits>

#include <catch2/catch.hpp>

#include "tests/runtime/serving/group_world.hpp"

using namespace lehr;
using namespace lehr::test;

namespace {

/// Feeds one layer of one part with its own heads.
Status feed(ServingGroup& group, std::size_t part, std::uint32_t layer) {
  const bool heads = group.split() == Split::kHeads;
  const std::int64_t n = heads ? group.units()[part] : 4;
  Own k(1, n, 1), v(1, n, 1);
  k.fill(layer);
  v.fill(layer + 50);
  return group.append_part(part, layer, k.tensor, v.tensor);
}

/// A step of whatever lengths, with attention in its first `attended` layers.
Status any_step(ServingGroup& group, const std::vector<SequenceId>& batch,
                const std::vector<std::uint32_t>& tokens, std::uint32_t attended = 5) {
  LEHR_TRY(group.begin(batch, tokens));
  const std::uint32_t most = tokens.empty() ? 0 : *std::max_element(tokens.begin(), tokens.end());
  const auto n = static_cast<std::int64_t>(batch.size());
  Own k(n, 4, most), v(n, 4, most), q(n, 8, most), out(n, 8, most);
  k.fill(1);
  v.fill(2);
  q.fill(3);
  AttendCall call;
  call.q = q.tensor;
  call.out = out.tensor;
  for (std::uint32_t layer = 0; layer < 5; ++layer) {
    LEHR_TRY(group.append(layer, k.tensor, v.tensor));
    if (layer < attended) LEHR_TRY(group.attend(layer, call));
  }
  LEHR_TRY(group.end());
  return {};
}

constexpr Split kSplits[] = {Split::kHeads, Split::kLayers, Split::kTokens};

}  // namespace

TEST_CASE("a step that one device has not finished ends on none") {
  for (const Split split : {Split::kHeads, Split::kLayers}) {
    CAPTURE(static_cast<int>(split));
    Devices two{{2000, 2000}};
    const auto group = group_of(two, split);
    const std::vector<SequenceId> ids{*group->create_sequence()};
    Told told;
    step(*group, ids, 6, 1, told);
    const std::uint32_t one = 1;
    REQUIRE(group->begin(ids, {&one, 1}));
    const std::uint32_t first = split == Split::kHeads ? 5 : group->units()[0];
    for (std::uint32_t layer = 0; layer < first; ++layer) REQUIRE(feed(*group, 0, layer));
    const auto early = group->end();
    REQUIRE_FALSE(early);
    CHECK(early.error().code == Code::kInvalid);
    SECTION("and can be finished") {
      const std::uint32_t from = split == Split::kHeads ? 0 : first;
      for (std::uint32_t layer = from; layer < 5; ++layer) REQUIRE(feed(*group, 1, layer));
      CHECK(group->end());
      CHECK(group->tokens(ids[0]) == 7);
      CHECK(group->runtime(0).tokens(0) == group->runtime(1).tokens(0));
    }
    SECTION("or given up, on all") {
      REQUIRE(group->abandon());
      CHECK(group->tokens(ids[0]) == 6);
      CHECK(group->runtime(0).tokens(0) == group->runtime(1).tokens(0));
      step(*group, ids, 1, 2, told);
    }
  }
}

TEST_CASE("numbers of tokens that no sequence has") {
  Devices two{{2000, 2000}};
  const auto group = group_of(two, Split::kTokens);
  for (const std::uint64_t many : {std::numeric_limits<std::uint64_t>::max(),
                                   std::uint64_t{1} << 40, (std::uint64_t{1} << 34) + 40}) {
    CAPTURE(many);
    const auto made = group->create_sequence(many);
    CHECK_FALSE(made);
  }
  Told told;
  const std::vector<SequenceId> ids{*group->create_sequence(8)};
  step(*group, ids, 8, 1, told);
  const std::uint32_t most = std::numeric_limits<std::uint32_t>::max();
  CHECK_FALSE(group->begin(ids, {&most, 1}));
  CHECK_FALSE(group->in_step());
  CHECK(group->tokens(ids[0]) == 8);
}

TEST_CASE("a step that one device cannot end is given up on all, and they go on alike") {
  // 40 tokens are ten pages of ten groups. The second device has HBM for its ten tails alone, and
  // host memory for 98 of the 100 full pages: the tails of the last layer stay without a place,
  // which is found out as the step ends, after the first device has ended it.
  Devices two{{2000, 10}, -1, {2000, 98}}, plenty{{2000, 2000}};
  const auto group = group_of(two, Split::kHeads), like = group_of(plenty, Split::kHeads);
  Told told, expected;
  const std::vector<SequenceId> ids{*group->create_sequence()}, same_ids{*like->create_sequence()};
  for (const auto& [g, s, to] :
       {std::tuple(group.get(), ids, &told), {like.get(), same_ids, &expected}}) {
    step(*g, s, 36, 1, *to);
    for (std::uint64_t i = 0; i < 4; ++i) step(*g, s, 1, 2 + i, *to);
  }
  const Status done = any_step(*group, ids, {1}, 4);
  REQUIRE_FALSE(done);
  CHECK(done.error().code == Code::kRefused);
  CHECK(group->runtime(0).tokens(0) == 41U);  // it had ended
  REQUIRE(group->in_step());
  REQUIRE(group->abandon());
  CHECK(group->tokens(ids[0]) == 40);
  CHECK(group->runtime(0).tokens(0) == 40U);
  CHECK(group->runtime(1).tokens(0) == 40U);
  for (std::size_t d = 0; d < 2; ++d) CHECK(group->runtime(d).validate());
  Own k(1, 4, 40), v(1, 4, 40), k2(1, 4, 40), v2(1, 4, 40);
  for (std::uint32_t layer = 0; layer < 5; ++layer) {
    REQUIRE(group->gather(layer, ids, k.tensor, v.tensor));
    REQUIRE(like->gather(layer, same_ids, k2.tensor, v2.tensor));
    CHECK((same(k.memory, k2.memory) && same(v.memory, v2.memory)));
  }
}

TEST_CASE("batches that are empty, or in which some get no token, change what they say alone") {
  for (const Split split : kSplits) {
    CAPTURE(static_cast<int>(split));
    Devices two{{2000, 2000}};
    const auto group = group_of(two, split);
    CHECK(any_step(*group, {}, {}));
    const SequenceId a = *group->create_sequence(12), b = *group->create_sequence(12);
    CHECK(any_step(*group, {a}, {0}));
    CHECK(group->tokens(a) == 0);
    CHECK_FALSE(any_step(*group, {a, a}, {1, 1}));
    CHECK_FALSE(any_step(*group, {a, b}, {1}));
    CHECK_FALSE(group->in_step());
    CHECK(any_step(*group, {a}, {1}));
    CHECK(any_step(*group, {a, b}, {0, 3}));
    CHECK(any_step(*group, {a, b}, {5, 1}));
    CHECK(any_step(*group, {a, b}, {0, 0}));
    CHECK(any_step(*group, {}, {}));
    CHECK(group->tokens(a) == 6);
    CHECK(group->tokens(b) == 4);
    for (std::size_t d = 0; d < 2; ++d) CHECK(group->runtime(d).validate());
  }
}

TEST_CASE("units change device while there is nothing, and with shares that cannot be added") {
  for (const Split split : kSplits) {
    CAPTURE(static_cast<int>(split));
    Devices two{{2000, 2000}};
    const auto group = group_of(two, split);
    std::vector<std::uint32_t> units{group->units()[0] + 1, group->units()[1] - 1};
    CHECK(group->redeal(units));
    const SequenceId a = *group->create_sequence(12);
    std::swap(units[0], units[1]);
    CHECK(group->redeal(units));
    CHECK(any_step(*group, {a}, {12}));
    CHECK(group->tokens(a) == 12);
    CHECK(*group->create_sequence(3) > a);
  }
  Devices three{{2000, 2000, 2000}};
  const auto group = group_of(three, Split::kTokens);
  const std::vector<std::uint32_t> huge(3, 2'000'000'000U), most(3, 1'000'000'000U);
  CHECK(group->redeal(huge).error().reason == Reason::kOutOfRange);
  CHECK(group->redeal(most));
}

TEST_CASE("a gather of other heads, layers or rows than there are is refused") {
  for (const Split split : kSplits) {
    CAPTURE(static_cast<int>(split));
    Devices two{{2000, 2000}};
    const auto group = group_of(two, split);
    const std::vector<SequenceId> ids{*group->create_sequence(12)};
    Told told;
    step(*group, ids, 6, 4, told);
    Own few(1, 3, 6), all(1, 4, 6), others(1, 4, 6), flat(1, 4, 5);
    CHECK_FALSE(group->gather(0, ids, few.tensor, few.tensor));
    CHECK_FALSE(group->gather(0, ids, all.tensor, few.tensor));
    CHECK_FALSE(group->gather(0, ids, flat.tensor, all.tensor));
    CHECK_FALSE(group->gather(5, ids, all.tensor, others.tensor));
    CHECK(group->gather(4, ids, all.tensor, others.tensor));
  }
}

TEST_CASE("more devices than there are heads or layers: it is said how many there are of each") {
  Devices six{std::vector<std::uint32_t>(6, 2000)};
  ServingGroupOptions options;
  options.geometry = model();
  options.weights.assign(6, 1);
  options.make = six.maker();
  const auto what = [&](Split split) {
    options.split = split;
    const auto group = ServingGroup::create(options);
    return group ? std::string("made") : group.error().what;
  };
  CHECK(what(Split::kHeads) == "6 devices for 4 KV heads: expected one each");
  CHECK(what(Split::kLayers) == "6 devices for 5 layers: expected one each");
  CHECK(what(Split::kTokens) == "made");
}

TEST_CASE("what one device refuses is done on none") {
  // The second device has HBM for the tails of one sequence, and host memory for 100 pages.
  Devices two{{2000, 12}, -1, {2000, 100}};
  const auto group = group_of(two, Split::kHeads);
  const std::vector<SequenceId> ids{*group->create_sequence()};
  Told told;
  step(*group, ids, 5, 1, told);
  const std::uint32_t pages = group->runtime(0).table().live_pages();
  CHECK(group->create_sequence().error().reason == Reason::kOverBudget);
  CHECK(group->fork(ids[0]).error().reason == Reason::kOverBudget);
  const std::uint32_t many = 100;
  CHECK_FALSE(group->begin(ids, {&many, 1}));
  CHECK_FALSE(group->in_step());
  CHECK(group->runtime(0).table().live_pages() == pages);
  CHECK(group->runtime(0).tokens(0) == 5U);
  for (const SequenceId id : {1U, 2U, 3U}) CHECK_FALSE(group->runtime(0).tokens(id));
  void* const one_stream[] = {nullptr};
  const std::uint32_t one = 1;
  CHECK_FALSE(group->begin(ids, {&one, 1}, one_stream));
  step(*group, ids, 1, 2, told);
}

TEST_CASE("sequences come and go between steps alone, a chunk's too") {
  for (const Split split : kSplits) {
    CAPTURE(static_cast<int>(split));
    Devices two{{2000, 2000}};
    const auto group = group_of(two, split);
    const std::vector<SequenceId> ids{*group->create_sequence(12)};
    for (const std::uint32_t tokens : {3U, 1U}) {
      REQUIRE(group->begin(ids, {&tokens, 1}));
      CHECK_FALSE(group->create_sequence());
      CHECK_FALSE(group->fork(ids[0]));
      CHECK_FALSE(group->release(ids[0]));
      CHECK_FALSE(group->begin(ids, {&tokens, 1}));
      REQUIRE(group->abandon());
      REQUIRE(any_step(*group, ids, {tokens}));
    }
    CHECK(group->tokens(ids[0]) == 4);
    CHECK(group->release(ids[0]));
  }
}

TEST_CASE("tokens that nobody announced are spread when a sequence is dealt anew") {
  Devices two{{2000, 2000}};
  const auto group = group_of(two, Split::kTokens);
  const std::vector<SequenceId> ids{*group->create_sequence()};
  REQUIRE(any_step(*group, ids, {40}));
  CHECK(group->runtime(0).tokens(0) == 0U);
  REQUIRE(group->redeal(std::vector<std::uint32_t>{700, 300}));
  CHECK(group->runtime(0).tokens(0) == 28U);  // seven of ten pages
  CHECK(group->runtime(1).tokens(0) == 12U);
}
