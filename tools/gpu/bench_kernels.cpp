// SPDX-License-Identifier: Apache-2.0
// Measures the CUDA kernels on the device at hand, as a share of ceilings measured in the same run.
// Usage: bench_kernels JSON [word...]: only groups whose name contains one of the words.

#include <functional>
#include <numeric>
#include <string_view>

#include "kernels/append.hpp"
#include "kernels/boxes.hpp"
#include "kernels/feedback.hpp"
#include "kernels/quantize.hpp"
#include "kernels/resolve.hpp"
#include "kernels/score_select.hpp"
#include "tools/gpu/bench.hpp"

using namespace lehr;
using namespace lehr::gpu;
using namespace lehr::kernels;
using lehr::kernels::test::DeviceArray;
using lehr::kernels::test::Workspace;

namespace {

constexpr std::uint32_t kQHeads = 32, kKvHeads = 8, kDim = 128;
constexpr std::size_t kPoolBytes = std::size_t{1} << 30;

/// One layer's KV of a batch: 1 GiB of fp16 pages in random order, and what a step needs around it.
struct Layer {
  StepShape shape;
  std::uint32_t tokens, pages;
  PageFormat format;
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
        PageFormat page_format = DType::kF16)
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
    if (format == PageFormat(DType::kF16)) {
      fill_random(pool.get(), count * pitch, 7, nullptr);
    }
    order.resize(count);
    std::iota(order.begin(), order.end(), 0U);
    Rng rng(11);
    for (std::size_t i = count; i > 1; --i)
      std::swap(order[i - 1], order[rng.below(static_cast<std::uint32_t>(i))]);
    table = DeviceArray<PageEntry>(count);
    place(0);
    if (!(format == PageFormat(DType::kF16))) convert();
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

  /// The pages of all KV heads of a block of tokens lie beside each other, blocks at random: the
  /// order that an engine with one block table for all heads has.
  void blocks_of_heads() {
    std::vector<std::uint32_t> blocks(std::size_t{shape.sequences} * pages);
    std::iota(blocks.begin(), blocks.end(), 0U);
    Rng rng(13);
    for (std::size_t i = blocks.size(); i > 1; --i)
      std::swap(blocks[i - 1], blocks[rng.below(static_cast<std::uint32_t>(i))]);
    for (std::size_t g = 0; g < shape.groups(); ++g) {
      const std::size_t sequence = g / shape.kv_heads, head = g % shape.kv_heads;
      for (std::uint32_t p = 0; p < pages; ++p) {
        order[g * pages + p] = static_cast<std::uint32_t>(
            blocks[sequence * pages + p] * std::size_t{shape.kv_heads} + head);
      }
    }
    place(0);
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
    p.formats = 1U << static_cast<unsigned>(format.k) | 1U << static_cast<unsigned>(format.v);
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
  Workspace w(l.shape);
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
    {},
    {4, 1},
    {6, 1},
    {0, 1, true},
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
    l.blocks_of_heads();
    add(l, "attend dense", "heads of a block beside each other", time_attend(l, {}, true, nullptr),
        pages);
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
    for (const AttendTuning& t : {AttendTuning{}, AttendTuning{6, 1}}) {
      const Spread s = time_attend(l, t, true, nullptr);
      const bool by_link = link_us > hbm_us;
      report->add({"attend host " + std::to_string(static_cast<int>(100 * share + 0.5)) + " %",
                   l.name(), described(t), s.median, s.low, s.high,
                   (by_link ? away : all - away) * l.page_bytes(),
                   by_link ? ceilings.link : ceilings.hbm});
    }
  }
}

void formats() {
  const PageFormat int8 = DType::kInt8, split(DType::kF16, DType::kInt8);
  for (const auto& [format, name] :
       {std::pair{int8, "attend int8"}, {split, "attend K fp16, V int8"}}) {
    Layer l(32, 8192, 16, format);
    add(l, name, "default", time_attend(l, {}, true, nullptr),
        static_cast<double>(l.entries.size()));
  }
}

