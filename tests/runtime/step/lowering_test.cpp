// SPDX-License-Identifier: Apache-2.0
// Pages that take the lower precision: bytes by hand, one form at a time, in every tier.
#include <cmath>
#include <utility>

#include "runtime/machines/host.hpp"
#include "runtime/machines/sim.hpp"
#include "tests/runtime/step/tiny_runtime.hpp"
#include "tests/support/make_room.hpp"

using namespace lehr;
using namespace lehr::runtime;
using namespace lehr::test;

namespace {

/// Keeps nothing that it need not, and lowers what it is told to as soon as that is read.
class Lowers final : public placement::Policy {
 public:
  explicit Lowers(std::vector<PageId> pages, bool install = false)
      : pages_(std::move(pages)), install_(install) {}

  void begin(const placement::PolicyContext& context) override { context_ = context; }
  void add_pages(std::span<const PageId>, std::span<const Tick>, const PageColumns&) override {}
  void remove_pages(std::span<const PageId>) override {}
  void decide(const LayerView& view, LayerPlan& plan) override {
    for (const PageId p : view.selected) {
      const bool wanted = std::find(pages_.begin(), pages_.end(), p) != pages_.end();
      if (wanted && !view.pages.lowered.empty() && !view.pages.is_lowered(p))
        plan.lower.push_back(p);
    }
    make_room(view, view.must_free + (install_ ? view.missed.size() : 0), plan);
    if (install_) plan.install.assign(view.missed.begin(), view.missed.end());
  }

  placement::PolicyContext context_;

 private:
  std::vector<PageId> pages_;
  bool install_;
};

/// Pages of 4 tokens of 32 channels: 512 bytes whole, 2 x 4 x 32 + 16 = 272 as e4m3.
RuntimeOptions options(std::uint32_t hbm_pages, std::shared_ptr<placement::Policy> policy) {
  RuntimeOptions o = small(hbm_pages);
  o.geometry.head_dim = 32;
  o.geometry.element_bytes = 2;
  o.precision = PrecisionOptions{DType::kE4m3, 0.1};
  o.own_policy = std::move(policy);
  return o;
}

}  // namespace

TEST_CASE("one page over the link, before and after it is lowered, by hand") {
  auto policy = std::make_shared<Lowers>(std::vector<PageId>{1});
  const auto r = make(options(1, policy));  // only the tail fits
  const SequenceId s = start(*r, 12);       // three full pages
  CHECK(policy->context_.lowered_bytes == 272);
  CHECK(policy->context_.lowered_mass == 0.1);
  // The tail has one token: 128 bytes appended and 128 read.
  StepReport report = step(*r, s, {1});
  CHECK(report.lowered == 1);
  CHECK(report.link[0].bytes == 512);  // read whole, for the last time
  CHECK(report.link[1].bytes == 272);  // the new form goes home
  // To be converted it is put into HBM and read there: 2 x 512, and 272 on its way home.
  CHECK(report.time.hbm == Approx((256 + 2 * 512 + 272) / 1000.0));
  CHECK(report.lowered_crossings == 0);
  report = step(*r, s, {0, 1});
  CHECK(report.link[0].bytes == 512 + 272);
  CHECK(report.link[0].count == 2);
  CHECK(report.link[1].bytes == 0);
  CHECK(report.lowered_crossings == 1);
  CHECK(report.lowered_hits == 0);
  CHECK(report.lowered == 0);  // once
  CHECK(report.time.link[0] == Approx((512 + 272) / 100.0));
  CHECK(r->table().is_lowered(1));
  CHECK_FALSE(r->table().is_lowered(0));
}

TEST_CASE("a page in HBM is lowered there, and takes fewer bytes of it") {
  auto policy = std::make_shared<Lowers>(std::vector<PageId>{2});
  const auto r = make(options(4, policy));
  const SequenceId s = start(*r, 12);
  StepReport report = step(*r, s, {2});
  CHECK(report.lowered == 1);
  CHECK(report.link[0].bytes == 0);
  CHECK(report.link[1].bytes == 272);
  // Read by the layer, read to be converted, written there and read on its way home by one pass.
  CHECK(report.time.hbm == Approx((256 + 512 + 512 + 272) / 1000.0));
  report = step(*r, s, {2});
  CHECK(report.lowered_hits == 1);
  CHECK(report.time.hbm == Approx((128 + 2 * 128 + 272) / 1000.0));
}

