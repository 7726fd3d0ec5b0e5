// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/ids.hpp"
#include "kernels/base/result.hpp"
#include "placement/model.hpp"

namespace lehr::placement {

/// Bytes that cross a link in a tick whatever the plan (first write-backs).
struct FixedTransfer {
  LinkId link = kNoLink;
  LinkLoad load;
};

/// Which page of a batch a page is.
struct PageName {
  std::uint32_t sequence = 0;  ///< in the order of joining
  std::uint16_t layer = 0;
  std::uint16_t kv_head = 0;
  std::uint32_t position = 0;
};

/// A whole replay as a problem of placement: everything that no plan can change. Time is ticks,
/// step * layers + layer. In each tick the visited pages are read, those in HBM from there, the
/// others over the home link. A plan chooses which pages stay in HBM between their visits, and
/// promotes pages ahead of visits (the crossing, its HBM write and the slot from then on belong to
/// one tick, an earlier one than the visit's).
///
/// Tails are no pages here: their reads are in `fixed_hbm`, their slots in `pinned`. A tail that
/// became full is a page born in HBM. Pages are dense from 0; none is visited twice in a tick.
struct Instance {
  const Platform* platform = nullptr;  ///< outlives the instance
  std::uint32_t capacity = 0;          ///< HBM slots, tails included
  Bytes page_bytes = 0;
  /// Least bytes that a page may be read, moved or written with, where plans may lower pages; 0:
  /// page_bytes. What bounds count; `load`, and with it the oracle, is of whole pages.
  Bytes least_page_bytes = 0;
  std::uint32_t layers = 1;

  // By tick.
  std::vector<Bytes> fixed_hbm;  ///< weights, appended, tails, write-backs
  std::vector<double> flops;
  std::vector<std::uint32_t> pinned;  ///< slots held by tails
  std::vector<std::uint32_t> visit_end;
  std::vector<std::uint32_t> transfer_end;
  std::vector<PageId> visit;            ///< of tick t: [visit_end[t - 1], visit_end[t])
  std::vector<FixedTransfer> transfer;  ///< of tick t: the same

  // By page.
  std::vector<Tick> birth;  ///< first tick in which the page exists
  std::vector<Tick> death;  ///< first tick in which it does not; kNever
  std::vector<std::uint8_t> born_in_hbm;
  std::vector<PageName> name;  ///< of every page, or empty

  Bytes least_bytes() const { return least_page_bytes != 0 ? least_page_bytes : page_bytes; }
  Tick ticks() const { return static_cast<Tick>(fixed_hbm.size()); }
  std::uint32_t pages() const { return static_cast<std::uint32_t>(birth.size()); }
  std::span<const PageId> visits_at(Tick t) const;
  std::span<const FixedTransfer> transfers_at(Tick t) const;

  /// Filling, in time order: pages before their first visit, then a tick with its visits and
  /// transfers.
  PageId add_page(Tick born, bool in_hbm);
  void open_tick(Bytes fixed_hbm_bytes, double tick_flops, std::uint32_t pinned_slots);
  void add_visit(PageId page);
  void add_transfer(LinkId link, Bytes bytes, std::uint32_t count);

  /// What tick t moves when `hbm_pages` pages are read from or written to HBM and `crossings` pages
  /// cross the home link.
  LayerLoad load(Tick t, std::uint32_t hbm_pages, std::uint32_t crossings) const;

  /// Consistent: columns of equal length, ids in range, visits within a page's life, tails within
  /// the capacity, a valid platform.
  Status validate() const;

 private:
  Status validate_columns() const;
  Status validate_visits(Tick t, std::vector<Tick>& last) const;
};

/// The visits by page: those of page p are tick[end[p - 1] .. end[p]), rising. Interval i reaches
/// from the visit before (or the page's birth) to visit i.
struct VisitChains {
  std::vector<std::uint32_t> end;
  std::vector<Tick> tick;

  std::uint32_t begin_of(PageId p) const { return p == 0 ? 0 : end[p - 1]; }
};
VisitChains visit_chains(const Instance& instance);

}  // namespace lehr::placement
