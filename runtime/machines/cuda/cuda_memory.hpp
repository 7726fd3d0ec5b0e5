// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <cuda_runtime_api.h>

#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"
#include "kernels/cuda_status.hpp"

namespace lehr::runtime::cuda {

/// Owners of CUDA resources: move-only, freed with the device that made them. Sizes in bytes.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// On the current device; contents are zero.
  static Result<DeviceMemory> create(Bytes bytes);
  DeviceMemory(DeviceMemory&& o) noexcept { *this = std::move(o); }
  DeviceMemory& operator=(DeviceMemory&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  ~DeviceMemory() { (void)cudaFree(data_); }

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(data_); }
  Bytes bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  Bytes bytes_ = 0;
};

/// Host memory that devices read and write. Large ones are touched by several threads and then
/// registered piece by piece: pinned memory from the driver comes at 2-3 GB/s, and one huge call
/// holds its locks for seconds.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  static Result<PinnedMemory> create(Bytes bytes);
  PinnedMemory(PinnedMemory&& o) noexcept { *this = std::move(o); }
  PinnedMemory& operator=(PinnedMemory&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    std::swap(registered_, o.registered_);
    return *this;
  }
  ~PinnedMemory();

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  /// As the device sees it.
  Result<std::uint64_t> address() const;
  Bytes bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  Bytes bytes_ = 0;
  Bytes registered_ = 0;
};

class Stream {
 public:
  Stream() = default;
  /// Higher urgency starts first where CTAs compete.
  static Result<Stream> create(bool urgent);
  Stream(Stream&& o) noexcept : stream_(std::exchange(o.stream_, nullptr)) {}
  Stream& operator=(Stream&& o) noexcept {
    std::swap(stream_, o.stream_);
    return *this;
  }
  ~Stream() {
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() = default;
  static Result<Event> create(bool timed);
  Event(Event&& o) noexcept : event_(std::exchange(o.event_, nullptr)) {}
  Event& operator=(Event&& o) noexcept {
    std::swap(event_, o.event_);
    return *this;
  }
  ~Event() {
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class GraphExec {
 public:
  GraphExec() = default;
  explicit GraphExec(cudaGraphExec_t exec) : exec_(exec) {}
  GraphExec(GraphExec&& o) noexcept : exec_(std::exchange(o.exec_, nullptr)) {}
  GraphExec& operator=(GraphExec&& o) noexcept {
    std::swap(exec_, o.exec_);
    return *this;
  }
  ~GraphExec() {
    if (exec_ != nullptr) (void)cudaGraphExecDestroy(exec_);
  }
  cudaGraphExec_t get() const { return exec_; }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

/// kUnsupported without a usable device, naming what is missing.
Status use_device(std::int32_t device);
std::string describe_device(std::int32_t device);

/// Captures what `enqueue` puts on `stream`, and instantiates it.
template <class Enqueue>
Result<GraphExec> capture(const Stream& stream, Enqueue&& enqueue) {
  LEHR_CUDA_TRY(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  const Status enqueued = enqueue();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream.get(), &graph);
  if (!enqueued || ended != cudaSuccess) {
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    if (!enqueued) return Error(enqueued.error());
    return cuda_error(ended, "end of capture");
  }
  cudaGraphExec_t exec = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&exec, graph, 0);
  (void)cudaGraphDestroy(graph);
  LEHR_CUDA_TRY(made);
  return GraphExec(exec);
}

}  // namespace lehr::runtime::cuda
