// SPDX-License-Identifier: Apache-2.0
// One layer of one step, in the order in which it happens: resolve the selection, make room for new
// tails, ask the policy, apply its plan, add up the load, let the machine run.
#include "runtime/layer.hpp"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <fmt/core.h>

#include "kernels/base/check.hpp"
#include "placement/plan_check.hpp"

namespace lehr::runtime {

namespace {

void undo_guards(PageTable& table, std::span<const PageId> selected,
                 std::span<const Tick> tick_before) {
  for (std::size_t i = 0; i < selected.size(); ++i) {
    --table.guard[selected[i]];
    table.last_tick[selected[i]] = tick_before[i];
  }
}

}  // namespace

Status Runtime::check_group(Layer& layer, const GroupSelection& g) {
  const KvGeometry& shape = options_.geometry;
  const Sequence* s = find(g.sequence);
  const auto member = std::find(batch_.begin(), batch_.end(), g.sequence);
  if (s == nullptr || member == batch_.end()) {
    return invalid(
        fmt::format("layer {}: sequence {} takes no part in this step", layer.index, g.sequence));
  }
  if (g.kv_head >= shape.kv_heads) {
    return invalid(
        fmt::format("layer {}: KV head {} of {}", layer.index, g.kv_head, shape.kv_heads),
        Reason::kOutOfRange);
  }
  if (is_held_[layer.index * shape.kv_heads + g.kv_head] == 0) {
    return invalid(fmt::format("layer {}: KV head {} is on another device", layer.index, g.kv_head),
                   Reason::kOutOfRange);
  }
  const auto row = static_cast<std::size_t>(member - batch_.begin());
  if (std::exchange(layer.named[row * shape.kv_heads + g.kv_head], std::uint8_t{1}) != 0) {
    return invalid(fmt::format("layer {}: sequence {}, KV head {} is named twice", layer.index,
                               g.sequence, g.kv_head));
  }
  std::uint64_t expected_from = 0;
  for (const std::uint32_t p : g.pages) {
    if (p < expected_from || p >= s->blocks.size()) {
      return invalid(fmt::format("layer {}, sequence {}, KV head {}: page {} is out of order or "
                                 "past the {} pages of the context",
                                 layer.index, g.sequence, g.kv_head, p, s->blocks.size()),
                     Reason::kOutOfRange);
    }
    expected_from = std::uint64_t{p} + 1;
  }
  if (!g.next_use.empty() && g.next_use.size() != g.pages.size()) {
    return invalid("a group's next_use is not aligned with its pages");
  }
  return {};
}

void Runtime::select_pages(Layer& layer, const GroupSelection& g, Told told) {
  const Sequence& s = *sequences_[g.sequence];
  const PageId offset = table_.group_offset(layer.index, g.kv_head);
  GroupView view{
      s.blocks, offset,   g.mass,   g.peak, static_cast<std::uint32_t>(layer.selected.size()),
      0,        s.number, g.kv_head};
  // A sequence that does not grow has none: all of its pages are full.
  const auto tail =
      static_cast<std::uint32_t>(s.blocks.size() - (growth_ == Growth::kNone ? 0 : 1));
  for (std::size_t i = 0; i < g.pages.size(); ++i) {
    const std::uint32_t index = g.pages[i];
    if (index == tail) break;  // the last one: ascending
    const PageId page = s.blocks[index] + offset;
    if (table_.last_tick[page] == layer.tick) {  // shared and selected by another sequence too
      if (told.mass && lowered_bytes_ != 0) layer.read_again.emplace_back(page, g.mass[index]);
      continue;
    }
    layer.tick_before.push_back(table_.last_tick[page]);
    table_.last_tick[page] = layer.tick;
    ++table_.guard[page];
    layer.selected.push_back(page);
    const bool hit = resident(table_.residency[page], kHbm);
    layer.hit.push_back(hit ? 1 : 0);
    if (!hit) layer.missed.push_back(page);
    if (told.mass) layer.mass.push_back(g.mass[index]);
    if (told.peak) layer.peak.push_back(g.peak[index]);
    if (told.future) layer.next_use.push_back(g.next_use[i]);
  }
  view.count = static_cast<std::uint32_t>(layer.selected.size()) - view.first;
  layer.groups.push_back(view);
}

/// When a page that became full is read next, by what its group's selection says.
Tick Runtime::next_use_of_filled(const Layer& layer, PageId page,
                                 std::span<const GroupSelection> groups) {
  Tick next = kNever;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const GroupView& view = layer.groups[g];
    if (view.blocks.size() >= 2 && view.page(view.blocks.size() - 2) == page)
      next = std::min(next, groups[g].filled_next_use);  // of forks: whoever comes first
  }
  return next;
}

