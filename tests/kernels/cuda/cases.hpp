// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/kernels/cuda/device.hpp"

/// What the cases of the GPU test share, and the cases. Each compares what the device wrote with
/// the reference.
namespace lehr::kernels::test {

inline int failures = 0;
inline bool quick = false;              ///< keep cases small
inline const char* recorded = nullptr;  ///< a file of recorded q, k and v
inline std::string current;             ///< the case that runs

void check(bool good, const std::string& what);

/// What 16-bit outputs may be off by, relative to their norm.
inline double bound(DType type) { return type == DType::kF16 ? 1e-3 : 6e-3; }
std::string described(const StepShape& shape);

/// How many differ; a NaN differs from everything.
std::size_t differing(DType type, const std::vector<std::uint16_t>& got,
                      const std::vector<std::uint16_t>& want);
std::size_t differing(const std::vector<unsigned char>& got,
                      const std::vector<unsigned char>& want);

struct Selected {
  std::vector<std::uint32_t> list, counts;
  std::uint32_t pitch = 0;
};
/// A random ascending selection of about a third of the pages, the tail always in.
Selected random_selection(const Batch& b, std::uint64_t seed);

// attend_cases.cpp
void attend_shapes();
void attend_selected();
void attend_splits();
void attend_long_rings();
void attend_bit_identity();
void attend_odd_contents();
void attend_installs();
void attend_formats();
void attend_recorded();
// conversion_cases.cpp
void quantize_bits();
void widened_by_movers();
// selection_cases.cpp
void sparse_step();
void fused_selection();
void long_selection();
// page_cases.cpp
void append_and_resolve();
void append_converts();
void feedback_agrees();

}  // namespace lehr::kernels::test
