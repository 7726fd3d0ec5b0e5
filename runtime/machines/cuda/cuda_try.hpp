// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <cuda_runtime_api.h>

#include "kernels/base/result.hpp"

namespace lehr::runtime::cuda {

/// An Error from a CUDA status; clears the sticky one. Out of memory is a refusal.
inline Error cuda_error(cudaError_t status, const char* expression) {
  (void)cudaGetLastError();
  const bool full = status == cudaErrorMemoryAllocation;
  return {full ? Code::kRefused : Code::kIo, full ? Reason::kNoSpace : Reason::kNone,
          std::string("machine cuda: ") + expression + ": " + cudaGetErrorName(status) + " (" +
              cudaGetErrorString(status) + ")"};
}

}  // namespace lehr::runtime::cuda

#define LEHR_CUDA_TRY(expr)                                              \
  do {                                                                   \
    const cudaError_t lehr_cuda_status = (expr);                         \
    if (lehr_cuda_status != cudaSuccess)                                 \
      return ::lehr::runtime::cuda::cuda_error(lehr_cuda_status, #expr); \
  } while (false)
