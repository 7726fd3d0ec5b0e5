// SPDX-License-Identifier: Apache-2.0
// Measures the CUDA kernels on the device at hand, as a share of ceilings measured in the same run.
// Usage: bench_kernels JSON [word...]: only groups whose name contains one of the words.

#include <functional>
#include <numeric>
#include <string_view>

#include "kernels/boxes.hpp"
#include "kernels/feedback.hpp"
#include "kernels/quantize.hpp"
#include "kernels/resolve.hpp"
#include "kernels/score.hpp"
#include "kernels/select.hpp"
#include "tools/gpu/bench.hpp"

using namespace lehr;
using namespace lehr::gpu;
using namespace lehr::kernels;
using lehr::kernels::test::DeviceArray;

namespace {

constexpr std::uint32_t kQHeads = 32, kKvHeads = 8, kDim = 128;
constexpr std::size_t kPoolBytes = std::size_t{1} << 30;

/// One layer's KV of a batch: 1 GiB of fp16 pages in random order, and what a step needs around it.
struct Layer {
  StepShape shape;
  std::uint32_t tokens, pages;
  DType format;
  std::uint32_t pitch;
  DeviceArray<unsigned char> pool;
  unsigned char* pinned = nullptr;
  std::vector<PageEntry> entries;
  std::vector<std::uint32_t> order;
  DeviceArray<PageEntry> table;
  DeviceArray<std::uint16_t> q, out;
  DeviceArray<std::uint32_t> lengths;
  DeviceArray<SoftmaxPair> pairs, totals;

  Layer(std::uint32_t sequences, std::uint32_t context, std::uint32_t page_tokens,
        DType page_format = DType::kF16)
      : tokens(context), pages(context / page_tokens), format(page_format) {
    shape.sequences = sequences;
    shape.q_heads = kQHeads;
    shape.kv_heads = kKvHeads;
    shape.head_dim = kDim;
    shape.page_tokens = page_tokens;
    shape.max_pages = pages;
    pitch = slot_bytes(format, page_tokens, kDim);
    const std::size_t count = shape.groups() * pages;
    pool = DeviceArray<unsigned char>(count * pitch);
    if (format == DType::kF16) {
      fill_random(pool.get(), count * pitch, 7, nullptr);
    }
    order.resize(count);
    std::iota(order.begin(), order.end(), 0U);
    Rng rng(11);
    for (std::size_t i = count; i > 1; --i)
      std::swap(order[i - 1], order[rng.below(static_cast<std::uint32_t>(i))]);
    table = DeviceArray<PageEntry>(count);
    place(0);
    if (format != DType::kF16) convert();
    q = DeviceArray<std::uint16_t>(std::size_t{sequences} * kQHeads * kDim);
    fill_random(q.get(), q.size() * 2, 5, nullptr);
    out = DeviceArray<std::uint16_t>(q.size());
    lengths = DeviceArray<std::uint32_t>(std::vector<std::uint32_t>(sequences, context));
    pairs = DeviceArray<SoftmaxPair>(count * shape.rows());
    totals = DeviceArray<SoftmaxPair>(shape.groups() * shape.rows());
    must(cudaDeviceSynchronize(), "layer");
  }
  Layer(const Layer&) = delete;
  ~Layer() {
    if (pinned != nullptr) (void)cudaFreeHost(pinned);
  }

  std::string name() const {
    return std::to_string(shape.sequences) + "x" + std::to_string(tokens / 1024) + "K";
  }

  /// Puts a random share of the pages in pinned host memory.
  void place(double share) {
    if (share > 0 && pinned == nullptr) {
      must(cudaHostAlloc(reinterpret_cast<void**>(&pinned), entries.size() * pitch,
                         cudaHostAllocDefault),
           "pinned");
      must(cudaMemcpy(pinned, pool.get(), entries.size() * pitch, cudaMemcpyDeviceToHost),
           "copy to host");
    }
    Rng rng(3);
    entries.resize(order.size());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const bool away = share > 0 && rng.uniform() < share;
      const unsigned char* base = away ? pinned : pool.get();
      entries[i] = make_entry(
          reinterpret_cast<std::uint64_t>(base) + std::uint64_t{order[i]} * pitch, away, format);
    }
    table.put(entries);
  }

