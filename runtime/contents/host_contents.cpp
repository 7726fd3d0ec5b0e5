// SPDX-License-Identifier: Apache-2.0
// Steps, and the pages that they fill. Attention is in host_attend.cpp.
#include "runtime/contents/host_contents.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/core.h>

namespace lehr::contents {

using runtime::PageOp;
using runtime::PageTable;

HostContents::HostContents(const ContentsOptions& options)
    : geometry_(options.geometry),
      page_{options.geometry.page_tokens, options.geometry.head_dim, options.element},
      rounding_(conversion(options.rounding == Rounding::kNone   ? std::nullopt
                           : options.rounding == Rounding::kE4m3 ? std::optional(DType::kE4m3)
                                                                 : DType::kInt8)),
      lowering_(conversion(options.lowers)) {}

std::optional<PageConversion> HostContents::conversion(std::optional<DType> to) const {
  return to ? std::optional<PageConversion>(std::in_place, page_, *to) : std::nullopt;
}

Result<std::unique_ptr<HostContents>> HostContents::create(const ContentsOptions& options) {
  const KvGeometry& g = options.geometry;
  if (g.head_dim % 8 != 0 || g.head_dim > kMostDim) {
    return unsupported(fmt::format(
        "geometry.head_dim: {}, contents need a multiple of 8, at most {}", g.head_dim, kMostDim));
  }
  if (g.page_tokens > kMostPageTokens) {
    return unsupported(fmt::format("geometry.page_tokens: {}, contents need at most {}",
                                   g.page_tokens, kMostPageTokens));
  }
  if (g.kv_heads == 0 || g.q_heads % g.kv_heads != 0) {
    return invalid(fmt::format("geometry.q_heads: {}, expected a multiple of the {} KV heads",
                               g.q_heads, g.kv_heads));
  }
  if (options.rounding != Rounding::kNone && (g.head_dim % 32 != 0)) {
    return unsupported("step.rounding: head_dim must be a multiple of 32");
  }
  std::unique_ptr<HostContents> made(new HostContents(options));
  if (made->lowering_) LEHR_TRY(made->lowering_->check());
  return made;
}

void HostContents::attach(runtime::Runtime& runtime, runtime::HostMachine& machine) {
  runtime_ = &runtime;
  machine_ = &machine;
  home_ = runtime.options().platform.home;
}

void HostContents::created(SequenceId id) {
  SequenceState& state = sequences_[id];
  state.tail = std::make_shared<Tail>(page_.bytes() * geometry_.groups());
  state.mass.assign(geometry_.groups(), {});
  state.peak.assign(geometry_.groups(), {});
}

void HostContents::forked(SequenceId parent, SequenceId child) {
  sequences_[child] = sequences_.at(parent);
}

std::byte* HostContents::tail_of(SequenceId id, std::uint32_t group) {
  std::shared_ptr<Tail>& tail = sequences_.at(id).tail;
  if (tail.use_count() > 1) tail = std::make_shared<Tail>(*tail);
  return tail->data() + page_.bytes() * group;
}

bool HostContents::fill(PageId page, std::uint32_t, std::span<std::byte> out) {
  const auto found = writing_.find(page);
  if (found == writing_.end()) return false;
  std::memcpy(out.data(), found->second, page_.bytes());
  return true;
}

Status HostContents::begin(std::span<const SequenceId> batch, std::span<const std::uint32_t> tokens,
                           void* stream) {
  if (mode_ != Mode::kIdle) return invalid("a step is open already");
  LEHR_ASSIGN(const std::vector<std::uint64_t> before, tokens_before(*runtime_, batch));
  batch_.clear();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    batch_.push_back({batch[i], tokens[i], before[i], nullptr, 0, tokens[i],
                      static_cast<std::int64_t>(before[i])});
  }
  return open_step(stream);
}

Status HostContents::begin_range(std::span<const RangeTokens> batch, void* stream) {
  if (mode_ != Mode::kIdle) return invalid("a step is open already");
  std::vector<SequenceId> ids;
  for (const RangeTokens& part : batch) ids.push_back(part.id);
  LEHR_ASSIGN(const std::vector<std::uint64_t> before, tokens_before(*runtime_, ids));
  batch_.clear();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const RangeTokens& part = batch[i];
    batch_.push_back(
        {part.id, part.tokens, before[i], nullptr, part.skip, part.queries, part.first});
  }
  return open_step(stream);
}