Status Runtime::resolve(Layer& layer, std::span<const GroupSelection> groups) {
  layer.named.assign(batch_.size() * options_.geometry.kv_heads, 0);
  Told told{!groups.empty(), !groups.empty(), !groups.empty()};
  for (const GroupSelection& g : groups) {
    LEHR_TRY(check_group(layer, g));
    told.mass &= g.mass != nullptr;
    told.peak &= g.peak != nullptr;
    told.future &= g.pages.empty() || !g.next_use.empty();
  }
  for (const GroupSelection& g : groups) select_pages(layer, g, told);
  for (const PageId page : filled_[layer.index]) {
    layer.filled.push_back(page);
    if (told.future) layer.filled_next_use.push_back(next_use_of_filled(layer, page, groups));
  }
  return {};
}

void Runtime::find_tails(Layer& layer) {
  if (growth_ == Growth::kNone) return;
  const std::uint32_t heads = options_.geometry.kv_heads;
  for (const SequenceId id : batch_) {
    const Sequence& s = *sequences_[id];
    for (std::uint32_t head = 0; head < heads; ++head) {
      if (is_held_[layer.index * heads + head] == 0) continue;
      const PageId page = s.blocks.back() + table_.group_offset(layer.index, head);
      layer.tails.push_back(page);
      layer.tail_length.push_back(tail_tokens(s));
      if (!resident(table_.residency[page], kHbm)) layer.absent.push_back(page);
    }
  }
}

/// Before the policy is asked: is there room for the tails that this layer opens, now or by drops?
/// Where there is not, pages of the selection itself leave before the layer starts and are read at
/// home.
Status Runtime::make_room_for_tails(Layer& layer) {
  const std::uint32_t free = table_.slots(kHbm).available();
  if (layer.absent.size() <= free) return {};
  std::size_t owed = layer.absent.size() - free;
  for (PageId page = 0; page < table_.rows() && owed > 0; ++page) {
    if (table_.guard[page] == 0 && resident(table_.residency[page], kHbm)) --owed;
  }
  std::vector<PageId> leaving;
  for (std::size_t i = 0; i < layer.selected.size() && leaving.size() < owed; ++i) {
    const PageId page = layer.selected[i];
    const bool at_home = resident(table_.residency[page], home_.home());
    if (layer.hit[i] != 0 && table_.guard[page] == 1 && at_home) leaving.push_back(page);
  }
  if (leaving.size() < owed) {
    return refused(
        Reason::kNoEvictable,
        fmt::format("step {}, layer {}: {} tail pages need HBM and nothing more can leave it",
                    step_, layer.index, layer.absent.size()));
  }
  if (leaving.empty()) return {};
  for (const PageId page : leaving) drop_from_hbm(page);
  layer.report.forced_drops += leaving.size();
  tell_policy_left(leaving);
  layer.missed.clear();
  for (std::size_t i = 0; i < layer.selected.size(); ++i) {
    layer.hit[i] = resident(table_.residency[layer.selected[i]], kHbm) ? 1 : 0;
    if (layer.hit[i] == 0) layer.missed.push_back(layer.selected[i]);
  }
  return {};
}

/// How many slots the policy has to see to. Pages that became full in other layers are evictable,
/// but it is told of them only when those layers come; what is owed beyond the others, a forced
/// victim makes up for.
std::uint32_t Runtime::owed_by_policy(const Layer& layer) const {
  const auto absent = static_cast<std::uint32_t>(layer.absent.size());
  std::uint32_t can = table_.slots(kHbm).available();
  if (can >= absent) return absent;
  std::unordered_set<PageId> untold;
  for (std::size_t l = 0; l < filled_.size(); ++l) {
    if (l != layer.index) untold.insert(filled_[l].begin(), filled_[l].end());
  }
  for (PageId page = 0; page < table_.rows() && can < absent; ++page) {
    if (table_.guard[page] == 0 && resident(table_.residency[page], kHbm) &&
        !untold.contains(page)) {
      ++can;
    }
  }
  return can;
}

