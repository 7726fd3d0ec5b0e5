// SPDX-License-Identifier: Apache-2.0
#include "runtime/machines/cuda/offload.hpp"

#include <algorithm>
#include <array>

#include "kernels/attend.hpp"
#include "kernels/decode_step.hpp"
#include "runtime/machines/cuda/cuda_memory.hpp"

namespace lehr::runtime::cuda {

namespace {

using kernels::PageContents;
using kernels::PageEntry;

constexpr std::uint32_t kSourceLayers = 3;
constexpr std::uint32_t kBuffers = 3;  ///< the first layer has one of its own, for it is brought
                                       ///< during the step before

struct Rival {
  OffloadedCacheOptions o;
  kernels::StepShape shape;
  Bytes layer_bytes = 0, weights_layer = 0;
  PinnedMemory source;
  std::array<DeviceMemory, kBuffers> buffer, table;
  DeviceMemory q, out, lengths, workspace, weights, sink, stamps;
  Stream main, copies;
  std::vector<Event> copied, attended;
  Event forked;

  std::uint32_t buffer_of(std::uint32_t layer) const { return layer == 0 ? 2 : layer % 2; }

  Status make();
  Status copy(std::uint32_t layer);
  Status attend(std::uint32_t layer);
  Status step();
};

Status Rival::make() {
  const KvGeometry& g = o.geometry;
  shape.sequences = o.sequences;
  shape.q_heads = g.q_heads;
  shape.kv_heads = g.kv_heads;
  shape.head_dim = g.head_dim;
  shape.page_tokens = g.page_tokens;
  shape.max_pages = g.pages_for(o.tokens);
  LEHR_TRY(kernels::check_shape(shape));
  const std::size_t pages = shape.groups() * shape.max_pages;
  const Bytes page = kernels::stored_page_bytes(DType::kF16, g.page_tokens, g.head_dim);
  layer_bytes = pages * page;
  LEHR_ASSIGN(source, PinnedMemory::create(layer_bytes * kSourceLayers));
  std::vector<PageContents> contents(pages);
  std::vector<PageEntry> entries(pages);
  for (std::uint32_t b = 0; b < kBuffers; ++b) {
    LEHR_ASSIGN(buffer[b], DeviceMemory::create(layer_bytes));
    LEHR_ASSIGN(table[b], DeviceMemory::create(pages * sizeof(PageEntry)));
    for (std::size_t i = 0; i < pages; ++i) {
      entries[i] = kernels::make_entry(buffer[b].address() + i * page, false, DType::kF16);
      contents[i] = {buffer[b].address() + i * page, static_cast<std::uint32_t>(i), g.page_tokens};
    }
    LEHR_CUDA_TRY(cudaMemcpy(table[b].as<void>(), entries.data(), pages * sizeof(PageEntry),
                             cudaMemcpyHostToDevice));
  }
  LEHR_ASSIGN(const DeviceMemory list, DeviceMemory::create(pages * sizeof(PageContents)));
  LEHR_CUDA_TRY(cudaMemcpy(list.as<void>(), contents.data(), pages * sizeof(PageContents),
                           cudaMemcpyHostToDevice));
  LEHR_TRY(kernels::make_pages_cuda(shape, {}, list.as<PageContents>(),
                                    static_cast<std::uint32_t>(pages), nullptr));
  for (std::uint32_t l = 0; l < kSourceLayers; ++l) {
    LEHR_CUDA_TRY(cudaMemcpy(source.as<std::byte>() + l * layer_bytes,
                             buffer[kBuffers - 1].as<void>(), layer_bytes, cudaMemcpyDeviceToHost));
  }
  const std::size_t query = std::size_t{o.sequences} * g.q_heads * g.head_dim * 2;
  LEHR_ASSIGN(q, DeviceMemory::create(query));
  LEHR_CUDA_TRY(cudaMemcpy(q.as<void>(), source.as<void>(), std::min<Bytes>(query, layer_bytes),
                           cudaMemcpyHostToDevice));
  LEHR_ASSIGN(out, DeviceMemory::create(query));
  const std::vector<std::uint32_t> length(o.sequences, o.tokens);
  LEHR_ASSIGN(lengths, DeviceMemory::create(length.size() * 4));
  LEHR_CUDA_TRY(
      cudaMemcpy(lengths.as<void>(), length.data(), length.size() * 4, cudaMemcpyHostToDevice));
  LEHR_ASSIGN(const std::size_t bytes, kernels::attend_workspace_bytes(shape));
  LEHR_ASSIGN(workspace, DeviceMemory::create(bytes));
  weights_layer = o.weights_bytes / g.layers / 16 * 16;
  LEHR_ASSIGN(weights, DeviceMemory::create(std::max<Bytes>(weights_layer, 16)));
  LEHR_ASSIGN(sink, DeviceMemory::create(256));
  LEHR_ASSIGN(stamps, DeviceMemory::create(sizeof(kernels::LayerStamps)));
  LEHR_ASSIGN(main, Stream::create(false));
  LEHR_ASSIGN(copies, Stream::create(false));
  for (auto* events : {&copied, &attended}) {
    for (std::uint32_t l = 0; l < g.layers; ++l) {
      LEHR_ASSIGN(Event event, Event::create(false));
      events->push_back(std::move(event));
    }
  }
  LEHR_ASSIGN(forked, Event::create(false));
  LEHR_CUDA_TRY(cudaDeviceSynchronize());
  return {};
}

Status Rival::copy(std::uint32_t layer) {
  LEHR_CUDA_TRY(cudaMemcpyAsync(buffer[buffer_of(layer)].as<void>(),
                                source.as<std::byte>() + layer % kSourceLayers * layer_bytes,
                                layer_bytes, cudaMemcpyHostToDevice, copies.get()));
  return {};
}

Status Rival::attend(std::uint32_t layer) {
  LEHR_TRY(kernels::read_bytes_cuda(weights.as<void>(), weights_layer, sink.as<std::uint32_t>(),
                                    stamps.as<kernels::LayerStamps>(), main.get()));
  kernels::AttendParams p;
  p.q = q.as<void>();
  p.out = out.as<void>();
  p.table = table[buffer_of(layer)].as<PageEntry>();
  p.lengths = lengths.as<std::uint32_t>();
  return kernels::attend_cuda(shape, p, {}, workspace.as<void>(), workspace.bytes(), main.get());
}

/// Copies run on ahead as far as there are buffers.
Status Rival::step() {
  const std::uint32_t layers = o.geometry.layers;
  LEHR_CUDA_TRY(cudaEventRecord(forked.get(), main.get()));
  LEHR_CUDA_TRY(cudaStreamWaitEvent(copies.get(), forked.get(), 0));
  for (std::uint32_t l = 0; l < layers; ++l) {
    if (l > 0) LEHR_CUDA_TRY(cudaStreamWaitEvent(main.get(), copied[l].get(), 0));
    LEHR_TRY(attend(l));
    LEHR_CUDA_TRY(cudaEventRecord(attended[l].get(), main.get()));
    // What may be brought now: the next layer, whose buffer the layer before this one left.
    const std::uint32_t next = l + 1 < layers ? l + 1 : 0;
    const std::uint32_t left_by = next == 0 ? 0 : next >= 3 ? next - 2 : layers;
    if (left_by < layers)
      LEHR_CUDA_TRY(cudaStreamWaitEvent(copies.get(), attended[left_by].get(), 0));
    LEHR_TRY(copy(next));
    LEHR_CUDA_TRY(cudaEventRecord(copied[next].get(), copies.get()));
  }
  LEHR_CUDA_TRY(cudaStreamWaitEvent(main.get(), copied[0].get(), 0));
  return {};
}

}  // namespace

Result<OffloadedCacheResult> run_offloaded_cache(const OffloadedCacheOptions& options) {
  LEHR_TRY(use_device(options.device));
  Rival rival;
  rival.o = options;
  LEHR_TRY(rival.make());
  LEHR_ASSIGN(const GraphExec graph, capture(rival.main, [&] { return rival.step(); }));
  OffloadedCacheResult result;
  result.bytes_per_step = rival.layer_bytes * options.geometry.layers;
  LEHR_ASSIGN(const Event begin, Event::create(true));
  LEHR_ASSIGN(const Event end, Event::create(true));
  for (std::uint32_t s = 0; s < options.steps + 2; ++s) {
    LEHR_CUDA_TRY(cudaEventRecord(begin.get(), rival.main.get()));
    LEHR_CUDA_TRY(cudaGraphLaunch(graph.get(), rival.main.get()));
    LEHR_CUDA_TRY(cudaEventRecord(end.get(), rival.main.get()));
    LEHR_CUDA_TRY(cudaEventSynchronize(end.get()));
    float ms = 0;
    LEHR_CUDA_TRY(cudaEventElapsedTime(&ms, begin.get(), end.get()));
    if (s >= 2) result.steps.push_back(static_cast<double>(ms) * 1e-3);
  }
  return result;
}

}  // namespace lehr::runtime::cuda
