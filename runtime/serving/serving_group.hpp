// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "placement/division.hpp"
#include "runtime/contents/contents.hpp"
#include "runtime/serving/split.hpp"

namespace lehr::serving {

using contents::SequenceId;

/// One device's share of the group: contents of its own heads, layers or ranges of tokens, and the
/// step loop that places them.
struct Part {
  std::unique_ptr<contents::Contents> contents;
  std::unique_ptr<runtime::Runtime> runtime;
};

/// Makes the part of device `device`, with no sequences: its memory, its policy, its machine.
/// `geometry` is the whole one with the part's own number of layers, or of heads.
using MakePart = std::function<Result<Part>(std::uint32_t device, const KvGeometry& geometry)>;

struct ServingGroupOptions {
  KvGeometry geometry;  ///< of the whole model
  contents::Element element = contents::Element::kF32;
  Split split = Split::kHeads;
  std::vector<double> weights;  ///< one a device: its first share of heads, layers or tokens
  MakePart make;
  /// Parts read and write the process's own memory, as those on the host do. Else tensors are each
  /// part's device's.
  bool host_memory = true;
};

/// What redeal() moved.
struct Redealt {
  std::uint64_t tokens = 0;         ///< whose K and V were copied, in all layers
  std::uint64_t shared_tokens = 0;  ///< of forks, that were not copied a second time
  Bytes bytes = 0;                  ///< copied
};

/// Several devices that all serve the same sequences, each with a contiguous part of the KV heads,
/// of the layers, or of each sequence's tokens in whole pages. Every device decides for itself
/// where its pages live, and results do not depend on it. By heads and layers they are those of one
/// device that holds everything: on the host bit for bit, while a GPU's kernels may sum in another
/// order for other numbers of heads. By tokens, results of the ranges are merged in the order of
/// the devices (merge.hpp), whoever is slow. Parts may be GPUs or the host's stand-ins for them.
///
/// By tokens, a sequence that is created for so many tokens is dealt by the weights: whole pages to
/// each device, and to the last what is left, with everything that comes after it. Such steps read
/// all pages (kUnsupported: a selection, masses).
///
/// Steps are Contents' own (begin, append and attend of each layer, end), with the whole model's
/// tensors, or part by part with those of the part's heads. A failure inside a step leaves the
/// group fit for abandon() only. Not thread-safe.
class ServingGroup {
 public:
  static Result<std::unique_ptr<ServingGroup>> create(ServingGroupOptions options);

  /// `expected`: tokens that a division by tokens deals; more go to the last device. kOutOfRange
  /// for more than pages can be counted for.
  Result<SequenceId> create_sequence(std::uint64_t expected = 0);
  Result<SequenceId> fork(SequenceId parent);
  Status release(SequenceId id);
  std::uint64_t tokens(SequenceId id) const;  ///< 0 where there is no such sequence

  /// `streams`: one a device, where their machines have streams; else empty.
  Status begin(std::span<const SequenceId> batch, std::span<const std::uint32_t> tokens,
               std::span<void* const> streams = {});
  Status append(std::uint32_t layer, const contents::Tensor& k, const contents::Tensor& v);
  Status attend(std::uint32_t layer, const contents::AttendCall& call);
  /// A part alone, where the tensors are its own heads' and lie on its device. kOutOfRange for a
  /// layer that it does not hold, kUnsupported for ranges of tokens: their results must be merged.
  Status append_part(std::size_t part, std::uint32_t layer, const contents::Tensor& k,
                     const contents::Tensor& v);
  Status attend_part(std::size_t part, std::uint32_t layer, const contents::AttendCall& call);
  /// One report a device. kInvalid, and the step goes on, before each has its last layer.
  Result<std::vector<runtime::StepReport>> end();
  /// Every sequence is what it was before the step, on devices that had ended it too.
  Status abandon();
  bool in_step() const;

  /// All K and V of a layer, as Contents::gather().
  Status gather(std::uint32_t layer, std::span<const SequenceId> ids, const contents::Tensor& k,
                const contents::Tensor& v);

