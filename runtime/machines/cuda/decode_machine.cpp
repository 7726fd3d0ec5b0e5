// SPDX-License-Identifier: Apache-2.0
#include "runtime/machines/cuda/decode_machine.hpp"

#include <algorithm>
#include <chrono>

#include <fmt/core.h>

#include "runtime/machines/cuda/output_check.hpp"
#include "runtime/page_table.hpp"

namespace lehr::runtime {

Bytes box_bytes(const KvGeometry& g, std::uint64_t pages) {
  return pages * 2 * g.head_dim * sizeof(std::uint16_t);
}

}  // namespace lehr::runtime

namespace lehr::runtime::cuda {

using kernels::PageEntry;

namespace {

/// Room for this much growth of a context before the step has to be captured again.
constexpr std::uint32_t kSparePages = 64;
constexpr std::uint32_t kNoGroup = ~0U;
constexpr std::size_t kPrefetch = 16;  ///< operations ahead
constexpr std::uint32_t kRepeats = 32;
/// Groups whose outputs are compared, and how far they may be off: products of fp16 probabilities.
constexpr std::uint32_t kLooked = 64;
constexpr double kMostError = 4e-3;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

DecodeMachine::DecodeMachine(CudaMachineOptions options, std::unique_ptr<DecodeDevice> device)
    : options_(std::move(options)),
      device_(std::move(device)),
      ledger_(options_.tier_pages),
      last_slot_(options_.tier_pages.size()) {
  if (!options_.log) options_.log = std::make_shared<DecodeLog>();
  const KvGeometry& g = options_.geometry;
  shape_.q_heads = g.q_heads;
  shape_.kv_heads = g.kv_heads;
  shape_.head_dim = g.head_dim;
  shape_.page_tokens = g.page_tokens;
}

Status DecodeMachine::run_layer(Step, std::uint32_t, std::span<const PageOp>) {
  return internal_error("cuda machine: a layer without its groups");
}

// ---------------------------------------------------------------------- what lies where

Status DecodeMachine::expect(TierId tier, SlotId slot, PageId page, std::uint32_t version) const {
  if (!ledger_.has(tier, slot)) {
    return unsupported(fmt::format("cuda machine: tier {} has no slot {}", tier, slot));
  }
  const SlotContents& there = ledger_.tier(tier)[slot];
  if (there.is(page, version)) return {};
  return corrupt(fmt::format("tier {}, slot {}: expected page {} version {}, it holds page {} "
                             "version {}",
                             tier, slot, page, version, there.page, there.version),
                 Reason::kChecksum);
}

void DecodeMachine::put(TierId tier, SlotId slot, SlotContents contents) {
  ledger_.at(tier, slot) = contents;
  std::vector<SlotId>& last = last_slot_[tier];
  if (contents.page >= last.size()) last.resize(contents.page + 1, kNoSlot);
  last[contents.page] = slot;
}

std::uint32_t DecodeMachine::contents_name(PageId page) const {
  const kernels::PageSource& r = options_.recorded;
  if (r.k == nullptr || page == kNoPage) return page;
  // Sequences are all the recorded one: which of them it is does not matter.
  const std::uint32_t groups = r.layers * r.kv_heads;
  const std::uint32_t group = page / PageTable::kRun % groups;
  return group * r.pages + table_->position[page];
}

Status DecodeMachine::set_up(std::span<const PageOp> ops) {
  std::vector<kernels::PageContents> made;
  std::vector<kernels::PageCopy> copies;
  for (const PageOp& op : ops) {
    if (!ledger_.has(op.to, op.to_slot))
      return unsupported("cuda machine: pages live in HBM and on the home tier");
    const std::uint64_t to = address(op.to, op.to_slot);
    if (op.kind == PageOp::Kind::kFill) {
      const std::uint32_t tokens = op.tokens != 0 ? op.tokens : shape_.page_tokens;
      made.push_back({to, contents_name(op.page), tokens});
      put(op.to, op.to_slot, {op.page, op.version, tokens});
      continue;
    }
    LEHR_TRY(expect(op.from, op.from_slot, op.page, op.version));
    copies.push_back({address(op.from, op.from_slot), to});
    put(op.to, op.to_slot, ledger_.at(op.from, op.from_slot));
  }
  return device_->set_up(made, copies);
}

// ---------------------------------------------------------------------- rows

std::size_t DecodeMachine::row_of(std::uint32_t sequence) const {
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    if (rows_[r] && rows_[r]->sequence == sequence) return r;
  }
  return rows_.size();
}

/// Tables that hold the batch and its contexts; they grow by a new capture.
Status DecodeMachine::fit(std::span<const GroupWork> groups) {
  std::size_t longest = 0;
  for (const GroupWork& g : groups) longest = std::max(longest, g.blocks.size());
  const auto batch = static_cast<std::uint32_t>(groups.size() / shape_.kv_heads);
  if (batch <= shape_.sequences && longest <= shape_.max_pages) return {};
  longest = std::max<std::size_t>(longest, options_.pages);
  const std::size_t wanted = (longest + kSparePages + 63) / 64 * 64;
  if (wanted > kernels::kMaxPages) {
    return unsupported(fmt::format("cuda machine: a context of {} pages, at most {} are offered",
                                   longest, kernels::kMaxPages - kSparePages));
  }
  shape_.sequences = std::max({batch, shape_.sequences, options_.sequences});
  shape_.max_pages = std::max(static_cast<std::uint32_t>(wanted), shape_.max_pages);
  LEHR_TRY(kernels::check_shape(shape_));
  LEHR_TRY(device_->prepare(shape_));
  ++options_.log->captures;
  const std::size_t entries = shape_.groups() * shape_.max_pages;
  mirror_.assign(options_.geometry.layers, std::vector<PageEntry>(entries, kernels::kAbsentPage));
  install_tick_.assign(entries, kNever);
  installed_at_.clear();
  rows_.assign(shape_.sequences, std::nullopt);
  return {};
}

/// Sequences keep their row; new ones take a free row, or that of a sequence that is not in the
/// batch.
void DecodeMachine::give_rows(std::span<const GroupWork> groups) {
  fresh_.clear();
  std::vector<std::uint8_t> taken(rows_.size(), 0);
  std::vector<const GroupWork*> homeless;
  for (std::size_t i = 0; i < groups.size(); i += shape_.kv_heads) {
    const GroupWork& g = groups[i];
    const std::size_t r = row_of(g.sequence);
    if (r < rows_.size() && rows_[r]->first == g.blocks.front()) {
      taken[r] = 1;
    } else {
      if (r < rows_.size()) rows_[r].reset();
      homeless.push_back(&g);
    }
  }
  for (const GroupWork* g : homeless) {
    std::size_t r = rows_.size();
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (taken[i] == 0 && (r == rows_.size() || (rows_[r] && !rows_[i]))) r = i;
    }
    taken[r] = 1;
    rows_[r] = Row{g->sequence, g->blocks.front()};
    fresh_.push_back(static_cast<std::uint32_t>(r));
  }
}

