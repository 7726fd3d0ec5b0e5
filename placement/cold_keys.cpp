// SPDX-License-Identifier: Apache-2.0
#include "placement/cold_keys.hpp"

#include <algorithm>

namespace lehr::placement {

namespace {

constexpr std::size_t kSlack = 1024;
constexpr double kLost = -1e9;  ///< key of a page that nobody had listed: below all others

}  // namespace

void ColdKeys::reset(std::uint32_t layers) {
  *this = {};
  lists_.resize(layers);
  fronts_.assign(layers, kAll);
  tidy_at_ = kSlack;
}

void ColdKeys::reach(PageId page) {
  if (page < inside_.size()) return;
  const std::size_t rows = std::max<std::size_t>(page + std::size_t{1}, 2 * inside_.size());
  inside_.resize(rows, 0);
  stamp_.resize(rows, 0);
}

ColdKeys::Unit& ColdKeys::unit(std::uint32_t layer, std::uint32_t sequence) {
  std::vector<Unit>& units = lists_[layer].units;
  if (sequence >= units.size()) units.resize(sequence + std::size_t{1});
  return units[sequence];
}

ColdKeys::Entry ColdKeys::stamped(PageId page, std::uint32_t layer, std::uint32_t sequence,
                                  double key) {
  stamp_[page] = ++serial_;
  return {key, serial_, page, static_cast<std::uint16_t>(layer),
          static_cast<std::uint16_t>(sequence)};
}

void ColdKeys::set(PageId page, std::uint32_t layer, std::uint32_t sequence, double key) {
  reach(page);
  size_ += inside_[page] == 0 ? 1 : 0;
  inside_[page] = 1;
  if (key <= unit(layer, sequence).bound) {
    push(stamped(page, layer, sequence, key));
  } else {
    stamp_[page] = 0;
  }
}

void ColdKeys::erase(PageId page) {
  if (!contains(page)) return;
  inside_[page] = 0;
  stamp_[page] = 0;
  --size_;
}

void ColdKeys::push(const Entry& e) {
  heap_.push_back(e);
  std::push_heap(heap_.begin(), heap_.end(), Later());
  if (heap_.size() > tidy_at_) tidy_up();
}

void ColdKeys::pop(std::vector<Entry>& heap) {
  std::pop_heap(heap.begin(), heap.end(), Later());
  heap.pop_back();
}

void ColdKeys::tidy_up() {
  std::erase_if(heap_, [this](const Entry& e) { return !live(e); });
  std::make_heap(heap_.begin(), heap_.end(), Later());
  tidy_at_ = 2 * heap_.size() + kSlack;
}

void ColdKeys::begin_layer(std::uint32_t layer) {
  old_.clear();
  old_.swap(lists_[layer].entries);
  renewing_ = layer;
}

void ColdKeys::renew(std::uint32_t layer, std::uint32_t sequence, double bound) {
  Unit& u = unit(layer, sequence);
  u.bound = bound;
  u.since = serial_ + 1;
}

void ColdKeys::list(PageId page, std::uint32_t layer, std::uint32_t sequence, double key) {
  lists_[layer].entries.push_back(stamped(page, layer, sequence, key));
}

void ColdKeys::end_layer() {
  std::vector<Entry>& entries = lists_[renewing_].entries;
  std::make_heap(entries.begin(), entries.end(), Later());
  for (const Entry& e : old_) {  // of sequences that do not run
    if (live(e)) push(e);
  }
  note_front(renewing_);
  note_bounds(renewing_);
}

bool ColdKeys::listed(PageId page, std::uint32_t layer, std::uint32_t sequence) const {
  return stamp_[page] != 0 && stamp_[page] >= lists_[layer].units[sequence].since;
}

void ColdKeys::list_late(PageId page, std::uint32_t layer, std::uint32_t sequence, double key) {
  push(stamped(page, layer, sequence, key));
}

void ColdKeys::raise(std::uint32_t layer, std::uint32_t sequence, double bound) {
  unit(layer, sequence).bound = bound;
  note_bounds(layer);
}

void ColdKeys::note_bounds(std::uint32_t layer) {
  List& list = lists_[layer];
  list.bound = kAll;
  for (std::size_t s = 0; s < list.units.size(); ++s) {
    if (list.units[s].bound >= list.bound) continue;
    list.bound = list.units[s].bound;
    list.sequence = static_cast<std::uint32_t>(s);
  }
  least_bound_ = kAll;
  for (std::size_t l = 0; l < lists_.size(); ++l) {
    if (lists_[l].bound >= least_bound_) continue;
    least_bound_ = lists_[l].bound;
    least_layer_ = static_cast<std::uint32_t>(l);
    least_sequence_ = lists_[l].sequence;
  }
}

void ColdKeys::rewind() {
  for (const Entry& e : held_) {
    if (live(e)) push(e);
  }
  held_.clear();
  swept_ = false;
}

void ColdKeys::pop_list(std::uint32_t layer) {
  pop(lists_[layer].entries);
  note_front(layer);
}

void ColdKeys::note_front(std::uint32_t layer) {
  const std::vector<Entry>& entries = lists_[layer].entries;
  fronts_[layer] = kAll;
  if (!entries.empty()) fronts_[layer] = entries.front().key;
}

const ColdKeys::Entry* ColdKeys::first_of_lists() {
  for (;;) {
    std::uint32_t best = 0;
    for (std::uint32_t l = 1; l < fronts_.size(); ++l) {
      if (fronts_[l] > fronts_[best]) continue;
      const bool tie = fronts_[l] == fronts_[best] && fronts_[l] != kAll;
      if (fronts_[l] < fronts_[best] ||
          (tie && lists_[l].entries.front().page < lists_[best].entries.front().page)) {
        best = l;
      }
    }
    if (fronts_.empty() || lists_[best].entries.empty()) return nullptr;
    const Entry& e = lists_[best].entries.front();
    if (live(e)) {
      leader_ = best;
      return &e;
    }
    pop_list(best);
  }
}

const ColdKeys::Entry* ColdKeys::first() {
  while (!heap_.empty() && !live(heap_.front())) pop(heap_);
  const Entry* const e = first_of_lists();
  in_heap_ = !heap_.empty() && (e == nullptr || later(*e, heap_.front()));
  return in_heap_ ? &heap_.front() : e;
}

/// What first() found is held: it is looked at again after rewind().
void ColdKeys::pass_over() {
  if (in_heap_) {
    held_.push_back(heap_.front());
    pop(heap_);
  } else {
    held_.push_back(lists_[leader_].entries.front());
    pop_list(leader_);
  }
}

/// All units are listed to the end and nothing is left: a page that no run has named since it came
/// (its sequence was forked and has not run, say) leaves before none does.
ColdKeys::Lowest ColdKeys::any(std::span<const std::uint16_t> guard) {
  if (swept_ || size_ == held_.size()) return {};
  for (std::size_t tries = 0; tries < inside_.size(); ++tries) {
    hand_ = hand_ + 1 < inside_.size() ? hand_ + 1 : 0;
    if (inside_[hand_] != 0 && (hand_ >= guard.size() || guard[hand_] == 0)) return {hand_, kLost};
  }
  swept_ = true;
  return {};
}

}  // namespace lehr::placement
