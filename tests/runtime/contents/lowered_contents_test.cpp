// SPDX-License-Identifier: Apache-2.0
// Real K and V on the host machine, some pages at a lower precision: the same bits wherever they
// lie, and those that the stored form stands for.
#include <cmath>
#include <memory>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/base/half.hpp"
#include "kernels/base/mass.hpp"
#include "kernels/base/rng.hpp"
#include "kernels/quantize.hpp"
#include "runtime/contents/host_contents.hpp"
#include "runtime/runtime.hpp"
#include "tests/support/make_room.hpp"
#include "tests/support/tiny_platform.hpp"

using namespace lehr;
using namespace lehr::contents;

namespace {

constexpr std::uint32_t kLayers = 2, kQHeads = 2, kDim = 64, kPage = 16, kPrompt = 70, kSteps = 24;
constexpr std::uint32_t kLowerFrom = 3;  // step of the policy

float value(std::uint32_t what, std::uint64_t token, std::uint32_t layer, std::uint32_t channel) {
  const std::uint64_t x = Rng::mix(token * 0x9E3779B97F4A7C15ULL ^ (std::uint64_t{what} << 48) ^
                                   (std::uint64_t{layer} << 32) ^ channel);
  return from_f16(to_f16(static_cast<float>(static_cast<double>(x >> 11) * 0x1.0p-52 - 1.0)));
}

/// Lowers pages 1 and 2 of each group when they are read from a step on; else it frees what it
/// owes. Keeps the masses that it is told.
class LowersSome final : public placement::Policy {
 public:
  std::vector<std::vector<MassCode>> masses;  ///< by layer that ran, of the pages read

  void begin(const placement::PolicyContext&) override {}
  void add_pages(std::span<const PageId>, std::span<const Tick>, const PageColumns&) override {}
  void remove_pages(std::span<const PageId>) override {}
  void decide(const LayerView& view, LayerPlan& plan) override {
    test::make_room(view, view.must_free, plan);
    masses.emplace_back(view.mass.begin(), view.mass.end());
    if (view.step < kLowerFrom || view.pages.lowered.empty()) return;
    for (const PageId p : view.selected) {
      const std::uint32_t at = view.pages.position[p];
      if ((at == 1 || at == 2) && !view.pages.is_lowered(p)) plan.lower.push_back(p);
    }
  }
};

struct World {
  std::unique_ptr<Contents> contents;
  std::unique_ptr<runtime::Runtime> runtime;
  std::shared_ptr<LowersSome> policy = std::make_shared<LowersSome>();
  runtime::SequenceId id = 0;

  World(const std::vector<std::uint32_t>& tier_pages, std::optional<DType> to) {
    ContentsOptions o;
    o.geometry = {.layers = kLayers,
                  .kv_heads = 1,
                  .q_heads = kQHeads,
                  .head_dim = kDim,
                  .page_tokens = kPage,
                  .element_bytes = 4};
    o.element = Element::kF32;
    o.lowers = to;
    auto made = HostContents::create(o);
    REQUIRE(made);
    HostContents* const host = made->get();
    runtime::HostMachineOptions m;
    m.platform = test::tiny_platform(tier_pages.size() > 2);
    m.tier_pages = tier_pages;
    m.page_bytes = o.geometry.page_bytes();
    auto machine = runtime::make_host_machine(m, *host);
    REQUIRE(machine);
    runtime::HostMachine* const keeper = machine->get();
    runtime::RuntimeOptions r;
    r.platform = m.platform;
    r.geometry = o.geometry;
    r.tier_pages = tier_pages;
    r.policy = "lru";
    r.own_policy = policy;
    if (to) r.precision = runtime::PrecisionOptions{*to, 0.5};
    auto run = runtime::Runtime::create(r, std::unique_ptr<runtime::Machine>(std::move(*machine)));
    INFO((run ? std::string() : run.error().what));
    REQUIRE(run);
    runtime = *std::move(run);
    host->attach(*runtime, *keeper);
    contents = *std::move(made);
    auto ids = runtime->create_sequences(std::vector<runtime::SequenceInfo>(1));
    REQUIRE(ids);
    id = ids->front();
    contents->created(id);
  }

