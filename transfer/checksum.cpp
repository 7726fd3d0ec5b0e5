// SPDX-License-Identifier: Apache-2.0
#include "transfer/checksum.hpp"

#include <xxhash.h>

namespace lehr::transfer {

std::uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace lehr::transfer
