// SPDX-License-Identifier: Apache-2.0
#include "runtime/directory/layout.hpp"

#include <catch2/catch.hpp>

#include "tests/runtime/directory/placement_world.hpp"

using namespace lehr;
using namespace lehr::directory;

namespace {

// A block as [2, tokens, heads, dim]: K of all tokens, then V.
Layout k_then_v() {
  Layout l = placement_world::elements(1, 8, 16, 64);
  l.head_stride = 64 * 2;
  l.token_stride = 8 * 64 * 2;
  l.v_offset = 16 * 8 * 64 * 2;
  l.block_stride = 2 * l.v_offset;
  return l;
}

// The same bytes as [tokens, heads, 2 x dim].
Layout fused() {
  Layout l = k_then_v();
  l.fused = true;
  l.head_stride = 2 * 64 * 2;
  l.token_stride = 8 * 2 * 64 * 2;
  l.v_offset = 0;
  return l;
}

}  // namespace

TEST_CASE("equal sizes in another order have another digest") {
  REQUIRE(check_layout(k_then_v()));
  REQUIRE(check_layout(fused()));
  CHECK(contents_bytes(k_then_v()) == contents_bytes(fused()));
  CHECK(contents_bytes(fused()) == 2 * 16 * 8 * 64 * 2);
  CHECK(layout_digest(k_then_v()) != layout_digest(fused()));
  CHECK(layout_digest(k_then_v()) == layout_digest(k_then_v()));
}

TEST_CASE("where the next block lies is not part of the digest, what is in one is") {
  Layout apart = k_then_v();
  apart.block_stride *= 4;
  CHECK(layout_digest(apart) == layout_digest(k_then_v()));
  Layout other = k_then_v();
  other.dtype = 2;
  CHECK(layout_digest(other) != layout_digest(k_then_v()));
  other = k_then_v();
  other.tokens = 8;
  CHECK(layout_digest(other) != layout_digest(k_then_v()));
  Layout opaque;
  opaque.opaque_bytes = 32768;
  CHECK(layout_digest(opaque) != layout_digest(k_then_v()));
}

TEST_CASE("runs cover the contents once and merge neighbours") {
  // heads are inside tokens here, so one head's rows are 1024 bytes apart: no merging across
  // tokens.
  const auto runs = block_runs(k_then_v());
  std::uint64_t sum = 0;
  for (const Run& run : runs) sum += run.bytes;
  CHECK(sum == contents_bytes(k_then_v()));
  // The last row of K ends where V begins: one merger.
  CHECK(runs.size() == 2 * 16 * 8 - 1);

  Layout heads_outside = k_then_v();
  heads_outside.head_stride = 16 * 64 * 2;
  heads_outside.token_stride = 64 * 2;
  const auto merged = block_runs(heads_outside);
  REQUIRE(merged.size() == 1);
  CHECK(merged[0].bytes == contents_bytes(heads_outside));

  Layout padded = heads_outside;
  padded.padding = 32;
  padded.token_stride = 64 * 2 + 32;
  padded.head_stride = 16 * padded.token_stride;
  padded.v_offset = 8 * padded.head_stride;
  padded.block_stride = 2 * padded.v_offset;
  REQUIRE(check_layout(padded));
  CHECK(block_runs(padded).size() == 2 * 8 * 16);
  CHECK(contents_bytes(padded) == contents_bytes(heads_outside));
  CHECK(span_bytes(padded) == 2 * padded.v_offset - 32);
}

TEST_CASE("layouts that cannot be are refused") {
  const auto bad = [](auto change) {
    Layout l = k_then_v();
    change(l);
    return !check_layout(l);
  };
  CHECK(bad([](Layout& l) { l.layers = 0; }));
  CHECK(bad([](Layout& l) { l.element_bytes = 17; }));
  CHECK(bad([](Layout& l) { l.head_dim = 1U << 21; }));
  CHECK(bad([](Layout& l) { l.token_stride = 100; }));
  CHECK(bad([](Layout& l) { l.v_offset = 64; }));     // V on top of K
  CHECK(bad([](Layout& l) { l.head_stride = 64; }));  // heads on top of each other
  CHECK(bad([](Layout& l) { l.block_stride = 0; }));
  CHECK(bad([](Layout& l) { l.layer_stride = ~0ULL; }));
  CHECK(bad([](Layout& l) { l.layers = l.tokens = l.kv_heads = 1U << 20; }));
  CHECK(bad([](Layout& l) {
    l.fused = true;
    l.token_stride *= 4;
    l.v_offset = 7;
  }));
  CHECK_FALSE(bad([](Layout&) {}));
}
