// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"
#include "runtime/contents/host_contents.hpp"
#include "runtime/serving/serving_group.hpp"
#include "tests/support/tiny_platform.hpp"

// Groups of devices that are stand-ins on the host, and what is asked of them.

namespace lehr::test {

using contents::AttendCall;
using contents::Element;
using contents::Tensor;
using serving::MakePart;
using serving::Part;
using serving::SequenceId;
using serving::ServingGroup;
using serving::ServingGroupOptions;
using serving::Split;

constexpr std::int64_t kDim = 8;

inline KvGeometry model() {
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
  int refuse_after = -1;                       ///< parts made before one is refused
  std::vector<std::uint32_t> host_pages = {};  ///< pages; none: plenty

  MakePart maker() {
    return [this](std::uint32_t device, const KvGeometry& geometry) -> Result<Part> {
      if (refuse_after-- == 0) return refused(Reason::kOverBudget, "no memory on that device");
      Part part;
      runtime::HostMachineOptions host;
      host.platform = test::tiny_platform();
      host.tier_pages = {hbm[device], host_pages.empty() ? 2000 : host_pages[device]};
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

inline std::unique_ptr<ServingGroup> group_of(Devices& devices, Split split,
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
inline void step(ServingGroup& group, const std::vector<SequenceId>& batch, std::uint32_t tokens,
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
    const bool masses = group.split() != Split::kTokens;
    std::vector<MassCode> mass(masses ? batch.size() * g.kv_heads * kPitch : 0, 7);
    REQUIRE(group.append(layer, k.tensor, v.tensor));
    AttendCall call;
    call.q = q.tensor;
    call.out = out.tensor;
    call.code_pitch = kPitch;
    call.mass = masses ? mass.data() : nullptr;
    const Status attended = group.attend(layer, call);
    INFO((attended ? std::string() : attended.error().what));
    REQUIRE(attended);
    told.outputs.insert(told.outputs.end(), out.memory.begin(), out.memory.end());
    told.mass.insert(told.mass.end(), mass.begin(), mass.end());
  }
  REQUIRE(group.end());
}

inline bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
inline bool same(const Told& a, const Told& b) {
  return a.mass == b.mass && same(a.outputs, b.outputs);
}

}  // namespace lehr::test
