// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels against the reference. Exits 0 when all agree, 1 on any difference, 77 without a
// device. Arguments: words that a case's name must contain; `--quick` keeps cases small (for the
// sanitizers).

#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

#include "kernels/append.hpp"
#include "kernels/boxes.hpp"
#include "kernels/feedback.hpp"
#include "kernels/quantize.hpp"
#include "kernels/resolve.hpp"
#include "kernels/score_select.hpp"
#include "tests/kernels/cuda/device.hpp"
#include "tests/kernels/recorded.hpp"

using namespace lehr;
using namespace lehr::kernels;
using namespace lehr::kernels::test;

namespace {

int failures = 0;
bool quick = false;
const char* recorded = nullptr;
std::string current;

void check(bool good, const std::string& what) {
  if (good) return;
  ++failures;
  if (failures <= 60) std::printf("FAILED %s: %s\n", current.c_str(), what.c_str());
}

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

double bound(DType type) { return type == DType::kF16 ? 1e-3 : 6e-3; }

std::string described(const StepShape& s) {
  return std::string(name(s.dtype)) + " dim " + std::to_string(s.head_dim) + " page " +
         std::to_string(s.page_tokens) + " heads " + std::to_string(s.q_heads) + "/" +
         std::to_string(s.kv_heads) + " q_len " + std::to_string(s.q_len);
}

/// Weight of a pair against its total, in a form two correct kernels agree on.
double share(const SoftmaxPair& part, const SoftmaxPair& total) {
  return part.d > 0 ? part.d * std::exp2(double{part.m} - double{total.m}) / total.d : 0.0;
}

struct Selected {
  std::vector<std::uint32_t> list, counts;
  std::uint32_t pitch = 0;
};

/// A random ascending selection of about a third of the pages, the tail always in.
Selected random_selection(const Batch& b, std::uint64_t seed) {
  Rng rng(seed);
  Selected s;
  s.pitch = b.shape.max_pages;
  s.list.assign(b.shape.groups() * s.pitch, 0xFFFFFFFF);
  s.counts.assign(b.shape.groups(), 0);
  for (std::size_t g = 0; g < b.shape.groups(); ++g) {
    const std::uint32_t pages = b.shape.pages_for(b.lengths[g / b.shape.kv_heads]);
    for (std::uint32_t p = 0; p < pages; ++p) {
      if (p + 1 == pages || rng.below(3) == 0) s.list[g * s.pitch + s.counts[g]++] = p;
    }
  }
  return s;
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

/// NaN patterns may differ between machines: one value of a page that has one.
std::size_t differing(const std::vector<unsigned char>& got,
                      const std::vector<unsigned char>& want) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < got.size(); ++i) n += got[i] != want[i] ? 1 : 0;
  return n;
}

/// Pages from HBM and from the host into HBM and to the host by `ctas` CTAs, each page to a place
/// of its own; the lists lie in host memory. Bits are those of the reference, and what is absent or
/// has no destination leaves its place as it was.
void converted_by_movers(const Batch& b, DeviceBatch& d, PageFormat to,
                         const std::vector<unsigned char>& want, std::uint32_t ctas) {
  const std::size_t pages = b.table.size();
  const std::uint32_t pitch = slot_bytes(to, b.shape.page_tokens, b.shape.head_dim);
  unsigned char* pinned = nullptr;
  must(cudaHostAlloc(reinterpret_cast<void**>(&pinned), pages * pitch, cudaHostAllocDefault),
       "pinned");
  std::memset(pinned, 0xEE, pages * pitch);
  DeviceArray<unsigned char> device(pages * pitch, 0xEE);
  std::vector<PageEntry> sources = d.place([](std::size_t i) { return i % 3 == 1; });
  std::vector<std::uint64_t> places(pages);
  for (std::size_t i = 0; i < pages; ++i) {
    const unsigned char* base = i % 2 == 0 ? device.get() : pinned;
    places[i] = reinterpret_cast<std::uint64_t>(base) + i * pitch;
  }
  sources[7] = kAbsentPage;
  places[12] = 0;
  PageEntry* listed = nullptr;
  std::uint64_t* destinations = nullptr;
  must(cudaHostAlloc(reinterpret_cast<void**>(&listed), pages * 8, cudaHostAllocDefault), "list");
  must(cudaHostAlloc(reinterpret_cast<void**>(&destinations), pages * 8, cudaHostAllocDefault),
       "list");
  std::copy(sources.begin(), sources.end(), listed);
  std::copy(places.begin(), places.end(), destinations);
  QuantizeParams p;
  p.sources = listed;
  p.destinations = destinations;
  p.count = static_cast<std::uint32_t>(pages);
  p.to = to;
  must(convert_pages_cuda(b.shape, p, ctas, nullptr), "convert");
  std::vector<unsigned char> got = device.fetch();  // synchronises
  for (std::size_t i = 1; i < pages; i += 2)
    std::memcpy(got.data() + i * pitch, pinned + i * pitch, pitch);
  std::vector<unsigned char> expected = want;
  for (const std::size_t i : {7U, 12U})
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(i * pitch), pitch, 0xEE);
  const std::size_t different = differing(got, expected);
  check(different <= (element_bytes(to.v) == 2 ? 2U : 0U),
        "moved by " + std::to_string(ctas) + ", " + std::string(name(to.k)) + " and " + name(to.v) +
            ": " + std::to_string(different) + " bytes differ");
  for (void* memory :
       {static_cast<void*>(pinned), static_cast<void*>(listed), static_cast<void*>(destinations)})
    must(cudaFreeHost(memory), "free");
}

