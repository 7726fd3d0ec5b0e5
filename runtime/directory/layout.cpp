// SPDX-License-Identifier: Apache-2.0
#include "runtime/directory/layout.hpp"

#include <algorithm>
#include <span>

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

// One axis of rows, for loops that go in the order of addresses.
struct Axis {
  std::uint32_t count = 1;
  std::uint64_t stride = 0;
};

// Heads and tokens of one layer's K or V: the one whose neighbours lie closer together is inner.
std::pair<Axis, Axis> outer_and_inner(const Layout& l) {
  const Axis heads{l.kv_heads, l.head_stride}, tokens{l.tokens, l.token_stride};
  const bool heads_inner = l.kv_heads > 1 && l.head_stride < l.token_stride;
  return heads_inner ? std::pair(tokens, heads) : std::pair(heads, tokens);
}

// Visits each row of a block in storage order.
template <class Visit>
void each_row(const Layout& l, Visit visit) {
  const auto [outer, inner] = outer_and_inner(l);
  for (std::uint32_t layer = 0; layer < l.layers; ++layer) {
    for (int part = 0; part < (l.fused ? 1 : 2); ++part) {
      for (std::uint32_t o = 0; o < outer.count; ++o) {
        for (std::uint32_t i = 0; i < inner.count; ++i) {
          visit((part == 0 ? l.k_offset : l.v_offset) + layer * l.layer_stride + o * outer.stride +
                i * inner.stride);
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

namespace {

Status check_grain(const Layout& l, std::uint32_t grain) {
  const std::pair<const char*, std::uint64_t> opaque[] = {{"opaque_bytes", l.opaque_bytes}};
  const std::pair<const char*, std::uint64_t> strided[] = {
      {"a row", row_bytes(l)},          {"layer_stride", l.layers > 1 ? l.layer_stride : 0},
      {"token_stride", l.token_stride}, {"head_stride", l.kv_heads > 1 ? l.head_stride : 0},
      {"k_offset", l.k_offset},         {"v_offset", l.fused ? 0 : l.v_offset}};
  const auto all = l.opaque_bytes > 0
                       ? std::span<const std::pair<const char*, std::uint64_t>>(opaque)
                       : std::span(strided);
  for (const auto& [name, value] : all) {
    if (value % grain != 0) {
      return invalid(fmt::format("layout: {} of {} bytes: in a device's memory a multiple of {}",
                                 name, value, grain));
    }
  }
  return {};
}

}  // namespace

Result<BlockParts> block_parts(const Layout& l, std::uint32_t most_pieces, std::uint32_t grain) {
  LEHR_TRY(check_grain(l, grain));
  BlockParts parts;
  constexpr std::uint64_t kMostPiece = 0xFFFFFFF0U;
  if (l.opaque_bytes > 0) {
    if (l.opaque_bytes > kMostPiece) return invalid("layout: an opaque block of 4 GiB or more");
    parts.piece_bytes = static_cast<std::uint32_t>(l.opaque_bytes);
    parts.pieces = parts.in_block = {0};
    return parts;
  }
  // From the inside: what follows without a gap becomes one piece, ...
  const auto [outer, inner] = outer_and_inner(l);
  Axis axes[] = {inner, outer, {l.fused ? 1U : 2U, l.v_offset - l.k_offset}};
  std::uint64_t piece = row_bytes(l);
  std::size_t a = 0;
  for (; a < 3 && (axes[a].count == 1 || axes[a].stride == piece); ++a) piece *= axes[a].count;
  if (piece > kMostPiece) return invalid("layout: pieces of 4 GiB or more");
  // ... then as many as fit are pieces of a part, and the rest are parts.
  std::vector<std::uint64_t> pieces{0};
  const auto spread = [](std::vector<std::uint64_t>& of, const Axis& axis) {
    const std::vector<std::uint64_t> once = of;
    of.clear();
    for (std::uint32_t i = 0; i < axis.count; ++i) {
      for (const std::uint64_t offset : once) of.push_back(offset + i * axis.stride);
    }
  };
  for (; a < 3 && pieces.size() * axes[a].count <= most_pieces; ++a) spread(pieces, axes[a]);
  std::vector<std::uint64_t> in_block{l.k_offset};
  for (; a < 3; ++a) spread(in_block, axes[a]);
  spread(in_block, {l.layers, l.layer_stride});
  parts.layers = l.layers;
  parts.piece_bytes = static_cast<std::uint32_t>(piece);
  parts.pieces = std::move(pieces);
  parts.in_block = std::move(in_block);
  return parts;
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
