// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <cuda_runtime_api.h>

#include "kernels/base/result.hpp"

/// CUDA's status codes as errors, for whoever calls CUDA; builds without it do not include this.
namespace lehr {

/// Clears CUDA's sticky last error, so that a later call is not blamed for it. Out of memory is a
/// refusal.
inline Error cuda_error(cudaError_t status, const char* what) {
  (void)cudaGetLastError();
  const bool full = status == cudaErrorMemoryAllocation;
  return {full ? Code::kRefused : Code::kIo, full ? Reason::kOverBudget : Reason::kNone,
          std::string(what) + ": " + cudaGetErrorName(status) + " (" + cudaGetErrorString(status) +
              ")"};
}

}  // namespace lehr

#define LEHR_CUDA_TRY(expr)                               \
  do {                                                    \
    const cudaError_t lehr_cuda_status = (expr);          \
    if (lehr_cuda_status != cudaSuccess) {                \
      return ::lehr::cuda_error(lehr_cuda_status, #expr); \
    }                                                     \
  } while (false)
