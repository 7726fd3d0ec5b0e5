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

TierId CudaMachineOptions::below_home() const {
  for (std::size_t t = std::size_t{platform.home} + 1; t < tier_pages.size(); ++t) {
    if (tier_pages[t] > 0) return static_cast<TierId>(t);
  }
  return 0;
}

std::uint32_t CudaMachineOptions::home_places() const {
  const std::uint32_t home = tier_pages[platform.home];
  if (below_home() == 0) return home;
  return home + (below.spare_pages != 0 ? below.spare_pages : std::clamp(home / 16, 256U, 65536U));
}

}  // namespace lehr::runtime

namespace lehr::runtime::cuda {

using kernels::PageEntry;

namespace {

/// Room for this much growth of a context before the step has to be captured again.
constexpr std::uint32_t kSparePages = 64;
constexpr std::uint32_t kNoGroup = ~0U;
constexpr std::uint32_t kRepeats = 32;
/// Groups whose outputs are compared, and how far they may be off: products of fp16 probabilities.
constexpr std::uint32_t kLooked = 64;
constexpr double kMostError = 4e-3;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Seconds seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

/// Of the parts of a step, in order: what the later ones waited for belongs to it.
void add_part(StepTimes& into, StepTimes part, std::uint32_t first_layer) {
  if (first_layer == 0) {
    part.step = into.step;
    into = std::move(part);
    return;
  }
  into.total += part.idle + part.total;
  into.copy += part.copy;
  into.launch += part.launch;
  into.digest = part.digest;
  for (std::size_t l = first_layer; l < std::min(into.layers.size(), part.layers.size()); ++l)
    into.layers[l] = part.layers[l];
}

}  // namespace

DecodeMachine::DecodeMachine(CudaMachineOptions options, std::unique_ptr<DecodeDevice> device)
    : options_(std::move(options)),
      device_(std::move(device)),
      home_(options_.platform.home),
      below_(options_.below_home()),
      ledger_(options_.tier_pages),
      last_slot_(options_.tier_pages.size()) {
  if (!options_.log) options_.log = std::make_shared<DecodeLog>();
  const KvGeometry& g = options_.geometry;
  shape_.q_heads = g.q_heads;
  shape_.kv_heads = g.kv_heads;
  shape_.head_dim = g.head_dim;
  shape_.page_tokens = g.page_tokens;
  memory_.resize(options_.tier_pages.size());
  for (const TierId t : {kHbm, home_}) memory_[t] = device_->memory(t);
}

Result<std::unique_ptr<DecodeMachine>> DecodeMachine::create(CudaMachineOptions options,
                                                             std::unique_ptr<DecodeDevice> device) {
  std::unique_ptr<DecodeMachine> made(new DecodeMachine(std::move(options), std::move(device)));
  const CudaMachineOptions& o = made->options_;
  const TierId below = made->below_;
  if (below == 0) return made;
  const auto& tiers = o.platform.tiers;
  const TierMemory& home = made->memory_[o.platform.home];
  for (std::size_t t = std::size_t{below} + 1; t < o.tier_pages.size(); ++t) {
    if (o.tier_pages[t] > 0)
      return unsupported("cuda machine: more than one tier below the home tier has pages");
  }
  if (tiers[below].directly_readable || home.host.empty()) {
    return unsupported(fmt::format("cuda machine: pages of {} do not go down to {}",
                                   tiers[o.platform.home].name, tiers[below].name));
  }
  made->home_slots_.emplace(o.tier_pages[o.platform.home],
                            o.home_places() - o.tier_pages[o.platform.home],
                            !o.below.reuse_at_once);
  BelowConfig config;
  config.home = tiers[o.platform.home].name;
  config.name = tiers[below].name;
  config.slots = o.tier_pages[below];
  config.page_bytes = o.geometry.page_bytes();
  config.host = home.host;
  config.options = o.below;
  LEHR_ASSIGN(made->below_tier_, BelowTier::create(config, *made->home_slots_));
  return made;
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
  SlotContents& there = ledger_.at(tier, slot);
  if (below_ != 0) journal_.push_back({tier, slot, there});
  there = contents;
  std::vector<SlotId>& last = last_slot_[tier];
  if (contents.page >= last.size()) last.resize(contents.page + std::size_t{1}, kNoSlot);
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

// ---------------------------------------------------------------------- a step

Status DecodeMachine::begin_step(const LayerWork& work) {
  LEHR_TRY(give_up());
  step_began_ns_ = now_ns();
  LEHR_TRY(fit(work.groups));
  give_rows(work.groups);
  LEHR_TRY(start_fresh_rows(work));
  for (const TierId t : {kHbm, home_}) {
    if (last_slot_[t].size() < table_->rows()) last_slot_[t].resize(table_->rows(), kNoSlot);
  }
  kept_.resize(last_slot_[kHbm].size());
  lengths_.assign(shape_.sequences, 0);
  by_group_.assign(shape_.groups(), kNoGroup);
  for (std::size_t i = 0; i < work.groups.size(); ++i) {  // the same in every layer of the step
    const GroupWork& g = work.groups[i];
    const std::size_t row = row_of(g.sequence);
    lengths_[row] = static_cast<std::uint32_t>(g.tokens);
    by_group_[row * shape_.kv_heads + g.kv_head] = static_cast<std::uint32_t>(i);
  }
  lists_.begin(counted_, options_.geometry.layers);
  lists_.lengths(lengths_);
  listed_ = {};
  ++counted_;
  in_step_ = true;
  StepRecord& record = options_.log->steps.emplace_back();
  record.times.step = work.step;
  record.began = seconds(step_began_ns_);
  record.sequences = static_cast<std::uint32_t>(work.groups.size() / shape_.kv_heads);
  return {};
}

/// Spare places for what comes into the home tier in a layer. Where they are in use, first the
/// launches and transfers that use them end; then the layers before this one are launched.
Status DecodeMachine::make_places(std::span<const PageOp> ops) {
  const auto wanted =
      static_cast<std::size_t>(std::count_if(ops.begin(), ops.end(), [&](const PageOp& op) {
        return op.kind == PageOp::Kind::kCopy && op.to == home_;
      }));
  LEHR_TRY(below_tier_->pump(ended_));
  home_slots_->reclaim(ended_);
  if (home_slots_->free() >= wanted) return {};
  const std::int64_t began = now_ns();
  const Seconds before = step().below.waited;
  LEHR_TRY(wait_for_all());
  if (home_slots_->free() < wanted) {
    LEHR_TRY(launch_listed());
    LEHR_TRY(wait_for_all());
  }
  step().below.waited = before + seconds(now_ns() - began);
  if (home_slots_->free() >= wanted) return {};
  return refused(Reason::kOverBudget,
                 fmt::format("cuda machine: a layer brings {} pages into {}, which has {} spare "
                             "places for what is on its way",
                             wanted, options_.platform.tiers[home_].name, home_slots_->free()));
}

Status DecodeMachine::run(const LayerWork& work) {
  if (failed_) return *failed_;
  if (work.groups.empty()) return unsupported("cuda machine: a step without sequences");
  if (work.layer == 0) LEHR_TRY(begin_step(work));
  if (below_ != 0) {
    if (Status room = make_places(work.ops); !room) return fail(std::move(room).error());
  }
  const std::int64_t began = now_ns();
  Status listed = list_layer(work);
  if (!listed) return below_ != 0 ? fail(std::move(listed).error()) : listed;
  step().listing += seconds(now_ns() - began);
  return {};
}

Status DecodeMachine::list_layer(const LayerWork& work) {
  begin_layer(work);
  for (const PageOp& op : work.ops) LEHR_TRY(list_op(op));
  LEHR_TRY(list_groups(work.groups));
  clear_old_installs();
  if (!options_.tiering && (!moves_.empty() || record_.over_link > 0)) {
    // Write-backs are no reads: without tiering the home copy is simply not written.
    if (record_.over_link > 0 || record_.arrived > 0)
      return invalid("cuda machine: without tiering every page must stay in HBM");
    moves_.clear();
  }
  write_layer(work.layer);
  listed_.end = work.layer + 1;
  if (work.load != nullptr) record_.load = *work.load;
  if (work.predicted != nullptr) record_.predicted = *work.predicted;
  step().layers.push_back(record_);
  return below_ != 0 ? below_tier_->submit() : Status{};
}

/// Layers that were listed and not launched; all that they read has arrived then.
Status DecodeMachine::launch_listed() {
  if (listed_.first == listed_.end) return {};
  const std::span<const std::byte> lists = lists_.finish();
  if (below_ != 0) {
    const Seconds before = below_tier_->waited();
    Status there = below_tier_->wait_for_needed();
    if (!there) return fail(std::move(there).error());
    step().below.waited += below_tier_->waited() - before;
  }
  LEHR_TRY(device_->launch(lists, listed_));
  parts_.push_back({options_.log->steps.size() - 1, listed_});
  ++step().parts;
  ++launched_;
  whole_ = listed_.first == 0 && listed_.end == options_.geometry.layers;
  listed_.first = listed_.end;
  if (below_ != 0) {
    note_launched();
    LEHR_TRY(below_tier_->submit(true));
  }
  collect_times();
  if (listed_.end == options_.geometry.layers) return {};
  lists_.begin(counted_ - 1, options_.geometry.layers);
  lists_.lengths(lengths_);
  return {};
}

Status DecodeMachine::end_step(Step) {
  if (failed_) return *failed_;
  StepRecord& record = step();
  // Waits for the tier below are told apart.
  record.host = seconds(now_ns() - step_began_ns_) - record.below.waited;
  LEHR_TRY(launch_listed());
  in_step_ = false;
  if (below_ == 0) return {};
  const Seconds reading = below_tier_->reading(), writing = below_tier_->writing();
  record.below.reading = reading - std::exchange(reading_, reading);
  record.below.writing = writing - std::exchange(writing_, writing);
  return {};
}

/// A step that does not go on. What its layers moved stays moved: they run, and nobody asks for
/// their times.
Status DecodeMachine::give_up() {
  if (failed_) return *failed_;
  if (!std::exchange(in_step_, false)) return {};
  LEHR_TRY(launch_listed());
  const std::size_t last = options_.log->steps.size() - 1;
  for (Part& part : parts_) part.step = part.step == last ? kNoStep : part.step;
  options_.log->steps.pop_back();
  return {};
}

/// All that was launched and all transfers have ended.
Status DecodeMachine::wait_for_all() {
  LEHR_TRY(device_->drain());
  collect_times();
  if (below_ == 0) return {};
  if (Status ended = below_tier_->settle(ended_, options_.below.bound_ns); !ended)
    return fail(std::move(ended).error());
  home_slots_->reclaim(ended_);
  return {};
}

void DecodeMachine::note_launched() {
  home_slots_->keep();
  journal_.clear();
}

/// Nothing of what was listed is carried out: slots hold what they held after the last launch.
Error DecodeMachine::fail(Error error) {
  if (failed_) return *failed_;
  failed_ = error;
  for (auto at = journal_.rbegin(); at != journal_.rend(); ++at) {
    // The file may have been written to already: what was there is gone, and nobody's.
    ledger_.at(at->tier, at->slot) = at->tier == below_ ? SlotContents{} : at->contents;
  }
  journal_.clear();
  below_tier_->rollback();
  home_slots_->rollback();
  return error;
}

void DecodeMachine::collect_times() {
  for (StepTimes& times : device_->take_times()) {
    const Part part = parts_.front();
    parts_.pop_front();
    ++ended_;
    measured_ += times.total + (part.layers.first > 0 ? times.idle : 0.0);
    if (part.step != kNoStep)
      add_part(options_.log->steps[part.step].times, std::move(times), part.layers.first);
  }
}

Status DecodeMachine::drain() {
  if (!failed_) LEHR_TRY(launch_listed());
  const bool running = !parts_.empty();
  LEHR_TRY(device_->drain());
  collect_times();
  if (running) options_.log->drained = seconds(now_ns());
  return {};
}

// ---------------------------------------------------------------------- after it

Status DecodeMachine::check() {
  LEHR_TRY(drain());
  const Status moved = below_ != 0 ? below_tier_->settle(ended_, BelowTier::kPatientNs) : Status{};
  std::vector<kernels::PageContents> pages;
  for (const TierId t : {kHbm, home_}) {
    const auto slots = ledger_.tier(t);
    for (std::size_t s = 0; s < slots.size(); ++s) {
      if (slots[s].page == kNoPage) continue;
      pages.push_back(
          {address(t, static_cast<SlotId>(s)), contents_name(slots[s].page), slots[s].tokens});
    }
    if (!options_.tiering) break;
  }
  LEHR_ASSIGN(std::uint64_t bad, device_->count_bad(pages));
  DecodeLog& log = *options_.log;
  log.pages_checked = pages.size();
  if (below_ != 0) {
    LEHR_ASSIGN(const std::uint64_t bad_below, count_bad_below());
    bad += bad_below;
  }
  LEHR_ASSIGN(const std::uint64_t bad_reads, device_->bad_reads());
  if (options_.trace_kernels) {
    LEHR_ASSIGN(log.kernel_stamps, device_->kernel_stamps());
  }
  log.pages_bad = bad;
  log.reads_bad = bad_reads;
  if (bad + bad_reads == 0) {
    if (!moved && !failed_) return moved;  // and yet every page is there
    LEHR_TRY(check_outputs());
    if (log.steps.empty() || options_.check_reads || failed_) return {};
    LEHR_ASSIGN(log.repeated, device_->repeat(kRepeats));
    return {};
  }
  return corrupt(fmt::format("cuda machine: {} of {} slots hold other contents than they should, "
                             "{} reads met such",
                             bad, log.pages_checked, bad_reads),
                 Reason::kChecksum);
}

/// Every page of the file, through spare places.
Result<std::uint64_t> DecodeMachine::count_bad_below() {
  const auto slots = ledger_.tier(below_);
  std::uint64_t bad = 0;
  std::vector<BelowTier::Wanted> wanted;
  std::vector<kernels::PageContents> pages;
  const auto look = [&]() -> Status {
    LEHR_ASSIGN(const auto good, below_tier_->fetch(wanted));
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      home_slots_->retire(wanted[i].place);
      const SlotContents& there = slots[wanted[i].from];
      if (good[i] == 0) {
        ++bad;
      } else {
        pages.push_back(
            {memory_[home_].address(wanted[i].place), contents_name(there.page), there.tokens});
      }
    }
    LEHR_ASSIGN(const std::uint64_t other, device_->count_bad(pages));
    bad += other;
    options_.log->pages_checked += wanted.size();
    home_slots_->reclaim(ended_);
    pages.clear();
    wanted.clear();
    return {};
  };
  home_slots_->reclaim(ended_);
  for (std::size_t s = 0; s < slots.size(); ++s) {
    if (slots[s].page == kNoPage) continue;
    if (home_slots_->free() == 0 && !wanted.empty()) LEHR_TRY(look());
    const auto free = home_slots_->take();
    if (!free) return internal_error("cuda machine: no spare place to look at pages");
    wanted.push_back({static_cast<SlotId>(s), slots[s].page, slots[s].version, *free});
  }
  if (!wanted.empty()) LEHR_TRY(look());
  return bad;
}

Status DecodeMachine::check_outputs() {
  if (!named() || options_.log->steps.empty() || !whole_ || failed_) return {};
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
  if (below_ != 0) {
    std::uint64_t up = 0, down = 0, cut = 0;
    for (const StepRecord& s : log.steps) {
      up += s.below.staged;
      down += s.below.sunk;
      cut += s.parts > 1 ? 1 : 0;
    }
    const std::string& home = options_.platform.tiers[home_].name;
    out.push_back(fmt::format(
        "{} pages came up from {} in the steps, {} went down; {} spare places in {} for them; {} "
        "steps were launched in parts",
        up, options_.platform.tiers[below_].name, down,
        options_.home_places() - options_.tier_pages[home_], home, cut));
    const auto more = below_tier_->notes();
    out.insert(out.end(), more.begin(), more.end());
  }
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
