// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "kernels/decode_step.hpp"

namespace lehr::runtime::cuda {

/// What a step asks for in any of its layers.
struct StepKind {
  bool moves = false;     ///< pages move beside attention
  bool installs = false;  ///< attention keeps pages that it reads, or forgets what it kept before

  static constexpr std::size_t kCount = 4;
  std::size_t index() const { return (moves ? 1U : 0U) + (installs ? 2U : 0U); }
};

/// Of lists that a ListWriter finished.
inline StepKind kind_of(std::span<const std::byte> lists) {
  kernels::StepHeader header{};
  std::memcpy(&header, lists.data(), sizeof header);
  StepKind kind;
  for (std::uint32_t layer = 0; layer < header.layers; ++layer) {
    kernels::LayerLists l{};
    std::memcpy(&l, lists.data() + sizeof header + layer * sizeof l, sizeof l);
    kind.moves |= l.moves > 0;
    kind.installs |= l.installs > 0;
  }
  return kind;
}

/// The lists of a step, as kernels/decode_step.hpp lays them out: made layer by layer, handed over
/// as one piece. Keeps its memory from step to step.
class ListWriter {
 public:
  void begin(std::uint32_t step, std::uint32_t layers) {
    header_ = {step, layers, 0, 0};
    bytes_.clear();
    bytes_.resize(align(sizeof(kernels::StepHeader) + layers * sizeof(kernels::LayerLists)));
  }
  template <class T>
  std::uint32_t put(std::span<const T> items) {
    const std::size_t at = bytes_.size();
    bytes_.resize(align(at + items.size_bytes()));
    if (!items.empty()) std::memcpy(bytes_.data() + at, items.data(), items.size_bytes());
    return static_cast<std::uint32_t>(at);
  }
  void lengths(std::span<const std::uint32_t> lengths) { header_.lengths_at = put(lengths); }
  void layer(std::uint32_t layer, const kernels::LayerLists& lists) {
    std::memcpy(bytes_.data() + sizeof(kernels::StepHeader) + layer * sizeof lists, &lists,
                sizeof lists);
  }
  /// Valid until begin().
  std::span<const std::byte> finish() {
    header_.bytes = static_cast<std::uint32_t>(bytes_.size());
    std::memcpy(bytes_.data(), &header_, sizeof header_);
    return bytes_;
  }

 private:
  static std::size_t align(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

  kernels::StepHeader header_{};
  std::vector<std::byte> bytes_;
};

}  // namespace lehr::runtime::cuda
