// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <span>
#include <string>

#include "kernels/attend.hpp"
#include "kernels/cuda/detail/attend_variants.hpp"
#include "kernels/cuda/detail/launch.hpp"

namespace lehr::kernels {
namespace {

using cuda::AttendArgs;
using cuda::PageForms;
using cuda::Variant;

constexpr std::uint32_t kMaxCtasPerSm = 4;
constexpr std::uint32_t kMaxCtas = 1024;  // scratch is sized before a device is known

std::span<const Variant> variants(DType dtype, PageForms forms) {
  const bool half = dtype == DType::kF16;
  if (forms == PageForms::kE4m3)
    return half ? cuda::variants_f16_e4m3() : cuda::variants_bf16_e4m3();
  if (forms == PageForms::kMixed)
    return half ? cuda::variants_f16_mixed() : cuda::variants_bf16_mixed();
  return half ? cuda::variants_f16() : cuda::variants_bf16();
}

Result<PageForms> forms_of(const StepShape& shape, const AttendParams& params) {
  const std::uint32_t own = 1U << static_cast<unsigned>(shape.dtype);
  const std::uint32_t e4m3 = 1U << static_cast<unsigned>(DType::kE4m3);
  const std::uint32_t asked = params.formats != 0 ? params.formats : own;
  if ((asked & ~(own | e4m3)) != 0) {
    return unsupported(std::string("page formats: the CUDA kernel reads ") + name(shape.dtype) +
                       " and e4m3 pages for " + name(shape.dtype) + " queries");
  }
  if (asked == own) return PageForms::k16Bit;
  return asked == e4m3 ? PageForms::kE4m3 : PageForms::kMixed;
}

/// The variant that holds all rows of a group, or why there is none.
Result<const Variant*> choose(const StepShape& shape, const AttendParams& params) {
  LEHR_ASSIGN(const PageForms forms, forms_of(shape, params));
  const std::uint32_t row_tiles = shape.rows() <= 8 || shape.head_dim == 256 ? 1 : 2;
  for (const Variant& v : variants(shape.dtype, forms)) {
    if (v.head_dim == shape.head_dim && v.row_tiles == row_tiles) return &v;
  }
  return internal_error("attend: no variant for a shape that was accepted");
}

std::uint32_t warps_of_row_block(const StepShape& shape, std::uint32_t row_tiles) {
  std::uint32_t row_blocks = 1;
  while (row_blocks * 8 * row_tiles < shape.rows()) row_blocks *= 2;
  return cuda::consumer_warps(row_tiles) / row_blocks;
}

struct Layout {
  std::size_t pairs, values, total;
};

/// Scratch: tickets first, then partial results. Segments are cut where a group or a piece begins,
/// so there are no more than both together.
Layout scratch(const StepShape& shape) {
  const std::size_t slots = shape.groups() + kMaxCtas;
  const auto aligned = [](std::size_t x) { return (x + 127) / 128 * 128; };
  Layout l{};
  l.pairs = aligned(shape.groups() * 4);
  l.values = l.pairs + aligned(slots * shape.rows() * sizeof(SoftmaxPair));
  l.total = l.values + aligned(slots * shape.rows() * shape.head_dim * 4);
  return l;
}

Status check_tuning(const AttendTuning& t) {
  if (t.stages > cuda::kMaxStages || t.ctas_per_sm > kMaxCtasPerSm) {
    return invalid("tuning: at most " + std::to_string(cuda::kMaxStages) + " stages, " +
                   std::to_string(kMaxCtasPerSm) + " CTAs a SM");
  }
  return {};
}

/// Fills what the caller left open: one CTA a SM and the ring that measured best.
Result<AttendTuning> complete(const AttendTuning& given, const StepShape& shape, const Variant& v,
                              const cuda::DeviceFacts& device) {
  AttendTuning t = given;
  LEHR_TRY(check_tuning(t));
  if (t.ctas_per_sm == 0) t.ctas_per_sm = 1;
  const std::uint32_t fixed =
      cuda::kControlBytes + cuda::flush_bytes(v.head_dim, v.row_tiles, shape.rows()) + 128;
  const std::uint32_t room =
      std::min(device.shared_bytes, device.shared_bytes_of_sm / t.ctas_per_sm - 1024);
  const std::uint32_t most =
      room > fixed ? std::min((room - fixed) / v.tile_bytes, cuda::kMaxStages) : 0;
  // Measured: more than some 100 KiB under way a SM costs time, for DRAM rows are then opened in
  // poorer order.
  if (t.stages == 0) t.stages = std::min(most, v.tile_bytes > 20000 ? 3U : 8U);
  if (most < 2 || t.stages > most || t.stages == 1) {
    return unsupported(
        "attend: " + std::to_string(t.stages) + " stages of " + std::to_string(v.tile_bytes) +
        " bytes; at least 2 are needed, shared memory holds " + std::to_string(most));
  }
  return t;
}

}  // namespace

Result<std::size_t> attend_workspace_bytes(const StepShape& shape) {
  LEHR_TRY(check_shape(shape));
  return scratch(shape).total;
}

Status attend_cuda(const StepShape& shape, const AttendParams& params, const AttendTuning& tuning,
                   void* workspace, std::size_t workspace_bytes, void* stream) {
  LEHR_TRY(check_attend(shape, params));
  if (shape.sequences == 0) return {};
  LEHR_ASSIGN(const Variant* v, choose(shape, params));
  LEHR_ASSIGN(const cuda::DeviceFacts device, cuda::current_device());
  LEHR_ASSIGN(const AttendTuning t, complete(tuning, shape, *v, device));
  LEHR_TRY(check_pointer(workspace, 128, "workspace"));
  const Layout l = scratch(shape);
  if (workspace_bytes < l.total) {
    return invalid("workspace of " + std::to_string(workspace_bytes) + " bytes; " +
                   std::to_string(l.total) + " are needed");
  }
  const std::uint32_t ctas = device.sms * t.ctas_per_sm;
  if (ctas > kMaxCtas) return unsupported("a device with room for more than 1024 CTAs");
  const auto s = static_cast<cudaStream_t>(stream);
  LEHR_TRY(cuda::check_stream(s, device));

  auto* base = static_cast<unsigned char*>(workspace);
  AttendArgs args{};
  args.shape = shape;
  args.p = params;
  args.tickets = reinterpret_cast<std::uint32_t*>(base);
  args.partial_pairs = reinterpret_cast<SoftmaxPair*>(base + l.pairs);
  args.partial_values = reinterpret_cast<float*>(base + l.values);
  args.rows = shape.rows();
  args.groups = static_cast<std::uint32_t>(shape.groups());
  args.page_shift = static_cast<std::uint32_t>(std::countr_zero(shape.page_tokens));
  args.stages = cuda::Divisor::of(t.stages);
  args.ratio = cuda::Divisor::of(shape.ratio());
  args.kv_heads = cuda::Divisor::of(shape.kv_heads);
  args.warps_of_row_block = warps_of_row_block(shape, v->row_tiles);

  const std::uint32_t shared =
      (cuda::kControlBytes + cuda::flush_bytes(v->head_dim, v->row_tiles, shape.rows()) + 127) /
          128 * 128 +
      t.stages * v->tile_bytes;
  LEHR_CUDA_TRY(cudaFuncSetAttribute(reinterpret_cast<const void*>(v->kernel),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(shared)));
  return cuda::launch(v->kernel, dim3(ctas), dim3(cuda::attend_threads(v->row_tiles)), shared, s,
                      t.programmatic, args);
}

}  // namespace lehr::kernels
