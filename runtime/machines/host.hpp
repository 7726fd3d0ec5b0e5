// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "placement/model.hpp"
#include "runtime/machine.hpp"
#include "transfer/faults.hpp"
#include "transfer/mover_choice.hpp"

namespace lehr::runtime {

struct HostMachineOptions {
  placement::Platform platform;           ///< names and order of the tiers
  std::vector<std::uint32_t> tier_pages;  ///< as the runtime has them
  Bytes page_bytes = 0;
  std::string nvme_directory;  ///< for tiers that cannot be read in place; empty: the system's
                               ///< temporary one
  bool use_uring = true;
  transfer::FaultPlan faults;                 ///< of its transfers
  std::vector<transfer::MeasuredWay> movers;  ///< what the profile says of them
};

/// Where the contents of filled pages come from. It outlives the machine.
class PageSource {
 public:
  virtual ~PageSource() = default;
  /// Writes the page's contents at this version; false: they are not there yet, and the caller of
  /// set_up() brings them later (take_deferred(), fill_now()).
  virtual bool fill(PageId page, std::uint32_t version, std::span<std::byte> out) = 0;
  /// Converts a full page's contents to the lower precision, in place.
  virtual Status lower(PageId page, std::span<std::byte> contents) = 0;
};

/// Real bytes: an arena standing for HBM, NUMA-bound host memory, an NVMe file through io_uring
/// with O_DIRECT (notes() says what was not to be had).
class HostMachine : public Machine {
 public:
  /// A slot of a tier in memory. Valid until the next operation that writes the slot.
  virtual std::span<std::byte> memory(TierId tier, SlotId slot) const = 0;
  /// A copy of a page of a tier that is a file.
  virtual Status read_below(TierId tier, SlotId slot, PageId page, std::uint32_t version,
                            std::span<std::byte> out) = 0;
  /// Fills whose contents were not there yet, since the last call.
  virtual std::vector<PageOp> take_deferred() = 0;
  /// Their contents are there now.
  virtual Status fill_now(std::span<const PageOp> ops) = 0;
  /// Pages that crossed between tiers so far, and their bytes; fills are no crossing.
  virtual std::uint64_t moved_pages() const = 0;
  virtual Bytes moved_bytes() const = 0;
};

/// Contents are made from page and version and compared in full at every read, so that a lost,
/// stale or foreign page fails the layer with kCorrupt.
Result<std::unique_ptr<Machine>> make_host_machine(const HostMachineOptions& options);

/// Contents come from `source`; a read is held against the page and version that the slot is
/// stamped with, and a file's checksum.
Result<std::unique_ptr<HostMachine>> make_host_machine(const HostMachineOptions& options,
                                                       PageSource& source);

}  // namespace lehr::runtime
