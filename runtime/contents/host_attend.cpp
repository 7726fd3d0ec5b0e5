// SPDX-License-Identifier: Apache-2.0
// Attention over the pages of a batch, wherever they lie, and dense copies of them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/core.h>

#include "kernels/base/mass.hpp"
#include "runtime/contents/host_contents.hpp"

namespace lehr::contents {

namespace {

/// Of a page that was read and had nothing to speak of; kNoMass: it was not read.
constexpr MassCode kLeastMass = kNoMass - 1;

float scale_of(const AttendCall& call, std::uint32_t dim) {
  return call.scale != 0 ? call.scale : 1.0F / std::sqrt(static_cast<float>(dim));
}

}  // namespace

/// Where a page can be read now. `scratch_at`: where in below_ a copy from a file may go.
Result<const std::byte*> HostContents::locate(PageId page, std::size_t scratch_at, bool count) {
  const runtime::PageTable& table = runtime_->table();
  if (resident(table.residency[page], kHbm)) {
    if (count) ++stats_.read_in_hbm;
    return static_cast<const std::byte*>(machine_->memory(kHbm, table.slot[kHbm][page]).data());
  }
  if (resident(table.residency[page], home_)) {
    if (count) ++stats_.read_in_place;
    return static_cast<const std::byte*>(machine_->memory(home_, table.slot[home_][page]).data());
  }
  for (std::size_t tier = std::size_t{home_} + 1; tier < table.slot.size(); ++tier) {
    if (!resident(table.residency[page], static_cast<TierId>(tier))) continue;
    if (count) ++stats_.read_below;
    std::byte* const out = below_.data() + scratch_at;
    LEHR_TRY(machine_->read_below(static_cast<TierId>(tier), table.slot[tier][page], page,
                                  table.version[page], {out, page_.bytes()}));
    return static_cast<const std::byte*>(out);
  }
  return internal_error(fmt::format("page {} has no copy anywhere", page));
}

/// A full page as elements of the caller's type, lowered or not. Valid until the next call.
Result<const std::byte*> HostContents::locate_plain(PageId page) {
  LEHR_ASSIGN(const std::byte* stored, locate(page, 0, false));
  if (!runtime_->table().is_lowered(page)) return stored;
  plain_.resize(page_.bytes());
  lowering_->widen(stored, plain_.data());
  return static_cast<const std::byte*>(plain_.data());
}

/// Pages of a group for this step: those chosen by the boxes of its keys.
void HostContents::choose(const AttendCall& call, std::size_t member, std::uint32_t head) {
  const Member& m = batch_[member];
  const auto blocks = runtime_->blocks(m.id);
  auto& out = chosen_[member * geometry_.kv_heads + head];
  scores_.resize(blocks.size());
  if (call.choice.by != ChoiceRule::By::kAll) {
    const std::uint32_t ratio = geometry_.q_heads / geometry_.kv_heads;
    const std::size_t dim = page_.dim;
    q_.resize(ratio * dim);
    for (std::uint32_t i = 0; i < ratio; ++i)
      to_floats(call.q.element, call.q.row(member, std::size_t{head} * ratio + i, 0),
                q_.data() + i * dim, dim);
    const PageId offset = runtime_->table().group_offset(layers_.at(), head);
    for (std::size_t p = 0; p + 1 < blocks.size(); ++p) {
      const float* box = boxes_.data() + (std::size_t{blocks[p]} + offset) * 2 * dim;
      scores_[p] = box_score(page_.dim, q_.data(), ratio, box);
    }
    // The tail has no box yet and is read in any case: it outranks nothing.
    scores_.back() = -std::numeric_limits<float>::infinity();
  }
  choose_pages(call.choice, scores_, scale_of(call, page_.dim), out);
}

/// What is read for the first time is expected to have its even share: nothing at all would be a
/// promise.
void HostContents::expect_evenly(std::span<const std::uint32_t> pages, std::span<MassCode> mass,
                                 std::span<MassCode> peak) {
  const MassCode even = mass_code(1.0F / static_cast<float>(std::max<std::size_t>(1, mass.size())));
  for (const std::uint32_t p : pages) {
    if (mass[p] == kNoMass) mass[p] = peak[p] = even;
  }
}

/// The step loop's layer: what is read, from where; what moves.
Status HostContents::run_layer(const AttendCall* call) {
  std::vector<runtime::GroupSelection> groups;
  chosen_.resize(batch_.size() * geometry_.kv_heads);
  for (std::size_t i = 0; i < batch_.size() && call != nullptr; ++i) {
    if (runtime_->blocks(batch_[i].id).empty()) continue;  // of a range
    SequenceState& state = sequences_.at(batch_[i].id);
    const std::size_t pages = runtime_->blocks(batch_[i].id).size();
    for (std::uint32_t head = 0; head < geometry_.kv_heads; ++head) {
      choose(*call, i, head);
      const std::uint32_t group = layers_.at() * geometry_.kv_heads + head;
      state.mass[group].resize(pages, kNoMass);
      state.peak[group].resize(pages, kNoMass);
      expect_evenly(chosen_[i * geometry_.kv_heads + head], state.mass[group], state.peak[group]);
      runtime::GroupSelection selection;
      selection.sequence = batch_[i].id;
      selection.kv_head = head;
      selection.pages = chosen_[i * geometry_.kv_heads + head];
      selection.mass = state.mass[group].data();
      selection.peak = state.peak[group].data();
      groups.push_back(selection);
    }
  }
  return runtime_->run_layer(layers_.at(), groups);
}

void HostContents::note_mass(const AttendCall& call, std::size_t member, std::uint32_t head,
                             std::span<const std::uint32_t> pages) {
  const std::uint32_t ratio = geometry_.q_heads / geometry_.kv_heads;
  const std::uint32_t group = layers_.at() * geometry_.kv_heads + head;
  SequenceState& state = sequences_.at(batch_[member].id);
  const std::size_t all = runtime_->blocks(batch_[member].id).size();
  state.mass[group].resize(all, kNoMass);
  state.peak[group].resize(all, kNoMass);
  const std::size_t row = (member * geometry_.kv_heads + head) * std::size_t{call.code_pitch};
  MassCode* const mass = call.mass == nullptr ? nullptr : call.mass + row;
  MassCode* const peak = call.peak == nullptr ? nullptr : call.peak + row;
  if (mass != nullptr) std::fill_n(mass, call.code_pitch, kNoMass);
  if (peak != nullptr) std::fill_n(peak, call.code_pitch, kNoMass);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    float sum = 0;
    float most = 0;
    for (std::uint32_t r = 0; r < ratio; ++r) {
      const SoftmaxPair pair = pairs_[i * ratio + r];
      if (pair.d == 0.0F || totals_[r].d == 0.0F) continue;
      const float share = pair.d * std::exp2(pair.m - totals_[r].m) / totals_[r].d;
      sum += share;
      most = std::max(most, share);
    }
    const MassCode mean_code = mass_code(sum / static_cast<float>(ratio));
    const MassCode peak_code = mass_code(most);
    state.mass[group][pages[i]] = std::min(mean_code, kLeastMass);
    state.peak[group][pages[i]] = std::min(peak_code, kLeastMass);
    if (mass != nullptr) mass[pages[i]] = mean_code;
    if (peak != nullptr) peak[pages[i]] = peak_code;
  }
}

