// SPDX-License-Identifier: Apache-2.0
#include "kernels/append.hpp"

#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "kernels/boxes.hpp"
#include "kernels/quantize.hpp"
#include "tests/kernels/batch.hpp"

using namespace lehr;
using namespace lehr::kernels;
using namespace lehr::kernels::test;

namespace {

constexpr std::uint16_t kPoison = 0xA5A5;

/// The batch's latest q_len tokens as a call brings them, taken out of the pages.
struct Tokens {
  std::vector<std::uint16_t> k, v;

  explicit Tokens(Batch& b) {
    const StepShape& s = b.shape;
    const std::size_t size = std::size_t{s.sequences} * s.q_len * s.kv_heads * s.head_dim;
    k.assign(size, 0);
    v.assign(size, 0);
    for (std::size_t g = 0; g < s.groups(); ++g) {
      const std::uint32_t length = b.lengths[g / s.kv_heads];
      for (std::uint32_t j = 0; j < s.q_len && length >= s.q_len; ++j) {
        const std::uint32_t position = length - s.q_len + j;
        const std::size_t page = g * s.max_pages + position / s.page_tokens;
        const std::size_t to =
            ((g / s.kv_heads * s.q_len + j) * s.kv_heads + g % s.kv_heads) * s.head_dim;
        for (std::uint32_t c = 0; c < s.head_dim; ++c) {
          std::uint16_t* const from_k = b.element(page, 0, position % s.page_tokens, c);
          std::uint16_t* const from_v = b.element(page, 1, position % s.page_tokens, c);
          k[to + c] = std::exchange(*from_k, kPoison);
          v[to + c] = std::exchange(*from_v, kPoison);
        }
      }
    }
  }
};

/// A slot for the completed page of each group.
struct Slots {
  std::size_t bytes;
  std::vector<std::uint64_t> memory, address;

  Slots(const StepShape& s, PageFormat to)
      : bytes(slot_bytes(to, s.page_tokens, s.head_dim)),
        memory(s.groups() * bytes / 8 + 16, 0xEEEEEEEEEEEEEEEEULL) {
    const std::uint64_t start = reinterpret_cast<std::uintptr_t>(memory.data());
    const std::uint64_t base = (start + kPageAlignment - 1) / kPageAlignment * kPageAlignment;
    for (std::size_t g = 0; g < s.groups(); ++g) address.push_back(base + g * bytes);
  }
  const unsigned char* at(std::size_t group) const { return page_memory(address[group]); }
  bool untouched(std::size_t group) const {
    for (std::size_t i = 0; i < bytes; ++i) {
      if (at(group)[i] != 0xEE) return false;
    }
    return true;
  }
};

std::vector<std::uint16_t> boxes_of(Batch& b) {
  std::vector<std::uint16_t> boxes(b.table.size() * 2 * b.shape.head_dim, 0);
  BoxesParams p;
  p.table = b.table.data();
  p.lengths = b.lengths.data();
  p.boxes = boxes.data();
  REQUIRE(boxes_reference(b.shape, p));
  return boxes;
}

const PageFormat kFormats[] = {PageFormat(DType::kE4m3),
                               PageFormat(DType::kInt8),
                               PageFormat(DType::kBf16),
                               PageFormat(DType::kF16),
                               PageFormat(DType::kF16, DType::kInt8),
                               PageFormat(DType::kInt8, DType::kE4m3)};

}  // namespace