PageEntry DecodeMachine::known_entry(PageId page) const {
  // The home copy first: HBM copies are dropped without a word.
  for (std::size_t t = last_slot_.size(); t-- > 0;) {
    if (page >= last_slot_[t].size()) continue;
    const SlotId slot = last_slot_[t][page];
    if (slot != kNoSlot && ledger_.tier(static_cast<TierId>(t))[slot].page == page)
      return entry(static_cast<TierId>(t), slot);
  }
  return kernels::kAbsentPage;
}

Status DecodeMachine::start_fresh_rows(const LayerWork& work) {
  const std::uint32_t heads = shape_.kv_heads;
  const std::size_t row_entries = std::size_t{heads} * shape_.max_pages;
  std::vector<PageEntry> entries(options_.geometry.layers * row_entries);
  for (const std::uint32_t row : fresh_) {
    std::fill(entries.begin(), entries.end(), kernels::kAbsentPage);
    const auto g = std::find_if(work.groups.begin(), work.groups.end(), [&](const GroupWork& w) {
      return w.sequence == rows_[row]->sequence;
    });
    for (std::uint32_t group = 0; group < options_.geometry.layers * heads; ++group) {
      for (std::size_t b = 0; b < g->blocks.size(); ++b) {
        entries[group * std::size_t{shape_.max_pages} + b] =
            known_entry(g->blocks[b] + group * PageTable::kRun);
      }
    }
    for (std::uint32_t l = 0; l < options_.geometry.layers; ++l) {
      std::copy_n(entries.begin() + static_cast<std::ptrdiff_t>(l * row_entries), row_entries,
                  mirror_[l].begin() + static_cast<std::ptrdiff_t>(row * row_entries));
    }
    const auto before = static_cast<std::uint32_t>(g->tokens - 1);
    LEHR_TRY(device_->start_row(row, before, entries));
  }
  return {};
}