/// The first `queries` of a member see nothing here.
void HostContents::no_answer(const AttendCall& call, std::size_t member, std::uint32_t head,
                             std::uint32_t queries) const {
  const std::uint32_t ratio = geometry_.q_heads / geometry_.kv_heads;
  const std::size_t row_bytes = std::size_t{page_.dim} * bytes_of(call.out.element);
  for (std::uint32_t r = 0; r < ratio; ++r) {
    const std::size_t q_head = std::size_t{head} * ratio + r;
    for (std::uint32_t t = 0; t < queries; ++t) {
      std::memset(call.out.row(member, q_head, t), 0, row_bytes);
      if (call.totals == nullptr) continue;
      call.totals[(member * geometry_.q_heads + q_head) *
                      static_cast<std::size_t>(call.q.shape[2]) +
                  t] = {-std::numeric_limits<float>::infinity(), 0};
    }
  }
}

Status HostContents::attend_member(const AttendCall& call, std::size_t member, std::uint32_t head) {
  const Member& m = batch_[member];
  const std::uint32_t ratio = geometry_.q_heads / geometry_.kv_heads;
  const std::size_t dim = page_.dim;
  const auto blocks = runtime_->blocks(m.id);
  // Queries from before a range see nothing of it.
  const std::uint32_t skip =
      m.first >= 0 ? 0 : static_cast<std::uint32_t>(std::min<std::int64_t>(-m.first, m.queries));
  const std::uint32_t blind = blocks.empty() ? m.queries : skip;
  no_answer(call, member, head, blind);
  if (blind == m.queries) return {};
  const PageId offset = runtime_->table().group_offset(layers_.at(), head);
  const std::uint64_t tokens = m.before + m.tokens;
  auto& pages = chosen_[member * geometry_.kv_heads + head];
  if (mode_ == Mode::kChunk) choose_pages({}, std::vector<float>(blocks.size()), 1, pages);
  below_.resize(pages.size() * page_.bytes());
  if (lowering_) wide_.resize(std::max(wide_.size(), pages.size() * page_.elements()));
  refs_.clear();
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const std::uint64_t first = std::uint64_t{pages[i]} * page_.tokens;
    const auto here =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(page_.tokens, tokens - first));
    const std::byte* data = nullptr;
    bool wide = false;
    if (mode_ == Mode::kChunk && here < page_.tokens) {
      data = tail_of(m.id, layers_.at() * geometry_.kv_heads + head);
    } else {
      const PageId page = blocks[pages[i]] + offset;
      LEHR_ASSIGN(data, locate(page, i * page_.bytes(), true));
      wide = runtime_->table().is_lowered(page);
      if (wide) {
        float* const floats = wide_.data() + i * page_.elements();
        lowering_->widen(data, floats);
        data = reinterpret_cast<const std::byte*>(floats);
      }
    }
    refs_.push_back({data, first, here, wide});
  }
  const std::uint32_t rows = (m.queries - skip) * ratio;
  q_.resize(rows * dim);
  out_.resize(rows * dim);
  for (std::uint32_t row = 0; row < rows; ++row) {
    to_floats(call.q.element,
              call.q.row(member, std::size_t{head} * ratio + row % ratio, skip + row / ratio),
              q_.data() + row * dim, dim);
  }
  pairs_.resize(pages.size() * ratio);
  totals_.resize(ratio);
  GroupQuery query;
  query.q = q_.data();
  query.out = out_.data();
  query.rows = rows;
  query.ratio = ratio;
  query.first = static_cast<std::uint64_t>(m.first + skip);
  query.scale = scale_of(call, page_.dim);
  query.soft_cap = call.soft_cap;
  query.window = call.window;
  attend_group(page_, query, refs_, pairs_.data(), totals_.data(), scratch_);
  for (std::uint32_t row = 0; row < rows; ++row) {
    from_floats(call.out.element, out_.data() + row * dim,
                call.out.row(member, std::size_t{head} * ratio + row % ratio, skip + row / ratio),
                dim);
    if (call.totals == nullptr) continue;
    const std::size_t q_head = member * geometry_.q_heads + std::size_t{head} * ratio + row % ratio;
    call.totals[q_head * static_cast<std::size_t>(call.q.shape[2]) + skip + row / ratio] =
        scratch_.totals[row];
  }
  note_mass(call, member, head, pages);
  return {};
}