void quantize_bits() {
  for (const auto& [page, dim] : {std::pair{16U, 128U}, {64U, 128U}, {64U, 256U}, {32U, 64U}}) {
    Batch b(shape_of(1, 1, dim, page, 32), {32 * page}, 6);
    b.set(3, 0, 2, 1, INFINITY);
    b.set(4, 1, 2, 1, NAN);
    for (std::uint32_t t = 0; t < page; ++t) {
      for (std::uint32_t c = 0; c < dim; ++c) b.set(5, 0, t, c, 0);
    }
    DeviceBatch d(b);
    for (const PageFormat to :
         {PageFormat(DType::kE4m3), PageFormat(DType::kInt8), PageFormat(DType::kBf16),
          PageFormat(DType::kF16), PageFormat(DType::kF16, DType::kInt8),
          PageFormat(DType::kInt8, DType::kE4m3), PageFormat(DType::kE4m3, DType::kBf16)}) {
      const std::uint32_t pitch = slot_bytes(to, page, dim);
      std::vector<unsigned char> host(32 * pitch, 0xEE);
      DeviceArray<unsigned char> device(32 * pitch, 0xEE);
      std::vector<std::uint64_t> host_to(32), device_to(32);
      for (std::size_t i = 0; i < 32; ++i) {
        host_to[i] = reinterpret_cast<std::uint64_t>(host.data()) + i * pitch;
        device_to[i] = reinterpret_cast<std::uint64_t>(device.get()) + i * pitch;
      }
      DeviceArray<std::uint64_t> destinations(device_to);
      d.place([](std::size_t) { return false; });
      QuantizeParams hp, dp;
      hp.sources = b.table.data();
      hp.destinations = host_to.data();
      dp.sources = d.table.get();
      dp.destinations = destinations.get();
      hp.count = dp.count = 32;
      hp.to = dp.to = to;
      must(quantize_reference(b.shape, hp), "quantize");
      must(quantize_cuda(b.shape, dp, nullptr), "quantize");
      const std::size_t different = differing(device.fetch(), host);
      check(different <= (element_bytes(to.v) == 2 ? 2U : 0U),
            std::string(name(to.k)) + " and " + name(to.v) + ": " + std::to_string(different) +
                " bytes differ");
      for (const std::uint32_t ctas : {1U, 5U, 40U}) converted_by_movers(b, d, to, host, ctas);
    }
  }
}

/// Pages that a mover made smaller come back in 16 bits as the reference widens them.
void widened_by_movers() {
  Batch b(shape_of(1, 1, 128, 16, 32), {512}, 8);
  DeviceBatch d(b);
  const std::uint32_t small = slot_bytes(DType::kE4m3, 16, 128),
                      wide = slot_bytes(DType::kF16, 16, 128);
  std::vector<unsigned char> narrow(32 * small + kPageAlignment), back(32 * wide);
  DeviceArray<unsigned char> d_narrow(32 * small), d_back(32 * wide);
  std::vector<std::uint64_t> to_narrow(32), to_back(32), d_to_narrow(32), d_to_back(32);
  std::vector<PageEntry> from_narrow(32), d_from_narrow(32);
  const std::uint64_t aligned =
      (reinterpret_cast<std::uint64_t>(narrow.data()) + kPageAlignment - 1) / kPageAlignment *
      kPageAlignment;
  for (std::size_t i = 0; i < 32; ++i) {
    to_narrow[i] = aligned + i * small;
    to_back[i] = reinterpret_cast<std::uint64_t>(back.data()) + i * wide;
    d_to_narrow[i] = reinterpret_cast<std::uint64_t>(d_narrow.get()) + i * small;
    d_to_back[i] = reinterpret_cast<std::uint64_t>(d_back.get()) + i * wide;
    from_narrow[i] = make_entry(to_narrow[i], false, DType::kE4m3);
    d_from_narrow[i] = make_entry(d_to_narrow[i], false, DType::kE4m3);
  }
  DeviceArray<std::uint64_t> dn(d_to_narrow), db(d_to_back);
  DeviceArray<PageEntry> df(d_from_narrow);
  const auto both = [&](const PageEntry* from, const std::uint64_t* to, const PageEntry* d_from,
                        const std::uint64_t* d_to, PageFormat format) {
    QuantizeParams p;
    p.count = 32;
    p.to = format;
    p.sources = from;
    p.destinations = to;
    must(quantize_reference(b.shape, p), "quantize");
    p.sources = d_from;
    p.destinations = d_to;
    must(convert_pages_cuda(b.shape, p, 3, nullptr), "convert");
  };
  both(b.table.data(), to_narrow.data(), d.table.get(), dn.get(), DType::kE4m3);
  both(from_narrow.data(), to_back.data(), df.get(), db.get(), DType::kF16);
  check(differing(d_back.fetch(), back) == 0, "e4m3 pages widened by a mover");
}

