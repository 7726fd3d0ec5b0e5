// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "runtime/machines/cuda.hpp"
#include "runtime/machines/cuda/below_tier.hpp"
#include "runtime/machines/cuda/device.hpp"
#include "runtime/machines/cuda/ledger.hpp"
#include "runtime/machines/cuda/lists.hpp"

namespace lehr::runtime::cuda {

/// The machine without the GPU: turns operations into lists, keeps a mirror of the device's page
/// tables so that only what changed is sent, and knows what must lie where. The device does the
/// rest, a file's pages aside.
class DecodeMachine final : public Machine {
 public:
  /// The device's home tier has options.home_places() places.
  static Result<std::unique_ptr<DecodeMachine>> create(CudaMachineOptions options,
                                                       std::unique_ptr<DecodeDevice> device);

  MachineTraits traits() const override { return {.moves_bytes = true, .attends = true}; }
  void attach(const PageTable& table) override { table_ = &table; }
  Status set_up(std::span<const PageOp> ops) override;
  Status run_layer(Step step, std::uint32_t layer, std::span<const PageOp> ops) override;
  Status run(const LayerWork& work) override;
  Status end_step(Step step) override;
  Status drain() override;
  Status check() override;
  Seconds take_measured() override;
  std::vector<std::string> notes() const override;

 private:
  DecodeMachine(CudaMachineOptions options, std::unique_ptr<DecodeDevice> device);

  /// A row of the tables: the sequence that has it, known by its first page, for numbers are used
  /// again.
  struct Row {
    std::uint32_t sequence = 0;
    PageId first = kNoPage;
  };
  /// A launch that has not been heard of since: layers of a step of the log.
  struct Part {
    std::size_t step = 0;
    LayerRange layers;
  };
  static constexpr std::size_t kNoStep = ~std::size_t{0};

  // What lies where.
  Status expect(TierId tier, SlotId slot, PageId page, std::uint32_t version) const;
  bool holds(TierId tier, SlotId slot, PageId page, std::uint32_t version) const {
    return ledger_.has(tier, slot) && ledger_.tier(tier)[slot].is(page, version);
  }
  void put(TierId tier, SlotId slot, SlotContents contents);
  std::uint32_t place(TierId tier, SlotId slot) const {
    return below_ && tier == home_ ? home_slots_->place(slot) : slot;
  }
  std::uint64_t address(TierId tier, SlotId slot) const {
    return memory_[tier].address(place(tier, slot));
  }
  kernels::PageEntry entry(TierId tier, SlotId slot) const {
    return kernels::make_entry(address(tier, slot), memory_[tier].over_link, DType::kF16);
  }
  bool named() const { return options_.check_reads || options_.recorded.k != nullptr; }
  /// By which the contents of a page are known: its id, or its place in the recorded sequence.
  std::uint32_t contents_name(PageId page) const;

  // Set-up (set_up.cpp).
  struct SetUp;
  Status set_up_op(const PageOp& op, SetUp& now);
  Status set_up_fill(const PageOp& op, SetUp& now);
  Status set_up_copy(const PageOp& op, SetUp& now);
  Status carry_out(SetUp& now);
  Status start_fresh_rows(const LayerWork& work);
  Status start_row(std::uint32_t row, const GroupWork& first);
  Status box_pages_below(std::uint32_t row, const GroupWork& first,
                         std::vector<kernels::PageEntry>& entries);
  kernels::PageEntry known_entry(PageId page) const;
  SlotId slot_below(PageId page) const;

  // Rows and steps.
  Status begin_step(const LayerWork& work);
  Status fit(std::span<const GroupWork> groups);
  void give_rows(std::span<const GroupWork> groups);
  std::size_t row_of(std::uint32_t sequence) const;
  Status make_places(std::span<const PageOp> ops);
  /// Layers that were listed and not launched.
  Status launch_listed();
  Status give_up();
  Status wait_for_all();
  void note_launched();
  Error fail(Error error);
  void collect_times();
  StepRecord& step() { return options_.log->steps.back(); }

  // A layer (layer_lists.cpp).
  Status list_layer(const LayerWork& work);
  void begin_layer(const LayerWork& work);
  Status list_op(const PageOp& op);
  Status list_fill(const PageOp& op);
  Status list_fetch(const PageOp& op);
  Status list_copy(const PageOp& op);
  Status list_stage(const PageOp& op);
  Status list_sink(const PageOp& op);
  std::uint64_t source(TierId tier, SlotId slot);
  Status list_groups(std::span<const GroupWork> groups);
  Status list_pages(std::size_t group, const GroupWork& g, std::uint32_t tail);
  Status list_tail(std::size_t group, const GroupWork& g, std::uint32_t tail);
  void write_entry(std::size_t at, kernels::PageEntry entry);
  void keep_page(std::size_t at, PageId page);
  std::uint32_t read_at_home(SlotId slot, PageId page, std::size_t at);
  void clear_old_installs();
  void write_layer(std::uint32_t layer);

  // After it.
  Status check_outputs();
  Result<std::uint64_t> count_bad_below();

  CudaMachineOptions options_;
  std::unique_ptr<DecodeDevice> device_;
  const PageTable* table_ = nullptr;
  TierId home_;
  TierId below_;                    ///< 0: none
  std::vector<TierMemory> memory_;  ///< by tier
  Ledger ledger_;
  std::vector<std::vector<SlotId>> last_slot_;  ///< by tier, by page: where it was last put
  std::optional<HomeSlots> home_slots_;
  std::unique_ptr<BelowTier> below_tier_;
  Launches launched_ = 0, ended_ = 0;
  std::deque<Part> parts_;
  /// Since the last launch: what slots held before.
  struct Before {
    TierId tier;
    SlotId slot;
    SlotContents contents;
  };
  std::vector<Before> journal_;

  kernels::StepShape shape_{};
  std::vector<std::optional<Row>> rows_;
  std::vector<std::uint32_t> fresh_, lengths_;
  std::vector<std::uint32_t> by_group_;  ///< of the tables: which of a layer's groups it is
  std::vector<std::vector<kernels::PageEntry>> mirror_;  ///< by layer, as the device's tables
  std::vector<std::size_t> installed_at_;                ///< entries of the installs table in use
  std::vector<Tick> install_tick_;                       ///< by entry: when it was last set

  // The layer at hand.
  Tick tick_ = 0;
  std::uint32_t layer_ = 0;
  bool reads_begun_ = false;
  std::vector<std::uint32_t> row_starts_, tails_, names_;
  std::vector<std::uint16_t> pages_;
  std::vector<kernels::EarlyWork> early_;
  std::vector<kernels::EntryWrite> entries_, installs_;
  std::vector<kernels::PageCopy> moves_;
  std::vector<std::size_t> newly_installed_;
  std::vector<std::uint8_t> kept_;  ///< by page: a fetch of this layer keeps it
  std::size_t to_keep_ = 0;
  /// Places that this layer's early work fills, and from where: early work has no order.
  std::vector<std::pair<std::uint32_t, std::uint64_t>> early_places_;
  LayerRecord record_;

  ListWriter lists_;
  bool in_step_ = false;
  LayerRange listed_;   ///< of the step: what the lists hold and nobody launched
  bool whole_ = false;  ///< the last launch was of all layers
  std::optional<Error> failed_;
  std::int64_t step_began_ns_ = 0;
  std::uint32_t counted_ = 0;          ///< steps begun: what the device's records are numbered by
  Seconds reading_ = 0, writing_ = 0;  ///< of the file, at the last step's launch
  Seconds measured_ = 0;
};

}  // namespace lehr::runtime::cuda
