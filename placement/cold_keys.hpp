// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/base/ids.hpp"

namespace lehr::placement {

/// The page of lowest key among many, of which only the lowest are ever looked at. The keys of a
/// unit (one layer of one sequence) change together, when the layer runs: its keeper then lists the
/// pages whose keys reach a bound of the keeper's choice, and the others are known to be higher.
/// Where the listed ones do not settle which page is lowest, the keeper is asked to list more. So
/// most pages cost nothing. Not thread-safe.
class ColdKeys {
 public:
  static constexpr double kAll =
      std::numeric_limits<double>::infinity();  ///< bound: all are listed

  void reset(std::uint32_t layers);
  /// Room in inside() for pages up to this one.
  void reach(PageId page);

  bool contains(PageId page) const { return page < inside_.size() && inside_[page] != 0; }
  std::uint32_t size() const { return size_; }
  /// By page: 1 if it is in here.
  std::span<const std::uint8_t> inside() const { return inside_; }

  /// One page comes, or gets another key.
  void set(PageId page, std::uint32_t layer, std::uint32_t sequence, double key);
  void erase(PageId page);

  /// A layer's new keys: what it listed of the units that are renewed is void. Then renew() each
  /// unit, list() its pages in here of key `bound` and below, and end_layer().
  void begin_layer(std::uint32_t layer);
  void renew(std::uint32_t layer, std::uint32_t sequence, double bound);
  void list(PageId page, std::uint32_t layer, std::uint32_t sequence, double key);
  void end_layer();

  /// More of a unit: list_late() all its pages in here up to a higher bound that are not listed().
  bool listed(PageId page, std::uint32_t layer, std::uint32_t sequence) const;
  void list_late(PageId page, std::uint32_t layer, std::uint32_t sequence, double key);
  void raise(std::uint32_t layer, std::uint32_t sequence, double bound);

  /// Guards may have fallen: pages that lowest() passed over are looked at again.
  void rewind();

  struct Lowest {
    PageId page = kNoPage;
    double key = 0;
  };
  /// The page of lowest key (of equal ones the lowest number) with guard 0, or none. It stays.
  /// Until the next rewind() guards may rise but not fall. `more(layer, sequence)` lists more of a
  /// unit and raises its bound.
  template <class More>
  Lowest lowest(std::span<const std::uint16_t> guard, More&& more) {
    for (;;) {
      const Entry* const best = first();
      if (best == nullptr || best->key > least_bound_) {
        if (least_bound_ == kAll) return any(guard);
        more(least_layer_, least_sequence_);
        continue;
      }
      if (best->page >= guard.size() || guard[best->page] == 0) return {best->page, best->key};
      pass_over();
    }
  }

 private:
  struct Entry {
    double key;
    std::uint64_t serial;
    PageId page;
    std::uint16_t layer;
    std::uint16_t sequence;
  };
  /// Heaps of std put the largest first.
  struct Later {
    bool operator()(const Entry& a, const Entry& b) const {
      return a.key != b.key ? a.key > b.key : a.page > b.page;
    }
  };
  static bool later(const Entry& a, const Entry& b) { return Later()(a, b); }
  struct Unit {
    double bound = kAll;      ///< pages in here that are not listed have higher keys
    std::uint64_t since = 0;  ///< entries before this serial are void
  };
  struct List {
    std::vector<Entry> entries;  ///< of the layer's last run, the lowest in front
    std::vector<Unit> units;     ///< by sequence
    double bound = kAll;         ///< the least of them
    std::uint32_t sequence = 0;
  };

  bool live(const Entry& e) const {
    return stamp_[e.page] == e.serial && e.serial >= lists_[e.layer].units[e.sequence].since;
  }
  Unit& unit(std::uint32_t layer, std::uint32_t sequence);
  Entry stamped(PageId page, std::uint32_t layer, std::uint32_t sequence, double key);
  void push(const Entry& e);
  static void pop(std::vector<Entry>& heap);
  void tidy_up();
  void note_bounds(std::uint32_t layer);
  void pop_list(std::uint32_t layer);
  void note_front(std::uint32_t layer);
  const Entry* first();
  const Entry* first_of_lists();
  void pass_over();
  Lowest any(std::span<const std::uint16_t> guard);

  std::vector<std::uint8_t> inside_;
  std::vector<std::uint64_t> stamp_;  ///< by page: serial of its entry; 0: not listed
  std::uint64_t serial_ = 0;
  std::uint32_t size_ = 0;
  std::vector<List> lists_;  ///< by layer
  std::vector<Entry> heap_;  ///< what came between the layers' runs, the lowest in front
  std::size_t tidy_at_ = 0;  ///< entries of the heap at which those out of date are thrown away
  std::vector<Entry> held_;  ///< passed over since the last rewind()
  std::vector<Entry> old_;   ///< of the layer that is renewed
  std::uint32_t renewing_ = 0;
  double least_bound_ = kAll;
  std::uint32_t least_layer_ = 0;
  std::uint32_t least_sequence_ = 0;
  std::vector<double> fronts_;  ///< by layer: key in front of its list; kAll if that is empty
  std::uint32_t leader_ = 0;    ///< layer where first() found it
  bool in_heap_ = false;        ///< or here
  PageId hand_ = 0;
  bool swept_ = false;  ///< any() has found none since the last rewind()
};

}  // namespace lehr::placement