  /// Fills the pool with pages converted from random fp16 ones.
  void convert() {
    const std::uint32_t from_pitch = slot_bytes(DType::kF16, shape.page_tokens, kDim);
    const std::size_t chunk = 16384;
    DeviceArray<unsigned char> source(chunk * from_pitch);
    for (std::size_t first = 0; first < entries.size(); first += chunk) {
      const std::size_t n = std::min(chunk, entries.size() - first);
      fill_random(source.get(), chunk * from_pitch, first + 9, nullptr);
      std::vector<PageEntry> from(n);
      std::vector<std::uint64_t> to(n);
      for (std::size_t i = 0; i < n; ++i) {
        from[i] = make_entry(reinterpret_cast<std::uint64_t>(source.get()) + i * from_pitch, false,
                             DType::kF16);
        to[i] = reinterpret_cast<std::uint64_t>(pool.get()) + (first + i) * pitch;
      }
      DeviceArray<PageEntry> f(from);
      DeviceArray<std::uint64_t> t(to);
      QuantizeParams p;
      p.sources = f.get();
      p.destinations = t.get();
      p.count = static_cast<std::uint32_t>(n);
      p.to = format;
      must(quantize_cuda(shape, p, nullptr), "quantize");
      must(cudaDeviceSynchronize(), "quantize");
    }
  }

  AttendParams params(bool with_pairs) const {
    AttendParams p;
    p.q = q.get();
    p.out = out.get();
    p.table = table.get();
    p.lengths = lengths.get();
    p.formats = 1U << static_cast<unsigned>(format);
    if (with_pairs) {
      p.pairs = pairs.get();
      p.totals = totals.get();
    }
    return p;
  }
  double page_bytes() const { return stored_page_bytes(format, shape.page_tokens, kDim); }
};

/// Three disjoint random choices of a share of the pages of each group, so that no call finds the
/// last one's pages in L2.
struct Choices {
  std::uint32_t count;
  std::vector<DeviceArray<std::uint32_t>> lists, counts;
  Choices(const Layer& l, double share) : count(static_cast<std::uint32_t>(share * l.pages + 0.5)) {
    std::vector<std::vector<std::uint32_t>> out(
        3, std::vector<std::uint32_t>(l.shape.groups() * l.pages, 0));
    Rng rng(21);
    std::vector<std::uint32_t> all(l.pages);
    for (std::size_t g = 0; g < l.shape.groups(); ++g) {
      std::iota(all.begin(), all.end(), 0U);
      for (std::size_t i = l.pages; i > 1; --i)
        std::swap(all[i - 1], all[rng.below(static_cast<std::uint32_t>(i))]);
      for (std::size_t k = 0; k < 3; ++k) {
        const auto at = out[k].begin() + static_cast<std::ptrdiff_t>(g * l.pages);
        std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(k * count), count, at);
        std::sort(at, at + count);
      }
    }
    for (std::size_t k = 0; k < 3; ++k) {
      lists.emplace_back(out[k]);
      counts.emplace_back(std::vector<std::uint32_t>(l.shape.groups(), count));
    }
  }
};

Report* report = nullptr;
Ceilings ceilings;

std::string described(const AttendTuning& t) {
  if (t.stages == 0) return t.programmatic ? "programmatic" : "default";
  return "stages " + std::to_string(t.stages);
}

Spread time_attend(const Layer& l, const AttendTuning& t, bool with_pairs, const Choices* choices) {
  test::Workspace w(l.shape);
  const auto call = [&](cudaStream_t stream) {
    for (int i = 0; i < (choices != nullptr ? 6 : 4); ++i) {
      AttendParams p = l.params(with_pairs);
      if (choices != nullptr) {
        p.selection = choices->lists[static_cast<std::size_t>(i % 3)].get();
        p.counts = choices->counts[static_cast<std::size_t>(i % 3)].get();
        p.selection_pitch = l.pages;
      }
      must(attend_cuda(l.shape, p, t, w.memory.get(), w.memory.size(), stream), "attend");
    }
  };
  return time_graph(call, choices != nullptr ? 6 : 4);
}

void add(const Layer& l, const std::string& name, const std::string& variant, const Spread& s,
         double pages) {
  report->add(
      {name, l.name(), variant, s.median, s.low, s.high, pages * l.page_bytes(), ceilings.hbm});
}

const AttendTuning kTunings[] = {
    {}, {3, 1}, {5, 1}, {6, 1}, {0, 1, true},
};