/// One query each, and one token or none for all: the policy's step. Else a chunk.
Status HostContents::open_step(void* stream) {
  if (stream != nullptr) return unsupported("stream: expected NULL on this machine");
  const auto all = [&](std::uint32_t tokens) {
    return std::all_of(batch_.begin(), batch_.end(),
                       [&](const Member& m) { return m.queries == 1 && m.tokens == tokens; });
  };
  const bool reads_only = !batch_.empty() && all(0);
  const bool single = reads_only || all(1);
  std::vector<SequenceId> stepping;
  for (const Member& m : batch_) {
    if (!reads_only || m.before > 0) stepping.push_back(m.id);  // a range may be empty
  }
  LEHR_TRY(single ? runtime_->begin_step(
                        stepping, reads_only ? runtime::Growth::kNone : runtime::Growth::kOneToken)
                  : grow());
  if (!single || rounding_) {  // full pages are written over what was the tail
    for (Member& m : batch_) m.tail = sequences_.at(m.id).tail;
  }
  boxes_.resize(std::size_t{runtime_->table().rows()} * 2 * page_.dim);
  mode_ = single ? Mode::kStep : Mode::kChunk;
  layers_.begin();
  before_ = stats_;
  return {};
}

/// Room for the chunk's tokens; all members or none.
Status HostContents::grow() {
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    Status grown = runtime_->append(batch_[i].id, batch_[i].tokens);
    if (grown) continue;
    (void)machine_->take_deferred();
    for (std::size_t j = 0; j < i; ++j)
      LEHR_TRY(runtime_->truncate(batch_[j].id, batch_[j].before));
    return grown;
  }
  for (PageOp& op : machine_->take_deferred()) deferred_[op.page].push_back(op);
  return {};
}

/// The page's contents are whole, or as whole as this chunk makes them: to every copy that waits.
Status HostContents::bring(PageId page) {
  const auto found = deferred_.find(page);
  if (found == deferred_.end()) return {};
  LEHR_TRY(machine_->fill_now(found->second));
  deferred_.erase(found);
  return {};
}

Status HostContents::page_filled(PageId page, std::byte* contents) {
  if (rounding_) {
    LEHR_TRY(rounding_->lower(contents));
    rounding_->widen(contents, contents);
  }
  box_of(page_, contents, boxes_.data() + std::size_t{page} * 2 * page_.dim, scratch_);
  if (mode_ == Mode::kStep) return {};  // the step loop asks for it
  writing_[page] = contents;
  Status brought = bring(page);
  writing_.erase(page);
  return brought;
}

Status HostContents::write_rows(std::uint32_t layer, std::size_t index, std::uint32_t head,
                                const Tensor& k, const Tensor& v) {
  const Member& m = batch_[index];
  if (m.tokens == 0) return {};
  const std::uint32_t group = layer * geometry_.kv_heads + head;
  std::byte* const contents = tail_of(m.id, group);
  const auto blocks = runtime_->blocks(m.id);
  const PageId offset = runtime_->table().group_offset(layer, head);
  const std::size_t row_bytes = std::size_t{page_.dim} * bytes_of(page_.element);
  for (std::uint32_t j = 0; j < m.tokens; ++j) {
    const std::uint64_t position = m.before + j;
    const std::size_t token = position % page_.tokens;
    if (token == 0) std::memset(contents, 0, page_.bytes());
    const std::size_t row = std::size_t{m.skip} + j;
    std::memcpy(contents + token * row_bytes, k.row(index, head, row), row_bytes);
    std::memcpy(contents + page_.half_bytes() + token * row_bytes, v.row(index, head, row),
                row_bytes);
    if (token + 1 == page_.tokens)
      LEHR_TRY(page_filled(blocks[position / page_.tokens] + offset, contents));
  }
  const PageId tail = blocks.back() + offset;
  if (mode_ == Mode::kStep) {
    writing_[tail] = contents;
  } else if ((m.before + m.tokens) % page_.tokens != 0) {
    writing_[tail] = contents;
    LEHR_TRY(bring(tail));
    writing_.erase(tail);
  }
  return {};
}

Status HostContents::append(std::uint32_t layer, const Tensor& k, const Tensor& v) {
  if (mode_ == Mode::kIdle) return invalid("no step is open");
  LEHR_TRY(layers_.check_append(layer, geometry_.layers));
  std::uint32_t most = 0;
  for (const Member& m : batch_) most = std::max(most, m.tokens == 0 ? 0 : m.skip + m.tokens);
  LEHR_TRY(check_kv(geometry_, page_.element, batch_.size(), most, k, v));
  LEHR_TRY(close_layer());
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    for (std::uint32_t head = 0; head < geometry_.kv_heads; ++head)
      LEHR_TRY(write_rows(layer, i, head, k, v));
  }
  layers_.append();
  return {};
}

