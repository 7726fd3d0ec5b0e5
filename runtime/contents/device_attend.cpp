// SPDX-License-Identifier: Apache-2.0
// What a step launches: rows into pages, selection, attention; and what it says of its pages.
#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "runtime/contents/device_contents.hpp"

namespace lehr::contents {

namespace {

/// An address of the device as the kernels' parameters have it.
template <class T>
T* at(std::uint64_t address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr)
}

std::uint64_t address(const void* p) { return reinterpret_cast<std::uint64_t>(p); }

kernels::RowStrides strides_of(const Tensor& t) { return {t.stride[0], t.stride[1], t.stride[2]}; }

/// Strides of [sequences][tokens][heads][dim].
kernels::RowStrides dense_strides(std::uint32_t heads, std::uint32_t tokens, std::uint32_t dim) {
  return {std::int64_t{tokens} * heads * dim, dim, std::int64_t{heads} * dim};
}

bool is_dense(const Tensor& t, std::uint32_t heads, std::uint32_t tokens, std::uint32_t dim) {
  const kernels::RowStrides s = dense_strides(heads, tokens, dim);
  return address(t.data) % 16 == 0 && (t.stride[0] == s.sequence || t.shape[0] <= 1) &&
         (t.stride[1] == s.head || heads == 1) && (t.stride[2] == s.token || tokens <= 1);
}

}  // namespace

/// Scratch of at least these bytes. What a captured graph may name is never given back.
Status DeviceContents::need(Block& block, Bytes bytes) {
  if (block.bytes >= bytes) return {};
  LEHR_ASSIGN(const bool capturing, device_->capturing());
  if (capturing) {
    return unsupported(
        "this step needs memory that is not there yet: run one like it before capturing");
  }
  if (block.bytes > 0) {
    if (captured_rows_ > 0) {
      kept_.push_back(block);
    } else {
      device_->release(block);
    }
    block = {};
  }
  LEHR_ASSIGN(block, device_->memory(bytes));
  return {};
}

/// The tensor as [sequences][tokens][heads][dim]: itself, or a copy.
Result<std::uint64_t> DeviceContents::dense(const Tensor& t, std::uint32_t heads,
                                            std::uint32_t tokens, Block& scratch) {
  if (is_dense(t, heads, tokens, geometry_.head_dim)) return address(t.data);
  const Bytes rows = Bytes{std::max(rows_.rows(), 1U)} * tokens * heads;
  LEHR_TRY(need(scratch, rows * geometry_.head_dim * 2));
  kernels::CopyRowsParams p;
  p.from = t.data;
  p.from_strides = strides_of(t);
  p.to = at<void>(scratch.device);
  p.to_strides = dense_strides(heads, tokens, geometry_.head_dim);
  p.heads = heads;
  p.tokens = tokens;
  LEHR_TRY(device_->launch(shape(static_cast<std::uint32_t>(batch_.size()), 1), p));
  return scratch.device;
}

// ---------------------------------------------------------------------- rows into pages

Status DeviceContents::append_token(std::uint32_t layer, const Tensor& k, const Tensor& v) {
  LEHR_ASSIGN(const std::uint64_t keys, dense(k, geometry_.kv_heads, 1, k_));
  LEHR_ASSIGN(const std::uint64_t values, dense(v, geometry_.kv_heads, 1, v_));
  kernels::AppendParams p;
  p.k = at<void>(keys);
  p.v = at<void>(values);
  p.table = at<kernels::PageEntry>(tables_.device) + group_words(layer);
  p.lengths = at<std::uint32_t>(lengths_.device);
  if (boxes_on_) p.boxes = at<void>(boxes_.device + group_words(layer) * 4 * geometry_.head_dim);
  p.absent = at<std::uint32_t>(reads_.device + 16);
  return device_->launch(shape(static_cast<std::uint32_t>(batch_.size()), 1), p);
}

