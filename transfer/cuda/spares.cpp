// SPDX-License-Identifier: Apache-2.0
#include "transfer/cuda/spares.hpp"

#include <iterator>
#include <string>

namespace lehr::transfer::cuda {

namespace {

/// Not cudaEventBlockingSync: behind work that waits, the 57th record of such an event on a stream
/// blocks its caller (transfer/MEASURED.md).
Result<SharedEvent> new_event() {
  cudaEvent_t raw = nullptr;
  LEHR_CUDA_TRY(cudaEventCreateWithFlags(&raw, cudaEventDisableTiming));
  return std::make_shared<Event>(raw);
}

}  // namespace

Status Spares::open(Bytes bytes, std::uint32_t events) {
  void* raw = nullptr;
  LEHR_CUDA_TRY(cudaHostAlloc(&raw, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
  memory_ = HostBuffer(raw);
  free_[static_cast<std::byte*>(raw)] = bytes;
  for (std::uint32_t i = 0; i < events; ++i) {
    LEHR_ASSIGN(SharedEvent made, new_event());
    events_.push_back(std::move(made));
  }
  return {};
}

Result<SharedEvent> Spares::event() {
  {
    const std::lock_guard lock(mutex_);
    look_later();
    if (!events_.empty()) {
      SharedEvent last = std::move(events_.back());
      events_.pop_back();
      return last;
    }
  }
  return new_event();
}

Result<Spares::List> Spares::list(Bytes bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::lock_guard lock(mutex_);
  look_later();
  for (auto piece = free_.begin(); piece != free_.end(); ++piece) {
    if (piece->second < bytes) continue;
    const List list{piece->first, bytes};
    const Bytes rest = piece->second - bytes;
    free_.erase(piece);
    if (rest > 0) free_[list.memory + bytes] = rest;
    return list;
  }
  return refused(Reason::kOverBudget, "device: lists of moves of " + std::to_string(bytes) +
                                          " bytes find no room now; ask for fewer blocks in one "
                                          "job, or again as jobs end");
}

void Spares::give_back(std::vector<SharedEvent> events, List list) {
  const std::lock_guard lock(mutex_);
  keep(std::move(events), list);
}

void Spares::give_back_later(std::vector<SharedEvent> events, List list) {
  const std::lock_guard lock(mutex_);
  later_.emplace_back(std::move(events), list);
}

void Spares::look_later() {
  if (later_.empty()) return;
  std::erase_if(later_, [&](auto& waiting) {
    if (cudaEventQuery(waiting.first.back()->get()) == cudaErrorNotReady) return false;
    keep(std::move(waiting.first), waiting.second);
    return true;
  });
  (void)cudaGetLastError();
}

void Spares::keep(std::vector<SharedEvent> events, List list) {
  for (SharedEvent& event : events) {
    // One that somebody still waits on must not be recorded again.
    if (event.use_count() == 1) events_.push_back(std::move(event));
  }
  if (list.memory == nullptr) return;
  auto piece = free_.emplace(list.memory, list.bytes).first;
  if (const auto next = std::next(piece);
      next != free_.end() && piece->first + piece->second == next->first) {
    piece->second += next->second;
    free_.erase(next);
  }
  if (piece == free_.begin()) return;
  if (const auto before = std::prev(piece); before->first + before->second == piece->first) {
    before->second += piece->second;
    free_.erase(piece);
  }
}

}  // namespace lehr::transfer::cuda
