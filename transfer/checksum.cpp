// SPDX-License-Identifier: Apache-2.0
#include "transfer/checksum.hpp"

#if LEHR_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // the same functions, by the widest instructions that the CPU has
#else
#include <xxhash.h>
#endif

namespace lehr::transfer {

std::uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t checksum_of_pieces(std::span<const std::uint64_t> pieces) {
  return pieces.size() == 1 ? pieces.front() : checksum(std::as_bytes(pieces));
}

}  // namespace lehr::transfer
