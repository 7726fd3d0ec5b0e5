// SPDX-License-Identifier: Apache-2.0
#include "runtime/machines/cuda/kv_cuda.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>

#include "runtime/machines/cuda/cuda_memory.hpp"
#include "runtime/machines/cuda/lane_movers.hpp"

namespace lehr::runtime {
namespace {

using contents::Block;
using contents::Lane;
using contents::Mark;
using kernels::StepShape;

Status launch_one(const StepShape& s, const kernels::AppendParams& p, cudaStream_t stream) {
  return append_cuda(s, p, stream);
}
Status launch_one(const StepShape& s, const kernels::StoreParams& p, cudaStream_t stream) {
  return store_rows_cuda(s, p, stream);
}
Status launch_one(const StepShape& s, const kernels::LoadParams& p, cudaStream_t stream) {
  return load_rows_cuda(s, p, stream);
}
Status launch_one(const StepShape& s, const kernels::CopyRowsParams& p, cudaStream_t stream) {
  return copy_rows_cuda(s, p, stream);
}
Status launch_one(const StepShape& s, const kernels::BoxesParams& p, cudaStream_t stream) {
  return boxes_cuda(s, p, stream);
}
Status launch_one(const StepShape& s, const contents::ScoreSelectWork& w, cudaStream_t stream) {
  return score_select_cuda(s, w.score, w.select, stream);
}
Status launch_one(const StepShape& s, const contents::AttendWork& w, cudaStream_t stream) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the device
  auto* scratch = reinterpret_cast<void*>(w.workspace.device);
  return attend_cuda(s, w.params, {}, scratch, w.workspace.bytes, stream);
}
Status launch_one(const StepShape& s, const kernels::NoteParams& p, cudaStream_t stream) {
  return note_reads_cuda(s, p, stream);
}

void* at(std::uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

/// The caller's current device, given back at the end of a call.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = device;
    if (before_ != device) changed_ = cudaSetDevice(device) == cudaSuccess;
  }
  ~OnDevice() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

class KvCuda final : public contents::KvDevice {
 public:
  static Result<std::unique_ptr<KvDevice>> create(std::int32_t device, const KvMovers& movers) {
    int before = 0;
    const bool had = cudaGetDevice(&before) == cudaSuccess;
    LEHR_TRY(cuda::use_device(device));
    std::unique_ptr<KvCuda> made(new KvCuda(device, movers));
    LEHR_ASSIGN(made->side_, cuda::Stream::create(true));
    for (cuda::Event& e : made->events_) {
      LEHR_ASSIGN(e, cuda::Event::create(false));
    }
    LEHR_ASSIGN(made->turn_, cuda::Event::create(false));
    if (had && before != device) LEHR_CUDA_TRY(cudaSetDevice(before));
    return std::unique_ptr<KvDevice>(std::move(made));
  }
  ~KvCuda() override {
    const OnDevice here(device_);
    (void)cudaDeviceSynchronize();
    memory_.clear();
    pinned_.clear();
  }

  Result<Block> memory(Bytes bytes) override {
    const OnDevice here(device_);
    LEHR_ASSIGN(auto made, cuda::DeviceMemory::create(bytes));
    // Zeroing was enqueued on the default stream, which other streams need not wait for.
    LEHR_CUDA_TRY(cudaStreamSynchronize(nullptr));
    const Block block{made.address(), nullptr, bytes};
    memory_.emplace(block.device, std::move(made));
    return block;
  }
  Result<Block> pinned(Bytes bytes) override {
    const OnDevice here(device_);
    LEHR_ASSIGN(auto made, cuda::PinnedMemory::create(bytes));
    LEHR_ASSIGN(const std::uint64_t address, made.address());
    const Block block{address, made.as<std::byte>(), bytes};
    pinned_.emplace(address, std::move(made));
    return block;
  }
  void release(const Block& block) override {
    const OnDevice here(device_);
    (void)cudaDeviceSynchronize();
    if (block.host != nullptr) {
      pinned_.erase(block.device);
    } else {
      memory_.erase(block.device);
    }
  }

  Status use(void* stream) override {
    const OnDevice here(device_);
    auto* const next = static_cast<cudaStream_t>(stream);
    if (next == main_) return {};
    LEHR_CUDA_TRY(cudaEventRecord(turn_.get(), main_));
    LEHR_CUDA_TRY(cudaStreamWaitEvent(next, turn_.get(), 0));
    main_ = next;
    return {};
  }
  Result<bool> capturing() override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    LEHR_CUDA_TRY(cudaStreamIsCapturing(main_, &status));
    return status != cudaStreamCaptureStatusNone;
  }

