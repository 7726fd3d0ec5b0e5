// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include <cuda_runtime_api.h>

#include "kernels/base/result.hpp"

/// For programs on a GPU that cannot go on without what they ask for: they say why and end.
namespace lehr::test {

inline void must(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}
inline void must(const Status& status, const char* what) {
  if (status) return;
  std::fprintf(stderr, "%s refused: %s\n", what, status.error().what.c_str());
  std::exit(1);
}
template <class T>
T must(Result<T> result, const char* what) {
  if (!result) must(Status(result.error()), what);
  return *std::move(result);
}

}  // namespace lehr::test
