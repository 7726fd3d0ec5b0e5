// SPDX-License-Identifier: Apache-2.0
// A group on GPUs through the C interface: parts on two of them where there are two, else both on
// one. Outputs against the host's, and the same bits wherever pages live. Exits with 77 without a
// GPU.
#define CATCH_CONFIG_RUNNER
#include <cmath>
#include <cstdio>
#include <memory>

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "tests/capi/capi_world.hpp"

using namespace capi_world;

namespace {

constexpr std::uint32_t kLayers = 4, kHeads = 4, kRatio = 4, kDim = 128, kDevices = 2;

void must(cudaError_t status) {
  INFO(cudaGetErrorString(status));
  REQUIRE(status == cudaSuccess);
}

int gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string config_of(bool cuda, std::uint32_t device, std::uint32_t hbm) {
  return std::string("machine = \"") + (cuda ? "cuda" : "host") + "\"\nprofile = \"h200-pcie5\"\n" +
         "device = " + std::to_string(device) +
         "\n[policy]\nname = \"lru\"\n[geometry]\nlayers = 4\n"
         "kv_heads = 4\nq_heads = 16\nhead_dim = 128\npage_tokens = 16\ndtype = \"f16\"\n[step]\n"
         "contents = \"kv\"\n[capacity]\nhbm = \"" +
         std::to_string(hbm) + " pages\"\nhost = \"8000 pages\"\nnvme = 0\n";
}

/// Numbers of one tensor [1, heads, tokens, dim], in memory of a GPU or of the process.
class Numbers {
 public:
  Numbers(int gpu, std::uint32_t heads, std::uint32_t tokens)
      : gpu_(gpu), shape_{1, heads, tokens, kDim}, values_(std::size_t{heads} * tokens * kDim) {
    if (gpu_ < 0) return;
    must(cudaSetDevice(gpu_));
    must(cudaMalloc(&memory_, values_.size() * 2));
  }
  ~Numbers() { (void)cudaFree(memory_); }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;

  /// Heads from `first` on of what all heads of a seed are.
  void fill(std::uint32_t seed, std::uint32_t first) {
    const std::size_t tokens = static_cast<std::size_t>(shape_[2]);
    for (std::size_t h = 0; h < static_cast<std::size_t>(shape_[1]); ++h) {
      std::uint32_t x = (seed * 131U + first + static_cast<std::uint32_t>(h)) * 2654435761U + 1;
      for (std::size_t i = 0; i < tokens * kDim; ++i) {
        x = x * 1664525U + 1013904223U;
        values_[h * tokens * kDim + i] =
            __float2half(static_cast<float>(x >> 8) / static_cast<float>(1U << 23) - 1.0F);
      }
    }
    if (gpu_ < 0) return;
    must(cudaSetDevice(gpu_));
    must(cudaMemcpy(memory_, values_.data(), values_.size() * 2, cudaMemcpyHostToDevice));
  }
  void fetch(cudaStream_t stream) {
    if (gpu_ < 0) return;
    must(cudaSetDevice(gpu_));
    must(cudaStreamSynchronize(stream));
    must(cudaMemcpy(values_.data(), memory_, values_.size() * 2, cudaMemcpyDeviceToHost));
  }
  lehr_tensor tensor() {
    auto t = sized<lehr_tensor>();
    t.device_type = gpu_ < 0 ? 1 : 2;
    t.device_id = gpu_ < 0 ? 0 : gpu_;
    t.data = gpu_ < 0 ? static_cast<void*>(values_.data()) : memory_;
    t.ndim = 4;
    t.dtype_code = 2;
    t.dtype_bits = 16;
    t.dtype_lanes = 1;
    t.shape = shape_;
    return t;
  }
  const std::vector<__half>& values() const { return values_; }