  Result<Bytes> workspace(const StepShape& shape) override {
    const OnDevice here(device_);
    LEHR_ASSIGN(const std::size_t bytes, kernels::attend_workspace_bytes(shape));
    return Bytes{bytes};
  }
  Status launch(const StepShape& shape, const contents::Work& work) override {
    const OnDevice here(device_);
    return std::visit([&](const auto& w) { return launch_one(shape, w, main_); }, work);
  }
  Status write(const kernels::WriteWordsParams& words) override {
    const OnDevice here(device_);
    return write_words_cuda(words, main_);
  }
  Status move(std::uint64_t pairs, std::uint32_t count, std::uint32_t page_bytes,
              Lane lane) override {
    const OnDevice here(device_);
    kernels::PageLayout layout;
    layout.piece_bytes = page_bytes;
    kernels::MoveParams p;
    p.pairs = static_cast<const kernels::PagePair*>(at(pairs));
    // Within HBM the step waits.
    kernels::MoveRing ring{64, 8, 8192, 2, false, false};
    if (lane == Lane::kSide) {
      const std::span<const kernels::PagePair> list = read_back(pairs, count);
      const bool out = !list.empty() && pinned_at(list.front().to) != nullptr;
      const std::vector<cuda::PageRun> runs = cuda::runs_of(list, page_bytes);
      if ((out ? out_ : in_).by_copy_engine(list.size(), runs.size(), page_bytes)) {
        for (const cuda::PageRun& run : runs) LEHR_TRY(copy(run.to, run.from, run.bytes, lane));
        return {};
      }
      // Over a link few warps fill it; more that write to the host hold up everybody's reads.
      ring.ctas = out ? 4 : 8;
    }
    constexpr std::uint32_t kMost = 1U << 20;
    for (std::uint32_t from = 0; from < count; from += kMost) {
      p.pages = std::min(kMost, count - from);
      LEHR_TRY(move_pages_cuda(p, layout, ring, stream(lane)));
      p.pairs += p.pages;
    }
    return {};
  }
  Status copy(std::uint64_t to, std::uint64_t from, Bytes bytes, Lane lane) override {
    const OnDevice here(device_);
    LEHR_CUDA_TRY(cudaMemcpyAsync(at(to), at(from), bytes, cudaMemcpyDefault, stream(lane)));
    return {};
  }

  /// An event is used again after many marks: who waits for an old one waits longer than needed.
  Result<Mark> mark(Lane lane) override {
    const OnDevice here(device_);
    const Mark m = ++marks_;
    LEHR_CUDA_TRY(cudaEventRecord(events_[m % events_.size()].get(), stream(lane)));
    return m;
  }
  Status wait(Lane lane, Mark mark) override {
    const OnDevice here(device_);
    LEHR_CUDA_TRY(cudaStreamWaitEvent(stream(lane), events_[mark % events_.size()].get(), 0));
    return {};
  }
  Status wait_host(Mark mark) override {
    const OnDevice here(device_);
    LEHR_CUDA_TRY(cudaEventSynchronize(events_[mark % events_.size()].get()));
    return {};
  }

  std::string describe() const override { return cuda::describe_device(device_); }

 private:
  KvCuda(std::int32_t device, const KvMovers& movers)
      : device_(device), in_(movers.in), out_(movers.out) {}

  /// The pinned memory that an address lies in; null: none.
  const std::pair<const std::uint64_t, cuda::PinnedMemory>* pinned_at(std::uint64_t address) const {
    auto after = pinned_.upper_bound(address);
    if (after == pinned_.begin()) return nullptr;
    --after;
    return address - after->first < after->second.bytes() ? &*after : nullptr;
  }
  /// A list in pinned memory as the host sees it; empty where it lies elsewhere.
  std::span<const kernels::PagePair> read_back(std::uint64_t list, std::size_t count) const {
    const auto* memory = pinned_at(list);
    if (memory == nullptr) return {};
    const auto* bytes = memory->second.as<std::byte>() + (list - memory->first);
    return {reinterpret_cast<const kernels::PagePair*>(bytes), count};
  }
  cudaStream_t stream(Lane lane) const { return lane == Lane::kSide ? side_.get() : main_; }

  std::int32_t device_;
  cuda::LaneMovers in_, out_;
  cudaStream_t main_ = nullptr;
  cuda::Stream side_;
  cuda::Event turn_;
  std::array<cuda::Event, 64> events_;
  Mark marks_ = 0;
  std::unordered_map<std::uint64_t, cuda::DeviceMemory> memory_;
  std::map<std::uint64_t, cuda::PinnedMemory> pinned_;  ///< by address
};

}  // namespace

Result<std::unique_ptr<contents::KvDevice>> make_cuda_kv_device(std::int32_t device,
                                                                const KvMovers& movers) {
  return KvCuda::create(device, movers);
}

}  // namespace lehr::runtime
