// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <vector>

#include "runtime/contents/kv_device.hpp"

namespace lehr::contents {

/// Lists on their way to a device: pinned memory in two halves. What was taken stays until the half
/// is used again, one turn() later, for which the device must have passed the turn() between.
class Staging {
 public:
  explicit Staging(KvDevice& device) : device_(device) {}
  ~Staging() {
    for (const Half& half : halves_) {
      for (const Block& block : half.blocks) device_.release(block);
    }
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Waits for the device, should it be more than a turn behind.
  Status turn() {
    Half& old = halves_[at_];
    LEHR_ASSIGN(old.main, device_.mark(Lane::kMain));
    LEHR_ASSIGN(old.side, device_.mark(Lane::kSide));
    old.marked = true;
    at_ = 1 - at_;
    Half& now = halves_[at_];
    if (now.marked) {
      LEHR_TRY(device_.wait_host(now.main));
      LEHR_TRY(device_.wait_host(now.side));
    }
    now.block = 0;
    now.used = 0;
    return {};
  }

  /// The list as the device sees it.
  template <class T>
  Result<std::uint64_t> put(std::span<const T> items) {
    LEHR_ASSIGN(const Block room, take(items.size_bytes()));
    std::copy(items.begin(), items.end(), reinterpret_cast<T*>(room.host));
    return room.device;
  }

  /// Room to write to.
  Result<Block> take(Bytes bytes) {
    Half& half = halves_[at_];
    const Bytes wanted = (bytes + 127) / 128 * 128;
    while (half.block < half.blocks.size() && half.used + wanted > half.blocks[half.block].bytes) {
      ++half.block;
      half.used = 0;
    }
    if (half.block == half.blocks.size()) {
      LEHR_ASSIGN(const Block made, device_.pinned(wanted > kMiB ? wanted + wanted / 4 : kMiB));
      half.blocks.push_back(made);
      half.used = 0;
    }
    const Block& block = half.blocks[half.block];
    const Block room{block.device + half.used, block.host + half.used, bytes};
    half.used += wanted;
    return room;
  }

 private:
  struct Half {
    std::vector<Block> blocks;
    std::size_t block = 0;
    Bytes used = 0;
    Mark main = 0, side = 0;
    bool marked = false;
  };
  KvDevice& device_;
  std::array<Half, 2> halves_;
  std::size_t at_ = 0;
};

}  // namespace lehr::contents
