// SPDX-License-Identifier: Apache-2.0
#include "runtime/capi/handles.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include "runtime/capi/group.hpp"

namespace lehr::capi {

namespace {

constexpr unsigned kKindShift = 56;
constexpr unsigned kTagShift = 48;
constexpr std::uint64_t kIdMask = (std::uint64_t{1} << kTagShift) - 1;

Error stale(const char* what) { return {Code::kStale, Reason::kNone, what}; }

}  // namespace

std::uint64_t make_handle(Kind kind, std::uint8_t tag, std::uint64_t id) {
  return (static_cast<std::uint64_t>(kind) << kKindShift) | (std::uint64_t{tag} << kTagShift) |
         (id & kIdMask);
}

Result<std::uint64_t> handle_id(Kind kind, std::uint8_t tag, std::uint64_t handle) {
  if (handle == 0) return stale("a null handle");
  if (handle >> kKindShift != static_cast<std::uint64_t>(kind))
    return stale("a handle of another kind");
  if (((handle >> kTagShift) & 0xFF) != tag) return stale("a handle of another runtime");
  return handle & kIdMask;
}

Registry::Registry() {
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page != MAP_FAILED && ::madvise(page, 4096, MADV_WIPEONFORK) == 0) {
    *static_cast<std::uint8_t*>(page) = 1;
    not_forked_ = static_cast<const volatile std::uint8_t*>(page);
  } else {
    owner_ = ::getpid();
  }
}

bool Registry::is_forked() const {
  return not_forked_ != nullptr ? *not_forked_ == 0 : ::getpid() != owner_;
}

Registry* Registry::get() {
  // Never deleted; and before any lock is taken, as a lock may have been held at the moment of the
  // fork.
  static Registry* const registry = new Registry;
  return registry->is_forked() ? nullptr : registry;
}

std::uint64_t Registry::add(const std::shared_ptr<Instance>& instance) {
  const std::lock_guard<std::mutex> hold(mutex_);
  const std::uint64_t id = instances_.insert(instance);
  instance->tag = static_cast<std::uint8_t>(id & 0xFF);
  return (static_cast<std::uint64_t>(Kind::kRuntime) << kKindShift) | id;
}

Result<std::shared_ptr<Instance>> Registry::find(std::uint64_t handle) {
  if (handle == 0) return stale("a null runtime");
  if (handle >> kTagShift != static_cast<std::uint64_t>(Kind::kRuntime)
                                 << (kKindShift - kTagShift)) {
    return stale("not a handle of a runtime");
  }
  const std::lock_guard<std::mutex> hold(mutex_);
  const std::shared_ptr<Instance>* found = instances_.find(handle & kIdMask);
  if (found == nullptr) return stale("the runtime was closed");
  return *found;
}

Result<std::shared_ptr<Instance>> Registry::remove(std::uint64_t handle) {
  LEHR_ASSIGN(std::shared_ptr<Instance> found, find(handle));
  const std::lock_guard<std::mutex> hold(mutex_);
  if (instances_.find(handle & kIdMask) == nullptr) return stale("the runtime was closed");
  instances_.erase(handle & kIdMask);
  return found;
}

std::uint64_t Registry::add_trace(std::shared_ptr<OpenTrace> trace) {
  const std::lock_guard<std::mutex> hold(mutex_);
  return (static_cast<std::uint64_t>(Kind::kTrace) << kKindShift) |
         traces_.insert(std::move(trace));
}

Result<std::shared_ptr<OpenTrace>> Registry::find_trace(std::uint64_t handle) {
  if (handle >> kTagShift != static_cast<std::uint64_t>(Kind::kTrace) << (kKindShift - kTagShift))
    return stale("not a handle of a trace");
  const std::lock_guard<std::mutex> hold(mutex_);
  const std::shared_ptr<OpenTrace>* found = traces_.find(handle & kIdMask);
  if (found == nullptr) return stale("the trace was closed");
  return *found;
}

Result<std::shared_ptr<OpenTrace>> Registry::remove_trace(std::uint64_t handle) {
  LEHR_ASSIGN(std::shared_ptr<OpenTrace> found, find_trace(handle));
  const std::lock_guard<std::mutex> hold(mutex_);
  if (traces_.find(handle & kIdMask) == nullptr) return stale("the trace was closed");
  traces_.erase(handle & kIdMask);
  return found;
}

std::uint64_t Registry::add_group(std::shared_ptr<Group> group) {
  const std::lock_guard<std::mutex> hold(mutex_);
  Group& added = *group;
  const std::uint64_t id = groups_.insert(std::move(group));
  added.tag = static_cast<std::uint8_t>(id & 0xFF);
  return (static_cast<std::uint64_t>(Kind::kGroup) << kKindShift) | id;
}

Result<std::shared_ptr<Group>> Registry::find_group(std::uint64_t handle) {
  if (handle == 0) return stale("a null group");
  if (handle >> kTagShift != static_cast<std::uint64_t>(Kind::kGroup) << (kKindShift - kTagShift))
    return stale("not a handle of a group");
  const std::lock_guard<std::mutex> hold(mutex_);
  const std::shared_ptr<Group>* found = groups_.find(handle & kIdMask);
  if (found == nullptr) return stale("the group was closed");
  return *found;
}

Result<std::shared_ptr<Group>> Registry::remove_group(std::uint64_t handle) {
  LEHR_ASSIGN(std::shared_ptr<Group> found, find_group(handle));
  const std::lock_guard<std::mutex> hold(mutex_);
  if (groups_.find(handle & kIdMask) == nullptr) return stale("the group was closed");
  groups_.erase(handle & kIdMask);
  return found;
}

}  // namespace lehr::capi