TEST_CASE("append converts completed pages as a conversion after it would", "[append]") {
  const PageFormat to = kFormats[GENERATE(range(0, 6))];
  const std::uint32_t q_len = GENERATE(1U, 5U), tokens = GENERATE(16U, 64U);
  const DType dtype = GENERATE(DType::kF16, DType::kBf16);
  CAPTURE(name(to.k), name(to.v), q_len, tokens, name(dtype));
  // Completed by the last token, by an inner one, not at all; too short; nothing.
  const std::uint32_t p = tokens;
  Batch b(shape_of(2, 2, 64, p, 4, dtype, q_len), {p, 2 * p, 3 * p + 2, p - 1, q_len - 1, 0, 2 * p},
          31);
  const StepShape& s = b.shape;
  Tokens call(b);
  Slots slots(s, to);
  slots.address[13] = 0;  // the last sequence's second head wants none
  std::vector<std::uint16_t> boxes = boxes_of(b);
  AppendParams append;
  append.k = call.k.data();
  append.v = call.v.data();
  append.table = b.table.data();
  append.lengths = b.lengths.data();
  append.boxes = boxes.data();
  append.completed = slots.address.data();
  append.to = to;
  REQUIRE(append_reference(s, append));

  const std::vector<std::uint16_t> plain = boxes_of(b);  // of the 16-bit pages
  std::size_t converted = 0;
  for (std::size_t g = 0; g < s.groups(); ++g) {
    const std::uint32_t length = b.lengths[g / 2];
    const bool completes = length >= q_len && length / p > (length - q_len) / p;
    if (!completes || slots.address[g] == 0) {
      if (slots.address[g] != 0) CHECK(slots.untouched(g));
      continue;
    }
    ++converted;
    const std::size_t page = g * s.max_pages + length / p - 1;
    const Slots want(s, to);
    QuantizeParams q;
    q.sources = &b.table[page];
    q.destinations = &want.address[g];
    q.count = 1;
    q.to = to;
    REQUIRE(quantize_reference(s, q));
    CHECK(std::memcmp(slots.at(g), want.at(g), stored_page_bytes(to, p, s.head_dim)) == 0);

    // The page's box is the least that bounds both copies.
    for (std::uint32_t c = 0; c < s.head_dim; ++c) {
      float low = load_16(dtype, plain[page * 2 * 64 + c]);
      float high = load_16(dtype, plain[page * 2 * 64 + 64 + c]);
      for (std::uint32_t t = 0; t < p; ++t) {
        const float k = stored_value(slots.at(g), to, p, 64, 0, t, c);
        low = std::min(low, k);
        high = std::max(high, k);
      }
      REQUIRE(boxes[page * 2 * 64 + c] == store_16_down(dtype, low));
      REQUIRE(boxes[page * 2 * 64 + 64 + c] == store_16_up(dtype, high));
    }
  }
  CHECK(converted == (q_len == 1 ? 5U : 7U));
}

TEST_CASE("a page that cannot be written is not converted either", "[append]") {
  Batch b(shape_of(1, 1, 64, 16, 2), {16, 32}, 33);
  Tokens call(b);
  Slots slots(b.shape, DType::kE4m3);
  std::uint32_t absent = 0;
  b.table[0] = kAbsentPage;
  AppendParams p;
  p.k = call.k.data();
  p.v = call.v.data();
  p.table = b.table.data();
  p.lengths = b.lengths.data();
  p.absent = &absent;
  p.completed = slots.address.data();
  REQUIRE(append_reference(b.shape, p));
  CHECK(absent == 1);
  CHECK(slots.untouched(0));
  CHECK_FALSE(slots.untouched(1));
}

TEST_CASE("a completed page with NaN and infinities keeps a box that is always chosen",
          "[append]") {
  Batch b(shape_of(1, 1, 64, 16, 1), {16}, 35);
  b.set(0, 0, 3, 7, std::nanf(""));
  b.set(0, 0, 15, 9, std::nanf(""));
  b.set(0, 0, 4, 11, std::numeric_limits<float>::infinity());
  Tokens call(b);
  Slots slots(b.shape, DType::kInt8);
  std::vector<std::uint16_t> boxes = boxes_of(b);
  AppendParams p;
  p.k = call.k.data();
  p.v = call.v.data();
  p.table = b.table.data();
  p.lengths = b.lengths.data();
  p.boxes = boxes.data();
  p.completed = slots.address.data();
  p.to = DType::kInt8;
  REQUIRE(append_reference(b.shape, p));
  for (const std::size_t c : {7U, 9U}) {
    CHECK(from_f16(boxes[c]) == -std::numeric_limits<float>::infinity());
    CHECK(from_f16(boxes[64 + c]) == std::numeric_limits<float>::infinity());
  }
  CHECK(from_f16(boxes[64 + 11]) == std::numeric_limits<float>::infinity());
}

