// SPDX-License-Identifier: Apache-2.0
#include "transfer/block_lanes.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>

#include <cudaTypedefs.h>

#include "transfer/cuda/driver.hpp"
#include "transfer/cuda/handles.hpp"
#include "transfer/device.hpp"

namespace lehr::transfer {
namespace {

using cuda::DeviceScope;

constexpr Bytes kGateBytes = 64;           ///< before the pairs of a list: the gate's word
constexpr Bytes kGranule = 2 * kMiB;       ///< of mapped device memory
constexpr std::uint32_t kPartForRuns = 4;  ///< of a lane's room, that copies of one flight take
constexpr std::uint32_t kEvents = 1024;
constexpr std::int64_t kRegistering = 600'000'000'000;
/// Pauses between looks at a flight, in proportion to how long it has been waited for: the first
/// finds the shortest moves, the last costs 0.5 % of a core while a flight waits.
constexpr std::chrono::microseconds kFirstLook{20}, kLastLook{500};
constexpr int kLooksInTime = 8;  ///< so it is found at most an eighth late

std::uint64_t address(const void* p) { return reinterpret_cast<std::uint64_t>(p); }
void* at(std::uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

using SharedEvent = std::shared_ptr<cuda::Event>;

/// Events and pinned lists between flights. All that is needed is made at the start: what the
/// driver is asked for later may wait for work of the device, and that for what is being enqueued.
class Spares {
 public:
  /// A piece of the pinned memory.
  struct List {
    std::byte* memory = nullptr;
    Bytes bytes = 0;
  };

  Status open(Bytes bytes, std::uint32_t events) {
    void* raw = nullptr;
    LEHR_CUDA_TRY(cudaHostAlloc(&raw, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
    memory_ = cuda::HostBuffer(raw);
    free_[static_cast<std::byte*>(raw)] = bytes;
    for (std::uint32_t i = 0; i < events; ++i) {
      LEHR_ASSIGN(SharedEvent made, new_event());
      events_.push_back(std::move(made));
    }
    return {};
  }

  Result<SharedEvent> event() {
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
  /// The first piece that is long enough; kOverBudget while there is none.
  Result<List> list(Bytes bytes) {
    bytes = (bytes + kGateBytes - 1) / kGateBytes * kGateBytes;
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
  void give_back(std::vector<SharedEvent> events, List list) {
    const std::lock_guard lock(mutex_);
    keep(std::move(events), list);
  }
  /// Once the last of the events has passed.
  void give_back_later(std::vector<SharedEvent> events, List list) {
    const std::lock_guard lock(mutex_);
    later_.emplace_back(std::move(events), list);
  }

 private:
  /// Not cudaEventBlockingSync: behind work that waits, the 57th record of such an event on a
  /// stream blocks its caller (transfer/MEASURED.md).
  static Result<SharedEvent> new_event() {
    cudaEvent_t raw = nullptr;
    LEHR_CUDA_TRY(cudaEventCreateWithFlags(&raw, cudaEventDisableTiming));
    return std::make_shared<cuda::Event>(raw);
  }
  void look_later() {
    if (later_.empty()) return;
    std::erase_if(later_, [&](auto& waiting) {
      if (cudaEventQuery(waiting.first.back()->get()) == cudaErrorNotReady) return false;
      keep(std::move(waiting.first), waiting.second);
      return true;
    });
    (void)cudaGetLastError();
  }
  void keep(std::vector<SharedEvent> events, List list) {
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

  std::mutex mutex_;
  cuda::HostBuffer memory_;
  std::map<std::byte*, Bytes> free_;  ///< pieces by address; neighbours are one
  std::vector<SharedEvent> events_;
  std::vector<std::pair<std::vector<SharedEvent>, List>> later_;
};

/// A stream, and a thread that looks at the oldest flight's last event, ever less often, and tells
/// of its end. No call back by the driver: those take turns with everybody's in the process.
class Lane {
 public:
  Lane(std::int32_t device, cuda::Stream stream, const std::function<void()>& tell)
      : device_(device), stream_(std::move(stream)), tell_(tell) {
    watcher_ = std::jthread([this] { run(); });
  }
  ~Lane() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    watcher_.join();
    (void)cudaStreamSynchronize(stream_.get());
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  cudaStream_t stream() const { return stream_.get(); }
  void watch(SharedEvent event) {
    {
      const std::lock_guard lock(mutex_);
      watched_.push_back(std::move(event));
    }
    changed_.notify_all();
  }

  std::atomic<std::uint32_t> enqueued{0};

 private:
  void run() {
    (void)cudaSetDevice(device_);
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stopping_ || !watched_.empty(); });
      if (stopping_) return;
      SharedEvent oldest = std::move(watched_.front());
      watched_.pop_front();
      const auto start = std::chrono::steady_clock::now();
      while (cudaEventQuery(oldest->get()) == cudaErrorNotReady) {
        const std::chrono::nanoseconds pause = std::clamp<std::chrono::nanoseconds>(
            (std::chrono::steady_clock::now() - start) / kLooksInTime, kFirstLook, kLastLook);
        if (changed_.wait_for(lock, pause, [&] { return stopping_; })) return;
      }
      lock.unlock();
      oldest.reset();
      if (tell_) tell_();
      lock.lock();
    }
  }

  std::int32_t device_;
  cuda::Stream stream_;
  const std::function<void()>& tell_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<SharedEvent> watched_;
  bool stopping_ = false;
  std::jthread watcher_;
};

class CudaFlight final : public Flight {
 public:
  CudaFlight(std::int32_t device, std::shared_ptr<Spares> spares, std::shared_ptr<Lane> lane)
      : device_(device), spares_(std::move(spares)), lane_(std::move(lane)) {}
  ~CudaFlight() override {
    if (gate_ != nullptr && !opened_) {
      std::fill(pairs().begin(), pairs().end(), kernels::PagePair{});
      clear_entries();
      open();
      let_go();
      if (!events_.empty()) {
        spares_->give_back_later(std::move(events_), list_);
        return;
      }
    }
    if (!ended_ && !events_.empty()) (void)cudaEventSynchronize(events_.back()->get());
    let_go();
    spares_->give_back(std::move(events_), list_);
  }

  std::span<kernels::PagePair> pairs() override {
    return {reinterpret_cast<kernels::PagePair*>(list_.memory + kGateBytes), pairs_};
  }
  std::span<std::byte> entries() override {
    return {list_.memory + kGateBytes + pairs_ * sizeof(kernels::PagePair), entry_bytes_};
  }
  void open() override {
    opened_ = true;
    if (gate_ != nullptr) gate_->store(1, std::memory_order_release);
  }
  Result<bool> ended() override {
    if (ended_) return failed_ == cudaSuccess ? Result<bool>(true) : cuda_error(failed_, "a move");
    const cudaError_t status = cudaEventQuery(events_.back()->get());
    if (status == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    failed_ = status;
    ended_ = true;
    let_go();
    return ended();
  }
  Status hold(void* stream, std::size_t cut) override {
    const DeviceScope scope(device_);
    LEHR_CUDA_TRY(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream),
                                      events_[std::min(cut, events_.size() - 1)]->get(), 0));
    return {};
  }
  void* event() override { return events_.back()->get(); }
  const SharedEvent& last() const { return events_.back(); }

  /// A list of pairs in pinned memory, and, where the flight waits to be opened, its gate.
  Status take_list(std::uint32_t pairs, bool gated, std::span<const SmallWrite> entries_of) {
    Bytes entry_bytes = 0;
    for (const SmallWrite& entry : entries_of) entry_bytes += entry.bytes;
    LEHR_ASSIGN(list_, spares_->list(kGateBytes + pairs * sizeof(kernels::PagePair) + entry_bytes));
    pairs_ = pairs;
    entry_bytes_ = entry_bytes;
    absent_.assign(entries_of.begin(), entries_of.end());
    clear_entries();
    if (!gated) return {};
    std::memset(list_.memory, 0, kGateBytes + pairs * sizeof(kernels::PagePair));
    gate_ = new (list_.memory) std::atomic<std::uint32_t>(0);
    return {};
  }
  Status record(cudaStream_t stream) {
    LEHR_ASSIGN(SharedEvent event, spares_->event());
    const cudaError_t recorded = cudaEventRecord(event->get(), stream);
    if (recorded != cudaSuccess) return cuda_error(recorded, "cudaEventRecord");
    events_.push_back(std::move(event));
    return {};
  }
  void count(std::uint32_t enqueued) {
    counted_ += enqueued;
    lane_->enqueued += enqueued;
  }
  std::uint64_t gate() const { return address(gate_); }

 private:
  void clear_entries() {
    std::byte* at = entries().data();
    for (const SmallWrite& entry : absent_) at = std::fill_n(at, entry.bytes, entry.absent);
  }
  void let_go() { lane_->enqueued -= std::exchange(counted_, 0); }

  const std::int32_t device_;
  std::shared_ptr<Spares> spares_;
  std::shared_ptr<Lane> lane_;
  Spares::List list_;
  std::uint32_t pairs_ = 0;
  Bytes entry_bytes_ = 0;
  std::vector<SmallWrite> absent_;
  std::atomic<std::uint32_t>* gate_ = nullptr;
  bool opened_ = false;
  std::vector<SharedEvent> events_;  ///< of cuts
  bool ended_ = false;
  cudaError_t failed_ = cudaSuccess;
  std::uint32_t counted_ = 0;
};

struct CopyRun {
  std::uint64_t from = 0, to = 0;
  Bytes bytes = 0;
};

class CudaLanes final : public BlockLanes {
 public:
  explicit CudaLanes(const BlockLanesConfig& config) : config_(config) {
    std::erase_if(config_.outward, [](const MoverCurve& curve) {
      return curve.mover != "ring" && curve.mover != "copy_engine";
    });
  }
  ~CudaLanes() override {
    const DeviceScope scope(config_.device);
    for (auto& lane : lanes_) lane.reset();
    (void)cudaGetLastError();
  }

  Status open() {
    const DeviceScope scope(config_.device);
    LEHR_TRY(cuda::look_up("cuStreamWaitValue32", 11070, wait_value_));
    LEHR_TRY(cuda::look_up("cuPointerGetAttributes", 7000, attributes_));
    int low = 0, high = 0;
    LEHR_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&low, &high));
    for (const bool inward : {false, true}) {
      // Loads are waited for. Stores run above compute too: at its priority or below, a launch
      // waits until all CTAs of a compute kernel have started.
      const int priority = inward ? high : std::max(high, low - 1);
      cudaStream_t raw = nullptr;
      LEHR_CUDA_TRY(cudaStreamCreateWithPriority(&raw, cudaStreamNonBlocking, priority));
      lanes_[inward ? 1 : 0] = std::make_shared<Lane>(config_.device, cuda::Stream(raw), tell_);
    }
    LEHR_TRY(spares_->open(config_.list_bytes, kEvents));
    return load_kernels();
  }

  Result<MemoryRegion> host_memory(Bytes bytes, Bytes stride) override {
    PinnedMemoryConfig memory;
    memory.memory.bytes = bytes;
    memory.page_stride = stride;
    for (const DeviceInfo& device : devices()) {
      if (device.ordinal == config_.device) memory.memory.numa_node = device.numa_node;
    }
    LEHR_ASSIGN(auto made, PinnedMemory::create(memory));
    LEHR_TRY(made->wait(kRegistering));
    seam_base_ = address(made->base());
    seam_bytes_ = made->chunk_bytes();
    return region_of(made);
  }

  Status check_device_memory(const std::byte* base, Bytes bytes) override {
    const std::uint64_t first = address(base), end = first + bytes;
    if (bytes == 0 || end < first) return invalid("memory: no bytes, or more than addresses");
    if (first % 16 != 0) return invalid("memory: it starts at no multiple of 16");
    const DeviceScope scope(config_.device);
    for (std::uint64_t p = first; p < end;) {
      LEHR_ASSIGN(p, known_range(p));
    }
    return {};
  }

  Status check_host_memory(const std::byte* base, Bytes bytes) override {
    if (bytes == 0) return {};
    for (const std::byte* p : {base, base + bytes - 1}) {
      cudaPointerAttributes a{};
      LEHR_CUDA_TRY(cudaPointerGetAttributes(&a, p));
      if (a.type == cudaMemoryTypeDevice) {
        return invalid("memory: of device " + std::to_string(a.device) +
                       ", where memory of the host was named");
      }
    }
    return {};
  }

  Status check_stream(void* stream) override {
    const DeviceScope scope(config_.device);
    const auto s = static_cast<cudaStream_t>(stream);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    LEHR_CUDA_TRY(cudaStreamIsCapturing(s, &status));
    if (status != cudaStreamCaptureStatusNone)
      return unsupported("stream: it is being captured; jobs cannot be part of a graph");
    if (stream == nullptr) return {};
    int device = 0;
    LEHR_CUDA_TRY(cudaStreamGetDevice(s, &device));
    if (device == config_.device) return {};
    return invalid("stream: of device " + std::to_string(device) + ", expected device " +
                   std::to_string(config_.device));
  }

  std::uint32_t room(bool inward) const override {
    const std::uint32_t enqueued = lanes_[inward ? 1 : 0]->enqueued;
    return config_.most_enqueued - std::min(enqueued, config_.most_enqueued);
  }

  Result<std::unique_ptr<Flight>> start(const FlightPlan& plan,
                                        std::span<const kernels::PagePair> outward,
                                        const StreamOrder& after) override {
    const DeviceScope scope(config_.device);
    const std::lock_guard lock(starting_);
    const std::shared_ptr<Lane>& lane = lanes_[plan.inward ? 1 : 0];
    std::vector<CopyRun> runs;
    if (!plan.inward) runs = copy_engine_runs(plan, outward);
    const auto launches = static_cast<std::uint32_t>(runs.empty() ? plan.cuts.size() : runs.size());
    const auto ops = static_cast<std::uint32_t>(after.events.size() + plan.cuts.size() +
                                                2 * plan.entries.size() + 2) +
                     launches;
    if (lane->enqueued + ops > config_.most_enqueued) {
      return refused(Reason::kOverBudget,
                     "device: " + std::to_string(lane->enqueued) + " launches are enqueued and " +
                         std::to_string(ops) + " more asked for, at most " +
                         std::to_string(config_.most_enqueued) + "; try again as jobs end");
    }
    auto flight = std::make_unique<CudaFlight>(config_.device, spares_, lane);
    flight->count(ops);
    LEHR_TRY(enqueue(plan, outward, runs, after, *lane, *flight));
    return std::unique_ptr<Flight>(std::move(flight));
  }

  Result<std::shared_ptr<std::byte>> device_memory(Bytes bytes, std::byte fill) override {
    const DeviceScope scope(config_.device);
    void* raw = nullptr;
    LEHR_CUDA_TRY(cudaMalloc(&raw, bytes));
    std::shared_ptr<std::byte> memory(static_cast<std::byte*>(raw),
                                      [](std::byte* p) { (void)cudaFree(p); });
    LEHR_CUDA_TRY(cudaMemset(raw, std::to_integer<int>(fill), bytes));
    LEHR_CUDA_TRY(cudaStreamSynchronize(nullptr));
    return memory;
  }

  Status put(std::span<const SmallWrite> writes, std::span<const std::byte> values,
             std::span<const SmallCopy> copies, void* stream) override {
    const DeviceScope scope(config_.device);
    const auto s = static_cast<cudaStream_t>(stream);
    if (!writes.empty()) {
      // Pinned: a copy from anywhere else may wait for what the stream is at.
      LEHR_ASSIGN(const Spares::List list, spares_->list(values.size()));
      LEHR_ASSIGN(SharedEvent event, spares_->event());
      std::memcpy(list.memory, values.data(), values.size());
      const Status written = write(writes, {list.memory, values.size()}, s);
      const cudaError_t recorded = cudaEventRecord(event->get(), s);
      std::vector<SharedEvent> passed;
      passed.push_back(std::move(event));
      spares_->give_back_later(std::move(passed), list);
      LEHR_TRY(written);
      if (recorded != cudaSuccess) return cuda_error(recorded, "cudaEventRecord");
    }
    for (const SmallCopy& c : copies) {
      LEHR_CUDA_TRY(cudaMemcpyAsync(c.to, c.from, c.bytes, cudaMemcpyDeviceToDevice, s));
    }
    return {};
  }

  void on_end(std::function<void()> tell) override { tell_ = std::move(tell); }

 private:
  /// A kernel is loaded by its first launch, which may wait for all work of the device: behind a
  /// gate that would be for ever. So each is launched once, with a pair that moves nothing: the one
  /// for whole pages, and those for small pieces that lie apart on one side.
  Status load_kernels() {
    LEHR_ASSIGN(const Spares::List list, spares_->list(sizeof(kernels::PagePair)));
    std::memset(list.memory, 0, list.bytes);
    const kernels::MoveParams nothing{reinterpret_cast<kernels::PagePair*>(list.memory), 1};
    kernels::PageLayout whole;
    whole.piece_bytes = 16;
    kernels::PageLayout apart = whole;
    apart.count = 2;
    apart.from[1] = 32;
    apart.to[1] = 16;
    for (const kernels::PageLayout& layout : {whole, apart, apart.reversed()}) {
      LEHR_TRY(kernels::move_pages_cuda(nothing, layout, config_.out_ring, lanes_[0]->stream()));
      LEHR_TRY(kernels::move_pages_cuda(nothing, layout, config_.in_ring, lanes_[1]->stream()));
    }
    for (const auto& lane : lanes_) LEHR_CUDA_TRY(cudaStreamSynchronize(lane->stream()));
    spares_->give_back({}, list);
    return {};
  }

  Status enqueue(const FlightPlan& plan, std::span<const kernels::PagePair> outward,
                 std::span<const CopyRun> runs, const StreamOrder& after, Lane& lane,
                 CudaFlight& flight) {
    const cudaStream_t main = lane.stream();
    if (plan.pairs != 0 && runs.empty()) {
      LEHR_TRY(flight.take_list(plan.pairs, plan.inward, plan.entries));
      if (!plan.inward) std::copy(outward.begin(), outward.end(), flight.pairs().begin());
    }
    LEHR_TRY(wait_for(after, main));
    for (const SmallWrite& entry : plan.entries) {
      LEHR_CUDA_TRY(
          cudaMemsetAsync(entry.to, std::to_integer<int>(entry.absent), entry.bytes, main));
    }
    if (plan.pairs != 0 && plan.inward) {
      // The host alone passes this gate, for bytes that it has checked: it waits for no work of the
      // device but such as was enqueued before, so streams that share a queue cannot lock.
      const CUresult waited = wait_value_(main, flight.gate(), 1, CU_STREAM_WAIT_VALUE_GEQ);
      if (waited != CUDA_SUCCESS) return cuda::driver_error(waited, "cuStreamWaitValue32");
    }
    Status moved = runs.empty() ? launch(plan, main, flight) : copy(runs, plan, main, flight);
    // What was enqueued of a flight that failed may run yet: its list must live until then.
    if (!moved || plan.cuts.empty()) {
      const Status recorded = flight.record(main);
      if (moved) moved = recorded;
    }
    LEHR_TRY(std::move(moved));
    lane.watch(flight.last());
    return {};
  }

  Status wait_for(const StreamOrder& after, cudaStream_t main) {
    for (void* event : after.events) {
      LEHR_CUDA_TRY(cudaStreamWaitEvent(main, static_cast<cudaEvent_t>(event), 0));
    }
    if (!after.after_stream) return {};
    LEHR_ASSIGN(SharedEvent event, spares_->event());
    const cudaError_t recorded =
        cudaEventRecord(event->get(), static_cast<cudaStream_t>(after.stream));
    if (recorded != cudaSuccess) return cuda_error(recorded, "cudaEventRecord");
    LEHR_CUDA_TRY(cudaStreamWaitEvent(main, event->get(), 0));
    // A later recording does not move a wait that was enqueued.
    std::vector<SharedEvent> used;
    used.push_back(std::move(event));
    spares_->give_back(std::move(used), {});
    return {};
  }

  Status launch(const FlightPlan& plan, cudaStream_t main, CudaFlight& flight) {
    std::uint32_t from = 0;
    for (const std::uint32_t cut : plan.cuts) {
      if (cut > from) {
        const kernels::MoveParams params{flight.pairs().data() + from, cut - from};
        LEHR_TRY(kernels::move_pages_cuda(params, plan.layout,
                                          plan.inward ? config_.in_ring : config_.out_ring, main));
      }
      if (cut == plan.pairs) LEHR_TRY(write(plan.entries, flight.entries(), main));
      LEHR_TRY(flight.record(main));
      from = cut;
    }
    return {};
  }

  static Status write(std::span<const SmallWrite> writes, std::span<const std::byte> values,
                      cudaStream_t stream) {
    const std::byte* from = values.data();
    for (const SmallWrite& w : writes) {
      LEHR_CUDA_TRY(cudaMemcpyAsync(w.to, from, w.bytes, cudaMemcpyHostToDevice, stream));
      from += w.bytes;
    }
    return {};
  }

  Status copy(std::span<const CopyRun> runs, const FlightPlan& plan, cudaStream_t main,
              CudaFlight& flight) {
    for (const CopyRun& run : runs) {
      LEHR_CUDA_TRY(cudaMemcpyAsync(at(run.to), at(run.from), run.bytes, cudaMemcpyDefault, main));
    }
    for (std::size_t i = 0; i < plan.cuts.size(); ++i) LEHR_TRY(flight.record(main));
    return {};
  }

  /// What a copy engine would copy, if the profile says that it would be faster and the lane has
  /// room for so many copies; else nothing: a ring moves them with one launch.
  std::vector<CopyRun> copy_engine_runs(const FlightPlan& plan,
                                        std::span<const kernels::PagePair> pairs) const {
    if (config_.outward.empty() || pairs.empty()) return {};
    const std::uint32_t most_runs = room(false) / kPartForRuns;
    std::vector<CopyRun> runs;
    for (const kernels::PagePair& pair : pairs) {
      for (std::uint32_t i = 0; i < plan.layout.count; ++i) {
        const std::uint64_t from = pair.from + plan.layout.from[i],
                            to = pair.to + plan.layout.to[i];
        const bool seam = seam_bytes_ != 0 && (to - seam_base_) % seam_bytes_ == 0;
        if (!runs.empty() && !seam && runs.back().from + runs.back().bytes == from &&
            runs.back().to + runs.back().bytes == to) {
          runs.back().bytes += plan.layout.piece_bytes;
        } else {
          if (runs.size() >= most_runs) return {};
          runs.push_back({from, to, plan.layout.piece_bytes});
        }
      }
    }
    const double count = static_cast<double>(pairs.size()) * plan.layout.count;
    const std::size_t best =
        fastest(config_.outward, {static_cast<double>(plan.layout.piece_bytes), count,
                                  count / static_cast<double>(runs.size())});
    if (best >= config_.outward.size() || config_.outward[best].mover == "ring") return {};
    return runs;
  }

  /// The end of a stretch from `p` on that is known to be memory of this device.
  Result<std::uint64_t> known_range(std::uint64_t p) const {
    unsigned type = 0, managed = 0;
    int device = -1, mapped = 0;
    CUdeviceptr start = 0;
    std::size_t size = 0;
    std::array<CUpointer_attribute, 6> names{
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,   CU_POINTER_ATTRIBUTE_MAPPED,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    std::array<void*, 6> values{&type, &managed, &device, &mapped, &start, &size};
    const CUresult asked = attributes_(names.size(), names.data(), values.data(), p);
    if (asked != CUDA_SUCCESS) return cuda::driver_error(asked, "cuPointerGetAttributes");
    if (type != CU_MEMORYTYPE_DEVICE || managed != 0) {
      return invalid(std::string("memory: ") +
                     (type == CU_MEMORYTYPE_HOST ? "of the host"
                      : managed != 0             ? "managed, which moves by itself"
                                                 : "of no device, or not all of it is mapped") +
                     ", where memory of device " + std::to_string(config_.device) + " was named");
    }
    if (device != config_.device) {
      return invalid("memory: of device " + std::to_string(device) + ", expected device " +
                     std::to_string(config_.device));
    }
    if (mapped == 0) return invalid("memory: not all of it is mapped");
    // Ranges of mapped memory may be told as one though parts of them are not mapped.
    const std::uint64_t granule_end = (p / kGranule + 1) * kGranule, range_end = start + size;
    return range_end > p ? std::min<std::uint64_t>(range_end, granule_end) : granule_end;
  }

  BlockLanesConfig config_;
  PFN_cuStreamWaitValue32_v11070 wait_value_ = nullptr;
  PFN_cuPointerGetAttributes_v7000 attributes_ = nullptr;
  std::shared_ptr<Spares> spares_ = std::make_shared<Spares>();
  std::function<void()> tell_;
  std::array<std::shared_ptr<Lane>, 2> lanes_;  ///< outward, inward
  std::mutex starting_;
  std::uint64_t seam_base_ = 0;
  Bytes seam_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<BlockLanes>> make_block_lanes(const BlockLanesConfig& config) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || config.device < 0 || config.device >= count) {
    (void)cudaGetLastError();
    return unsupported("no device " + std::to_string(config.device));
  }
  auto lanes = std::make_unique<CudaLanes>(config);
  LEHR_TRY(lanes->open());
  return std::unique_ptr<BlockLanes>(std::move(lanes));
}

}  // namespace lehr::transfer