/// boxes, score, select, resolve, append, feedback on one batch, each against the reference on the
/// same input.
void sparse_step() {
  for (const DType dtype : {DType::kF16, DType::kBf16}) {
    for (const std::uint32_t dim : {64U, 128U, 256U}) {
      for (const std::uint32_t ratio : {1U, 4U, 12U}) {
        if (quick && (dim != 128 || ratio != 4)) continue;
        Batch b(shape_of(2 * ratio, 2, dim, 16, quick ? 64 : 300, dtype),
                {0, 1, 17, 500, quick ? 1024U : 4800U}, 31);
        b.set(2 * (quick ? 64 : 300) * 3 + 4, 0, 3, 7, NAN);
        DeviceBatch d(b);
        const StepShape& s = b.shape;
        const std::size_t pages = b.table.size();
        std::vector<std::uint16_t> boxes(pages * 2 * dim, 0);
        DeviceArray<std::uint16_t> device_boxes(boxes);
        BoxesParams hb, db;
        hb.table = b.table.data();
        hb.lengths = b.lengths.data();
        hb.boxes = boxes.data();
        db.table = d.table.get();
        db.lengths = d.lengths.get();
        db.boxes = device_boxes.get();
        must(boxes_reference(s, hb), "boxes");
        must(boxes_cuda(s, db, nullptr), "boxes");
        const auto got_boxes = device_boxes.fetch();
        std::size_t different = 0;
        for (std::size_t i = 0; i < boxes.size(); ++i) {
          different += load_16(dtype, got_boxes[i]) == load_16(dtype, boxes[i]) ? 0 : 1;
        }
        check(different == 0, described(s) + ": " + std::to_string(different) + " box ends differ");

        for (const float spread : {1.0F, 0.5F}) {
          std::vector<float> scores(pages, -7);
          DeviceArray<float> device_scores(scores);
          ScoreParams hs, ds;
          hs.q = b.q.data();
          hs.boxes = boxes.data();
          hs.lengths = b.lengths.data();
          hs.scores = scores.data();
          ds.q = d.q.get();
          ds.boxes = device_boxes.get();
          ds.lengths = d.lengths.get();
          ds.scores = device_scores.get();
          hs.spread = ds.spread = spread;
          must(score_reference(s, hs), "score");
          must(score_cuda(s, ds, nullptr), "score");
          const auto got = device_scores.fetch();
          double worst = 0;
          std::size_t below = 0;
          for (std::size_t i = 0; i < pages; ++i) {
            if (got[i] == scores[i]) continue;
            worst = std::max(worst, std::fabs(double{got[i]} - double{scores[i]}) /
                                        (1 + std::fabs(double{scores[i]})));
            below += got[i] < scores[i] ? 1 : 0;
          }
          check(worst < (spread == 1.0F         ? 2e-2
                         : dtype == DType::kF16 ? 4e-3
                                                : 3e-2),
                described(s) + ": scores off by " + std::to_string(worst));
          if (spread == 1.0F)
            check(below == 0,
                  described(s) + ": " + std::to_string(below) + " scores below the bound");
          if (spread != 1.0F) continue;
          // The same scores for both: the selection must be equal.
          for (const SelectBy by : {SelectBy::kCount, SelectBy::kRatio, SelectBy::kMass}) {
            for (const float amount : {0.0F, 0.1F, 0.5F, 1.0F}) {
              auto tied = got;
              for (std::size_t i = 0; i < tied.size(); i += 3) tied[i] = std::round(tied[i]);
              device_scores.put(tied);
              SelectParams hp, dp;
              hp.by = by;
              hp.count = by == SelectBy::kCount ? static_cast<std::uint32_t>(amount * 200) : 100000;
              hp.ratio = amount;
              hp.pitch = s.max_pages;
              hp.sinks = 2;
              hp.recent = 3;
              hp.lengths = b.lengths.data();
              dp = hp;
              std::vector<std::uint32_t> list(pages, 7), counts(s.groups(), 9);
              DeviceArray<std::uint32_t> device_list(list), device_counts(counts);
              hp.scores = tied.data();
              hp.selection = list.data();
              hp.counts = counts.data();
              dp.scores = device_scores.get();
              dp.lengths = d.lengths.get();
              dp.selection = device_list.get();
              dp.counts = device_counts.get();
              must(select_reference(s, hp), "select");
              must(select_cuda(s, dp, nullptr), "select");
              const auto got_counts = device_counts.fetch();
              if (by == SelectBy::kMass) {  // a sum at the very edge may round the other way
                for (std::size_t g = 0; g < counts.size(); ++g) {
                  check(
                      std::abs(static_cast<int>(got_counts[g]) - static_cast<int>(counts[g])) <= 1,
                      described(s) + ": mass target takes " + std::to_string(got_counts[g]) +
                          " pages for " + std::to_string(counts[g]));
                }
              } else {
                check(got_counts == counts && device_list.fetch() == list,
                      described(s) + ": selection differs, amount " + std::to_string(amount));
              }
            }
          }
        }
      }
    }
  }
}