TEST_CASE("append refuses what it cannot do", "[append]") {
  Batch b(shape_of(1, 1, 64, 16, 2), {17}, 37);
  std::vector<std::uint64_t> address(2, 0);
  AppendParams good;
  good.k = b.q.data();
  good.v = b.q.data();
  good.table = b.table.data();
  good.lengths = b.lengths.data();
  good.completed = address.data();
  REQUIRE(check_append(b.shape, good));
  AppendParams p = good;
  p.to.k = static_cast<DType>(7);
  CHECK(check_append(b.shape, p).error().code == Code::kUnsupported);
  p = good;
  p.completed =
      reinterpret_cast<const std::uint64_t*>(reinterpret_cast<const char*>(&address[0]) + 4);
  CHECK(check_append(b.shape, p).error().code == Code::kInvalid);
  p = good;
  p.k = nullptr;
  CHECK(check_append(b.shape, p).error().code == Code::kInvalid);
  p = good;
  p.table = nullptr;
  CHECK(check_append(b.shape, p).error().code == Code::kInvalid);
}

TEST_CASE("appending token by token gives the pages and boxes of writing them at once") {
  const std::uint32_t total = 40;
  Batch whole(shape_of(2, 2, 64, 16, 4), {total}, 19);
  Batch grown(shape_of(2, 2, 64, 16, 4), {total}, 20);
  std::vector<std::uint16_t> boxes(2 * 4 * 128, 0), want(2 * 4 * 128, 0);
  for (std::uint32_t position = 0; position < total; ++position) {
    std::vector<std::uint16_t> k(2 * 64), v(2 * 64);
    for (std::size_t g = 0; g < 2; ++g) {
      for (std::uint32_t c = 0; c < 64; ++c) {
        k[g * 64 + c] = *whole.element(g * 4 + position / 16, 0, position % 16, c);
        v[g * 64 + c] = *whole.element(g * 4 + position / 16, 1, position % 16, c);
      }
    }
    const std::uint32_t length = position + 1;
    AppendParams p;
    p.k = k.data();
    p.v = v.data();
    p.table = grown.table.data();
    p.lengths = &length;
    p.boxes = boxes.data();
    REQUIRE(append_reference(grown.shape, p));
  }
  for (std::size_t g = 0; g < 2; ++g) {
    for (std::uint32_t position = 0; position < total; ++position) {
      for (std::uint32_t c = 0; c < 64; ++c) {
        const std::size_t at = g * 4 + position / 16;
        REQUIRE(grown.get(at, 0, position % 16, c) == whole.get(at, 0, position % 16, c));
        REQUIRE(grown.get(at, 1, position % 16, c) == whole.get(at, 1, position % 16, c));
      }
    }
  }
  BoxesParams bp;
  bp.table = whole.table.data();
  bp.lengths = whole.lengths.data();
  bp.boxes = want.data();
  REQUIRE(boxes_reference(whole.shape, bp));
  CHECK(boxes == want);
}

TEST_CASE("append skips what it cannot write, and says how often") {
  Batch b(shape_of(1, 1, 64, 16, 2), {17, 3}, 23);
  std::vector<std::uint16_t> k(128, to_f16(1.0F)), v(128, to_f16(2.0F));
  std::uint32_t absent = 0;
  AppendParams p;
  p.k = k.data();
  p.v = v.data();
  p.table = b.table.data();
  p.lengths = b.lengths.data();
  p.absent = &absent;
  b.table[1] = kAbsentPage;
  REQUIRE(append_reference(b.shape, p));
  CHECK(absent == 1);
  CHECK(b.get(2, 0, 2, 7) == 1.0F);
  CHECK(b.get(2, 1, 2, 7) == 2.0F);
}