Status DeviceContents::append_chunk(std::uint32_t layer, const Tensor& k, const Tensor& v) {
  const auto rows = static_cast<std::uint32_t>(batch_.size());
  kernels::StoreParams p;
  p.k = k.data;
  p.v = v.data;
  p.k_strides = strides_of(k);
  p.v_strides = strides_of(v);
  p.table = at<kernels::PageEntry>(tables_.device) + group_words(layer);
  p.copies = at<std::uint64_t>(chunk_copies_) +
             std::size_t{layer} * rows * geometry_.kv_heads * chunk_pages_;
  p.carried = at<std::uint64_t>(chunk_carried_);
  p.before = at<std::uint32_t>(chunk_before_);
  p.tokens = at<std::uint32_t>(chunk_tokens_);
  p.carried_offset = std::uint64_t{layer} * geometry_.kv_heads * page_bytes_;
  p.page_pitch = page_bytes_;
  p.pages = chunk_pages_;
  LEHR_TRY(device_->launch(shape(rows, 1), p));
  if (!boxes_on_ || batch_.empty()) return {};
  const auto first = [&](const Member& m) {
    return static_cast<std::uint32_t>(m.before / geometry_.page_tokens);
  };
  const bool together = std::all_of(batch_.begin(), batch_.end(), [&](const Member& m) {
    return first(m) == first(batch_.front());
  });
  if (together) return make_boxes(layer, 0, rows, first(batch_.front()), lengths_.device);
  for (std::uint32_t row = 0; row < rows; ++row)
    LEHR_TRY(make_boxes(layer, row, 1, first(batch_[row]), lengths_.device));
  return {};
}

// ---------------------------------------------------------------------- boxes

/// Of `rows` rows from `row` on, pages from `first` on, as far as `lengths` says (of all rows).
Status DeviceContents::make_boxes(std::uint32_t layer, std::uint32_t row, std::uint32_t rows,
                                  std::uint32_t first, std::uint64_t lengths) {
  const std::size_t words =
      group_words(layer) + std::size_t{row} * geometry_.kv_heads * rows_.pages();
  kernels::BoxesParams p;
  p.table = at<kernels::PageEntry>(tables_.device) + words;
  p.lengths = at<std::uint32_t>(lengths) + row;
  p.boxes = at<void>(boxes_.device + words * 4 * geometry_.head_dim);
  p.first_page = first;
  return device_->launch(shape(rows, 1), p);
}

/// Rows that hold other pages than before the step.
Status DeviceContents::stale_boxes() {
  for (std::uint32_t row = 0; row < batch_.size(); ++row) {
    const std::uint32_t first = std::exchange(boxes_from_[row], rows_.pages());
    if (std::uint64_t{first} * geometry_.page_tokens >= batch_[row].before) continue;
    for (std::uint32_t layer = 0; layer < geometry_.layers; ++layer)
      LEHR_TRY(make_boxes(layer, row, 1, first, lengths_before_));
  }
  return {};
}

/// From the first selection on there are boxes.
Status DeviceContents::enable_boxes() {
  if (boxes_on_) return {};
  LEHR_TRY(need(boxes_, Bytes{geometry_.layers} * rows_.layer_words() * 4 * geometry_.head_dim));
  boxes_on_ = true;
  captured_rows_ = 0;  // its appends keep no boxes
  boxes_from_.assign(rows_.rows(), 0);
  LEHR_TRY(stale_boxes());
  for (std::uint32_t layer = 0; layer <= layers_.at(); ++layer) {  // these have the step's token
    for (std::uint32_t row = 0; row < batch_.size(); ++row) {
      const auto tail = static_cast<std::uint32_t>(batch_[row].before / geometry_.page_tokens);
      LEHR_TRY(make_boxes(layer, row, 1, tail, lengths_.device));
    }
  }
  return {};
}

// ---------------------------------------------------------------------- attention

Status DeviceContents::check_call(std::uint32_t layer, const AttendCall& call,
                                  std::uint32_t most) const {
  if (mode_ == Mode::kIdle) return invalid("no step is open");
  LEHR_TRY(layers_.check_attend(layer));
  if (call.totals != nullptr) return unsupported("what is left of a softmax is not told here");
  std::size_t pages = 0;
  for (const Member& m : batch_) pages = std::max(pages, runtime_->blocks(m.id).size());
  return check_attend_call(geometry_, options_.contents.element, call, batch_.size(), most, pages,
                           mode_ == Mode::kChunk);
}

Result<DeviceContents::Queries> DeviceContents::queries(const AttendCall& call,
                                                        std::uint32_t most) {
  Queries io;
  LEHR_ASSIGN(io.q, dense(call.q, geometry_.q_heads, most, q_));
  io.unpack = !is_dense(call.out, geometry_.q_heads, most, geometry_.head_dim);
  io.out = address(call.out.data);
  if (!io.unpack) return io;
  const Bytes rows = Bytes{std::max(rows_.rows(), 1U)} * most * geometry_.q_heads;
  LEHR_TRY(need(out_, rows * geometry_.head_dim * 2));
  io.out = out_.device;
  return io;
}

