// SPDX-License-Identifier: Apache-2.0
#include "runtime/machines/cuda/program.hpp"

#include <algorithm>

namespace lehr::runtime::cuda {

std::string_view name(LaunchKind kind) {
  static constexpr std::string_view kNames[] = {"apply",    "append", "fork",    "move",  "weights",
                                                "score",    "select", "resolve", "check", "attend",
                                                "feedback", "join",   "digest"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::vector<Launch> step_program(const ProgramOptions& o) {
  std::vector<Launch> out;
  for (std::uint32_t l = 0; l < o.layers; ++l) {
    const auto add = [&](LaunchKind kind, bool wanted = true) {
      if (wanted) out.push_back({kind, l});
    };
    add(LaunchKind::kApply);
    add(LaunchKind::kAppend);
    add(LaunchKind::kFork, o.tiering);
    add(LaunchKind::kMove, o.tiering);
    add(LaunchKind::kWeights, o.weights);
    add(LaunchKind::kScore, o.sparse);
    add(LaunchKind::kSelect, o.sparse);
    add(LaunchKind::kResolve, o.tiering);
    add(LaunchKind::kCheck, o.check_reads);
    add(LaunchKind::kAttend);
    add(LaunchKind::kFeedback, o.sparse);
    if (!o.tiering) continue;
    if (l >= o.join_late) out.push_back({LaunchKind::kJoin, l - o.join_late});
    if (l + 1 == o.layers) {  // whatever is still open
      for (std::uint32_t j = l + 1 - std::min(o.join_late, l + 1); j <= l && o.join_late > 0; ++j)
        out.push_back({LaunchKind::kJoin, j});
    }
  }
  out.push_back({LaunchKind::kDigest, o.layers});
  return out;
}

}  // namespace lehr::runtime::cuda
