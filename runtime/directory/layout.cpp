// SPDX-License-Identifier: Apache-2.0
#include "runtime/directory/layout.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <xxhash.h>

namespace lehr::directory {

namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 40;
constexpr std::uint64_t kMostRows = std::uint64_t{1} << 20;

std::uint64_t row_bytes(const Layout& l) {
  return std::uint64_t{l.head_dim} * l.element_bytes * (l.fused ? 2 : 1);
}

std::uint64_t rows(const Layout& l) {
  return std::uint64_t{l.layers} * l.kv_heads * l.tokens * (l.fused ? 1 : 2);
}

// Visits each row of a block in storage order.
template <class Visit>
void each_row(const Layout& l, Visit visit) {
  for (std::uint32_t layer = 0; layer < l.layers; ++layer) {
    for (int part = 0; part < (l.fused ? 1 : 2); ++part) {
      for (std::uint32_t head = 0; head < l.kv_heads; ++head) {
        for (std::uint32_t token = 0; token < l.tokens; ++token) {
          visit((part == 0 ? l.k_offset : l.v_offset) + layer * l.layer_stride +
                head * l.head_stride + token * l.token_stride);
        }
      }
    }
  }
}

}  // namespace

Status check_layout(const Layout& l) {
  if (l.opaque_bytes > 0) {
    if (l.opaque_bytes > kMostBytes) return invalid("layout: opaque_bytes is more than 2^40");
    if (l.block_stride != 0 && l.block_stride < l.opaque_bytes) {
      return invalid(fmt::format("layout: block_stride {} is less than opaque_bytes {}",
                                 l.block_stride, l.opaque_bytes));
    }
    return {};
  }
  if (l.element_bytes == 0 || l.element_bytes > 16) {
    return invalid(fmt::format("layout: element_bytes {} is not in 1 to 16", l.element_bytes));
  }
  const std::pair<const char*, std::uint32_t> counts[] = {{"layers", l.layers},
                                                          {"kv_heads", l.kv_heads},
                                                          {"tokens", l.tokens},
                                                          {"head_dim", l.head_dim}};
  std::uint64_t product = 1;
  for (const auto& [name, value] : counts) {
    if (value == 0 || value > (1U << 20)) {
      return invalid(fmt::format("layout: {} {} is not in 1 to 2^20", name, value));
    }
    product *= value;  // at most 2^80 in four steps: checked before it can wrap
    if (product > kMostBytes) return invalid("layout: a block of more than 2^40 elements");
  }
  if (rows(l) > kMostRows) {
    return invalid(fmt::format("layout: {} rows a block, at most {}", rows(l), kMostRows));
  }
  const std::pair<const char*, std::uint64_t> strides[] = {
      {"block_stride", l.block_stride}, {"layer_stride", l.layer_stride},
      {"head_stride", l.head_stride},   {"token_stride", l.token_stride},
      {"k_offset", l.k_offset},         {"v_offset", l.v_offset}};
  for (const auto& [name, value] : strides) {
    if (value > kMostBytes)
      return invalid(fmt::format("layout: {} {} is more than 2^40", name, value));
  }
  if (l.token_stride < row_bytes(l) + l.padding) {
    return invalid(
        fmt::format("layout: token_stride {} is less than a row of {} bytes and {} of padding",
                    l.token_stride, row_bytes(l), l.padding));
  }
  if (l.fused && l.v_offset != 0 && l.v_offset != l.k_offset + row_bytes(l) / 2) {
    return invalid("layout: a fused V lies right after its K; v_offset 0 says so");
  }
  std::vector<std::uint64_t> starts;
  starts.reserve(rows(l));
  each_row(l, [&](std::uint64_t offset) { starts.push_back(offset); });
  std::sort(starts.begin(), starts.end());
  for (std::size_t i = 1; i < starts.size(); ++i) {
    if (starts[i] - starts[i - 1] < row_bytes(l)) {
      return invalid(fmt::format("layout: rows at {} and {} overlap", starts[i - 1], starts[i]));
    }
  }
  if (l.block_stride == 0) return invalid("layout: block_stride 0");
  return {};
}

Bytes contents_bytes(const Layout& l) {
  return l.opaque_bytes > 0 ? l.opaque_bytes : rows(l) * row_bytes(l);
}

std::uint64_t span_bytes(const Layout& l) {
  if (l.opaque_bytes > 0) return l.opaque_bytes;
  std::uint64_t end = 0;
  each_row(l, [&](std::uint64_t offset) { end = std::max(end, offset + row_bytes(l)); });
  return end;
}

std::vector<Run> block_runs(const Layout& l) {
  if (l.opaque_bytes > 0) return {{0, l.opaque_bytes}};
  std::vector<Run> runs;
  each_row(l, [&](std::uint64_t offset) {
    if (!runs.empty() && runs.back().offset + runs.back().bytes == offset) {
      runs.back().bytes += row_bytes(l);
    } else {
      runs.push_back({offset, row_bytes(l)});
    }
  });
  return runs;
}

LayoutDigest layout_digest(const Layout& l) {
  std::uint64_t fields[14] = {l.opaque_bytes};
  if (l.opaque_bytes == 0) {
    const std::uint64_t structured[] = {0,
                                        l.dtype,
                                        l.element_bytes,
                                        l.layers,
                                        l.kv_heads,
                                        l.tokens,
                                        l.head_dim,
                                        l.fused ? 1U : 0U,
                                        l.layer_stride,
                                        l.head_stride,
                                        l.token_stride,
                                        l.k_offset,
                                        l.fused ? 0 : l.v_offset,
                                        l.padding};
    std::copy(std::begin(structured), std::end(structured), fields);
  }
  const XXH128_hash_t hash = XXH3_128bits(fields, sizeof(fields));
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  LayoutDigest digest;
  std::copy(std::begin(canonical.digest), std::end(canonical.digest), digest.begin());
  return digest;
}

}  // namespace lehr::directory
