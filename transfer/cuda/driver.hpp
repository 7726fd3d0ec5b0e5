// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda_status.hpp"

namespace lehr::transfer::cuda {

/// Finds a call of the driver at run time, as it was in CUDA `version`: nothing links against the
/// driver.
template <class Function>
Status look_up(const char* name, unsigned version, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult query{};
  LEHR_CUDA_TRY(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &query));
  if (query != cudaDriverEntryPointSuccess || found == nullptr) {
    return unsupported(std::string("the driver has no ") + name);
  }
  function = reinterpret_cast<Function>(found);
  return {};
}

inline Error driver_error(CUresult status, const char* what) {
  const bool memory = status == CUDA_ERROR_OUT_OF_MEMORY;
  return {memory ? Code::kRefused : Code::kIo, memory ? Reason::kOverBudget : Reason::kNone,
          std::string(what) + ": driver error " + std::to_string(static_cast<int>(status))};
}

}  // namespace lehr::transfer::cuda
