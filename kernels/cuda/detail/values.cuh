// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/page_entry.hpp"
#include "kernels/shape.hpp"

/// Single values and lists, for the kernels that are not bound by how they load them.
namespace lehr::kernels::cuda {

__device__ __forceinline__ float load_half(DType type, const void* base, std::size_t index) {
  if (type == DType::kBf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(base)[index]);
  return __half2float(static_cast<const __half*>(base)[index]);
}
__device__ __forceinline__ void store_half(DType type, void* base, std::size_t index, float x) {
  if (type == DType::kBf16) {
    static_cast<__nv_bfloat16*>(base)[index] = __float2bfloat16_rn(x);
  } else {
    static_cast<__half*>(base)[index] = __float2half_rn(x);
  }
}
/// Rounded down (or up): a box never shrinks.
__device__ __forceinline__ void store_half_outward(DType type, void* base, std::size_t index,
                                                   float x, bool up) {
  if (type == DType::kBf16) {
    static_cast<__nv_bfloat16*>(base)[index] = up ? __float2bfloat16_ru(x) : __float2bfloat16_rd(x);
  } else {
    static_cast<__half*>(base)[index] = up ? __float2half_ru(x) : __float2half_rd(x);
  }
}

__device__ __forceinline__ const unsigned char* page_bytes(PageEntry entry) {
  return reinterpret_cast<const unsigned char*>(entry_address(entry));
}

/// The device's form of stored_value (quantize.hpp).
__device__ inline float stored(const unsigned char* page, PageFormat format, std::uint32_t tokens,
                               std::uint32_t dim, std::uint32_t what, std::uint32_t token,
                               std::uint32_t channel) {
  const std::size_t half = std::size_t{tokens} * dim;
  const DType type = what == 0 ? format.k : format.v;
  const unsigned char* from = page + (what == 0 ? 0 : half * element_bytes(format.k));
  const std::size_t index = std::size_t{token} * dim + channel;
  if (type == DType::kF16 || type == DType::kBf16) return load_half(type, from, index);
  const unsigned char* scales = page + half * (element_bytes(format.k) + element_bytes(format.v));
  const bool shared = format.k == DType::kE4m3 && format.v == DType::kE4m3;
  if (what == 1) scales += shared ? 4 : k_scale_bytes(format, tokens, dim);
  if (type == DType::kE4m3) {
    const __half_raw raw = __nv_cvt_fp8_to_halfraw(from[index], __NV_E4M3);
    return __half2float(__half(raw)) * *reinterpret_cast<const float*>(scales);
  }
  const std::size_t scale = what == 0 ? std::size_t{token / 32} * dim + channel
                                      : std::size_t{token} * (dim / 32) + channel / 32;
  return static_cast<float>(static_cast<signed char>(from[index])) *
         load_half(DType::kF16, scales, scale);
}

/// Pages of a sequence, as far as the tables go.
__device__ __forceinline__ std::uint32_t sequence_pages(const StepShape& shape,
                                                        const std::uint32_t* lengths,
                                                        std::uint32_t group) {
  const std::uint32_t n = shape.pages_for(lengths[group / shape.kv_heads]);
  return n < shape.max_pages ? n : shape.max_pages;
}

/// What one thread of a launch over list positions (grid_over) looks after.
struct ListItem {
  std::uint32_t group, position, page;
};

/// False past the end of the group's list. `p` names lengths, selection, counts and pitch.
template <class Params>
__device__ __forceinline__ bool list_item(const StepShape& shape, const Params& p, ListItem& item) {
  item.group = blockIdx.y + blockIdx.z * gridDim.y;
  item.position = blockIdx.x * blockDim.x + threadIdx.x;
  if (item.group >= shape.groups()) return false;
  std::uint32_t count = sequence_pages(shape, p.lengths, item.group);
  if (p.counts != nullptr) {
    const std::uint32_t listed = p.counts[item.group];
    count = listed < p.selection_pitch ? listed : p.selection_pitch;
  }
  if (item.position >= count) return false;
  item.page = p.selection != nullptr
                  ? p.selection[std::size_t{item.group} * p.selection_pitch + item.position]
                  : item.position;
  return item.page < shape.max_pages;
}

}  // namespace lehr::kernels::cuda
