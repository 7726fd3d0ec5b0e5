// SPDX-License-Identifier: Apache-2.0
#include "runtime/background.hpp"

#include <algorithm>

namespace lehr::runtime {

void Background::submit(PageId page) {
  ++table_.guard[page];
  table_.flags[page] |= kInFlight;
  queue_.push_back(page);
}

void Background::layer_ended(Seconds duration, const placement::LinkLoad& used,
                             std::vector<PageId>& arrived, placement::LinkLoad& carried) {
  if (queue_.empty() || !allowed_) return;
  const LinkId id = platform_.link(platform_.home, kHbm);
  const placement::Link& link = platform_.links[id];
  Bytes left = placement::link_bytes(link, duration - placement::link_time(link, used),
                                     table_.bytes(queue_.front()));
  while (left > 0 && !queue_.empty()) {
    const Bytes size = table_.bytes(queue_.front());
    const Bytes take = std::min(left, size - front_done_);
    left -= take;
    front_done_ += take;
    carried.bytes += take;
    if (front_done_ < size) break;
    const PageId page = queue_.front();
    queue_.pop_front();
    front_done_ = 0;
    --table_.guard[page];
    table_.flags[page] &= static_cast<std::uint8_t>(~kInFlight);
    table_.flags[page] |= kPromotedUnread;
    table_.mark_valid(page, kHbm);
    arrived.push_back(page);
    ++carried.count;
  }
}

bool Background::cancel(PageId page) {
  const auto at = std::find(queue_.begin(), queue_.end(), page);
  if (at == queue_.end()) return false;
  if (at == queue_.begin()) front_done_ = 0;
  queue_.erase(at);
  --table_.guard[page];
  table_.flags[page] &= static_cast<std::uint8_t>(~kInFlight);
  table_.drop(page, kHbm);
  return true;
}

void Background::cancel_if(const std::function<bool(PageId)>& unwanted) {
  const std::vector<PageId> queued(queue_.begin(), queue_.end());
  for (const PageId page : queued) {
    if (unwanted(page)) cancel(page);
  }
}

}  // namespace lehr::runtime
