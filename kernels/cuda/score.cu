// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/detail/launch.hpp"
#include "kernels/cuda/detail/score_boxes.cuh"
#include "kernels/cuda/detail/select_pages.cuh"
#include "kernels/score_select.hpp"

namespace lehr::kernels {
namespace {

constexpr std::uint32_t kThreads = 32 * cuda::kScoreWarps;
constexpr std::uint32_t kPagesARound = cuda::kScoreWarps * cuda::kPagesAWarp;
constexpr std::uint32_t kMaxTeam = 8;

template <class T, std::uint32_t kDim>
__global__ void __launch_bounds__(kThreads, kDim == 256 ? 1 : 2)
    score_kernel(StepShape shape, ScoreParams p, std::uint32_t pages_a_cta) {
  extern __shared__ __align__(128) unsigned char score_shared[];
  __shared__ cuda::ScoreShared shared;
  cuda::wait_for_previous_kernel();
  cuda::allow_next_kernel();
  const std::uint32_t group = blockIdx.y + blockIdx.z * gridDim.y;
  if (group >= shape.groups()) return;
  const std::uint32_t pages = cuda::sequence_pages(shape, p.lengths, group);
  const std::uint32_t first = blockIdx.x * pages_a_cta;
  if (first >= pages) return;
  const std::uint32_t end = first + pages_a_cta < pages ? first + pages_a_cta : pages;
  float* scores = p.scores + std::size_t{group} * shape.max_pages;
  cuda::BoxScorer<T, kDim> scorer(shape, p, group, pages, shared, score_shared);
  scorer.run(first, end, [&](std::uint32_t page, float score) { scores[page] = score; });
}

/// A team a group: scores stay in its shared memory as keys, from which it selects.
template <class T, std::uint32_t kDim>
__global__ void __launch_bounds__(kThreads, kDim == 256 ? 1 : 2)
    score_select_kernel(StepShape shape, ScoreParams score, SelectParams select,
                        std::uint32_t keys_at) {
  extern __shared__ __align__(128) unsigned char score_shared[];
  __shared__ cuda::ScoreShared shared;
  __shared__ cuda::SelectScratch scratch;
  const auto team = cuda::Team::own();
  cuda::wait_for_previous_kernel();
  cuda::allow_next_kernel();
  const std::uint32_t group = blockIdx.x / team.size;
  const std::uint32_t pages = cuda::sequence_pages(shape, score.lengths, group);
  if (pages == 0) {
    if (threadIdx.x == 0 && team.rank == 0) select.counts[group] = 0;
    return;
  }
  auto* key = reinterpret_cast<std::uint32_t*>(score_shared + keys_at);
  // Slices of whole rounds of 16 pages, so that blocks of two levels are not cut.
  const std::uint32_t each = (pages + team.size - 1) / team.size;
  const std::uint32_t slice =
      (each + cuda::kPagesAWarp - 1) / cuda::kPagesAWarp * cuda::kPagesAWarp;
  const std::uint32_t first = team.rank * slice < pages ? team.rank * slice : pages;
  const std::uint32_t end = first + slice < pages ? first + slice : pages;
  float* scores =
      score.scores == nullptr ? nullptr : score.scores + std::size_t{group} * shape.max_pages;
  cuda::BoxScorer<T, kDim> scorer(shape, score, group, pages, shared, score_shared);
  scorer.run(first, end, [&](std::uint32_t page, float x) {
    key[page - first] = cuda::key_of(x);
    if (scores != nullptr) scores[page] = x;
  });
  const cuda::Keys keys{
      nullptr, key, first, end - first, pages, select.sinks, select.recent > 1 ? select.recent : 1};
  cuda::Selector(scratch, team, keys)
      .run(shape, select, select.selection + std::size_t{group} * select.pitch,
           select.counts + group);
}

template <class Kernel>
struct Forms {
  Kernel* of[2][3];
  Kernel* choose(const StepShape& shape) const {
    const int dim = shape.head_dim == 64 ? 0 : shape.head_dim == 128 ? 1 : 2;
    return of[shape.dtype == DType::kF16 ? 0 : 1][dim];
  }
};

Status allow_shared(const void* kernel, std::uint32_t bytes) {
  LEHR_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(bytes)));
  return {};
}

}  // namespace

