// SPDX-License-Identifier: Apache-2.0
#include "runtime/machines/cuda/program.hpp"

#include <algorithm>
#include <iterator>

namespace lehr::runtime::cuda {

std::string_view name(LaunchKind kind) {
  static constexpr std::string_view kNames[] = {"apply",    "append", "fork",    "move",  "weights",
                                                "score",    "select", "resolve", "check", "attend",
                                                "feedback", "join",   "digest",  "stamp"};
  static_assert(std::size(kNames) == kLaunchKinds);
  return kNames[static_cast<std::size_t>(kind)];
}

namespace {

bool on_main_stream(LaunchKind kind) {
  return kind != LaunchKind::kFork && kind != LaunchKind::kMove;
}

}  // namespace

std::vector<Launch> step_program(const ProgramOptions& o) {
  std::vector<Launch> out;
  for (std::uint32_t l = 0; l < o.layers; ++l) {
    const auto add = [&](LaunchKind kind, bool wanted = true) {
      if (!wanted) return;
      out.push_back({kind, l});
      if (o.trace_kernels && on_main_stream(kind)) out.push_back({LaunchKind::kStamp, l, kind});
    };
    add(LaunchKind::kApply);
    add(LaunchKind::kAppend);
    add(LaunchKind::kFork, o.moves);
    add(LaunchKind::kMove, o.moves);
    add(LaunchKind::kWeights, o.weights);
    add(LaunchKind::kScore, o.sparse);
    add(LaunchKind::kSelect, o.sparse);
    add(LaunchKind::kResolve, o.resolve);
    add(LaunchKind::kCheck, o.check_reads);
    add(LaunchKind::kAttend);
    add(LaunchKind::kFeedback, o.sparse);
    if (!o.moves) continue;
    if (l >= o.join_late) out.push_back({LaunchKind::kJoin, l - o.join_late});
    if (o.trace_kernels) out.push_back({LaunchKind::kStamp, l, LaunchKind::kJoin});
    if (l + 1 == o.layers) {  // whatever is still open
      for (std::uint32_t j = l + 1 - std::min(o.join_late, l + 1); j <= l && o.join_late > 0; ++j)
        out.push_back({LaunchKind::kJoin, j});
    }
  }
  out.push_back({LaunchKind::kDigest, o.layers});
  return out;
}

}  // namespace lehr::runtime::cuda
