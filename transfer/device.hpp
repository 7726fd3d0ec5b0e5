// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/result.hpp"
#include "kernels/move.hpp"
#include "transfer/arena.hpp"
#include "transfer/mover.hpp"

/// GPUs as the transfer layer sees them: their memory, memory that they reach, and the movers that
/// run on them. No CUDA types here; builds without CUDA, and machines without a GPU, answer
/// kUnsupported.
namespace lehr::transfer {

struct DeviceInfo {
  std::int32_t ordinal = 0;
  std::string name;
  Bytes memory_bytes = 0;
  Bytes free_bytes = 0;
  std::uint32_t sms = 0;
  std::uint32_t copy_engines = 0;
  Bytes l2_bytes = 0;
  Bytes l2_persisting_bytes = 0;
  double hbm_peak = 0;  ///< bytes/s by clock and bus width; 0: not told
  bool bulk_copies = false;
  std::string driver, runtime;  ///< versions
  std::optional<unsigned> numa_node;
};

/// The GPUs of this machine; empty where there is none.
std::vector<DeviceInfo> devices();
/// Seconds that a device needs to read through memory that it reaches, each byte once: `passes` of
/// them after one to warm up. The best of several grids when `ctas` is 0. Blocks until it is done.
Result<std::vector<double>> read_passes(std::int32_t device, const std::byte* memory, Bytes bytes,
                                        std::uint32_t ctas, std::uint32_t passes);
/// Seconds that a move of one page adds to a captured graph: from the end of the node before to the
/// end of its own. What a decode step pays that starts moves by itself.
Result<double> graph_move_seconds(std::int32_t device, const std::byte* from, std::byte* to,
                                  std::uint32_t bytes);
/// Seconds to read `hot` bytes again after `cold` others went by, both of the device's own memory
/// at `memory` in this order: with the hot ones under an access-policy window, and without.
struct WindowGain {
  double without = 0, with = 0;
};
Result<WindowGain> window_gain(std::int32_t device, const std::byte* memory, Bytes hot, Bytes cold);
/// Copies memory of a device to the host; blocks until it is there.
Status fetch_from_device(std::byte* to, const std::byte* from, Bytes bytes);
/// Whether `reader` can map and read memory of `owner`; the reason when it cannot.
Status peer_access(std::int32_t reader, std::int32_t owner);

struct DeviceMemoryConfig {
  std::int32_t device = 0;
  Bytes bytes = 0;                     ///< mapped at once
  Bytes reserve = 0;                   ///< addresses, at least `bytes`; 0: just those
  std::vector<std::int32_t> readers;   ///< other devices that read and write it
  std::uint32_t fail_mapping_nth = 0;  ///< fault injection: this mapping is out of memory, from 1
};

/// Memory of a device behind a base that never moves: captured graphs and page tables stay valid
/// while it grows and shrinks. Sizes are rounded up to the device's granularity. Thread safe.
class DeviceMemory {
 public:
  static Result<std::shared_ptr<DeviceMemory>> create(const DeviceMemoryConfig& config);
  virtual ~DeviceMemory() = default;

  virtual std::byte* base() const = 0;
  virtual Bytes mapped() const = 0;
  virtual Bytes reserved() const = 0;
  virtual std::int32_t device() const = 0;
  /// Maps or unmaps at the end, until at least `bytes` are mapped and no whole granule more.
  /// Growing is refused with kOverBudget past the reserve or the device's memory; then nothing
  /// changed. Nothing on any device may use what is unmapped.
  virtual Status resize(Bytes bytes) = 0;
};

/// The whole reserve as an arena's region; pages past what is mapped must stay withheld
/// (SlotPool::set_limit).
MemoryRegion region_of(const std::shared_ptr<DeviceMemory>& memory);

struct PinnedMemoryConfig {
  HostMemoryConfig memory;
  /// Registered piece by piece, so that no call holds the driver's locks for long; a page must not
  /// lie across the end of a piece. Rounded down to a multiple of `page_stride`.
  Bytes chunk_bytes = 512 * kMiB;
  Bytes page_stride = 4096;
  std::uint32_t fail_chunk_nth = 0;  ///< fault injection: registering this piece is refused, from 1
};

/// Host memory that devices read and write, made present and registered in the background: what
/// ready_bytes() covers serves already. Thread safe.
class PinnedMemory {
 public:
  static Result<std::shared_ptr<PinnedMemory>> create(const PinnedMemoryConfig& config);
  virtual ~PinnedMemory() = default;

  virtual std::byte* base() const = 0;
  virtual Bytes size() const = 0;
  virtual Bytes chunk_bytes() const = 0;
  virtual Bytes ready_bytes() const = 0;
  /// Waits until all is ready; kPending past the bound, or why registering stopped (what is ready
  /// stays so).
  virtual Status wait(std::int64_t bound_ns) = 0;
  virtual std::vector<std::string> notices() const = 0;
};
MemoryRegion region_of(const std::shared_ptr<PinnedMemory>& memory);

enum class DeviceCopy : std::uint8_t {
  kEngine,  ///< copy engine; neighbours merged into runs
  kBatch,   ///< the driver's batched copies, in bounded chunks
  kRing,    ///< few one-warp CTAs that run bulk copies
  kStaged,  ///< gathered in a buffer of the device, then one bulk copy for each run on the far side
};

struct DeviceMoverConfig {
  /// The event of a batch blocks whoever records too many of its kind on a stream, launches and
  /// copies block at about a thousand (MEASURED.md).
  static constexpr std::uint32_t kMostBatches = 32;
  std::int32_t device = 0;  ///< whose streams and SMs do the work
  DeviceCopy copy = DeviceCopy::kRing;
  kernels::MoveRing ring;
  std::uint32_t urgent_ctas = 16;  ///< for jobs that a step waits for; budgets do not bind them
  /// Background work at the priority of compute: its kernels then start only once all CTAs of a
  /// compute kernel have, which under saturating ones leaves the link idle most of the time. Off,
  /// they start at once, and the number of CTAs alone bounds what they take.
  bool yielding = false;
  kernels::PageLayout layout;  ///< piece_bytes 0: pages keep their layout
  /// What one launch moves at most. A kernel beside saturating ones waits for room on its SMs each
  /// time that it is launched: longer launches reach more of the link then, and disturb less.
  Bytes batch_bytes = 24 * kMiB;
  /// Launches in flight, at most kMostBatches: bounds how long an urgent job waits.
  std::uint32_t batches = 2;
  std::uint32_t queue = 1U << 16;
  Bytes seam_bytes = 0;  ///< runs end at multiples of this from `seam_base`
  const std::byte* seam_base = nullptr;
};

/// A mover on non-blocking streams of its own, other ones for urgent jobs. Jobs of one launch end
/// together.
Result<std::unique_ptr<Mover>> make_device_mover(const DeviceMoverConfig& config);

/// An event of the caller's work (a cudaEvent_t), and leases that end when it has passed: how a
/// slot is kept until its last reader on a stream is done. Not thread safe.
class EventLeases {
 public:
  EventLeases();
  ~EventLeases();  ///< waits for what is left
  EventLeases(const EventLeases&) = delete;
  EventLeases& operator=(const EventLeases&) = delete;

  /// Ends the leases once all work enqueued on `stream` (a cudaStream_t) so far is done.
  Status after(void* stream, std::vector<Lease> leases);
  /// Ends what is due; returns how many groups still wait.
  std::size_t poll();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lehr::transfer