  /// What the devices showed since the last call, for placement::rebalanced(): the mean time of a
  /// step (measured where the machine measures, else predicted) and hits of all reads. By tokens,
  /// units are pages.
  std::vector<placement::DeviceLoad> take_loads();
  /// Deals units anew, between steps: parts are made again, while the old ones are there, and get
  /// all K and V from them through host memory; what forks share is copied once and goes on being
  /// shared. On failure everything stays as it was. Waits for what was enqueued.
  /// `units`: one number a device, in all what there is. By tokens: each device's share of every
  /// sequence, in all less than 2^32.
  Result<Redealt> redeal(std::span<const std::uint32_t> units);

  Split split() const { return options_.split; }
  std::span<const std::uint32_t> units() const { return units_; }
  std::size_t devices() const { return parts_.size(); }
  const runtime::Runtime& runtime(std::size_t device) const { return *parts_[device].runtime; }
  contents::Contents& contents(std::size_t device) { return *parts_[device].contents; }

 private:
  struct Member {
    std::vector<SequenceId> ids;       ///< in each part
    std::vector<std::uint32_t> pages;  ///< by tokens: of each part's range; the last has no end
    std::uint64_t expected = 0;
  };
  using Members = std::map<SequenceId, Member>;
  /// The open step.
  struct Step {
    std::vector<std::uint32_t> tokens;               ///< new ones of each sequence
    std::vector<std::vector<SequenceId>> names;      ///< of the sequences, by part
    std::vector<std::vector<std::uint64_t>> before;  ///< their tokens there
    std::vector<std::uint32_t> layers;               ///< with K and V, by part
  };

  explicit ServingGroup(ServingGroupOptions options) : options_(std::move(options)) {}
  bool by(Split split) const { return options_.split == split; }
  Result<Part> make_part(std::size_t device, std::uint32_t units) const;
  Status deal();
  std::vector<Range> ranges() const { return ranges_of(units_); }
  Result<std::vector<SequenceId>> names_in(std::size_t part, std::span<const SequenceId> ids) const;
  Status all_heads(const contents::Tensor& k, const contents::Tensor& v) const;
  Result<Step> step_of(std::span<const SequenceId> batch,
                       std::span<const std::uint32_t> tokens) const;
  Status append_to(std::size_t part, std::uint32_t layer, const contents::Tensor& k,
                   const contents::Tensor& v);
  template <class Use>
  Status for_layer(std::uint32_t layer, Use use);
  Status attend_heads(std::size_t part, std::uint32_t layer, Range heads,
                      const contents::AttendCall& call);

  // Ranges of tokens (token_ranges.cpp).
  using RangeBatch = std::vector<contents::RangeTokens>;  ///< of one part
  std::vector<RangeBatch> range_batches(std::span<const SequenceId> batch,
                                        std::span<const std::uint32_t> tokens) const;
  Status attend_ranges(std::uint32_t layer, const contents::AttendCall& call);
  Status gather_ranges(std::uint32_t layer, std::span<const SequenceId> ids,
                       const contents::Tensor& k, const contents::Tensor& v);
  std::uint64_t range_first(const Member& member, std::size_t part) const;

  // Rebalancing (redeal.cpp).
  std::uint64_t shared_tokens(const Member& a, const Member& b) const;
  Status truncate(const Member& member, std::uint64_t tokens);
  Status wait();
  Status copy_tokens(ServingGroup& to, SequenceId from_id, SequenceId to_id, std::uint64_t first);
  Status copy_sequences(ServingGroup& to, Redealt& told);

  ServingGroupOptions options_;
  std::vector<std::uint32_t> units_;  ///< by tokens: shares
  std::vector<Part> parts_;
  Members members_;
  SequenceId next_ = 1;
  Step step_;
  std::vector<runtime::StepReport> seen_;  ///< since the last take_loads()
  std::uint64_t steps_ = 0;
};

}  // namespace lehr::serving