/// score and select in one launch against the two references, for one CTA a group and for clusters,
/// at one level and over the blocks that a first level chose.
void fused_selection() {
  struct Case {
    std::uint32_t sequences, pages, dim, ratio;
    DType dtype;
  };
  const Case cases[] = {{2, 300, 128, 4, DType::kF16},
                        {2, 64, 64, 1, DType::kBf16},
                        {1, 1100, 128, 4, DType::kBf16},
                        {1, 700, 256, 12, DType::kF16},
                        {1, 20000, 64, 4, DType::kF16}};
  for (const Case& c : cases) {
    if (quick && c.pages > 1100) continue;
    StepShape s = shape_of(2 * c.ratio, 2, c.dim, 16, c.pages, c.dtype);
    s.sequences = c.sequences;
    Rng rng(c.pages);
    std::vector<std::uint32_t> lengths = {c.pages * 16 - 5, 33};
    lengths.resize(c.sequences);
    std::vector<std::uint16_t> q(std::size_t{s.sequences} * s.q_heads * c.dim),
        boxes(s.groups() * c.pages * 2 * c.dim);
    for (auto& x : q) x = store_16(c.dtype, gaussian(rng));
    for (std::size_t box = 0; box < boxes.size(); box += 2 * c.dim) {
      for (std::uint32_t i = 0; i < c.dim; ++i) {
        const float middle = gaussian(rng), half = static_cast<float>(rng.uniform());
        boxes[box + i] = store_16(c.dtype, middle - half);
        boxes[box + c.dim + i] = store_16(c.dtype, middle + half);
      }
    }
    DeviceArray<std::uint16_t> dq(q), dboxes(boxes);
    DeviceArray<std::uint32_t> dl(lengths);

    CoarseParams hc, dc;
    hc.boxes = boxes.data();
    hc.lengths = lengths.data();
    const std::uint32_t blocks = hc.blocks(s);
    std::vector<std::uint16_t> coarse(s.groups() * blocks * 2 * c.dim, 0);
    std::vector<std::uint32_t> coarse_lengths(s.sequences);
    DeviceArray<std::uint16_t> dcoarse(coarse);
    DeviceArray<std::uint32_t> dcl(coarse_lengths);
    hc.coarse = coarse.data();
    hc.coarse_lengths = coarse_lengths.data();
    dc = hc;
    dc.boxes = dboxes.get();
    dc.lengths = dl.get();
    dc.coarse = dcoarse.get();
    dc.coarse_lengths = dcl.get();
    must(coarse_reference(s, hc), "coarse");
    must(coarse_cuda(s, dc, nullptr), "coarse");
    check(dcoarse.fetch() == coarse && dcl.fetch() == coarse_lengths, "coarse boxes differ");
    StepShape level = s;
    level.max_pages = blocks;
    ScoreParams over;
    over.q = dq.get();
    over.boxes = dcoarse.get();
    over.lengths = dcl.get();
    SelectParams of_blocks;
    std::vector<std::uint32_t> block_list(s.groups() * blocks, 7), block_counts(s.groups(), 7);
    DeviceArray<std::uint32_t> dblocks(block_list), dblock_counts(block_counts);
    of_blocks.selection = dblocks.get();
    of_blocks.counts = dblock_counts.get();
    of_blocks.pitch = blocks;
    of_blocks.recent = 1;
    of_blocks.ratio = 0.4F;
    must(score_select_cuda(level, over, of_blocks, nullptr), "blocks");
    block_list = dblocks.fetch();
    block_counts = dblock_counts.fetch();

    for (const bool two_levels : {false, true}) {
      for (const SelectBy by : {SelectBy::kCount, SelectBy::kRatio, SelectBy::kMass}) {
        for (const float amount : {0.05F, 0.3F, 0.9F}) {
          std::vector<float> scores(s.groups() * c.pages, -7);
          DeviceArray<float> ds(scores);
          std::vector<std::uint32_t> list(s.groups() * c.pages, 7), counts(s.groups(), 9);
          DeviceArray<std::uint32_t> dlist(list), dcounts(counts), again(list),
              again_counts(counts);
          ScoreParams score;
          score.q = dq.get();
          score.boxes = dboxes.get();
          score.lengths = dl.get();
          score.scores = ds.get();
          if (two_levels) {
            score.blocks = dblocks.get();
            score.block_counts = dblock_counts.get();
            score.block_pages = 16;
            score.block_pitch = blocks;
          }
          SelectParams select;
          select.by = by;
          select.count = by == SelectBy::kCount ? static_cast<std::uint32_t>(amount * 200) : 100000;
          select.ratio = amount;
          select.pitch = c.pages;
          select.selection = dlist.get();
          select.counts = dcounts.get();
          must(score_select_cuda(s, score, select, nullptr), "score and select");
          const auto got = ds.fetch();
          ScoreParams hs = score;
          hs.q = q.data();
          hs.boxes = boxes.data();
          hs.lengths = lengths.data();
          hs.scores = scores.data();
          hs.blocks = two_levels ? block_list.data() : nullptr;
          hs.block_counts = two_levels ? block_counts.data() : nullptr;
          must(score_reference(s, hs), "score");
          double worst = 0;
          bool bound = true;
          for (std::size_t i = 0; i < scores.size(); ++i) {
            if (got[i] == scores[i]) continue;
            worst = std::max(worst, std::fabs(double{got[i]} - double{scores[i]}) /
                                        (1 + std::fabs(double{scores[i]})));
            bound = bound && got[i] >= scores[i];
          }
          check(worst < 2e-2 && bound,
                described(s) + ": fused scores off by " + std::to_string(worst));
          // The same scores for both: the selection must be equal.
          SelectParams hp = select;
          hp.scores = got.data();
          hp.lengths = lengths.data();
          hp.selection = list.data();
          hp.counts = counts.data();
          must(select_reference(s, hp), "select");
          const auto got_counts = dcounts.fetch();
          if (by == SelectBy::kMass) {  // a sum at the very edge may round the other way
            for (std::size_t g = 0; g < counts.size(); ++g) {
              check(std::abs(static_cast<int>(got_counts[g]) - static_cast<int>(counts[g])) <= 1,
                    described(s) + ": fused mass target takes " + std::to_string(got_counts[g]) +
                        " pages for " + std::to_string(counts[g]));
            }
          } else {
            check(got_counts == counts && dlist.fetch() == list,
                  described(s) + ": fused selection differs, amount " + std::to_string(amount));
          }
          // Without the scores in memory, and as two launches: the same lists.
          score.scores = nullptr;
          select.selection = again.get();
          select.counts = again_counts.get();
          must(score_select_cuda(s, score, select, nullptr), "without scores");
          check(again_counts.fetch() == got_counts && again.fetch() == dlist.fetch(),
                "the list depends on whether scores are written");
          select.scores = ds.get();
          select.lengths = dl.get();
          must(select_cuda(s, select, nullptr), "select alone");
          check(again_counts.fetch() == got_counts && again.fetch() == dlist.fetch(),
                "two launches give another list");
        }
      }
    }
  }
}