 private:
  int gpu_;
  std::int64_t shape_[4];
  std::vector<__half> values_;
  void* memory_ = nullptr;
};

class Group {
 public:
  /// `hbm`: pages of each device; one device on the host, or kDevices on GPUs.
  Group(bool cuda, std::int32_t split, const std::vector<std::uint32_t>& hbm) : split_(split) {
    std::vector<std::string> texts;
    for (std::uint32_t d = 0; d < hbm.size(); ++d) {
      gpus_.push_back(cuda ? static_cast<int>(d) % gpus() : -1);
      texts.push_back(config_of(cuda, cuda ? static_cast<std::uint32_t>(gpus_.back()) : 0, hbm[d]));
    }
    std::vector<lehr_bytes> configs;
    for (const std::string& text : texts) configs.push_back({text.data(), text.size()});
    auto options = sized<lehr_group_options>();
    options.split = split;
    options.configs = configs.data();
    options.device_count = static_cast<std::uint32_t>(configs.size());
    if (lehr_group_open(LEHR_VERSION, &options, &handle) != LEHR_OK) FAIL(last_error());
    for (const int gpu : gpus_) {
      streams_.push_back(nullptr);
      if (gpu < 0) continue;
      must(cudaSetDevice(gpu));
      cudaStream_t stream = nullptr;
      must(cudaStreamCreate(&stream));
      streams_.back() = stream;
    }
  }
  ~Group() { lehr_group_close(handle); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Outputs [layer][q head][token][dim].
  std::vector<float> step(lehr_sequence sequence, std::uint32_t tokens, std::uint32_t seed) {
    const bool cuda = gpus_.front() >= 0;
    if (lehr_group_step_begin(handle, &sequence, &tokens, 1, cuda ? streams_.data() : nullptr) !=
        LEHR_OK)
      FAIL(last_error());
    std::vector<float> all(std::size_t{kLayers} * kHeads * kRatio * tokens * kDim);
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      for (std::uint32_t d = 0; d < gpus_.size(); ++d) part(d, layer, tokens, seed, all);
    }
    if (lehr_group_step_end(handle, nullptr, 0) != LEHR_OK) FAIL(last_error());
    return all;
  }

  lehr_group handle{};

 private:
  void part(std::uint32_t d, std::uint32_t layer, std::uint32_t tokens, std::uint32_t seed,
            std::vector<float>& all) {
    auto info = sized<lehr_group_device_info>();
    REQUIRE(lehr_group_device(handle, d, &info) == LEHR_OK);
    const bool by_layers = split_ == LEHR_SPLIT_LAYERS;
    if (by_layers && (layer < info.first_unit || layer >= info.first_unit + info.units)) return;
    const std::uint32_t first = by_layers ? 0 : info.first_unit,
                        heads = by_layers ? kHeads : info.units;
    Numbers k(gpus_[d], heads, tokens), v(gpus_[d], heads, tokens),
        q(gpus_[d], heads * kRatio, tokens), out(gpus_[d], heads * kRatio, tokens);
    k.fill(seed + layer, first);
    v.fill(seed + 10 + layer, first);
    q.fill(seed + 20 + layer, first * kRatio);
    const lehr_tensor kt = k.tensor(), vt = v.tensor(), qt = q.tensor(), ot = out.tensor();
    auto request = sized<lehr_attend_request>();
    request.layer = layer;
    request.q = &qt;
    request.out = &ot;
    if (lehr_group_step_append(handle, d, layer, &kt, &vt) != LEHR_OK) FAIL(last_error());
    if (lehr_group_step_attend(handle, d, &request) != LEHR_OK) FAIL(last_error());
    out.fetch(static_cast<cudaStream_t>(streams_[d]));
    const std::size_t row = std::size_t{tokens} * kDim;
    float* const to =
        all.data() + (std::size_t{layer} * kHeads * kRatio + std::size_t{first} * kRatio) * row;
    for (std::size_t i = 0; i < out.values().size(); ++i) to[i] = __half2float(out.values()[i]);
  }

