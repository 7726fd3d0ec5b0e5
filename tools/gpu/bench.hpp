// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "tests/kernels/cuda/device.hpp"

/// Timing of kernels by replays of a captured graph, and the records that become the table.
namespace lehr::gpu {

using kernels::test::must;

struct Spread {
  double median, low, high;  ///< microseconds a call; low and high are the 10th and 90th percentile
};

/// Captures calls(stream), which enqueues `count` calls, and times replays.
template <class Calls>
Spread time_graph(Calls&& calls, int count, int replays = 31) {
  cudaStream_t stream = nullptr;
  must(cudaDeviceSynchronize(), "inputs");
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  calls(stream);
  must(cudaStreamSynchronize(stream), "first calls");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  calls(stream);
  must(cudaStreamEndCapture(stream, &graph), "end of capture");
  must(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t from = nullptr, to = nullptr;
  must(cudaEventCreate(&from), "event");
  must(cudaEventCreate(&to), "event");
  std::vector<double> times;
  for (int i = 0; i < replays + 3; ++i) {
    must(cudaEventRecord(from, stream), "record");
    must(cudaGraphLaunch(exec, stream), "replay");
    must(cudaEventRecord(to, stream), "record");
    must(cudaEventSynchronize(to), "synchronize");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, from, to), "elapsed");
    if (i >= 3) times.push_back(1e3 * static_cast<double>(ms) / count);
  }
  std::sort(times.begin(), times.end());
  (void)cudaEventDestroy(from);
  (void)cudaEventDestroy(to);
  (void)cudaGraphExecDestroy(exec);
  (void)cudaGraphDestroy(graph);
  (void)cudaStreamDestroy(stream);
  const auto n = times.size();
  return {times[n / 2], times[n / 10], times[n - 1 - n / 10]};
}

/// One line of the result.
struct Record {
  std::string name, shape, variant;
  double us = 0, low = 0, high = 0;
  double bytes = 0;    ///< moved at least, of the memory that bounds it
  double ceiling = 0;  ///< bytes/s of that memory in this run
};

class Report {
 public:
  explicit Report(const char* json) : file_(std::fopen(json, "w")) {
    if (file_ == nullptr) std::fprintf(stderr, "cannot write %s\n", json);
  }
  ~Report() {
    if (file_ != nullptr) std::fclose(file_);
  }
  Report(const Report&) = delete;
  void add(const Record& r) {
    const double rate = r.bytes / (r.us * 1e-6);
    std::printf("%-22s %-10s %-44s %8.1f us [%.1f-%.1f] %7.0f GB/s %5.1f %%\n", r.name.c_str(),
                r.shape.c_str(), r.variant.c_str(), r.us, r.low, r.high, rate / 1e9,
                r.ceiling > 0 ? 100 * rate / r.ceiling : 0.0);
    std::fflush(stdout);
    if (file_ == nullptr) return;
    std::fprintf(file_,
                 "{\"name\":\"%s\",\"shape\":\"%s\",\"variant\":\"%s\",\"us\":%.3f,\"us_p10\":%.3f,"
                 "\"us_p90\":%.3f,"
                 "\"bytes\":%.0f,\"gbps\":%.1f,\"percent_of_ceiling\":%.2f}\n",
                 r.name.c_str(), r.shape.c_str(), r.variant.c_str(), r.us, r.low, r.high, r.bytes,
                 rate / 1e9, r.ceiling > 0 ? 100 * rate / r.ceiling : 0.0);
    std::fflush(file_);
  }

 private:
  std::FILE* file_;
};

/// Bytes/s of reads from HBM, and of reads of pinned host memory by kernels, measured now.
struct Ceilings {
  double hbm = 0, link = 0;
};
Ceilings measure_ceilings(Report& report);

/// Fills memory with random 16-bit floats of unit variance.
void fill_random(void* memory, std::size_t bytes, std::uint64_t seed, cudaStream_t stream);

}  // namespace lehr::gpu
