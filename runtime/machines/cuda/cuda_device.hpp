// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>

#include "kernels/attend.hpp"
#include "kernels/resolve.hpp"
#include "runtime/machines/cuda.hpp"
#include "runtime/machines/cuda/cuda_memory.hpp"
#include "runtime/machines/cuda/device.hpp"
#include "runtime/machines/cuda/lists.hpp"
#include "runtime/machines/cuda/program.hpp"

namespace lehr::runtime::cuda {

/// Memory for one shape of a step: tables, lists and what passes between kernels. Fixed addresses
/// from its making to its end, for the captured step holds them.
struct StepMemory {
  static Result<StepMemory> create(const kernels::StepShape& shape, std::uint32_t layers,
                                   Bytes list_bytes);

  kernels::StepShape shape;
  Bytes list_bytes = 0;
  DeviceMemory tables, installs, selection, counts, own_selection, own_counts, scores, boxes, heat;
  DeviceMemory q, k, v, outputs, pairs, totals, misses, counters, workspace;
  std::array<DeviceMemory, 2> lists, stamps;
};

/// The step on a GPU: arenas, capture, launches, clocks.
class CudaDevice final : public DecodeDevice {
 public:
  static Result<std::unique_ptr<CudaDevice>> create(const CudaMachineOptions& options);
  ~CudaDevice() override;

  TierMemory memory(TierId tier) const override { return tiers_[tier]; }
  Status set_up(std::span<const kernels::PageContents> made,
                std::span<const kernels::PageCopy> copies) override;
  Status prepare(const kernels::StepShape& shape) override;
  Status start_row(std::uint32_t row, std::uint32_t tokens,
                   std::span<const kernels::PageEntry> entries) override;
  Status launch(std::span<const std::byte> lists, LayerRange layers) override;
  Status drain() override;
  std::vector<StepTimes> take_times() override;
  Result<std::uint64_t> count_bad(std::span<const kernels::PageContents> pages) override;
  Result<std::uint64_t> bad_reads() override;
  Result<std::vector<std::uint16_t>> outputs() override;
  Result<StepTimes> repeat(std::uint32_t times) override;
  Result<std::vector<std::uint64_t>> kernel_stamps() override;
  std::vector<std::string> notes() const override;

 private:
  /// Events and host memory of one launch; four in turn, so that a step's end can still be asked
  /// when the next but one has started.
  struct Flight {
    Event begin, end, done;
    PinnedMemory stamps;  ///< and the digest behind them
    bool open = false;
    bool follows = false;  ///< another step went before it
    Step step = 0;
    Seconds copy = 0, launch = 0;
  };
  static constexpr std::size_t kFlights = 4;
  static constexpr std::uint32_t kDigests = 64;

  explicit CudaDevice(const CudaMachineOptions& options) : options_(options) {}
  Status make_arenas();
  Status make_weights();
  Status make_source();
  Status make_flights();
  Status make_lists(Bytes bytes);
  Status capture_steps();
  Status capture_layers(std::size_t parity);
  Status launch_graphs(std::span<const std::byte> lists, LayerRange layers, std::size_t parity);
  ProgramOptions program() const;
  Status enqueue(const Launch& launch, std::size_t parity, bool installs);
  Status enqueue_attention(const Launch& launch, std::size_t parity, bool installs);
  kernels::StepBuffers buffers(std::uint32_t layer, std::size_t parity) const;
  const std::uint32_t* lengths(std::size_t parity) const;
  Status finish(Flight& flight, const Flight& before);
  Status run_contents(std::span<const kernels::PageContents> pages, std::uint32_t* bad);

  CudaMachineOptions options_;
  kernels::PageSource source_;  ///< in device memory
  std::uint32_t page_bytes_ = 0;
  std::uint32_t mover_ctas_ = 0;
  bool peer_ = false;
  std::array<TierMemory, kMaxTiers> tiers_{};
  DeviceMemory hbm_, donor_, weights_, sink_, digests_, bad_, scratch_, kernel_stamps_;
  std::array<DeviceMemory, 3> recorded_;
  PinnedMemory host_;
  Stream main_, side_, up_, back_;
  Event forked_, joined_;
  std::array<Event, 2> copied_;
  std::array<PinnedMemory, 2> staging_;
  std::array<Flight, kFlights> flights_;
  std::unique_ptr<StepMemory> memory_;
  /// By list buffer; then by kind, so that a step pays for no fork and looks for no installs
  /// without need.
  std::array<std::array<GraphExec, StepKind::kCount>, 2> graphs_;
  /// Of single layers, by list buffer: for steps that are launched in parts. Made when first
  /// needed.
  std::array<std::vector<GraphExec>, 2> layer_graphs_;
  const GraphExec* last_ = nullptr;  ///< of all layers
  std::uint64_t launched_ = 0;
  std::vector<StepTimes> times_;
};

}  // namespace lehr::runtime::cuda
