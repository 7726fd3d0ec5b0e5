// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/ids.hpp"
#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"
#include "kernels/decode_step.hpp"

namespace lehr::runtime::cuda {

/// Where the slots of a tier lie: `stride` bytes apart, as the device sees them.
struct TierMemory {
  std::uint64_t base = 0;
  std::uint64_t stride = 0;
  bool over_link = false;       ///< attention crosses a link to read it
  std::span<std::byte> host{};  ///< the same memory as this process sees it; empty: it does not

  std::uint64_t address(SlotId slot) const { return base + slot * stride; }
};

/// Layers of a step that are launched together.
struct LayerRange {
  std::uint32_t first = 0, end = 0;
};

/// What a launch took, by the device's clocks.
struct StepTimes {
  Step step = 0;
  Seconds total = 0;   ///< from its first graph's start to its last one's end
  Seconds idle = 0;    ///< the device had nothing to do before it; 0 for the first launch
  Seconds copy = 0;    ///< host time of putting the lists where the device can take them
  Seconds launch = 0;  ///< host time of handing the step over
  std::vector<kernels::LayerStamps> layers;  ///< one more than layers: the last one begins at the
                                             ///< end
  std::uint64_t digest = 0;                  ///< of the outputs of all layers
};

/// What carries a step's lists out: memory, kernels and their order. Calls are in stream order:
/// what is enqueued later starts later. One thread.
class DecodeDevice {
 public:
  virtual ~DecodeDevice() = default;

  /// Fixed for the device's life. Of HBM and the home tier; others have none.
  virtual TierMemory memory(TierId tier) const = 0;

  /// Makes pages, then copies others; done when it returns.
  virtual Status set_up(std::span<const kernels::PageContents> made,
                        std::span<const kernels::PageCopy> copies) = 0;

  /// Empty tables of this shape; the step is captured anew with the next launch. Ends what runs.
  virtual Status prepare(const kernels::StepShape& shape) = 0;

  /// A sequence that a row has not held before: its entries, [layers][kv_heads][max_pages], and the
  /// boxes of the pages that lie there.
  virtual Status start_row(std::uint32_t row, std::uint32_t tokens,
                           std::span<const kernels::PageEntry> entries) = 0;

  /// Enqueues these layers of the step that the lists describe. Returns at once, unless two
  /// launches are on their way: then the older one ends first.
  virtual Status launch(std::span<const std::byte> lists, LayerRange layers) = 0;

  /// Everything enqueued has ended.
  virtual Status drain() = 0;
  /// Of the launches that have ended since the last call, in order.
  virtual std::vector<StepTimes> take_times() = 0;

  /// How many of these pages hold something else than they should; drains.
  virtual Result<std::uint64_t> count_bad(std::span<const kernels::PageContents> pages) = 0;
  /// The same of all reads so far, where the program checks them.
  virtual Result<std::uint64_t> bad_reads() = 0;

  /// fp16, [layers][sequences][q_heads][head_dim] of the last step; drains. Empty where there are
  /// none.
  virtual Result<std::vector<std::uint16_t>> outputs() = 0;

  /// The last step again, `times` times, with no host in between: medians of total and idle; zero
  /// where it was launched in parts. What it writes is what is there. Drains.
  virtual Result<StepTimes> repeat(std::uint32_t times) = 0;

  /// Of the last step, where kernels are traced: when each launch of the main stream had ended, by
  /// [layer][kind], ns of the device's timer; 0: there was none. Drains.
  virtual Result<std::vector<std::uint64_t>> kernel_stamps() = 0;

  virtual std::vector<std::string> notes() const = 0;
};

}  // namespace lehr::runtime::cuda
