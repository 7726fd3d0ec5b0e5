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

  template <class Work>
  Result<double> time(Work&& work) {
    LEHR_CUDA_TRY(cudaEventRecord(from.get(), stream.get()));
    LEHR_TRY(work());
    LEHR_CUDA_TRY(cudaEventRecord(to.get(), stream.get()));
    LEHR_CUDA_TRY(cudaEventSynchronize(to.get()));
    float ms = 0;
    LEHR_CUDA_TRY(cudaEventElapsedTime(&ms, from.get(), to.get()));
    return static_cast<double>(ms) * 1e-3;
  }

  Status read(const std::byte* memory, Bytes bytes, std::uint32_t ctas) {
    return kernels::read_through_cuda(memory, bytes, ctas, static_cast<std::uint32_t*>(sink.get()),
                                      stream.get());
  }

  Result<double> pass(const std::byte* memory, Bytes bytes, std::uint32_t ctas) {
    return time([&] { return read(memory, bytes, ctas); });
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

using Graph = cuda::Owned<cudaGraph_t, cudaGraphDestroy>;
using Replay = cuda::Owned<cudaGraphExec_t, cudaGraphExecDestroy>;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// `count` moves of one pair, each a node behind the one before.
Result<Replay> graph_of_moves(cudaStream_t stream, const void* pair, std::uint32_t bytes,
                              std::uint32_t count) {
  kernels::PageLayout layout;
  layout.piece_bytes = bytes;
  kernels::MoveRing one;
  one.ctas = 1;
  LEHR_CUDA_TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  Status moved;
  for (std::uint32_t i = 0; i < count && moved; ++i) {
    moved = kernels::move_pages_cuda({static_cast<const kernels::PagePair*>(pair), 1}, layout, one,
                                     stream);
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  const Graph owned(graph);
  LEHR_TRY(moved);
  LEHR_CUDA_TRY(ended);
  cudaGraphExec_t replay = nullptr;
  LEHR_CUDA_TRY(cudaGraphInstantiate(&replay, graph, 0));
  return Replay(replay);
}

}  // namespace

Result<double> graph_move_seconds(std::int32_t device, const std::byte* from, std::byte* to,
                                  std::uint32_t bytes) {
  constexpr std::uint32_t kNodes = 64;
  const cuda::DeviceScope scope(device);
  LEHR_ASSIGN(Timer timer, Timer::create());
  const kernels::PagePair pair{reinterpret_cast<std::uint64_t>(from),
                               reinterpret_cast<std::uint64_t>(to)};
  LEHR_CUDA_TRY(cudaMemcpy(timer.sink.get(), &pair, sizeof pair, cudaMemcpyHostToDevice));
  LEHR_ASSIGN(const Replay replay,
              graph_of_moves(timer.stream.get(), timer.sink.get(), bytes, kNodes));
  std::vector<double> times;
  for (int i = 0; i < 21; ++i) {
    LEHR_ASSIGN(const double seconds, timer.time([&]() -> Status {
      LEHR_CUDA_TRY(cudaGraphLaunch(replay.get(), timer.stream.get()));
      return {};
    }));
    times.push_back(seconds / kNodes);
  }
  return median(std::move(times));
}

Result<WindowGain> window_gain(std::int32_t device, const std::byte* memory, Bytes hot,
                               Bytes cold) {
  const cuda::DeviceScope scope(device);
  int sms = 0, most = 0;
  LEHR_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  LEHR_CUDA_TRY(cudaDeviceGetAttribute(&most, cudaDevAttrMaxPersistingL2CacheSize, device));
  const auto ctas = static_cast<std::uint32_t>(sms) * 4;
  std::size_t before = 0;
  LEHR_CUDA_TRY(cudaDeviceGetLimit(&before, cudaLimitPersistingL2CacheSize));
  const auto again = [&](bool window) -> Result<double> {
    LEHR_CUDA_TRY(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize,
                                     window ? static_cast<std::size_t>(most) : 0));
    LEHR_ASSIGN(Timer timer, Timer::create());
    cudaStreamAttrValue value{};
    value.accessPolicyWindow.base_ptr = const_cast<std::byte*>(memory);
    value.accessPolicyWindow.num_bytes = window ? hot : 0;
    value.accessPolicyWindow.hitRatio = 1.0F;
    value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
    value.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
    LEHR_CUDA_TRY(
        cudaStreamSetAttribute(timer.stream.get(), cudaStreamAttributeAccessPolicyWindow, &value));
    std::vector<double> times;
    for (int i = 0; i < 21; ++i) {
      LEHR_TRY(timer.read(memory, hot, ctas));
      LEHR_TRY(timer.read(memory + hot, cold, ctas));
      LEHR_ASSIGN(const double seconds, timer.pass(memory, hot, ctas));
      times.push_back(seconds);
    }
    return median(std::move(times));
  };
  WindowGain gain;
  LEHR_ASSIGN(gain.without, again(false));
  LEHR_ASSIGN(gain.with, again(true));
  LEHR_CUDA_TRY(cudaCtxResetPersistingL2Cache());
  LEHR_CUDA_TRY(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, before));
  return gain;
}

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
