// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <cuda.h>
#include <lehr.h>

#include "tests/support/cuda_must.hpp"

// Runtimes with a pool in a GPU's memory, through the C interface, and what their test counts.
namespace lehr::test::pools {

inline constexpr std::int64_t kPatience = 20'000'000'000;
inline bool quick = false;
inline std::string threads = "0";  ///< that check blocks
inline int failures = 0;
inline const char* current = "";  ///< case

inline void check(bool good, const std::string& what) {
  if (good) return;
  ++failures;
  std::printf("  FAILED %s: %s\n", current, what.c_str());
}
inline std::string last_error() {
  std::string text(lehr_last_error(nullptr, 0), '\0');
  lehr_last_error(text.data(), text.size());
  return text;
}
inline void ok(lehr_status status, const char* what) {
  if (status == LEHR_OK) return;
  std::printf("  FAILED %s: %s: %s\n", current, what, last_error().c_str());
  std::exit(1);
}
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
template <class T>
T sized() {
  T value;
  std::memset(&value, 0, sizeof value);
  value.struct_size = sizeof(T);
  return value;
}

/// A call of the driver, which the program is not linked with.
template <class Function>
Function driver(const char* name, unsigned version) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  must(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result), name);
  return reinterpret_cast<Function>(found);
}

/// Work that a test holds up: what is behind it on its stream waits.
class Latch {
 public:
  explicit Latch(cudaStream_t stream) {
    must(cudaHostAlloc(reinterpret_cast<void**>(&word_), 64, cudaHostAllocMapped), "latch");
    *word_ = 0;
    using Wait = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
    const auto wait = driver<Wait>("cuStreamWaitValue32", 11070);
    check(wait(stream, reinterpret_cast<CUdeviceptr>(word_), 1, CU_STREAM_WAIT_VALUE_GEQ) ==
              CUDA_SUCCESS,
          "a latch");
  }
  ~Latch() { lift(); }
  Latch(const Latch&) = delete;
  Latch& operator=(const Latch&) = delete;
  void lift() { *static_cast<volatile std::uint32_t*>(word_) = 1; }

 private:
  std::uint32_t* word_ = nullptr;
};

inline cudaStream_t make_stream() {
  cudaStream_t made = nullptr;
  must(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "stream");
  return made;
}

/// How blocks lie: as engines with paged attention have them, with padding, or opaque.
struct Shape {
  const char* name;
  std::uint32_t layers, heads, tokens, dim;
  std::uint32_t padding;  ///< of a row, bytes
  bool head_major;        ///< [head][token], else [token][head]
  std::uint64_t opaque;
};

inline lehr_layout layout_of(const Shape& s, std::uint32_t blocks) {
  auto l = sized<lehr_layout>();
  if (s.opaque != 0) {
    l.opaque_bytes = l.block_stride = s.opaque;
    return l;
  }
  l.element_bytes = 2;
  l.layers = s.layers;
  l.kv_heads = s.heads;
  l.tokens = s.tokens;
  l.head_dim = s.dim;
  l.padding = s.padding;
  const std::uint64_t row = 2ULL * s.dim + s.padding;
  l.head_stride = s.head_major ? s.tokens * row : row;
  l.token_stride = s.head_major ? row : s.heads * row;
  l.block_stride = s.heads * s.tokens * row;
  l.v_offset = blocks * l.block_stride;
  l.layer_stride = 2 * l.v_offset;
  return l;
}

