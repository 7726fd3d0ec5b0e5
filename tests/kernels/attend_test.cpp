// SPDX-License-Identifier: Apache-2.0
#include "kernels/attend.hpp"

#include <cmath>
#include <limits>
#include <numbers>

#include <catch2/catch.hpp>

#include "kernels/quantize.hpp"
#include "tests/kernels/batch.hpp"

using namespace lehr;
using namespace lehr::kernels;
using namespace lehr::kernels::test;

namespace {

/// Softmax attention of one query row in the textbook order: all logits, their maximum, then the
/// sums.
std::vector<double> textbook(Batch& b, std::uint32_t sequence, std::uint32_t query,
                             std::uint32_t head, const std::vector<std::uint32_t>& pages) {
  const StepShape& s = b.shape;
  const std::size_t group = std::size_t{sequence} * s.kv_heads + head / s.ratio();
  const std::uint32_t end = b.lengths[sequence] - s.q_len + query + 1;
  std::vector<double> logits;
  std::vector<std::pair<std::size_t, std::uint32_t>> tokens;
  for (const std::uint32_t page : pages) {
    for (std::uint32_t t = 0; t < s.page_tokens && page * s.page_tokens + t < end; ++t) {
      double dot = 0;
      for (std::uint32_t c = 0; c < s.head_dim; ++c) {
        const std::size_t at =
            ((std::size_t{sequence} * s.q_len + query) * s.q_heads + head) * s.head_dim + c;
        dot +=
            double{load_16(s.dtype, b.q[at])} * double{b.get(group * s.max_pages + page, 0, t, c)};
      }
      logits.push_back(dot / std::sqrt(double(s.head_dim)));
      tokens.emplace_back(group * s.max_pages + page, t);
    }
  }
  std::vector<double> out(s.head_dim, 0.0);
  double most = -std::numeric_limits<double>::infinity();
  for (const double l : logits) most = std::max(most, l);
  double sum = 0;
  for (const double l : logits) sum += std::exp(l - most);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    for (std::uint32_t c = 0; c < s.head_dim; ++c) {
      out[c] +=
          std::exp(logits[i] - most) / sum * double{b.get(tokens[i].first, 1, tokens[i].second, c)};
    }
  }
  return out;
}

std::vector<std::uint32_t> all_pages(const Batch& b, std::uint32_t sequence) {
  std::vector<std::uint32_t> pages(b.shape.pages_for(b.lengths[sequence]));
  for (std::uint32_t i = 0; i < pages.size(); ++i) pages[i] = i;
  return pages;
}