/// Pages whose only copy lies below the home tier cannot be read in place: the layer waits for
/// them. So it does for tails of resumed sequences that went down meanwhile.
Status Runtime::stage_missing(Layer& layer) {
  if (!home_.has_below()) return {};
  const auto stage = [&](PageId page) -> Status {
    if (resident(table_.residency[page], home_.home())) return {};
    LEHR_TRY(home_.stage(page, false, layer.load, moves_bytes_ ? &layer.ops : nullptr));
    ++layer.report.staged;
    return {};
  };
  // Until they are in HBM, tails are held like the selection: none goes down for another page.
  for (const PageId page : layer.absent) ++table_.guard[page];
  Status staged;
  for (const PageId page : layer.missed) {
    if (staged) staged = stage(page);
  }
  for (const PageId page : layer.absent) {
    if (staged && table_.residency[page] != 0) staged = stage(page);
  }
  for (const PageId page : layer.absent) --table_.guard[page];
  return staged;
}

PageId Runtime::forced_victim() {
  for (std::uint32_t tries = 0; tries < table_.rows(); ++tries) {
    clock_hand_ = (clock_hand_ + 1) % table_.rows();
    if (table_.guard[clock_hand_] == 0 && resident(table_.residency[clock_hand_], kHbm))
      return clock_hand_;
  }
  return kNoPage;
}

void Runtime::drop_from_hbm(PageId page) {
  LEHR_CHECK(1, (table_.residency[page] & ~tier_bit(kHbm)) != 0);
  table_.drop(page, kHbm);
  if ((table_.flags[page] & kPromotedUnread) != 0) {
    table_.flags[page] &= static_cast<std::uint8_t>(~kPromotedUnread);
    --unread_promotions_;
  }
}

/// Pages that left HBM by another decision than the policy's are to it pages that went and came
/// back.
void Runtime::tell_policy_left(std::span<const PageId> pages) {
  if (pages.empty()) return;
  policy_->remove_pages(pages);
  policy_->add_pages(pages, {}, table_.columns());
}

void Runtime::open_tails(Layer& layer) {
  for (const PageId page : layer.absent) {
    if (!table_.reserve(page, kHbm)) {
      const PageId victim = forced_victim();
      LEHR_CHECK(1, victim != kNoPage);
      drop_from_hbm(victim);
      tell_policy_left({&victim, 1});
      ++layer.report.forced_drops;
      const bool room = table_.reserve(page, kHbm);
      LEHR_CHECK(1, room);
    }
    if (resident(table_.residency[page],
                 home_.home())) {  // a resumed sequence's: copies below HBM are out of date now
      layer.load.link[to_hbm_].add(page_bytes_);
      if (moves_bytes_) {
        // The layer's own token has raised the version already; what was suspended is one older.
        layer.ops.push_back({PageOp::Kind::kCopy, home_.home(), kHbm, page,
                             table_.version[page] - 1, table_.slot[home_.home()][page],
                             table_.slot[kHbm][page]});
      }
      home_.release(page);
    }
    table_.mark_valid(page, kHbm);
    table_.flags[page] |= kTail;
    ++table_.guard[page];
  }
}

void Runtime::apply(Layer& layer) {
  LayerPlan& plan = layer.plan;
  for (const PageId page : plan.drop) drop_from_hbm(page);
  layer.report.dropped += plan.drop.size();
  if (!options_.write_back_once) {
    for (const PageId page : plan.drop) {
      layer.load.link[to_home_].add(table_.bytes(page));
      layer.load.hbm_bytes += table_.bytes(page);
    }
  }
  open_tails(layer);
  for (const PageId page : plan.install) {
    if ((table_.flags[page] & kInFlight) != 0) background_.cancel(page);  // the read overtakes it
    if (!table_.reserve(page, kHbm))
      break;  // the plan checker names this; without it the rest is read in place
    table_.flags[page] |= kInstalling;
    ++layer.report.installed;
    layer.load.hbm_bytes += table_.bytes(page);
  }
  for (const Promotion& m : plan.promote) promote(layer, m);
}

