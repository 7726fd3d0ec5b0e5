// SPDX-License-Identifier: Apache-2.0
// A sparse step as one launch against the same step in parts: every bit must be the same, eagerly
// and replayed, while residency changes between replays.
#include "tests/kernels/cuda/one_launch.hpp"

#include <cstring>
#include <string>

#include "kernels/boxes.hpp"
#include "kernels/sparse_step.hpp"
#include "tests/kernels/cuda/device.hpp"

namespace lehr::kernels::test {
namespace {

/// What a step writes.
struct Written {
  DeviceArray<std::uint16_t> out;
  DeviceArray<std::uint32_t> list, counts;
  DeviceArray<SoftmaxPair> pairs, totals;
  DeviceArray<PageHeat> heat;
  DeviceArray<Miss> misses;
  DeviceArray<std::uint32_t> counters;
  DeviceArray<std::uint64_t> installs;

  explicit Written(const Batch& b)
      : out(b.q.size()),
        list(b.table.size(), 0),
        counts(b.shape.groups(), 0),
        pairs(b.table.size() * b.shape.rows(), 0),
        totals(b.shape.groups() * b.shape.rows(), 0),
        heat(b.table.size(), 0),
        misses(4096, 0),
        counters(std::size_t{4}, 0),
        installs(b.table.size(), 0) {}
};

SparseStep step_of(const Batch& b, const DeviceBatch& d, Written& w, const std::uint16_t* boxes,
                   const std::uint32_t* number, SelectBy by, float amount) {
  SparseStep step;
  step.score.q = d.q.get();
  step.score.boxes = boxes;
  step.score.lengths = d.lengths.get();
  step.select.selection = w.list.get();
  step.select.counts = w.counts.get();
  step.select.lengths = d.lengths.get();
  step.select.pitch = b.shape.max_pages;
  step.select.by = by;
  step.select.count = by == SelectBy::kCount ? static_cast<std::uint32_t>(amount * 40) : 100000;
  step.select.ratio = amount;
  step.resolve.table = d.table.get();
  step.resolve.lengths = d.lengths.get();
  step.resolve.selection = w.list.get();
  step.resolve.counts = w.counts.get();
  step.resolve.selection_pitch = b.shape.max_pages;
  step.resolve.misses = w.misses.get();
  step.resolve.counters = reinterpret_cast<ResolveCounters*>(w.counters.get());
  step.resolve.miss_capacity = 4096;
  step.resolve.installs = w.installs.get();
  step.attend = d.params();
  step.attend.out = w.out.get();
  step.attend.selection = w.list.get();
  step.attend.counts = w.counts.get();
  step.attend.selection_pitch = b.shape.max_pages;
  step.attend.pairs = w.pairs.get();
  step.attend.totals = w.totals.get();
  step.attend.installs = w.installs.get();
  step.feedback.pairs = w.pairs.get();
  step.feedback.totals = w.totals.get();
  step.feedback.lengths = d.lengths.get();
  step.feedback.selection = w.list.get();
  step.feedback.counts = w.counts.get();
  step.feedback.selection_pitch = b.shape.max_pages;
  step.feedback.step = number;
  step.feedback.heat = w.heat.get();
  return step;
}

Status in_parts(const StepShape& s, const SparseStep& step, Workspace& w, cudaStream_t stream) {
  LEHR_TRY(score_select_cuda(s, step.score, step.select, stream));
  LEHR_TRY(resolve_cuda(s, step.resolve, stream));
  LEHR_TRY(attend_cuda(s, step.attend, {}, w.memory.get(), w.memory.size(), stream));
  return feedback_cuda(s, step.feedback, stream);
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b, std::size_t first,
               std::size_t count) {
  return std::memcmp(a.data() + first, b.data() + first, count * sizeof(T)) == 0;
}

/// The first thing that differs, or nothing.
std::string difference(const Batch& b, const Written& x, const Written& y) {
  const auto counts = x.counts.fetch();
  if (counts != y.counts.fetch()) return "counts";
  const auto list_x = x.list.fetch(), list_y = y.list.fetch();
  const auto pairs_x = x.pairs.fetch(), pairs_y = y.pairs.fetch();
  const std::uint32_t pitch = b.shape.max_pages, rows = b.shape.rows();
  for (std::size_t g = 0; g < counts.size(); ++g) {
    if (!same_bits(list_x, list_y, g * pitch, counts[g])) return "lists";
    if (!same_bits(pairs_x, pairs_y, g * pitch * rows, std::size_t{counts[g]} * rows))
      return "pairs";
  }
  if (x.out.fetch() != y.out.fetch()) return "output";
  const auto totals_x = x.totals.fetch(), totals_y = y.totals.fetch();
  if (!same_bits(totals_x, totals_y, 0, totals_x.size())) return "totals";
  const auto heat_x = x.heat.fetch(), heat_y = y.heat.fetch();
  if (!same_bits(heat_x, heat_y, 0, heat_x.size())) return "heat";
  const auto counters_x = x.counters.fetch(), counters_y = y.counters.fetch();
  return counters_x == counters_y ? "" : "counters of misses";
}

/// A captured launch.
class Captured {
 public:
  template <class Launch>
  explicit Captured(Launch&& launch) {
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    must(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "capture");
    must(launch(stream_), "captured launch");
    cudaGraph_t graph = nullptr;
    must(cudaStreamEndCapture(stream_, &graph), "end of capture");
    must(cudaGraphInstantiate(&exec_, graph, 0), "instantiate");
    must(cudaGraphDestroy(graph), "graph");
  }
  Captured(const Captured&) = delete;
  ~Captured() {
    (void)cudaGraphExecDestroy(exec_);
    (void)cudaStreamDestroy(stream_);
  }
  void replay() const {
    must(cudaGraphLaunch(exec_, stream_), "replay");
    must(cudaStreamSynchronize(stream_), "replay");
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

int compare(Batch& b, SelectBy by, float amount, const std::string& name) {
  DeviceBatch d(b);
  DeviceArray<std::uint16_t> boxes(b.table.size() * 2 * b.shape.head_dim, 0);
  BoxesParams p;
  p.table = d.table.get();
  p.lengths = d.lengths.get();
  p.boxes = boxes.get();
  must(boxes_cuda(b.shape, p, nullptr), "boxes");
  Workspace parts_scratch(b.shape), scratch(b.shape);
  Written parts(b), together(b);
  DeviceArray<std::uint32_t> number(std::vector<std::uint32_t>{1});
  const SparseStep separate = step_of(b, d, parts, boxes.get(), number.get(), by, amount);
  const SparseStep one = step_of(b, d, together, boxes.get(), number.get(), by, amount);
  const auto launch = [&](cudaStream_t stream) {
    return sparse_step_cuda(b.shape, one, {}, scratch.memory.get(), scratch.memory.size(), stream);
  };
  int failures = 0;
  const auto check = [&](const char* how) {
    const std::string what = difference(b, parts, together);
    if (what.empty()) return;
    ++failures;
    std::printf("FAILED one launch: %s, %s: %s differ\n", name.c_str(), how, what.c_str());
  };
  must(in_parts(b.shape, separate, parts_scratch, nullptr), "parts");
  must(launch(nullptr), "one launch");
  check("eager");
  const Captured captured(launch);
  Rng rng(5);
  for (std::uint32_t round = 2; round < 5; ++round) {
    d.place([&](std::size_t) { return rng.uniform() < 0.3; });
    number.put({round});
    together.out.fill(0xFF);
    must(in_parts(b.shape, separate, parts_scratch, nullptr), "parts");
    must(cudaDeviceSynchronize(), "parts");
    captured.replay();
    check("replayed");
  }
  return failures;
}

int refusals() {
  Batch b(shape_of(8, 2, 256, 16, 8), {100}, 3);
  DeviceBatch d(b);
  Workspace w(b.shape);
  Written written(b);
  DeviceArray<std::uint16_t> boxes(b.table.size() * 512, 0);
  DeviceArray<std::uint32_t> number(std::vector<std::uint32_t>{1});
  const SparseStep step = step_of(b, d, written, boxes.get(), number.get(), SelectBy::kRatio, 0.5F);
  const auto refused = [&](const StepShape& shape, const SparseStep& s, const AttendTuning& t) {
    const Status status = sparse_step_cuda(shape, s, t, w.memory.get(), w.memory.size(), nullptr);
    return !status && !status.error().what.empty();
  };
  int failures = 0;
  const auto check = [&](bool good, const char* what) {
    if (good) return;
    ++failures;
    std::printf("FAILED one launch: %s is not refused\n", what);
  };
  check(refused(b.shape, step, {}), "head_dim 256");
  StepShape narrow = b.shape;
  narrow.head_dim = 128;
  SparseStep wrong = step;
  wrong.attend.formats = 1U << static_cast<unsigned>(DType::kE4m3);
  check(refused(narrow, wrong, {}), "e4m3 pages");
  check(refused(narrow, step, {0, 2}), "two CTAs a SM");
  wrong = step;
  wrong.attend.counts = nullptr;
  check(refused(narrow, wrong, {}), "attend over another list");
  narrow.max_pages = kMaxPages;
  wrong = step;
  wrong.select.pitch = wrong.attend.selection_pitch = wrong.resolve.selection_pitch =
      wrong.feedback.selection_pitch = kMaxPages;
  check(refused(narrow, wrong, {}), "a million tokens a sequence");
  check(cudaGetLastError() == cudaSuccess, "refusals that leave no CUDA error: otherwise nothing");
  return failures;
}

}  // namespace

int one_launch_failures(bool quick) {
  int failures = refusals();
  for (const DType dtype : {DType::kF16, DType::kBf16}) {
    for (const std::uint32_t dim : {64U, 128U}) {
      for (const std::uint32_t ratio : {1U, 4U, 8U}) {
        if (quick && (dim != 128 || ratio != 4 || dtype != DType::kF16)) continue;
        const std::string name = std::string(lehr::name(dtype)) + " dim " + std::to_string(dim) +
                                 " ratio " + std::to_string(ratio);
        Batch b(shape_of(2 * ratio, 2, dim, ratio == 8 ? 32 : 16, quick ? 64 : 300, dtype),
                {0, 1, 17, 500, quick ? 1024U : 4790U}, 31);
        for (const auto& [by, amount] :
             {std::pair{SelectBy::kCount, 0.5F}, {SelectBy::kRatio, 0.3F}, {SelectBy::kMass, 0.9F}})
          failures += compare(b, by, amount, name);
      }
    }
  }
  // More groups than CTAs: some choose for several.
  std::vector<std::uint32_t> lengths;
  for (std::uint32_t i = 0; i < (quick ? 20U : 80U); ++i) lengths.push_back(37 * i % 700);
  Batch many(shape_of(32, 8, 128, 16, 44), lengths, 8);
  return failures + compare(many, SelectBy::kRatio, 0.3F, "many groups");
}

}  // namespace lehr::kernels::test