void e4m3() {
  for (const auto& [sequences, context] : {std::pair{32U, 8192U}, {8U, 32768U}}) {
    Layer l(sequences, context, 16, DType::kE4m3);
    const auto pages = static_cast<double>(l.entries.size());
    for (const AttendTuning& t :
         {AttendTuning{}, AttendTuning{5, 1}, AttendTuning{6, 1}, AttendTuning{9, 1},
          AttendTuning{12, 1}, AttendTuning{0, 1, true}}) {
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
    ScoreParams on_chip = score;
    on_chip.scores = nullptr;
    must(score_select_cuda(l.shape, on_chip, select, s), "score and select");
  }
  void in_two_launches(cudaStream_t s) {
    must(score_cuda(l.shape, score, s), "score");
    must(select_cuda(l.shape, select, s), "select");
  }
  void resolve(cudaStream_t s) { must(resolve_cuda(l.shape, resolve_params(), s), "resolve"); }
  ResolveParams resolve_params() {
    ResolveParams r;
    r.table = l.table.get();
    r.lengths = l.lengths.get();
    r.selection = list.get();
    r.counts = counts.get();
    r.selection_pitch = l.pages;
    r.misses = misses.get();
    r.counters = reinterpret_cast<ResolveCounters*>(counters.get());
    r.miss_capacity = 65536;
    return r;
  }
  void attend(cudaStream_t s, const AttendTuning& t, Workspace& w) {
    AttendParams p = l.params(true);
    p.selection = list.get();
    p.counts = counts.get();
    p.selection_pitch = l.pages;
    must(attend_cuda(l.shape, p, t, w.memory.get(), w.memory.size(), s), "attend");
  }
  void feedback(cudaStream_t s) { must(feedback_cuda(l.shape, feedback_params(), s), "feedback"); }
  FeedbackParams feedback_params() const {
    FeedbackParams f;
    f.pairs = l.pairs.get();
    f.totals = l.totals.get();
    f.lengths = l.lengths.get();
    f.selection = list.get();
    f.counts = counts.get();
    f.selection_pitch = l.pages;
    f.step = step.get();
    f.heat = heat.get();
    return f;
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
  part("score + select", "one launch", box_bytes, [&](cudaStream_t s) { st.score_and_select(s); });
  part("score + select", "two launches", box_bytes, [&](cudaStream_t s) { st.in_two_launches(s); });
  const double kv = picked * l.page_bytes();
  const std::pair<const char*, AttendTuning> tunings[] = {{"programmatic launches", {0, 1, true}},
                                                          {"plain attend", {0, 1}}};
  for (const auto& [variant, t] : tunings) {
    Workspace w(l.shape);
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

/// Boxes only, for contexts whose KV would not fit.
void select_from(std::uint32_t sequences, std::uint32_t pages, float ratio) {
  StepShape shape;
  shape.sequences = sequences;
  shape.q_heads = kQHeads;
  shape.kv_heads = kKvHeads;
  shape.head_dim = kDim;
  shape.page_tokens = 16;
  shape.max_pages = pages;
  const std::size_t all = shape.groups() * pages;
  DeviceArray<std::uint16_t> boxes(all * 2 * kDim), q(std::size_t{sequences} * kQHeads * kDim);
  fill_random(boxes.get(), boxes.size() * 2, 31, nullptr);
  fill_random(q.get(), q.size() * 2, 32, nullptr);
  DeviceArray<std::uint32_t> lengths(std::vector<std::uint32_t>(sequences, pages * 16));
  DeviceArray<float> scores(all);
  DeviceArray<std::uint32_t> list(all), counts(shape.groups());
  ScoreParams score;
  score.q = q.get();
  score.boxes = boxes.get();
  score.lengths = lengths.get();
  SelectParams select;
  select.lengths = lengths.get();
  select.scores = scores.get();
  select.selection = list.get();
  select.counts = counts.get();
  select.pitch = pages;
  select.ratio = ratio;
  const std::string name = std::to_string(sequences) + "x" + std::to_string(pages / 64) + "K";
  const auto part = [&](const std::string& variant, double bytes,
                        const std::function<void(cudaStream_t)>& f) {
    const Spread s = time_graph(
        [&](cudaStream_t stream) {
          for (int i = 0; i < 4; ++i) f(stream);
        },
        4);
    report->add({"score + select", name, variant, s.median, s.low, s.high, bytes, ceilings.hbm});
  };
  const double bytes = static_cast<double>(all) * 4 * kDim;
  part("one call", bytes, [&](cudaStream_t s) {
    ScoreParams called = score;
    if (pages > 8192) called.scores = scores.get();
    must(score_select_cuda(shape, called, select, s), "score and select");
  });
  part("two launches", bytes, [&](cudaStream_t s) {
    ScoreParams written = score;
    written.scores = scores.get();
    must(score_cuda(shape, written, s), "score");
    must(select_cuda(shape, select, s), "select");
  });
  // Two levels: the best quarter of the blocks of 16 pages, then pages of those.
  CoarseParams coarse;
  const std::uint32_t blocks = coarse.blocks(shape);
  DeviceArray<std::uint16_t> coarse_boxes(shape.groups() * blocks * 2 * kDim);
  DeviceArray<std::uint32_t> coarse_lengths(sequences), block_list(shape.groups() * blocks),
      block_counts(shape.groups());
  coarse.boxes = boxes.get();
  coarse.lengths = lengths.get();
  coarse.coarse = coarse_boxes.get();
  coarse.coarse_lengths = coarse_lengths.get();
  must(coarse_cuda(shape, coarse, nullptr), "coarse");
  StepShape level = shape;
  level.max_pages = blocks;
  ScoreParams first = score;
  first.boxes = coarse_boxes.get();
  first.lengths = coarse_lengths.get();
  SelectParams choose = select;
  choose.lengths = coarse_lengths.get();
  choose.selection = block_list.get();
  choose.counts = block_counts.get();
  choose.pitch = blocks;
  choose.ratio = 0.25F;
  choose.recent = 1;
  ScoreParams second = score;
  second.blocks = block_list.get();
  second.block_counts = block_counts.get();
  second.block_pages = coarse.block_pages;
  second.block_pitch = blocks;
  part("two levels, a quarter of the blocks", bytes * (1.0 / 16 + 0.25), [&](cudaStream_t s) {
    must(score_select_cuda(level, first, choose, s), "blocks");
    must(score_select_cuda(shape, second, select, s), "pages");
  });
}

void selection() {
  select_from(32, 8192 / 16, 0.3F);
  select_from(32, 8192, 0.1F);
  select_from(1, 4096 / 16, 0.3F);
  select_from(1, 65536, 0.05F);
}

/// A whole step with its boxes under an access-policy window, and without.
void l2_window() {
  Layer l(4, 16384, 16);
  Step st(l, 0.3F);
  int most = 0;
  must(cudaDeviceGetAttribute(&most, cudaDevAttrMaxPersistingL2CacheSize, 0), "attribute");
  const std::size_t box_bytes = l.entries.size() * 4 * kDim;
  Workspace w(l.shape);
  for (const bool window : {false, true, false, true}) {
    must(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize,
                            window ? static_cast<std::size_t>(most) : 0),
         "limit");
    const auto step = [&](cudaStream_t s) {
      cudaStreamAttrValue value{};
      value.accessPolicyWindow.base_ptr = st.boxes.get();
      value.accessPolicyWindow.num_bytes = window ? box_bytes : 0;
      value.accessPolicyWindow.hitRatio = 1.0F;
      value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
      value.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
      must(cudaStreamSetAttribute(s, cudaStreamAttributeAccessPolicyWindow, &value), "window");
      for (int i = 0; i < 4; ++i) {
        st.score_and_select(s);
        st.attend(s, {0, 1, true}, w);
        st.feedback(s);
      }
    };
    const Spread s = time_graph(step, 4);
    const double kv =
        std::ceil(0.3 * l.pages) * static_cast<double>(l.shape.groups()) * l.page_bytes();
    report->add({"step, boxes in L2", l.name(), window ? "window" : "no window", s.median, s.low,
                 s.high, kv + static_cast<double>(box_bytes), ceilings.hbm});
  }
  must(cudaCtxResetPersistingL2Cache(), "reset");
  must(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 0), "limit");  // others want all of L2
}

void steps() {
  step_of(16, 16384, 0.3F);
  step_of(32, 8192, 0.3F);
  step_of(1, 4096, 0.3F);
}

/// What programs that leave something out of attend are compared by (LEHR_ATTEND_BARE).
void cost() {
  for (const auto& [sequences, context] : {std::pair{32U, 8192U}, {8U, 32768U}}) {
    Layer l(sequences, context, 16);
    const auto pages = static_cast<double>(l.entries.size());
    for (const char* turn : {"", "again"})
      add(l, "cost dense", turn, time_attend(l, {}, true, nullptr), pages);
    add(l, "cost dense", "without (m, d)", time_attend(l, {}, false, nullptr), pages);
    for (const auto& [share, name] : {std::pair{0.3, "cost 30 %"}, {0.1, "cost 10 %"}}) {
      Choices c(l, share);
      for (const char* turn : {"", "again"})
        add(l, name, turn, time_attend(l, {}, true, &c),
            static_cast<double>(l.shape.groups()) * c.count);
    }
  }
}

/// New tokens of 64 sequences into pages, alone, with the conversion of pages that they complete in
/// the same launch (none, one sequence in 16, all), and with a launch of its own for that.
void append() {
  Layer l(64, 4096, 16);
  DeviceArray<std::uint16_t> k(l.shape.groups() * kDim), v(k.size());
  DeviceArray<std::uint16_t> boxes(l.entries.size() * 2 * kDim, 0);
  fill_random(k.get(), k.size() * 2, 41, nullptr);
  fill_random(v.get(), v.size() * 2, 42, nullptr);
  const PageFormat to = DType::kE4m3;
  const std::uint32_t pitch = slot_bytes(to, 16, kDim);
  DeviceArray<unsigned char> slots(l.shape.groups() * pitch);
  std::vector<std::uint64_t> address(l.shape.groups());
  for (std::size_t g = 0; g < address.size(); ++g)
    address[g] = reinterpret_cast<std::uint64_t>(slots.get()) + g * pitch;
  DeviceArray<std::uint64_t> completed(address);
  for (const std::uint32_t every : {0U, 16U, 1U}) {
    std::vector<std::uint32_t> lengths(64, 4090);
    std::vector<PageEntry> pages;
    std::vector<std::uint64_t> places;
    for (std::uint32_t b = 0; b < 64; ++b) {
      if (every == 0 || b % every != 0) continue;
      lengths[b] = 4096;
      for (std::size_t g = std::size_t{b} * kKvHeads; g < std::size_t{b + 1} * kKvHeads; ++g) {
        pages.push_back(l.entries[g * l.pages + l.pages - 1]);
        places.push_back(address[g]);
      }
    }
    l.lengths.put(lengths);
    AppendParams p;
    p.k = k.get();
    p.v = v.get();
    p.table = l.table.get();
    p.lengths = l.lengths.get();
    p.boxes = boxes.get();
    const std::string who = every == 0 ? "none" : every == 1 ? "all" : "one in 16";
    const auto part = [&](const std::string& variant, const std::function<void(cudaStream_t)>& f) {
      const Spread t = time_graph(
          [&](cudaStream_t stream) {
            for (int i = 0; i < 8; ++i) f(stream);
          },
          8);
      report->add({"append", "64x4K", variant + ", " + who + " completed", t.median, t.low, t.high,
                   static_cast<double>(k.size()) * 4, ceilings.hbm});
    };
    part("alone", [&](cudaStream_t s) { must(append_cuda(l.shape, p, s), "append"); });
    AppendParams with = p;
    with.completed = completed.get();
    with.to = to;
    part("converts to e4m3",
         [&](cudaStream_t s) { must(append_cuda(l.shape, with, s), "append"); });
    if (pages.empty()) continue;
    DeviceArray<PageEntry> sources(pages);
    DeviceArray<std::uint64_t> destinations(places);
    QuantizeParams q;
    q.sources = sources.get();
    q.destinations = destinations.get();
    q.count = static_cast<std::uint32_t>(pages.size());
    q.to = to;
    part("then a conversion", [&](cudaStream_t s) {
      must(append_cuda(l.shape, p, s), "append");
      must(quantize_cuda(l.shape, q, s), "quantize");
    });
  }
}

/// Pages that change memory and format in one crossing (convert_pages_cuda), both ways over the
/// host's link; the ceiling is the link's for the smaller form, which is what crosses.
void convert() {
  Layer wide(32, 4096, 16);
  const PageFormat small = DType::kE4m3;
  const std::uint32_t pitch = slot_bytes(small, 16, kDim);
  const std::size_t pages = wide.entries.size();
  unsigned char* pinned = nullptr;
  must(cudaHostAlloc(reinterpret_cast<void**>(&pinned), pages * pitch, cudaHostAllocDefault),
       "pinned");
  std::vector<std::uint64_t> out(pages), back(pages);
  std::vector<PageEntry> stored(pages);
  for (std::size_t i = 0; i < pages; ++i) {
    out[i] = reinterpret_cast<std::uint64_t>(pinned) + std::uint64_t{wide.order[i]} * pitch;
    stored[i] = make_entry(out[i], true, small);
    back[i] = entry_address(wide.entries[i]);
  }
  DeviceArray<std::uint64_t> to_host(out), to_hbm(back);
  DeviceArray<PageEntry> on_host(stored);
  const auto one = [&](const char* name, std::uint32_t ctas, const QuantizeParams& p) {
    const Spread t = time_graph(
        [&](cudaStream_t stream) {
          must(convert_pages_cuda(wide.shape, p, ctas, stream), "convert");
        },
        1);
    report->add({name, wide.name(), std::to_string(ctas) + " CTAs", t.median, t.low, t.high,
                 static_cast<double>(pages) * stored_page_bytes(small, 16, kDim), ceilings.link});
  };
  for (const std::uint32_t ctas : {8U, 16U, 32U, 64U}) {
    QuantizeParams p;
    p.count = static_cast<std::uint32_t>(pages);
    p.sources = wide.table.get();
    p.destinations = to_host.get();
    p.to = small;
    one("fp16 to e4m3 on the host", ctas, p);
    p.sources = on_host.get();
    p.destinations = to_hbm.get();
    p.to = DType::kF16;
    one("e4m3 on the host to fp16", ctas, p);
  }
  must(cudaFreeHost(pinned), "free");
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
  const std::pair<const char*, void (*)()> groups[] = {
      {"dense", dense},      {"selected", selected}, {"mixed", mixed_residency},
      {"e4m3", e4m3},        {"formats", formats},   {"selection", selection},
      {"window", l2_window}, {"steps", steps},       {"append", append},
      {"convert", convert},  {"cost", cost}};
  for (const auto& [name, run] : groups) {
    // Whoever compares programs by their cost runs each of them afresh, with nothing before it.
    bool wanted = argc == 2 && run != cost;
    for (int i = 2; i < argc; ++i)
      wanted = wanted || std::string_view(name).find(argv[i]) != std::string_view::npos;
    if (wanted) run();
  }
  return 0;
}
