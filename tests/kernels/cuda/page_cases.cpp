// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/append.hpp"
#include "kernels/feedback.hpp"
#include "kernels/resolve.hpp"
#include "tests/kernels/cuda/cases.hpp"

namespace lehr::kernels::test {
namespace {

/// New tokens for a batch, the same for both sides, and boxes of a quarter that they widen.
struct Appends {
  std::vector<std::uint16_t> k, v, boxes;
  DeviceArray<std::uint16_t> dk, dv, dbox;
  AppendParams host, device;

  /// The sixth value of K is a NaN if asked.
  Appends(const Batch& b, const DeviceBatch& d, std::uint64_t seed, bool nan)
      : k(b.shape.groups() * b.shape.q_len * b.shape.head_dim),
        v(k.size()),
        boxes(b.table.size() * 2 * b.shape.head_dim, store_16(b.shape.dtype, 0.25F)) {
    Rng rng(seed);
    for (auto& x : k) x = store_16(b.shape.dtype, gaussian(rng));
    for (auto& x : v) x = store_16(b.shape.dtype, gaussian(rng));
    if (nan) k[5] = store_16(b.shape.dtype, NAN);
    dk = DeviceArray<std::uint16_t>(k);
    dv = DeviceArray<std::uint16_t>(v);
    dbox = DeviceArray<std::uint16_t>(boxes);
    host.k = k.data();
    host.v = v.data();
    host.table = b.table.data();
    host.lengths = b.lengths.data();
    host.boxes = boxes.data();
    device.k = dk.get();
    device.v = dv.get();
    device.table = d.table.get();
    device.lengths = d.lengths.get();
    device.boxes = dbox.get();
  }
  void run(const StepShape& shape) {
    must(append_reference(shape, host), "append");
    must(append_cuda(shape, device, nullptr), "append");
    const std::size_t different = differing(shape.dtype, dbox.fetch(), boxes);
    check(different == 0, std::to_string(different) + " box ends differ");
  }
};

}  // namespace

void append_and_resolve() {
  for (const std::uint32_t q_len : {1U, 5U}) {
    Batch b(shape_of(4, 2, 128, 16, 32, DType::kF16, q_len), {3, 16, 17, 200, 512, 0}, 61);
    DeviceBatch d(b);
    const StepShape& s = b.shape;
    Appends appends(b, d, 5, true);
    appends.run(s);
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
      const std::uint32_t pitch = slot_bytes(to, page, 128);
      std::vector<unsigned char> host(groups * pitch, 0xEE);
      DeviceArray<unsigned char> device(groups * pitch, 0xEE);
      std::vector<std::uint64_t> host_to(groups), device_to(groups);
      for (std::size_t g = 0; g < groups; ++g) {
        if (g == 5) continue;  // wants none
        host_to[g] = reinterpret_cast<std::uint64_t>(host.data()) + g * pitch;
        device_to[g] = reinterpret_cast<std::uint64_t>(device.get()) + g * pitch;
      }
      DeviceArray<std::uint64_t> destinations(device_to);
      Appends appends(b, d, 7, false);
      appends.host.completed = host_to.data();
      appends.device.completed = destinations.get();
      appends.host.to = appends.device.to = to;
      appends.run(s);
      const auto got = device.fetch();
      const std::size_t different = differing(got, host);
      const auto written = std::count_if(got.begin(), got.end(), [](auto x) { return x != 0xEE; });
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

}  // namespace lehr::kernels::test
