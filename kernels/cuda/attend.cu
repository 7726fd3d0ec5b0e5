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
constexpr std::uint32_t kBytesInFlight = 182 << 10;
constexpr std::uint32_t kMaxCtas = 1024;  // scratch is sized before a device is known

constexpr std::uint32_t bit(DType type) { return 1U << static_cast<unsigned>(type); }

Result<PageForms> forms_of(const StepShape& shape, const AttendParams& params) {
  const std::uint32_t own = bit(shape.dtype);
  const std::uint32_t asked = params.formats != 0 ? params.formats : own;
  if ((asked & ~(own | bit(DType::kE4m3) | bit(DType::kInt8))) != 0) {
    return unsupported(std::string("page formats: for ") + name(shape.dtype) +
                       " queries the CUDA kernel reads " + name(shape.dtype) +
                       ", e4m3 and int8 pages");
  }
  if (asked == own) return PageForms::k16Bit;
  return asked == bit(DType::kE4m3) ? PageForms::kE4m3 : PageForms::kMixed;
}

/// The variant that holds all rows of a group with the fewest reads of each tile.
Result<const Variant*> choose(const StepShape& shape, const AttendParams& params) {
  LEHR_ASSIGN(const PageForms forms, forms_of(shape, params));
  const Variant* best = nullptr;
  for (const Variant& v : cuda::variants(shape.dtype, shape.head_dim)) {
    if (v.forms != forms || (v.row_tiles > 1 && shape.rows() <= 8)) continue;
    if (best == nullptr || v.row_tiles > best->row_tiles) best = &v;
  }
  if (best == nullptr) return internal_error("attend: no variant for a shape that was accepted");
  return best;
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

std::uint32_t shared_room(const cuda::DeviceFacts& device, const AttendTuning& t) {
  return std::min(device.shared_bytes, device.shared_bytes_of_sm / t.ctas_per_sm - 1024);
}

/// Fills what the caller left open: one CTA a SM and the ring that measured best.
Result<AttendTuning> complete(const AttendTuning& given, const StepShape& shape, const Variant& v,
                              const cuda::DeviceFacts& device) {
  AttendTuning t = given;
  LEHR_TRY(check_tuning(t));
  if (t.ctas_per_sm == 0) t.ctas_per_sm = 1;
  const std::uint32_t fixed = cuda::ring_offset(shape.head_dim, v.row_tiles, shape.rows());
  const std::uint32_t room = shared_room(device, t);
  const std::uint32_t most =
      room > fixed ? std::min((room - fixed) / v.tile_bytes, cuda::kMaxStages) : 0;
  // Consumers hold a tile each while they work on it, so small tiles want more of them than bytes
  // under way would ask for. The rest serves pages that cross a link.
  if (t.stages == 0) t.stages = std::min(most, std::max(2U, kBytesInFlight / v.tile_bytes));
  if (most < 2 || t.stages > most || t.stages == 1) {
    return unsupported(
        "attend: " + std::to_string(t.stages) + " stages of " + std::to_string(v.tile_bytes) +
        " bytes; at least 2 are needed, shared memory holds " + std::to_string(most));
  }
  return t;
}

/// Slots for blocks that cross a link, in what the ring leaves of shared memory: whole pages.
std::uint32_t host_slots(const StepShape& shape, const Variant& v, std::uint32_t room,
                         std::uint32_t used) {
  const std::uint32_t block = v.tile_bytes / cuda::kTileBlocks;
  const std::uint32_t fit = room > used ? std::min((room - used) / block, cuda::kMaxHostSlots) : 0;
  // Each producer has its own, for whole pages.
  const std::uint32_t unit = cuda::kProducerWarps * shape.page_tokens / cuda::kBlockTokens;
  return fit / unit * unit;
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
  const std::uint32_t ring = cuda::ring_offset(shape.head_dim, v->row_tiles, shape.rows());
  const std::uint32_t in_ring = ring + t.stages * v->tile_bytes;
  const std::uint32_t slots = host_slots(shape, *v, shared_room(device, t), in_ring);
  args.host_slots = slots;
  args.ratio = cuda::Divisor::of(shape.ratio());
  args.kv_heads = cuda::Divisor::of(shape.kv_heads);
  args.warps_of_row_block = warps_of_row_block(shape, v->row_tiles);

  const std::uint32_t shared = in_ring + slots * v->tile_bytes / cuda::kTileBlocks;
  LEHR_CUDA_TRY(cudaFuncSetAttribute(reinterpret_cast<const void*>(v->kernel),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(shared)));
  return cuda::launch(v->kernel, dim3(ctas), dim3(cuda::attend_threads(v->row_tiles)), shared, s,
                      t.programmatic, args);
}

}  // namespace lehr::kernels
