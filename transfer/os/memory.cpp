// SPDX-License-Identifier: Apache-2.0
#include "transfer/os/memory.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>

#include <numa.h>
#include <sys/mman.h>

#include "transfer/os/fd.hpp"

namespace lehr::transfer {
namespace {

constexpr Bytes kTouchChunk = 16 * kMiB;
constexpr Bytes kHugePage = 2 * kMiB;

std::optional<std::string> bind_to_node(std::byte* data, Bytes bytes, unsigned node) {
  if (numa_available() < 0) return "NUMA binding is not available here; memory is not bound";
  if (node > static_cast<unsigned>(numa_max_node())) {
    return "NUMA node " + std::to_string(node) + " does not exist; memory is not bound";
  }
  // numa_tonode_memory reports refusals through errno only.
  errno = 0;
  numa_tonode_memory(data, bytes, static_cast<int>(node));
  if (errno != 0) {
    return "binding to NUMA node " + std::to_string(node) + " was refused (" +
           std::generic_category().message(errno) + "); memory is not bound";
  }
  return std::nullopt;
}

/// Cuts a map of `bytes` and one huge page down to `bytes` from a multiple of huge pages on.
std::byte* align_map(std::byte* base, Bytes bytes) {
  const Bytes system_page = static_cast<Bytes>(::sysconf(_SC_PAGESIZE));
  const Bytes before = (kHugePage - reinterpret_cast<std::uintptr_t>(base) % kHugePage) % kHugePage;
  const Bytes kept = (bytes + system_page - 1) / system_page * system_page;
  const Bytes mapped = (bytes + kHugePage + system_page - 1) / system_page * system_page;
  if (before != 0) ::munmap(base, before);
  if (mapped > before + kept) ::munmap(base + before + kept, mapped - before - kept);
  return base + before;
}

void touch(std::byte* data, Bytes bytes) {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return;
#endif
  const auto page = static_cast<Bytes>(::sysconf(_SC_PAGESIZE));
  for (Bytes at = 0; at < bytes; at += page) {
    volatile std::byte& first = data[at];
    first = first;
  }
}

}  // namespace

void make_present(std::byte* data, Bytes bytes, unsigned threads) {
  std::atomic<Bytes> next{0};
  const auto work = [&] {
    for (;;) {
      const Bytes at = next.fetch_add(kTouchChunk);
      if (at >= bytes) return;
      touch(data + at, std::min(kTouchChunk, bytes - at));
    }
  };
  std::vector<std::jthread> helpers;
  const Bytes chunks = (bytes + kTouchChunk - 1) / kTouchChunk;
  for (unsigned i = 1; i < threads && i < chunks; ++i) helpers.emplace_back(work);
  work();
}

Result<HostMemory> HostMemory::create(const HostMemoryConfig& config) {
  if (config.bytes == 0) return invalid("host memory of 0 bytes");
  // Huge pages need their alignment: room for it is mapped too, and given back.
  const Bytes slack = config.huge_pages && config.bytes >= kHugePage ? kHugePage : 0;
  void* base = ::mmap(nullptr, config.bytes + slack, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    Error failure =
        os_error("mapping " + std::to_string(config.bytes) + " bytes of host memory", error);
    if (error == ENOMEM) failure.reason = Reason::kOverBudget;
    return failure;
  }
  if (slack != 0) base = align_map(static_cast<std::byte*>(base), config.bytes);
  HostMemory memory(static_cast<std::byte*>(base), config.bytes);
  if (config.huge_pages) ::madvise(base, config.bytes, MADV_HUGEPAGE);
  if (config.numa_node) {
    // Before the first touch: binding moves no page that is already present.
    if (auto notice = bind_to_node(memory.data_, memory.size_, *config.numa_node)) {
      memory.notices_.push_back(std::move(*notice));
    }
  }
  if (config.present) make_present(memory.data_, memory.size_, std::max(1U, config.touch_threads));
  return memory;
}

HostMemory::HostMemory(HostMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      notices_(std::move(other.notices_)) {}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(notices_, other.notices_);
  return *this;
}

HostMemory::~HostMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace lehr::transfer
