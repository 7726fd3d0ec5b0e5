// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/geometry.hpp"
#include "kernels/base/ids.hpp"
#include "kernels/base/result.hpp"
#include "runtime/formats/file.hpp"
#include "runtime/formats/safetensors.hpp"

namespace lehr::formats {

/// Decompressed size that a compressed trace may have unless the caller says otherwise.
inline constexpr Bytes kDefaultTraceLimit = 4 * kGiB;

/// The metadata of an attention trace (DESIGN §6), typed.
struct AttentionMeta {
  std::string model;
  std::string workload;
  std::uint32_t page_tokens = 0;
  std::uint32_t q_heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t kv_bytes_per_element = 0;
  std::uint32_t model_layers = 0;        ///< layers of the model
  std::vector<std::uint32_t> layer_ids;  ///< those that are recorded, ascending
  std::uint32_t prompt_tokens = 0;
  std::uint32_t steps = 0;
  Metadata other;  ///< keys that Lehr does not know, in file order

  std::uint32_t layers() const { return static_cast<std::uint32_t>(layer_ids.size()); }
  std::uint32_t tokens() const { return prompt_tokens + steps; }
  std::uint32_t pages() const { return (tokens() + page_tokens - 1) / page_tokens; }
  /// Pages of one layer and KV head at `step`, whose context is prompt + step + 1 tokens.
  std::uint32_t pages_at(std::uint32_t step) const {
    return (prompt_tokens + step + page_tokens) / page_tokens;
  }
  KvGeometry geometry() const {
    return {layers(), kv_heads, q_heads, head_dim, page_tokens, kv_bytes_per_element};
  }
  /// Are the counts possible and consistent? The error names the key.
  Status validate() const;
};

/// A whole trace as borrowed arrays; what is not recorded is empty.
struct AttentionParts {
  AttentionMeta meta;
  std::span<const MassCode> mass;        ///< [T,L,H,P]
  std::span<const MassCode> peak;        ///< [T,L,H,P]
  std::span<const std::int32_t> tokens;  ///< [prompt+T]
  std::span<const std::uint16_t> q;      ///< F16 bits [T,L,Hq,D]
  std::span<const std::uint16_t> k;      ///< F16 bits [L,H,prompt+T,D]
  std::span<const std::uint16_t> v;      ///< F16 bits [L,H,prompt+T,D]
  std::vector<Tensor> other;             ///< tensors that Lehr does not know
};

/// A recorded decode, checked when opened and immutable since. Movable; the spans stay valid across
/// moves and die with the object. Any number of threads may read it.
class AttentionTrace {
 public:
  /// Plain or zstd-compressed (told by content). Plain files are mapped.
  static Result<AttentionTrace> open(const std::filesystem::path& path,
                                     Bytes limit = kDefaultTraceLimit);
  /// From a file's contents that were loaded already; `name` leads the error lines.
  static Result<AttentionTrace> from(FileContents contents, std::string_view name);
  /// From bytes that the caller keeps alive and 8-byte aligned.
  static Result<AttentionTrace> parse(std::span<const std::byte> bytes, std::string_view name);

  const AttentionMeta& meta() const { return parts_.meta; }
  const AttentionParts& parts() const { return parts_; }
  KvGeometry geometry() const { return meta().geometry(); }
  std::uint32_t steps() const { return meta().steps; }
  std::uint32_t layers() const { return meta().layers(); }
  std::uint32_t kv_heads() const { return meta().kv_heads; }
  std::uint32_t pages() const { return pages_; }
  std::uint32_t pages_at(std::uint32_t step) const { return meta().pages_at(step); }

  /// P codes; those from pages_at(step) on are kNoMass. Indices are not checked.
  const MassCode* mass_row(std::uint32_t step, std::uint32_t layer, std::uint32_t head) const {
    return parts_.mass.data() + row(step, layer, head);
  }
  /// The same for `peak`, null where it is not recorded.
  const MassCode* peak_row(std::uint32_t step, std::uint32_t layer, std::uint32_t head) const {
    return parts_.peak.empty() ? nullptr : parts_.peak.data() + row(step, layer, head);
  }
  bool has_peak() const { return !parts_.peak.empty(); }

  /// Size on disk, and whether it is compressed; 0 and false for a trace made by parse().
  Bytes file_bytes() const { return contents_.file_bytes(); }
  bool compressed() const { return contents_.compressed(); }

 private:
  std::size_t row(std::uint32_t step, std::uint32_t layer, std::uint32_t head) const {
    const std::size_t index =
        (std::size_t{step} * meta().layer_ids.size() + layer) * meta().kv_heads + head;
    return index * pages_;
  }

  FileContents contents_;
  AttentionParts parts_;
  std::uint32_t pages_ = 0;
};

/// Writes a whole trace, compressed when the name ends in ".zst"; the file appears whole or not at
/// all. Refuses parts that a reader would refuse. What open() gave comes out bit-identical.
Status write_attention_trace(const std::filesystem::path& path, const AttentionParts& parts);

/// Records a trace step by step in bounded memory. Nothing is visible under `path` before close():
/// a crash leaves no file, an earlier one stays as it was. Not thread-safe.
class AttentionTraceWriter {
 public:
  /// `meta.steps` is ignored: it becomes the number of step() calls.
  static Result<AttentionTraceWriter> open(const std::filesystem::path& path, AttentionMeta meta,
                                           bool with_peak);

  AttentionTraceWriter(AttentionTraceWriter&&) noexcept;
  AttentionTraceWriter& operator=(AttentionTraceWriter&&) noexcept;
  ~AttentionTraceWriter();

  /// Codes [L,H,pages_at(step)] of the next step; `peak` likewise, empty exactly when it is not
  /// recorded. After a failure (a full disk) the writer takes no more.
  Status step(std::span<const MassCode> mass, std::span<const MassCode> peak);
  /// Optional: all prompt+T token ids, before close().
  Status set_tokens(std::vector<std::int32_t> tokens);
  /// Refuses a trace without steps.
  Status close();

  std::uint32_t steps() const;
  std::uint32_t next_pages() const;  ///< pages_at(step) of the step that comes next

 private:
  struct State;
  explicit AttentionTraceWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lehr::formats
