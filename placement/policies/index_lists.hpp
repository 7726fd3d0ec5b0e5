// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/ids.hpp"

namespace lehr::placement {

/// Whether an object may not leave now; ids past the span's end are not held.
inline bool held(std::span<const std::uint16_t> guard, PageId id) {
  return id < guard.size() && guard[id] != 0;
}

/// A few doubly linked lists over dense ids, each id in at most one of them; 8 bytes an id. Every
/// operation is O(1) and free of allocation once the columns have grown. Lists run from oldest to
/// newest.
///
/// The search for an object that may leave remembers, per list, how far it found only held ones,
/// and goes on from there: guards may rise, but not fall, between two calls of rewind().
class IndexLists {
 public:
  void reset(std::uint32_t lists, std::uint32_t ids) {
    lists_ = lists;
    nodes_.assign(std::size_t{lists} + ids, Node{kNoPage, kNoPage});
    for (std::uint32_t l = 0; l < lists; ++l) nodes_[l] = {l, l};
    size_.assign(lists, 0);
    passed_.resize(lists);
    passed_new_.resize(lists);
    searched_ = true;
    rewind();
  }

  /// Makes room for `id`; call it before the id's first push.
  void reach(PageId id) {
    const std::size_t need = std::size_t{id} + 1 + lists_;
    if (need > nodes_.size()) {
      nodes_.resize(need > nodes_.size() * 2 ? need : nodes_.size() * 2, Node{kNoPage, kNoPage});
    }
  }

  bool linked(PageId id) const {
    return std::size_t{id} + lists_ < nodes_.size() && nodes_[id + lists_].older != kNoPage;
  }
  std::uint32_t size(std::uint32_t list) const { return size_[list]; }
  PageId oldest(std::uint32_t list) const { return id_of(nodes_[list].newer); }
  PageId newest(std::uint32_t list) const { return id_of(nodes_[list].older); }
  /// The next newer object of the same list, or kNoPage.
  PageId newer(PageId id) const { return id_of(nodes_[id + lists_].newer); }

  void push_newest(std::uint32_t list, PageId id) {
    link_before(list, id + lists_);
    ++size_[list];
  }
  void push_oldest(std::uint32_t list, PageId id) {
    link_before(nodes_[list].newer, id + lists_);
    ++size_[list];
    passed_[list] = list;
  }
  void remove(std::uint32_t list, PageId id) {
    const std::uint32_t n = id + lists_;
    if (passed_[list] == n) passed_[list] = nodes_[n].older;
    if (passed_new_[list] == n) passed_new_[list] = nodes_[n].newer;
    unlink(n);
    nodes_[n] = {kNoPage, kNoPage};
    --size_[list];
  }
  /// After rewind() only: does not look at how far a search went.
  void move_to_newest(std::uint32_t list, PageId id) {
    unlink(id + lists_);
    link_before(list, id + lists_);
  }
  /// From one list to the newest end of another, or of the same.
  void transfer(std::uint32_t from, std::uint32_t to, PageId id) {
    const std::uint32_t n = id + lists_;
    if (passed_[from] == n) passed_[from] = nodes_[n].older;
    if (passed_new_[from] == n) passed_new_[from] = nodes_[n].newer;
    move_to_newest(to, id);
    --size_[from];
    ++size_[to];
  }
  /// Appends all of `from` behind the newest of `to`; after rewind() only.
  void splice(std::uint32_t from, std::uint32_t to) {
    if (size_[from] == 0) return;
    const std::uint32_t first = nodes_[from].newer;
    const std::uint32_t last = nodes_[from].older;
    const std::uint32_t end = nodes_[to].older;
    nodes_[end].newer = first;
    nodes_[first].older = end;
    nodes_[last].newer = to;
    nodes_[to].older = last;
    nodes_[from] = {from, from};
    size_[to] += size_[from];
    size_[from] = 0;
  }

  /// Searches start afresh.
  void rewind() {
    if (!searched_) return;
    for (std::uint32_t l = 0; l < lists_; ++l) passed_[l] = passed_new_[l] = l;
    searched_ = false;
  }

  /// The newest object that is not held, or kNoPage. Objects pushed since a search of the same list
  /// that passed over held ones are looked at after rewind() only.
  PageId newest_free(std::uint32_t list, std::span<const std::uint16_t> guard) {
    std::uint32_t n = nodes_[passed_new_[list]].older;
    while (n != list && held(guard, n - lists_)) {
      passed_new_[list] = n;
      searched_ = true;
      n = nodes_[n].older;
    }
    return id_of(n);
  }

  /// The oldest object that is not held, or kNoPage.
  PageId oldest_free(std::uint32_t list, std::span<const std::uint16_t> guard) {
    std::uint32_t n = nodes_[passed_[list]].newer;
    while (n != list && held(guard, n - lists_)) {
      passed_[list] = n;
      searched_ = true;
      n = nodes_[n].newer;
    }
    return id_of(n);
  }

 private:
  struct Node {
    std::uint32_t older;
    std::uint32_t newer;
  };

  PageId id_of(std::uint32_t node) const { return node < lists_ ? kNoPage : node - lists_; }
  void unlink(std::uint32_t n) {
    nodes_[nodes_[n].older].newer = nodes_[n].newer;
    nodes_[nodes_[n].newer].older = nodes_[n].older;
  }
  /// Just older than `next`; for a list's own node that is its newest end.
  void link_before(std::uint32_t next, std::uint32_t n) {
    const std::uint32_t before = nodes_[next].older;
    nodes_[n] = {before, next};
    nodes_[before].newer = n;
    nodes_[next].older = n;
  }

  std::uint32_t lists_ = 0;
  std::vector<Node> nodes_;  ///< the lists' own ends first, then a node per id
  std::vector<std::uint32_t> size_;
  std::vector<std::uint32_t> passed_;      ///< per list: last node of its held oldest run
  std::vector<std::uint32_t> passed_new_;  ///< and of its held newest run
  bool searched_ = false;
};

}  // namespace lehr::placement