  /// `count` tokens more; the attention of the last of them, [layers][q_heads][dim].
  std::vector<float> tokens(std::uint64_t first, std::uint32_t count, bool attends = true) {
    REQUIRE(contents->begin({&id, 1}, {&count, 1}, nullptr));
    std::vector<float> last;
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      const auto rows = [&](std::uint32_t what, std::uint32_t heads) {
        std::vector<float> out;
        for (std::uint32_t h = 0; h < heads; ++h) {
          for (std::uint32_t t = 0; t < count; ++t) {
            for (std::uint32_t c = 0; c < kDim; ++c)
              out.push_back(value(what + h, first + t, layer, c));
          }
        }
        return out;
      };
      const auto tensor = [&](std::vector<float>& data, std::uint32_t heads) {
        Tensor t;
        t.data = reinterpret_cast<std::byte*>(data.data());
        t.element = Element::kF32;
        t.shape = {1, heads, count, kDim};
        t.stride = {std::int64_t{heads} * count * kDim, std::int64_t{count} * kDim, kDim, 1};
        return t;
      };
      std::vector<float> k = rows(0, 1), v = rows(1, 1), q = rows(2, kQHeads);
      std::vector<float> out(std::size_t{kQHeads} * count * kDim);
      REQUIRE(contents->append(layer, tensor(k, 1), tensor(v, 1)));
      if (!attends) continue;
      AttendCall call;
      call.q = tensor(q, kQHeads);
      call.out = tensor(out, kQHeads);
      const Status attended = contents->attend(layer, call);
      INFO((attended ? std::string() : attended.error().what));
      REQUIRE(attended);
      for (std::uint32_t h = 0; h < kQHeads; ++h) {
        const float* row = out.data() + (std::size_t{h} * count + count - 1) * kDim;
        last.insert(last.end(), row, row + kDim);
      }
    }
    REQUIRE(contents->end());
    REQUIRE(runtime->validate());
    return last;
  }

  std::vector<std::vector<float>> run() {
    std::vector<std::vector<float>> out{tokens(0, kPrompt)};
    for (std::uint32_t s = 0; s < kSteps; ++s) out.push_back(tokens(kPrompt + s, 1));
    return out;
  }
};

/// K and V of a page as its stored form has them, [2][tokens][dim].
std::vector<float> stored_page(std::uint64_t page, std::uint32_t layer, DType to) {
  struct alignas(128) Memory {
    std::uint16_t whole[2 * kPage * kDim];
    std::byte stored[2 * kPage * kDim * 2];
  };
  auto memory = std::make_unique<Memory>();
  for (std::uint32_t i = 0; i < 2 * kPage * kDim; ++i) {
    memory->whole[i] =
        to_f16(value(i / (kPage * kDim), page * kPage + i / kDim % kPage, layer, i % kDim));
  }
  const auto from =
      kernels::make_entry(reinterpret_cast<std::uintptr_t>(memory->whole), false, DType::kF16);
  const auto at = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(memory->stored));
  kernels::QuantizeParams params;
  params.sources = &from;
  params.destinations = &at;
  params.count = 1;
  params.to = to;
  REQUIRE(kernels::quantize_reference({1, 1, 1, kDim, kPage, 1, 1, DType::kF16, {}}, params));
  std::vector<float> out;
  for (int what = 0; what < 2; ++what) {
    for (std::uint32_t t = 0; t < kPage; ++t) {
      for (std::uint32_t c = 0; c < kDim; ++c)
        out.push_back(kernels::stored_value(memory->stored, to, kPage, kDim, what, t, c));
    }
  }
  return out;
}

/// Attention of token `last` in float64, over pages 1 and 2 lowered or not.
std::vector<double> truth(std::uint64_t last, std::uint32_t layer, std::uint32_t head,
                          std::optional<DType> to) {
  std::vector<std::vector<float>> lowered;
  for (std::uint64_t page = 1; to && page <= 2; ++page)
    lowered.push_back(stored_page(page, layer, *to));
  const auto element = [&](std::uint32_t what, std::uint64_t t, std::uint32_t c) {
    const std::uint64_t page = t / kPage;
    if (!to || page == 0 || page > 2) return static_cast<double>(value(what, t, layer, c));
    return static_cast<double>(lowered[page - 1][(what * kPage + t % kPage) * kDim + c]);
  };
  std::vector<double> weight;
  double sum = 0;
  for (std::uint64_t t = 0; t <= last; ++t) {
    double dot = 0;
    for (std::uint32_t c = 0; c < kDim; ++c)
      dot += static_cast<double>(value(2 + head, last, layer, c)) * element(0, t, c);
    weight.push_back(std::exp(dot / std::sqrt(double{kDim})));
    sum += weight.back();
  }
  std::vector<double> out(kDim);
  for (std::uint32_t c = 0; c < kDim; ++c) {
    for (std::uint64_t t = 0; t <= last; ++t) out[c] += weight[t] / sum * element(1, t, c);
  }
  return out;
}

double distance(const std::vector<float>& row, std::uint64_t last, std::optional<DType> to) {
  double most = 0;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    for (std::uint32_t head = 0; head < kQHeads; ++head) {
      const std::vector<double> right = truth(last, layer, head, to);
      for (std::uint32_t c = 0; c < kDim; ++c) {
        const float got = row[(std::size_t{layer} * kQHeads + head) * kDim + c];
        most = std::max(most, std::abs(static_cast<double>(got) - right[c]));
      }
    }
  }
  return most;
}

}  // namespace

