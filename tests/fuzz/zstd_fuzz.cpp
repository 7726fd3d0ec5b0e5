// SPDX-License-Identifier: Apache-2.0
#include "runtime/formats/zstd.hpp"
#include "tests/fuzz/fuzz_input.hpp"

/// Whatever comes out is within the limit.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lehr;
  constexpr Bytes kLimit = 1 << 20;
  const fuzz::AlignedInput input(data, size);
  const auto out = formats::zstd_decompress(input.bytes(), kLimit, "fuzz");
  fuzz::require(!out || (*out).size() <= kLimit, "more than the limit");
  return 0;
}