TEST_CASE("a page that is installed as it is read is lowered in HBM and at home") {
  auto policy = std::make_shared<Lowers>(std::vector<PageId>{0}, true);
  const auto r = make(options(5, policy));
  const SequenceId s = start(*r, 24);  // 6 full pages: page 0 is outside
  REQUIRE_FALSE(resident(r->table().residency[0], kHbm));
  StepReport report = step(*r, s, {0});
  CHECK(report.misses == 1);
  REQUIRE(step(*r, s, {0}).reads ==
          2);  // the content machine sees the new form wherever it is read
  CHECK(r->table().is_lowered(0));
}

TEST_CASE("the mass on lowered pages is that of what the step read") {
  auto policy = std::make_shared<Lowers>(std::vector<PageId>{1});
  const auto r = make(options(1, policy));
  const SequenceId s = start(*r, 12);
  const std::vector<std::uint32_t> pages{0, 1};
  const std::vector<MassCode> mass{8, 16, 0, 16};  // 1/2, 1/4, not read, the tail's 1/4
  const auto one = [&] {
    REQUIRE(r->begin_step({&s, 1}));
    GroupSelection g;
    g.sequence = s;
    g.pages = pages;
    g.mass = mass.data();
    REQUIRE(r->run_layer(0, {&g, 1}));
    return *r->end_step();
  };
  StepReport report = one();
  CHECK(report.mass_seen == 1'000'000);
  CHECK(report.mass_lowered == 0);
  report = one();
  CHECK(report.mass_seen == 1'000'000);
  CHECK(report.mass_lowered == 250'000);
}

TEST_CASE("of a page that forks share the mass of every reader counts") {
  auto policy = std::make_shared<Lowers>(std::vector<PageId>{1});
  const auto r = make(options(4, policy));
  const SequenceId parent = start(*r, 12);
  const auto child = r->fork(parent);
  REQUIRE(child);
  const std::vector<SequenceId> batch{parent, *child};
  const std::vector<std::uint32_t> pages{0, 1};
  const std::vector<MassCode> mass{8, 16, 0, 16};      // 1/2, 1/4, not read, the tail's 1/4
  const std::vector<MassCode> of_child{16, 8, 0, 16};  // 1/4, 1/2
  StepReport report;
  for (int i = 0; i < 2; ++i) {
    REQUIRE(r->begin_step(batch));
    std::vector<GroupSelection> groups(2);
    for (std::size_t g = 0; g < 2; ++g) {
      groups[g].sequence = batch[g];
      groups[g].pages = pages;
      groups[g].mass = g == 0 ? mass.data() : of_child.data();
    }
    REQUIRE(r->run_layer(0, groups));
    report = *r->end_step();
  }
  REQUIRE(r->table().is_lowered(1));
  CHECK(report.reads == 4);  // each page once
  CHECK(report.mass_seen == 2'000'000);
  CHECK(report.mass_lowered == 750'000);
}

TEST_CASE("where no precision is allowed pages keep theirs") {
  auto policy = std::make_shared<Lowers>(std::vector<PageId>{1});
  RuntimeOptions o = options(1, policy);
  o.precision.reset();
  const auto r = make(o);
  const SequenceId s = start(*r, 12);
  for (int i = 0; i < 2; ++i) {
    const StepReport report = step(*r, s, {1});
    CHECK(report.lowered == 0);
    CHECK(report.link[0].bytes == 512);
    CHECK(report.mass_seen == 0);
  }
  CHECK(policy->context_.lowered_bytes == 0);
}

namespace {

/// Does what it is told to in the next layer, and keeps nothing else.
class Told final : public placement::Policy {
 public:
  LayerPlan next;

  void begin(const placement::PolicyContext&) override {}
  void add_pages(std::span<const PageId>, std::span<const Tick>, const PageColumns&) override {}
  void remove_pages(std::span<const PageId>) override {}
  void decide(const LayerView& view, LayerPlan& plan) override {
    plan = std::exchange(next, {});
    make_room(view, view.must_free, plan);
  }
};

}  // namespace

TEST_CASE("a page that was lowered in HBM is the same at home when it has left") {
  auto policy = std::make_shared<Told>();
  const auto r = make(options(4, policy));
  const SequenceId s = start(*r, 12);
  policy->next.lower = {2};
  CHECK(step(*r, s, {2}).lowered == 1);
  policy->next.drop = {2};
  step(*r, s, {0});
  REQUIRE_FALSE(resident(r->table().residency[2], kHbm));
  const StepReport report = step(*r, s, {2});  // the content machine knows the old form
  CHECK(report.misses == 1);
  CHECK(report.lowered_crossings == 1);
}

TEST_CASE("a lowered page crosses smaller however it crosses") {
  auto policy = std::make_shared<Told>();
  RuntimeOptions o = options(4, policy);
  o.cold = true;
  o.write_back_once = false;  // what leaves HBM crosses home
  const auto r = make(o);
  const SequenceId s = start(*r, 12);
  policy->next.lower = {0, 1};
  REQUIRE(step(*r, s, {0, 1}).lowered == 2);
  policy->next.promote = {{0, true}};
  StepReport report = step(*r, s, {});
  CHECK(report.promoted == 1);
  CHECK(report.link[0].bytes == 272);
  CHECK(report.lowered_crossings == 1);
  policy->next.drop = {0};
  report = step(*r, s, {});
  CHECK(report.link[1].bytes == 272);
  policy->next.promote = {{1, false}};
  StepReport sum = step(*r, s, {});  // arithmetic takes so long that the link is idle
  CHECK(sum.written_back == 1);      // the tail is full
  sum.add(step(*r, s, {}));
  CHECK(sum.promoted == 1);
  CHECK(sum.link[0].bytes == 272);
  CHECK(sum.lowered_crossings == 1);
}

#if LEHR_CHECKS < 2  // else the step ends there, with the rule that was broken

TEST_CASE("what may not be lowered stays as it is, whoever asks") {
  auto policy = std::make_shared<Told>();
  RuntimeOptions o = options(4, policy);
  o.cold = true;
  o.platform.flops = 1e9;  // no layer lasts longer than its reads: promotions wait
  const auto r = make(o);
  const SequenceId s = start(*r, 12);
  const auto lowers = [&](std::vector<PageId> pages, const std::vector<std::uint32_t>& read) {
    policy->next.lower = std::move(pages);
    const StepReport report = step(*r, s, read);
    CHECK(report.link[1].bytes == 272 * report.lowered + 512 * report.written_back);
    return report.lowered;
  };
  policy->next.promote = {{0, false}};
  CHECK(lowers({2}, {1}) == 0);  // not at hand
  REQUIRE((r->table().flags[0] & kInFlight) != 0);
  CHECK(lowers({0}, {0}) == 0);  // on its way to HBM: held
  CHECK(lowers({1}, {1}) == 1);
  CHECK(lowers({1}, {1}) == 0);  // already
  CHECK(lowers({2}, {2}) == 1);  // control
}

#endif

TEST_CASE("a page that is born where a lowered one was is whole") {
  auto policy = std::make_shared<Lowers>(std::vector<PageId>{1});
  const auto r = make(options(1, policy));
  SequenceId s = start(*r, 12);
  step(*r, s, {1});
  REQUIRE(r->table().is_lowered(1));
  REQUIRE(r->release(s));
  s = start(*r, 12);
  CHECK_FALSE(r->table().is_lowered(1));
  CHECK(step(*r, s, {1}).lowered == 1);
}

TEST_CASE("lowered pages by their shape, and what is refused") {
  const KvGeometry g{.layers = 1,
                     .kv_heads = 1,
                     .q_heads = 1,
                     .head_dim = 64,
                     .page_tokens = 16,
                     .element_bytes = 2};
  CHECK(*lowered_page_bytes({DType::kE4m3, 0.1}, g, 4096) == 2 * 16 * 64 + 16);
  // A scale a channel of K and one for each 32 channels of a token of V, two bytes each.
  CHECK(*lowered_page_bytes({DType::kInt8, 0.1}, g, 4096) == 2048 + 64 * 2 + 16 * 2 * 2);
  CHECK(*lowered_page_bytes({DType::kE4m3, 0.1}, g, 8192) == 2 * 2064);  // imposed: the same share
  for (const double mass : {-0.1, 1.1, std::nan(""), HUGE_VAL}) {
    const auto said = lowered_page_bytes({DType::kE4m3, mass}, g, 4096);
    REQUIRE_FALSE(said);
    CHECK(said.error().code == Code::kInvalid);
  }
  CHECK_FALSE(lowered_page_bytes({DType::kF16, 0.1}, g, 4096));
  KvGeometry odd = g;
  odd.head_dim = 48;
  CHECK(lowered_page_bytes({DType::kE4m3, 0.1}, odd, 3072));
  CHECK_FALSE(lowered_page_bytes({DType::kInt8, 0.1}, odd, 3072));
  KvGeometry bytes = g;
  bytes.element_bytes = 1;  // already that low
  CHECK_FALSE(lowered_page_bytes({DType::kE4m3, 0.1}, bytes, 2048));
  CHECK_FALSE(precision_of("none", 0.1));
  CHECK_FALSE(precision_of("fp16", 0.1));
  CHECK(precision_of("int8", 0.1)->to == DType::kInt8);
}

TEST_CASE("a machine that keeps pages as they were written is not asked to lower any") {
  class Keeps final : public Machine {
   public:
    MachineTraits traits() const override { return {.moves_bytes = true}; }
    Status set_up(std::span<const PageOp>) override { return {}; }
    Status run_layer(Step, std::uint32_t, std::span<const PageOp>) override { return {}; }
    Status drain() override { return {}; }
    Seconds take_measured() override { return 0; }
    std::vector<std::string> notes() const override { return {}; }
  };
  const auto made = Runtime::create(options(1, nullptr), std::make_unique<Keeps>());
  REQUIRE_FALSE(made);
  CHECK(made.error().code == Code::kUnsupported);
  RuntimeOptions plain = options(1, nullptr);
  plain.precision.reset();
  CHECK(Runtime::create(plain, std::make_unique<Keeps>()));
}

TEST_CASE("the host machine holds the new form in every tier, and finds the old one wrong") {
  using Kind = PageOp::Kind;
  HostMachineOptions host;
  host.platform = tiny_platform(true);
  host.tier_pages = {2, 2, 4};
  host.page_bytes = 8192;
  auto made = make_host_machine(host);
  REQUIRE(made);
  Machine& machine = **made;
  const auto op = [](Kind kind, std::uint32_t version, TierId from, SlotId from_slot, TierId to,
                     SlotId to_slot) {
    return PageOp{kind, from, to, 7, version, from_slot, to_slot};
  };
  const PageOp fill = op(Kind::kFill, 3, 1, 0, 1, 0);
  REQUIRE(machine.set_up({&fill, 1}));
  // Fetched, lowered in HBM, written home, sent below and brought back: version 4 all the way.
  const std::vector<PageOp> lower = {op(Kind::kFetch, 3, 1, 0, kHbm, 1),
                                     op(Kind::kLower, 4, kHbm, 1, kHbm, 1),
                                     op(Kind::kCopy, 4, kHbm, 1, 1, 0)};
  REQUIRE(machine.run_layer(0, 0, lower));
  const std::vector<PageOp> below = {op(Kind::kCopy, 4, 1, 0, 2, 3)};
  REQUIRE(machine.run_layer(0, 1, below));
  const std::vector<PageOp> back = {op(Kind::kCopy, 4, 2, 3, 1, 1),
                                    op(Kind::kRead, 4, 1, 1, 1, kNoSlot),
                                    op(Kind::kRead, 4, kHbm, 1, kHbm, kNoSlot)};
  REQUIRE(machine.run_layer(1, 0, back));
  const PageOp old = op(Kind::kRead, 3, kHbm, 1, kHbm, kNoSlot);
  const Status stale = machine.run_layer(1, 1, {&old, 1});
  REQUIRE_FALSE(stale);
  CHECK(stale.error().code == Code::kCorrupt);
  const PageOp again = op(Kind::kLower, 4, kHbm, 1, kHbm, 1);  // of version 3, which is no more
  CHECK_FALSE(machine.run_layer(2, 0, {&again, 1}));
}

TEST_CASE("where the home tier is full a lowered page goes below in its new form") {
  // 12 pages, 4 of them at home; everything is read in turn, and every page lowered.
  std::vector<PageId> all;
  for (PageId p = 0; p < 64; ++p) all.push_back(p);
  auto policy = std::make_shared<Lowers>(all);
  RuntimeOptions o = options(2, policy);
  o.platform = tiny_platform(true);
  o.tier_pages = {2, 4, 40};
  const auto r = make(o);
  const SequenceId s = start(*r, 48);
  StepReport sum;
  for (std::uint32_t i = 0; i < 36; ++i) sum.add(step(*r, s, {i % 12}));
  CHECK(sum.lowered >= 12);
  CHECK(sum.staged > 12);  // what came back was what had gone: the content machine checks versions
}
