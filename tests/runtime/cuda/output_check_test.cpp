// SPDX-License-Identifier: Apache-2.0
// Recorded contents by place, and the float64 check of a step's outputs, on numbers done by hand.
#include "runtime/machines/cuda/output_check.hpp"

#include <catch2/catch.hpp>

#include "kernels/base/half.hpp"
#include "kernels/decode_step.hpp"
#include "runtime/machines/cuda/lists.hpp"

using namespace lehr;
using namespace lehr::runtime;

namespace {

constexpr std::uint32_t kDim = 64, kPairs = kDim / 2, kTokens = 16;

/// One layer, two KV heads of one query head each, 18 recorded tokens of which 17 are the prompt.
struct Recorded {
  std::vector<std::uint32_t> k = std::vector<std::uint32_t>(2 * 18 * kPairs, 0);
  std::vector<std::uint32_t> v = k;
  std::vector<std::uint32_t> q = std::vector<std::uint32_t>(2 * kPairs, 0);

  kernels::PageSource source() const {
    kernels::PageSource s;
    s.k = k.data();
    s.v = v.data();
    s.q = q.data();
    s.layers = 1;
    s.kv_heads = s.q_heads = 2;
    s.pairs = kPairs;
    s.page_tokens = kTokens;
    s.pages = 2;
    s.tokens = 18;
    s.prompt = 17;
    return s;
  }
};

std::uint32_t low(float x) { return to_f16(x); }

kernels::StepShape shape() {
  kernels::StepShape s;
  s.sequences = 1;
  s.q_heads = s.kv_heads = 2;
  s.head_dim = kDim;
  s.page_tokens = kTokens;
  s.max_pages = 2;
  return s;
}

}  // namespace

TEST_CASE("recorded words are found by group, position and token") {
  Recorded r;
  const std::uint32_t head = 1, token = 17, pair = 5;
  r.k[(head * 18 + token) * kPairs + pair] = 111;
  r.v[(head * 18 + token) * kPairs + pair] = 222;
  r.q[head * kPairs + pair] = 333;
  const kernels::PageSource s = r.source();
  const std::uint32_t page = head * 2 + 1;  // second page of the group
  const std::uint32_t index = (token - kTokens) * kPairs + pair;
  CHECK(s.word(page, index) == 111);
  CHECK(s.word(page, kTokens * kPairs + index) == 222);
  CHECK(s.query(page, token - kTokens, pair, 1, kPairs, kTokens) == 333);
  // Another sequence of the same recording.
  CHECK(s.word(page + 4, index) == 111);
}

TEST_CASE("outputs are compared with float64 attention over the contents pages should have") {
  Recorded r;
  // Head 0 reads tokens 16 and 17, page 1 alone. Scores: q.k / sqrt(64) = 8 ln 3 * {0, 1} / 8, so
  // the weights are 1/4 and 3/4; fp16 rounds 8 ln 3 by 1e-4 relative.
  r.q[0] = low(8.7888984F);
  r.k[17 * kPairs] = low(1.0F);
  r.v[16 * kPairs] = low(4.0F);
  r.v[17 * kPairs] = low(8.0F);
  cuda::ListWriter lists;
  lists.begin(0, 1);
  lists.lengths(std::vector<std::uint32_t>{18});
  kernels::LayerLists l{};
  l.rows_at = lists.put<std::uint32_t>(std::vector<std::uint32_t>{0, 1, 1});  // head 1 reads none
  l.pages_at = lists.put<std::uint16_t>(std::vector<std::uint16_t>{1});
  l.names_at = lists.put<std::uint32_t>(std::vector<std::uint32_t>{1});
  l.tails_at = lists.put<std::uint32_t>(std::vector<std::uint32_t>{1, 3});
  lists.layer(0, l);
  std::vector<std::uint16_t> outputs(2 * kDim, 0);
  outputs[0] = to_f16(7.0F);
  CHECK(cuda::output_error(shape(), r.source(), lists.finish(), outputs, 8) < 1e-3);
  outputs[0] = to_f16(6.3F);
  CHECK(cuda::output_error(shape(), r.source(), lists.finish(), outputs, 8) ==
        Approx(0.1).margin(1e-3));
  outputs[0] = 0x7E00;  // not a number
  CHECK(std::isinf(cuda::output_error(shape(), r.source(), lists.finish(), outputs, 8)));
}
