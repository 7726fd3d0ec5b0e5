// SPDX-License-Identifier: Apache-2.0
#include "kernels/move.hpp"

#include <cstring>
#include <string>

#include "kernels/reference/values.hpp"

namespace lehr::kernels {

PageLayout PageLayout::reversed() const {
  PageLayout back = *this;
  for (std::uint32_t i = 0; i < count; ++i) {
    back.from[i] = to[i];
    back.to[i] = from[i];
  }
  return back;
}

Status check_move(const MoveParams& params, const PageLayout& layout, const MoveRing& ring) {
  if (params.pages != 0 && params.pairs == nullptr) return invalid("a move without pairs");
  if (layout.count == 0 || layout.count > PageLayout::kMaxPieces) {
    return invalid("a page of " + std::to_string(layout.count) + " pieces: expected 1 to " +
                       std::to_string(PageLayout::kMaxPieces),
                   Reason::kOutOfRange);
  }
  if (layout.piece_bytes == 0 || layout.piece_bytes % 16 != 0) {
    return invalid("pieces of " + std::to_string(layout.piece_bytes) +
                   " bytes: expected a multiple of 16");
  }
  for (std::uint32_t i = 0; i < layout.count; ++i) {
    if (layout.from[i] % 16 != 0 || layout.to[i] % 16 != 0) {
      return invalid("piece " + std::to_string(i) + " does not start at a multiple of 16");
    }
  }
  const bool stores = ring.open_stores == 1 || ring.open_stores == 2 || ring.open_stores == 4 ||
                      ring.open_stores == 8;
  if (ring.ctas == 0 || ring.stages < 2 || ring.stages > 32 || ring.stage_bytes == 0 ||
      ring.stage_bytes % 16 != 0 || !stores || ring.open_stores >= ring.stages) {
    return invalid("a ring of " + std::to_string(ring.ctas) + " CTAs, " +
                   std::to_string(ring.stages) + " stages of " + std::to_string(ring.stage_bytes) +
                   " bytes and " + std::to_string(ring.open_stores) +
                   " open stores: expected CTAs, 2 to 32 stages, a multiple of 16, and 1, 2, 4 or "
                   "8 stores, fewer than stages");
  }
  return {};
}

Status move_pages_reference(const MoveParams& params, const PageLayout& layout) {
  LEHR_TRY(check_move(params, layout, {}));
  for (std::uint32_t p = 0; p < params.pages; ++p) {
    if (params.pairs[p].from == 0) continue;
    for (std::uint32_t i = 0; i < layout.count; ++i) {
      std::memcpy(reference::memory_at(params.pairs[p].to + layout.to[i]),
                  reference::memory_at(params.pairs[p].from + layout.from[i]), layout.piece_bytes);
    }
  }
  return {};
}

}  // namespace lehr::kernels
