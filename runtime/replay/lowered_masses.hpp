// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/replay/replay.hpp"

namespace lehr::runtime {

/// Largest shares of softmax mass on lowered pages, step by step.
class LoweredMasses {
 public:
  explicit LoweredMasses(float half_life);
  void note(const StepReport& report, LoweringResult& out);

 private:
  double kept_;  ///< of what was, a step
  double seen_ = 0;
  double lowered_ = 0;
};

/// The rest of `result.lowering`, and its lines for people; nothing where no page may be lowered.
Status note_lowering(const RuntimeOptions& options, const KvGeometry& geometry,
                     ReplayResult& result);

}  // namespace lehr::runtime
