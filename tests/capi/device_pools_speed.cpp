// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "tests/capi/device_pools.hpp"

namespace lehr::test::pools {

namespace {

/// The best of several rounds, bytes in 1e9.
struct Best {
  double device = 0;  ///< GB/s from the caller's stream to what it waits for of the job
  double host = 0;    ///< GB/s until the host knows of the end
  double submit_us = 1e9;
  void keep(const Best& other) {
    device = std::max(device, other.device);
    host = std::max(host, other.host);
    submit_us = std::min(submit_us, other.submit_us);
  }
};

/// Times work of a stream on the device.
class Stopwatch {
 public:
  Stopwatch() {
    must(cudaEventCreate(&start_), "event");
    must(cudaEventCreate(&end_), "event");
  }
  ~Stopwatch() {
    (void)cudaEventDestroy(start_);
    (void)cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  void start(cudaStream_t stream) const { must(cudaEventRecord(start_, stream), "record"); }
  void stop(cudaStream_t stream) const { must(cudaEventRecord(end_, stream), "record"); }
  double seconds() const {
    must(cudaEventSynchronize(end_), "end");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, start_, end_), "time");
    return static_cast<double>(ms) / 1e3;
  }

 private:
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

/// Copies of the copy engine, GB/s out and in.
std::pair<double, double> plain_copies(std::uint64_t bytes, cudaStream_t stream) {
  void *pinned = nullptr, *flat = nullptr;
  must(cudaHostAlloc(&pinned, bytes, 0), "pinned");
  must(cudaMalloc(&flat, bytes), "flat");
  const Stopwatch watch;
  double best[2] = {};
  for (int i = 0; i < (quick ? 2 : 8); ++i) {
    const bool in = i % 2 == 1;
    watch.start(stream);
    must(cudaMemcpyAsync(in ? flat : pinned, in ? pinned : flat, bytes, cudaMemcpyDefault, stream),
         "copy");
    watch.stop(stream);
    best[in ? 1 : 0] =
        std::max(best[in ? 1 : 0], static_cast<double>(bytes) / watch.seconds() / 1e9);
  }
  must(cudaFreeHost(pinned), "pinned");
  must(cudaFree(flat), "flat");
  return {best[0], best[1]};
}

/// `device` is to the end of the first layer: of a job without layers that is all of it.
Best timed(World& w, lehr_job job, std::uint64_t bytes, cudaStream_t stream) {
  const Stopwatch watch;
  Best found;
  must(cudaStreamSynchronize(stream), "idle");
  const double begin = now();
  watch.start(stream);
  ok(lehr_jobs_submit(w.runtime, &job, 1, stream, nullptr), "submit");
  found.submit_us = (now() - begin) * 1e6;
  ok(lehr_job_wait_layer(w.runtime, job, 0, stream), "wait");
  watch.stop(stream);
  check(w.finish(job).status == LEHR_OK, "went well");
  found.host = static_cast<double>(bytes) / (now() - begin) / 1e9;
  found.device = static_cast<double>(bytes) / watch.seconds() / 1e9;
  return found;
}

void measure(const Shape& shape, std::uint32_t count) {
  World w(shape, count, count, 0);
  const cudaStream_t stream = make_stream();
  const std::uint64_t bytes = count * w.content;
  const auto [out, in] = plain_copies(bytes, stream);
  Best store, load, layered;
  for (std::uint32_t round = 0; round < (quick ? 1 : 4); ++round) {
    const std::uint32_t first = round * count;
    store.keep(timed(w, w.prepare(false, first, count, 0), bytes, stream));
    load.keep(timed(w, w.prepare(true, first, count, 0), bytes, stream));
    layered.keep(timed(w, w.prepare(true, first, count, 0, LEHR_LOAD_LAYERED), bytes, stream));
  }
  std::printf(
      "  %-26s %4.0f MB: copy out %.1f in %.1f GB/s; store %.1f (to the host's knowledge %.1f), "
      "load %.1f (%.1f)",
      shape.name, static_cast<double>(bytes) / 1e6, out, in, store.device, store.host, load.device,
      load.host);
  if (shape.layers > 1) {
    std::printf(", layered (%.1f), first layer after %.2f ms", layered.host,
                static_cast<double>(bytes) / layered.device / 1e6);
  }
  std::printf("; submit %.0f / %.0f / %.0f us (store, load, layered)\n", store.submit_us,
              load.submit_us, layered.submit_us);
  must(cudaStreamDestroy(stream), "stream");
}

}  // namespace

void speed() {
  measure({"32 layers x 64 KiB", 32, 8, 16, 128, 0, false, 0}, quick ? 16 : 128);
  measure({"opaque 2 MiB", 1, 0, 0, 0, 0, false, 2 << 20}, quick ? 16 : 128);
  measure({"four of them", 1, 0, 0, 0, 0, false, 2 << 20}, 4);
  measure({"32 layers, rows of 256 B", 32, 8, 16, 128, 16, false, 0}, quick ? 16 : 128);
  measure({"8 layers, rows of 1 KiB", 8, 8, 16, 512, 16, false, 0}, quick ? 16 : 128);
}

}  // namespace lehr::test::pools
