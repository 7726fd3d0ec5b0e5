// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace lehr::runtime::cuda {

/// What a captured step launches, in the order of capture.
enum class LaunchKind : std::uint8_t {
  kApply,    ///< lists of the layer: entries, installs, selection; the token's q, k, v
  kAppend,   ///< the token into the tails
  kFork,     ///< the side stream may go on from here
  kMove,     ///< on the side stream: promotions that arrive in the layer, write-backs of full tails
  kWeights,  ///< stands for the rest of the model
  kScore,    ///< box scores of all pages
  kSelect,   ///< of them; its result is replaced by the imposed selection
  kResolve,  ///< residency of what is read
  kCheck,    ///< contents of all that is about to be read
  kAttend,   ///< reads every tier in place, installs what the plan keeps
  kFeedback,  ///< heat from the softmax pairs
  kJoin,      ///< the side stream has ended
  kDigest,    ///< of all outputs, once a step
  kStamp,     ///< the time at which the launch before it had ended: where kernels are traced
};
std::string_view name(LaunchKind kind);

inline constexpr std::size_t kLaunchKinds = 14;

struct Launch {
  LaunchKind kind;
  std::uint32_t layer;
  LaunchKind after = LaunchKind::kStamp;  ///< kStamp: the launch that it follows
};

struct ProgramOptions {
  std::uint32_t layers = 0;
  bool moves = true;  ///< false: no page moves in this step, so nothing is forked or joined
  bool resolve =
      false;  ///< residency on the device: for steps whose selection the host does not know
  bool sparse = true;  ///< false: neither scores nor selects
  bool weights = false;
  bool check_reads = false;
  bool trace_kernels = false;   ///< a stamp after each launch of the main stream
  std::uint32_t join_late = 0;  ///< joins come this many layers late: for tests of the checks alone
};

/// The order rules of a step, as data that the device captures and tests execute:
/// - lists of a layer are applied, and its token written, before anything of the layer reads;
/// - a layer's moves start after that (a full tail is complete, every older reader of a slot that
///   an arrival takes has ended) and run beside the rest of the layer;
/// - they are joined before the next layer begins: no layer meets a slot that is being written, and
///   none writes into one that is still being read.
std::vector<Launch> step_program(const ProgramOptions& options);

}  // namespace lehr::runtime::cuda