void long_selection() {
  if (quick) return;
  StepShape s = shape_of(1, 1, 64, 16, 65536);
  s.sequences = 2;
  const std::vector<std::uint32_t> lengths = {65536 * 16, 40000 * 16 - 3};
  Rng rng(3);
  std::vector<float> scores(2 * 65536);
  for (float& x : scores) x = rng.below(5) == 0 ? 0.5F : gaussian(rng);
  std::vector<std::uint32_t> list(2 * 65536, 7), counts(2);
  DeviceArray<float> ds(scores);
  DeviceArray<std::uint32_t> dl(list), dc(counts), dn(lengths);
  SelectParams hp;
  hp.ratio = 0.1F;
  hp.pitch = 65536;
  hp.scores = scores.data();
  hp.lengths = lengths.data();
  hp.selection = list.data();
  hp.counts = counts.data();
  SelectParams dp = hp;
  dp.scores = ds.get();
  dp.lengths = dn.get();
  dp.selection = dl.get();
  dp.counts = dc.get();
  must(select_reference(s, hp), "select");
  must(select_cuda(s, dp, nullptr), "select");
  check(dc.fetch() == counts && dl.fetch() == list, "a million tokens: selection differs");
}

void append_and_resolve() {
  for (const std::uint32_t q_len : {1U, 5U}) {
    Batch b(shape_of(4, 2, 128, 16, 32, DType::kF16, q_len), {3, 16, 17, 200, 512, 0}, 61);
    DeviceBatch d(b);
    const StepShape& s = b.shape;
    Rng rng(5);
    std::vector<std::uint16_t> k(s.sequences * q_len * 2 * 128), v(k.size());
    for (auto& x : k) x = to_f16(gaussian(rng));
    for (auto& x : v) x = to_f16(gaussian(rng));
    k[5] = to_f16(NAN);
    std::vector<std::uint16_t> boxes(b.table.size() * 256, to_f16(0.25F));
    DeviceArray<std::uint16_t> dk(k), dv(v), dbox(boxes);
    AppendParams hp, dp;
    hp.k = k.data();
    hp.v = v.data();
    hp.table = b.table.data();
    hp.lengths = b.lengths.data();
    hp.boxes = boxes.data();
    dp.k = dk.get();
    dp.v = dv.get();
    dp.table = d.table.get();
    dp.lengths = d.lengths.get();
    dp.boxes = dbox.get();
    must(append_reference(s, hp), "append");
    must(append_cuda(s, dp, nullptr), "append");
    const auto got_boxes = dbox.fetch();
    std::size_t different = 0;
    for (std::size_t i = 0; i < boxes.size(); ++i)
      different += load_16(s.dtype, got_boxes[i]) == load_16(s.dtype, boxes[i]) ? 0 : 1;
    check(different == 0, "append: " + std::to_string(different) + " box ends differ");
    std::vector<unsigned char> page(8192);
    for (std::size_t i = 0; i < b.table.size(); ++i) {
      if (b.table[i] == kAbsentPage) continue;
      must(cudaMemcpy(page.data(), reinterpret_cast<void*>(d.hbm_address(i)), 8192,
                      cudaMemcpyDeviceToHost),
           "page");
      check(std::memcmp(page.data(), reinterpret_cast<void*>(entry_address(b.table[i])), 8192) == 0,
            "append: page " + std::to_string(i));
    }

    const auto entries = d.place([&](std::size_t i) { return i % 2 == 1; });
    const Selected sel = random_selection(b, 9);
    std::vector<PageEntry> host_table = entries;
    host_table[6 * 32 + sel.list[6 * sel.pitch]] = kAbsentPage;
    d.table.put(host_table);
    DeviceArray<std::uint32_t> list(sel.list), counts(sel.counts);
    std::vector<std::uint32_t> ring(8);
    for (std::uint32_t i = 0; i < 8; ++i) ring[i] = 100 + i;
    const std::uint32_t available = 14;
    alignas(16) ResolveCounters hc{0, 0, 9, 0};
    DeviceArray<std::uint32_t> dring(ring), davail(std::vector<std::uint32_t>{available}),
        dcount(std::vector<std::uint32_t>{5, 5, 9, 0});
    std::vector<Miss> misses(500);
    DeviceArray<Miss> dmisses(500, 0);
    std::vector<std::uint64_t> installs(b.table.size(), 3);
    DeviceArray<std::uint64_t> dinstalls(installs);
    ResolveParams hr;
    hr.table = host_table.data();
    hr.lengths = b.lengths.data();
    hr.selection = sel.list.data();
    hr.counts = sel.counts.data();
    hr.selection_pitch = sel.pitch;
    hr.misses = misses.data();
    hr.counters = &hc;
    hr.miss_capacity = 500;
    hr.installs = installs.data();
    hr.free_slots = ring.data();
    hr.free_available = &available;
    hr.free_capacity = 8;
    hr.pool = 1 << 20;
    hr.slot_pitch = 8192;
    ResolveParams dr = hr;
    dr.table = d.table.get();
    dr.lengths = d.lengths.get();
    dr.selection = list.get();
    dr.counts = counts.get();
    dr.misses = dmisses.get();
    dr.counters = reinterpret_cast<ResolveCounters*>(dcount.get());
    dr.installs = dinstalls.get();
    dr.free_slots = dring.get();
    dr.free_available = davail.get();
    must(resolve_reference(s, hr), "resolve");
    must(resolve_cuda(s, dr, nullptr), "resolve");
    const auto c = dcount.fetch();
    check(c[0] == hc.misses && c[1] == hc.absent && c[2] == hc.taken, "resolve: counters");
    // Grants come in another order, but to the same number of pages, each slot once.
    const auto got = dinstalls.fetch();
    std::vector<std::uint64_t> granted;
    for (std::size_t i = 0; i < got.size(); ++i) {
      check((got[i] == 3) == (installs[i] == 3), "resolve: writes installs of selected pages only");
      if (got[i] > 3) granted.push_back(got[i]);
    }
    std::sort(granted.begin(), granted.end());
    check(
        granted.size() == 5 && std::adjacent_find(granted.begin(), granted.end()) == granted.end(),
        "resolve: five slots granted, each once");

    std::vector<std::int32_t> blocks(b.table.size(), 77);
    DeviceArray<std::int32_t> dblocks(blocks);
    must(export_block_table_reference(s, host_table.data(), b.lengths.data(), d.pool(), d.pitch(),
                                      -1, blocks.data()),
         "export");
    must(export_block_table_cuda(s, d.table.get(), d.lengths.get(), d.pool(), d.pitch(), -1,
                                 dblocks.get(), nullptr),
         "export");
    check(dblocks.fetch() == blocks, "exported block table");
  }
}

