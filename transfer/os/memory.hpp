// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"

namespace lehr::transfer {

struct HostMemoryConfig {
  Bytes bytes = 0;
  std::optional<unsigned> numa_node;  ///< bind there; where the machine refuses, a notice says so
  unsigned touch_threads = 2;         ///< pages are made present in parallel, before first use
  bool huge_pages = true;             ///< a hint only
  bool present = true;                ///< false: make_present() is the caller's affair
};

/// Makes mapped pages present, in parallel; what they hold is kept.
void make_present(std::byte* data, Bytes bytes, unsigned threads);

/// Owner of an anonymous private map: page-aligned, zeroed, and (unless the configuration says
/// otherwise) present in memory when create() returns.
class HostMemory {
 public:
  static Result<HostMemory> create(const HostMemoryConfig& config);

  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory();

  std::byte* data() const { return data_; }
  Bytes size() const { return size_; }
  /// What was asked for and could not be had (binding refused, touch by hand).
  const std::vector<std::string>& notices() const { return notices_; }

 private:
  HostMemory(std::byte* data, Bytes size) : data_(data), size_(size) {}

  std::byte* data_ = nullptr;
  Bytes size_ = 0;
  std::vector<std::string> notices_;
};

}  // namespace lehr::transfer
