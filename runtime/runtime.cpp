// SPDX-License-Identifier: Apache-2.0
#include "runtime/runtime.hpp"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "kernels/base/check.hpp"
#include "runtime/layer.hpp"

namespace lehr::runtime {

void StepReport::add(const StepReport& o) {
#define LEHR_STEP_COUNT(name, unit, help) name += o.name;
#define LEHR_STEP_SECONDS(field, member, statistic, help) member += o.member;
#include "runtime/step_report.def"
  for (std::size_t i = 0; i < link.size(); ++i) {
    time.link[i] += o.time.link[i];
    link[i].bytes += o.link[i].bytes;
    link[i].count += o.link[i].count;
  }
}

Runtime::Runtime(RuntimeOptions options, Bytes lowered_bytes,
                 std::shared_ptr<placement::Policy> policy, std::unique_ptr<Machine> machine)
    : options_(std::move(options)),
      page_bytes_(options_.page_bytes != 0 ? options_.page_bytes : options_.geometry.page_bytes()),
      lowered_bytes_(lowered_bytes),
      table_(options_.geometry.layers, options_.geometry.kv_heads, options_.tier_pages,
             {page_bytes_, lowered_bytes}),
      heat_(options_.heat_half_life),
      home_(options_.platform, table_),
      to_hbm_(options_.platform.link(options_.platform.home, kHbm)),
      to_home_(options_.platform.link(kHbm, options_.platform.home)),
      background_(options_.platform, table_),
      policy_(std::move(policy)),
      watch_(options_.watch),
      machine_(std::move(machine)),
      moves_bytes_(machine_->traits().moves_bytes),
      filled_(options_.geometry.layers),
      scratch_(std::make_unique<Layer>()) {
  machine_->attach(table_);
}

Runtime::~Runtime() = default;

Result<std::unique_ptr<Runtime>> Runtime::create(RuntimeOptions options,
                                                 std::unique_ptr<Machine> machine) {
  LEHR_TRY(options.platform.validate());
  const KvGeometry& g = options.geometry;
  if (g.layers == 0 || g.kv_heads == 0 || g.page_tokens == 0 || g.head_dim == 0 ||
      g.element_bytes == 0) {
    return invalid(
        "geometry: layers, kv_heads, head_dim, page_tokens and element_bytes must be positive");
  }
  if (std::uint64_t{g.layers} * g.kv_heads * PageTable::kRun > (1U << 24)) {
    return invalid("geometry: more than 262144 KV groups");
  }
  if (options.tier_pages.size() != options.platform.tiers.size()) {
    return invalid(fmt::format("{} tier capacities for {} tiers", options.tier_pages.size(),
                               options.platform.tiers.size()));
  }
  const std::size_t held = options.groups.empty() ? g.groups() : options.groups.size();
  if (options.tier_pages[kHbm] < held) {
    return refused(
        Reason::kOverBudget,
        fmt::format("HBM of {} pages is less than one tail page for each of the {} KV groups",
                    options.tier_pages[kHbm], held));
  }
  LEHR_ASSIGN(auto named, placement::make_policy(options.policy, options.policy_parameters));
  std::shared_ptr<placement::Policy> policy = std::move(named);
  if (options.own_policy != nullptr) policy = options.own_policy;
  LEHR_ASSIGN(const auto* kind, placement::find_policy(options.policy));
  if (kind->traits.needs_instance && options.future == nullptr) {
    return invalid("policy " + options.policy +
                   " knows the whole replay in advance: only a replay can run it");
  }
  Bytes lowered_bytes = 0;
  if (options.precision) {
    if (machine->traits().moves_bytes && !machine->traits().lowers)
      return unsupported("precision: this machine keeps pages as they were written");
    LEHR_ASSIGN(lowered_bytes,
                lowered_page_bytes(*options.precision, g,
                                   options.page_bytes != 0 ? options.page_bytes : g.page_bytes()));
  }
  std::unique_ptr<Runtime> made(
      new Runtime(std::move(options), lowered_bytes, std::move(policy), std::move(machine)));
  LEHR_TRY(made->set_held(std::exchange(made->options_.groups, {})));
  LEHR_TRY(made->begin_deciding());
  return made;
}

Status Runtime::begin_deciding() {
  placement::PolicyContext context;
  context.platform = &options_.platform;
  context.capacity = options_.tier_pages[kHbm];
  context.page_bytes = page_bytes_;
  context.layers = options_.geometry.layers;
  context.kv_heads = options_.geometry.kv_heads;
  context.seed = options_.seed;
  context.future = options_.future;
  context.lowered_bytes = lowered_bytes_;
  context.lowered_mass = options_.precision ? options_.precision->mass : 0;
  policy_->begin(context);
  if (options_.plan_every < 1 || options_.plan_every > kMostPlanEvery) {
    return invalid(fmt::format("layers planned every {} steps, expected 1 to {}",
                               options_.plan_every, kMostPlanEvery),
                   Reason::kOutOfRange);
  }
  planned_.assign(options_.geometry.layers, 0);
  // A predictor that nobody listens to costs nothing, but a wrong configuration is said anyway.
  LEHR_ASSIGN(auto predictor,
              predictors::make_predictor(options_.predictor, options_.predictor_parameters));
  LEHR_ASSIGN(const auto* kind, predictors::find_predictor(options_.predictor));
  if (kind->traits.needs_weights && options_.predictor_weights.empty()) {
    LEHR_ASSIGN(predictor, predictors::make_predictor("table", {}));
  }
  LEHR_ASSIGN(const auto* policy, placement::find_policy(options_.policy));
  if (options_.importance) {
    LEHR_ASSIGN(scores_, PageScores::create(*options_.importance));
  }
  odds_steps_ = policy->traits.needs_odds;
  if (odds_steps_ == 0) return {};
  if (options_.prefetch_window > kMaxHorizon) {
    return invalid(fmt::format("a prefetch window of {} steps, expected 0 to {}",
                               options_.prefetch_window, kMaxHorizon),
                   Reason::kOutOfRange);
  }
  odds_steps_ = std::max(odds_steps_, options_.prefetch_window == 0 ? predictors::kLongestWindow
                                                                    : options_.prefetch_window);
  predictors::PredictorContext told;
  told.layers = context.layers;
  told.kv_heads = context.kv_heads;
  told.page_tokens = options_.geometry.page_tokens;
  told.horizon = odds_steps_;
  told.seed = context.seed;
  told.weights = options_.predictor_weights;
  predictor_ = options_.own_predictor != nullptr ? options_.own_predictor : std::move(predictor);
  Status begun = predictor_->begin(told);
  options_.predictor_weights = {};
  return begun;
}

/// Full pages that exist from now on, to whoever decides.
void Runtime::tell_new(std::span<const PageId> pages, std::span<const Tick> first_use) {
  if (predictor_) {
    predictor_->add_pages(pages, table_.columns());
    watch_.add_pages(pages);
  }
  std::fill(planned_.begin(), planned_.end(), std::uint8_t{0});
  policy_->add_pages(pages, first_use, table_.columns());
}

Sequence* Runtime::find(SequenceId id) {
  return id < sequences_.size() && sequences_[id] ? &*sequences_[id] : nullptr;
}

std::optional<std::uint64_t> Runtime::tokens(SequenceId id) const {
  if (id >= sequences_.size() || !sequences_[id]) return std::nullopt;
  return sequences_[id]->tokens;
}

void Runtime::open_block(Sequence& s) {
  if (s.chunk == kNoPage || s.chunk_used == PageTable::kRun) {
    s.chunk = table_.open_chunk();
    s.chunk_used = 0;
    heat_.grow(table_.rows());
  }
  const PageId base = s.chunk + s.chunk_used++;
  table_.open_block(base, static_cast<std::uint32_t>(s.blocks.size()), s.number);
  home_.opened(base);
  s.blocks.push_back(base);
}

std::uint64_t Runtime::room_below_hbm() const {
  std::uint64_t room = 0;
  for (std::size_t t = 1; t < options_.tier_pages.size(); ++t) {
    room += table_.slots(static_cast<TierId>(t)).available();
  }
  return room;
}

std::uint64_t Runtime::live_sequences() const {
  std::uint64_t live = 0;
  for (const auto& s : sequences_) live += s && !s->suspended ? 1 : 0;
  return live;
}

Status Runtime::check_room(std::span<const SequenceInfo> infos) const {
  static constexpr const char* kTooMany = "more than 2^31 pages";
  const KvGeometry& g = options_.geometry;
  std::uint64_t full = 0;
  const std::uint64_t live = live_sequences();
  for (const SequenceInfo& info : infos) {
    const std::uint64_t blocks = info.prompt_tokens / g.page_tokens;
    if (blocks > kNoPage / 2 / g.groups()) return refused(Reason::kOverBudget, kTooMany);
    const std::uint64_t pages = blocks * held_.size();
    if (!info.first_use.empty() && info.first_use.size() != pages) {
      return invalid(fmt::format("first_use holds {} ticks for {} prompt pages",
                                 info.first_use.size(), pages));
    }
    full += pages;
  }
  if (full > kNoPage / 2) return refused(Reason::kOverBudget, kTooMany);
  const std::uint64_t room = room_below_hbm();
  if (full > room) {
    return refused(Reason::kNoSpace,
                   fmt::format("{} prompt pages for {} free pages below HBM", full, room));
  }
  if ((live + infos.size()) * held_.size() > options_.tier_pages[kHbm]) {
    return refused(
        Reason::kOverBudget,
        fmt::format("HBM of {} pages cannot hold the tail pages of {} sequences ({} each)",
                    options_.tier_pages[kHbm], live + infos.size(), held_.size()));
  }
  if (live + infos.size() > 0xFFFF)
    return refused(Reason::kOverBudget, "more than 65535 sequences");
  return {};
}

Result<std::vector<SequenceId>> Runtime::create_sequences(std::span<const SequenceInfo> infos) {
  if (in_step_) return invalid("sequences cannot be created inside a step");
  LEHR_TRY(check_room(infos));
  const KvGeometry& g = options_.geometry;
  std::vector<SequenceId> ids;
  for (const SequenceInfo& info : infos) {
    auto slot =
        std::find_if(sequences_.begin(), sequences_.end(), [](const auto& s) { return !s; });
    if (slot == sequences_.end()) slot = sequences_.emplace(sequences_.end());
    const auto id = static_cast<SequenceId>(slot - sequences_.begin());
    Sequence& s = slot->emplace();
    s.number = static_cast<std::uint16_t>(id);
    s.tokens = info.prompt_tokens;
    if (options_.importance) s.saliency.assign(info.saliency.begin(), info.saliency.end());
    for (std::uint32_t b = 0; b < g.pages_for(info.prompt_tokens); ++b) open_block(s);
    ids.push_back(id);
  }
  std::vector<PageOp> ops;
  place_blocks(ids, 0, ops);
  if (moves_bytes_) {
    if (Status made = machine_->set_up(ops); !made) {
      for (const SequenceId id : ids) forget(*sequences_[id]);  // nobody was told of their pages
      return made.error();
    }
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Sequence& s = *sequences_[ids[i]];
    std::vector<PageId> pages;
    const std::uint64_t full = s.tokens / g.page_tokens;
    pages.reserve(full * held_.size());
    for (const std::uint32_t group : held_) {
      for (std::uint64_t b = 0; b < full; ++b)
        pages.push_back(s.blocks[b] + group * PageTable::kRun);
    }
    tell_new(pages, infos[i].first_use);
  }
  return ids;
}

/// A new page goes where it starts: a full one home and, if so wanted and while there is room, to
/// HBM; a tail, which holds `written` of its tokens, in HBM only.
void Runtime::place_page(PageId page, std::uint32_t written, bool to_hbm,
                         std::vector<PageOp>& ops) {
  const bool partial = written != 0;
  if (!partial) {
    const Status placed = home_.place(page, moves_bytes_ ? &ops : nullptr);
    LEHR_CHECK(1, placed.has_value());  // check_room has counted
  }
  if (!to_hbm || !table_.reserve(page, kHbm)) return;
  table_.mark_valid(page, kHbm);
  if (partial) {
    table_.flags[page] |= kTail;
    ++table_.guard[page];
  }
  ops.push_back({PageOp::Kind::kFill, kHbm, kHbm, page, table_.version[page],
                 table_.slot[kHbm][page], table_.slot[kHbm][page], written});
}

/// The fixed starting point of a replay, for the blocks from `first` on: home copies of full pages,
/// then HBM by position descending, layer, KV head.
void Runtime::place_blocks(std::span<const SequenceId> ids, std::size_t first,
                           std::vector<PageOp>& ops) {
  const KvGeometry& g = options_.geometry;
  std::size_t longest = 0;
  for (const SequenceId id : ids) longest = std::max(longest, sequences_[id]->blocks.size());
  for (std::size_t b = longest; b-- > first;) {
    for (const std::uint32_t group : held_) {
      for (const SequenceId id : ids) {
        const Sequence& s = *sequences_[id];
        if (b >= s.blocks.size()) continue;
        const bool partial = (b + 1) * g.page_tokens > s.tokens;
        place_page(s.blocks[b] + group * PageTable::kRun, partial ? tail_tokens(s) : 0,
                   !options_.cold, ops);
      }
    }
  }
}

/// A tail that an append wrote into: its contents are another version now.
void Runtime::fill_tail(PageId page, std::uint32_t tokens, std::vector<PageOp>& ops) {
  ++table_.version[page];
  home_.release(page);  // a copy from a suspension is out of date
  const bool here = resident(table_.residency[page], kHbm);
  if (here) {
    ops.push_back({PageOp::Kind::kFill, kHbm, kHbm, page, table_.version[page],
                   table_.slot[kHbm][page], table_.slot[kHbm][page], tokens});
  }
}

Status Runtime::append(SequenceId id, std::uint64_t tokens) {
  if (in_step_) return invalid("tokens cannot be appended inside a step");
  Sequence* s = find(id);
  if (s == nullptr) return not_found(fmt::format("no sequence {}", id));
  if (s->suspended) return invalid(fmt::format("sequence {} is suspended", id));
  if (tokens == 0) return {};
  const KvGeometry& g = options_.geometry;
  const std::uint64_t most = std::uint64_t{kNoPage} * g.page_tokens;
  if (tokens > most - std::min(s->tokens, most))
    return invalid("tokens: more than there can be pages", Reason::kOutOfRange);
  const std::uint64_t full = (s->tokens + tokens) / g.page_tokens - s->tokens / g.page_tokens;
  const std::uint64_t room = room_below_hbm();
  if (full * held_.size() > room) {
    return refused(Reason::kNoSpace,
                   fmt::format("{} pages for {} free pages below HBM", full * held_.size(), room));
  }
  if (home_.keeps()) LEHR_TRY(make_room_at_home(full * held_.size()));
  const bool partial = s->tokens % g.page_tokens != 0;
  if (partial && table_.block_refs(s->blocks.back()) > 1) own_tail(*s);
  const std::size_t before = s->blocks.size();
  s->tokens += tokens;
  while (s->blocks.size() < g.pages_for(s->tokens)) open_block(*s);
  std::vector<PageOp> ops;
  std::vector<PageId> filled;
  for (const std::uint32_t group : held_) {
    if (!partial) break;
    const PageId page = s->blocks[before - 1] + group * PageTable::kRun;
    const std::uint64_t held = s->tokens - (before - 1) * g.page_tokens;
    fill_tail(page, static_cast<std::uint32_t>(std::min<std::uint64_t>(held, g.page_tokens)), ops);
    if (before * g.page_tokens > s->tokens) continue;  // still a tail
    const Status placed = home_.place(page, moves_bytes_ ? &ops : nullptr);
    LEHR_CHECK(1, placed.has_value());
    if ((table_.flags[page] & kTail) != 0) --table_.guard[page];
    table_.flags[page] &= static_cast<std::uint8_t>(~kTail);
    filled.push_back(page);
  }
  place_blocks({&id, 1}, before, ops);
  for (std::size_t b = before; b < s->tokens / g.page_tokens; ++b) {
    for (const std::uint32_t group : held_)
      filled.push_back(s->blocks[b] + group * PageTable::kRun);
  }
  totals_.link[to_home_].add(page_bytes_, static_cast<std::uint32_t>(filled.size()));
  tell_new(filled, {});
  return moves_bytes_ ? machine_->set_up(ops) : Status{};
}

/// Between steps: what links carried.
void Runtime::add_to_totals(const placement::LayerLoad& load) {
  for (std::size_t i = 0; i < load.link.size(); ++i) {
    totals_.link[i].bytes += load.link[i].bytes + load.stall[i].bytes;
    totals_.link[i].count += load.link[i].count + load.stall[i].count;
  }
}

/// Between steps, so that what comes finds room: other pages move down.
Status Runtime::make_room_at_home(std::uint64_t pages) {
  if (pages > table_.slots(home_.home()).capacity()) {
    return refused(Reason::kNoSpace, fmt::format("{} pages for a home tier of {}", pages,
                                                 table_.slots(home_.home()).capacity()));
  }
  placement::LayerLoad load;
  std::vector<PageOp> ops;
  Status made =
      home_.make_room(static_cast<std::uint32_t>(pages), load, moves_bytes_ ? &ops : nullptr);
  add_to_totals(load);
  if (moves_bytes_ && !ops.empty()) LEHR_TRY(machine_->set_up(ops));
  return made;
}

Status Runtime::keep_up(std::span<const SequenceId> sequences) {
  if (in_step_) return invalid("pages cannot be brought up inside a step");
  for (const SequenceId id : sequences) {
    if (find(id) == nullptr) return not_found(fmt::format("no sequence {}", id));
  }
  if (!home_.has_below()) return {};
  home_.keep_none();
  for (const SequenceId id : sequences) {
    for (const PageId base : find(id)->blocks) home_.keep(base);
  }
  background_.cancel_if([this](PageId page) { return !home_.is_kept(page); });
  std::vector<PageId> coming;
  for (const SequenceId id : sequences) {
    for (const PageId base : find(id)->blocks) {
      if (home_.moved_down(base) == 0) continue;
      for (const std::uint32_t group : held_) {
        const PageId page = base + group * PageTable::kRun;
        if (home_.is_down(page)) coming.push_back(page);
      }
    }
  }
  if (coming.empty()) return {};
  std::sort(coming.begin(), coming.end());  // forks share pages
  coming.erase(std::unique(coming.begin(), coming.end()), coming.end());
  LEHR_TRY(make_room_at_home(coming.size()));
  placement::LayerLoad load;
  std::vector<PageOp> ops;
  for (const PageId page : coming)
    LEHR_TRY(home_.stage(page, false, load, moves_bytes_ ? &ops : nullptr));
  add_to_totals(load);
  return moves_bytes_ ? machine_->set_up(ops) : Status{};
}

Result<SequenceId> Runtime::fork(SequenceId parent) {
  if (in_step_) return invalid("a sequence cannot be forked inside a step");
  const Sequence* from = find(parent);
  if (from == nullptr) return not_found(fmt::format("no sequence {}", parent));
  LEHR_TRY(check_room(std::vector<SequenceInfo>(1)));
  auto slot = std::find_if(sequences_.begin(), sequences_.end(), [](const auto& s) { return !s; });
  if (slot == sequences_.end()) {
    sequences_.emplace_back();
    slot = sequences_.end() - 1;
    from = find(parent);  // the vector may have moved
  }
  Sequence& child = slot->emplace();
  child.number = static_cast<std::uint16_t>(slot - sequences_.begin());
  child.tokens = from->tokens;
  child.saliency = from->saliency;
  child.blocks = from->blocks;
  for (const PageId base : child.blocks) table_.share_block(base);
  return static_cast<SequenceId>(child.number);
}

/// Writing into a shared partial tail: the writer gets its own (copy on write). The copy happens in
/// HBM, layer by layer, when the step opens the new tail.
void Runtime::own_tail(Sequence& s) {
  const PageId shared = s.blocks.back();
  s.blocks.pop_back();
  open_block(s);
  (void)table_.unshare_block(shared);
}

void Runtime::append_token(Sequence& s) {
  if (s.tokens % options_.geometry.page_tokens == 0) {
    open_block(s);
  } else if (table_.block_refs(s.blocks.back()) > 1) {
    own_tail(s);
  }
  ++s.tokens;
}

void Runtime::free_page(PageId page) {
  if ((table_.flags[page] & kInFlight) != 0) background_.cancel(page);
  if (resident(table_.residency[page], kHbm)) {
    if ((table_.flags[page] & kPromotedUnread) != 0) --unread_promotions_;
    table_.drop(page, kHbm);
  }
  home_.release(page);
  table_.guard[page] = 0;
  table_.flags[page] = 0;
  heat_.forget(page);
  std::erase(waiting_write_back_, page);
  std::erase(filled_[table_.layer[page]], page);
}

void Runtime::free_block(PageId base) {
  for (const std::uint32_t group : held_) free_page(base + group * PageTable::kRun);
  table_.close_block(base);
}

/// Blocks from `first` on are no longer this sequence's, which whoever decides is told.
void Runtime::leave_blocks(Sequence& s, std::size_t first) {
  std::vector<PageId> gone;
  for (std::size_t b = first; b < s.tokens / options_.geometry.page_tokens; ++b) {
    if (table_.block_refs(s.blocks[b]) > 1) continue;
    for (const std::uint32_t group : held_) gone.push_back(s.blocks[b] + group * PageTable::kRun);
  }
  if (predictor_) predictor_->remove_pages(gone);
  policy_->remove_pages(gone);
  unshare_blocks(s, first);
}

/// Those that nobody else has are freed.
void Runtime::unshare_blocks(Sequence& s, std::size_t first) {
  for (std::size_t b = first; b < s.blocks.size(); ++b) {
    if (table_.unshare_block(s.blocks[b])) free_block(s.blocks[b]);
  }
  s.blocks.resize(first);
}

void Runtime::forget(Sequence& s) {
  unshare_blocks(s, 0);
  if (s.chunk != kNoPage) table_.abandon_rest(s.chunk, s.chunk_used);
  sequences_[s.number].reset();
}

Status Runtime::release(SequenceId id) {
  if (in_step_) return invalid("a sequence cannot be released inside a step");
  Sequence* s = find(id);
  if (s == nullptr) return not_found(fmt::format("no sequence {}", id));
  leave_blocks(*s, 0);
  forget(*s);
  return {};
}

/// A tail that nobody writes for a while gets a copy at home, and is a tail no longer.
Status Runtime::send_tail_home(PageId page, placement::LayerLoad& load, std::vector<PageOp>& ops) {
  LEHR_TRY(home_.reserve(page, load, nullptr));
  load.link[to_home_].add(page_bytes_);
  if (moves_bytes_) {
    ops.push_back({PageOp::Kind::kCopy, kHbm, home_.home(), page, table_.version[page],
                   table_.slot[kHbm][page], table_.slot[home_.home()][page]});
  }
  table_.mark_valid(page, home_.home());
  table_.flags[page] &= static_cast<std::uint8_t>(~kTail);
  --table_.guard[page];
  return {};
}

/// Whether a page of a suspended sequence was in HBM and has left it; a full one that waits for its
/// write-back stays.
Result<bool> Runtime::leave_hbm(PageId page, bool tail, placement::LayerLoad& load,
                                std::vector<PageOp>& ops) {
  if ((table_.flags[page] & kInFlight) != 0) background_.cancel(page);
  if (!resident(table_.residency[page], kHbm)) return false;
  if (tail && (table_.flags[page] & kTail) != 0) LEHR_TRY(send_tail_home(page, load, ops));
  if (table_.guard[page] != 0) return false;
  drop_from_hbm(page);
  return true;
}

Status Runtime::suspend(SequenceId id) {
  if (in_step_) return invalid("a sequence cannot be suspended inside a step");
  Sequence* s = find(id);
  if (s == nullptr) return not_found(fmt::format("no sequence {}", id));
  if (s->suspended) return {};
  const bool partial = s->tokens % options_.geometry.page_tokens != 0;
  const bool own_tail_block = partial && table_.block_refs(s->blocks.back()) == 1;
  for (const PageId base : s->blocks) {
    if (home_.keeps() && table_.block_refs(base) == 1) home_.let_go(base);
  }
  Status room = own_tail_block ? make_room_at_home(held_.size()) : Status{};
  if (!room && home_.keeps()) {
    home_.keep_none();
    room = make_room_at_home(held_.size());
  }
  if (!room) {
    if (room.error().code != Code::kRefused) return room;
    return refused(Reason::kLowerTierBusy,
                   fmt::format("the home tier has no room for the {} tail pages of sequence {}",
                               held_.size(), id));
  }
  std::vector<PageOp> ops;
  std::vector<PageId> left;
  placement::LayerLoad load;
  for (const PageId base : s->blocks) {
    if (table_.block_refs(base) > 1) continue;
    const bool tail = partial && base == s->blocks.back();
    for (const std::uint32_t group : held_) {
      const PageId page = base + group * PageTable::kRun;
      LEHR_ASSIGN(const bool gone, leave_hbm(page, tail, load, ops));
      if (gone && !tail) left.push_back(page);
    }
  }
  tell_policy_left(left);
  s->suspended = true;
  add_to_totals(load);
  return moves_bytes_ ? machine_->set_up(ops) : Status{};
}

Status Runtime::resume(SequenceId id) {
  if (in_step_) return invalid("a sequence cannot be resumed inside a step");
  Sequence* s = find(id);
  if (s == nullptr) return not_found(fmt::format("no sequence {}", id));
  if (!s->suspended) return {};
  if ((live_sequences() + 1) * held_.size() > options_.tier_pages[kHbm]) {
    return refused(Reason::kOverBudget, "HBM cannot hold the tail pages of one more sequence");
  }
  s->suspended = false;
  return {};
}

Status Runtime::begin_step(std::span<const SequenceId> sequences, Growth growth) {
  if (in_step_) return invalid("a step is open already");
  const bool grows = growth == Growth::kOneToken;
  if (!grows && machine_->traits().attends)
    return unsupported("this machine's steps add a token to each sequence");
  if (std::uint64_t{step_} + 1 >= kNever / options_.geometry.layers) {
    return refused(Reason::kOutOfRange, "the step counter is at its end");
  }
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const Sequence* s = find(sequences[i]);
    if (s == nullptr) return not_found(fmt::format("no sequence {}", sequences[i]));
    if (s->suspended) return invalid(fmt::format("sequence {} is suspended", sequences[i]));
    if (!grows && (s->tokens == 0 || s->tokens % options_.geometry.page_tokens != 0)) {
      return invalid(
          fmt::format("sequence {} has {} tokens: only whole pages are read without a "
                      "token more",
                      sequences[i], s->tokens));
    }
    if (std::find(sequences.begin(), sequences.begin() + static_cast<std::ptrdiff_t>(i),
                  sequences[i]) != sequences.begin() + static_cast<std::ptrdiff_t>(i)) {
      return invalid(fmt::format("sequence {} is named twice", sequences[i]));
    }
  }
  batch_.assign(sequences.begin(), sequences.end());
  growth_ = growth;
  for (const SequenceId id : batch_) {
    if (grows) append_token(*sequences_[id]);
  }
  if (scores_) scores_->refresh(table_, options_.geometry.groups(), heat_, sequences_, step_);
  current_ = {};
  in_step_ = true;
  next_layer_ = first_held_layer(0);
  return {};
}