/// Pages that an append completes, converted by the same launch: the bytes and boxes of the
/// reference, which are those of a conversion afterwards.
void append_converts() {
  const PageFormat formats[] = {PageFormat(DType::kE4m3), PageFormat(DType::kInt8),
                                PageFormat(DType::kF16, DType::kInt8), PageFormat(DType::kBf16)};
  for (const PageFormat to : formats) {
    for (const std::uint32_t page : {16U, 64U}) {
      const std::uint32_t q_len = page == 16 ? 5 : 1;
      const DType dtype = page == 16 ? DType::kF16 : DType::kBf16;
      Batch b(shape_of(4, 2, 128, page, 8, dtype, q_len),
              {page, 2 * page + 1, 3 * page, 7 * page - 2, 0, 8 * page}, 67);
      b.set(0, 0, 2, 3, NAN);
      DeviceBatch d(b);
      const StepShape& s = b.shape;
      const std::size_t groups = s.groups();
      Rng rng(7);
      std::vector<std::uint16_t> k(groups * q_len * 128), v(k.size());
      for (auto& x : k) x = store_16(dtype, gaussian(rng));
      for (auto& x : v) x = store_16(dtype, gaussian(rng));
      std::vector<std::uint16_t> boxes(b.table.size() * 256, store_16(dtype, 0.25F));
      const std::uint32_t pitch = slot_bytes(to, page, 128);
      std::vector<unsigned char> host(groups * pitch, 0xEE);
      DeviceArray<unsigned char> device(groups * pitch, 0xEE);
      std::vector<std::uint64_t> host_to(groups), device_to(groups);
      for (std::size_t g = 0; g < groups; ++g) {
        if (g == 5) continue;  // wants none
        host_to[g] = reinterpret_cast<std::uint64_t>(host.data()) + g * pitch;
        device_to[g] = reinterpret_cast<std::uint64_t>(device.get()) + g * pitch;
      }
      DeviceArray<std::uint16_t> dk(k), dv(v), dbox(boxes);
      DeviceArray<std::uint64_t> destinations(device_to);
      AppendParams hp, dp;
      hp.k = k.data();
      hp.v = v.data();
      hp.table = b.table.data();
      hp.lengths = b.lengths.data();
      hp.boxes = boxes.data();
      hp.completed = host_to.data();
      dp.k = dk.get();
      dp.v = dv.get();
      dp.table = d.table.get();
      dp.lengths = d.lengths.get();
      dp.boxes = dbox.get();
      dp.completed = destinations.get();
      hp.to = dp.to = to;
      must(append_reference(s, hp), "append");
      must(append_cuda(s, dp, nullptr), "append");
      const auto got_boxes = dbox.fetch();
      std::size_t different = 0, written = 0;
      for (std::size_t i = 0; i < boxes.size(); ++i)
        different += load_16(dtype, got_boxes[i]) == load_16(dtype, boxes[i]) ? 0 : 1;
      check(different == 0,
            "append and convert: " + std::to_string(different) + " box ends differ");
      const auto got = device.fetch();
      different = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        different += got[i] != host[i] ? 1 : 0;
        written += got[i] != 0xEE ? 1 : 0;
      }
      // NaN patterns may differ between machines: one value of the first page.
      check(different <= (element_bytes(to.k) == 2 ? 2U : 0U),
            std::string("append to ") + name(to.k) + " and " + name(to.v) + ": " +
                std::to_string(different) + " bytes differ");
      check(written > 0, "append converted nothing");
    }
  }
}