void check_rows(Batch& b) {
  for (std::uint32_t seq = 0; seq < b.shape.sequences; ++seq) {
    for (std::uint32_t j = 0; j < b.shape.q_len; ++j) {
      for (std::uint32_t h = 0; h < b.shape.q_heads; ++h) {
        const auto want = textbook(b, seq, j, h, all_pages(b, seq));
        for (std::uint32_t c = 0; c < b.shape.head_dim; ++c) {
          REQUIRE(b.output(seq, j, h, c) ==
                  Approx(want[c]).margin(b.shape.dtype == DType::kF16 ? 1e-3 : 8e-3));
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("dense attention over shuffled pages is softmax attention") {
  const auto page_tokens = GENERATE(16U, 32U, 64U);
  const auto dtype = GENERATE(DType::kF16, DType::kBf16);
  Batch b(shape_of(4, 2, 64, page_tokens, 8, dtype),
          {1, page_tokens, page_tokens + 1, 100, 8 * page_tokens}, 3);
  REQUIRE(attend_reference(b.shape, b.params()));
  check_rows(b);
}

TEST_CASE("several queries see one token more each") {
  Batch b(shape_of(2, 1, 64, 16, 4, DType::kF16, 4), {4, 17, 40}, 5);
  REQUIRE(attend_reference(b.shape, b.params()));
  check_rows(b);
}

TEST_CASE("an empty sequence gives zeros and an empty total, and every output is written") {
  Batch b(shape_of(2, 1, 64, 16, 2), {0, 5}, 9);
  std::vector<SoftmaxPair> totals(4, {99, 99});
  AttendParams p = b.params();
  p.totals = totals.data();
  REQUIRE(attend_reference(b.shape, p));
  for (std::uint32_t c = 0; c < 64; ++c) CHECK(b.output(0, 0, 1, c) == 0.0F);
  CHECK(std::isinf(totals[0].m));
  CHECK(totals[0].d == 0.0F);
  CHECK(totals[2].d > 0.0F);
  for (const auto h : b.out) CHECK_FALSE(std::isnan(from_f16(h)));
}

TEST_CASE("one token: its V, whatever its logit") {
  Batch b(shape_of(1, 1, 64, 16, 1), {1}, 1);
  REQUIRE(attend_reference(b.shape, b.params()));
  for (std::uint32_t c = 0; c < 64; ++c) CHECK(b.output(0, 0, 0, c) == b.get(0, 1, 0, c));
}

TEST_CASE("page pairs merge into the totals, and give each page's share") {
  Batch b(shape_of(2, 1, 64, 16, 6), {90}, 21);
  std::vector<SoftmaxPair> pairs(6 * 2), totals(2);
  AttendParams p = b.params();
  p.pairs = pairs.data();
  p.totals = totals.data();
  REQUIRE(attend_reference(b.shape, p));
  for (std::uint32_t row = 0; row < 2; ++row) {
    double shares = 0;
    for (std::uint32_t page = 0; page < 6; ++page) {
      const SoftmaxPair pair = pairs[page * 2 + row];
      shares += pair.d * std::exp2(double{pair.m} - totals[row].m) / totals[row].d;
    }
    CHECK(shares == Approx(1.0).epsilon(1e-6));
  }
  // By hand for one page: logits in log2 units.
  double most = -1e30, sum = 0;
  std::vector<double> logits;
  for (std::uint32_t t = 0; t < 16; ++t) {
    double dot = 0;
    for (std::uint32_t c = 0; c < 64; ++c)
      dot += double{from_f16(b.q[64 + c])} * double{b.get(2, 0, t, c)};
    logits.push_back(dot / 8 * std::numbers::log2e);
    most = std::max(most, logits.back());
  }
  for (const double l : logits) sum += std::exp2(l - most);
  CHECK(pairs[2 * 2 + 1].m == Approx(most).epsilon(1e-6));
  CHECK(pairs[2 * 2 + 1].d == Approx(sum).epsilon(1e-6));
}

TEST_CASE("a selection reads only its pages, the whole selection is the dense answer") {
  Batch b(shape_of(4, 2, 64, 16, 8), {120, 77}, 33);
  std::vector<std::uint32_t> selection(4 * 8), counts = {3, 2, 5, 5};
  const std::vector<std::vector<std::uint32_t>> lists = {
      {0, 3, 7}, {5, 7}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}};
  for (std::size_t g = 0; g < 4; ++g)
    std::copy(lists[g].begin(), lists[g].end(), selection.begin() + std::ptrdiff_t(g) * 8);
  AttendParams p = b.params();
  p.selection = selection.data();
  p.counts = counts.data();
  p.selection_pitch = 8;
  REQUIRE(attend_reference(b.shape, p));
  for (std::uint32_t seq = 0; seq < 2; ++seq) {
    for (std::uint32_t h = 0; h < 4; ++h) {
      const auto want = textbook(b, seq, 0, h, lists[seq * 2 + h / 2]);
      for (std::uint32_t c = 0; c < 64; ++c)
        REQUIRE(b.output(seq, 0, h, c) == Approx(want[c]).margin(1e-3));
    }
  }
}

TEST_CASE("NaN and infinity stay in their own sequence and group") {
  Batch clean(shape_of(4, 2, 64, 16, 4), {50, 50}, 41);
  Batch dirty(shape_of(4, 2, 64, 16, 4), {50, 50}, 41);
  dirty.set(1, 0, 3, 5, std::nanf(""));
  dirty.set(2, 1, 3, 5, std::numeric_limits<float>::infinity());
  REQUIRE(attend_reference(clean.shape, clean.params()));
  REQUIRE(attend_reference(dirty.shape, dirty.params()));
  for (std::uint32_t c = 0; c < 64; ++c) {
    CHECK(std::isnan(dirty.output(0, 0, 0, c)));
    CHECK(dirty.output(0, 0, 2, c) == clean.output(0, 0, 2, c));
    CHECK(dirty.output(1, 0, 0, c) == clean.output(1, 0, 0, c));
  }
}

TEST_CASE("an absent page counts as empty, and is reported") {
  Batch b(shape_of(1, 1, 64, 16, 4), {64}, 55);
  AttendParams p = b.params();
  std::uint32_t absent = 0;
  p.absent = &absent;
  b.table[1] = kAbsentPage;
  REQUIRE(attend_reference(b.shape, p));
  CHECK(absent == 1);
  const auto want = textbook(b, 0, 0, 0, {0, 2, 3});
  for (std::uint32_t c = 0; c < 64; ++c)
    CHECK(b.output(0, 0, 0, c) == Approx(want[c]).margin(1e-3));
}

TEST_CASE("where pages lie changes nothing, a page over the link is installed when asked") {
  Batch b(shape_of(2, 1, 64, 16, 4), {60}, 61);
  REQUIRE(attend_reference(b.shape, b.params()));
  const auto before = b.out;
  std::vector<std::uint64_t> installs(4, 0);
  alignas(128) static unsigned char slot[4096];
  installs[2] = reinterpret_cast<std::uintptr_t>(slot);
  b.table[2] |= kEntryOverLink;
  AttendParams p = b.params();
  p.installs = installs.data();
  REQUIRE(attend_reference(b.shape, p));
  CHECK(b.out == before);
  CHECK(std::memcmp(slot, b.element(2, 0, 0, 0), 4096) == 0);
  b.table[2] = make_entry(installs[2], false, DType::kF16);
  REQUIRE(attend_reference(b.shape, p));
  CHECK(b.out == before);
}

TEST_CASE("window and soft cap") {
  Batch b(shape_of(1, 1, 64, 16, 4), {50}, 71);
  AttendParams p = b.params();
  p.window = 1;
  REQUIRE(attend_reference(b.shape, p));
  for (std::uint32_t c = 0; c < 64; ++c)
    CHECK(b.output(0, 0, 0, c) == b.get(3, 1, 1, c));  // token 49 alone
  p.window = 0;
  p.soft_cap = 1e-6F;  // logits all but equal: the plain mean of V
  REQUIRE(attend_reference(b.shape, p));
  for (std::uint32_t c = 0; c < 64; ++c) {
    double mean = 0;
    for (std::uint32_t t = 0; t < 50; ++t) mean += double{b.get(t / 16, 1, t % 16, c)} / 50;
    CHECK(b.output(0, 0, 0, c) == Approx(mean).margin(1e-3));
  }
}

TEST_CASE("what cannot be honoured is refused at the call, with a reason") {
  Batch b(shape_of(4, 2, 64, 16, 4), {50}, 81);
  const auto refusal = [&](auto&& change) {
    StepShape s = b.shape;
    AttendParams p = b.params();
    change(s, p);
    const auto before = b.out;
    const Status status = attend_reference(s, p);
    REQUIRE_FALSE(status);
    CHECK(b.out == before);
    return status.error();
  };
  CHECK(refusal([](auto& s, auto&) { s.head_dim = 96; }).code == Code::kUnsupported);
  CHECK(refusal([](auto& s, auto&) { s.page_tokens = 48; }).code == Code::kUnsupported);
  CHECK(refusal([](auto& s, auto&) { s.dtype = DType::kE4m3; }).code == Code::kUnsupported);
  CHECK(refusal([](auto& s, auto&) { s.q_heads = 5; }).code == Code::kInvalid);
  CHECK(refusal([](auto& s, auto&) { s.kv_heads = 0; }).code == Code::kInvalid);
  CHECK(refusal([](auto& s, auto&) { s.q_len = 9; }).code == Code::kUnsupported);
  CHECK(refusal([](auto& s, auto&) { s.q_heads = 2 * 65; }).code == Code::kUnsupported);
  CHECK(refusal([](auto&, auto& p) { p.q = nullptr; }).what == "q is null");
  CHECK(refusal([](auto&, auto& p) { p.out = static_cast<char*>(p.out) + 2; }).what ==
        "out is not aligned to 16 bytes");
  CHECK(refusal([](auto&, auto& p) { p.soft_cap = -1; }).code == Code::kInvalid);
  std::uint32_t counts[2] = {1, 1}, selection[2] = {0, 4};
  CHECK(refusal([&](auto&, auto& p) { p.counts = counts; }).code == Code::kInvalid);
  const Error past = refusal([&](auto&, auto& p) {
    p.counts = counts;
    p.selection = selection;
    p.selection_pitch = 1;
  });
  CHECK(past.reason == Reason::kOutOfRange);
  CHECK(past.what == "group 1 selects page 4; the sequence has 4");
}

TEST_CASE(
    "e4m3 and int8 pages give the answer of the values they store, mixed with fp16 in one call") {
  const auto page_tokens = GENERATE(16U, 64U);
  Batch b(shape_of(2, 1, 64, page_tokens, 3), {page_tokens * 3 - 5}, 91);
  for (std::uint32_t t = page_tokens - 5; t < page_tokens; ++t) {
    for (std::uint32_t c = 0; c < 64; ++c) {
      b.set(2, 0, t, c, 0);
      b.set(2, 1, t, c, 0);
    }
  }
  alignas(128) static unsigned char slots[2][32768];
  const std::uint64_t to[2] = {reinterpret_cast<std::uintptr_t>(slots[0]),
                               reinterpret_cast<std::uintptr_t>(slots[1])};
  for (int i = 0; i < 2; ++i) {
    QuantizeParams qp;
    qp.sources = &b.table[static_cast<std::size_t>(i)];
    qp.destinations = &to[i];
    qp.count = 1;
    qp.to = i == 0 ? DType::kE4m3 : DType::kInt8;
    REQUIRE(quantize_reference(b.shape, qp));
    // The fp16 pages take the stored values too, so that the textbook sees what the kernel sees.
    for (std::uint32_t t = 0; t < page_tokens; ++t) {
      for (std::uint32_t c = 0; c < 64; ++c) {
        for (int what = 0; what < 2; ++what) {
          const float stored = stored_value(slots[i], qp.to, page_tokens, 64, what, t, c);
          CHECK(stored ==
                Approx(b.get(static_cast<std::size_t>(i), what, t, c)).margin(i == 0 ? 0.2 : 0.03));
          b.set(static_cast<std::size_t>(i), what, t, c, stored);
        }
      }
    }
  }
  const auto want = textbook(b, 0, 0, 1, {0, 1, 2});
  b.table[0] = make_entry(to[0], false, DType::kE4m3);
  b.table[1] = make_entry(to[1], false, DType::kInt8);
  REQUIRE(attend_reference(b.shape, b.params()));
  for (std::uint32_t c = 0; c < 64; ++c)
    CHECK(b.output(0, 0, 1, c) == Approx(want[c]).margin(3e-3));
}
