// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "kernels/attend.hpp"
#include "kernels/base/half.hpp"
#include "kernels/base/rng.hpp"

namespace lehr::kernels::test {

inline float gaussian(Rng& rng) {
  const double u = rng.uniform() + 0x1p-60;
  return static_cast<float>(std::sqrt(-2 * std::log(u)) *
                            std::cos(6.283185307179586 * rng.uniform()));
}

struct FreeAligned {
  void operator()(unsigned char* p) const { ::operator delete[](p, std::align_val_t{128}); }
};

/// The page that an entry names.
inline unsigned char* page_memory(PageEntry entry) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): entries are numbers, shared with the device.
  return reinterpret_cast<unsigned char*>(static_cast<std::uintptr_t>(entry_address(entry)));
}

/// A ragged batch of one layer in host memory: pages at shuffled places, 16-bit, poisoned past the
/// end of each sequence with NaN so that a kernel which reads too far is seen.
struct Batch {
  StepShape shape;
  std::vector<std::uint32_t> lengths;
  std::vector<PageEntry> table;
  std::vector<std::uint16_t> q, out;
  std::unique_ptr<unsigned char[], FreeAligned> memory;
  std::size_t page_bytes = 0;

  Batch(StepShape s, std::vector<std::uint32_t> tokens, std::uint64_t seed)
      : shape(s), lengths(std::move(tokens)) {
    Rng rng(seed);
    shape.sequences = static_cast<std::uint32_t>(lengths.size());
    page_bytes = slot_bytes(shape.dtype, shape.page_tokens, shape.head_dim);
    const std::size_t slots = shape.groups() * shape.max_pages;
    memory.reset(new (std::align_val_t{128}) unsigned char[slots * page_bytes + 128]);
    std::vector<std::size_t> order(slots);
    for (std::size_t i = 0; i < slots; ++i) order[i] = i;
    for (std::size_t i = slots; i > 1; --i) {
      std::swap(order[i - 1], order[rng.below(static_cast<std::uint32_t>(i))]);
    }
    const std::uint16_t nan = store_16(shape.dtype, std::nanf(""));
    auto* halves = reinterpret_cast<std::uint16_t*>(memory.get());
    for (std::size_t i = 0; i < slots * page_bytes / 2; ++i) halves[i] = nan;
    table.assign(slots, kAbsentPage);
    for (std::size_t group = 0; group < shape.groups(); ++group) {
      const std::uint32_t length = lengths[group / shape.kv_heads];
      for (std::uint32_t page = 0; page < shape.pages_for(length); ++page) {
        const std::size_t at = group * shape.max_pages + page;
        unsigned char* data = memory.get() + order[at] * page_bytes;
        table[at] = make_entry(reinterpret_cast<std::uintptr_t>(data), false, shape.dtype);
        for (std::uint32_t t = 0; t < shape.page_tokens; ++t) {
          if (page * shape.page_tokens + t >= length) break;
          for (std::uint32_t c = 0; c < shape.head_dim; ++c) {
            set(at, 0, t, c, gaussian(rng));
            set(at, 1, t, c, gaussian(rng));
          }
        }
      }
    }
    q.resize(std::size_t{shape.sequences} * shape.q_len * shape.q_heads * shape.head_dim);
    for (auto& x : q) x = store_16(shape.dtype, 2 * gaussian(rng));
    out.assign(q.size(), nan);
  }

  std::uint16_t* element(std::size_t at, int what, std::uint32_t token, std::uint32_t channel) {
    auto* data = reinterpret_cast<std::uint16_t*>(page_memory(table[at]));
    return data + (static_cast<std::uint32_t>(what) * shape.page_tokens + token) * shape.head_dim +
           channel;
  }
  void set(std::size_t at, int what, std::uint32_t token, std::uint32_t channel, float x) {
    *element(at, what, token, channel) = store_16(shape.dtype, x);
  }
  float get(std::size_t at, int what, std::uint32_t token, std::uint32_t channel) {
    return load_16(shape.dtype, *element(at, what, token, channel));
  }
  AttendParams params() {
    AttendParams p;
    p.q = q.data();
    p.out = out.data();
    p.table = table.data();
    p.lengths = lengths.data();
    return p;
  }
  float output(std::uint32_t sequence, std::uint32_t query, std::uint32_t head,
               std::uint32_t channel) const {
    return load_16(shape.dtype,
                   out[((std::size_t{sequence} * shape.q_len + query) * shape.q_heads + head) *
                           shape.head_dim +
                       channel]);
  }
};

inline StepShape shape_of(std::uint32_t q_heads, std::uint32_t kv_heads, std::uint32_t head_dim,
                          std::uint32_t page_tokens, std::uint32_t max_pages,
                          DType dtype = DType::kF16, std::uint32_t q_len = 1) {
  StepShape s;
  s.q_heads = q_heads;
  s.kv_heads = kv_heads;
  s.head_dim = head_dim;
  s.page_tokens = page_tokens;
  s.max_pages = max_pages;
  s.dtype = dtype;
  s.q_len = q_len;
  return s;
}

}  // namespace lehr::kernels::test
