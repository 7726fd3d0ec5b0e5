// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <cuda_runtime_api.h>

#include "kernels/base/result.hpp"

namespace lehr::kernels::cuda {

/// An Error from a CUDA status. Clears the sticky last error, so that a later launch is not blamed
/// for it.
inline Error cuda_error(cudaError_t status, const char* expression) {
  (void)cudaGetLastError();
  return {status == cudaErrorMemoryAllocation ? Code::kRefused : Code::kIo, Reason::kNone,
          std::string(expression) + ": " + cudaGetErrorName(status) + " (" +
              cudaGetErrorString(status) + ")"};
}

}  // namespace lehr::kernels::cuda

#define LEHR_CUDA_TRY(expr)                                              \
  do {                                                                   \
    const cudaError_t lehr_cuda_status = (expr);                         \
    if (lehr_cuda_status != cudaSuccess) {                               \
      return ::lehr::kernels::cuda::cuda_error(lehr_cuda_status, #expr); \
    }                                                                    \
  } while (false)