Status DeviceContents::select(const AttendCall& call, std::uint64_t q) {
  LEHR_TRY(enable_boxes());
  const Bytes words = Bytes{geometry_.layers} * rows_.layer_words();
  const Bytes groups = Bytes{geometry_.layers} * rows_.rows() * geometry_.kv_heads;
  LEHR_TRY(need(selection_, words * 4));
  LEHR_TRY(need(counts_, groups * 4));
  ScoreSelectWork work;
  work.score.q = at<void>(q);
  work.score.boxes = at<void>(boxes_.device + group_words(layers_.at()) * 4 * geometry_.head_dim);
  work.score.lengths = at<std::uint32_t>(lengths_.device);
  kernels::SelectParams& s = work.select;
  s.lengths = work.score.lengths;
  s.selection = at<std::uint32_t>(selection_.device) + group_words(layers_.at());
  s.counts = at<std::uint32_t>(counts_.device) +
             std::size_t{layers_.at()} * rows_.rows() * geometry_.kv_heads;
  s.pitch = rows_.pages();
  s.count = rows_.pages();
  s.ratio = static_cast<float>(call.choice.amount);
  s.scale = call.scale;
  s.sinks = call.choice.sinks;
  s.recent = call.choice.recent;
  switch (call.choice.by) {
    case ChoiceRule::By::kCount:
      s.by = kernels::SelectBy::kCount;
      s.count = static_cast<std::uint32_t>(
          std::min(call.choice.amount, static_cast<double>(rows_.pages())));
      s.ratio = 0;
      break;
    case ChoiceRule::By::kMass:
      s.by = kernels::SelectBy::kMass;
      break;
    default:
      s.by = kernels::SelectBy::kRatio;
  }
  sparse_ = true;
  rule_ = call.choice;
  return device_->launch(shape(static_cast<std::uint32_t>(batch_.size()), 1), work);
}

/// Which pages a launch reads: the layer's table from `row` on, and what was selected of it.
template <class Params>
void DeviceContents::name_pages(Params& p, std::uint32_t row, std::uint64_t lengths,
                                bool sparse) const {
  p.table = at<kernels::PageEntry>(tables_.device) + group_words(layers_.at()) +
            std::size_t{row} * geometry_.kv_heads * rows_.pages();
  p.lengths = at<std::uint32_t>(lengths);
  if (sparse) {
    p.selection = at<std::uint32_t>(selection_.device) + group_words(layers_.at());
    p.counts = at<std::uint32_t>(counts_.device) +
               std::size_t{layers_.at()} * rows_.rows() * geometry_.kv_heads;
    p.selection_pitch = rows_.pages();
  }
}

/// Rows from `row` on. The selection, if there is one, is the layer's.
Status DeviceContents::launch_attend(const AttendCall& call, const kernels::StepShape& s,
                                     std::uint32_t row, std::uint64_t q, std::uint64_t out,
                                     std::uint64_t lengths, bool codes) {
  // Counters lie in front of the rest, one a group: launches of other numbers of groups find what
  // is no counter in their place.
  LEHR_ASSIGN(const Bytes scratch, device_->workspace(s));
  Block& workspace = workspaces_[s.sequences];
  LEHR_TRY(need(workspace, scratch));
  const bool sparse = call.choice.by != ChoiceRule::By::kAll;
  AttendWork work;
  work.workspace = workspace;
  kernels::AttendParams& p = work.params;
  p.q = at<void>(q);
  p.out = at<void>(out);
  name_pages(p, row, lengths, sparse);
  if (codes) {
    const Bytes groups = Bytes{std::max(s.sequences, rows_.rows())} * geometry_.kv_heads;
    LEHR_TRY(need(pairs_, groups * rows_.pages() * s.rows() * sizeof(kernels::SoftmaxPair)));
    LEHR_TRY(need(totals_, groups * s.rows() * sizeof(kernels::SoftmaxPair)));
    p.pairs = at<kernels::SoftmaxPair>(pairs_.device);
    p.totals = at<kernels::SoftmaxPair>(totals_.device);
  }
  p.absent = at<std::uint32_t>(reads_.device + 16);
  p.scale = call.scale;
  p.soft_cap = call.soft_cap;
  p.window = call.window;
  return device_->launch(s, work);
}

