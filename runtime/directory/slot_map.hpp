// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace lehr::directory {

/// Objects by a 48-bit id: generation (24 bits, never 0) and slot (24 bits). An id that was erased
/// is not found again until its slot was reused 2^24 times. `seed` makes two maps' ids differ.
template <class T>
class SlotMap {
 public:
  explicit SlotMap(std::uint32_t seed = 1) : seed_(seed) {}

  std::uint64_t insert(T value) {
    std::uint32_t slot = 0;
    if (free_.empty()) {
      slot = static_cast<std::uint32_t>(entries_.size());
      entries_.push_back({normal(seed_), std::nullopt});
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    entries_[slot].value.emplace(std::move(value));
    ++size_;
    return (std::uint64_t{entries_[slot].generation} << kSlotBits) | slot;
  }

  T* find(std::uint64_t id) {
    const std::uint64_t slot = id & kSlotMask;
    if (slot >= entries_.size() || entries_[slot].generation != id >> kSlotBits) return nullptr;
    return entries_[slot].value ? &*entries_[slot].value : nullptr;
  }
  const T* find(std::uint64_t id) const { return const_cast<SlotMap*>(this)->find(id); }

  void erase(std::uint64_t id) {
    if (find(id) == nullptr) return;
    Entry& entry = entries_[id & kSlotMask];
    entry.value.reset();
    entry.generation = normal(entry.generation + 1);
    free_.push_back(static_cast<std::uint32_t>(id & kSlotMask));
    --size_;
  }

  std::size_t size() const { return size_; }

  template <class Visit>
  void each(Visit visit) const {
    for (const Entry& entry : entries_) {
      if (entry.value) visit(*entry.value);
    }
  }

 private:
  static constexpr unsigned kSlotBits = 24;
  static constexpr std::uint64_t kSlotMask = (std::uint64_t{1} << kSlotBits) - 1;
  struct Entry {
    std::uint32_t generation;
    std::optional<T> value;
  };
  static std::uint32_t normal(std::uint32_t generation) {
    generation &= static_cast<std::uint32_t>(kSlotMask);
    return generation == 0 ? 1 : generation;
  }

  std::uint32_t seed_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> free_;
  std::size_t size_ = 0;
};

}  // namespace lehr::directory
