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

Status Instance::validate() const {
  if (platform == nullptr) return broken("no platform");
  LEHR_TRY(platform->validate());
  if (layers == 0 || page_bytes == 0) return broken("no layers or no page size");
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
  std::vector<Tick> last(birth.size(), kNever);
  for (Tick t = 0; t < n; ++t) {
    const std::string at = " at tick " + std::to_string(t);
    if (t > 0 && (visit_end[t] < visit_end[t - 1] || transfer_end[t] < transfer_end[t - 1])) {
      return broken("offsets fall" + at);
    }
    if (pinned[t] > capacity) {
      return broken(std::to_string(pinned[t]) + " tails for " + std::to_string(capacity) +
                    " slots" + at);
    }
    for (const PageId p : visits_at(t)) {
      if (p >= birth.size())
        return broken("visit to page " + std::to_string(p) + ", which does not exist," + at);
      if (t < birth[p] || t >= death[p]) {
        return broken("visit to page " + std::to_string(p) + " outside its life" + at);
      }
      if (last[p] == t) return broken("page " + std::to_string(p) + " visited twice" + at);
      last[p] = t;
    }
    for (const FixedTransfer& f : transfers_at(t)) {
      if (f.link >= platform->links.size()) return broken("transfer over no link" + at);
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