/// Starts a promotion, or counts what refuses it.
void Runtime::promote(Layer& layer, const Promotion& m) {
  if (resident(table_.residency[m.page], kHbm) || (table_.flags[m.page] & kInFlight) != 0) return;
  if (home_.keeps() && !home_.is_kept(m.page)) {  // it may have to move down before it arrives
    ++layer.report.refused_promotions;
    return;
  }
  if (!resident(table_.residency[m.page], home_.home())) {
    if (!home_.has_below() ||
        !home_.stage(m.page, true, layer.load, moves_bytes_ ? &layer.ops : nullptr)) {
      ++layer.report.refused_promotions;
      return;
    }
    ++layer.report.staged;
  }
  if (!table_.reserve(m.page, kHbm)) {
    ++layer.report.refused_promotions;
    return;
  }
  if (!m.urgent || !background_.allowed()) {
    background_.submit(m.page);
    return;
  }
  layer.load.link[to_hbm_].add(table_.bytes(m.page));
  layer.load.hbm_bytes += table_.bytes(m.page);
  layer.report.lowered_crossings += table_.is_lowered(m.page) ? 1 : 0;
  ++layer.report.promoted;
  table_.flags[m.page] |= kPromotedUnread;
  layer.arrived.push_back(m.page);  // marked valid at the layer's end
  ++table_.guard[m.page];
}

/// Whether the layer is looked at anew in this step: in its turn, and where nobody has seen it yet.
bool Runtime::plans(Step step, std::uint32_t layer) {
  const bool seen = std::exchange(planned_[layer], std::uint8_t{1}) != 0;
  return !seen || (step + layer) % options_.plan_every == 0;
}

/// The predictor learns from the layer, and the view says what it expects now.
void Runtime::foresee(LayerView& view) {
  view.planned = plans(view.step, view.layer);
  if (!predictor_) return;
  if (view.planned) {
    watch_.compare(view, *predictor_);
    predictor_->observe(view);
    view.forecast = watch_.tell(view, *predictor_, odds_steps_);
  } else {
    predictor_->add_pages(view.filled, view.pages);
    watch_.add_pages(view.filled);
    view.forecast = watch_.retell(view.step, *predictor_, odds_steps_);
  }
  view.forecast.window =
      options_.prefetch_window != 0
          ? options_.prefetch_window
          : predictors::prefetch_window(last_step_, view.from_tier[home_.home()].seconds_per_page,
                                        static_cast<double>(view.missed.size()) * view.layers,
                                        view.forecast.confidence);
  view.odds = watch_.over_window(view.forecast);
}

/// Everything the layer reads, as load and as operations.
void Runtime::note_reads(Layer& layer) {
  const KvGeometry& shape = options_.geometry;
  const Bytes token_bytes = page_bytes_ / shape.page_tokens;
  std::uint64_t tokens = 0;
  for (const std::uint32_t n : layer.tail_length) tokens += n;
  const std::size_t hits = layer.selected.size() - layer.missed.size();
  // Weights of the heads that are here.
  layer.load.hbm_bytes +=
      options_.weights_bytes / shape.layers * heads_held_[layer.index] / shape.kv_heads +
      token_bytes * layer.tails.size() + token_bytes * tokens + page_bytes_ * hits;
  layer.load.link[to_hbm_].add(page_bytes_, static_cast<std::uint32_t>(layer.missed.size()));
  tokens += std::uint64_t{layer.selected.size()} * shape.page_tokens;
  const std::uint32_t ratio = std::max(1U, shape.q_heads / std::max(1U, shape.kv_heads));
  layer.load.flops = 4.0 * static_cast<double>(tokens) * ratio * shape.head_dim;
  layer.report.reads = layer.selected.size() + layer.tails.size();
  layer.report.tail_reads = layer.tails.size();
  layer.report.hits = hits + layer.tails.size();
  layer.report.misses = layer.missed.size();
  note_lowered_reads(layer);
  if (unread_promotions_ == 0) return;
  for (std::size_t i = 0; i < layer.selected.size(); ++i) {
    const PageId page = layer.selected[i];
    if ((table_.flags[page] & kPromotedUnread) != 0 && layer.hit[i] != 0) {
      --unread_promotions_;
      table_.flags[page] &= static_cast<std::uint8_t>(~kPromotedUnread);
      ++layer.report.promoted_used;
    }
  }
}

