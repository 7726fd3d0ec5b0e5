// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/ids.hpp"
#include "kernels/cuda/detail/async.cuh"
#include "kernels/cuda/detail/launch.hpp"
#include "kernels/cuda/detail/values.cuh"
#include "kernels/decode_step.hpp"
#include "kernels/made_page.hpp"

namespace lehr::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;

__device__ __forceinline__ std::uint64_t now_ns() {
  std::uint64_t t = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

__device__ __forceinline__ void raise(std::uint64_t* at, std::uint64_t value) {
  atomicMax(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
}

__device__ __forceinline__ const LayerLists& lists_of(const StepBuffers& b) {
  return reinterpret_cast<const LayerLists*>(b.lists + sizeof(StepHeader))[b.layer];
}
template <class T>
__device__ __forceinline__ const T* list(const StepBuffers& b, std::uint32_t at) {
  return reinterpret_cast<const T*>(b.lists + at);
}

/// Words of the first `tokens` tokens of a page: those of K, then those of V.
struct PageWords {
  std::uint32_t half;    ///< words of K
  std::uint32_t filled;  ///< of them in use

  __device__ PageWords(const StepShape& shape, std::uint32_t tokens)
      : half(shape.page_tokens * shape.head_dim / 2),
        filled((tokens < shape.page_tokens ? tokens : shape.page_tokens) * shape.head_dim / 2) {}
  __device__ std::uint32_t count() const { return 2 * filled; }
  __device__ std::uint32_t at(std::uint32_t i) const { return i < filled ? i : half + i - filled; }
};

__device__ void make_page(const StepShape& shape, const PageSource& source, std::uint64_t address,
                          std::uint32_t page, std::uint32_t tokens, std::uint32_t lane,
                          std::uint32_t lanes) {
  const PageWords words(shape, tokens);
  auto* to = reinterpret_cast<std::uint32_t*>(address);
  for (std::uint32_t i = lane; i < words.count(); i += lanes) {
    const std::uint32_t at = words.at(i);
    to[at] = source.word(page, at);
  }
}

__device__ bool page_is(const StepShape& shape, const PageSource& source, std::uint64_t address,
                        std::uint32_t page, std::uint32_t tokens, std::uint32_t lane) {
  const PageWords words(shape, tokens);
  const auto* from = reinterpret_cast<const volatile std::uint32_t*>(address);
  std::uint32_t difference = 0;
  for (std::uint32_t i = lane; i < words.count(); i += 32) {
    const std::uint32_t at = words.at(i);
    difference |= from[at] ^ source.word(page, at);
  }
  return __all_sync(~0U, difference == 0);
}

// -------------------------------------------------------------------- a layer's start

/// The token's K, V and queries, made from the page that it goes to.
__device__ void make_token(const StepShape& shape, const StepBuffers& b, std::uint32_t group) {
  const auto* header = reinterpret_cast<const StepHeader*>(b.lists);
  const std::uint32_t length = list<std::uint32_t>(b, header->lengths_at)[group / shape.kv_heads];
  const std::uint32_t page = list<std::uint32_t>(b, lists_of(b).tails_at)[group];
  if (page == kNoPage) return;  // a row without a sequence
  const std::uint32_t pairs = shape.head_dim / 2;
  const std::uint32_t token = (length - 1) % shape.page_tokens;
  auto* k = reinterpret_cast<std::uint32_t*>(b.k) + std::size_t{group} * pairs;
  auto* v = reinterpret_cast<std::uint32_t*>(b.v) + std::size_t{group} * pairs;
  for (std::uint32_t i = threadIdx.x; i < pairs; i += kThreads) {
    k[i] = b.source.word(page, token * pairs + i);
    v[i] = b.source.word(page, (shape.page_tokens + token) * pairs + i);
  }
  const std::uint32_t words = shape.ratio() * pairs;
  auto* q = reinterpret_cast<std::uint32_t*>(b.q) + std::size_t{group} * words;
  for (std::uint32_t i = threadIdx.x; i < words; i += kThreads) {
    q[i] = b.source.query(page, token, i, shape.ratio(), pairs, shape.page_tokens);
  }
}

/// A CTA a group. Writes of different CTAs go to different places.
__global__ void __launch_bounds__(kThreads)
    apply_kernel(StepShape shape, StepBuffers b, std::uint32_t page_words) {
  const LayerLists lists = lists_of(b);
  const std::uint32_t group = blockIdx.x;
  const std::uint32_t thread = blockIdx.x * kThreads + threadIdx.x;
  const std::uint32_t threads = gridDim.x * kThreads;
  if (thread == 0) *b.stamps = {now_ns(), 0, ~0ULL, 0};

  const auto* early = list<EarlyWork>(b, lists.early_at);
  for (std::uint32_t i = blockIdx.x; i < lists.early; i += gridDim.x) {
    const EarlyWork w = early[i];
    if (w.from == 0) {
      make_page(shape, b.source, w.to, w.page, w.tokens, threadIdx.x, kThreads);
    } else {
      for (std::uint32_t j = threadIdx.x; j < page_words / 4; j += kThreads)
        reinterpret_cast<uint4*>(w.to)[j] = reinterpret_cast<const uint4*>(w.from)[j];
    }
  }
  const auto* entries = list<EntryWrite>(b, lists.entries_at);
  for (std::uint32_t i = thread; i < lists.entries; i += threads)
    b.table[entries[i].index] = entries[i].value;
  const auto* installs = list<EntryWrite>(b, lists.installs_at);
  for (std::uint32_t i = thread; i < lists.installs; i += threads)
    b.installs[installs[i].index] = installs[i].value;

  const auto* rows = list<std::uint32_t>(b, lists.rows_at);
  const auto* pages = list<std::uint16_t>(b, lists.pages_at);
  const std::uint32_t from = rows[group], count = rows[group + 1] - from;
  if (threadIdx.x == 0) b.counts[group] = count;
  std::uint32_t* selection = b.selection + std::size_t{group} * shape.max_pages;
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) selection[i] = pages[from + i];
  make_token(shape, b, group);
}

// -------------------------------------------------------------------- moving pages

constexpr std::uint32_t kMoveStages = 8;
constexpr std::uint32_t kMoveStageBytes = 8192;
[[maybe_unused]] constexpr std::uint32_t kOpenStores = 2;

/// One thread of a one-warp CTA runs a ring of bulk copies: a load may start once the store that
/// used its stage has read it, which leaves kOpenStores stores on their way.
__global__ void __launch_bounds__(32) move_kernel(StepBuffers b, std::uint32_t page_bytes) {
#if LEHR_BULK_COPY
  extern __shared__ __align__(128) unsigned char ring[];
  __shared__ std::uint64_t full[kMoveStages];
  if (threadIdx.x != 0) return;
  const LayerLists lists = lists_of(b);
  if (blockIdx.x >= lists.moves) return;
  atomicMin(reinterpret_cast<unsigned long long*>(&b.stamps->move_begin),
            static_cast<unsigned long long>(now_ns()));
  for (std::uint64_t& barrier : full) cuda::barrier_init(cuda::shared_address(&barrier), 1);
  cuda::barrier_init_fence();
  const auto* pairs = list<PageCopy>(b, lists.moves_at);
  const std::uint32_t parts = (page_bytes + kMoveStageBytes - 1) / kMoveStageBytes;
  const std::uint32_t mine = (lists.moves - blockIdx.x + gridDim.x - 1) / gridDim.x;
  const std::uint32_t chunks = mine * parts;
  const std::uint64_t policy = cuda::evict_first_policy();
  const auto bytes_of = [&](std::uint32_t part) {
    const std::uint32_t left = page_bytes - part * kMoveStageBytes;
    return left < kMoveStageBytes ? left : kMoveStageBytes;
  };
  const auto load = [&](std::uint32_t chunk) {
    const PageCopy pair = pairs[blockIdx.x + chunk / parts * gridDim.x];
    const std::uint32_t part = chunk % parts, stage = chunk % kMoveStages;
    const std::uint32_t barrier = cuda::shared_address(&full[stage]);
    cuda::begin_fill(barrier, bytes_of(part));
    cuda::bulk_load(cuda::shared_address(ring + stage * kMoveStageBytes),
                    pair.from + std::uint64_t{part} * kMoveStageBytes, bytes_of(part), barrier,
                    policy);
  };
  constexpr std::uint32_t kAhead = kMoveStages - kOpenStores;
  for (std::uint32_t i = 0; i < kAhead && i < chunks; ++i) load(i);
  for (std::uint32_t i = 0; i < chunks; ++i) {
    const std::uint32_t part = i % parts, stage = i % kMoveStages;
    cuda::barrier_wait(cuda::shared_address(&full[stage]), i / kMoveStages & 1);
    const PageCopy pair = pairs[blockIdx.x + i / parts * gridDim.x];
    cuda::bulk_store(pair.to + std::uint64_t{part} * kMoveStageBytes,
                     cuda::shared_address(ring + stage * kMoveStageBytes), bytes_of(part));
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    if (i + kAhead < chunks) {
      asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kOpenStores) : "memory");
      load(i + kAhead);
    }
  }
  cuda::bulk_store_done();
  raise(&b.stamps->move_end, now_ns());