Status DecodeMachine::begin_step(const LayerWork& work) {
  step_began_ns_ = now_ns();
  LEHR_TRY(fit(work.groups));
  give_rows(work.groups);
  LEHR_TRY(start_fresh_rows(work));
  lists_.begin(counted_, options_.geometry.layers);
  std::vector<std::uint32_t> lengths(shape_.sequences, 0);
  by_group_.assign(shape_.groups(), kNoGroup);
  for (std::size_t i = 0; i < work.groups.size(); ++i) {  // the same in every layer of the step
    const GroupWork& g = work.groups[i];
    const std::size_t row = row_of(g.sequence);
    lengths[row] = static_cast<std::uint32_t>(g.tokens);
    by_group_[row * shape_.kv_heads + g.kv_head] = static_cast<std::uint32_t>(i);
  }
  lists_.lengths(lengths);
  step_ = {};
  step_.times.step = work.step;
  return {};
}

// ---------------------------------------------------------------------- a layer's operations

Status DecodeMachine::list_fill(const PageOp& op) {
  const std::uint32_t tokens = op.tokens != 0 ? op.tokens : shape_.page_tokens;
  if (op.to != kHbm || !ledger_.has(op.to, op.to_slot))
    return internal_error("cuda machine: a layer writes its token elsewhere than in HBM");
  SlotContents& there = ledger_.at(op.to, op.to_slot);
  const bool grows = there.page == op.page && there.tokens + 1 == tokens;
  if (!grows && tokens > 1) {  // another sequence's tail was copied on write
    early_.push_back({0, address(op.to, op.to_slot), contents_name(op.page), tokens - 1});
  }
  put(op.to, op.to_slot, {op.page, op.version, tokens});
  return {};
}

Status DecodeMachine::note_read(const PageOp& op) {
  if (!holds(op.from, op.from_slot, op.page, op.version))
    return expect(op.from, op.from_slot, op.page, op.version);
  if (op.page >= reads_.size()) reads_.resize(op.page + std::size_t{1});
  Read& read = reads_[op.page];
  read.tick = tick_;
  if (read.slot != op.from_slot || read.tier != op.from) {
    read.slot = op.from_slot;
    read.tier = op.from;
    read.over_link = device_->over_link(op.from);
    read.entry = entry(op.from, op.from_slot);
  }
  read.install = 0;
  if (read.over_link) ++record_.over_link;
  if (op.kind != PageOp::Kind::kFetch) return {};
  if (op.to != kHbm || !ledger_.has(op.to, op.to_slot))
    return internal_error("cuda machine: a page is kept elsewhere than in HBM");
  read.install = address(op.to, op.to_slot);
  put(op.to, op.to_slot, ledger_.at(op.from, op.from_slot));
  ++record_.installed;
  return {};
}

Status DecodeMachine::list_copy(const PageOp& op) {
  LEHR_TRY(expect(op.from, op.from_slot, op.page, op.version));
  if (!ledger_.has(op.to, op.to_slot))
    return unsupported("cuda machine: pages live in HBM and on the home tier");
  const std::uint64_t from = address(op.from, op.from_slot);
  const std::uint64_t to = address(op.to, op.to_slot);
  if (reads_begun_) {
    moves_.push_back({from, to});
    ++(op.to == kHbm ? record_.arrived : record_.written);
  } else {
    early_.push_back({from, to, op.page, 0});
  }
  put(op.to, op.to_slot, ledger_.at(op.from, op.from_slot));
  return {};
}

/// A layer reads thousands of pages that lie anywhere: what is known of them comes in time.
void DecodeMachine::prefetch(const PageOp& op) const {
  if (ledger_.has(op.from, op.from_slot)) __builtin_prefetch(&ledger_.tier(op.from)[op.from_slot]);
  if (op.page < reads_.size()) __builtin_prefetch(&reads_[op.page], 1);
}

Status DecodeMachine::list_op(const PageOp& op) {
  reads_begun_ |= op.kind != PageOp::Kind::kCopy;
  switch (op.kind) {
    case PageOp::Kind::kFill:
      return list_fill(op);
    case PageOp::Kind::kRead:
    case PageOp::Kind::kFetch:
      return note_read(op);
    case PageOp::Kind::kCopy:
      return list_copy(op);
    case PageOp::Kind::kLower:
      break;  // refused when the runtime is made
  }
  return internal_error("cuda machine: unknown operation");
}

