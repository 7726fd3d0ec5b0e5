// SPDX-License-Identifier: Apache-2.0
#include <functional>

#include "kernels/quantize.hpp"
#include "tests/kernels/cuda/cases.hpp"
#include "tests/kernels/recorded.hpp"

namespace lehr::kernels::test {
namespace {

double relative_error(DType type, const std::vector<std::uint16_t>& got,
                      const std::vector<std::uint16_t>& want) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double g = load_16(type, got[i]), w = load_16(type, want[i]);
    if (std::isnan(g)) return INFINITY;
    difference += (g - w) * (g - w);
    size += w * w;
  }
  return size > 0 ? std::sqrt(difference / size) : std::sqrt(difference);
}

/// Weight of a pair against its total, in a form two correct kernels agree on.
double share(const SoftmaxPair& part, const SoftmaxPair& total) {
  return part.d > 0 ? part.d * std::exp2(double{part.m} - double{total.m}) / total.d : 0.0;
}

/// Runs both forms over the same pages and compares everything they write.
void compare_attend(Batch& b, const AttendTuning& tuning, const Selected* selected,
                    std::function<void(AttendParams&)> change, double over_link, double limit) {
  const StepShape& shape = b.shape;
  DeviceBatch d(b);
  Rng rng(99);
  d.place([&](std::size_t) { return rng.uniform() < over_link; });
  const std::size_t pitch = selected != nullptr ? selected->pitch : shape.max_pages;
  std::vector<SoftmaxPair> pairs(shape.groups() * pitch * shape.rows(), {NAN, NAN}),
      totals(shape.groups() * shape.rows(), {NAN, NAN});
  DeviceArray<SoftmaxPair> device_pairs(pairs), device_totals(totals);
  DeviceArray<std::uint32_t> list, counts;
  AttendParams hp = b.params(), dp = d.params();
  hp.pairs = pairs.data();
  hp.totals = totals.data();
  dp.pairs = device_pairs.get();
  dp.totals = device_totals.get();
  if (selected != nullptr) {
    list = DeviceArray<std::uint32_t>(selected->list);
    counts = DeviceArray<std::uint32_t>(selected->counts);
    hp.selection = selected->list.data();
    hp.counts = selected->counts.data();
    dp.selection = list.get();
    dp.counts = counts.get();
    hp.selection_pitch = dp.selection_pitch = selected->pitch;
  }
  change(hp);
  change(dp);
  must(attend_reference(shape, hp), "reference");
  Workspace w(shape);
  for (int round = 0; round < 2; ++round) {  // twice: the scratch must be left as it was found
    d.out.fill(0xFF);
    device_pairs.fill(0xFF);
    must(attend_cuda(shape, dp, tuning, w.memory.get(), w.memory.size(), nullptr), "attend_cuda");
    const double error = relative_error(shape.dtype, d.out.fetch(), b.out);
    check(error <= limit, described(shape) + ": relative error " + std::to_string(error));
  }
  const auto got_pairs = device_pairs.fetch();
  const auto got_totals = device_totals.fetch();
  double worst = 0;
  for (std::size_t g = 0; g < shape.groups(); ++g) {
    const std::uint32_t pages =
        selected != nullptr ? selected->counts[g] : shape.pages_for(b.lengths[g / shape.kv_heads]);
    for (std::uint32_t r = 0; r < shape.rows(); ++r) {
      const SoftmaxPair &gt = got_totals[g * shape.rows() + r], &wt = totals[g * shape.rows() + r];
      if (wt.d == 0) {
        check(gt.d == 0, described(shape) + ": an empty total");
      } else {
        const double ratio = gt.d * std::exp2(double{gt.m} - double{wt.m}) / wt.d;
        check(std::fabs(ratio - 1) < (shape.dtype == DType::kF16 ? 2e-3 : 1e-2),
              described(shape) + ": total off by " + std::to_string(ratio - 1));
      }
      for (std::uint32_t i = 0; i < pages; ++i) {
        const std::size_t at = (g * pitch + i) * shape.rows() + r;
        const double difference = std::fabs(share(got_pairs[at], gt) - share(pairs[at], wt));
        worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
      }
    }
  }
  check(worst < 4e-3, described(shape) + ": page share off by " + std::to_string(worst));
}

std::vector<std::uint32_t> ragged(const StepShape& s) {
  const std::uint32_t most = s.max_pages * s.page_tokens;
  return {0,   1, s.page_tokens - 1, s.page_tokens, s.page_tokens + 1, 333 % most, most / 2 + 3,
          most};
}