#else
  const LayerLists lists = lists_of(b);
  const auto* pairs = list<PageCopy>(b, lists.moves_at);
  if (threadIdx.x == 0 && blockIdx.x < lists.moves)
    atomicMin(reinterpret_cast<unsigned long long*>(&b.stamps->move_begin),
              static_cast<unsigned long long>(now_ns()));
  for (std::uint32_t i = blockIdx.x; i < lists.moves; i += gridDim.x) {
    for (std::uint32_t j = threadIdx.x; j < page_bytes / 16; j += 32)
      reinterpret_cast<uint4*>(pairs[i].to)[j] = reinterpret_cast<const uint4*>(pairs[i].from)[j];
  }
  if (threadIdx.x == 0 && blockIdx.x < lists.moves) raise(&b.stamps->move_end, now_ns());
#endif
}

// -------------------------------------------------------------------- stand-ins and checks

__global__ void __launch_bounds__(kThreads)
    read_kernel(const uint4* from, std::uint64_t count, std::uint32_t* sink, LayerStamps* stamps) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * kThreads;
  std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  uint4 sum{};
  for (; i + 3 * stride < count; i += 4 * stride) {
    uint4 x[4];
#pragma unroll
    for (std::uint32_t k = 0; k < 4; ++k) x[k] = __ldcs(from + i + k * stride);
#pragma unroll
    for (std::uint32_t k = 0; k < 4; ++k)
      sum = {sum.x ^ x[k].x, sum.y ^ x[k].y, sum.z ^ x[k].z, sum.w ^ x[k].w};
  }
  for (; i < count; i += stride) sum.x ^= __ldcs(from + i).x;
  // Hardly ever so, which the compiler cannot know.
  if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x5EED5EEDU) *sink = sum.x;
  if (threadIdx.x == 0) raise(&stamps->weights_end, now_ns());
}

