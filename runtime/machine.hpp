// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/ids.hpp"
#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"
#include "placement/model.hpp"

namespace lehr::runtime {

/// One thing that a layer does with a page, in the order of the layer. Contents are named by (page,
/// version): a machine that moves bytes checks them at every read.
struct PageOp {
  enum class Kind : std::uint8_t {
    kFill,   ///< contents come into being in `to` (prefill, a tail written)
    kRead,   ///< attention reads the copy in `from`
    kCopy,   ///< `from` to `to`
    kFetch,  ///< one crossing that both reads `from` and installs it in `to`
    kLower,  ///< what `from` holds (the version before) takes the lower precision, in place
  };
  Kind kind;
  TierId from = 0;
  TierId to = 0;
  PageId page = kNoPage;
  std::uint32_t version = 0;
  SlotId from_slot = kNoSlot;
  SlotId to_slot = kNoSlot;
  std::uint32_t tokens = 0;  ///< kFill: those that the page then holds; 0: all
};

class PageTable;

/// A KV group of the batch in one layer, as attention needs it.
struct GroupWork {
  std::uint32_t sequence = 0;  ///< small dense number
  std::uint32_t kv_head = 0;
  std::uint64_t tokens = 0;        ///< context, the step's token counted
  std::span<const PageId> blocks;  ///< page i of the group is blocks[i] + offset
  PageId offset = 0;
  std::span<const std::uint32_t> pages;  ///< that it reads, ascending; the tail may be left out
  /// Of each of `pages` but the tail: 1 if it was in HBM when the layer began, 0 if it is read at
  /// home.
  std::span<const std::uint8_t> hits{};
};

/// What a layer does, and what the model says of it. Reads are told by the groups; `ops` are the
/// tails that are written, the fetches (of pages that groups read too) and the copies.
struct LayerWork {
  Step step = 0;
  std::uint32_t layer = 0;
  std::span<const PageOp> ops;
  std::span<const GroupWork> groups;  ///< every one of the batch, by sequence, then KV head
  const placement::LayerLoad* load = nullptr;
  const placement::LayerTime* predicted = nullptr;
  std::uint32_t misses = 0;  ///< pages read at home, each once
};

struct MachineTraits {
  bool moves_bytes = false;  ///< wants the list of operations; `sim` does without it
  bool attends = false;      ///< wants run(), with groups and the model's word, not run_layer()
  bool lowers = false;       ///< carries kLower out
};

/// What carries out decisions. The step loop decides, tells the machine, and predicts the time by
/// the model; the machine makes it so. Called from one thread.
class Machine {
 public:
  virtual ~Machine() = default;
  virtual MachineTraits traits() const = 0;

  /// Once, before anything else: the table of the pages that operations name. It outlives the
  /// calls.
  virtual void attach(const PageTable&) {}

  /// Set-up outside the steps (prompt pages on their home tier and in HBM).
  virtual Status set_up(std::span<const PageOp> ops) = 0;

  /// One layer. Operations on one slot keep their order; others may overlap. Every read and fetch
  /// has seen the right contents, or this fails with kCorrupt.
  virtual Status run_layer(Step step, std::uint32_t layer, std::span<const PageOp> ops) = 0;

  /// The same, for machines that attend.
  virtual Status run(const LayerWork& work) { return run_layer(work.step, work.layer, work.ops); }

  /// All layers of a step were given. Machines that only list what layers do start it here and may
  /// return before it has ended.
  virtual Status end_step(Step) { return drain(); }

  /// Everything submitted has ended.
  virtual Status drain() = 0;

  /// After drain(): the contents of every slot are what was put there. May be slow.
  virtual Status check() { return {}; }

  /// Seconds of layers, or of whole steps, that have ended since the last call (measured; 0 on
  /// `sim`).
  virtual Seconds take_measured() = 0;

  /// One line for people: what was moved and verified, notices of fall-backs.
  virtual std::vector<std::string> notes() const = 0;
};

}  // namespace lehr::runtime