void feedback_agrees() {
  Batch b(shape_of(8, 2, 128, 16, 64), {1000, 30, 700}, 71);
  const StepShape& s = b.shape;
  std::vector<SoftmaxPair> pairs(s.groups() * 64 * 4), totals(s.groups() * 4);
  AttendParams ap = b.params();
  ap.pairs = pairs.data();
  ap.totals = totals.data();
  must(attend_reference(s, ap), "attend");
  std::vector<PageHeat> heat(s.groups() * 64, PageHeat{0, 0, 0, 0});
  DeviceArray<SoftmaxPair> dp(pairs), dt(totals);
  DeviceArray<PageHeat> dh(heat);
  DeviceArray<std::uint32_t> dl(b.lengths);
  for (std::uint32_t step = 1; step < 6; step += 2) {
    DeviceArray<std::uint32_t> dstep(std::vector<std::uint32_t>{step});
    FeedbackParams hp;
    hp.pairs = pairs.data();
    hp.totals = totals.data();
    hp.lengths = b.lengths.data();
    hp.step = &step;
    hp.heat = heat.data();
    FeedbackParams p = hp;
    p.pairs = dp.get();
    p.totals = dt.get();
    p.lengths = dl.get();
    p.step = dstep.get();
    p.heat = dh.get();
    must(feedback_reference(s, hp), "feedback");
    must(feedback_cuda(s, p, nullptr), "feedback");
  }
  const auto got = dh.fetch();
  double worst = 0;
  for (std::size_t i = 0; i < heat.size(); ++i) {
    worst = std::max({worst, std::fabs(double{got[i].frequency} - heat[i].frequency),
                      std::fabs(double{got[i].mean} - heat[i].mean),
                      std::fabs(double{got[i].peak} - heat[i].peak)});
    check(got[i].step == heat[i].step, "heat: step");
  }
  check(worst < 1e-5, "heat off by " + std::to_string(worst));
  // The digest of the same heat; the step that is no multiple writes nothing.
  for (const std::uint32_t step : {9U, 10U}) {
    std::vector<HeatDigest> digest(heat.size(), {0x7777, 77, 77});
    DeviceArray<HeatDigest> dd(digest);
    DeviceArray<std::uint32_t> dstep(std::vector<std::uint32_t>{step});
    DeviceArray<PageHeat> same(heat);
    HeatDigestParams hp;
    hp.heat = heat.data();
    hp.lengths = b.lengths.data();
    hp.step = &step;
    hp.digest = digest.data();
    hp.every = 5;
    HeatDigestParams p = hp;
    p.heat = same.get();
    p.lengths = dl.get();
    p.step = dstep.get();
    p.digest = dd.get();
    must(heat_digest_reference(s, hp), "digest");
    must(heat_digest_cuda(s, p, nullptr), "digest");
    const auto read = dd.fetch();
    std::size_t off = 0;
    for (std::size_t i = 0; i < read.size(); ++i) {
      // Logarithms of two machines: a code, or a last bit, apart at a tie.
      const auto apart = [](int x, int y) { return std::abs(x - y) > 1; };
      off += apart(read[i].frequency, digest[i].frequency) || apart(read[i].mean, digest[i].mean) ||
                     apart(read[i].peak, digest[i].peak)
                 ? 1
                 : 0;
    }
    check(off == 0, std::to_string(off) + " digests differ in step " + std::to_string(step));
  }
}