Status DecodeMachine::list_page(std::size_t group, std::uint32_t index, PageId page) {
  if (page >= reads_.size() || reads_[page].tick != tick_) {
    return internal_error(
        fmt::format("cuda machine: page {} is selected, but no operation reads it", page));
  }
  Read& read = reads_[page];
  const std::size_t at = group * shape_.max_pages + index;
  PageEntry& known = mirror_[layer_][at];
  if (known != read.entry) {
    known = read.entry;
    entries_.push_back({read.entry, static_cast<std::uint32_t>(at), 0});
  }
  if (read.install != 0) {
    installs_.push_back({read.install, static_cast<std::uint32_t>(at), 0});
    newly_installed_.push_back(at);
    install_tick_[at] = tick_;
    read.install = 0;  // a shared page is kept once
  }
  pages_.push_back(static_cast<std::uint16_t>(index));
  if (named()) names_.push_back(contents_name(page));
  return {};
}

Status DecodeMachine::list_groups(std::span<const GroupWork> groups) {
  for (std::size_t i = 0; i < by_group_.size(); ++i) {
    row_starts_.push_back(static_cast<std::uint32_t>(pages_.size()));
    if (by_group_[i] == kNoGroup) {
      tails_.push_back(kNoPage);
      continue;
    }
    const GroupWork& g = groups[by_group_[i]];
    const auto tail = static_cast<std::uint32_t>(g.blocks.size() - 1);
    const PageEntry* const known = mirror_[layer_].data() + i * shape_.max_pages;
    for (std::size_t p = 0; p < g.pages.size(); ++p) {
      const std::uint32_t index = g.pages[p];
      if (index >= tail) break;
      if (p + kPrefetch < g.pages.size()) __builtin_prefetch(known + g.pages[p + kPrefetch], 1);
      LEHR_TRY(list_page(i, index, g.blocks[index] + g.offset));
    }
    LEHR_TRY(list_page(i, tail, g.blocks[tail] + g.offset));
    tails_.push_back(contents_name(g.blocks[tail] + g.offset));
  }
  row_starts_.push_back(static_cast<std::uint32_t>(pages_.size()));
  return {};
}

/// Installs of the layer before are over; places that this layer sets itself are left to it.
void DecodeMachine::clear_old_installs() {
  for (const std::size_t at : installed_at_) {
    if (install_tick_[at] != tick_) installs_.push_back({0, static_cast<std::uint32_t>(at), 0});
  }
  installed_at_.swap(newly_installed_);
  newly_installed_.clear();
}

void DecodeMachine::write_layer(std::uint32_t layer) {
  kernels::LayerLists l{};
  l.rows_at = lists_.put<std::uint32_t>(row_starts_);
  l.pages_at = lists_.put<std::uint16_t>(pages_);
  l.tails_at = lists_.put<std::uint32_t>(tails_);
  if (named()) l.names_at = lists_.put<std::uint32_t>(names_);
  l.early_at = lists_.put<kernels::EarlyWork>(early_);
  l.early = static_cast<std::uint32_t>(early_.size());
  l.entries_at = lists_.put<kernels::EntryWrite>(entries_);
  l.entries = static_cast<std::uint32_t>(entries_.size());
  l.installs_at = lists_.put<kernels::EntryWrite>(installs_);
  l.installs = static_cast<std::uint32_t>(installs_.size());
  l.moves_at = lists_.put<kernels::PageCopy>(moves_);
  l.moves = static_cast<std::uint32_t>(moves_.size());
  lists_.layer(layer, l);
}

Status DecodeMachine::run(const LayerWork& work) {
  if (work.groups.empty()) return unsupported("cuda machine: a step without sequences");
  if (work.layer == 0) LEHR_TRY(begin_step(work));
  tick_ = work.step * options_.geometry.layers + work.layer;
  layer_ = work.layer;
  reads_begun_ = false;
  record_ = {};
  for (auto* list : {&row_starts_, &tails_, &names_}) list->clear();
  pages_.clear();
  early_.clear();
  entries_.clear();
  installs_.clear();
  moves_.clear();
  for (std::size_t i = 0; i < work.ops.size(); ++i) {
    if (i + kPrefetch < work.ops.size()) prefetch(work.ops[i + kPrefetch]);
    LEHR_TRY(list_op(work.ops[i]));
  }
  LEHR_TRY(list_groups(work.groups));
  clear_old_installs();
  if (!options_.tiering && (!moves_.empty() || record_.over_link > 0)) {
    // Write-backs are no reads: without tiering the home copy is simply not written.
    if (record_.over_link > 0 || record_.arrived > 0)
      return invalid("cuda machine: without tiering every page must stay in HBM");
    moves_.clear();
  }
  write_layer(work.layer);
  if (work.load != nullptr) record_.load = *work.load;
  if (work.predicted != nullptr) record_.predicted = *work.predicted;
  step_.layers.push_back(record_);
  return {};
}

