// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels against the reference. Exits 0 when all agree, 1 on any difference, 77 without a
// device. Arguments: words that a case's name must contain; `--quick` keeps cases small (for the
// sanitizers).

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "kernels/quantize.hpp"
#include "tests/kernels/cuda/cases.hpp"

namespace lehr::kernels::test {

void check(bool good, const std::string& what) {
  if (good) return;
  ++failures;
  if (failures <= 60) std::printf("FAILED %s: %s\n", current.c_str(), what.c_str());
}

std::string described(const StepShape& s) {
  return std::string(name(s.dtype)) + " dim " + std::to_string(s.head_dim) + " page " +
         std::to_string(s.page_tokens) + " heads " + std::to_string(s.q_heads) + "/" +
         std::to_string(s.kv_heads) + " q_len " + std::to_string(s.q_len);
}

std::size_t differing(DType type, const std::vector<std::uint16_t>& got,
                      const std::vector<std::uint16_t>& want) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < want.size(); ++i)
    n += load_16(type, got[i]) == load_16(type, want[i]) ? 0 : 1;
  return n;
}

std::size_t differing(const std::vector<unsigned char>& got,
                      const std::vector<unsigned char>& want) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < got.size(); ++i) n += got[i] != want[i] ? 1 : 0;
  return n;
}

Selected random_selection(const Batch& b, std::uint64_t seed) {
  Rng rng(seed);
  Selected s;
  s.pitch = b.shape.max_pages;
  s.list.assign(b.shape.groups() * s.pitch, 0xFFFFFFFF);
  s.counts.assign(b.shape.groups(), 0);
  for (std::size_t g = 0; g < b.shape.groups(); ++g) {
    const std::uint32_t pages = b.shape.pages_for(b.lengths[g / b.shape.kv_heads]);
    for (std::uint32_t p = 0; p < pages; ++p) {
      if (p + 1 == pages || rng.below(3) == 0) s.list[g * s.pitch + s.counts[g]++] = p;
    }
  }
  return s;
}

namespace {

void refusals() {
  Batch b(shape_of(8, 2, 128, 16, 8), {100}, 3);
  DeviceBatch d(b);
  Workspace w(b.shape);
  const auto refused = [&](AttendTuning t, void* workspace, std::size_t bytes,
                           std::uint32_t formats) {
    AttendParams p = d.params();
    p.formats = formats;
    return !attend_cuda(b.shape, p, t, workspace, bytes, nullptr);
  };
  check(refused({}, nullptr, w.memory.size(), 0), "a null workspace");
  check(refused({}, w.memory.get() + 4, w.memory.size(), 0), "a misaligned workspace");
  check(refused({}, w.memory.get(), 16, 0), "a workspace too small");
  check(refused({15, 1}, w.memory.get(), w.memory.size(), 0),
        "more stages than shared memory holds");
  check(refused({1, 1}, w.memory.get(), w.memory.size(), 0), "a ring of one stage");
  check(refused({}, w.memory.get(), w.memory.size(), 2), "bf16 pages for fp16 queries");
  QuantizeParams none;
  check(!convert_pages_cuda(b.shape, none, 0, nullptr), "a conversion by no CTAs");
  none.count = 1;
  check(!convert_pages_cuda(b.shape, none, 1, nullptr), "a conversion of null lists");
  check(cudaGetLastError() == cudaSuccess, "refusals leave no CUDA error behind");
}

}  // namespace

}  // namespace lehr::kernels::test

using namespace lehr::kernels::test;

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no CUDA device: skipped\n");
    return 77;
  }
  std::vector<std::string_view> words;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--quick") {
      quick = true;
    } else if (std::string_view(argv[i]) == "--recorded" && i + 1 < argc) {
      recorded = argv[++i];
    } else {
      words.emplace_back(argv[i]);
    }
  }
  const std::pair<const char*, void (*)()> cases[] = {
      {"attend shapes", attend_shapes},
      {"attend selected", attend_selected},
      {"attend splits", attend_splits},
      {"attend long rings", attend_long_rings},
      {"attend bit identity", attend_bit_identity},
      {"attend odd contents", attend_odd_contents},
      {"attend installs", attend_installs},
      {"attend formats", attend_formats},
      {"attend recorded", attend_recorded},
      {"quantize", quantize_bits},
      {"quantize back", widened_by_movers},
      {"sparse step", sparse_step},
      {"fused selection", fused_selection},
      {"long selection", long_selection},
      {"append and resolve", append_and_resolve},
      {"append and convert", append_converts},
      {"feedback", feedback_agrees},
      {"refusals", refusals},
  };
  for (const auto& [case_name, run] : cases) {
    bool wanted = words.empty();
    for (const auto word : words)
      wanted = wanted || std::string_view(case_name).find(word) != std::string_view::npos;
    if (!wanted) continue;
    const int before = failures;
    current = case_name;
    run();
    must(cudaDeviceSynchronize(), case_name);
    std::printf("%-22s %s\n", case_name, failures == before ? "ok" : "FAILED");
    std::fflush(stdout);
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