void dense() {
  for (const auto& [sequences, context] : {std::pair{32U, 8192U}, {8U, 32768U}}) {
    Layer l(sequences, context, 16);
    const auto pages = static_cast<double>(l.entries.size());
    for (const AttendTuning& t : kTunings) {
      add(l, "attend dense", described(t), time_attend(l, t, true, nullptr), pages);
    }
    add(l, "attend dense", "without (m, d)", time_attend(l, {}, false, nullptr), pages);
    add(l, "attend dense", "again", time_attend(l, {}, true, nullptr), pages);
    std::iota(l.order.begin(), l.order.end(), 0U);
    l.place(0);
    add(l, "attend dense", "pages in order of address", time_attend(l, {}, true, nullptr), pages);
  }
  for (const std::uint32_t page : {32U, 64U}) {
    Layer l(32, 8192, page);
    add(l, "attend dense", "page " + std::to_string(page), time_attend(l, {}, true, nullptr),
        static_cast<double>(l.entries.size()));
  }
}

void selected() {
  for (const auto& [sequences, context] : {std::pair{32U, 8192U}, {8U, 32768U}}) {
    Layer l(sequences, context, 16);
    for (const double share : {0.3, 0.1}) {
      Choices c(l, share);
      const double pages = static_cast<double>(l.shape.groups()) * c.count;
      const std::string name =
          "attend " + std::to_string(static_cast<int>(100 * share + 0.5)) + " %";
      for (const AttendTuning& t : kTunings)
        add(l, name, described(t), time_attend(l, t, true, &c), pages);
      add(l, name, "without (m, d)", time_attend(l, {}, false, &c), pages);
    }
  }
}

void mixed_residency() {
  Layer l(32, 8192, 16);
  for (const double share : {0.01, 0.05}) {
    l.place(share);
    double away = 0;
    for (const PageEntry e : l.entries) away += entry_over_link(e) ? 1 : 0;
    const double all = static_cast<double>(l.entries.size());
    const double link_us = away * l.page_bytes() / ceilings.link * 1e6;
    const double hbm_us = (all - away) * l.page_bytes() / ceilings.hbm * 1e6;
    std::printf("host share %.3f: link alone %.1f us, HBM alone %.1f us at the ceilings\n",
                away / all, link_us, hbm_us);
    for (const AttendTuning& t : {AttendTuning{}, AttendTuning{3, 1}, AttendTuning{5, 1}}) {
      const Spread s = time_attend(l, t, true, nullptr);
      const bool by_link = link_us > hbm_us;
      report->add({"attend host " + std::to_string(static_cast<int>(100 * share + 0.5)) + " %",
                   l.name(), described(t), s.median, s.low, s.high,
                   (by_link ? away : all - away) * l.page_bytes(),
                   by_link ? ceilings.link : ceilings.hbm});
    }
  }
}

void e4m3() {
  for (const auto& [sequences, context] : {std::pair{32U, 8192U}, {8U, 32768U}}) {
    Layer l(sequences, context, 16, DType::kE4m3);
    const auto pages = static_cast<double>(l.entries.size());
    for (const AttendTuning& t : {AttendTuning{}, AttendTuning{5, 1}, AttendTuning{6, 1},
                                  AttendTuning{10, 1}, AttendTuning{0, 1, true}}) {
      add(l, "attend e4m3", described(t), time_attend(l, t, true, nullptr), pages);
    }
    Choices c(l, 0.3);
    for (const AttendTuning& t : {AttendTuning{}, AttendTuning{0, 1, true}}) {
      add(l, "attend e4m3 30 %", described(t), time_attend(l, t, true, &c),
          static_cast<double>(l.shape.groups()) * c.count);
    }
  }
}

/// Everything around attend for one layer.
struct Step {
  Layer& l;
  DeviceArray<std::uint16_t> boxes;
  DeviceArray<float> scores;
  DeviceArray<std::uint32_t> list, counts, step;
  DeviceArray<PageHeat> heat;
  DeviceArray<Miss> misses;
  DeviceArray<unsigned char> counters;
  SelectParams select;
  ScoreParams score;