Status HostContents::attend(std::uint32_t layer, const AttendCall& call) {
  if (mode_ == Mode::kIdle) return invalid("no step is open");
  LEHR_TRY(layers_.check_attend(layer));
  std::uint32_t most = 0;
  std::size_t pages = 0;
  for (const Member& m : batch_) {
    most = std::max(most, m.queries);
    pages = std::max(pages, runtime_->blocks(m.id).size());
  }
  LEHR_TRY(check_attend_call(geometry_, call.q.element, call, batch_.size(), most, pages,
                             mode_ == Mode::kChunk));
  if (mode_ == Mode::kStep) LEHR_TRY(run_layer(&call));
  chosen_.resize(batch_.size() * geometry_.kv_heads);
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    for (std::uint32_t head = 0; head < geometry_.kv_heads; ++head)
      LEHR_TRY(attend_member(call, i, head));
  }
  layers_.close();
  return {};
}

Status HostContents::gather(std::uint32_t layer, std::span<const SequenceId> ids, const Tensor& k,
                            const Tensor& v) {
  if (mode_ == Mode::kStep || (mode_ == Mode::kChunk && !layers_.open(layer)))
    return invalid("inside a step only a chunk's own layer can be gathered, before its attention");
  LEHR_TRY(gathered_lengths(geometry_, page_.element, *runtime_, layer, ids, k, v));
  below_.resize(page_.bytes());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    for (std::uint32_t head = 0; head < geometry_.kv_heads; ++head) {
      LEHR_TRY(gather_rows(layer, ids[i], head, 0, i, k));
      LEHR_TRY(gather_rows(layer, ids[i], head, page_.half_bytes(), i, v));
    }
  }
  return {};
}

/// K (offset 0) or V (offset half a page) of one sequence and KV head.
Status HostContents::gather_rows(std::uint32_t layer, SequenceId id, std::uint32_t head,
                                 std::size_t offset, std::size_t index, const Tensor& out) {
  const std::size_t row_bytes = std::size_t{page_.dim} * bytes_of(page_.element);
  const std::uint64_t tokens = runtime_->tokens(id).value_or(0);
  const auto blocks = runtime_->blocks(id);
  const PageId in_block = runtime_->table().group_offset(layer, head);
  const std::byte* const tail =
      sequences_.at(id).tail->data() + page_.bytes() * (layer * geometry_.kv_heads + head);
  const std::byte* page = nullptr;
  for (std::uint64_t t = 0; t < static_cast<std::uint64_t>(out.shape[2]); ++t) {
    if (t >= tokens) {
      std::memset(out.row(index, head, t), 0, row_bytes);
      continue;
    }
    const std::size_t token = t % page_.tokens;
    if (token == 0 && t + page_.tokens > tokens) {
      page = tail;
    } else if (token == 0) {
      LEHR_ASSIGN(page, locate_plain(blocks[t / page_.tokens] + in_block));
    }
    std::memcpy(out.row(index, head, t), page + offset + token * row_bytes, row_bytes);
  }
  return {};
}

}  // namespace lehr::contents
