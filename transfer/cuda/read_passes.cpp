// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "transfer/cuda/handles.hpp"
#include "transfer/device.hpp"

namespace lehr::transfer {
namespace {

struct Timer {
  cuda::Stream stream;
  cuda::Event from, to;
  cuda::DeviceBuffer sink;

  static Result<Timer> create() {
    Timer timer;
    cudaStream_t stream = nullptr;
    LEHR_CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    timer.stream = cuda::Stream(stream);
    cudaEvent_t from = nullptr, to = nullptr;
    LEHR_CUDA_TRY(cudaEventCreate(&from));
    timer.from = cuda::Event(from);
    LEHR_CUDA_TRY(cudaEventCreate(&to));
    timer.to = cuda::Event(to);
    void* sink = nullptr;
    LEHR_CUDA_TRY(cudaMalloc(&sink, 64));
    timer.sink = cuda::DeviceBuffer(sink);
    return timer;
  }

  Result<double> pass(const std::byte* memory, Bytes bytes, std::uint32_t ctas) {
    LEHR_CUDA_TRY(cudaEventRecord(from.get(), stream.get()));
    LEHR_TRY(kernels::read_through_cuda(memory, bytes, ctas,
                                        static_cast<std::uint32_t*>(sink.get()), stream.get()));
    LEHR_CUDA_TRY(cudaEventRecord(to.get(), stream.get()));
    LEHR_CUDA_TRY(cudaEventSynchronize(to.get()));
    float ms = 0;
    LEHR_CUDA_TRY(cudaEventElapsedTime(&ms, from.get(), to.get()));
    return static_cast<double>(ms) * 1e-3;
  }

  Result<std::vector<double>> passes(const std::byte* memory, Bytes bytes, std::uint32_t ctas,
                                     std::uint32_t count) {
    std::vector<double> times;
    LEHR_TRY(pass(memory, bytes, ctas));
    for (std::uint32_t i = 0; i < count; ++i) {
      LEHR_ASSIGN(const double seconds, pass(memory, bytes, ctas));
      times.push_back(seconds);
    }
    return times;
  }
};

}  // namespace

Result<std::vector<double>> read_passes(std::int32_t device, const std::byte* memory, Bytes bytes,
                                        std::uint32_t ctas, std::uint32_t passes) {
  if (passes == 0) return invalid("no passes asked for");
  const cuda::DeviceScope scope(device);
  LEHR_ASSIGN(Timer timer, Timer::create());
  if (ctas != 0) return timer.passes(memory, bytes, ctas, passes);
  int sms = 0;
  LEHR_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  std::vector<double> best;
  for (const std::uint32_t factor : {1U, 2U, 4U, 8U, 16U}) {
    LEHR_ASSIGN(auto times,
                timer.passes(memory, bytes, static_cast<std::uint32_t>(sms) * factor, passes));
    const double sum = std::accumulate(times.begin(), times.end(), 0.0);
    if (best.empty() || sum < std::accumulate(best.begin(), best.end(), 0.0)) best = times;
  }
  return best;
}

}  // namespace lehr::transfer