/// A runtime on the GPU with one pool in memory of it.
class World {
 public:
  World(const Shape& s, std::uint32_t blocks, std::uint32_t host, std::uint32_t nvme,
        const char* faults = "")
      : shape(s), layout(layout_of(s, blocks)) {
    content = s.opaque != 0 ? s.opaque : 4ULL * s.layers * s.heads * s.tokens * s.dim;
    bytes = s.opaque != 0 ? s.opaque * blocks : layout.layer_stride * s.layers;
    must(cudaMalloc(reinterpret_cast<void**>(&memory), bytes), "a pool");
    must(cudaMemset(memory, 0xEE, bytes), "a pool");
    open(blocks, host, nvme, faults);
  }
  ~World() {
    if (runtime.id != 0) lehr_close(runtime);
    (void)cudaFree(memory);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void open(std::uint32_t blocks, std::uint32_t host, std::uint32_t nvme, const char* faults) {
    std::string config = "machine = \"cuda\"\nprofile = \"h200-pcie5\"\n";
    if (*faults != 0) config += std::string("faults = \"") + faults + "\"\n";
    config += "[placement]\nthreads = " + threads +
              "\nblock_bytes = " + std::to_string((content + 4095) / 4096 * 4096) + "\nhost = \"" +
              std::to_string(host) + " pages\"\n";
    if (nvme > 0) config += "nvme = \"" + std::to_string(nvme) + " pages\"\n[nvme]\npath = \".\"\n";
    auto options = sized<lehr_open_options>();
    options.config = config.data();
    options.config_size = config.size();
    ok(lehr_open(LEHR_VERSION, &options, &runtime), "lehr_open");
    auto names = sized<lehr_namespace_desc>();
    names.layout = &layout;
    names.model = {"m", 1};
    ok(lehr_namespace_open(runtime, &names, &ns), "lehr_namespace_open");
    ok(register_pool(memory, bytes, blocks, LEHR_MEMORY_DEVICE, pool), "lehr_pool_register");
  }
  lehr_status register_pool(void* base, std::uint64_t size, std::uint32_t blocks, int kind,
                            lehr_pool& out) {
    auto desc = sized<lehr_pool_desc>();
    desc.memory = kind;
    desc.base = base;
    desc.bytes = size;
    desc.blocks = blocks;
    desc.layout = &layout;
    return lehr_pool_register(runtime, &desc, &out);
  }

  /// Calls `row(offset in the pool, bytes, number of the row in the block)`.
  template <class Row>
  void each_row(std::uint32_t block, Row row) const {
    if (shape.opaque != 0) {
      row(block * shape.opaque, shape.opaque, 0);
      return;
    }
    std::uint32_t n = 0;
    for (std::uint32_t l = 0; l < shape.layers; ++l)
      for (std::uint32_t part = 0; part < 2; ++part)
        for (std::uint32_t h = 0; h < shape.heads; ++h)
          for (std::uint32_t t = 0; t < shape.tokens; ++t)
            row(block * layout.block_stride + l * layout.layer_stride + part * layout.v_offset +
                    h * layout.head_stride + t * layout.token_stride,
                2ULL * shape.dim, n++);
  }
  static unsigned char value(std::uint32_t what, std::uint32_t row, std::uint64_t i) {
    return static_cast<unsigned char>((what * 2654435761U + row * 40503U + i * 7 + i / 251) >> 3);
  }
  void put(std::vector<unsigned char>& pool_image, std::uint32_t block, std::uint32_t what) const {
    each_row(block, [&](std::uint64_t at, std::uint64_t size, std::uint32_t row) {
      for (std::uint64_t i = 0; i < size; ++i) pool_image[at + i] = value(what, row, i);
    });
  }
  std::vector<unsigned char> fetch() const {
    std::vector<unsigned char> all(bytes);
    must(cudaMemcpy(all.data(), memory, bytes, cudaMemcpyDeviceToHost), "fetch");
    return all;
  }
  void send(const std::vector<unsigned char>& all) const {
    must(cudaMemcpy(memory, all.data(), bytes, cudaMemcpyHostToDevice), "send");
  }
  void fill(std::uint32_t block, std::uint32_t what) const {
    std::vector<unsigned char> all = fetch();
    put(all, block, what);
    send(all);
  }
  bool holds(const std::vector<unsigned char>& all, std::uint32_t block, std::uint32_t what) const {
    bool same = true;
    each_row(block, [&](std::uint64_t at, std::uint64_t size, std::uint32_t row) {
      for (std::uint64_t i = 0; i < size; ++i) same = same && all[at + i] == value(what, row, i);
    });
    return same;
  }

  lehr_job prepare(bool load, std::uint32_t first, std::uint32_t count, std::uint32_t block,
                   std::uint32_t flags = 0) {
    std::vector<std::string> keys;
    for (std::uint32_t i = 0; i < count; ++i)
      keys.push_back(std::string("k").append(std::to_string(first + i)));
    std::vector<lehr_item> items;
    for (std::uint32_t i = 0; i < count; ++i) {
      auto item = sized<lehr_item>();
      item.key = keys[i].data();
      item.key_size = static_cast<std::uint32_t>(keys[i].size());
      item.block = block + i;
      item.pool = pool;
      items.push_back(item);
    }
    lehr_job job{};
    if (load) {
      auto request = sized<lehr_load_request>();
      request.ns = ns;
      request.flags = flags;
      ok(lehr_load_prepare(runtime, &request, items.data(), count, nullptr, &job), "load");
    } else {
      auto request = sized<lehr_store_request>();
      request.ns = ns;
      ok(lehr_store_prepare(runtime, &request, items.data(), count, nullptr, nullptr, 0, nullptr,
                            &job),
         "store");
    }
    return job;
  }
  lehr_job_report finish(lehr_job job) {
    ok(lehr_job_wait(runtime, job, kPatience), "lehr_job_wait");
    auto report = sized<lehr_job_report>();
    ok(lehr_job_query(runtime, job, &report), "lehr_job_query");
    ok(lehr_jobs_release(runtime, &job, 1, nullptr), "lehr_jobs_release");
    return report;
  }
  lehr_job_report run(lehr_job job, cudaStream_t stream) {
    ok(lehr_jobs_submit(runtime, &job, 1, stream, nullptr), "lehr_jobs_submit");
    return finish(job);
  }
  void store(std::uint32_t first, std::uint32_t count, std::uint32_t block, cudaStream_t stream) {
    const lehr_job_report report = run(prepare(false, first, count, block), stream);
    check(report.status == LEHR_OK && report.succeeded == count, "a store went well");
    ok(lehr_jobs_drain(runtime, kPatience), "drain");
  }

  Shape shape;
  lehr_layout layout;
  unsigned char* memory = nullptr;
  std::uint64_t bytes = 0, content = 0;
  lehr_runtime runtime{};
  lehr_namespace ns{};
  lehr_pool pool{};
};

inline constexpr Shape kPaged{"paged", 4, 4, 16, 64, 0, false, 0};
inline constexpr Shape kHeads{"heads outside", 3, 4, 16, 64, 0, true, 0};
inline constexpr Shape kPadded{"padded rows", 2, 2, 16, 40, 16, false, 0};
inline constexpr Shape kOpaque{"opaque", 1, 0, 0, 0, 0, false, 96 * 1024};
/// A job of these moves in several flights.
inline constexpr Shape kLarge{"large", 16, 8, 16, 128, 0, false, 0};

/// Bytes per second of stores and loads, printed beside copies of as many bytes in the same run.
void speed();

}  // namespace lehr::test::pools