  Step(Layer& layer, float ratio)
      : l(layer),
        boxes(l.entries.size() * 2 * kDim),
        scores(l.entries.size()),
        list(l.entries.size()),
        counts(l.shape.groups()),
        step(std::vector<std::uint32_t>{1}),
        heat(l.entries.size(), 0),
        misses(65536),
        counters(256, 0) {
    BoxesParams b;
    b.table = l.table.get();
    b.lengths = l.lengths.get();
    b.boxes = boxes.get();
    must(boxes_cuda(l.shape, b, nullptr), "boxes");
    score.q = l.q.get();
    score.boxes = boxes.get();
    score.lengths = l.lengths.get();
    score.scores = scores.get();
    select.scores = scores.get();
    select.lengths = l.lengths.get();
    select.selection = list.get();
    select.counts = counts.get();
    select.pitch = l.pages;
    select.ratio = ratio;
  }
  void score_and_select(cudaStream_t s) {
    must(score_cuda(l.shape, score, s), "score");
    must(select_cuda(l.shape, select, s), "select");
  }
  void resolve(cudaStream_t s) {
    ResolveParams r;
    r.table = l.table.get();
    r.lengths = l.lengths.get();
    r.selection = list.get();
    r.counts = counts.get();
    r.selection_pitch = l.pages;
    r.misses = misses.get();
    r.counters = reinterpret_cast<ResolveCounters*>(counters.get());
    r.miss_capacity = 65536;
    must(resolve_cuda(l.shape, r, s), "resolve");
  }
  void attend(cudaStream_t s, const AttendTuning& t, test::Workspace& w) {
    AttendParams p = l.params(true);
    p.selection = list.get();
    p.counts = counts.get();
    p.selection_pitch = l.pages;
    must(attend_cuda(l.shape, p, t, w.memory.get(), w.memory.size(), s), "attend");
  }
  void feedback(cudaStream_t s) {
    FeedbackParams f;
    f.pairs = l.pairs.get();
    f.totals = l.totals.get();
    f.lengths = l.lengths.get();
    f.selection = list.get();
    f.counts = counts.get();
    f.selection_pitch = l.pages;
    f.step = step.get();
    f.heat = heat.get();
    must(feedback_cuda(l.shape, f, s), "feedback");
  }
};

void step_of(std::uint32_t sequences, std::uint32_t context, float ratio) {
  Layer l(sequences, context, 16);
  Step st(l, ratio);
  const double box_bytes = static_cast<double>(l.entries.size()) * 4 * kDim;
  const double picked =
      std::ceil(ratio * static_cast<float>(l.pages)) * static_cast<double>(l.shape.groups());
  const auto part = [&](const std::string& name, const std::string& variant, double bytes,
                        const std::function<void(cudaStream_t)>& f) {
    const Spread s = time_graph(
        [&](cudaStream_t stream) {
          for (int i = 0; i < 4; ++i) f(stream);
        },
        4);
    report->add({name, l.name(), variant, s.median, s.low, s.high, bytes, ceilings.hbm});
  };
  part("score", "", box_bytes,
       [&](cudaStream_t s) { must(score_cuda(l.shape, st.score, s), "score"); });
  part("select", "", static_cast<double>(l.entries.size()) * 4,
       [&](cudaStream_t s) { must(select_cuda(l.shape, st.select, s), "select"); });
  part("score + select", "", box_bytes, [&](cudaStream_t s) { st.score_and_select(s); });
  const double kv = picked * l.page_bytes();
  const std::pair<const char*, AttendTuning> tunings[] = {
      {"plain launches", {0, 1}},
      {"programmatic attend", {0, 1, true}},
      {"programmatic attend, 4 stages", {4, 1, true}}};
  for (const auto& [variant, t] : tunings) {
    test::Workspace w(l.shape);
    part("attend in step", variant, kv, [&](cudaStream_t s) { st.attend(s, t, w); });
    part("score to attend", variant, kv + box_bytes, [&](cudaStream_t s) {
      st.score_and_select(s);
      st.attend(s, t, w);
    });
    part("step without resolve", variant, kv + box_bytes, [&](cudaStream_t s) {
      st.score_and_select(s);
      st.attend(s, t, w);
      st.feedback(s);
    });
    part("whole step", variant, kv + box_bytes, [&](cudaStream_t s) {
      st.score_and_select(s);
      st.resolve(s);
      st.attend(s, t, w);
      st.feedback(s);
    });
  }
}

void steps() {
  step_of(16, 16384, 0.3F);
  step_of(32, 8192, 0.3F);
  step_of(1, 4096, 0.3F);
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (argc < 2 || cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "usage: bench_kernels JSON [word...], on a machine with a CUDA device\n");
    return argc < 2 ? 2 : 77;
  }
  Report r(argv[1]);
  report = &r;
  ceilings = measure_ceilings(r);
  const std::pair<const char*, void (*)()> groups[] = {{"dense", dense},
                                                       {"selected", selected},
                                                       {"mixed", mixed_residency},
                                                       {"e4m3", e4m3},
                                                       {"steps", steps}};
  for (const auto& [name, run] : groups) {
    bool wanted = argc == 2;
    for (int i = 2; i < argc; ++i)
      wanted = wanted || std::string_view(name).find(argv[i]) != std::string_view::npos;
    if (wanted) run();
  }
  return 0;
}
