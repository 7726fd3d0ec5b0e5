// SPDX-License-Identifier: Apache-2.0
#include "transfer/block_lanes.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <utility>

#include <cudaTypedefs.h>

#include "transfer/cuda/driver.hpp"
#include "transfer/cuda/flight.hpp"
#include "transfer/cuda/handles.hpp"
#include "transfer/cuda/spares.hpp"
#include "transfer/device.hpp"

namespace lehr::transfer {
namespace {

using cuda::CudaFlight;
using cuda::DeviceScope;
using cuda::FlightLane;
using cuda::SharedEvent;
using cuda::Spares;

constexpr Bytes kGranule = 2 * kMiB;       ///< of mapped device memory
constexpr std::uint32_t kPartForRuns = 4;  ///< of a lane's room, that copies of one flight take
constexpr std::uint32_t kEvents = 1024;
constexpr std::int64_t kRegistering = 600'000'000'000;

std::uint64_t address(const void* p) { return reinterpret_cast<std::uint64_t>(p); }
void* at(std::uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

struct CopyRun {
  std::uint64_t from = 0, to = 0;
  Bytes bytes = 0;
};

/// A flight that is being started.
struct Start {
  const FlightPlan& plan;
  std::vector<CopyRun> runs;  ///< of a copy engine; none: a ring moves it
  std::unique_ptr<CudaFlight> flight;

  /// Launches, copies, events and waits.
  std::uint32_t ops() const {
    const std::size_t launches = runs.empty() ? plan.cuts.size() : runs.size();
    return static_cast<std::uint32_t>(launches + plan.cuts.size() + 2 * plan.entries.size() + 1);
  }
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
      lanes_[inward ? 1 : 0] =
          std::make_shared<FlightLane>(config_.device, cuda::Stream(raw), tell_);
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

  Result<std::vector<std::unique_ptr<Flight>>> start(std::span<const FlightPlan> plans,
                                                     const StreamOrder& after) override {
    const DeviceScope scope(config_.device);
    const std::lock_guard lock(starting_);
    // Refusals first: nothing may move of a job that is not taken whole.
    std::vector<Start> starts;
    auto waits = static_cast<std::uint32_t>(after.events.size()) + 1, ops = waits;
    for (const FlightPlan& plan : plans) {
      starts.push_back({plan, copy_engine_runs(plan, ops), nullptr});
      ops += starts.back().ops();
    }
    const std::shared_ptr<FlightLane>& lane = lanes_[plans.front().inward ? 1 : 0];
    if (lane->enqueued + ops > config_.most_enqueued) {
      return refused(Reason::kOverBudget,
                     "device: " + std::to_string(lane->enqueued) + " launches are enqueued and " +
                         std::to_string(ops) + " more asked for, at most " +
                         std::to_string(config_.most_enqueued) + "; try again as jobs end");
    }
    for (Start& s : starts) {
      s.flight = std::make_unique<CudaFlight>(config_.device, spares_, lane);
      s.flight->count(s.ops() + std::exchange(waits, 0));
      if (s.plan.pairs != 0 && s.runs.empty()) LEHR_TRY(s.flight->take_list(s.plan));
    }
    LEHR_TRY(wait_for(after, lane->stream()));
    for (Start& s : starts) LEHR_TRY(enqueue(s, *lane));
    std::vector<std::unique_ptr<Flight>> flights;
    flights.reserve(starts.size());
    for (Start& s : starts) flights.push_back(std::move(s.flight));
    return flights;
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

  Status enqueue(const Start& start, FlightLane& lane) {
    const FlightPlan& plan = start.plan;
    CudaFlight& flight = *start.flight;
    const cudaStream_t main = lane.stream();
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
    Status moved =
        start.runs.empty() ? launch(plan, main, flight) : copy(start.runs, plan, main, flight);
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
  std::vector<CopyRun> copy_engine_runs(const FlightPlan& plan, std::uint32_t before) const {
    const std::span<const kernels::PagePair> pairs = plan.outward;
    if (config_.outward.empty() || pairs.empty()) return {};
    const std::uint32_t left = room(false);
    const std::uint32_t most_runs = (left - std::min(before, left)) / kPartForRuns;
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
  std::array<std::shared_ptr<FlightLane>, 2> lanes_;  ///< outward, inward
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
