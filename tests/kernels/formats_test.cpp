// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include "kernels/quantize.hpp"
#include "tests/kernels/batch.hpp"

using namespace lehr;
using namespace lehr::kernels;
using namespace lehr::kernels::test;

namespace {

/// One page of a batch, rewritten.
std::vector<std::uint64_t> rewritten(Batch& b, std::size_t page, PageFormat to) {
  const StepShape& s = b.shape;
  std::vector<std::uint64_t> memory(stored_page_bytes(to, s.page_tokens, s.head_dim) / 8 + 1,
                                    0xEEEEEEEEEEEEEEEEULL);
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(memory.data());
  QuantizeParams p;
  p.sources = &b.table[page];
  p.destinations = &address;
  p.count = 1;
  p.to = to;
  REQUIRE(quantize_reference(s, p));
  return memory;
}

}  // namespace

TEST_CASE("an entry keeps address, link and both formats apart", "[entry]") {
  for (const DType k : {DType::kF16, DType::kBf16, DType::kE4m3, DType::kInt8}) {
    for (const DType v : {DType::kF16, DType::kBf16, DType::kE4m3, DType::kInt8}) {
      for (const bool away : {false, true}) {
        const PageEntry e = make_entry(0x7F0012345680ULL, away, {k, v});
        CHECK(entry_address(e) == 0x7F0012345680ULL);
        CHECK(entry_over_link(e) == away);
        CHECK(entry_formats(e) == PageFormat(k, v));
      }
    }
  }
  // Where both are the same, the word is what it was before V had a format of its own.
  CHECK(make_entry(128, true, DType::kInt8) == (128U | 1U | 3U << 1));
}

TEST_CASE("sizes of stored pages, by hand", "[entry]") {
  CHECK(stored_page_bytes(DType::kF16, 16, 128) == 8192);
  CHECK(stored_page_bytes(DType::kE4m3, 16, 128) == 4096 + 16);
  // int8: K 256 bytes a group of 32 tokens, V 8 bytes a token.
  CHECK(stored_page_bytes(DType::kInt8, 16, 128) == 4096 + 256 + 128);
  CHECK(stored_page_bytes(DType::kInt8, 64, 128) == 16384 + 512 + 512);
  CHECK(stored_page_bytes({DType::kF16, DType::kInt8}, 16, 128) == 4096 + 2048 + 128);
  CHECK(stored_page_bytes({DType::kE4m3, DType::kInt8}, 32, 64) == 2 * 2048 + 16 + 128);
  CHECK(slot_bytes(DType::kE4m3, 16, 128) == 4224);
}

TEST_CASE("each half of a page is rewritten as its own format", "[quantize]") {
  Batch b(shape_of(1, 1, 64, 32, 2), {64}, 5);
  const PageFormat formats[] = {
      {DType::kF16, DType::kInt8}, {DType::kInt8, DType::kE4m3}, {DType::kE4m3, DType::kBf16}};
  for (const PageFormat f : formats) {
    const auto mixed = rewritten(b, 1, f);
    const auto k_alone = rewritten(b, 1, f.k);
    const auto v_alone = rewritten(b, 1, f.v);
    for (std::uint32_t t = 0; t < 32; ++t) {
      for (std::uint32_t c = 0; c < 64; ++c) {
        REQUIRE(stored_value(mixed.data(), f, 32, 64, 0, t, c) ==
                stored_value(k_alone.data(), f.k, 32, 64, 0, t, c));
        REQUIRE(stored_value(mixed.data(), f, 32, 64, 1, t, c) ==
                stored_value(v_alone.data(), f.v, 32, 64, 1, t, c));
      }
    }
  }
}

TEST_CASE("int8 K is exact in fp16 and at most half a step off", "[quantize]") {
  Batch b(shape_of(1, 1, 128, 64, 1), {64}, 9);
  b.set(0, 0, 3, 7, 900.0F);
  b.set(0, 0, 40, 7, 1e-6F);
  const auto page = rewritten(b, 0, DType::kInt8);
  for (std::uint32_t c = 0; c < 128; ++c) {
    for (std::uint32_t first : {0U, 32U}) {
      float peak = 0;
      for (std::uint32_t t = first; t < first + 32; ++t)
        peak = std::max(peak, std::fabs(b.get(0, 0, t, c)));
      // A scale of four digits is at most an eighth above the least that fits.
      const float step = std::max(peak / 127.0F, 0x1p-14F) * 1.1251F;
      for (std::uint32_t t = first; t < first + 32; ++t) {
        const float x = stored_value(page.data(), DType::kInt8, 64, 128, 0, t, c);
        REQUIRE(from_f16(to_f16(x)) == x);
        REQUIRE(std::fabs(x - b.get(0, 0, t, c)) <= step / 2);
      }
    }
  }
}

TEST_CASE("attend reads pages whose halves differ", "[attend]") {
  Batch b(shape_of(4, 1, 64, 16, 8), {128}, 21);
  REQUIRE(attend_reference(b.shape, b.params()));
  const std::vector<std::uint16_t> exact = b.out;
  std::vector<std::vector<std::uint64_t>> memory;
  auto table = b.table;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const PageFormat f(DType::kF16, i % 2 == 0 ? DType::kInt8 : DType::kF16);
    memory.push_back(rewritten(b, i, f));
    // 8-byte aligned memory serves the reference; only the low bits must be free for flags.
    memory.back().resize(memory.back().size() + 16);
    auto* at = reinterpret_cast<unsigned char*>(memory.back().data());
    auto* aligned = at + (128 - reinterpret_cast<std::uintptr_t>(at) % 128) % 128;
    std::memmove(aligned, at, stored_page_bytes(f, 16, 64));
    table[i] = make_entry(reinterpret_cast<std::uintptr_t>(aligned), false, f);
  }
  AttendParams p = b.params();
  p.table = table.data();
  REQUIRE(attend_reference(b.shape, p));
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double want = double{from_f16(exact[i])}, got = double{from_f16(b.out[i])};
    difference += (got - want) * (got - want);
    size += want * want;
  }
  const double error = std::sqrt(difference / size);
  CHECK(error > 1e-5);  // the int8 halves do show
  CHECK(error < 1e-2);
}