/// Counts reads, and turns what the last attend left into codes.
Status DeviceContents::note(const kernels::StepShape& s, std::uint32_t row, std::uint64_t lengths,
                            bool codes) {
  const bool sparse = sparse_ && mode_ == Mode::kStep;
  kernels::NoteParams p;
  name_pages(p, row, lengths, sparse);
  if (codes) {
    const Bytes words = Bytes{geometry_.layers} * rows_.layer_words();
    LEHR_TRY(need(mass_, words));
    LEHR_TRY(need(peak_, words));
    const std::size_t first =
        group_words(layers_.at()) + std::size_t{row} * geometry_.kv_heads * rows_.pages();
    p.pairs = at<kernels::SoftmaxPair>(pairs_.device);
    p.totals = at<kernels::SoftmaxPair>(totals_.device);
    p.mass = at<std::uint8_t>(mass_.device) + first;
    p.peak = at<std::uint8_t>(peak_.device) + first;
    p.first_row = (s.q_len - 1) * s.ratio();
  }
  p.reads = at<std::uint64_t>(reads_.device);
  return device_->launch(s, p);
}

Status DeviceContents::attend_batch(const AttendCall& call, const Queries& io, std::uint32_t q_len,
                                    bool codes) {
  const kernels::StepShape s = shape(static_cast<std::uint32_t>(batch_.size()), q_len);
  LEHR_TRY(launch_attend(call, s, 0, io.q, io.out, lengths_.device, codes));
  LEHR_ASSIGN(const bool capturing, device_->capturing());
  if (codes || capturing || rows_.any_over_link(s.sequences))
    return note(s, 0, lengths_.device, codes);
  for (const Member& m : batch_)  // all of it in HBM: nothing to ask the device
    stats_.read_in_hbm += runtime_->blocks(m.id).size() * geometry_.kv_heads;
  return {};
}

/// More queries than a launch takes, or different numbers of them: sequence by sequence.
Status DeviceContents::attend_slices(const AttendCall& call, const Queries& io, std::uint32_t most,
                                     bool codes) {
  const std::uint32_t ratio = geometry_.q_heads / geometry_.kv_heads;
  const std::uint32_t widest = std::min(kernels::kMaxQueryLength, kernels::kMaxRows / ratio);
  const Bytes row_bytes = Bytes{geometry_.q_heads} * geometry_.head_dim * 2;
  for (std::uint32_t i = 0; i < batch_.size(); ++i) {
    const Member& m = batch_[i];
    std::vector<std::uint32_t> ends;
    for (std::uint32_t from = 0; from < m.tokens; from += widest)
      ends.push_back(static_cast<std::uint32_t>(m.before) + std::min(from + widest, m.tokens));
    LEHR_ASSIGN(const std::uint64_t lengths, staging_.put(std::span<const std::uint32_t>(ends)));
    for (std::size_t slice = 0; slice < ends.size(); ++slice) {
      const auto from = static_cast<std::uint32_t>(slice) * widest;
      const std::uint32_t count = std::min(widest, m.tokens - from);
      const kernels::StepShape s = shape(1, count);
      const Bytes offset = (Bytes{i} * most + from) * row_bytes;
      const bool last = slice + 1 == ends.size();
      LEHR_TRY(launch_attend(call, s, i, io.q + offset, io.out + offset, lengths + slice * 4,
                             codes && last));
      if (last) LEHR_TRY(note(s, i, lengths + slice * 4, codes));
    }
  }
  return {};
}

Status DeviceContents::attend(std::uint32_t layer, const AttendCall& call) {
  std::uint32_t most = 0;
  for (const Member& m : batch_) most = std::max(most, m.tokens);
  LEHR_TRY(check_call(layer, call, most));
  if (most == 0) {  // nobody, or nobody with a query
    const std::size_t codes = batch_.size() * geometry_.kv_heads * call.code_pitch;
    if (call.mass != nullptr) std::fill_n(call.mass, codes, kNoMass);
    if (call.peak != nullptr) std::fill_n(call.peak, codes, kNoMass);
    layers_.close();
    return {};
  }
  LEHR_ASSIGN(const bool capturing, device_->capturing());
  const bool wanted = call.mass != nullptr || call.peak != nullptr;
  if (capturing && wanted) return unsupported("mass and peak go to host memory: not in a capture");
  if (capturing != captured_)
    return unsupported("of a step, all appends and attends are captured or none");
  LEHR_ASSIGN(const Queries io, queries(call, most));
  const bool sparse = call.choice.by != ChoiceRule::By::kAll;
  if (!sparse) sparse_ = false;
  if (sparse) LEHR_TRY(select(call, io.q));
  const std::uint32_t ratio = geometry_.q_heads / geometry_.kv_heads;
  const bool even =
      std::all_of(batch_.begin(), batch_.end(), [&](const Member& m) { return m.tokens == most; });
  const bool together =
      even && most <= kernels::kMaxQueryLength && most * ratio <= kernels::kMaxRows;
  LEHR_TRY(together ? attend_batch(call, io, most, sparse || wanted)
                    : attend_slices(call, io, most, wanted));
  if (io.unpack) {
    kernels::CopyRowsParams p;
    p.from = at<void>(io.out);
    p.from_strides = dense_strides(geometry_.q_heads, most, geometry_.head_dim);
    p.to = call.out.data;
    p.to_strides = strides_of(call.out);
    p.heads = geometry_.q_heads;
    p.tokens = most;
    LEHR_TRY(device_->launch(shape(static_cast<std::uint32_t>(batch_.size()), 1), p));
  }
  layers_.close();
  return wanted ? codes_out(call) : Status{};
}

