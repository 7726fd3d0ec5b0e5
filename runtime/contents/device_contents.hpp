// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/contents/contents.hpp"
#include "runtime/contents/device_rows.hpp"
#include "runtime/contents/file_below.hpp"
#include "runtime/contents/kv_device.hpp"
#include "runtime/contents/staging.hpp"
#include "runtime/contents/step_layers.hpp"

namespace lehr::contents {

struct DeviceContentsOptions {
  ContentsOptions contents;  ///< f16 or bf16, no rounding
  std::vector<std::uint32_t> tier_pages;
  TierId home = 0;
  TierId below = 0;             ///< a file below it; 0: none
  std::string nvme_directory;   ///< of that file, which vanishes with the process; empty: $TMPDIR
  transfer::FaultPlan faults;   ///< of its transfers
  std::uint32_t sequences = 0;  ///< of a batch, at most; with `tokens`: tables never move, so that
                                ///< steps may be captured. 0: they grow
  std::uint64_t tokens = 0;     ///< of a sequence, at most
  std::uint64_t plan_pages = 1U << 14;  ///< selected pages that the policy is told of a step
};

/// Contents on a device with its own memory and a stream of the caller's: calls enqueue.
///
/// Attention reads each page where it lies when its step begins, HBM and home tier alike. The step
/// loop decides at the beginning of a step from what the step before selected; copies to HBM run
/// beside the step and are read from the next one on. So nothing waits for the host between a
/// layer's queries and its attention, and a step's append() and attend() may be captured once and
/// replayed: then begin() and end() alone are called, with the graph's launch between. Of a step's
/// selected pages the policy is told `plan_pages`, a layer of a sequence at a time, in turn.
///
/// Where a file is below the home tier, no page of a batch's sequences lies there only: begin() and
/// what else reads a sequence brings its pages up, others' go down for them, and the call waits for
/// that and for what was enqueued before. So it is for sequences that wait their turn.
///
/// The partial page of each sequence lies in memory of its own, beside the tiers' slots, and leaves
/// the device when the sequence is suspended.
class DeviceContents final : public Contents {
 public:
  /// kUnsupported where the kernels do not offer the geometry, or pages would live elsewhere.
  static Result<std::unique_ptr<DeviceContents>> create(const DeviceContentsOptions& options,
                                                        std::unique_ptr<KvDevice> device);
  ~DeviceContents() override;

  /// The step loop's machine: writes down what is to be moved. Belongs to the step loop, which this
  /// must outlive.
  std::unique_ptr<runtime::Machine> make_machine();
  /// Once, before anything else.
  void attach(runtime::Runtime& runtime);

  void created(SequenceId id) override;
  void forked(SequenceId parent, SequenceId child) override;
  void released(SequenceId id) override;
  Status suspended(SequenceId id) override;
  Status resumed(SequenceId id) override;
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
  /// kCorrupt if attention ever met a page that was nowhere.
  Result<ContentsStats> stats() override;
  Result<std::shared_ptr<std::byte>> shared_memory(Bytes bytes) override;

  std::string describe() const { return device_->describe(); }

 private:
  enum class Mode : std::uint8_t { kIdle, kStep, kChunk };

  /// Partial pages of all groups of a sequence, or of several after a fork.
  struct Tail;
  /// What the last step said of a sequence, by group.
  struct Said {
    std::uint64_t told = 0;            ///< which feedback told it last
    std::vector<std::uint32_t> pages;  ///< that it selected
    std::vector<MassCode> mass, peak;  ///< of each page, when it was read last
  };
  struct SequenceState {
    std::uint64_t stamp = 0;  ///< names it for ever
    std::shared_ptr<Tail> tail;
    std::vector<Said> said;
  };
  struct Member {  ///< of the batch
    SequenceId id = 0;
    std::uint32_t tokens = 0;
    std::uint64_t before = 0;
    std::shared_ptr<Tail> tail;  ///< as it was
  };
  /// A page on its way to a slot: it counts only if nobody took the slot after it, which the layers
  /// of one step may do.
  struct Install {
    PageId page;
    SlotId slot;
    std::uint32_t generation;
    std::uint64_t from;
  };
  /// What a step read, on its way to the host.
  struct Feedback {
    std::vector<SequenceId> batch;
    std::vector<std::uint64_t> stamps;
    std::vector<std::uint32_t> parts;  ///< layer * batch + place in the batch
    std::uint32_t pitch = 0;           ///< pages from group to group
    Mark mark = 0;
    bool sparse = false;
  };
  class Recorder;

  DeviceContents(const DeviceContentsOptions& options, std::unique_ptr<KvDevice> device);

