// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <utility>

#include <fmt/core.h>

#include "runtime/machine.hpp"

namespace lehr::test {

/// Keeps (page, version) for each slot instead of bytes and refuses every read or copy of anything
/// else: what the step loop tells a machine must never lose, mix up or read a stale page.
class ContentMachine final : public runtime::Machine {
 public:
  using Op = runtime::PageOp;

  runtime::MachineTraits traits() const override { return {.moves_bytes = true, .lowers = true}; }
  Status set_up(std::span<const Op> ops) override { return run(ops); }
  Status run_layer(Step, std::uint32_t, std::span<const Op> ops) override { return run(ops); }
  Status drain() override { return {}; }
  Seconds take_measured() override { return 0; }
  std::vector<std::string> notes() const override { return {}; }

  std::uint64_t reads = 0;
  std::uint64_t copies = 0;

 private:
  Status run(std::span<const Op> ops) {
    for (const Op& op : ops) {
      const std::pair<PageId, std::uint32_t> content{op.page, op.version};
      // What is lowered is the version before.
      const std::uint32_t expected = op.version - (op.kind == Op::Kind::kLower ? 1 : 0);
      if (op.kind != Op::Kind::kFill) {
        const auto at = slots_.find({op.from, op.from_slot});
        if (at == slots_.end() || at->second != std::pair{op.page, expected}) {
          return corrupt(fmt::format("tier {} slot {} does not hold page {} version {}", op.from,
                                     op.from_slot, op.page, expected));
        }
      }
      if (op.kind == Op::Kind::kRead) {
        ++reads;
        continue;
      }
      if (op.kind == Op::Kind::kFetch) ++reads;
      if (op.kind != Op::Kind::kFill && op.kind != Op::Kind::kLower) ++copies;
      slots_[{op.to, op.to_slot}] = content;
    }
    return {};
  }

  std::map<std::pair<TierId, SlotId>, std::pair<PageId, std::uint32_t>> slots_;
};

}  // namespace lehr::test
