// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/ids.hpp"
#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"

namespace lehr::runtime {

/// One thing that a layer does with a page, in the order of the layer. Contents are named by (page,
/// version): a machine that moves bytes checks them at every read.
struct PageOp {
  enum class Kind : std::uint8_t {
    kFill,   ///< contents come into being in `to` (prefill, a tail written)
    kRead,   ///< attention reads the copy in `from`
    kCopy,   ///< `from` to `to`
    kFetch,  ///< one crossing that both reads `from` and installs it in `to`
  };
  Kind kind;
  TierId from = 0;
  TierId to = 0;
  PageId page = kNoPage;
  std::uint32_t version = 0;
  SlotId from_slot = kNoSlot;
  SlotId to_slot = kNoSlot;
};

struct MachineTraits {
  bool moves_bytes = false;  ///< wants the list of operations; `sim` does without it
};

/// What carries out decisions. The step loop decides, tells the machine, and predicts the time by
/// the model; the machine makes it so. Called from one thread.
class Machine {
 public:
  virtual ~Machine() = default;
  virtual MachineTraits traits() const = 0;

  /// Set-up outside the steps (prompt pages on their home tier and in HBM).
  virtual Status set_up(std::span<const PageOp> ops) = 0;

  /// One layer. Operations on one slot keep their order; others may overlap. Every read and fetch
  /// has seen the right contents, or this fails with kCorrupt.
  virtual Status run_layer(Step step, std::uint32_t layer, std::span<const PageOp> ops) = 0;

  /// Everything submitted has ended.
  virtual Status drain() = 0;

  /// Seconds spent in run_layer since the last call (measured; 0 on `sim`).
  virtual Seconds take_measured() = 0;

  /// One line for people: what was moved and verified, notices of fall-backs.
  virtual std::vector<std::string> notes() const = 0;
};

}  // namespace lehr::runtime