  // Steps (device_contents.cpp).
  Status make_memory();
  Status keep_up(std::span<const SequenceId> sequences);
  Status move_below();
  Status drain_lanes();
  Result<std::shared_ptr<Tail>> new_tail();
  Status own_tail(SequenceState& state, bool keep);
  Status fit(std::span<const Member> batch);
  Status make_tables(std::uint32_t rows, std::uint32_t pages);
  void arrive();
  std::vector<runtime::GroupSelection> told_groups(std::uint32_t layer,
                                                   std::span<const std::uint32_t> all);
  Status run_layers();
  Status grow();
  std::uint64_t tail_of(PageId page) const;
  void note_fill(const runtime::PageOp& op, bool chunk);
  void note_arrival(const runtime::PageOp& op);
  void note_write_back(const runtime::PageOp& op);
  void note_ops(bool chunk);
  Status send_tables();
  Status send_chunk();
  Status send_moves();
  Status finish_moves();
  std::vector<kernels::PagePair> still_wanted(std::span<const Install> moves) const;
  Status move(std::span<const kernels::PagePair> pairs, Lane lane);
  Status roll_back(const Member& member);
  kernels::StepShape shape(std::uint32_t sequences, std::uint32_t q_len) const;
  std::uint64_t address_of_read(SequenceId id, PageId page, std::size_t place) const;

  // What is launched (device_attend.cpp).
  /// q and out as the kernels want them: dense, [sequences][tokens][q_heads][head_dim].
  struct Queries {
    std::uint64_t q = 0, out = 0;
    bool unpack = false;  ///< out is scratch
  };
  Status append_token(std::uint32_t layer, const Tensor& k, const Tensor& v);
  Status append_chunk(std::uint32_t layer, const Tensor& k, const Tensor& v);
  Result<std::uint64_t> dense(const Tensor& t, std::uint32_t heads, std::uint32_t tokens,
                              Block& scratch);
  Status check_call(std::uint32_t layer, const AttendCall& call, std::uint32_t most) const;
  Status need(Block& block, Bytes bytes);
  Status enable_boxes();
  Status stale_boxes();
  Status make_boxes(std::uint32_t layer, std::uint32_t row, std::uint32_t rows, std::uint32_t first,
                    std::uint64_t lengths);
  Status select(const AttendCall& call, std::uint64_t q);
  Result<Queries> queries(const AttendCall& call, std::uint32_t most);
  Status attend_batch(const AttendCall& call, const Queries& io, std::uint32_t q_len, bool codes);
  Status attend_slices(const AttendCall& call, const Queries& io, std::uint32_t most, bool codes);
  template <class Params>
  void name_pages(Params& params, std::uint32_t row, std::uint64_t lengths, bool sparse) const;
  Status launch_attend(const AttendCall& call, const kernels::StepShape& shape, std::uint32_t row,
                       std::uint64_t q, std::uint64_t out, std::uint64_t lengths, bool codes);
  Status note(const kernels::StepShape& shape, std::uint32_t row, std::uint64_t lengths,
              bool codes);
  Status codes_out(const AttendCall& call);
  Bytes part_bytes(std::uint32_t pitch) const;
  Status send_feedback();
  Status take_feedback();
  Bytes group_words(std::uint32_t layer) const { return Bytes{layer} * rows_.layer_words(); }

  DeviceContentsOptions options_;
  KvGeometry geometry_;
  DType dtype_;
  std::uint32_t page_bytes_;
  Bytes home_stride_ = 0;  ///< from place to place of the home tier
  std::unique_ptr<KvDevice> device_;
  Staging staging_;
  DeviceRows rows_;
  runtime::Runtime* runtime_ = nullptr;
  std::shared_ptr<std::vector<runtime::PageOp>> ops_;  ///< written down by the recorder
  std::unordered_map<SequenceId, SequenceState> sequences_;
  std::uint64_t stamps_ = 0;
  std::vector<Block> spare_tails_;
  std::vector<Block> kept_;  ///< outgrown, but captured graphs name them

  std::unique_ptr<FileBelow> below_;
  Status below_failed_;  ///< from then on nothing can be relied on

  Block hbm_, home_, tables_, lengths_, reads_, answer_;
  Block boxes_, selection_, counts_, mass_, peak_, pairs_, totals_, k_, v_, q_, out_;
  std::unordered_map<std::uint32_t, Block> workspaces_;  ///< by sequences of a launch
  bool boxes_on_ = false;
  std::vector<std::uint32_t> boxes_from_;  ///< by row: first page whose box is not made

  Mode mode_ = Mode::kIdle;
  std::vector<Member> batch_;
  StepLayers layers_;
  bool captured_ = false;            ///< of this step's calls, some
  std::uint32_t captured_rows_ = 0;  ///< of a step whose calls were all captured
  ChoiceRule rule_;                  ///< of the step's last selection
  bool sparse_ = false;              ///< some layer selected
  ChoiceRule captured_rule_;
  bool captured_sparse_ = false;
  std::uint64_t feedbacks_ = 0;
  std::uint32_t told_next_ = 0;
  std::uint64_t chunk_before_ = 0, chunk_tokens_ = 0, chunk_carried_ = 0, chunk_copies_ = 0;
  std::uint64_t lengths_before_ = 0;
  std::uint32_t chunk_pages_ = 0;
  std::unordered_map<PageId, SequenceId> tail_blocks_;  ///< of the batch, whose they are
  std::vector<Install> installs_, arrivals_;            ///< listed; under way beside the step
  std::vector<Install> filled_;                         ///< by this step, from tails
  /// Home: of pages that were full before the step, and of those that it fills, from their tails.
  std::vector<kernels::PagePair> write_backs_, late_write_backs_;
  Feedback feedback_;
  Block told_;
  std::uint64_t moved_ = 0;
  ContentsStats stats_;
};

}  // namespace lehr::contents