bool Runtime::write_back(PageId page, Layer& layer) {
  if (!home_.reserve(page, layer.load, moves_bytes_ ? &layer.ops : nullptr)) {
    ++layer.report.busy_write_backs;
    return false;
  }
  home_.keep(page);  // it may have waited for a batch that it is not of, and has yet to be written
  const TierId home = home_.home();
  layer.load.link[to_home_].add(page_bytes_);
  layer.load.hbm_bytes += page_bytes_;
  ++layer.report.written_back;
  if (moves_bytes_) {
    layer.ops.push_back({PageOp::Kind::kCopy, kHbm, home, page, table_.version[page],
                         table_.slot[kHbm][page], table_.slot[home][page]});
  }
  table_.mark_valid(page, home);
  table_.flags[page] &= static_cast<std::uint8_t>(~kTail);
  --table_.guard[page];
  return true;
}

void Runtime::write_back_full_tails(Layer& layer) {
  std::erase_if(waiting_write_back_, [&](PageId page) {
    return table_.layer[page] == layer.index && write_back(page, layer);
  });
  for (std::size_t i = 0; i < layer.tails.size(); ++i) {
    if (layer.tail_length[i] != options_.geometry.page_tokens) continue;
    filled_[layer.index].push_back(layer.tails[i]);
    if (!write_back(layer.tails[i], layer)) waiting_write_back_.push_back(layer.tails[i]);
  }
}

/// Time, arrivals, late drops, guards.
void Runtime::finish(Layer& layer) {
  layer.time = placement::layer_time(options_.platform, layer.load);
  for (const PageId page : layer.arrived) {  // urgent promotions
    table_.mark_valid(page, kHbm);
    --table_.guard[page];
  }
  const std::size_t urgent = layer.arrived.size();
  placement::LinkLoad carried;
  // Only the part of the layer in which data moves: control and stalls hide nothing in the machine
  // model.
  background_.layer_ended(std::max(layer.time.under_compute(), layer.time.links),
                          layer.load.link[to_hbm_], layer.arrived, carried);
  for (std::size_t i = urgent; i < layer.arrived.size(); ++i)
    layer.report.lowered_crossings += table_.is_lowered(layer.arrived[i]) ? 1 : 0;
  if (carried.bytes > 0) {  // written in HBM as they cross
    layer.load.hbm_bytes += carried.bytes;
    layer.time = placement::layer_time(options_.platform, layer.load);
  }
  layer.report.promoted += layer.arrived.size() - urgent;
  unread_promotions_ += layer.arrived.size();
  for (const PageId page : layer.plan.install) {
    if ((table_.flags[page] & kInstalling) == 0) continue;
    table_.flags[page] &= static_cast<std::uint8_t>(~kInstalling);
    table_.mark_valid(page, kHbm);
  }
  if (moves_bytes_) {
    for (const PageId page : layer.arrived) {
      layer.ops.push_back({PageOp::Kind::kCopy, home_.home(), kHbm, page, table_.version[page],
                           table_.slot[home_.home()][page], table_.slot[kHbm][page]});
    }
  }
  lower_pages(layer);
  for (std::size_t i = 0; i < layer.selected.size(); ++i) --table_.guard[layer.selected[i]];
  for (const PageId page : layer.plan.drop_after) drop_from_hbm(page);
  layer.report.dropped += layer.plan.drop_after.size();

  StepReport& r = layer.report;
  r.time = layer.time;
  r.total = layer.time.total();
  r.exposed = layer.time.exposed();
  for (std::size_t i = 0; i < r.link.size(); ++i) {
    r.link[i].bytes = layer.load.link[i].bytes + layer.load.stall[i].bytes;
    r.link[i].count = layer.load.link[i].count + layer.load.stall[i].count;
  }
  r.link[to_hbm_].bytes += carried.bytes;
  r.link[to_hbm_].count += carried.count;
  current_.add(r);
  heat_.read(layer.selected, layer.mass, layer.peak, step_);
}