__global__ void stamp_kernel(std::uint64_t* stamp) { *stamp = now_ns(); }

__global__ void make_kernel(StepShape shape, PageSource source, const PageContents* pages,
                            std::uint32_t count) {
  for (std::uint32_t i = blockIdx.x; i < count; i += gridDim.x)
    make_page(shape, source, pages[i].address, pages[i].page, pages[i].tokens, threadIdx.x,
              blockDim.x);
}

__device__ void found_bad(std::uint32_t* bad, std::uint32_t page) {
  atomicAdd(bad, 1U);
  bad[1] = page + 1;
}

__global__ void check_kernel(StepShape shape, PageSource source, const PageContents* pages,
                             std::uint32_t count, std::uint32_t* bad) {
  const std::uint32_t warps = blockDim.x / 32;
  for (std::uint32_t i = blockIdx.x * warps + threadIdx.x / 32; i < count; i += gridDim.x * warps) {
    const PageContents c = pages[i];
    const bool good = page_is(shape, source, c.address, c.page, c.tokens, threadIdx.x % 32);
    if (!good && threadIdx.x % 32 == 0) found_bad(bad, c.page);
  }
}

__global__ void check_reads_kernel(StepShape shape, StepBuffers b, std::uint32_t* bad) {
  const LayerLists lists = lists_of(b);
  if (lists.names_at == 0) return;
  const auto* rows = list<std::uint32_t>(b, lists.rows_at);
  const auto* pages = list<std::uint16_t>(b, lists.pages_at);
  const auto* names = list<std::uint32_t>(b, lists.names_at);
  const auto* header = reinterpret_cast<const StepHeader*>(b.lists);
  const std::uint32_t group = blockIdx.x;
  const std::uint32_t length = list<std::uint32_t>(b, header->lengths_at)[group / shape.kv_heads];
  for (std::uint32_t i = rows[group] + threadIdx.x / 32; i < rows[group + 1];
       i += blockDim.x / 32) {
    const std::uint32_t page = pages[i];
    const PageEntry entry = b.table[std::size_t{group} * shape.max_pages + page];
    const std::uint32_t tokens = length - page * shape.page_tokens;
    const bool good = entry != kAbsentPage && page_is(shape, b.source, entry_address(entry),
                                                      names[i], tokens, threadIdx.x % 32);
    if (!good && threadIdx.x % 32 == 0) found_bad(bad, names[i]);
  }
}

__global__ void digest_kernel(const unsigned char* lists, const std::uint32_t* outputs,
                              std::uint64_t words, std::uint64_t* digests, std::uint32_t count,
                              LayerStamps* end) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  const std::uint64_t first = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (first == 0) end->begin = now_ns();
  std::uint64_t sum = 0;
  for (std::uint64_t i = first; i < words; i += stride) {
    std::uint64_t x = (i << 32 | outputs[i]) * 0x9E3779B97F4A7C15ULL;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93ULL;
    sum += x ^ x >> 32;
  }
  const std::uint32_t step = reinterpret_cast<const StepHeader*>(lists)->step;
  atomicAdd(reinterpret_cast<unsigned long long*>(digests + step % count),
            static_cast<unsigned long long>(sum));
}

