// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "runtime/contents/contents.hpp"
#include "runtime/contents/cpu_attend.hpp"
#include "runtime/contents/page_conversion.hpp"
#include "runtime/contents/step_layers.hpp"
#include "runtime/machines/host.hpp"

namespace lehr::contents {

/// Contents on the host machine: attention on the CPU, done when a call returns.
class HostContents final : public Contents, public runtime::PageSource {
 public:
  static Result<std::unique_ptr<HostContents>> create(const ContentsOptions& options);

  /// Both live as long as this; called once, before anything else.
  void attach(runtime::Runtime& runtime, runtime::HostMachine& machine);

  void created(SequenceId id) override;
  void forked(SequenceId parent, SequenceId child) override;
  void released(SequenceId id) override { sequences_.erase(id); }
  Status suspended(SequenceId) override { return {}; }
  Status resumed(SequenceId) override { return {}; }

  Status begin(std::span<const SequenceId> batch, std::span<const std::uint32_t> tokens,
               void* stream) override;
  Status begin_range(std::span<const RangeTokens> batch, void* stream) override;
  bool in_step() const override { return mode_ != Mode::kIdle; }
  Status append(std::uint32_t layer, const Tensor& k, const Tensor& v) override;
  Status attend(std::uint32_t layer, const AttendCall& call) override;
  Result<runtime::StepReport> end() override;
  Status abandon() override;
  Status truncate(SequenceId id, std::uint64_t tokens) override;
  Status reorder(std::span<const SequenceId> ids, std::span<const std::uint32_t> parents) override;
  Status gather(std::uint32_t layer, std::span<const SequenceId> ids, const Tensor& k,
                const Tensor& v) override;
  Result<ContentsStats> stats() override;
  Result<std::shared_ptr<std::byte>> shared_memory(Bytes bytes) override;
  const PageShape& page() const { return page_; }

  bool fill(PageId page, std::uint32_t version, std::span<std::byte> out) override;
  Status lower(PageId page, std::span<std::byte> contents) override;

 private:
  enum class Mode : std::uint8_t { kIdle, kStep, kChunk };

  /// The partial page of each KV group, [groups][page bytes]; shared between forks until one
  /// writes.
  using Tail = std::vector<std::byte>;
  struct SequenceState {
    std::shared_ptr<Tail> tail;
    std::vector<std::vector<MassCode>> mass;  ///< by group: of each page, when it was read last
    std::vector<std::vector<MassCode>> peak;
  };
  struct Member {  ///< of the batch
    SequenceId id = 0;
    std::uint32_t tokens = 0;
    std::uint64_t before = 0;
    std::shared_ptr<Tail> tail;  ///< as it was, where a roll back may need it
    std::uint32_t skip = 0, queries = 0;
    std::int64_t first = 0;  ///< where the first query's own token lies, or would
  };

  explicit HostContents(const ContentsOptions& options);
  std::byte* tail_of(SequenceId id, std::uint32_t group);
  Status write_rows(std::uint32_t layer, std::size_t member, std::uint32_t head, const Tensor& k,
                    const Tensor& v);
  Status page_filled(PageId page, std::byte* contents);
  Status open_step(void* stream);
  Status grow();
  Status bring(PageId page);
  Status close_layer();
  static void expect_evenly(std::span<const std::uint32_t> pages, std::span<MassCode> mass,
                            std::span<MassCode> peak);
  Status run_layer(const AttendCall* call);
  void choose(const AttendCall& call, std::size_t member, std::uint32_t head);
  Result<const std::byte*> locate(PageId page, std::size_t scratch_at, bool count);
  Result<const std::byte*> locate_plain(PageId page);
  Status attend_member(const AttendCall& call, std::size_t member, std::uint32_t head);
  Status gather_rows(std::uint32_t layer, SequenceId id, std::uint32_t head, std::size_t offset,
                     std::size_t index, const Tensor& out);
  void no_answer(const AttendCall& call, std::size_t member, std::uint32_t head,
                 std::uint32_t queries) const;
  void note_mass(const AttendCall& call, std::size_t member, std::uint32_t head,
                 std::span<const std::uint32_t> pages);
  std::optional<PageConversion> conversion(std::optional<DType> to) const;
  void roll_back(const Member& member);

  KvGeometry geometry_;
  PageShape page_;
  std::optional<PageConversion> rounding_;
  std::optional<PageConversion> lowering_;  ///< none: pages keep their precision
  runtime::Runtime* runtime_ = nullptr;
  runtime::HostMachine* machine_ = nullptr;
  TierId home_ = 0;
  std::unordered_map<SequenceId, SequenceState> sequences_;
  std::vector<float> boxes_;  ///< [pages of the table][2][dim]

  Mode mode_ = Mode::kIdle;
  std::vector<Member> batch_;
  StepLayers layers_;
  std::unordered_map<PageId, std::vector<runtime::PageOp>> deferred_;
  std::unordered_map<PageId, const std::byte*> writing_;  ///< tails that the layer fills
  ContentsStats stats_;
  ContentsStats before_;  ///< the step

  // Working memory.
  AttendScratch scratch_;
  std::vector<float> q_;
  std::vector<float> out_;
  std::vector<float> scores_;
  std::vector<std::vector<std::uint32_t>> chosen_;  ///< [batch][kv_heads]
  std::vector<PageRef> refs_;
  std::vector<SoftmaxPair> pairs_;
  std::vector<SoftmaxPair> totals_;
  std::vector<std::byte> below_;
  std::vector<float> wide_;       ///< lowered pages as floats
  std::vector<std::byte> plain_;  ///< one as elements
};

}  // namespace lehr::contents