/// A batch with some pages rewritten in other formats; keeps their memory.
struct Rewritten {
  Batch batch;
  std::unique_ptr<unsigned char[], FreeAligned> memory;

  /// `format_of(i)` names the format of page i.
  template <class FormatOf>
  Rewritten(Batch from, FormatOf&& format_of) : batch(std::move(from)) {
    const StepShape& s = batch.shape;
    const std::uint32_t bytes = slot_bytes(s.dtype, s.page_tokens, s.head_dim);
    memory.reset(new (std::align_val_t{128}) unsigned char[batch.table.size() * bytes]);
    for (std::size_t i = 0; i < batch.table.size(); ++i) {
      const PageFormat format = format_of(i);
      if (batch.table[i] == kAbsentPage || format == PageFormat(s.dtype)) continue;
      std::uint64_t to = reinterpret_cast<std::uint64_t>(memory.get()) + i * bytes;
      QuantizeParams qp;
      qp.sources = &batch.table[i];
      qp.destinations = &to;
      qp.count = 1;
      qp.to = format;
      must(quantize_reference(s, qp), "quantize");
      batch.table[i] = make_entry(to, false, format);
    }
  }
};

}  // namespace

void attend_shapes() {
  std::uint64_t seed = 1;
  for (const DType dtype : {DType::kF16, DType::kBf16}) {
    for (const std::uint32_t dim : {64U, 128U, 256U}) {
      for (const std::uint32_t page : {16U, 32U, 64U}) {
        for (const std::uint32_t ratio : {1U, 3U, 4U, 8U, 16U}) {
          for (const std::uint32_t q_len : {1U, 2U, 8U}) {
            if (ratio * q_len > (dim == 256 ? 32U : 64U)) continue;
            if (quick &&
                (dtype != DType::kF16 || dim != 128 || ratio * q_len % 4 != 0 || page == 32))
              continue;
            if (!quick && q_len == 8 && ratio % 3 == 1) continue;
            Batch b(shape_of(2 * ratio, 2, dim, page, (quick ? 256 : 384) / page, dtype, q_len), {},
                    seed);
            b = Batch(b.shape, ragged(b.shape), ++seed);
            compare_attend(
                b, {}, nullptr, [](AttendParams&) {}, 0.0, bound(dtype));
          }
        }
      }
    }
  }
}

void attend_selected() {
  for (const std::uint32_t page : {16U, 64U}) {
    Batch b(shape_of(8, 2, 128, page, 2048 / page), {1, 100}, 5);
    const Selected s = random_selection(b, 3);
    compare_attend(
        b, {}, &s, [](AttendParams&) {}, 0.0, 1e-3);
    compare_attend(
        b, {}, &s, [](AttendParams& p) { p.window = 500; }, 0.3, 1e-3);
    compare_attend(
        b, {}, &s, [](AttendParams& p) { p.soft_cap = 5; }, 0.0, 1e-3);
  }
}

void attend_splits() {
  // Long sequences: several segments a group, the ring goes round many times; few stages, several
  // CTAs a SM.
  Batch b(shape_of(8, 2, 128, 16, quick ? 64 : 512),
          {quick ? 1000U : 8000U, 40, quick ? 700U : 5000U}, 8);
  for (const AttendTuning& t :
       {AttendTuning{}, AttendTuning{2, 1}, AttendTuning{3, 1}, AttendTuning{5, 1, true}}) {
    compare_attend(
        b, t, nullptr, [](AttendParams&) {}, t.stages > 2 ? 0.2 : 0.0, 1e-3);
  }
  compare_attend(
      b, {3, 1}, nullptr, [](AttendParams&) {}, 1.0, 1e-3);
}

void attend_long_rings() {
  // Many tiles a CTA: the ring goes round often, and the same call must give the same bits whatever
  // the timing.
  if (quick) return;
  Batch b(shape_of(2, 2, 64, 16, 1024), {16384, 16384, 16384, 16000, 16384, 16384, 9000, 77}, 13);
  compare_attend(
      b, {}, nullptr, [](AttendParams&) {}, 0.02, 1e-3);
  DeviceBatch d(b);
  Workspace w(b.shape);
  std::vector<std::uint16_t> first;
  for (int round = 0; round < 20; ++round) {
    d.out.fill(0xFF);
    must(attend_cuda(b.shape, d.params(), {}, w.memory.get(), w.memory.size(), nullptr), "attend");
    if (round == 0) first = d.out.fetch();
    check(d.out.fetch() == first, "the same call gave another output");
  }
}