Status score_cuda(const StepShape& shape, const ScoreParams& params, void* stream) {
  LEHR_TRY(check_score(shape, params));
  if (shape.sequences == 0) return {};
  LEHR_ASSIGN(const cuda::DeviceFacts device, cuda::current_device());
  const auto s = static_cast<cudaStream_t>(stream);
  LEHR_TRY(cuda::check_stream(s, device));
  const auto groups = static_cast<std::uint32_t>(shape.groups());
  const std::uint32_t y = groups < 32768 ? groups : 32768;
  // One wave of CTAs, each with as many rounds as that takes: starting a CTA costs more than a
  // round.
  const std::uint32_t parts = (shape.max_pages + kPagesARound - 1) / kPagesARound;
  const std::uint32_t resident = 2 * device.sms;
  std::uint32_t rounds =
      static_cast<std::uint32_t>((std::uint64_t{parts} * groups + resident - 1) / resident);
  rounds = rounds < parts ? rounds : parts;
  const dim3 grid((parts + rounds - 1) / rounds, y, (groups + y - 1) / y);
  static constexpr Forms<void(StepShape, ScoreParams, std::uint32_t)> kForms = {
      {{score_kernel<__half, 64>, score_kernel<__half, 128>, score_kernel<__half, 256>},
       {score_kernel<__nv_bfloat16, 64>, score_kernel<__nv_bfloat16, 128>,
        score_kernel<__nv_bfloat16, 256>}}};
  auto* kernel = kForms.choose(shape);
  const std::uint32_t shared = cuda::score_bytes(shape.head_dim, shape.rows(), device.bulk_copy);
  LEHR_TRY(allow_shared(reinterpret_cast<const void*>(kernel), shared));
  return cuda::launch(kernel, grid, dim3(kThreads), shared, s, device.bulk_copy, shape, params,
                      rounds * kPagesARound);
}

Status score_select_cuda(const StepShape& shape, const ScoreParams& score,
                         const SelectParams& select, void* stream) {
  LEHR_TRY(check_score_select(shape, score, select));
  if (shape.sequences == 0) return {};
  LEHR_ASSIGN(const cuda::DeviceFacts device, cuda::current_device());
  const auto s = static_cast<cudaStream_t>(stream);
  LEHR_TRY(cuda::check_stream(s, device));
  // As many CTAs as run at once, but no fewer than keys need room, and none without a round of
  // pages.
  constexpr std::uint32_t kPagesACta = 8192;
  const auto groups = static_cast<std::uint32_t>(shape.groups());
  std::uint32_t team = 1;
  if (device.bulk_copy) {
    while (team < kMaxTeam && team * kPagesACta < shape.max_pages) team *= 2;
    // A cluster costs a microsecond or two; below some rounds a CTA it does not earn them.
    while (team < kMaxTeam && team * groups * 2 <= 2 * device.sms &&
           8 * team * kPagesARound <= shape.max_pages)
      team *= 2;
  }
  const std::uint32_t keys_at =
      (cuda::score_bytes(shape.head_dim, shape.rows(), device.bulk_copy) + 15) / 16 * 16;
  const std::uint32_t slice = (shape.max_pages + team - 1) / team + cuda::kPagesAWarp;
  const std::uint32_t shared = keys_at + slice * 4;
  // Too few groups to keep memory busy: scores of one group come faster from the whole device.
  const bool few =
      score.scores != nullptr && shape.max_pages > kPagesACta && team * groups < device.sms;
  if (few || shared > device.shared_bytes - 16384) {
    if (score.scores == nullptr) {
      return unsupported(
          "this many pages need room for their scores on this device: scores is null");
    }
    LEHR_TRY(score_cuda(shape, score, stream));
    SelectParams after = select;
    after.scores = score.scores;
    after.lengths = score.lengths;
    return select_cuda(shape, after, stream);
  }
  static constexpr Forms<void(StepShape, ScoreParams, SelectParams, std::uint32_t)> kForms = {
      {{score_select_kernel<__half, 64>, score_select_kernel<__half, 128>,
        score_select_kernel<__half, 256>},
       {score_select_kernel<__nv_bfloat16, 64>, score_select_kernel<__nv_bfloat16, 128>,
        score_select_kernel<__nv_bfloat16, 256>}}};
  auto* kernel = kForms.choose(shape);
  LEHR_TRY(allow_shared(reinterpret_cast<const void*>(kernel), shared));
  return cuda::launch_teams(kernel, dim3(groups * team), dim3(kThreads), shared, s,
                            device.bulk_copy, team, shape, score, select, keys_at);
}

}  // namespace lehr::kernels
