// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/contents/kv_device.hpp"
#include "transfer/mover_choice.hpp"

namespace lehr::runtime {

/// What a profile says of the movers between a GPU and host memory; empty: rings move everything.
struct KvMovers {
  std::vector<transfer::MoverCurve> in, out;
};

/// A GPU as contents see it. The main lane is whatever stream the caller names, null: the default
/// stream; the other one is a stream of its own. kUnsupported in a build without CUDA, and where
/// there is no such device.
Result<std::unique_ptr<contents::KvDevice>> make_cuda_kv_device(std::int32_t device,
                                                                const KvMovers& movers = {});

}  // namespace lehr::runtime
