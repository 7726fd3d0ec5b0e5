// SPDX-License-Identifier: Apache-2.0
#include "placement/instance.hpp"

#include <string>

namespace lehr::placement {

namespace {

template <class T>
std::span<const T> slice(const std::vector<T>& all, const std::vector<std::uint32_t>& end, Tick t) {
  const std::uint32_t first = t == 0 ? 0 : end[t - 1];
  return std::span<const T>(all).subspan(first, end[t] - first);
}

Error broken(const std::string& what) { return invalid("placement instance: " + what); }
Error broken(const std::string& what, Tick t) {
  return broken(what + " at tick " + std::to_string(t));
}

}  // namespace

std::span<const PageId> Instance::visits_at(Tick t) const { return slice(visit, visit_end, t); }

std::span<const FixedTransfer> Instance::transfers_at(Tick t) const {
  return slice(transfer, transfer_end, t);
}

PageId Instance::add_page(Tick born, bool in_hbm) {
  birth.push_back(born);
  death.push_back(kNever);
  born_in_hbm.push_back(in_hbm ? 1 : 0);
  return static_cast<PageId>(birth.size() - 1);
}

void Instance::open_tick(Bytes fixed_hbm_bytes, double tick_flops, std::uint32_t pinned_slots) {
  fixed_hbm.push_back(fixed_hbm_bytes);
  flops.push_back(tick_flops);
  pinned.push_back(pinned_slots);
  visit_end.push_back(static_cast<std::uint32_t>(visit.size()));
  transfer_end.push_back(static_cast<std::uint32_t>(transfer.size()));
}

void Instance::add_visit(PageId page) {
  visit.push_back(page);
  ++visit_end.back();
}

void Instance::add_transfer(LinkId link, Bytes bytes, std::uint32_t count) {
  transfer.push_back({link, LinkLoad{bytes, count}});
  ++transfer_end.back();
}

LayerLoad Instance::load(Tick t, std::uint32_t hbm_pages, std::uint32_t crossings) const {
  LayerLoad out;
  out.hbm_bytes = fixed_hbm[t] + page_bytes * hbm_pages;
  out.flops = flops[t];
  for (const FixedTransfer& f : transfers_at(t)) {
    out.link[f.link].bytes += f.load.bytes;
    out.link[f.link].count += f.load.count;
  }
  out.link[platform->link(platform->home, kHbm)].add(page_bytes, crossings);
  return out;
}

Status Instance::validate_columns() const {
  const std::size_t n = fixed_hbm.size();
  if (flops.size() != n || pinned.size() != n || visit_end.size() != n ||
      transfer_end.size() != n) {
    return broken("columns by tick differ in length");
  }
  if (death.size() != birth.size() || born_in_hbm.size() != birth.size() ||
      (!name.empty() && name.size() != birth.size())) {
    return broken("columns by page differ in length");
  }
  if (n > 0 && (visit_end.back() != visit.size() || transfer_end.back() != transfer.size())) {
    return broken("visits or transfers outside the ticks");
  }
  for (Tick t = 1; t < n; ++t) {
    if (visit_end[t] < visit_end[t - 1] || transfer_end[t] < transfer_end[t - 1]) {
      return broken("offsets fall", t);
    }
  }
  return {};
}

/// `last` is the tick in which each page was visited before, or kNever.
Status Instance::validate_visits(Tick t, std::vector<Tick>& last) const {
  for (const PageId p : visits_at(t)) {
    const bool exists = p < birth.size();
    if (!exists) return broken("visit to page " + std::to_string(p) + ", which does not exist,", t);
    const bool alive = birth[p] <= t && t < death[p];
    if (!alive) return broken("visit to page " + std::to_string(p) + " outside its life", t);
    if (last[p] == t) return broken("page " + std::to_string(p) + " visited twice", t);
    last[p] = t;
  }
  return {};
}

Status Instance::validate() const {
  if (platform == nullptr) return broken("no platform");
  LEHR_TRY(platform->validate());
  if (layers == 0 || page_bytes == 0) return broken("no layers or no page size");
  if (least_page_bytes > page_bytes) return broken("lowered pages larger than whole ones");
  LEHR_TRY(validate_columns());
  std::vector<Tick> last(birth.size(), kNever);
  for (Tick t = 0; t < ticks(); ++t) {
    if (pinned[t] > capacity) {
      return broken(std::to_string(pinned[t]) + " tails for " + std::to_string(capacity) + " slots",
                    t);
    }
    LEHR_TRY(validate_visits(t, last));
    for (const FixedTransfer& f : transfers_at(t)) {
      if (f.link >= platform->links.size()) return broken("transfer over no link", t);
    }
  }
  return {};
}

VisitChains visit_chains(const Instance& instance) {
  VisitChains chains;
  std::vector<std::uint32_t> next(instance.pages() + std::size_t{1}, 0);
  for (const PageId p : instance.visit) ++next[p + 1];
  for (std::size_t p = 1; p < next.size(); ++p) next[p] += next[p - 1];
  chains.end.assign(next.begin() + 1, next.end());
  chains.tick.resize(instance.visit.size());
  for (Tick t = 0; t < instance.ticks(); ++t) {
    for (const PageId p : instance.visits_at(t)) chains.tick[next[p]++] = t;
  }
  return chains;
}

}  // namespace lehr::placement
