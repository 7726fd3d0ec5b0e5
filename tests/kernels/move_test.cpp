// SPDX-License-Identifier: Apache-2.0
#include "kernels/move.hpp"

#include <cstring>
#include <vector>

#include <catch2/catch.hpp>

using namespace lehr;
using namespace lehr::kernels;

namespace {

std::uint64_t address(unsigned char* p) { return reinterpret_cast<std::uint64_t>(p); }

}  // namespace

TEST_CASE("K and V of two layers, apart on the device, lie together on the host, and come back") {
  // Device: K of layer 0 at 0, V at 64, layer 1 a hundred and twenty-eight further, then reversed.
  PageLayout layout;
  layout.count = 4;
  layout.piece_bytes = 32;
  const std::uint64_t device[] = {0, 64, 128, 192};
  for (std::uint32_t i = 0; i < 4; ++i) {
    layout.from[i] = device[i];
    layout.to[i] = std::uint64_t{i} * 32;
  }
  CHECK(layout.bytes() == 128);
  std::vector<unsigned char> from(224), packed(128, 0xEE), back(224, 0xEE);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i);
  const PagePair out{address(from.data()), address(packed.data())};
  REQUIRE(move_pages_reference({&out, 1}, layout));
  for (std::size_t i = 0; i < 128; ++i) CHECK(packed[i] == device[i / 32] + i % 32);
  const PagePair in{address(packed.data()), address(back.data())};
  REQUIRE(move_pages_reference({&in, 1}, layout.reversed()));
  for (std::size_t i = 0; i < back.size(); ++i) {
    CHECK(back[i] == (i % 64 < 32 ? from[i] : 0xEE));  // nothing between the pieces is touched
  }
}

TEST_CASE("A pair that was taken out moves nothing, and the others go on") {
  PageLayout layout;
  layout.piece_bytes = 32;
  std::vector<unsigned char> from(96, 7), to(96, 0xEE);
  const PagePair pairs[] = {{address(from.data()), address(to.data())},
                            {0, address(to.data() + 32)},
                            {address(from.data() + 64), address(to.data() + 64)}};
  REQUIRE(move_pages_reference({pairs, 3}, layout));
  for (std::size_t i = 0; i < to.size(); ++i) CHECK(to[i] == (i / 32 == 1 ? 0xEE : 7));
}

TEST_CASE("Moves that the kernels cannot do are refused") {
  PagePair pair;
  PageLayout layout;
  const auto refused = [&](const MoveRing& ring) { return !check_move({&pair, 1}, layout, ring); };
  CHECK(refused({}));  // no bytes
  layout.piece_bytes = 24;
  CHECK(refused({}));
  layout.piece_bytes = 32;
  CHECK_FALSE(refused({}));
  layout.to[0] = 8;
  CHECK(refused({}));
  layout.to[0] = 0;
  layout.count = 0;
  CHECK(refused({}));
  layout.count = PageLayout::kMaxPieces + 1;
  CHECK(refused({}));
  layout.count = PageLayout::kMaxPieces;
  CHECK_FALSE(refused({}));
  MoveRing ring;
  ring.ctas = 0;
  CHECK(refused(ring));
  ring = {};
  ring.stages = 33;
  CHECK(refused(ring));
  ring.stages = 1;
  CHECK(refused(ring));
  ring = {};
  ring.open_stores = 3;
  CHECK(refused(ring));
  ring.open_stores = ring.stages;
  CHECK(refused(ring));
  ring = {};
  ring.stage_bytes = 100;
  CHECK(refused(ring));
  CHECK_FALSE(check_move({nullptr, 1}, layout, {}));
}
