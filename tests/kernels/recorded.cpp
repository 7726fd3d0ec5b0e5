// SPDX-License-Identifier: Apache-2.0
// What scoring rules and stored precisions cost on recorded queries, keys and values.
// Usage: lehr_kernels_recorded TRACE [DUMP]: a trace with q, k and v. Prints how many of the pages
// with the most softmax mass each rule finds, and how far each precision's output is from float64
// over what was recorded. DUMP: where one step of each layer is written for the test of the CUDA
// kernels.
#include "tests/kernels/recorded.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "kernels/boxes.hpp"
#include "kernels/quantize.hpp"
#include "kernels/score.hpp"
#include "runtime/formats/attention_trace.hpp"

using namespace lehr;
using namespace lehr::kernels;
using namespace lehr::kernels::test;

namespace {

/// Evenly spaced steps of every recorded layer, one sequence each.
Batch batch_of(const formats::AttentionTrace& trace, std::uint32_t steps) {
  const formats::AttentionMeta& m = trace.meta();
  const std::uint32_t taken = std::min(steps, m.steps);
  std::vector<std::uint32_t> lengths;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> places;  // layer, step
  for (std::uint32_t layer = 0; layer < m.layers(); ++layer) {
    for (std::uint32_t i = 0; i < taken; ++i) {
      const std::uint32_t step = taken > 1 ? i * (m.steps - 1) / (taken - 1) : 0;
      places.emplace_back(layer, step);
      lengths.push_back(m.prompt_tokens + step + 1);
    }
  }
  Batch b(shape_of(m.q_heads, m.kv_heads, m.head_dim, m.page_tokens, trace.pages()), lengths, 1);
  const std::size_t d = m.head_dim;
  const std::size_t tokens = m.tokens();
  for (std::size_t sequence = 0; sequence < places.size(); ++sequence) {
    const auto [layer, step] = places[sequence];
    const auto* q =
        trace.parts().q.data() + (std::size_t{step} * m.layers() + layer) * m.q_heads * d;
    std::copy_n(q, m.q_heads * d,
                b.q.begin() + static_cast<std::ptrdiff_t>(sequence * m.q_heads * d));
    for (std::size_t head = 0; head < m.kv_heads; ++head) {
      for (std::uint32_t t = 0; t < lengths[sequence]; ++t) {
        const std::size_t at =
            (sequence * m.kv_heads + head) * b.shape.max_pages + t / m.page_tokens;
        const std::size_t from = ((layer * m.kv_heads + head) * tokens + t) * d;
        std::copy_n(trace.parts().k.data() + from, d, b.element(at, 0, t % m.page_tokens, 0));
        std::copy_n(trace.parts().v.data() + from, d, b.element(at, 1, t % m.page_tokens, 0));
      }
    }
  }
  return b;
}

/// Softmax mass of every page, mean over the group's query heads.
std::vector<double> masses(Batch& b) {
  const StepShape& s = b.shape;
  std::vector<SoftmaxPair> pairs(b.table.size() * s.rows());
  std::vector<SoftmaxPair> totals(s.groups() * s.rows());
  AttendParams p = b.params();
  p.pairs = pairs.data();
  p.totals = totals.data();
  if (!attend_reference(s, p)) return {};
  std::vector<double> mass(b.table.size(), 0);
  for (std::size_t at = 0; at < b.table.size(); ++at) {
    if (b.table[at] == kAbsentPage) continue;
    for (std::uint32_t r = 0; r < s.rows(); ++r) {
      const SoftmaxPair part = pairs[at * s.rows() + r];
      const SoftmaxPair all = totals[at / s.max_pages * s.rows() + r];
      mass[at] += part.d * std::exp2(double{part.m} - double{all.m}) / all.d / s.rows();
    }
  }
  return mass;
}

std::vector<float> box_scores(Batch& b, float spread) {
  const StepShape& s = b.shape;
  std::vector<std::uint16_t> boxes(b.table.size() * 2 * s.head_dim);
  std::vector<float> scores(b.table.size());
  BoxesParams boxed;
  boxed.table = b.table.data();
  boxed.lengths = b.lengths.data();
  boxed.boxes = boxes.data();
  ScoreParams p;
  p.q = b.q.data();
  p.boxes = boxes.data();
  p.lengths = b.lengths.data();
  p.scores = scores.data();
  p.spread = spread;
  if (!boxes_reference(s, boxed) || !score_reference(s, p)) return {};
  return scores;
}

/// The greatest product of a query with the mean key of each page.
std::vector<float> mean_scores(Batch& b) {
  const StepShape& s = b.shape;
  std::vector<float> scores(b.table.size(), -INFINITY);
  for (std::size_t at = 0; at < b.table.size(); ++at) {
    if (b.table[at] == kAbsentPage) continue;
    const std::size_t group = at / s.max_pages;
    const auto page = static_cast<std::uint32_t>(at % s.max_pages);
    const std::uint32_t tokens =
        std::min(s.page_tokens, b.lengths[group / s.kv_heads] - page * s.page_tokens);
    for (std::uint32_t head = 0; head < s.ratio(); ++head) {
      const std::size_t row =
          group / s.kv_heads * s.q_heads + group % s.kv_heads * s.ratio() + head;
      double dot = 0;
      for (std::uint32_t c = 0; c < s.head_dim; ++c) {
        double mean = 0;
        for (std::uint32_t t = 0; t < tokens; ++t) mean += double{b.get(at, 0, t, c)};
        dot += double{load_16(s.dtype, b.q[row * s.head_dim + c])} * mean / tokens;
      }
      scores[at] = std::max(scores[at], static_cast<float>(dot));
    }
  }
  return scores;
}

template <class Value>
std::vector<std::uint32_t> best(const Value* of, std::uint32_t pages, std::uint32_t count) {
  std::vector<std::uint32_t> order(pages);
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t c) { return of[a] > of[c]; });
  order.resize(count);
  return order;
}