void attend_bit_identity() {
  for (const std::uint32_t page : {16U, 32U, 64U}) {
    Batch b(shape_of(8, 2, 128, page, 1024 / page), {1000, 40}, 8);
    DeviceBatch d(b);
    Rng rng(4);
    const AttendTuning tuning{3, 1};
    Workspace w(b.shape);
    cudaStream_t stream;
    must(cudaStreamCreate(&stream), "stream");
    must(attend_cuda(b.shape, d.params(), tuning, w.memory.get(), w.memory.size(), stream),
         "attend");
    const auto want = d.out.fetch();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    must(attend_cuda(b.shape, d.params(), tuning, w.memory.get(), w.memory.size(), stream),
         "attend captured");
    must(cudaStreamEndCapture(stream, &graph), "end capture");
    must(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    for (int round = 0; round < (quick ? 4 : 20); ++round) {
      const double away = round == 0 ? 0.0 : rng.uniform();
      d.place([&](std::size_t) { return rng.uniform() < away; });
      d.out.fill(0xFF);
      must(cudaGraphLaunch(exec, stream), "replay");
      check(d.out.fetch() == want,
            "replay over other residency differs, page " + std::to_string(page));
      d.out.fill(0xFF);
      must(attend_cuda(b.shape, d.params(), {5, 1}, w.memory.get(), w.memory.size(), stream),
           "attend");
      check(d.out.fetch() == want, "with more stages, page " + std::to_string(page));
    }
    // Control: another page in the same place does change the output.
    d.place([&](std::size_t) { return false; });
    auto entries = d.table.fetch();
    std::swap(entries[0], entries[1]);
    entries[0] = entries[2];
    d.table.put(entries);
    must(cudaGraphLaunch(exec, stream), "replay");
    check(d.out.fetch() != want, "control: a wrong page went unseen");
    must(cudaGraphExecDestroy(exec), "destroy");
    must(cudaGraphDestroy(graph), "destroy");
    must(cudaStreamDestroy(stream), "destroy");
  }
}

void attend_odd_contents() {
  Batch clean(shape_of(8, 2, 128, 16, 64), {1000, 900}, 41),
      dirty(shape_of(8, 2, 128, 16, 64), {1000, 900}, 41);
  dirty.set(5, 0, 3, 5, NAN);
  dirty.set(64 + 5, 1, 3, 5, INFINITY);
  DeviceBatch a(clean), b(dirty);
  Workspace w(clean.shape);
  must(attend_cuda(clean.shape, a.params(), {}, w.memory.get(), w.memory.size(), nullptr),
       "attend");
  must(attend_cuda(clean.shape, b.params(), {}, w.memory.get(), w.memory.size(), nullptr),
       "attend");
  const auto good = a.out.fetch(), bad = b.out.fetch();
  const std::size_t per_sequence = 8 * 128;
  check(std::isnan(from_f16(bad[0])), "a NaN key shows in its own output");
  check(std::equal(bad.begin() + per_sequence, bad.end(), good.begin() + per_sequence),
        "NaN or Inf reached another sequence");
  // Absent pages count as empty, in both forms, and are counted.
  DeviceArray<std::uint32_t> absent(1, 0);
  clean.table[7] = clean.table[64 + 62] = kAbsentPage;
  auto entries = a.table.fetch();
  entries[7] = entries[64 + 62] = kAbsentPage;
  a.table.put(entries);
  AttendParams p = a.params();
  p.absent = absent.get();
  must(attend_cuda(clean.shape, p, {}, w.memory.get(), w.memory.size(), nullptr), "attend");
  must(attend_reference(clean.shape, clean.params()), "reference");
  check(relative_error(DType::kF16, a.out.fetch(), clean.out) <= 1e-3, "absent pages");
  check(absent.fetch()[0] == 2, "absent pages counted");
}

void attend_installs() {
  for (const std::uint32_t page : {16U, 64U}) {
    Batch b(shape_of(8, 2, 128, page, 1024 / page), {1000}, 12);
    DeviceBatch d(b);
    DeviceArray<unsigned char> slots(b.table.size() * d.pitch(), 0x5A);
    for (const std::uint32_t stages : {3U, 4U}) {
      Rng rng(17);
      std::vector<std::uint64_t> installs(b.table.size(), 0);
      const auto entries = d.place([&](std::size_t i) { return i % 3 == 0; });
      for (std::size_t i = 0; i < installs.size(); i += 6)
        installs[i] = reinterpret_cast<std::uint64_t>(slots.get()) + i * d.pitch();
      DeviceArray<std::uint64_t> device_installs(installs);
      slots.fill(0x5A);
      AttendParams p = d.params();
      p.installs = device_installs.get();
      const AttendTuning tuning{stages, 1};
      Workspace w(b.shape);
      must(attend_cuda(b.shape, p, tuning, w.memory.get(), w.memory.size(), nullptr), "attend");
      const auto got = slots.fetch();
      const std::size_t bytes = stored_page_bytes(DType::kF16, page, 128);
      for (std::size_t i = 0; i < installs.size(); ++i) {
        const unsigned char* slot = got.data() + i * d.pitch();
        if (installs[i] != 0 && entries[i] != kAbsentPage) {
          check(std::memcmp(slot, reinterpret_cast<void*>(entry_address(b.table[i])), bytes) == 0,
                "installed bytes of page " + std::to_string(i));
        } else {
          check(slot[0] == 0x5A && slot[bytes - 1] == 0x5A,
                "a slot that was not asked for was written");
        }
      }
    }
  }
}

/// Pages of every format, alone and mixed in one launch, in HBM and on the host.
void attend_formats() {
  struct Mix {
    const char* name;
    std::vector<PageFormat> of;  ///< page i has format i modulo its size
  };
  for (const DType dtype : {DType::kF16, DType::kBf16}) {
    const PageFormat e4m3 = DType::kE4m3, int8 = DType::kInt8;
    const PageFormat own = dtype, own_int8(dtype, DType::kInt8), own_e4m3(dtype, DType::kE4m3);
    const Mix mixes[] = {{"e4m3", {e4m3}},
                         {"16-bit and e4m3", {own, e4m3}},
                         {"int8", {int8}},
                         {"K 16-bit, V int8", {own_int8}},
                         {"all",
                          {own,
                           e4m3,
                           int8,
                           own_int8,
                           own_e4m3,
                           {DType::kInt8, DType::kE4m3},
                           {DType::kE4m3, DType::kInt8},
                           {DType::kInt8, dtype}}}};
    for (const std::uint32_t dim : {64U, 128U, 256U}) {
      for (const std::uint32_t page : {16U, 32U, 64U}) {
        for (const Mix& mix : mixes) {
          if (quick && (dtype == DType::kBf16 || dim != 128 || page == 32)) continue;
          const std::uint32_t ratio = mix.of.size() % 2 == 0 ? 4 : 12;
          Batch plain(shape_of(2 * ratio, 2, dim, page, 1024 / page, dtype), {1024, 640, page}, 77);
          for (auto& q : plain.q) q = store_16(dtype, load_16(dtype, q) / 2);
          Rewritten r(std::move(plain), [&](std::size_t i) { return mix.of[i % mix.of.size()]; });
          std::uint32_t formats = 0;
          for (const PageFormat f : mix.of) {
            formats |= 1U << static_cast<unsigned>(f.k) | 1U << static_cast<unsigned>(f.v);
          }
          for (const AttendTuning& tuning : {AttendTuning{}, AttendTuning{2, 1}}) {
            const int before = failures;
            compare_attend(
                r.batch, tuning, nullptr, [&](AttendParams& p) { p.formats = formats; }, 0.2,
                bound(dtype));
            if (failures != before) std::printf("  with %s pages\n", mix.name);
          }
        }
      }
    }
  }
}

/// Recorded q, k and v, in each format, over mixed residency.
void attend_recorded() {
  if (recorded == nullptr) {
    std::printf("no --recorded FILE: ");
    return;
  }
  const PageFormat formats[] = {
      DType::kF16, DType::kE4m3, DType::kInt8, {DType::kF16, DType::kInt8}};
  for (const PageFormat format : formats) {
    auto batch = read_recorded(recorded);
    check(batch.has_value(), "the file cannot be read");
    if (!batch) return;
    Rewritten r(std::move(*batch), [&](std::size_t) { return format; });
    const std::uint32_t bits =
        1U << static_cast<unsigned>(format.k) | 1U << static_cast<unsigned>(format.v);
    compare_attend(
        r.batch, {}, nullptr, [&](AttendParams& p) { p.formats = bits; }, 0.05, 1e-3);
  }
}

}  // namespace lehr::kernels::test