// ---------------------------------------------------------------------- to the host

/// Waits for the codes of the layer.
Status DeviceContents::codes_out(const AttendCall& call) {
  const bool sparse = call.choice.by != ChoiceRule::By::kAll;
  const std::size_t groups = batch_.size() * geometry_.kv_heads;
  const std::size_t words = groups * rows_.pages();
  const auto fetch = [&](const Block& from, Bytes offset, Bytes bytes) -> Result<const std::byte*> {
    LEHR_ASSIGN(const Block room, staging_.take(bytes));
    LEHR_TRY(device_->copy(room.device, from.device + offset, bytes, Lane::kMain));
    return static_cast<const std::byte*>(room.host);
  };
  LEHR_ASSIGN(const std::byte* mass, fetch(mass_, group_words(layers_.at()), words));
  LEHR_ASSIGN(const std::byte* peak, fetch(peak_, group_words(layers_.at()), words));
  const std::byte* selection = nullptr;
  const std::byte* counts = nullptr;
  if (sparse) {
    LEHR_ASSIGN(selection, fetch(selection_, group_words(layers_.at()) * 4, words * 4));
    LEHR_ASSIGN(counts, fetch(counts_, Bytes{layers_.at()} * rows_.rows() * geometry_.kv_heads * 4,
                              groups * 4));
  }
  LEHR_ASSIGN(const Mark copied, device_->mark(Lane::kMain));
  LEHR_TRY(device_->wait_host(copied));
  for (std::size_t group = 0; group < groups; ++group) {
    const Member& m = batch_[group / geometry_.kv_heads];
    MassCode* const to_mass = call.mass == nullptr ? nullptr : call.mass + group * call.code_pitch;
    MassCode* const to_peak = call.peak == nullptr ? nullptr : call.peak + group * call.code_pitch;
    if (to_mass != nullptr) std::fill_n(to_mass, call.code_pitch, kNoMass);
    if (to_peak != nullptr) std::fill_n(to_peak, call.code_pitch, kNoMass);
    if (m.tokens == 0) continue;
    const std::size_t row = group * rows_.pages();
    const std::size_t count = sparse ? reinterpret_cast<const std::uint32_t*>(counts)[group]
                                     : runtime_->blocks(m.id).size();
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t page =
          sparse ? reinterpret_cast<const std::uint32_t*>(selection)[row + i] : i;
      if (to_mass != nullptr) to_mass[page] = static_cast<MassCode>(mass[row + i]);
      if (to_peak != nullptr) to_peak[page] = static_cast<MassCode>(peak[row + i]);
    }
  }
  return {};
}

