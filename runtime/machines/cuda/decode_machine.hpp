// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "runtime/machines/cuda.hpp"
#include "runtime/machines/cuda/device.hpp"
#include "runtime/machines/cuda/ledger.hpp"
#include "runtime/machines/cuda/lists.hpp"

namespace lehr::runtime::cuda {

/// The machine without the GPU: turns operations into lists, keeps a mirror of the device's page
/// tables so that only what changed is sent, and knows what must lie where. The device does the
/// rest.
class DecodeMachine final : public Machine {
 public:
  DecodeMachine(CudaMachineOptions options, std::unique_ptr<DecodeDevice> device);

  MachineTraits traits() const override { return {.moves_bytes = true, .attends = true}; }
  void attach(const PageTable& table) override { table_ = &table; }
  Status set_up(std::span<const PageOp> ops) override;
  Status run_layer(Step, std::uint32_t, std::span<const PageOp>) override;
  Status run(const LayerWork& work) override;
  Status end_step(Step step) override;
  Status drain() override;
  Status check() override;
  Seconds take_measured() override;
  std::vector<std::string> notes() const override;

 private:
  /// A row of the tables: the sequence that has it, known by its first page, for numbers are used
  /// again.
  struct Row {
    std::uint32_t sequence = 0;
    PageId first = kNoPage;
  };
  /// What a layer does with a page that it reads. The entry is that of a place, and stays while the
  /// page does.
  struct Read {
    Tick tick = kNever;
    SlotId slot = kNoSlot;
    TierId tier = 0;
    bool over_link = false;
    kernels::PageEntry entry = kernels::kAbsentPage;
    std::uint64_t install = 0;
  };

  Status begin_step(const LayerWork& work);
  Status fit(std::span<const GroupWork> groups);
  void give_rows(std::span<const GroupWork> groups);
  Status start_fresh_rows(const LayerWork& work);
  kernels::PageEntry known_entry(PageId page) const;

  void prefetch(const PageOp& op) const;
  Status list_op(const PageOp& op);
  Status list_fill(const PageOp& op);
  Status list_copy(const PageOp& op);
  Status note_read(const PageOp& op);
  Status list_groups(std::span<const GroupWork> groups);
  Status list_page(std::size_t group, std::uint32_t index, PageId page);
  void clear_old_installs();
  void write_layer(std::uint32_t layer);

  Status expect(TierId tier, SlotId slot, PageId page, std::uint32_t version) const;
  bool holds(TierId tier, SlotId slot, PageId page, std::uint32_t version) const {
    return ledger_.has(tier, slot) && ledger_.tier(tier)[slot].is(page, version);
  }
  void put(TierId tier, SlotId slot, SlotContents contents);
  std::uint64_t address(TierId tier, SlotId slot) const {
    return device_->slot_address(tier, slot);
  }
  kernels::PageEntry entry(TierId tier, SlotId slot) const {
    return kernels::make_entry(address(tier, slot), device_->over_link(tier), DType::kF16);
  }
  std::size_t row_of(std::uint32_t sequence) const;
  bool named() const { return options_.check_reads || options_.recorded.k != nullptr; }
  /// By which the contents of a page are known: its id, or its place in the recorded sequence.
  std::uint32_t contents_name(PageId page) const;
  Status check_outputs();
  void collect_times();

  CudaMachineOptions options_;
  std::unique_ptr<DecodeDevice> device_;
  const PageTable* table_ = nullptr;
  Ledger ledger_;
  std::vector<std::vector<SlotId>> last_slot_;  ///< by tier, by page: where it was last put

  kernels::StepShape shape_{};
  std::vector<std::optional<Row>> rows_;
  std::vector<std::uint32_t> fresh_;
  std::vector<std::uint32_t> by_group_;  ///< of the tables: which of a layer's groups it is
  std::vector<std::vector<kernels::PageEntry>> mirror_;  ///< by layer, as the device's tables
  std::vector<Read> reads_;                              ///< by page
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
  LayerRecord record_;

  ListWriter lists_;
  StepRecord step_;
  std::int64_t step_began_ns_ = 0;
  Step counted_ = 0;  ///< steps launched: what the device's records are numbered by
  Seconds measured_ = 0;
  std::size_t timed_ = 0;  ///< steps of the log whose times are in
};

}  // namespace lehr::runtime::cuda
