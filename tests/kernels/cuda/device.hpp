// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include <cuda_runtime_api.h>

#include "kernels/attend.hpp"
#include "tests/kernels/batch.hpp"
#include "tests/support/cuda_must.hpp"

/// Device memory and a batch on the device, for tests and benchmarks.
namespace lehr::kernels::test {

using lehr::test::must;

template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(std::size_t size, int poison = 0xFF) : size_(size) {
    must(cudaMalloc(reinterpret_cast<void**>(&data_), std::max<std::size_t>(size * sizeof(T), 256)),
         "cudaMalloc");
    must(cudaMemset(data_, poison, size * sizeof(T)), "cudaMemset");
  }
  explicit DeviceArray(const std::vector<T>& from) : DeviceArray(from.size()) { put(from); }
  DeviceArray(DeviceArray&& o) noexcept
      : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  DeviceArray& operator=(DeviceArray&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    return *this;
  }
  ~DeviceArray() { (void)cudaFree(data_); }
  T* get() const { return data_; }
  std::size_t size() const { return size_; }
  void put(const std::vector<T>& from) {
    must(cudaMemcpy(data_, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice),
         "copy to device");
  }
  std::vector<T> fetch() const {
    std::vector<T> to(size_);
    must(cudaDeviceSynchronize(), "synchronize");
    must(cudaMemcpy(to.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
         "copy from device");
    return to;
  }
  void fill(int byte) { must(cudaMemset(data_, byte, size_ * sizeof(T)), "cudaMemset"); }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

/// A host batch's pages twice on the device side: in HBM and in pinned host memory, at shuffled
/// slots. A page can be read from either, so residency is one word a page.
class DeviceBatch {
 public:
  explicit DeviceBatch(Batch& host, std::uint64_t seed = 1) : host_(host) {
    const std::size_t pages = host.table.size();
    pitch_ = slot_bytes(host.shape.dtype, host.shape.page_tokens, host.shape.head_dim);
    hbm_ = DeviceArray<unsigned char>(pages * pitch_);
    must(cudaHostAlloc(reinterpret_cast<void**>(&pinned_), pages * pitch_, cudaHostAllocDefault),
         "cudaHostAlloc");
    order_.resize(pages);
    for (std::size_t i = 0; i < pages; ++i) order_[i] = static_cast<std::uint32_t>(i);
    Rng rng(seed);
    for (std::size_t i = pages; i > 1; --i)
      std::swap(order_[i - 1], order_[rng.below(static_cast<std::uint32_t>(i))]);
    for (std::size_t i = 0; i < pages; ++i) {
      if (host.table[i] == kAbsentPage) continue;
      std::memcpy(pinned_ + order_[i] * pitch_,
                  reinterpret_cast<void*>(entry_address(host.table[i])),
                  stored_page_bytes(entry_formats(host.table[i]), host.shape.page_tokens,
                                    host.shape.head_dim));
    }
    must(cudaMemcpy(hbm_.get(), pinned_, pages * pitch_, cudaMemcpyHostToDevice),
         "pages to device");
    q = DeviceArray<std::uint16_t>(host.q);
    out = DeviceArray<std::uint16_t>(host.q.size());
    lengths = DeviceArray<std::uint32_t>(host.lengths);
    table = DeviceArray<PageEntry>(pages);
    place([](std::size_t) { return false; });
  }
  DeviceBatch(const DeviceBatch&) = delete;
  ~DeviceBatch() { (void)cudaFreeHost(pinned_); }

  std::uint64_t hbm_address(std::size_t page) const {
    return reinterpret_cast<std::uint64_t>(hbm_.get()) + order_[page] * pitch_;
  }
  std::uint64_t host_address(std::size_t page) const {
    return reinterpret_cast<std::uint64_t>(pinned_) + order_[page] * pitch_;
  }
  std::uint64_t pool() const { return reinterpret_cast<std::uint64_t>(hbm_.get()); }
  std::uint32_t pitch() const { return static_cast<std::uint32_t>(pitch_); }
  std::uint32_t slot(std::size_t page) const { return order_[page]; }

  /// Puts page i on the host where over_link(i); the table's words change, nothing else.
  template <class OverLink>
  std::vector<PageEntry> place(OverLink&& over_link) {
    std::vector<PageEntry> entries(host_.table.size(), kAbsentPage);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (host_.table[i] == kAbsentPage) continue;
      const bool away = over_link(i);
      entries[i] =
          make_entry(away ? host_address(i) : hbm_address(i), away, entry_formats(host_.table[i]));
    }
    table.put(entries);
    return entries;
  }

  AttendParams params() const {
    AttendParams p;
    p.q = q.get();
    p.out = out.get();
    p.table = table.get();
    p.lengths = lengths.get();
    return p;
  }

  DeviceArray<std::uint16_t> q, out;
  DeviceArray<std::uint32_t> lengths;
  DeviceArray<PageEntry> table;

 private:
  Batch& host_;
  DeviceArray<unsigned char> hbm_;
  unsigned char* pinned_ = nullptr;
  std::size_t pitch_ = 0;
  std::vector<std::uint32_t> order_;
};

/// Scratch of attend, zeroed once.
struct Workspace {
  DeviceArray<unsigned char> memory;
  explicit Workspace(const StepShape& shape) {
    memory = DeviceArray<unsigned char>(must(attend_workspace_bytes(shape), "workspace"), 0);
  }
};

}  // namespace lehr::kernels::test
