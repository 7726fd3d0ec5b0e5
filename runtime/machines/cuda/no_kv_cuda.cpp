// SPDX-License-Identifier: Apache-2.0
#include "runtime/machines/cuda/kv_cuda.hpp"

namespace lehr::runtime {

Result<std::unique_ptr<contents::KvDevice>> make_cuda_kv_device(std::int32_t, const KvMovers&) {
  return unsupported(
      "machine: this build has no cuda machine (configure with -DLEHR_CUDA=ON); expected sim or "
      "host");
}

}  // namespace lehr::runtime