/// Of the pages with the most mass, the share that a rule finds with the same number; and the mass
/// of its pages over theirs. The first page and the last four are always read: left out.
void print_recall(Batch& b, const std::vector<double>& mass, const char* rule,
                  const std::vector<float>& scores) {
  const std::uint32_t last_pages = 4;
  fmt::print("| {} ", rule);
  for (const double share : {0.05, 0.1, 0.2, 0.3}) {
    double found = 0, asked = 0, got = 0, most = 0;
    for (std::size_t group = 0; group < b.shape.groups(); ++group) {
      const std::uint32_t pages =
          b.shape.pages_for(b.lengths[group / b.shape.kv_heads]) - 1 - last_pages;
      const std::size_t first = group * b.shape.max_pages + 1;
      const auto count = static_cast<std::uint32_t>(std::ceil(share * pages));
      const auto wanted = best(mass.data() + first, pages, count);
      const auto chosen = best(scores.data() + first, pages, count);
      for (const std::uint32_t page : chosen) {
        found += std::count(wanted.begin(), wanted.end(), page) > 0 ? 1 : 0;
        got += mass[first + page];
      }
      for (const std::uint32_t page : wanted) most += mass[first + page];
      asked += count;
    }
    fmt::print("| {:.3f} / {:.3f} ", found / asked, got / most);
  }
  fmt::print("|\n");
}

/// Output of the batch with its pages stored in a format.
std::vector<double> output_of(const Batch& from, PageFormat format) {
  const StepShape& s = from.shape;
  const std::uint32_t pitch = slot_bytes(format, s.page_tokens, s.head_dim);
  std::unique_ptr<unsigned char[], FreeAligned> memory(
      new (std::align_val_t{128}) unsigned char[from.table.size() * pitch]);
  std::vector<PageEntry> table(from.table);
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i] == kAbsentPage) continue;
    const std::uint64_t to = reinterpret_cast<std::uintptr_t>(memory.get()) + i * pitch;
    QuantizeParams q;
    q.sources = &from.table[i];
    q.destinations = &to;
    q.count = 1;
    q.to = format;
    if (!quantize_reference(s, q)) return {};
    table[i] = make_entry(to, false, format);
  }
  std::vector<std::uint16_t> out(from.q.size());
  AttendParams p;
  p.q = from.q.data();
  p.out = out.data();
  p.table = table.data();
  p.lengths = from.lengths.data();
  if (!attend_reference(s, p)) return {};
  std::vector<double> values(out.size());
  for (std::size_t i = 0; i < out.size(); ++i) values[i] = double{load_16(s.dtype, out[i])};
  return values;
}

void print_error(const Batch& b, const std::vector<double>& want, const char* what,
                 PageFormat format) {
  const std::vector<double> got = output_of(b, format);
  double difference = 0, size = 0, worst = 0;
  for (std::size_t i = 0; i < want.size() && i < got.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
    worst = std::max(worst, std::fabs(got[i] - want[i]));
  }
  fmt::print("| {} | {:.2e} | {:.2e} | {:.2f} |\n", what, std::sqrt(difference / size), worst,
             stored_page_bytes(format, b.shape.page_tokens, b.shape.head_dim) /
                 double(stored_page_bytes(DType::kF16, b.shape.page_tokens, b.shape.head_dim)));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    fmt::print(stderr, "usage: lehr_kernels_recorded TRACE [DUMP]\n");
    return 2;
  }
  const auto trace = formats::AttentionTrace::open(argv[1]);
  if (!trace) {
    fmt::print(stderr, "{}\n", trace.error().what);
    return 1;
  }
  if (trace->parts().q.empty() || trace->parts().k.empty() || trace->parts().v.empty()) {
    fmt::print(stderr, "{}: no q, k and v were recorded\n", argv[1]);
    return 1;
  }
  if (argc == 3 && !write_recorded(batch_of(*trace, 1), argv[2])) {
    fmt::print(stderr, "{}: could not be written\n", argv[2]);
    return 1;
  }
  Batch b = batch_of(*trace, 8);
  const std::vector<double> mass = masses(b);
  fmt::print("{}: {} sequences (steps and layers), {} KV heads, {} to {} tokens\n\n", argv[1],
             b.shape.sequences, b.shape.kv_heads, b.lengths.front(), b.lengths.back());
  fmt::print("pages found / mass found, of the pages with the most mass\n\n");
  fmt::print("| score | 5 % | 10 % | 20 % | 30 % |\n|---|---|---|---|---|\n");
  print_recall(b, mass, "box (bound)", box_scores(b, 1.0F));
  print_recall(b, mass, "box, half its width", box_scores(b, 0.5F));
  print_recall(b, mass, "box, a quarter of its width", box_scores(b, 0.25F));
  print_recall(b, mass, "centre of the box", box_scores(b, 0.0F));
  print_recall(b, mass, "mean key", mean_scores(b));
  const std::vector<double> want = output_of(b, DType::kF16);
  fmt::print("\n| stored as | relative error | greatest difference | bytes |\n|---|---|---|---|\n");
  print_error(b, want, "bf16", DType::kBf16);
  print_error(b, want, "K fp16, V e4m3", {DType::kF16, DType::kE4m3});
  print_error(b, want, "e4m3", DType::kE4m3);
  print_error(b, want, "K fp16, V int8", {DType::kF16, DType::kInt8});
  print_error(b, want, "int8", DType::kInt8);
  return 0;
}
