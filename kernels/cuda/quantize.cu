// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/detail/convert_page.cuh"
#include "kernels/cuda/detail/launch.hpp"
#include "kernels/quantize.hpp"

namespace lehr::kernels {
namespace {

__global__ void __launch_bounds__(cuda::kPageThreads)
    quantize_kernel(StepShape shape, QuantizeParams p) {
  const PageEntry entry = p.sources[blockIdx.x];
  auto* out = reinterpret_cast<unsigned char*>(p.destinations[blockIdx.x]);
  if (entry == kAbsentPage || out == nullptr) return;
  cuda::convert_page(
      {cuda::page_bytes(entry), entry_formats(entry), shape.page_tokens, shape.head_dim}, p.to,
      out);
}

}  // namespace

Status quantize_cuda(const StepShape& shape, const QuantizeParams& params, void* stream) {
  LEHR_TRY(check_quantize(shape, params));
  if (params.count == 0) return {};
  LEHR_ASSIGN(const cuda::DeviceFacts device, cuda::current_device());
  const auto s = static_cast<cudaStream_t>(stream);
  LEHR_TRY(cuda::check_stream(s, device));
  return cuda::launch(quantize_kernel, dim3(params.count), dim3(cuda::kPageThreads), 0, s, false,
                      shape, params);
}

}  // namespace lehr::kernels