namespace {

/// The reads of a layer, for machines that move bytes; installs are fetches.
void list_reads(const PageTable& table, TierId home, std::span<const PageId> selected,
                std::span<const std::uint8_t> hit, std::span<const PageId> tails,
                std::span<const std::uint32_t> tail_tokens, std::vector<PageOp>& ops) {
  for (std::size_t i = 0; i < tails.size(); ++i) {
    const PageId page = tails[i];
    const SlotId slot = table.slot[kHbm][page];
    ops.push_back(
        {PageOp::Kind::kFill, kHbm, kHbm, page, table.version[page], slot, slot, tail_tokens[i]});
    ops.push_back({PageOp::Kind::kRead, kHbm, kHbm, page, table.version[page], slot, slot});
  }
  for (std::size_t i = 0; i < selected.size(); ++i) {
    const PageId page = selected[i];
    const TierId from = hit[i] != 0 ? kHbm : home;
    const bool keep = (table.flags[page] & kInstalling) != 0;
    ops.push_back({keep ? PageOp::Kind::kFetch : PageOp::Kind::kRead, from, kHbm, page,
                   table.version[page], table.slot[from][page],
                   keep ? table.slot[kHbm][page] : kNoSlot});
  }
}

/// What a layer writes, for machines that are told of reads by the groups.
void list_writes(const PageTable& table, TierId home, std::span<const PageId> install,
                 std::span<const PageId> tails, std::span<const std::uint32_t> tail_tokens,
                 std::vector<PageOp>& ops) {
  for (std::size_t i = 0; i < tails.size(); ++i) {
    const PageId page = tails[i];
    const SlotId slot = table.slot[kHbm][page];
    ops.push_back(
        {PageOp::Kind::kFill, kHbm, kHbm, page, table.version[page], slot, slot, tail_tokens[i]});
  }
  for (const PageId page : install) {
    if ((table.flags[page] & kInstalling) == 0) continue;
    ops.push_back({PageOp::Kind::kFetch, home, kHbm, page, table.version[page],
                   table.slot[home][page], table.slot[kHbm][page]});
  }
}

}  // namespace

Status Runtime::run_layer(std::uint32_t index, std::span<const GroupSelection> groups) {
  if (!in_step_) return invalid("run_layer outside a step");
  if (next_layer_ == options_.geometry.layers)
    return invalid(fmt::format("all {} layers ran, the step's end is next", next_layer_));
  if (index != next_layer_) {
    return invalid(fmt::format("layer {} is next, not {}", next_layer_, index));
  }
  Layer& layer = *scratch_;
  layer.begin(index, step_ * options_.geometry.layers + index);
  LEHR_TRY(resolve(layer, groups));
  find_tails(layer);
  Status ready = make_room_for_tails(layer);
  if (ready) ready = stage_missing(layer);
  if (!ready) {
    undo_guards(table_, layer.selected, layer.tick_before);
    // Pages that were staged before one found no room are where the table says: their bytes follow.
    if (moves_bytes_ && !layer.ops.empty()) LEHR_TRY(machine_->run_layer(step_, index, layer.ops));
    return ready;
  }
  for (const PageId page : layer.tails) ++table_.version[page];
  note_reads(layer);

  LayerView view;
  view.step = step_;
  view.layer = index;
  view.layers = options_.geometry.layers;
  view.tick = layer.tick;
  view.selected = layer.selected;
  view.hit = layer.hit;
  view.missed = layer.missed;
  view.mass = layer.mass;
  view.peak = layer.peak;
  view.next_use = layer.next_use;
  view.groups = layer.groups;
  view.filled = layer.filled;
  view.filled_next_use = layer.filled_next_use;
  view.capacity = table_.slots(kHbm).capacity();
  view.free_slots = table_.slots(kHbm).available();
  view.must_free = owed_by_policy(layer);
  view.home = home_.home();
  view.pages = table_.columns();
  if (scores_) view.pages.importance = scores_->ranks();
  const placement::Link& up = options_.platform.links[to_hbm_];
  const placement::LayerTime so_far = placement::layer_time(options_.platform, layer.load);
  const auto crossing = static_cast<double>(std::max<std::size_t>(layer.missed.size(), 1));
  view.from_tier[home_.home()] = {
      placement::link_bytes(up, so_far.under_compute(), page_bytes_),
      static_cast<double>(page_bytes_) / up.curve.at(static_cast<double>(page_bytes_), crossing)};
  foresee(view);
  policy_->decide(view, layer.plan);
  const placement::Restraint restraint = policy_->restraint();
  layer.report.paused_layers = restraint == placement::Restraint::kWrongPredictions ? 1 : 0;
  layer.report.thrashing_layers = restraint == placement::Restraint::kThrashing ? 1 : 0;
  filled_[index].clear();
  if constexpr (LEHR_CHECKS >= 2) LEHR_TRY(placement::check_plan(view, layer.plan));

  apply(layer);
  if (machine_->traits().attends) {
    list_writes(table_, home_.home(), layer.plan.install, layer.tails, layer.tail_length,
                layer.ops);
  } else if (moves_bytes_) {
    list_reads(table_, home_.home(), layer.selected, layer.hit, layer.tails, layer.tail_length,
               layer.ops);
  }
  write_back_full_tails(layer);
  load_lowering(layer);
  finish(layer);
  next_layer_ = first_held_layer(next_layer_ + 1);
  return moves_bytes_ ? run_machine(layer, groups) : Status{};
}

