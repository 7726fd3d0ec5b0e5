// SPDX-License-Identifier: Apache-2.0
#include "runtime/machines/cuda/cuda_device.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include <fmt/core.h>
#include <nvtx3/nvToolsExt.h>

#include "kernels/append.hpp"
#include "kernels/boxes.hpp"
#include "kernels/feedback.hpp"
#include "kernels/score.hpp"
#include "kernels/select.hpp"

namespace lehr::runtime::cuda {

using kernels::PageContents;
using kernels::PageEntry;
using kernels::StepShape;

namespace {

constexpr std::uint32_t kHostMovers = 8;   ///< one-warp CTAs that fill PCIe 5
constexpr std::uint32_t kPeerMovers = 32;  ///< and NVLink
constexpr std::uint32_t kMisses = 1U << 16;
constexpr Bytes kWeightsWindow = 2 * kGiB;
constexpr Bytes kFileBlock = 4096;
constexpr std::size_t kScratchPages = 1U << 18;

std::size_t lengths_offset(std::uint32_t layers) {
  return (sizeof(kernels::StepHeader) + layers * sizeof(kernels::LayerLists) + 15) / 16 * 16;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

// ---------------------------------------------------------------------- making

Result<std::unique_ptr<CudaDevice>> CudaDevice::create(const CudaMachineOptions& options) {
  LEHR_TRY(use_device(options.device));
  const KvGeometry& g = options.geometry;
  if (g.element_bytes != 2) {
    return unsupported(
        fmt::format("machine cuda: {} bytes an element; pages are fp16 (impose a "
                    "shape)",
                    g.element_bytes));
  }
  std::unique_ptr<CudaDevice> made(new CudaDevice(options));
  made->page_bytes_ = kernels::stored_page_bytes(DType::kF16, g.page_tokens, g.head_dim);
  LEHR_TRY(made->make_arenas());
  LEHR_TRY(made->make_weights());
  LEHR_TRY(made->make_source());
  LEHR_ASSIGN(made->main_, Stream::create(false));
  LEHR_ASSIGN(made->side_, Stream::create(true));
  LEHR_ASSIGN(made->up_, Stream::create(false));
  LEHR_ASSIGN(made->back_, Stream::create(false));
  LEHR_ASSIGN(made->forked_, Event::create(false));
  LEHR_ASSIGN(made->joined_, Event::create(false));
  for (Event& e : made->copied_) {
    LEHR_ASSIGN(e, Event::create(false));
  }
  LEHR_TRY(made->make_flights());
  LEHR_ASSIGN(made->digests_, DeviceMemory::create(kDigests * sizeof(std::uint64_t)));
  LEHR_ASSIGN(made->bad_, DeviceMemory::create(64));
  LEHR_ASSIGN(made->kernel_stamps_,
              DeviceMemory::create((g.layers + 1) * kLaunchKinds * sizeof(std::uint64_t)));
  LEHR_ASSIGN(made->scratch_, DeviceMemory::create(kScratchPages * sizeof(PageContents)));
  LEHR_CUDA_TRY(cudaDeviceSynchronize());
  return made;
}

CudaDevice::~CudaDevice() { (void)cudaDeviceSynchronize(); }

Status CudaDevice::make_arenas() {
  const placement::Platform& p = options_.platform;
  LEHR_ASSIGN(hbm_, DeviceMemory::create(Bytes{options_.tier_pages[kHbm]} * page_bytes_));
  tiers_[kHbm] = {hbm_.address(), page_bytes_, false, {}};
  // Where a file is below, places lie where its blocks can come to.
  const bool file = options_.below_home() != 0;
  const Bytes stride =
      file ? (page_bytes_ + kFileBlock - 1) / kFileBlock * kFileBlock : page_bytes_;
  const Bytes home = Bytes{options_.home_places()} * stride;
  peer_ = p.tiers[p.home].name == "peer";
  mover_ctas_ = options_.mover_ctas != 0 ? options_.mover_ctas : peer_ ? kPeerMovers : kHostMovers;
  if (!peer_) {
    LEHR_ASSIGN(host_, PinnedMemory::create(home));
    LEHR_ASSIGN(const std::uint64_t base, host_.address());
    tiers_[p.home] = {base, stride, true, {host_.as<std::byte>(), home}};
    return {};
  }
  int access = 0;
  LEHR_TRY(use_device(options_.donor));
  LEHR_ASSIGN(donor_, DeviceMemory::create(home));
  LEHR_CUDA_TRY(cudaDeviceSynchronize());
  LEHR_TRY(use_device(options_.device));
  LEHR_CUDA_TRY(cudaDeviceCanAccessPeer(&access, options_.device, options_.donor));
  if (access == 0) {
    return unsupported(fmt::format("machine cuda: GPU {} cannot read the memory of GPU {}",
                                   options_.device, options_.donor));
  }
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(options_.donor, 0);
  if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
  } else {
    LEHR_CUDA_TRY(enabled);
  }
  tiers_[p.home] = {donor_.address(), stride, true, {}};
  return {};
}

/// A window of HBM that the layers read in turn; larger than L2 wherever the weights are.
Status CudaDevice::make_weights() {
  LEHR_ASSIGN(sink_, DeviceMemory::create(256));
  if (options_.weights_bytes == 0) return {};
  const Bytes layer = options_.weights_bytes / options_.geometry.layers / 16 * 16;
  const Bytes bytes = std::max(layer, std::min(options_.weights_bytes, kWeightsWindow));
  LEHR_ASSIGN(weights_, DeviceMemory::create(bytes));
  // Zeros would not cost what weights do.
  StepShape shape;
  shape.q_heads = shape.kv_heads = 1;
  shape.head_dim = 128;
  shape.page_tokens = 64;
  shape.max_pages = 1;
  const std::uint32_t piece = kernels::stored_page_bytes(DType::kF16, 64, 128);
  std::vector<PageContents> pages;
  for (Bytes at = 0; at + piece <= bytes; at += piece) {
    pages.push_back({weights_.address() + at, static_cast<std::uint32_t>(pages.size()), 64});
  }
  LEHR_ASSIGN(const DeviceMemory list, DeviceMemory::create(pages.size() * sizeof(PageContents)));
  LEHR_CUDA_TRY(cudaMemcpy(list.as<void>(), pages.data(), pages.size() * sizeof(PageContents),
                           cudaMemcpyHostToDevice));
  LEHR_TRY(kernels::make_pages_cuda(shape, {}, list.as<PageContents>(),
                                    static_cast<std::uint32_t>(pages.size()), nullptr));
  LEHR_CUDA_TRY(cudaDeviceSynchronize());
  return {};
}

Status CudaDevice::make_source() {
  source_ = options_.recorded;
  const kernels::PageSource& r = options_.recorded;
  if (r.k == nullptr) return {};
  const std::size_t kv = std::size_t{r.layers} * r.kv_heads * r.tokens * r.pairs;
  const std::size_t q = std::size_t{r.tokens - r.prompt} * r.layers * r.q_heads * r.pairs;
  const std::uint32_t** to[] = {&source_.k, &source_.v, &source_.q};
  const std::uint32_t* from[] = {r.k, r.v, r.q};
  for (std::size_t i = 0; i < recorded_.size(); ++i) {
    const std::size_t bytes = (i < 2 ? kv : q) * 4;
    LEHR_ASSIGN(recorded_[i], DeviceMemory::create(bytes));
    LEHR_CUDA_TRY(cudaMemcpy(recorded_[i].as<void>(), from[i], bytes, cudaMemcpyHostToDevice));
    *to[i] = recorded_[i].as<std::uint32_t>();
  }
  return {};
}

Status CudaDevice::make_flights() {
  const Bytes stamps = (options_.geometry.layers + 1) * sizeof(kernels::LayerStamps);
  for (Flight& f : flights_) {
    LEHR_ASSIGN(f.begin, Event::create(true));
    LEHR_ASSIGN(f.end, Event::create(true));
    LEHR_ASSIGN(f.done, Event::create(false));
    LEHR_ASSIGN(f.stamps, PinnedMemory::create(stamps + sizeof(std::uint64_t)));
  }
  return {};
}

Result<StepMemory> StepMemory::create(const StepShape& shape, std::uint32_t layers,
                                      Bytes list_bytes) {
  StepMemory m;
  m.shape = shape;
  m.list_bytes = list_bytes;
  const std::size_t entries = shape.groups() * shape.max_pages;
  const std::size_t query_bytes = std::size_t{shape.sequences} * shape.q_heads * shape.head_dim * 2;
  const std::size_t token_bytes = shape.groups() * shape.head_dim * 2;
  LEHR_ASSIGN(const std::size_t workspace, kernels::attend_workspace_bytes(shape));
  const auto make = [](DeviceMemory& memory, Bytes bytes) -> Status {
    LEHR_ASSIGN(memory, DeviceMemory::create(bytes));
    return {};
  };
  LEHR_TRY(make(m.tables, layers * entries * sizeof(PageEntry)));
  LEHR_TRY(make(m.installs, entries * sizeof(std::uint64_t)));
  for (DeviceMemory* list : {&m.selection, &m.own_selection, &m.scores})
    LEHR_TRY(make(*list, entries * 4));
  for (DeviceMemory* counts : {&m.counts, &m.own_counts})
    LEHR_TRY(make(*counts, shape.groups() * 4));
  LEHR_TRY(make(m.boxes, layers * entries * 4 * shape.head_dim));
  LEHR_TRY(make(m.heat, layers * entries * sizeof(kernels::PageHeat)));
  LEHR_TRY(make(m.q, query_bytes));
  LEHR_TRY(make(m.k, token_bytes));
  LEHR_TRY(make(m.v, token_bytes));
  LEHR_TRY(make(m.outputs, layers * query_bytes));
  LEHR_TRY(make(m.pairs, entries * shape.rows() * sizeof(kernels::SoftmaxPair)));
  LEHR_TRY(make(m.totals, shape.groups() * shape.rows() * sizeof(kernels::SoftmaxPair)));
  LEHR_TRY(make(m.misses, kMisses * sizeof(kernels::Miss)));
  LEHR_TRY(make(m.counters, 256));
  LEHR_TRY(make(m.workspace, workspace));
  for (DeviceMemory& lists : m.lists) LEHR_TRY(make(lists, list_bytes));
  for (DeviceMemory& stamps : m.stamps)
    LEHR_TRY(make(stamps, (layers + 1) * sizeof(kernels::LayerStamps)));
  return m;
}

Status CudaDevice::prepare(const StepShape& shape) {
  LEHR_TRY(drain());
  memory_.reset();
  // Most steps select a part of the pages; a fuller one makes the buffers grow.
  const Bytes pages = options_.geometry.layers * shape.groups() * shape.max_pages;
  LEHR_ASSIGN(auto made, StepMemory::create(shape, options_.geometry.layers,
                                            std::max<Bytes>(pages * 2, kMiB)));
  memory_ = std::make_unique<StepMemory>(std::move(made));
  for (PinnedMemory& staging : staging_) {
    LEHR_ASSIGN(staging, PinnedMemory::create(memory_->list_bytes));
  }
  graphs_ = {};
  layer_graphs_ = {};
  last_ = nullptr;
  LEHR_CUDA_TRY(cudaDeviceSynchronize());
  return {};
}

Status CudaDevice::make_lists(Bytes bytes) {
  LEHR_TRY(drain());
  memory_->list_bytes = bytes + bytes / 2;
  for (std::size_t i = 0; i < 2; ++i) {
    LEHR_ASSIGN(memory_->lists[i], DeviceMemory::create(memory_->list_bytes));
    LEHR_ASSIGN(staging_[i], PinnedMemory::create(memory_->list_bytes));
  }
  graphs_ = {};
  layer_graphs_ = {};
  last_ = nullptr;
  LEHR_CUDA_TRY(cudaDeviceSynchronize());
  return {};
}

// ---------------------------------------------------------------------- set-up

/// Makes pages, or counts those that are not as made (`bad` given), in pieces.
Status CudaDevice::run_contents(std::span<const PageContents> pages, std::uint32_t* bad) {
  StepShape shape;
  const KvGeometry& g = options_.geometry;
  shape.q_heads = g.q_heads;
  shape.kv_heads = g.kv_heads;
  shape.head_dim = g.head_dim;
  shape.page_tokens = g.page_tokens;
  shape.max_pages = 1;
  while (!pages.empty()) {
    const auto some = pages.first(std::min(pages.size(), kScratchPages));
    pages = pages.subspan(some.size());
    const auto count = static_cast<std::uint32_t>(some.size());
    auto* list = scratch_.as<PageContents>();
    LEHR_CUDA_TRY(
        cudaMemcpyAsync(list, some.data(), some.size_bytes(), cudaMemcpyHostToDevice, main_.get()));
    LEHR_TRY(bad == nullptr
                 ? kernels::make_pages_cuda(shape, source_, list, count, main_.get())
                 : kernels::check_pages_cuda(shape, source_, list, count, bad, main_.get()));
    LEHR_CUDA_TRY(cudaStreamSynchronize(main_.get()));
  }
  return {};
}

Status CudaDevice::set_up(std::span<const PageContents> made,
                          std::span<const kernels::PageCopy> copies) {
  LEHR_TRY(use_device(options_.device));
  LEHR_TRY(drain());
  LEHR_TRY(run_contents(made, nullptr));
  for (const kernels::PageCopy& c : copies) {  // suspended tails: few
    LEHR_CUDA_TRY(cudaMemcpyAsync(reinterpret_cast<void*>(c.to),
                                  reinterpret_cast<const void*>(c.from), page_bytes_,
                                  cudaMemcpyDefault, main_.get()));
  }
  LEHR_CUDA_TRY(cudaStreamSynchronize(main_.get()));
  return {};
}

Status CudaDevice::start_row(std::uint32_t row, std::uint32_t tokens,
                             std::span<const PageEntry> entries) {
  StepMemory& m = *memory_;
  const std::size_t row_entries = std::size_t{m.shape.kv_heads} * m.shape.max_pages;
  const std::size_t table_entries = m.shape.groups() * m.shape.max_pages;
  LEHR_CUDA_TRY(cudaMemcpy2DAsync(m.tables.as<PageEntry>() + row * row_entries,
                                  table_entries * sizeof(PageEntry), entries.data(),
                                  row_entries * sizeof(PageEntry), row_entries * sizeof(PageEntry),
                                  options_.geometry.layers, cudaMemcpyHostToDevice, main_.get()));
  LEHR_CUDA_TRY(
      cudaMemcpyAsync(scratch_.as<void>(), &tokens, 4, cudaMemcpyHostToDevice, main_.get()));
  StepShape one = m.shape;
  one.sequences = 1;
  for (std::uint32_t l = 0; l < options_.geometry.layers; ++l) {
    kernels::BoxesParams p;
    p.table = m.tables.as<PageEntry>() + l * table_entries + row * row_entries;
    p.lengths = scratch_.as<std::uint32_t>();
    p.boxes = m.boxes.as<unsigned char>() +
              (l * table_entries + row * row_entries) * 4 * m.shape.head_dim;
    LEHR_TRY(kernels::boxes_cuda(one, p, main_.get()));
  }
  LEHR_CUDA_TRY(cudaStreamSynchronize(main_.get()));  // the sources are the caller's
  return {};
}

// ---------------------------------------------------------------------- the step

const std::uint32_t* CudaDevice::lengths(std::size_t parity) const {
  return reinterpret_cast<const std::uint32_t*>(memory_->lists[parity].as<unsigned char>() +
                                                lengths_offset(options_.geometry.layers));
}

kernels::StepBuffers CudaDevice::buffers(std::uint32_t layer, std::size_t parity) const {
  const StepMemory& m = *memory_;
  const std::size_t entries = m.shape.groups() * m.shape.max_pages;
  kernels::StepBuffers b;
  b.lists = m.lists[parity].as<unsigned char>();
  b.table = m.tables.as<PageEntry>() + layer * entries;
  b.installs = m.installs.as<std::uint64_t>();
  b.selection = m.selection.as<std::uint32_t>();
  b.counts = m.counts.as<std::uint32_t>();
  b.q = m.q.as<std::uint16_t>();
  b.k = m.k.as<std::uint16_t>();
  b.v = m.v.as<std::uint16_t>();
  b.stamps = m.stamps[parity].as<kernels::LayerStamps>() + layer;
  b.layer = layer;
  b.source = source_;
  return b;
}

ProgramOptions CudaDevice::program() const {
  ProgramOptions options;
  options.layers = options_.geometry.layers;
  options.sparse = options_.sparse;
  options.weights = options_.weights_bytes > 0;
  options.check_reads = options_.check_reads;
  options.trace_kernels = options_.trace_kernels;
  options.moves = options_.tiering;
  return options;
}

Status CudaDevice::capture_steps() {
  ProgramOptions options = program();
  for (std::size_t parity = 0; parity < 2; ++parity) {
    for (const StepKind kind :
         {StepKind{false, false}, {true, false}, {false, true}, {true, true}}) {
      if ((kind.moves || kind.installs) && !options_.tiering) continue;
      options.moves = kind.moves;
      const std::vector<Launch> step = step_program(options);
      GraphExec& graph = graphs_[parity][kind.index()];
      LEHR_ASSIGN(graph, capture(main_, [&]() -> Status {
                    for (const Launch& l : step) LEHR_TRY(enqueue(l, parity, kind.installs));
                    return {};
                  }));
      LEHR_CUDA_TRY(cudaGraphUpload(graph.get(), main_.get()));
    }
  }
  return {};
}

/// One graph a layer; the last one has what comes after all layers too.
Status CudaDevice::capture_layers(std::size_t parity) {
  const std::uint32_t layers = options_.geometry.layers;
  const std::vector<Launch> step = step_program(program());
  layer_graphs_[parity].resize(layers);
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    LEHR_ASSIGN(layer_graphs_[parity][layer], capture(main_, [&]() -> Status {
                  for (const Launch& l : step) {
                    if (std::min(l.layer, layers - 1) == layer)
                      LEHR_TRY(enqueue(l, parity, options_.tiering));
                  }
                  return {};
                }));
  }
  return {};
}

Status CudaDevice::launch_graphs(std::span<const std::byte> lists, LayerRange layers,
                                 std::size_t parity) {
  if (layers.first == 0 && layers.end == options_.geometry.layers) {
    last_ = &graphs_[parity][options_.tiering ? kind_of(lists).index() : 0];
    LEHR_CUDA_TRY(cudaGraphLaunch(last_->get(), main_.get()));
    return {};
  }
  last_ = nullptr;
  if (layer_graphs_[parity].empty()) LEHR_TRY(capture_layers(parity));
  for (std::uint32_t l = layers.first; l < layers.end; ++l)
    LEHR_CUDA_TRY(cudaGraphLaunch(layer_graphs_[parity][l].get(), main_.get()));
  return {};
}

Status CudaDevice::enqueue(const Launch& launch, std::size_t parity, bool installs) {
  StepMemory& m = *memory_;
  cudaStream_t main = main_.get();
  switch (launch.kind) {
    case LaunchKind::kApply:
      return kernels::apply_lists_cuda(m.shape, buffers(launch.layer, parity), main);
    case LaunchKind::kFork:
      LEHR_CUDA_TRY(cudaEventRecord(forked_.get(), main));
      LEHR_CUDA_TRY(cudaStreamWaitEvent(side_.get(), forked_.get(), 0));
      return {};
    case LaunchKind::kMove:
      return kernels::move_lists_cuda(m.shape, buffers(launch.layer, parity), page_bytes_,
                                      mover_ctas_, side_.get());
    case LaunchKind::kJoin:
      LEHR_CUDA_TRY(cudaEventRecord(joined_.get(), side_.get()));
      LEHR_CUDA_TRY(cudaStreamWaitEvent(main, joined_.get(), 0));
      return {};
    case LaunchKind::kWeights: {
      const Bytes layer = options_.weights_bytes / options_.geometry.layers / 16 * 16;
      const Bytes windows = std::max<Bytes>(1, weights_.bytes() / std::max<Bytes>(1, layer));
      return kernels::read_bytes_cuda(weights_.as<unsigned char>() + launch.layer % windows * layer,
                                      layer, sink_.as<std::uint32_t>(),
                                      buffers(launch.layer, parity).stamps, main);
    }
    case LaunchKind::kCheck:
      return kernels::check_reads_cuda(m.shape, buffers(launch.layer, parity),
                                       bad_.as<std::uint32_t>(), main);
    case LaunchKind::kStamp:
      return kernels::stamp_cuda(kernel_stamps_.as<std::uint64_t>() + launch.layer * kLaunchKinds +
                                     static_cast<std::size_t>(launch.after),
                                 main);
    case LaunchKind::kDigest:
      return kernels::digest_cuda(
          m.lists[parity].as<unsigned char>(), m.outputs.as<std::uint32_t>(), m.outputs.bytes() / 4,
          digests_.as<std::uint64_t>(), kDigests, buffers(launch.layer, parity).stamps, main);
    default:
      return enqueue_attention(launch, parity, installs);
  }
}

Status CudaDevice::enqueue_attention(const Launch& launch, std::size_t parity, bool installs) {
  StepMemory& m = *memory_;
  const std::size_t entries = m.shape.groups() * m.shape.max_pages;
  const kernels::StepBuffers b = buffers(launch.layer, parity);
  unsigned char* boxes =
      m.boxes.as<unsigned char>() + launch.layer * entries * 4 * m.shape.head_dim;
  switch (launch.kind) {
    case LaunchKind::kAppend: {
      kernels::AppendParams p;
      p.k = b.k;
      p.v = b.v;
      p.table = b.table;
      p.lengths = lengths(parity);
      p.boxes = boxes;
      p.absent = bad_.as<std::uint32_t>() + 2;
      return kernels::append_cuda(m.shape, p, main_.get());
    }
    case LaunchKind::kScore: {
      kernels::ScoreParams p;
      p.q = b.q;
      p.boxes = boxes;
      p.lengths = lengths(parity);
      p.scores = m.scores.as<float>();
      return kernels::score_cuda(m.shape, p, main_.get());
    }
    case LaunchKind::kSelect: {
      kernels::SelectParams p;
      p.scores = m.scores.as<float>();
      p.lengths = lengths(parity);
      p.selection = m.own_selection.as<std::uint32_t>();
      p.counts = m.own_counts.as<std::uint32_t>();
      p.pitch = m.shape.max_pages;
      p.ratio = 0.1F;
      return kernels::select_cuda(m.shape, p, main_.get());
    }
    case LaunchKind::kResolve: {
      kernels::ResolveParams p;
      p.table = b.table;
      p.lengths = lengths(parity);
      p.selection = b.selection;
      p.counts = b.counts;
      p.misses = m.misses.as<kernels::Miss>();
      p.counters = m.counters.as<kernels::ResolveCounters>();
      p.selection_pitch = m.shape.max_pages;
      p.miss_capacity = kMisses;
      return kernels::resolve_cuda(m.shape, p, main_.get());
    }
    case LaunchKind::kAttend: {
      kernels::AttendParams p;
      p.q = b.q;
      p.out = m.outputs.as<unsigned char>() + launch.layer * std::size_t{m.shape.sequences} *
                                                  m.shape.q_heads * m.shape.head_dim * 2;
      p.table = b.table;
      p.lengths = lengths(parity);
      p.selection = b.selection;
      p.counts = b.counts;
      p.selection_pitch = m.shape.max_pages;
      p.pairs = options_.sparse ? m.pairs.as<kernels::SoftmaxPair>() : nullptr;
      p.totals = options_.sparse ? m.totals.as<kernels::SoftmaxPair>() : nullptr;
      p.installs = installs ? b.installs : nullptr;
      p.absent = bad_.as<std::uint32_t>() + 2;
      return kernels::attend_cuda(m.shape, p, {}, m.workspace.as<void>(), m.workspace.bytes(),
                                  main_.get());
    }
    case LaunchKind::kFeedback: {
      kernels::FeedbackParams p;
      p.pairs = m.pairs.as<kernels::SoftmaxPair>();
      p.totals = m.totals.as<kernels::SoftmaxPair>();
      p.lengths = lengths(parity);
      p.selection = b.selection;
      p.counts = b.counts;
      p.step = m.lists[parity].as<std::uint32_t>();  // StepHeader::step
      p.heat = m.heat.as<kernels::PageHeat>() + launch.layer * entries;
      p.selection_pitch = m.shape.max_pages;
      return kernels::feedback_cuda(m.shape, p, main_.get());
    }
    default:
      return internal_error("cuda machine: unknown launch");
  }
}

Status CudaDevice::launch(std::span<const std::byte> lists, LayerRange layers) {
  kernels::StepHeader header{};
  std::memcpy(&header, lists.data(), sizeof header);
  if (header.lengths_at != lengths_offset(options_.geometry.layers))
    return internal_error("cuda machine: lengths lie elsewhere than captured");
  if (lists.size() > memory_->list_bytes) LEHR_TRY(make_lists(lists.size()));
  if (graphs_[0][0].get() == nullptr) LEHR_TRY(capture_steps());
  const std::size_t parity = launched_ % 2;
  Flight& now = flights_[launched_ % kFlights];
  Flight& before = flights_[(launched_ + kFlights - 1) % kFlights];
  // Two steps may be on their way: the one before the last has the buffers that this one takes.
  Flight& last_user = flights_[(launched_ + kFlights - 2) % kFlights];
  if (last_user.open) LEHR_TRY(finish(last_user, flights_[(launched_ + kFlights - 3) % kFlights]));

  const auto clock = [] { return std::chrono::steady_clock::now(); };
  const auto seconds = [](auto from, auto to) {
    return std::chrono::duration<double>(to - from).count();
  };
  const nvtxRangeId_t range = nvtxRangeStartA("lehr launch");
  const auto began = clock();
  std::memcpy(staging_[parity].as<void>(), lists.data(), lists.size());
  const auto copied = clock();
  LEHR_CUDA_TRY(
      cudaMemsetAsync(digests_.as<std::uint64_t>() + header.step % kDigests, 0, 8, up_.get()));
  LEHR_CUDA_TRY(cudaMemcpyAsync(memory_->lists[parity].as<void>(), staging_[parity].as<void>(),
                                lists.size(), cudaMemcpyHostToDevice, up_.get()));
  LEHR_CUDA_TRY(cudaEventRecord(copied_[parity].get(), up_.get()));
  LEHR_CUDA_TRY(cudaStreamWaitEvent(main_.get(), copied_[parity].get(), 0));
  if (options_.trace_kernels && layers.first == 0) {  // a step may launch fewer kinds than the last
    LEHR_CUDA_TRY(
        cudaMemsetAsync(kernel_stamps_.as<void>(), 0, kernel_stamps_.bytes(), main_.get()));
  }
  LEHR_CUDA_TRY(cudaEventRecord(now.begin.get(), main_.get()));
  LEHR_TRY(launch_graphs(lists, layers, parity));
  LEHR_CUDA_TRY(cudaEventRecord(now.end.get(), main_.get()));
  // Clocks and digest come back beside the next step.
  const Bytes stamps = (options_.geometry.layers + 1) * sizeof(kernels::LayerStamps);
  LEHR_CUDA_TRY(cudaStreamWaitEvent(back_.get(), now.end.get(), 0));
  LEHR_CUDA_TRY(cudaMemcpyAsync(now.stamps.as<void>(), memory_->stamps[parity].as<void>(), stamps,
                                cudaMemcpyDeviceToHost, back_.get()));
  LEHR_CUDA_TRY(cudaMemcpyAsync(now.stamps.as<std::byte>() + stamps,
                                digests_.as<std::uint64_t>() + header.step % kDigests, 8,
                                cudaMemcpyDeviceToHost, back_.get()));
  LEHR_CUDA_TRY(cudaEventRecord(now.done.get(), back_.get()));
  now.copy = seconds(began, copied);
  now.launch = seconds(copied, clock());
  nvtxRangeEnd(range);
  now.step = header.step;
  now.open = true;
  now.follows = before.open;
  ++launched_;
  return {};
}

Status CudaDevice::finish(Flight& flight, const Flight& before) {
  const nvtxRangeId_t range = nvtxRangeStartA("lehr wait for a step");
  const cudaError_t waited = cudaEventSynchronize(flight.done.get());
  nvtxRangeEnd(range);
  LEHR_CUDA_TRY(waited);
  flight.open = false;
  StepTimes times;
  times.step = flight.step;
  times.copy = flight.copy;
  times.launch = flight.launch;
  float ms = 0;
  LEHR_CUDA_TRY(cudaEventElapsedTime(&ms, flight.begin.get(), flight.end.get()));
  times.total = static_cast<double>(ms) * 1e-3;
  if (flight.follows) {
    LEHR_CUDA_TRY(cudaEventElapsedTime(&ms, before.end.get(), flight.begin.get()));
    times.idle = static_cast<double>(ms) * 1e-3;
  }
  const std::size_t layers = options_.geometry.layers + 1;
  times.layers.assign(flight.stamps.as<kernels::LayerStamps>(),
                      flight.stamps.as<kernels::LayerStamps>() + layers);
  std::memcpy(&times.digest, flight.stamps.as<kernels::LayerStamps>() + layers, 8);
  times_.push_back(std::move(times));
  return {};
}

Status CudaDevice::drain() {
  for (std::uint64_t i = launched_ < 2 ? 0 : launched_ - 2; i < launched_; ++i) {
    Flight& flight = flights_[i % kFlights];
    if (flight.open) LEHR_TRY(finish(flight, flights_[(i + kFlights - 1) % kFlights]));
  }
  LEHR_CUDA_TRY(cudaDeviceSynchronize());
  return {};
}

std::vector<StepTimes> CudaDevice::take_times() { return std::exchange(times_, {}); }

Result<std::uint64_t> CudaDevice::count_bad(std::span<const PageContents> pages) {
  LEHR_TRY(drain());
  LEHR_ASSIGN(const DeviceMemory bad, DeviceMemory::create(64));
  LEHR_CUDA_TRY(cudaDeviceSynchronize());
  LEHR_TRY(run_contents(pages, bad.as<std::uint32_t>()));
  std::uint32_t found[2] = {};
  LEHR_CUDA_TRY(cudaMemcpy(found, bad.as<void>(), sizeof found, cudaMemcpyDeviceToHost));
  return std::uint64_t{found[0]};
}

Result<std::uint64_t> CudaDevice::bad_reads() {
  LEHR_TRY(drain());
  std::uint32_t found[3] = {};
  LEHR_CUDA_TRY(cudaMemcpy(found, bad_.as<void>(), sizeof found, cudaMemcpyDeviceToHost));
  return std::uint64_t{found[0]} + found[2];
}

Result<std::vector<std::uint16_t>> CudaDevice::outputs() {
  LEHR_TRY(drain());
  if (!memory_) return std::vector<std::uint16_t>{};
  const StepShape& s = memory_->shape;
  std::vector<std::uint16_t> out(std::size_t{options_.geometry.layers} * s.sequences * s.q_heads *
                                 s.head_dim);
  LEHR_CUDA_TRY(
      cudaMemcpy(out.data(), memory_->outputs.as<void>(), out.size() * 2, cudaMemcpyDeviceToHost));
  return out;
}

Result<StepTimes> CudaDevice::repeat(std::uint32_t times) {
  LEHR_TRY(drain());
  StepTimes out;
  if (last_ == nullptr || times < 2) return out;
  std::vector<Event> begins(times), ends(times);
  for (std::uint32_t i = 0; i < times; ++i) {
    LEHR_ASSIGN(begins[i], Event::create(true));
    LEHR_ASSIGN(ends[i], Event::create(true));
  }
  for (std::uint32_t i = 0; i < times; ++i) {
    LEHR_CUDA_TRY(cudaEventRecord(begins[i].get(), main_.get()));
    LEHR_CUDA_TRY(cudaGraphLaunch(last_->get(), main_.get()));
    LEHR_CUDA_TRY(cudaEventRecord(ends[i].get(), main_.get()));
  }
  LEHR_CUDA_TRY(cudaStreamSynchronize(main_.get()));
  std::vector<double> total, idle;
  for (std::uint32_t i = 1; i < times; ++i) {
    float ms = 0;
    LEHR_CUDA_TRY(cudaEventElapsedTime(&ms, begins[i].get(), ends[i].get()));
    total.push_back(static_cast<double>(ms) * 1e-3);
    LEHR_CUDA_TRY(cudaEventElapsedTime(&ms, ends[i - 1].get(), begins[i].get()));
    idle.push_back(static_cast<double>(ms) * 1e-3);
  }
  out.total = median(std::move(total));
  out.idle = median(std::move(idle));
  return out;
}

Result<std::vector<std::uint64_t>> CudaDevice::kernel_stamps() {
  LEHR_TRY(drain());
  std::vector<std::uint64_t> out(options_.geometry.layers * kLaunchKinds);
  LEHR_CUDA_TRY(cudaMemcpy(out.data(), kernel_stamps_.as<void>(), out.size() * sizeof out[0],
                           cudaMemcpyDeviceToHost));
  return out;
}

std::vector<std::string> CudaDevice::notes() const {
  return {fmt::format(
      "{}; home tier on {}, {} movers of one warp", describe_device(options_.device),
      peer_ ? fmt::format("GPU {}", options_.donor) : "pinned host memory", mover_ctas_)};
}

}  // namespace lehr::runtime::cuda