Status check_fixed(const StepShape& shape) {
  LEHR_TRY(check_shape(shape));
  if (shape.dtype != DType::kF16 || shape.q_len != 1)
    return unsupported("made pages are fp16, with one query a sequence");
  return {};
}

std::uint32_t page_bytes_of(const StepShape& shape) {
  return stored_page_bytes(DType::kF16, shape.page_tokens, shape.head_dim);
}

}  // namespace

Status apply_lists_cuda(const StepShape& shape, const StepBuffers& buffers, void* stream) {
  LEHR_TRY(check_fixed(shape));
  if (shape.sequences == 0) return {};
  return cuda::launch(apply_kernel, dim3(static_cast<unsigned>(shape.groups())), dim3(kThreads), 0,
                      static_cast<cudaStream_t>(stream), false, shape, buffers,
                      page_bytes_of(shape) / 4);
}

Status move_lists_cuda(const StepShape& shape, const StepBuffers& buffers, std::uint32_t page_bytes,
                       std::uint32_t ctas, void* stream) {
  LEHR_TRY(check_fixed(shape));
  if (ctas == 0 || page_bytes == 0 || page_bytes % 16 != 0)
    return invalid("moving pages: CTAs and page bytes (a multiple of 16) must be positive");
  constexpr std::uint32_t kShared = kMoveStages * kMoveStageBytes;
  LEHR_CUDA_TRY(cudaFuncSetAttribute(reinterpret_cast<const void*>(move_kernel),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(kShared)));
  return cuda::launch(move_kernel, dim3(ctas), dim3(32), kShared, static_cast<cudaStream_t>(stream),
                      false, buffers, page_bytes);
}

Status read_bytes_cuda(const void* from, std::uint64_t bytes, std::uint32_t* sink,
                       LayerStamps* stamps, void* stream) {
  if (bytes == 0) return {};
  LEHR_TRY(check_pointer(from, 16, "weights"));
  LEHR_ASSIGN(const cuda::DeviceFacts device, cuda::current_device());
  // One wave that leaves each SM a place, and shared memory, for a mover: with eight CTAs a SM the
  // movers were seen to wait until the reader had ended.
  LEHR_CUDA_TRY(cudaFuncSetAttribute(reinterpret_cast<const void*>(read_kernel),
                                     cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared));
  return cuda::launch(read_kernel, dim3(device.sms * 7), dim3(kThreads), 0,
                      static_cast<cudaStream_t>(stream), false, static_cast<const uint4*>(from),
                      bytes / 16, sink, stamps);
}

Status stamp_cuda(std::uint64_t* stamp, void* stream) {
  return cuda::launch(stamp_kernel, dim3(1), dim3(1), 0, static_cast<cudaStream_t>(stream), false,
                      stamp);
}

Status make_pages_cuda(const StepShape& shape, const PageSource& source, const PageContents* pages,
                       std::uint32_t count, void* stream) {
  LEHR_TRY(check_fixed(shape));
  if (count == 0) return {};
  return cuda::launch(make_kernel, dim3(count < 4096 ? count : 4096), dim3(kThreads), 0,
                      static_cast<cudaStream_t>(stream), false, shape, source, pages, count);
}

Status check_pages_cuda(const StepShape& shape, const PageSource& source, const PageContents* pages,
                        std::uint32_t count, std::uint32_t* bad, void* stream) {
  LEHR_TRY(check_fixed(shape));
  if (count == 0) return {};
  return cuda::launch(check_kernel, dim3(1024), dim3(kThreads), 0,
                      static_cast<cudaStream_t>(stream), false, shape, source, pages, count, bad);
}

Status check_reads_cuda(const StepShape& shape, const StepBuffers& buffers, std::uint32_t* bad,
                        void* stream) {
  LEHR_TRY(check_fixed(shape));
  if (shape.sequences == 0) return {};
  return cuda::launch(check_reads_kernel, dim3(static_cast<unsigned>(shape.groups())),
                      dim3(kThreads), 0, static_cast<cudaStream_t>(stream), false, shape, buffers,
                      bad);
}

Status digest_cuda(const unsigned char* lists, const std::uint32_t* outputs, std::uint64_t words,
                   std::uint64_t* digests, std::uint32_t digest_count, LayerStamps* end,
                   void* stream) {
  if (digest_count == 0) return invalid("digests: room for at least one");
  return cuda::launch(digest_kernel, dim3(256), dim3(kThreads), 0,
                      static_cast<cudaStream_t>(stream), false, lists, outputs, words, digests,
                      digest_count, end);
}

}  // namespace lehr::kernels