/// The layer is done; without an attend() its tails are still written.
Status HostContents::close_layer() {
  if (layers_.open(layers_.at()) && mode_ == Mode::kStep) LEHR_TRY(run_layer(nullptr));
  layers_.close();
  writing_.clear();
  return {};
}

Result<runtime::StepReport> HostContents::end() {
  if (mode_ == Mode::kIdle) return invalid("no step is open");
  LEHR_TRY(layers_.check_end(geometry_.layers));
  LEHR_TRY(close_layer());
  const Mode was = std::exchange(mode_, Mode::kIdle);
  deferred_.clear();
  batch_.clear();
  if (was == Mode::kStep) return runtime_->end_step();
  runtime::StepReport report;
  report.hits = stats_.read_in_hbm - before_.read_in_hbm;
  report.staged = stats_.read_below - before_.read_below;
  report.misses = stats_.read_in_place - before_.read_in_place + report.staged;
  report.reads = report.hits + report.misses;
  return report;
}

void HostContents::roll_back(const Member& m) {
  SequenceState& state = sequences_.at(m.id);
  if (m.tail) state.tail = m.tail;
  const std::uint32_t pages = geometry_.pages_for(m.before);
  for (auto& codes : state.mass) codes.resize(std::min<std::size_t>(codes.size(), pages));
  for (auto& codes : state.peak) codes.resize(std::min<std::size_t>(codes.size(), pages));
}

Status HostContents::abandon() {
  if (mode_ == Mode::kIdle) return invalid("no step is open");
  if (mode_ == Mode::kStep) runtime_->abandon_step();
  mode_ = Mode::kIdle;
  writing_.clear();
  deferred_.clear();
  (void)machine_->take_deferred();
  for (const Member& m : batch_) {
    LEHR_TRY(runtime_->truncate(m.id, m.before));
    roll_back(m);
  }
  batch_.clear();
  return {};
}

Status HostContents::truncate(SequenceId id, std::uint64_t tokens) {
  if (mode_ != Mode::kIdle) return invalid("a sequence cannot be truncated inside a step");
  const auto now = runtime_->tokens(id);
  if (!now) return not_found(fmt::format("no sequence {}", id));
  const std::uint64_t page = tokens / page_.tokens;
  const bool in_tail = *now % page_.tokens != 0 && page == *now / page_.tokens;
  std::shared_ptr<Tail> tail;
  if (tokens < *now && tokens % page_.tokens != 0 && !in_tail) {
    // The page that is partial from now on comes back to where it can be written.
    tail = std::make_shared<Tail>(page_.bytes() * geometry_.groups());
    below_.resize(page_.bytes());
    for (std::uint32_t group = 0; group < geometry_.groups(); ++group) {
      const PageId from = runtime_->blocks(id)[page] + group * PageTable::kRun;
      LEHR_ASSIGN(const std::byte* contents, locate_plain(from));
      std::memcpy(tail->data() + page_.bytes() * group, contents, page_.bytes());
    }
  }
  LEHR_TRY(runtime_->truncate(id, tokens));
  roll_back({id, 0, tokens, tail});
  return {};
}

Status HostContents::reorder(std::span<const SequenceId> ids,
                             std::span<const std::uint32_t> parents) {
  if (mode_ != Mode::kIdle) return invalid("sequences cannot be reordered inside a step");
  LEHR_TRY(runtime_->reorder(ids, parents));
  std::vector<SequenceState> next;
  for (const std::uint32_t parent : parents) next.push_back(sequences_.at(ids[parent]));
  for (std::size_t i = 0; i < ids.size(); ++i) sequences_[ids[i]] = std::move(next[i]);
  return {};
}

Status HostContents::lower(PageId page, std::span<std::byte> contents) {
  if (!lowering_) return internal_error("host contents: pages keep their precision");
  LEHR_TRY(lowering_->lower(contents.data()));
  // The box is that of what is stored now.
  wide_.resize(std::max(wide_.size(), page_.elements()));
  lowering_->widen(contents.data(), wide_.data());
  box_of({page_.tokens, page_.dim, Element::kF32}, reinterpret_cast<const std::byte*>(wide_.data()),
         boxes_.data() + std::size_t{page} * 2 * page_.dim, scratch_);
  return {};
}

Result<ContentsStats> HostContents::stats() {
  ContentsStats out = stats_;
  out.moved_pages = machine_->moved_pages();
  out.moved_bytes = machine_->moved_bytes();
  return out;
}

Result<std::shared_ptr<std::byte>> HostContents::shared_memory(Bytes bytes) {
  return std::shared_ptr<std::byte>(new std::byte[bytes], std::default_delete<std::byte[]>());
}

}  // namespace lehr::contents