TEST_CASE("lowered pages give the same bits wherever they lie, and those of their stored form") {
  const DType to = GENERATE(DType::kE4m3, DType::kInt8);
  CAPTURE(name(to));
  // All in HBM; little of it; little at home too, the rest in a file.
  const std::vector<std::vector<float>> wide = World({64, 64}, to).run();
  const std::vector<std::vector<float>> narrow = World({3, 64}, to).run();
  const std::vector<std::vector<float>> deep = World({3, 9, 64}, to).run();
  CHECK(wide == narrow);
  CHECK(wide == deep);
  for (std::uint32_t s = 0; s < kSteps; ++s) {
    CAPTURE(s);
    const std::vector<float>& row = wide[1 + s];
    const bool lowered = s >= kLowerFrom;
    CHECK(distance(row, kPrompt + s, lowered ? std::optional(to) : std::nullopt) < 2e-6);
    // Control: it is not what whole pages would give.
    if (lowered) CHECK(distance(row, kPrompt + s, std::nullopt) > 1e-4);
  }
}

TEST_CASE("pages that may not be lowered are not, whoever asks") {
  const std::vector<std::vector<float>> plain = World({3, 64}, std::nullopt).run();
  for (std::uint32_t s = 0; s < kSteps; ++s)
    CHECK(distance(plain[1 + s], kPrompt + s, std::nullopt) < 2e-6);
}

TEST_CASE("dense copies and roll-backs into a lowered page have what it stands for") {
  World w({64, 64}, DType::kE4m3);
  w.run();
  const std::uint64_t tokens = kPrompt + kSteps;
  std::vector<float> k(tokens * kDim), v(tokens * kDim);
  const auto tensor = [&](std::vector<float>& data) {
    Tensor t;
    t.data = reinterpret_cast<std::byte*>(data.data());
    t.element = Element::kF32;
    t.shape = {1, 1, static_cast<std::int64_t>(tokens), kDim};
    t.stride = {static_cast<std::int64_t>(tokens) * kDim, static_cast<std::int64_t>(tokens) * kDim,
                kDim, 1};
    return t;
  };
  const auto agrees = [&](std::uint64_t until) {
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      REQUIRE(w.contents->gather(layer, {&w.id, 1}, tensor(k), tensor(v)));
      const std::vector<float> one = stored_page(1, layer, DType::kE4m3);
      const std::vector<float> two = stored_page(2, layer, DType::kE4m3);
      for (std::uint64_t t = 0; t < until; ++t) {
        const std::uint64_t page = t / kPage;
        const std::vector<float>& stored = page == 1 ? one : two;
        for (std::uint32_t c = 0; c < kDim; ++c) {
          const bool low = page == 1 || page == 2;
          const std::size_t at = (t % kPage) * kDim + c;
          REQUIRE(k[t * kDim + c] == (low ? stored[at] : value(0, t, layer, c)));
          REQUIRE(v[t * kDim + c] == (low ? stored[kPage * kDim + at] : value(1, t, layer, c)));
        }
      }
    }
  };
  agrees(tokens);
  REQUIRE(w.contents->truncate(w.id, 2 * kPage + 5));  // into page 2: partial, and whole in form
  agrees(2 * kPage + 5);
}

TEST_CASE("a page that attention has not seen yet is expected to have its even share of mass") {
  World w({64, 64}, DType::kE4m3);
  w.tokens(0, kPrompt, false);  // 4 full pages, of whose attention nothing is known
  w.tokens(kPrompt, 1);
  REQUIRE(w.policy->masses.size() == kLayers);
  for (const std::vector<MassCode>& told : w.policy->masses)
    CHECK(told == std::vector<MassCode>(4, mass_code(1.0F / 5)));  // and the tail
  w.tokens(kPrompt + 1, 1);  // from then on it is what attention gave
  CHECK(w.policy->masses.back() != std::vector<MassCode>(4, mass_code(1.0F / 5)));
}

TEST_CASE("contents whose shape cannot be lowered are refused where pages may be") {
  ContentsOptions o;
  o.geometry = {.layers = 1,
                .kv_heads = 1,
                .q_heads = 1,
                .head_dim = 16,
                .page_tokens = 16,
                .element_bytes = 2};
  o.element = Element::kF16;
  CHECK(HostContents::create(o));
  o.lowers = DType::kE4m3;
  const auto said = HostContents::create(o);
  REQUIRE_FALSE(said);
  CHECK(said.error().code == Code::kUnsupported);
  CHECK(said.error().what.find("lower precision") != std::string::npos);
}

TEST_CASE("what fp16 cannot hold is lowered as its largest, what is no number as nothing") {
  const DType to = GENERATE(DType::kE4m3, DType::kInt8);
  const PageShape shape{kPage, kDim, Element::kF32};
  PageConversion conversion(shape, to);
  std::vector<float> page(2 * kPage * kDim, 0.5F);
  page[3] = 1e6F;
  page[kPage * kDim + 3] = -3e38F;
  page[7] = std::nanf("");
  page[9] = HUGE_VALF;
  REQUIRE(conversion.lower(reinterpret_cast<std::byte*>(page.data())));
  std::vector<float> wide(page.size());
  conversion.widen(reinterpret_cast<const std::byte*>(page.data()), wide.data());
  CHECK(wide[3] == Approx(65504).epsilon(0.01));
  CHECK(wide[kPage * kDim + 3] == Approx(-65504).epsilon(0.01));
  CHECK(wide[7] == 0);
  CHECK(wide[9] == 0);
}
