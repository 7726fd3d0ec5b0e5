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

namespace lehr::serving {

using contents::SequenceId;

/// What of a sequence's KV a device holds.
enum class Split : std::uint8_t { kHeads, kLayers };

/// One device's share of the group: contents of its own heads or layers, and the step loop that
/// places them.
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
  std::vector<double> weights;  ///< one a device: its first share of heads or layers
  MakePart make;
};

/// Several devices that all serve the same sequences, each with a contiguous part of the KV heads
/// or of the layers. Every device decides for itself where its pages live; results are those of one
/// device that holds everything, bit for bit. Parts may be GPUs or the host's stand-ins for them.
///
/// Steps are Contents' own (begin, append and attend of each layer, end), with the whole model's
/// tensors. A failure inside a step leaves the group fit for abandon() only. Not thread-safe.
class ServingGroup {
 public:
  static Result<std::unique_ptr<ServingGroup>> create(ServingGroupOptions options);

  Result<SequenceId> create_sequence();
  Result<SequenceId> fork(SequenceId parent);
  Status release(SequenceId id);

  Status begin(std::span<const SequenceId> batch, std::span<const std::uint32_t> tokens);
  Status append(std::uint32_t layer, const contents::Tensor& k, const contents::Tensor& v);
  Status attend(std::uint32_t layer, const contents::AttendCall& call);
  /// One report a device.
  Result<std::vector<runtime::StepReport>> end();
  Status abandon();

  /// All K and V of a layer, as Contents::gather().
  Status gather(std::uint32_t layer, std::span<const SequenceId> ids, const contents::Tensor& k,
                const contents::Tensor& v);

  /// What the devices showed since the last call, for placement::rebalanced(): the mean time of a
  /// step (measured where the machine measures, else predicted) and hits of all reads.
  std::vector<placement::DeviceLoad> take_loads();
  /// Deals units anew, between steps: the new parts get all KV from the old ones. On failure
  /// everything stays as it was. `units`: one number a device, in all what there is.
  Status redeal(std::span<const std::uint32_t> units);

  std::span<const std::uint32_t> units() const { return units_; }
  std::size_t devices() const { return parts_.size(); }
  const runtime::Runtime& runtime(std::size_t device) const { return *parts_[device].runtime; }

 private:
  /// A part's first unit, and how many it has.
  struct Range {
    std::uint32_t first = 0, count = 0;
  };
  /// By the group's id: the sequence's id in each part.
  using Names = std::map<SequenceId, std::vector<SequenceId>>;

  explicit ServingGroup(ServingGroupOptions options) : options_(std::move(options)) {}
  Result<std::vector<Part>> make_parts(std::span<const std::uint32_t> units) const;
  std::vector<Range> ranges() const;
  bool by_layers() const { return options_.split == Split::kLayers; }
  Result<std::vector<SequenceId>> names_in(std::size_t part, std::span<const SequenceId> ids) const;
  contents::Tensor slice(const contents::Tensor& tensor, std::uint32_t first,
                         std::uint32_t heads) const;
  template <class Use>
  Status for_layer(std::uint32_t layer, Use use);
  Status attend_part(std::size_t part, std::uint32_t layer, Range heads,
                     const contents::AttendCall& call);
  Status copy_into(ServingGroup& to, SequenceId from_id, SequenceId to_id);

  ServingGroupOptions options_;
  std::vector<std::uint32_t> units_;
  std::vector<Part> parts_;
  Names names_;
  SequenceId next_ = 1;
  std::size_t batch_ = 0;
  std::vector<runtime::StepReport> seen_;  ///< since the last take_loads()
  std::uint64_t steps_ = 0;
};

}  // namespace lehr::serving