  std::int32_t split_;
  std::vector<int> gpus_;
  std::vector<void*> streams_;
};

std::vector<float> life(Group& group, const std::vector<std::uint32_t>& units = {}) {
  std::vector<float> all;
  const auto note = [&](const std::vector<float>& out) {
    all.insert(all.end(), out.begin(), out.end());
  };
  lehr_sequence first{}, fork{};
  REQUIRE(lehr_group_sequence_create(group.handle, nullptr, 1, &first) == LEHR_OK);
  note(group.step(first, 300, 1000));
  REQUIRE(lehr_group_sequence_fork(group.handle, &first, 1, &fork, nullptr) == LEHR_OK);
  for (std::uint32_t i = 0; i < 40; ++i) {
    if (i == 15 && !units.empty()) {
      auto request = sized<lehr_rebalance_request>();
      request.units = units.data();
      request.unit_count = static_cast<std::uint32_t>(units.size());
      auto report = sized<lehr_rebalance_report>();
      if (lehr_group_rebalance(group.handle, &request, &report) != LEHR_OK) FAIL(last_error());
      CHECK(report.moved == 1);
      CHECK(report.copied_bytes > 0);
      CHECK(report.shared_tokens > 0);
    }
    note(group.step(first, 1, 2000 + 50 * i));
    note(group.step(fork, 1, 9000 + 50 * i));
  }
  return all;
}

}  // namespace

TEST_CASE(
    "gpu group: each part on its GPU, the host's outputs, the same bits wherever pages live") {
  Group host(false, LEHR_SPLIT_HEADS, {8000});
  const std::vector<float> expected = life(host);
  for (const std::int32_t split : {LEHR_SPLIT_HEADS, LEHR_SPLIT_LAYERS}) {
    CAPTURE(split);
    Group roomy(true, split, {4000, 4000}), tight(true, split, {48, 4000});
    const std::vector<float> all_in_hbm = life(roomy), some_at_home = life(tight);
    CHECK(all_in_hbm == some_at_home);
    // Heads or layers change device half way: other numbers of heads may be summed in another
    // order.
    Group moved(true, split, {48, 4000});
    const std::vector<float> dealt_anew = life(moved, {3, 1});
    if (split == LEHR_SPLIT_LAYERS) CHECK(dealt_anew == all_in_hbm);
    REQUIRE(dealt_anew.size() == expected.size());
    double off = 0;
    for (std::size_t i = 0; i < expected.size(); ++i)
      off = std::max(off, std::abs(double{dealt_anew[i]} - double{expected[i]}));
    CHECK(off < 4e-3);
    REQUIRE(all_in_hbm.size() == expected.size());
    double worst = 0;
    for (std::size_t i = 0; i < expected.size(); ++i)
      worst = std::max(worst, std::abs(double{all_in_hbm[i]} - double{expected[i]}));
    CHECK(worst < 4e-3);
    std::printf("split %d on %d GPU(s): largest distance to the host's outputs %.2e\n", split,
                std::min(gpus(), static_cast<int>(kDevices)), worst);
  }
}

TEST_CASE("gpu group: what GPUs cannot do is refused by reason") {
  Group group(true, LEHR_SPLIT_HEADS, {400, 400});
  lehr_sequence s{};
  REQUIRE(lehr_group_sequence_create(group.handle, nullptr, 1, &s) == LEHR_OK);
  (void)group.step(s, 20, 1);
  REQUIRE(lehr_group_step_begin(group.handle, &s, nullptr, 1, nullptr) == LEHR_OK);
  Numbers k(0, kHeads, 1);
  const lehr_tensor t = k.tensor();
  CHECK(LEHR_STATUS_CLASS(lehr_group_step_append(group.handle, LEHR_GROUP_WHOLE, 0, &t, &t)) ==
        LEHR_CLASS_UNSUPPORTED);
  REQUIRE(lehr_group_step_abandon(group.handle) == LEHR_OK);
}

int main(int argc, char** argv) {
  if (gpus() == 0) {
    std::printf("no GPU: skipped\n");
    return 77;
  }
  return Catch::Session().run(argc, argv) == 0 ? 0 : 1;
}
