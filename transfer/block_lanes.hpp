// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/result.hpp"
#include "kernels/move.hpp"
#include "transfer/arena.hpp"
#include "transfer/mover_choice.hpp"

/// Moves between memory that somebody else owns on a device (an engine's pools) and host memory, in
/// the order of that somebody's own streams. Unlike an engine's movers these say at once, by events
/// of the device, when the bytes will have moved: work can be enqueued behind them without waiting.
namespace lehr::transfer {

/// What must have run before a move: what was enqueued on a stream (a cudaStream_t; null is the
/// device's default stream), and events (cudaEvent_t) that were recorded.
struct StreamOrder {
  void* stream = nullptr;
  bool after_stream = false;
  std::span<void* const> events;
};

/// A few bytes in a device's memory that the host writes: entries of a table.
struct SmallWrite {
  std::byte* to = nullptr;
  Bytes bytes = 0;
  std::byte absent{};  ///< what every byte of it is where there is no value
};
/// A copy within a device's memory.
struct SmallCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  Bytes bytes = 0;
};

/// One flight of pages that share a layout.
struct FlightPlan {
  bool inward = false;                     ///< from host memory to the device
  kernels::PageLayout layout;              ///< of every pair, in the direction of the flight
  std::uint32_t pairs = 0;                 ///< 0: nothing moves, the flight is a point in the order
  std::vector<kernels::PagePair> outward;  ///< of an outward flight: its pairs
  std::vector<std::uint32_t> cuts;  ///< pairs after which there is an event; ascending, to `pairs`
  /// Of an inward flight: absent before anything moves, written when all has.
  std::vector<SmallWrite> entries;
};

/// Moves that were enqueued. Destroying one that was never opened lets it go with nothing to move,
/// at once; one whose bytes move is waited for.
class Flight {
 public:
  virtual ~Flight() = default;
  /// Of an inward flight, until open(): all zero at first, and a pair that stays so moves nothing.
  virtual std::span<kernels::PagePair> pairs() = 0;
  /// What will be in the plan's entries, one after the other: absent at first, until open().
  virtual std::span<std::byte> entries() = 0;
  /// An inward flight moves nothing before this. Never waits; once.
  virtual void open() = 0;
  /// Whether all of it has run; the device's error if it failed.
  virtual Result<bool> ended() = 0;
  /// What is enqueued on `stream` from now on runs after the pairs of cuts 0 .. `cut`.
  virtual Status hold(void* stream, std::size_t cut) = 0;
  /// The event (a cudaEvent_t) after the last cut; it is the flight's, as long as that lives.
  virtual void* event() = 0;
};

/// Two lanes of one device, inward and outward; flights of a lane run in the order of their start.
/// Thread safe, except that a flight's pairs belong to whoever opens it. Nothing waits but the ends
/// of flights and of the lanes.
class BlockLanes {
 public:
  virtual ~BlockLanes() = default;

  /// Host memory that the device reads and writes, for slots of `stride` bytes.
  virtual Result<MemoryRegion> host_memory(Bytes bytes, Bytes stride) = 0;
  /// kInvalid, with what it is instead, unless all of it is memory of this device.
  virtual Status check_device_memory(const std::byte* base, Bytes bytes) = 0;
  /// kInvalid if it is memory that the host cannot read and write.
  virtual Status check_host_memory(const std::byte* base, Bytes bytes) = 0;
  /// kInvalid for a stream of another device, kUnsupported for one that is being captured.
  virtual Status check_stream(void* stream) = 0;

  /// How many launches, copies, events and waits the lane takes before it refuses.
  virtual std::uint32_t room(bool inward) const = 0;
  /// Enqueues flights of one direction, at least one, all of them or none; the pairs of inward ones
  /// are filled later. Refused with kOverBudget while too much is enqueued; after any refusal
  /// nothing moves.
  virtual Result<std::vector<std::unique_ptr<Flight>>> start(std::span<const FlightPlan> plans,
                                                             const StreamOrder& after) = 0;

  /// Memory of the device, every byte of it `fill`, freed with its last owner.
  virtual Result<std::shared_ptr<std::byte>> device_memory(Bytes bytes, std::byte fill) = 0;
  /// In the order of a stream: writes of `values`, one after the other, which are copied before
  /// this returns; then copies.
  virtual Status put(std::span<const SmallWrite> writes, std::span<const std::byte> values,
                     std::span<const SmallCopy> copies, void* stream) = 0;

  /// Calls `tell` (from any thread; it must return at once) whenever a flight has ended. Once,
  /// before the first start.
  virtual void on_end(std::function<void()> tell) = 0;
};

struct BlockLanesConfig {
  std::int32_t device = 0;
  /// What a profile says of movers from the device to host memory; without, rings move everything.
  /// Inward always rings: only they can leave out what turned out to be wrong.
  std::vector<MoverCurve> outward;
  kernels::MoveRing in_ring{8, 4, 32768, 2, false, false};
  kernels::MoveRing out_ring{4, 4, 32768, 2, false, false};
  /// Launches, copies, events and waits on a lane that have not run. A thousand or so fill a queue
  /// of the device, which streams share; the call that comes then would wait.
  std::uint32_t most_enqueued = 384;
  Bytes list_bytes = 16 * kMiB;  ///< pinned: lists of pairs that have not run, 16 bytes each
};

/// kUnsupported in a build without CUDA, and where there is no such device.
Result<std::unique_ptr<BlockLanes>> make_block_lanes(const BlockLanesConfig& config);

}  // namespace lehr::transfer
