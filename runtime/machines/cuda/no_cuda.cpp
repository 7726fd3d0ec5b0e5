// SPDX-License-Identifier: Apache-2.0
#include "runtime/machines/cuda.hpp"
#include "runtime/machines/cuda/ceilings.hpp"
#include "runtime/machines/cuda/offload.hpp"

namespace lehr::runtime {

namespace {

Error no_cuda() {
  return unsupported(
      "machine cuda: this build has no CUDA; configure with -DLEHR_CUDA=ON, or take sim or host");
}

}  // namespace

Result<std::unique_ptr<Machine>> make_cuda_machine(const CudaMachineOptions&) { return no_cuda(); }

Result<cuda::OffloadedCacheResult> cuda::run_offloaded_cache(const OffloadedCacheOptions&) {
  return no_cuda();
}

Result<cuda::DecodeCeilings> cuda::measure_ceilings(std::int32_t) { return no_cuda(); }

}  // namespace lehr::runtime
