// SPDX-License-Identifier: Apache-2.0
// Stands in for libFuzzer where it is not available: runs the entry on each file of the folders
// given, and on simple damage to it (every truncation of small files, single changed bytes), so
// that a corpus is worth something in every build.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "kernels/base/rng.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr std::size_t kTruncations = 1024;
constexpr int kChanges = 512;

/// `input` ends where its memory does, so that a sanitizer sees a read past the end.
void run(std::vector<std::uint8_t> input) {
  input.shrink_to_fit();
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

void run_damaged(const std::vector<std::uint8_t>& input) {
  const std::size_t stride = input.size() / kTruncations + 1;
  for (std::size_t length = 0; length < input.size(); length += stride) {
    run({input.begin(), input.begin() + static_cast<std::ptrdiff_t>(length)});
  }
  if (input.empty()) return;
  lehr::Rng rng(input.size());
  for (int i = 0; i < kChanges; ++i) {
    std::vector<std::uint8_t> changed(input);
    changed[rng.next() % changed.size()] = static_cast<std::uint8_t>(rng.below(256));
    run(changed);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t files = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (!entry.is_regular_file()) continue;
      std::ifstream in(entry.path(), std::ios::binary);
      const std::vector<std::uint8_t> input{std::istreambuf_iterator<char>(in),
                                            std::istreambuf_iterator<char>()};
      run(input);
      run_damaged(input);
      ++files;
    }
  }
  std::printf("%zu corpus files\n", files);
  return files == 0 ? 1 : 0;  // an empty corpus would pass without testing anything
}
