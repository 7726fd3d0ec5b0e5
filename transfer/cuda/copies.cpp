// SPDX-License-Identifier: Apache-2.0
#include "transfer/cuda/copies.hpp"

#include <algorithm>
#include <cmath>

#include <nvtx3/nvToolsExt.h>

namespace lehr::transfer::cuda {
namespace {

/// Larger batches are reported to fail in some drivers.
constexpr std::size_t kDriverBatch = 4096;

struct Range {
  explicit Range(const char* name) { nvtxRangePushA(name); }
  ~Range() { nvtxRangePop(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

std::uint64_t address(const std::byte* p) { return reinterpret_cast<std::uint64_t>(p); }

/// The end of a run must not pass a seam: memory on the two sides was registered apart.
bool crosses_seam(const DeviceMoverConfig& config, const std::byte* at) {
  if (config.seam_bytes == 0 || at <= config.seam_base) return false;
  return static_cast<Bytes>(at - config.seam_base) % config.seam_bytes == 0;
}

Status copy_runs(std::span<const Run> runs, cudaStream_t stream) {
  for (const Run& run : runs) {
    LEHR_CUDA_TRY(cudaMemcpyAsync(run.to, run.from, run.bytes, cudaMemcpyDefault, stream));
  }
  return {};
}

Status copy_engine(const DeviceMoverConfig& config, const Lane& lane, Batch& batch) {
  const Range range("lehr move: copy engine");
  return copy_runs(merge_runs(config, batch.jobs), lane.main.get());
}

Status driver_batch(const Lane& lane, Batch& batch) {
  const Range range("lehr move: driver batch");
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<std::size_t> bytes;
  for (const Job& job : batch.jobs) {
    to.push_back(job.destination.pointer);
    from.push_back(job.source.pointer);
    bytes.push_back(job.bytes);
  }
  cudaMemcpyAttributes attributes{};
  // In stream order: sources are read when the stream comes to them, not when the call is made.
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  std::size_t first = 0;
  for (std::size_t at = 0; at < to.size(); at += kDriverBatch) {
    const std::size_t count = std::min(kDriverBatch, to.size() - at);
    LEHR_CUDA_TRY(cudaMemcpyBatchAsync(to.data() + at, from.data() + at, bytes.data() + at, count,
                                       &attributes, &first, 1, lane.main.get()));
  }
  return {};
}

std::uint32_t ctas_of(std::uint32_t all, double share) {
  const double wanted = std::ceil(static_cast<double>(all) * share - 1e-9);
  return std::max(1U, static_cast<std::uint32_t>(wanted));
}

/// Towards host memory never more CTAs than background has: writes that saturate the link hold up
/// everybody's reads on their way to memory (eight CTAs more than doubled a reader's time).
std::uint32_t ring_ctas(const DeviceMoverConfig& config, const Lane& lane,
                        std::span<const Job> jobs) {
  const bool outward = std::any_of(jobs.begin(), jobs.end(), [](const Job& job) {
    return job.destination.space == Space::kHostMemory;
  });
  return outward ? std::min(lane.ctas, config.ring.ctas) : lane.ctas;
}

/// Whether the kernels can move these: everything in multiples of 16, one size.
bool ring_fits(const DeviceMoverConfig& config, std::span<const Job> jobs) {
  const bool laid_out = config.layout.piece_bytes != 0;
  std::uint64_t bits = 0;
  for (const Job& job : jobs) {
    bits |= address(job.source.pointer) | address(job.destination.pointer) | job.bytes;
  }
  return bits % 16 == 0 && jobs.front().bytes <= 0xFFFFFFF0U &&
         (!laid_out || jobs.front().bytes >= config.layout.bytes());
}

kernels::PageLayout layout_of(const DeviceMoverConfig& config, Bytes page_bytes) {
  if (config.layout.piece_bytes != 0) return config.layout;
  kernels::PageLayout plain;
  plain.piece_bytes = static_cast<std::uint32_t>(page_bytes);
  return plain;
}

Status ring(const DeviceMoverConfig& config, const Lane& lane, double share, Batch& batch) {
  const Range range("lehr move: ring");
  auto* pairs = static_cast<kernels::PagePair*>(batch.pairs.get());
  for (const Job& job : batch.jobs) {
    *pairs++ = {address(job.source.pointer), address(job.destination.pointer)};
  }
  kernels::MoveRing shape = config.ring;
  shape.ctas = ctas_of(ring_ctas(config, lane, batch.jobs), share);
  return kernels::move_pages_cuda({static_cast<const kernels::PagePair*>(batch.pairs.get()),
                                   static_cast<std::uint32_t>(batch.jobs.size())},
                                  layout_of(config, batch.jobs.front().bytes), shape,
                                  lane.main.get());
}

/// Pages that lie scattered on the device and together on the far side: one half is a kernel that
/// gathers or scatters within the device, the other a few large copies.
Status staged(const DeviceMoverConfig& config, const Lane& lane, double share, Batch& batch) {
  const Range range("lehr move: staged");
  const auto far = [&](const Address& a) {
    return a.space != Space::kDeviceMemory || a.unit != config.device;
  };
  const bool outward = far(batch.jobs.front().destination);
  const auto far_end = [&](const Job& job) {
    return outward ? job.destination.pointer : job.source.pointer;
  };
  std::sort(batch.jobs.begin(), batch.jobs.end(),
            [&](const Job& a, const Job& b) { return far_end(a) < far_end(b); });
  auto* staging = static_cast<std::byte*>(batch.staging.get());
  auto* pairs = static_cast<kernels::PagePair*>(batch.pairs.get());
  std::vector<Job> halves = batch.jobs;
  for (std::size_t i = 0; i < halves.size(); ++i) {
    std::byte* const place = staging + i * halves[i].bytes;
    Job& half = halves[i];
    pairs[i] = outward ? kernels::PagePair{address(half.source.pointer), address(place)}
                       : kernels::PagePair{address(place), address(half.destination.pointer)};
    (outward ? half.source : half.destination).pointer = place;
  }
  const std::vector<Run> runs = merge_runs(config, halves);
  kernels::MoveRing shape = config.ring;
  shape.ctas = ctas_of(lane.ctas, share);
  const auto kernel_half = [&](cudaStream_t stream) {
    return kernels::move_pages_cuda({pairs, static_cast<std::uint32_t>(batch.jobs.size())},
                                    layout_of(config, batch.jobs.front().bytes), shape, stream);
  };
  const cudaStream_t main = lane.main.get(), side = lane.side.get();
  if (outward) {
    LEHR_TRY(kernel_half(side));
    LEHR_CUDA_TRY(cudaEventRecord(batch.staged.get(), side));
    LEHR_CUDA_TRY(cudaStreamWaitEvent(main, batch.staged.get(), 0));
    LEHR_TRY(copy_runs(runs, main));
    LEHR_CUDA_TRY(cudaEventRecord(batch.done.get(), main));
  } else {
    LEHR_TRY(copy_runs(runs, main));
    LEHR_CUDA_TRY(cudaEventRecord(batch.staged.get(), main));
    LEHR_CUDA_TRY(cudaStreamWaitEvent(side, batch.staged.get(), 0));
    LEHR_TRY(kernel_half(side));
    LEHR_CUDA_TRY(cudaEventRecord(batch.done.get(), side));
  }
  return {};
}

}  // namespace

std::vector<Run> merge_runs(const DeviceMoverConfig& config, std::span<Job> jobs) {
  std::sort(jobs.begin(), jobs.end(),
            [](const Job& a, const Job& b) { return a.source.pointer < b.source.pointer; });
  std::vector<Run> runs;
  for (const Job& job : jobs) {
    std::byte* const from = job.source.pointer;
    std::byte* const to = job.destination.pointer;
    if (!runs.empty() && runs.back().from + runs.back().bytes == from &&
        runs.back().to + runs.back().bytes == to && !crosses_seam(config, from) &&
        !crosses_seam(config, to)) {
      runs.back().bytes += job.bytes;
    } else {
      runs.push_back({from, to, job.bytes});
    }
  }
  return runs;
}

Status enqueue(const DeviceMoverConfig& config, const Lane& lane, double share, Batch& batch) {
  const bool fits = ring_fits(config, batch.jobs);
  if (!fits && config.layout.piece_bytes != 0) {
    return invalid("a page that does not fit the mover's layout", Reason::kLayoutMismatch);
  }
  const bool staging_holds_it = batch.jobs.size() * batch.jobs.front().bytes <= config.batch_bytes;
  if (config.copy == DeviceCopy::kStaged && fits && staging_holds_it)
    return staged(config, lane, share, batch);
  if (config.copy == DeviceCopy::kRing && fits) {
    LEHR_TRY(ring(config, lane, share, batch));
  } else if (config.copy == DeviceCopy::kBatch) {
    LEHR_TRY(driver_batch(lane, batch));
  } else {
    LEHR_TRY(copy_engine(config, lane, batch));
  }
  LEHR_CUDA_TRY(cudaEventRecord(batch.done.get(), lane.main.get()));
  return {};
}

}  // namespace lehr::transfer::cuda