/// Every group of the batch, named in the selection or not: its tail is read in any case.
void Runtime::list_groups(Layer& layer, std::span<const GroupSelection> groups) {
  const std::uint32_t heads = options_.geometry.kv_heads;
  for (const SequenceId id : batch_) {
    const Sequence& s = *sequences_[id];
    for (std::uint32_t head = 0; head < heads; ++head) {
      layer.work.push_back(
          {s.number, head, s.tokens, s.blocks, table_.group_offset(layer.index, head), {}});
    }
  }
  std::size_t named_pages = 0;
  for (const GroupSelection& g : groups) named_pages += g.pages.size();
  std::size_t at = 0;  // selections usually come in the batch's own order
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const GroupSelection& g = groups[i];
    const auto named = [&](const GroupWork& w) {
      return w.sequence == g.sequence && w.kv_head == g.kv_head;
    };
    if (at >= layer.work.size() || !named(layer.work[at])) {
      at = static_cast<std::size_t>(std::find_if(layer.work.begin(), layer.work.end(), named) -
                                    layer.work.begin());
    }
    GroupWork& work = layer.work[at++];
    work.pages = g.pages;
    work.hits = hits_of(layer, layer.groups[i], g, named_pages);
  }
}

/// Where the pages of a group were found, tail left out. They are known in the order of the layer's
/// own list, which names a page that several sequences read once: then it is asked for by page.
std::span<const std::uint8_t> Runtime::hits_of(Layer& layer, const GroupView& view,
                                               const GroupSelection& g, std::size_t named_pages) {
  const auto tail =
      static_cast<std::uint32_t>(view.blocks.size() - (growth_ == Growth::kNone ? 0 : 1));
  const std::size_t full = g.pages.size() - (!g.pages.empty() && g.pages.back() == tail ? 1 : 0);
  if (full == view.count) return std::span(layer.hit).subspan(view.first, view.count);
  if (layer.shared_hits.empty()) {
    layer.shared_hits.reserve(named_pages);  // spans of it stay
    layer.page_hits.resize(table_.rows());
    for (std::size_t i = 0; i < layer.selected.size(); ++i)
      layer.page_hits[layer.selected[i]] = layer.hit[i];
  }
  const std::size_t first = layer.shared_hits.size();
  for (std::size_t i = 0; i < full; ++i)
    layer.shared_hits.push_back(layer.page_hits[view.page(g.pages[i])]);
  return std::span(layer.shared_hits).subspan(first);
}

Status Runtime::run_machine(Layer& layer, std::span<const GroupSelection> groups) {
  if (!machine_->traits().attends) return machine_->run_layer(step_, layer.index, layer.ops);
  list_groups(layer, groups);
  return machine_->run({step_, layer.index, layer.ops, layer.work, &layer.load, &layer.time,
                        static_cast<std::uint32_t>(layer.missed.size())});
}

}  // namespace lehr::runtime