void refusals() {
  Batch b(shape_of(8, 2, 128, 16, 8), {100}, 3);
  DeviceBatch d(b);
  Workspace w(b.shape);
  const auto refused = [&](AttendTuning t, void* workspace, std::size_t bytes,
                           std::uint32_t formats) {
    AttendParams p = d.params();
    p.formats = formats;
    return !attend_cuda(b.shape, p, t, workspace, bytes, nullptr);
  };
  check(refused({}, nullptr, w.memory.size(), 0), "a null workspace");
  check(refused({}, w.memory.get() + 4, w.memory.size(), 0), "a misaligned workspace");
  check(refused({}, w.memory.get(), 16, 0), "a workspace too small");
  check(refused({15, 1}, w.memory.get(), w.memory.size(), 0),
        "more stages than shared memory holds");
  check(refused({1, 1}, w.memory.get(), w.memory.size(), 0), "a ring of one stage");
  check(refused({}, w.memory.get(), w.memory.size(), 2), "bf16 pages for fp16 queries");
  QuantizeParams none;
  check(!convert_pages_cuda(b.shape, none, 0, nullptr), "a conversion by no CTAs");
  none.count = 1;
  check(!convert_pages_cuda(b.shape, none, 1, nullptr), "a conversion of null lists");
  check(cudaGetLastError() == cudaSuccess, "refusals leave no CUDA error behind");
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no CUDA device: skipped\n");
    return 77;
  }
  std::vector<std::string_view> words;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--quick") {
      quick = true;
    } else if (std::string_view(argv[i]) == "--recorded" && i + 1 < argc) {
      recorded = argv[++i];
    } else {
      words.emplace_back(argv[i]);
    }
  }
  const std::pair<const char*, void (*)()> cases[] = {
      {"attend shapes", attend_shapes},
      {"attend selected", attend_selected},
      {"attend splits", attend_splits},
      {"attend long rings", attend_long_rings},
      {"attend bit identity", attend_bit_identity},
      {"attend odd contents", attend_odd_contents},
      {"attend installs", attend_installs},
      {"attend formats", attend_formats},
      {"attend recorded", attend_recorded},
      {"quantize", quantize_bits},
      {"quantize back", widened_by_movers},
      {"sparse step", sparse_step},
      {"fused selection", fused_selection},
      {"long selection", long_selection},
      {"append and resolve", append_and_resolve},
      {"append and convert", append_converts},
      {"feedback", feedback_agrees},
      {"refusals", refusals},
  };
  for (const auto& [case_name, run] : cases) {
    bool wanted = words.empty();
    for (const auto word : words)
      wanted = wanted || std::string_view(case_name).find(word) != std::string_view::npos;
    if (!wanted) continue;
    const int before = failures;
    current = case_name;
    run();
    must(cudaDeviceSynchronize(), case_name);
    std::printf("%-22s %s\n", case_name, failures == before ? "ok" : "FAILED");
    std::fflush(stdout);
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
