// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/rng.hpp"
#include "tests/transfer/cuda/world.hpp"
#include "transfer/device.hpp"

/// What the transfer benchmark measures with: rates of movers, of plain reads and writes, and
/// readers that are disturbed.
namespace lehr::gpu {

using namespace lehr::transfer;
using transfer::test::Memory;
using transfer::test::must;
using transfer::test::Shared;

inline double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

inline void synchronize_all() {
  int count = 0, before = 0;
  must(cudaGetDeviceCount(&count), "devices");
  must(cudaGetDevice(&before), "device");
  for (int d = 0; d < count; ++d) {
    must(cudaSetDevice(d), "device");
    must(cudaDeviceSynchronize(), "synchronize");
  }
  must(cudaSetDevice(before), "device");
}

/// Bytes/s of work that moves `bytes`: the median of `repeats` after one to warm up.
inline double rate(Bytes bytes, const std::function<void()>& work, int repeats = 3) {
  work();
  synchronize_all();
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    times.push_back(seconds_of([&] {
      work();
      synchronize_all();
    }));
  }
  return static_cast<double>(bytes) / median(times);
}

/// Scattered pages: random distinct slots on both sides.
inline std::vector<Job> scattered(const Memory& from, const Memory& to, Bytes span, Bytes page,
                                  Bytes total, std::uint64_t seed) {
  const auto slots = static_cast<std::uint32_t>(span / page);
  std::vector<std::uint32_t> a(slots), b(slots);
  for (std::uint32_t i = 0; i < slots; ++i) a[i] = b[i] = i;
  Rng rng(seed);
  for (std::uint32_t i = slots; i > 1; --i) {
    std::swap(a[i - 1], a[rng.below(i)]);
    std::swap(b[i - 1], b[rng.below(i)]);
  }
  std::vector<Job> jobs;
  const auto count = std::min<Bytes>(slots, total / page);
  for (std::uint32_t i = 0; i < count; ++i) {
    jobs.push_back({i + 1, from.at(a[i] * page), to.at(b[i] * page), page, Cause::kOther,
                    Urgency::kBackground, 0});
  }
  return jobs;
}

/// Through a mover's public calls, from the first submit() to the last completion.
inline void run_jobs(Mover& mover, std::span<const Job> jobs) {
  std::vector<Completion> done(4096);
  std::size_t submitted = 0, finished = 0;
  while (finished < jobs.size()) {
    if (submitted < jobs.size()) {
      const std::size_t count = std::min<std::size_t>(4096, jobs.size() - submitted);
      submitted += mover.submit(jobs.subspan(submitted, count));
    }
    const std::size_t count = mover.poll(done);
    for (std::size_t i = 0; i < count; ++i) {
      if (done[i].code != Code::kOk) must(Status(io_error("a move failed")), "benchmark");
    }
    finished += count;
  }
}

/// Keeps a mover busy with the same jobs, over and over, until it is stopped.
class Background {
 public:
  Background(Mover& mover, std::vector<Job> jobs)
      : mover_(mover), jobs_(std::move(jobs)), thread_([this] { run(); }) {}
  ~Background() { stop(); }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  Bytes bytes() const { return bytes_.load(); }

 private:
  void run() {
    std::vector<Completion> done(4096);
    std::size_t next = 0, flying = 0;
    while (!stop_ || flying != 0) {
      if (!stop_ && flying < kFlying) {
        const std::size_t count = mover_.submit(
            std::span(jobs_).subspan(next, std::min<std::size_t>(2048, jobs_.size() - next)));
        flying += count;
        next = (next + count) % jobs_.size();
      }
      const std::size_t count = mover_.poll(done);
      for (std::size_t i = 0; i < count; ++i) bytes_ += done[i].bytes;
      flying -= count;
    }
  }

  static constexpr std::size_t kFlying = 32768;  ///< enough that the link never waits
  Mover& mover_;
  std::vector<Job> jobs_;
  std::atomic<bool> stop_{false};
  std::atomic<Bytes> bytes_{0};
  std::jthread thread_;
};

/// A memory-bound reader: 8 GiB by 2112 CTAs of 512 threads, on a stream of its own.
class Reader {
 public:
  explicit Reader(std::int32_t device) : device_(device) {
    must(cudaSetDevice(device), "device");
    must(cudaMalloc(&memory_, kBytes), "reader's memory");
    must(cudaMemset(memory_, 1, kBytes), "reader's memory");
    must(cudaMalloc(reinterpret_cast<void**>(&sink_), 64), "sink");
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    must(cudaEventCreate(&from_), "event");
    must(cudaEventCreate(&to_), "event");
    must(cudaDeviceSynchronize(), "reader");
    must(cudaSetDevice(0), "device");
  }
  ~Reader() {
    (void)cudaFree(memory_);
    (void)cudaFree(sink_);
    (void)cudaStreamDestroy(stream_);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  /// Milliseconds of one pass.
  double pass() {
    must(cudaSetDevice(device_), "device");
    must(cudaEventRecord(from_, stream_), "event");
    must(transfer::test::read_memory(memory_, kBytes, 2112, sink_, stream_), "reader");
    must(cudaEventRecord(to_, stream_), "event");
    must(cudaEventSynchronize(to_), "reader");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, from_, to_), "elapsed");
    must(cudaSetDevice(0), "device");
    return static_cast<double>(ms);
  }
  double median_pass(int passes) {
    std::vector<double> all;
    for (int i = 0; i < passes; ++i) all.push_back(pass());
    return median(all);
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{8} << 30;
  std::int32_t device_;
  void* memory_ = nullptr;
  unsigned* sink_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t from_ = nullptr, to_ = nullptr;
};

/// Lines of the result: a table for people and JSON beside it.
class Report {
 public:
  explicit Report(const char* path) : file_(std::fopen(path, "w")) {
    if (file_ == nullptr) std::fprintf(stderr, "cannot write %s\n", path);
  }
  ~Report() {
    if (file_ != nullptr) std::fclose(file_);
  }
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  void rate(const std::string& name, double bytes_per_second, double ceiling = 0) {
    std::printf("%-58s %8.2f GB/s", name.c_str(), bytes_per_second * 1e-9);
    if (ceiling > 0) std::printf("  %5.1f %%", 100 * bytes_per_second / ceiling);
    std::printf("\n");
    json(name, bytes_per_second * 1e-9, "GB/s", ceiling > 0 ? 100 * bytes_per_second / ceiling : 0);
  }
  void value(const std::string& name, double value, const char* unit) {
    std::printf("%-58s %8.3f %s\n", name.c_str(), value, unit);
    json(name, value, unit, 0);
  }
  /// A target: `good` whether it is met.
  void target(const std::string& name, double value, const char* unit, const char* wanted,
              bool good) {
    std::printf("TARGET %-51s %8.3f %-5s wanted %-10s %s\n", name.c_str(), value, unit, wanted,
                good ? "met" : "MISSED");
    json("target: " + name, value, unit, good ? 1 : 0);
  }

 private:
  void json(const std::string& name, double value, const char* unit, double percent) {
    if (file_ == nullptr) return;
    std::fprintf(file_, "{\"name\":\"%s\",\"value\":%.4f,\"unit\":\"%s\",\"percent\":%.2f}\n",
                 name.c_str(), value, unit, percent);
    std::fflush(file_);
  }
  std::FILE* file_;
};

}  // namespace lehr::gpu