// ---------------------------------------------------------------------- steps

Status DecodeMachine::end_step(Step) {
  const std::span<const std::byte> lists = lists_.finish();
  step_.host = static_cast<double>(now_ns() - step_began_ns_) * 1e-9;
  LEHR_TRY(device_->launch(lists));
  options_.log->steps.push_back(std::move(step_));
  ++counted_;
  collect_times();
  return {};
}

void DecodeMachine::collect_times() {
  for (StepTimes& times : device_->take_times()) {
    StepTimes& into = options_.log->steps[timed_++].times;
    times.step = into.step;
    measured_ += times.total;
    into = std::move(times);
  }
}

Status DecodeMachine::drain() {
  LEHR_TRY(device_->drain());
  collect_times();
  return {};
}

Status DecodeMachine::check() {
  LEHR_TRY(drain());
  std::vector<kernels::PageContents> pages;
  const auto tiers = options_.tiering ? ledger_.tiers() : std::size_t{1};
  for (std::size_t t = 0; t < tiers; ++t) {
    const auto slots = ledger_.tier(static_cast<TierId>(t));
    for (std::size_t s = 0; s < slots.size(); ++s) {
      if (slots[s].page == kNoPage) continue;
      pages.push_back({address(static_cast<TierId>(t), static_cast<SlotId>(s)),
                       contents_name(slots[s].page), slots[s].tokens});
    }
  }
  LEHR_ASSIGN(const std::uint64_t bad, device_->count_bad(pages));
  LEHR_ASSIGN(const std::uint64_t bad_reads, device_->bad_reads());
  if (options_.trace_kernels) {
    LEHR_ASSIGN(options_.log->kernel_stamps, device_->kernel_stamps());
  }
  DecodeLog& log = *options_.log;
  log.pages_checked = pages.size();
  log.pages_bad = bad;
  log.reads_bad = bad_reads;
  if (bad + bad_reads == 0) {
    LEHR_TRY(check_outputs());
    if (log.steps.empty() || options_.check_reads) return {};
    LEHR_ASSIGN(log.repeated, device_->repeat(kRepeats));
    return {};
  }
  return corrupt(fmt::format("cuda machine: {} of {} slots hold other contents than they should, "
                             "{} reads met such",
                             bad, pages.size(), bad_reads),
                 Reason::kChecksum);
}

Status DecodeMachine::check_outputs() {
  if (!named() || options_.log->steps.empty()) return {};
  LEHR_ASSIGN(const auto outputs, device_->outputs());
  if (outputs.empty()) return {};
  const double error = output_error(shape_, options_.recorded, lists_.finish(), outputs, kLooked);
  options_.log->output_error = error;
  if (error <= kMostError) return {};
  return corrupt(
      fmt::format("cuda machine: outputs are off by {:.2e} of their norm, at most {:.0e} "
                  "is expected of fp16",
                  error, kMostError));
}

Seconds DecodeMachine::take_measured() { return std::exchange(measured_, 0.0); }

std::vector<std::string> DecodeMachine::notes() const {
  const DecodeLog& log = *options_.log;
  std::vector<std::string> out = device_->notes();
  out.push_back(fmt::format("{} steps, the step was captured {} time{}", log.steps.size(),
                            log.captures, log.captures == 1 ? "" : "s"));
  if (log.pages_checked > 0) {
    out.push_back(
        fmt::format("verified {} slots by content: {} bad", log.pages_checked, log.pages_bad));
  }
  if (log.output_error >= 0) {
    out.push_back(
        fmt::format("outputs of the last step: off by {:.1e} of their norm (float64, up "
                    "to {} groups)",
                    log.output_error, kLooked));
  }
  if (options_.check_reads)
    out.push_back(fmt::format("verified every read by content: {} bad", log.reads_bad));
  return out;
}

}  // namespace lehr::runtime::cuda