/// As much as the policy is told of, a layer of a sequence at a time, in turn. Where everything
/// lies in HBM there is nothing to decide, and nothing is sent.
Status DeviceContents::send_feedback() {
  feedback_.parts.clear();
  const auto rows = static_cast<std::uint32_t>(batch_.size());
  if (rows == 0 || !rows_.any_over_link(rows)) return {};
  const std::uint32_t parts = geometry_.layers * rows;
  const auto expected = [&](const Member& m) {
    const auto all = static_cast<double>(runtime_->blocks(m.id).size());
    const double pages = !sparse_                             ? all
                         : rule_.by == ChoiceRule::By::kCount ? std::min(rule_.amount, all)
                         : rule_.by == ChoiceRule::By::kRatio ? rule_.amount * all
                                                              : all / 2;
    return pages * geometry_.kv_heads;
  };
  told_next_ %= parts;
  double pages = 0;
  do {
    feedback_.parts.push_back(told_next_);
    pages += expected(batch_[told_next_ % rows]);
    told_next_ = (told_next_ + 1) % parts;
  } while (feedback_.parts.size() < parts &&
           (options_.plan_pages == 0 || pages < static_cast<double>(options_.plan_pages)));
  feedback_.sparse = sparse_;
  feedback_.pitch = rows_.pages();
  feedback_.batch.clear();
  feedback_.stamps.clear();
  for (const Member& m : batch_) {
    feedback_.batch.push_back(m.id);
    feedback_.stamps.push_back(sequences_.at(m.id).stamp);
  }
  if (!sparse_) return {};
  const std::size_t heads = geometry_.kv_heads;
  const Bytes words = heads * rows_.pages();
  const Bytes a_part = part_bytes(rows_.pages());
  if (told_.bytes < a_part * feedback_.parts.size()) {
    if (told_.bytes > 0) device_->release(told_);
    told_ = {};
    LEHR_ASSIGN(told_, device_->pinned(a_part * feedback_.parts.size()));
  }
  LEHR_ASSIGN(const Mark here, device_->mark(Lane::kMain));
  LEHR_TRY(device_->wait(Lane::kSide, here));
  for (std::size_t i = 0; i < feedback_.parts.size(); ++i) {
    std::uint64_t to = told_.device + i * a_part;
    const auto send = [&](const Block& from, Bytes offset, Bytes bytes) -> Status {
      LEHR_TRY(device_->copy(to, from.device + offset, bytes, Lane::kSide));
      to += bytes;
      return {};
    };
    const std::uint32_t layer = feedback_.parts[i] / rows, row = feedback_.parts[i] % rows;
    const Bytes groups = (Bytes{layer} * rows_.rows() + row) * heads;
    LEHR_TRY(send(counts_, groups * 4, heads * 4));
    LEHR_TRY(send(selection_, groups * rows_.pages() * 4, words * 4));
    LEHR_TRY(send(mass_, groups * rows_.pages(), words));
    LEHR_TRY(send(peak_, groups * rows_.pages(), words));
  }
  LEHR_ASSIGN(feedback_.mark, device_->mark(Lane::kSide));
  return {};
}

/// Counts, selection, mass and peak of a layer of a sequence, whole words.
Bytes DeviceContents::part_bytes(std::uint32_t pitch) const {
  return (Bytes{geometry_.kv_heads} * (4 + Bytes{pitch} * 6) + 15) / 16 * 16;
}

/// What the step before said of its pages, to those sequences that are still what they were.
Status DeviceContents::take_feedback() {
  ++feedbacks_;
  if (feedback_.parts.empty()) return {};
  if (feedback_.sparse) LEHR_TRY(device_->wait_host(feedback_.mark));
  const std::size_t heads = geometry_.kv_heads, pitch = feedback_.pitch;
  for (std::size_t i = 0; i < feedback_.parts.size(); ++i) {
    const std::size_t rows = feedback_.batch.size();
    const std::size_t layer = feedback_.parts[i] / rows, row = feedback_.parts[i] % rows;
    const auto found = sequences_.find(feedback_.batch[row]);
    if (found == sequences_.end() || found->second.stamp != feedback_.stamps[row]) continue;
    const std::size_t all = runtime_->blocks(feedback_.batch[row]).size();
    for (std::size_t head = 0; head < heads; ++head) {
      Said& said = found->second.said[layer * heads + head];
      if (!feedback_.sparse) {
        said.told = feedbacks_;
        continue;
      }
      const std::byte* const from = told_.host + i * part_bytes(feedback_.pitch);
      const std::uint32_t count = reinterpret_cast<const std::uint32_t*>(from)[head];
      const auto* pages = reinterpret_cast<const std::uint32_t*>(from + heads * 4) + head * pitch;
      const auto* mass =
          reinterpret_cast<const MassCode*>(from + heads * 4 + heads * pitch * 4) + head * pitch;
      const MassCode* peak = mass + heads * pitch;
      if (count == 0 || pages[count - 1] >= all) continue;
      said.told = feedbacks_;
      said.pages.assign(pages, pages + count);
      said.mass.resize(all, kNoMass);
      said.peak.resize(all, kNoMass);
      for (std::uint32_t p = 0; p < count; ++p) {
        said.mass[pages[p]] = mass[p];
        said.peak[pages[p]] = peak[p];
      }
    }
  }
  return {};
}

}  // namespace lehr::contents
