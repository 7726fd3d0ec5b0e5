// SPDX-License-Identifier: Apache-2.0
// Pages that take the lower precision: what it costs, when it happens, what is read of them.
#include <algorithm>
#include <cmath>

#include "kernels/base/mass.hpp"
#include "runtime/layer.hpp"

namespace lehr::runtime {

namespace {

std::uint64_t millionths(double mass) {
  return static_cast<std::uint64_t>(std::llround(mass * 1e6));
}

}  // namespace

/// Reads of lowered pages take fewer bytes than note_reads() has counted for them. Of the masses,
/// what lies on the tails is told by their groups.
void Runtime::note_lowered_reads(Layer& layer) {
  if (lowered_bytes_ == 0) return;
  const Bytes saved = page_bytes_ - lowered_bytes_;
  const auto& masses = mass_table();
  double seen = 0;
  double on_lowered = 0;
  for (std::size_t i = 0; i < layer.selected.size(); ++i) {
    const double mass = layer.mass.empty() ? 0 : static_cast<double>(masses[layer.mass[i]]);
    seen += mass;
    if (table_.lowered[layer.selected[i]] == 0) continue;
    on_lowered += mass;
    if (layer.hit[i] != 0) {
      layer.load.hbm_bytes -= saved;
      ++layer.report.lowered_hits;
    } else {
      layer.load.link[to_hbm_].bytes -= saved;
      ++layer.report.lowered_crossings;
    }
  }
  for (const auto& [page, code] : layer.read_again) {
    const auto mass = static_cast<double>(masses[code]);
    seen += mass;
    if (table_.lowered[page] != 0) on_lowered += mass;
  }
  for (const GroupView& group : layer.groups) {
    if (group.mass == nullptr || growth_ == Growth::kNone) continue;
    seen += static_cast<double>(masses[group.mass[group.blocks.size() - 1]]);
  }
  layer.report.mass_seen = millionths(seen);
  layer.report.mass_lowered = millionths(on_lowered);
}

/// The lower form goes home in this layer. A page that is not to stay in HBM is brought to a place
/// there to be converted: it is written and read once more.
void Runtime::load_lowering(Layer& layer) {
  std::vector<PageId>& lower = layer.plan.lower;
  if (lower.empty()) return;
  std::erase_if(lower, [&](PageId page) {  // what the plan checker would name
    return lowered_bytes_ == 0 || table_.lowered[page] != 0 || table_.guard[page] != 1 ||
           table_.last_tick[page] != layer.tick || !resident(table_.residency[page], home_.home());
  });
  for (const PageId page : lower) {
    const bool stays =
        resident(table_.residency[page], kHbm) || (table_.flags[page] & kInstalling) != 0;
    layer.load.link[to_home_].add(lowered_bytes_);
    layer.load.hbm_bytes += (stays ? 1 : 2) * page_bytes_ + lowered_bytes_;
  }
}

/// The layer has run: from now on the pages are the others, in every copy that they have.
void Runtime::lower_pages(Layer& layer) {
  const TierId home = home_.home();
  for (const PageId page : layer.plan.lower) {
    if (table_.lowered[page] != 0) continue;
    table_.lowered[page] = 1;
    ++table_.version[page];
    home_.rewritten(page);
    ++layer.report.lowered;
    if (!moves_bytes_) continue;
    const bool in_hbm = resident(table_.residency[page], kHbm);
    const TierId at = in_hbm ? kHbm : home;
    const std::uint32_t version = table_.version[page];
    const SlotId slot = table_.slot[at][page];
    layer.ops.push_back({PageOp::Kind::kLower, at, at, page, version, slot, slot});
    if (in_hbm) {
      layer.ops.push_back(
          {PageOp::Kind::kCopy, kHbm, home, page, version, slot, table_.slot[home][page]});
    }
  }
}

}  // namespace lehr::runtime
