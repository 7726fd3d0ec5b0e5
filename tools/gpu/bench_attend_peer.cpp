// SPDX-License-Identifier: Apache-2.0
// One attend with a part of its pages in another GPU's HBM, beside the same attend with all of them
// at home: times, and outputs compared bit by bit.
//   lehr_bench_attend_peer OUT.json
#include <cstring>
#include <numeric>

#include "kernels/attend.hpp"
#include "kernels/base/rng.hpp"
#include "tests/kernels/cuda/device.hpp"
#include "tools/gpu/bench.hpp"

namespace lehr::gpu {
namespace {

using kernels::AttendParams;
using kernels::PageEntry;
using kernels::test::DeviceArray;

/// 32 sequences of 8K tokens of one layer: 1 GiB of fp16 pages, in random order.
struct Layer {
  kernels::StepShape shape;
  std::uint32_t pitch = kernels::slot_bytes(DType::kF16, 16, 128);
  std::size_t pages = 0;
  DeviceArray<unsigned char> pool;
  unsigned char* peer = nullptr;  ///< the same pages in the other GPU's memory
  std::vector<std::uint32_t> order;
  DeviceArray<PageEntry> table;
  DeviceArray<std::uint16_t> q, out;
  DeviceArray<std::uint32_t> lengths;
  DeviceArray<kernels::SoftmaxPair> pairs;
  DeviceArray<unsigned char> workspace;
  double away = 0;  ///< share of the pages in the other GPU

  Layer() {
    constexpr std::uint32_t kTokens = 8192;
    shape.sequences = 32;
    shape.q_heads = 32;
    shape.kv_heads = 8;
    shape.head_dim = 128;
    shape.page_tokens = 16;
    shape.max_pages = kTokens / 16;
    pages = shape.groups() * shape.max_pages;
    pool = DeviceArray<unsigned char>(pages * pitch);
    fill_random(pool.get(), pages * pitch, 7, nullptr);
    order.resize(pages);
    std::iota(order.begin(), order.end(), 0U);
    Rng rng(11);
    for (std::size_t i = pages; i > 1; --i)
      std::swap(order[i - 1], order[rng.below(static_cast<std::uint32_t>(i))]);
    table = DeviceArray<PageEntry>(pages);
    q = DeviceArray<std::uint16_t>(std::size_t{shape.sequences} * shape.q_heads * shape.head_dim);
    fill_random(q.get(), q.size() * 2, 5, nullptr);
    out = DeviceArray<std::uint16_t>(q.size());
    lengths = DeviceArray<std::uint32_t>(std::vector<std::uint32_t>(shape.sequences, kTokens));
    pairs = DeviceArray<kernels::SoftmaxPair>(pages * shape.rows());
    workspace =
        DeviceArray<unsigned char>(must(kernels::attend_workspace_bytes(shape), "workspace"), 0);
    must(cudaDeviceSynchronize(), "layer");
    must(cudaSetDevice(1), "second device");
    must(cudaMalloc(reinterpret_cast<void**>(&peer), pages * pitch), "peer memory");
    must(cudaMemcpyPeer(peer, 1, pool.get(), 0, pages * pitch), "copy to peer");
    must(cudaDeviceSynchronize(), "copy to peer");
    must(cudaSetDevice(0), "first device");
    must(cudaDeviceEnablePeerAccess(1, 0), "peer access");
  }
  ~Layer() { (void)cudaFree(peer); }
  Layer(const Layer&) = delete;

  void place(double share) {
    Rng rng(3);
    std::vector<PageEntry> entries(pages);
    std::size_t there = 0;
    for (std::size_t i = 0; i < pages; ++i) {
      const bool over = share > 0 && rng.uniform() < share;
      there += over ? 1 : 0;
      entries[i] = kernels::make_entry(reinterpret_cast<std::uint64_t>(over ? peer : pool.get()) +
                                           std::uint64_t{order[i]} * pitch,
                                       over, DType::kF16);
    }
    away = static_cast<double>(there) / static_cast<double>(pages);
    table.put(entries);
  }

  Spread time() {
    return time_graph(
        [&](cudaStream_t stream) {
          for (int i = 0; i < 4; ++i) {
            AttendParams p;
            p.q = q.get();
            p.out = out.get();
            p.table = table.get();
            p.lengths = lengths.get();
            p.pairs = pairs.get();
            must(attend_cuda(shape, p, {}, workspace.get(), workspace.size(), stream), "attend");
          }
        },
        4);
  }
};

int run(const char* path) {
  Report report(path);
  Layer layer;
  layer.place(0);
  (void)layer.time();
  const double bytes = static_cast<double>(layer.pages) * layer.pitch;
  const Spread home = layer.time();
  const std::vector<std::uint16_t> bits = layer.out.fetch();
  report.add({"attend, all at home", "32x8K", "", home.median, home.low, home.high, bytes, 0});
  int wrong = 0;
  for (const auto& [share, most] : {std::pair{0.01, 0.0}, {0.05, 1.06}, {0.08, 1.09}, {0.2, 0.0}}) {
    layer.place(share);
    layer.out.fill(0xFF);
    const Spread s = layer.time();
    const bool same = layer.out.fetch() == bits;
    wrong += same ? 0 : 1;
    const double ratio = s.median / home.median;
    report.add({"attend, " + std::to_string(static_cast<int>(100 * share + 0.5)) + " % on the peer",
                "32x8K", "", s.median, s.low, s.high, bytes, 0});
    std::printf("  %.2f %% of the bytes there: %.3f x all at home, %s bits", 100 * layer.away,
                ratio, same ? "the same" : "OTHER");
    if (most > 0) std::printf("; wanted <= %.2f: %s", most, ratio <= most ? "met" : "MISSED");
    std::printf("\n");
  }
  layer.place(0);
  const Spread again = layer.time();
  std::printf("  all at home again: %.3f x\n", again.median / home.median);
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace lehr::gpu

int main(int argc, char** argv) {
  int devices = 0, access = 0;
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s OUT.json\n", argv[0]);
    return 2;
  }
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 2 ||
      cudaDeviceCanAccessPeer(&access, 0, 1) != cudaSuccess || access == 0) {
    std::printf("no second device that the first can read: skipped\n");
    return 77;
  }
  return lehr::gpu::run(argv[1]);
}