Result<StepReport> Runtime::end_step() {
  if (!in_step_) return invalid("no step is open");
  if (next_layer_ != options_.geometry.layers) {
    return invalid(
        fmt::format("the step ends at layer {} of {}", next_layer_, options_.geometry.layers));
  }
  LEHR_TRY(machine_->end_step(step_));
  current_.measured = machine_->take_measured();
  totals_.add(current_);
  last_step_ = current_.total;
  ++step_;
  in_step_ = false;
  return current_;
}

void Runtime::abandon_step() {
  if (!in_step_) return;
  totals_.add(current_);
  ++step_;
  in_step_ = false;
  // Its token was not computed in all layers, and its tails may be nowhere: it never was.
  for (const SequenceId id : batch_) {
    if (growth_ == Growth::kNone) break;
    const Status back = truncate(id, sequences_[id]->tokens - 1);
    LEHR_CHECK(1, back.has_value());
  }
  batch_.clear();
}

Status Runtime::validate() const {
  LEHR_TRY(table_.validate());
  for (const auto& s : sequences_) {
    if (!s) continue;
    for (std::size_t b = 0; b + 1 < s->blocks.size(); ++b) {
      for (const std::uint32_t group : held_) {
        if (table_.residency[s->blocks[b] + group * PageTable::kRun] == 0) {
          return internal_error(
              fmt::format("page {} of sequence {} has no copy anywhere", b, s->number));
        }
      }
    }
  }
  return {};
}

}  // namespace lehr::runtime
