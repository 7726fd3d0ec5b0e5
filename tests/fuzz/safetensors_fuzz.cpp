// SPDX-License-Identifier: Apache-2.0
#include "runtime/formats/safetensors.hpp"
#include "tests/fuzz/fuzz_input.hpp"

/// What is accepted can be written, and reads the same.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lehr;
  const fuzz::AlignedInput input(data, size);
  const auto file = formats::parse_safetensors(input.bytes(), "fuzz");
  if (!file) {
    fuzz::require(!file.error().what.empty(), "an error without a text");
    return 0;
  }
  std::size_t total = 0;
  for (const auto& tensor : (*file).tensors) {
    for (const std::byte b : tensor.data)
      total += static_cast<std::size_t>(b);  // readable to the end
    fuzz::require(*formats::tensor_bytes(tensor) == tensor.data.size(), "size and shape disagree");
  }
  const auto header = formats::safetensors_header((*file).metadata, (*file).tensors);
  if (!header) return 0;  // another order of tensors may break alignment
  std::string copy = *header;
  for (const auto& tensor : (*file).tensors) {
    copy.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  }
  const fuzz::AlignedInput again(reinterpret_cast<const std::uint8_t*>(copy.data()), copy.size());
  const auto second = formats::parse_safetensors(again.bytes(), "again");
  fuzz::require(second.has_value(), "what was written cannot be read");
  fuzz::require((*second).metadata == (*file).metadata, "metadata changed");
  fuzz::require((*second).tensors.size() == (*file).tensors.size(), "tensors changed");
  return total == SIZE_MAX ? 1 : 0;
}
