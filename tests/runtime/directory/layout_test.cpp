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
  // Heads lie inside tokens here, and are stored so: nothing lies between the rows.
  const auto runs = block_runs(k_then_v());
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].bytes == contents_bytes(k_then_v()));

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

namespace {

/// What the parts of a layout say of each stored byte: where in the block it lies.
std::vector<std::uint64_t> places(const BlockParts& parts) {
  std::vector<std::uint64_t> all;
  for (const std::uint64_t part : parts.in_block) {
    for (const std::uint64_t piece : parts.pieces) {
      for (std::uint32_t i = 0; i < parts.piece_bytes; ++i) all.push_back(part + piece + i);
    }
  }
  return all;
}
std::vector<std::uint64_t> places(const std::vector<Run>& runs) {
  std::vector<std::uint64_t> all;
  for (const Run& run : runs) {
    for (std::uint64_t i = 0; i < run.bytes; ++i) all.push_back(run.offset + i);
  }
  return all;
}

}  // namespace

TEST_CASE("parts and runs of a layout say the same of every byte, and parts are alike in layers") {
  std::vector<Layout> layouts{k_then_v(), fused()};
  Layout l = placement_world::elements(3, 4, 16, 8);  // [K, V][layer][head][token], padded rows
  l.padding = 16;
  l.token_stride = 32;
  l.head_stride = 16 * 32;
  l.layer_stride = 4 * l.head_stride;
  l.v_offset = 3 * l.layer_stride;
  l.block_stride = 6 * l.layer_stride;
  layouts.push_back(l);
  l.padding = 0;  // heads apart, tokens together
  l.token_stride = 16;
  layouts.push_back(l);
  l.k_offset = 64;  // V before K, tokens outside
  l.v_offset = 0;
  l.head_stride = 16;
  l.token_stride = 128;
  l.layer_stride = 16 * 128;
  l.block_stride = 3 * l.layer_stride;
  layouts.push_back(l);
  for (const Layout& layout : layouts) {
    REQUIRE(check_layout(layout));
    for (const std::uint32_t most : {1U, 3U, 16U, 128U}) {
      const auto parts = block_parts(layout, most, 16);
      REQUIRE(parts);
      CHECK(parts->pieces.size() <= most);
      CHECK(parts->layers == layout.layers);
      CHECK(places(*parts) == places(block_runs(layout)));
      const std::size_t per_layer = parts->per_layer();
      REQUIRE(per_layer * parts->layers == parts->in_block.size());
      for (std::size_t i = per_layer; i < parts->in_block.size(); ++i) {
        CHECK(parts->in_block[i] == parts->in_block[i - per_layer] + layout.layer_stride);
      }
    }
  }
  CHECK(block_parts(k_then_v(), 128, 16)->pieces.size() == 1);  // K and V of all heads in one piece
  Layout opaque;
  opaque.opaque_bytes = 4096;
  CHECK(block_parts(opaque, 128, 16)->piece_bytes == 4096);
  opaque.opaque_bytes = 4100;
  CHECK_FALSE(block_parts(opaque, 128, 16));
  Layout odd = k_then_v();
  odd.k_offset = 8;
  odd.v_offset += 8;
  odd.block_stride += 8;
  REQUIRE(check_layout(odd));
  const auto refused = block_parts(odd, 128, 16);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().what.find("k_offset") != std::string::npos);
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
