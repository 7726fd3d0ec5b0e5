// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include <sys/types.h>

#include "kernels/base/result.hpp"
#include "runtime/capi/instance.hpp"
#include "runtime/directory/slot_map.hpp"
#include "runtime/formats/attention_trace.hpp"

namespace lehr::capi {

/// What a handle names; its top byte.
enum class Kind : std::uint8_t {
  kRuntime = 1,
  kSequence = 2,
  kNamespace = 3,
  kPool = 4,
  kJob = 5,
  kLease = 6,
  kClaim = 7,
  kTrace = 8,
  kGroup = 9,
  kGroupSequence = 10,
  kTable = 11,
};

/// handle = kind (8 bits) | runtime tag (8) | generation (24) | slot (24). The tag and the
/// generations' seed differ between runtimes, so that one's handles mean nothing to another.
std::uint64_t make_handle(Kind kind, std::uint8_t tag, std::uint64_t id);
inline std::uint64_t make_handle(Kind kind, const Instance& instance, std::uint64_t id) {
  return make_handle(kind, instance.tag, id);
}
/// The 48-bit id of a handle that is of this kind and runtime; else kStale.
Result<std::uint64_t> handle_id(Kind kind, std::uint8_t tag, std::uint64_t handle);
inline Result<std::uint64_t> handle_id(Kind kind, const Instance& instance, std::uint64_t handle) {
  return handle_id(kind, instance.tag, handle);
}

/// What a lehr_trace handle stands for.
struct OpenTrace {
  OpenTrace(formats::AttentionTraceWriter to, formats::AttentionMeta of, bool peak)
      : writer(std::move(to)), meta(std::move(of)), with_peak(peak) {}

  formats::AttentionTraceWriter writer;
  formats::AttentionMeta meta;
  bool with_peak;
  std::mutex mutex;
};

struct Group;

/// The runtimes of the process by handle: the one mutable global beside the thread's latest error.
/// It is never destroyed, as threads of runtimes that were not closed may outlive static
/// destructors.
class Registry {
 public:
  /// Null in a forked child of a process that used the library.
  static Registry* get();

  std::uint64_t add(const std::shared_ptr<Instance>& instance);
  /// Calls under way keep what they found alive.
  Result<std::shared_ptr<Instance>> find(std::uint64_t handle);
  Result<std::shared_ptr<Instance>> remove(std::uint64_t handle);
  /// Traces that are being written belong to no runtime.
  std::uint64_t add_trace(std::shared_ptr<OpenTrace> trace);
  Result<std::shared_ptr<OpenTrace>> find_trace(std::uint64_t handle);
  Result<std::shared_ptr<OpenTrace>> remove_trace(std::uint64_t handle);
  std::uint64_t add_group(std::shared_ptr<Group> group);
  Result<std::shared_ptr<Group>> find_group(std::uint64_t handle);
  Result<std::shared_ptr<Group>> remove_group(std::uint64_t handle);
  /// Another number for each runtime, to tell their ids apart.
  std::uint32_t next_seed() { return seeds_.fetch_add(1) * 7919U + 1U; }

 private:
  Registry();
  bool is_forked() const;

  std::mutex mutex_;
  directory::SlotMap<std::shared_ptr<Instance>> instances_;
  directory::SlotMap<std::shared_ptr<OpenTrace>> traces_;
  directory::SlotMap<std::shared_ptr<Group>> groups_;
  std::atomic<std::uint32_t> seeds_{1};
  const volatile std::uint8_t* not_forked_ = nullptr;  ///< a page that the kernel wipes in children
  pid_t owner_ = 0;                                    ///< where the kernel has no such page
};

}  // namespace lehr::capi
