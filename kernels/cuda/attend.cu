// SPDX-License-Identifier: Apache-2.0
#include "kernels/attend.hpp"

#include <algorithm>
#include <span>
#include <string>

#include "kernels/cuda/detail/attend_variants.hpp"
#include "kernels/cuda/detail/launch.hpp"

namespace lehr::kernels {
namespace {

using cuda::AttendArgs;
using cuda::PageForms;
using cuda::Variant;

constexpr std::uint32_t kMaxCtasPerSm = 4;
constexpr std::uint32_t kSmsAssumed = 256;  // scratch is sized before a device is known

std::span<const Variant> variants(DType dtype, PageForms forms) {
  const bool half = dtype == DType::kF16;
  if (forms == PageForms::kE4m3) return half ? cuda::variants_f16_e4m3() : cuda::variants_bf16_e4m3();
  if (forms == PageForms::kMixed) return half ? cuda::variants_f16_mixed() : cuda::variants_bf16_mixed();
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
  if (shape.rows() > 8 * row_tiles * cuda::kConsumerWarps) {
    return unsupported("head_dim 256 with more than 32 query rows a KV head");
  }
  for (const Variant& v : variants(shape.dtype, forms)) {
    if (v.head_dim == shape.head_dim && v.row_tiles == row_tiles) return &v;
  }
  return internal_error("attend: no variant for a shape that was accepted");
}

std::uint32_t warps_of_row_block(const StepShape& shape, std::uint32_t row_tiles) {
  std::uint32_t row_blocks = 1;
  while (row_blocks * 8 * row_tiles < shape.rows()) row_blocks *= 2;
  return cuda::kConsumerWarps / row_blocks;
}

struct Layout {
  std::size_t tickets, next_piece, pairs, values, total;
};

/// Scratch, by the largest number of segments the shape and tuning can need.
Layout scratch(const StepShape& shape, const AttendTuning& tuning) {
  const std::size_t tiles_a_group =
      (std::size_t{shape.max_pages} * shape.page_tokens + cuda::kTileTokens - 1) / cuda::kTileTokens;
  const std::size_t piece_tiles = std::max<std::size_t>(tuning.piece_tiles, 1);
  const std::size_t handed_out = shape.groups() * tiles_a_group * tuning.dynamic_percent / 100;
  const std::size_t slots =
      shape.groups() + kSmsAssumed * kMaxCtasPerSm + handed_out / piece_tiles + 2;
  const auto aligned = [](std::size_t x) { return (x + 127) / 128 * 128; };
  Layout l{};
  l.tickets = 0;
  l.next_piece = aligned(shape.groups() * 4);
  l.pairs = l.next_piece + 128;
  l.values = l.pairs + aligned(slots * shape.rows() * sizeof(SoftmaxPair));
  l.total = l.values + aligned(slots * shape.rows() * shape.head_dim * 4);
  return l;
}

Status check_tuning(const AttendTuning& t) {
  if (t.stages > cuda::kMaxStages || t.link_slots > cuda::kMaxLinkSlots ||
      t.ctas_per_sm > kMaxCtasPerSm || t.dynamic_percent > 100) {
    return invalid("tuning: at most " + std::to_string(cuda::kMaxStages) + " stages, " +
                   std::to_string(cuda::kMaxLinkSlots) + " link slots, " +
                   std::to_string(kMaxCtasPerSm) + " CTAs a SM and 100 percent");
  }
  if (t.link_slots > 0 && t.link_slots < cuda::kTileBlocks) {
    return invalid("tuning: link slots must hold a tile (4) or be 0");
  }
  if (t.dynamic_percent > 0 && t.piece_tiles == 0) {
    return invalid("tuning: pieces handed out at run time need piece_tiles");
  }
  return {};
}

/// Fills what the caller left open: one CTA a SM, as many stages as fit.
Result<AttendTuning> complete(const AttendTuning& given, const StepShape& shape, const Variant& v,
                              const cuda::DeviceFacts& device) {
  AttendTuning t = given;
  LEHR_TRY(check_tuning(t));
  if (t.ctas_per_sm == 0) t.ctas_per_sm = 1;
  if (t.mixed_residency && t.link_slots == 0 && v.head_dim <= 128) t.link_slots = 4;
  if (t.piece_tiles == 0) t.piece_tiles = 1;
  const std::uint32_t fixed = cuda::kControlBytes + cuda::flush_bytes(v.head_dim, v.row_tiles, shape.rows()) +
                              128 + t.link_slots * v.link_slot_bytes;
  const std::uint32_t room =
      std::min(device.shared_bytes, device.shared_bytes_of_sm / t.ctas_per_sm - 1024);
  const std::uint32_t most =
      room > fixed ? std::min((room - fixed) / v.tile_bytes, cuda::kMaxStages) : 0;
  if (t.stages == 0) t.stages = most;
  if (most < 2 || t.stages > most || t.stages == 1) {
    return unsupported("attend: " + std::to_string(t.stages) + " stages of " +
                       std::to_string(v.tile_bytes) + " bytes; at least 2 are needed, shared memory holds " +
                       std::to_string(most));
  }
  return t;
}

}  // namespace

Result<std::size_t> attend_workspace_bytes(const StepShape& shape, const AttendTuning& tuning) {
  LEHR_TRY(check_shape(shape));
  LEHR_TRY(check_tuning(tuning));
  return scratch(shape, tuning).total;
}

Status attend_cuda(const StepShape& shape, const AttendParams& params, const AttendTuning& tuning,
                   void* workspace, std::size_t workspace_bytes, void* stream) {
  LEHR_TRY(check_attend(shape, params));
  if (shape.sequences == 0) return {};
  LEHR_ASSIGN(const Variant* v, choose(shape, params));
  LEHR_ASSIGN(const cuda::DeviceFacts device, cuda::current_device());
  LEHR_ASSIGN(const AttendTuning t, complete(tuning, shape, *v, device));
  LEHR_TRY(check_pointer(workspace, 128, "workspace"));
  const Layout l = scratch(shape, t);
  if (workspace_bytes < l.total) {
    return invalid("workspace of " + std::to_string(workspace_bytes) + " bytes; " +
                   std::to_string(l.total) + " are needed");
  }
  const std::uint32_t ctas = device.sms * t.ctas_per_sm;
  if (ctas > kSmsAssumed * kMaxCtasPerSm) return unsupported("a device with more than 1024 CTAs");
  const auto s = static_cast<cudaStream_t>(stream);
  LEHR_TRY(cuda::check_stream(s, device));

  auto* base = static_cast<unsigned char*>(workspace);
  AttendArgs args{};
  args.shape = shape;
  args.p = params;
  args.tickets = reinterpret_cast<std::uint32_t*>(base + l.tickets);
  args.next_piece = reinterpret_cast<std::uint32_t*>(base + l.next_piece);
  args.partial_pairs = reinterpret_cast<SoftmaxPair*>(base + l.pairs);
  args.partial_values = reinterpret_cast<float*>(base + l.values);
  args.stages = t.stages;
  args.link_slots = t.link_slots;
  args.dynamic_percent = t.dynamic_percent;
  args.piece_tiles = t.piece_tiles;
  args.warps_of_row_block = warps_of_row_block(shape, v->row_tiles);

  const std::uint32_t shared =
      (cuda::kControlBytes + cuda::flush_bytes(v->head_dim, v->row_tiles, shape.rows()) + 127) / 128 * 128 +
      t.stages * v->tile_bytes + t.link_slots * v->link_slot_bytes;
  LEHR_CUDA_TRY(cudaFuncSetAttribute(reinterpret_cast<const void*>(v->kernel),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(shared)));
  return cuda::launch(v->kernel, dim3(ctas), dim3(cuda::attend_threads(t.link_slots > 0)), shared, s, t.programmatic, args);
}

}  // namespace lehr::kernels
