// SPDX-License-Identifier: Apache-2.0
// Rows between tensors and pages, by the reference.
#include "kernels/rows.hpp"

#include <cstring>

#include <catch2/catch.hpp>

#include "kernels/base/mass.hpp"

using namespace lehr;
using namespace lehr::kernels;

namespace {

constexpr std::uint32_t kDim = 64, kPage = 16;

StepShape shape_of(std::uint32_t sequences, std::uint32_t heads, std::uint32_t pages) {
  StepShape s;
  s.sequences = sequences;
  s.q_heads = s.kv_heads = heads;
  s.head_dim = kDim;
  s.page_tokens = kPage;
  s.max_pages = pages;
  return s;
}

struct alignas(128) Page {
  std::uint16_t k[kPage][kDim];
  std::uint16_t v[kPage][kDim];
};

PageEntry entry(const Page& page) {
  return make_entry(reinterpret_cast<std::uint64_t>(&page), false, DType::kF16);
}

}  // namespace

TEST_CASE("rows: tokens go to their pages, both places, with what was there before") {
  // One sequence, two heads: 14 tokens before, 5 more. Page 0 is filled, page 1 begun.
  const StepShape shape = shape_of(1, 2, 4);
  std::vector<Page> pages(8), old(2);
  std::memset(pages.data(), 0, pages.size() * sizeof(Page));
  for (std::uint32_t h = 0; h < 2; ++h) {
    for (std::uint32_t t = 0; t < 14; ++t) {
      for (std::uint32_t c = 0; c < kDim; ++c) {
        old[h].k[t][c] = static_cast<std::uint16_t>(1000 * h + 10 * t + c % 10);
        old[h].v[t][c] = static_cast<std::uint16_t>(5000 + 1000 * h + 10 * t);
      }
    }
  }
  std::vector<std::uint16_t> k(2 * 5 * kDim), v(2 * 5 * kDim);  // [heads][tokens][dim]
  for (std::size_t i = 0; i < k.size(); ++i) {
    k[i] = static_cast<std::uint16_t>(20000 + i);
    v[i] = static_cast<std::uint16_t>(40000 + i);
  }
  std::vector<PageEntry> table(8, kAbsentPage);
  table[0] = entry(pages[0]);
  table[1] = entry(pages[1]);
  table[4] = entry(pages[2]);
  table[5] = entry(pages[3]);
  const std::vector<std::uint64_t> copies = {reinterpret_cast<std::uint64_t>(&pages[4]), 0,
                                             reinterpret_cast<std::uint64_t>(&pages[5]), 0};
  const std::uint64_t carried = reinterpret_cast<std::uint64_t>(old.data());
  const std::uint32_t before = 14, tokens = 5;
  StoreParams p;
  p.k = k.data();
  p.v = v.data();
  p.k_strides = p.v_strides = {0, 5 * kDim, kDim};
  p.table = table.data();
  p.copies = copies.data();
  p.carried = &carried;
  p.before = &before;
  p.tokens = &tokens;
  p.page_pitch = sizeof(Page);
  p.pages = 2;
  REQUIRE(store_rows_reference(shape, p));
  for (std::uint32_t h = 0; h < 2; ++h) {
    for (const Page* page : {&pages[2 * h], &pages[4 + h]}) {
      CHECK(std::memcmp(page->k, old[h].k, 14 * kDim * 2) == 0);
      CHECK(std::memcmp(page->k[14], k.data() + h * 5 * kDim, 2 * kDim * 2) == 0);
      CHECK(std::memcmp(page->v[14], v.data() + h * 5 * kDim, 2 * kDim * 2) == 0);
    }
    const Page& begun = pages[2 * h + 1];
    CHECK(std::memcmp(begun.k, k.data() + (h * 5 + 2) * kDim, 3 * kDim * 2) == 0);
    CHECK(begun.k[3][0] == 0);  // nothing past the end
  }
  // And back, with zeros past the end.
  std::vector<std::uint16_t> back_k(2 * 21 * kDim, 7), back_v(2 * 21 * kDim, 7);
  const std::uint32_t length = 19;
  LoadParams l;
  l.table = table.data();
  l.lengths = &length;
  l.k = back_k.data();
  l.v = back_v.data();
  l.k_strides = {0, 21 * kDim, kDim};
  l.v_strides = {0, kDim, 2 * kDim};  // tokens outermost
  l.tokens = 21;
  REQUIRE(load_rows_reference(shape, l));
  CHECK(std::memcmp(back_k.data(), old[0].k, 14 * kDim * 2) == 0);
  CHECK(std::memcmp(back_k.data() + 14 * kDim, k.data(), 5 * kDim * 2) == 0);
  CHECK(back_k[19 * kDim] == 0);
  CHECK(back_v[(16 * 2 + 1) * kDim] == v[(5 + 2) * kDim]);
  CHECK(back_v[(20 * 2 + 1) * kDim] == 0);
}

TEST_CASE("rows: shares become the codes of their mean and maximum, reads are counted by place") {
  StepShape shape = shape_of(1, 1, 4);
  shape.q_heads = 2;
  const std::uint32_t length = 3 * kPage - 1;
  const std::vector<PageEntry> table = {make_entry(1024, false, DType::kF16),
                                        make_entry(2048, true, DType::kF16),
                                        make_entry(4096, false, DType::kF16), kAbsentPage};
  // Two rows: shares 1/2 and 1/4, 1/4 and 1/4, 1/4 and 1/2.
  const std::vector<SoftmaxPair> totals = {{3, 4}, {1, 8}};
  const std::vector<SoftmaxPair> pairs = {{3, 2}, {1, 2}, {3, 1}, {0, 4}, {3, 1}, {1, 4}, {}, {}};
  std::vector<std::uint8_t> mass(4, 9), peak(4, 9);
  std::uint64_t reads[2] = {10, 20};
  NoteParams p;
  p.table = table.data();
  p.lengths = &length;
  p.pairs = pairs.data();
  p.totals = totals.data();
  p.mass = mass.data();
  p.peak = peak.data();
  p.reads = reads;
  REQUIRE(note_reads_reference(shape, p));
  CHECK(mass == std::vector<std::uint8_t>{mass_code(0.375F), 16, mass_code(0.375F), 9});
  CHECK(peak == std::vector<std::uint8_t>{8, 16, 8, 9});
  CHECK(reads[0] == 12);
  CHECK(reads[1] == 21);
  const std::vector<std::uint32_t> selection = {1, 2, 0, 0};
  const std::uint32_t count = 2;
  p.selection = selection.data();
  p.counts = &count;
  p.selection_pitch = 4;
  REQUIRE(note_reads_reference(shape, p));
  CHECK(reads[0] == 13);
  CHECK(reads[1] == 22);
  p.counts = nullptr;
  CHECK_FALSE(note_reads_reference(shape, p));
}
