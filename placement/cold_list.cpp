// SPDX-License-Identifier: Apache-2.0
#include "placement/cold_list.hpp"

#include "placement/policies/index_lists.hpp"

namespace lehr::placement {

namespace {
constexpr std::size_t kLeast = 64;  ///< entries that are always worth listing
}  // namespace

void ColdList::reset(std::uint32_t capacity) {
  residents_.clear();
  residents_.reserve(capacity);
  place_.clear();
  listed_.clear();
  list_.clear();
  coming_.clear();
  next_ = hand_ = wanted_ = 0;
  threshold_ = kNoThreshold;
  sweep_ = 1;
  sweeping_ = dry_ = false;
  searched_ = swept_ = 0;
}

void ColdList::keep(PageId page) {
  if (page >= place_.size()) {
    const std::size_t n = std::max<std::size_t>(page + std::size_t{1}, place_.size() * 2);
    place_.resize(n, kNowhere);
    listed_.resize(n, 0);
  }
  if (place_[page] != kNowhere) return;
  place_[page] = static_cast<std::uint32_t>(residents_.size());
  residents_.push_back(page);
}

void ColdList::leave(PageId page) {
  const PageId last = residents_.back();
  residents_[place_[page]] = last;
  place_[last] = place_[page];
  residents_.pop_back();
  place_[page] = kNowhere;
  listed_[page] = 0;
}

PageId ColdList::coldest(std::span<const std::uint16_t> guard) {
  while (!list_.empty()) {
    const Entry& e = list_.back();
    ++searched_;
    if (stands(e) && !held(guard, e.page)) return e.page;
    list_.pop_back();
  }
  dry_ = true;
  return kNoPage;
}

PageId ColdList::any(std::span<const std::uint16_t> guard) {
  for (std::size_t n = residents_.size(); n > 0; --n) {
    if (hand_ >= residents_.size()) hand_ = 0;
    ++searched_;
    const PageId page = residents_[hand_];
    if (!held(guard, page)) return page;  // its place is taken by another, looked at next
    ++hand_;
  }
  return kNoPage;
}

bool ColdList::begin_slice(double share) {
  if (!sweeping_) {
    // Where demand ran the list dry, what is read has changed: list more.
    const double most = std::min(1.0, (dry_ ? 2 : 1) * share);
    wanted_ = static_cast<std::size_t>(most * static_cast<double>(residents_.size())) + kLeast;
    if (list_.size() > wanted_ / 2) return false;
    sweeping_ = true;
    dry_ = false;
    next_ = residents_.size();
    counts_.fill(0);
    coming_.clear();
    ++sweep_;
  }
  next_ = std::min(next_, residents_.size());
  return true;
}

/// From the end of the residents to their front: what leaves is replaced by the last, which was
/// looked at already, so that none is passed over.
void ColdList::collect(std::span<const PageId> pages) {
  swept_ += pages.size();
  for (std::size_t i = 0; i < pages.size(); ++i) {
    ++counts_[scores_[i] >> kFineBits];
    if (scores_[i] > threshold_ || listed_[pages[i]] == sweep_) continue;
    listed_[pages[i]] = sweep_;
    coming_.push_back({pages[i], sweep_, scores_[i]});
  }
}

/// By falling score, a byte at a time: the list is long and a comparison sort is felt.
void ColdList::publish() {
  sorted_.resize(coming_.size());
  for (const std::uint32_t shift : {0U, 8U}) {
    std::array<std::uint32_t, 257> at{};
    for (const Entry& e : coming_) ++at[256 - (e.score >> shift & 0xFF)];
    for (std::size_t i = 1; i < at.size(); ++i) at[i] += at[i - 1];
    for (const Entry& e : coming_) sorted_[at[255 - (e.score >> shift & 0xFF)]++] = e;
    coming_.swap(sorted_);
  }
  const std::size_t kept = std::min(coming_.size(), 2 * wanted_);
  list_.assign(coming_.end() - static_cast<std::ptrdiff_t>(kept), coming_.end());
  sweeping_ = false;
  std::size_t below = 0;
  std::uint32_t bin = 0;
  while (bin + 1 < counts_.size() && below + counts_[bin] < wanted_) below += counts_[bin++];
  threshold_ = ((bin + 1) << kFineBits) - 1;
}

}  // namespace lehr::placement
