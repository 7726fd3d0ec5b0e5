// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/quantize.hpp"
#include "tests/kernels/cuda/cases.hpp"

namespace lehr::kernels::test {
namespace {

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

}  // namespace

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

}  // namespace lehr::kernels::test
