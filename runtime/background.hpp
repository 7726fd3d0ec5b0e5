// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "placement/model.hpp"
#include "runtime/page_table.hpp"

namespace lehr::runtime {

/// Promotions on their way to HBM over link time that the layers leave over. First in, first out. A
/// page in flight holds its HBM slot and a guard; it becomes resident at the start of the layer
/// after the one in which its last byte arrived.
class Background {
 public:
  Background(const placement::Platform& platform, PageTable& table)
      : platform_(platform), table_(table) {}

  /// The slot is reserved already.
  void submit(PageId page);

  /// A layer that took `duration` and moved `used` over the home link has ended: pages whose last
  /// bytes are across are appended to `arrived` (guard and flag cleared, copy valid). `carried`
  /// gets the bytes that crossed in this layer, of pages still on their way too, and the number of
  /// pages that arrived.
  void layer_ended(Seconds duration, const placement::LinkLoad& used, std::vector<PageId>& arrived,
                   placement::LinkLoad& carried);

  /// While it is not allowed, what was submitted waits.
  void allow(bool allowed) { allowed_ = allowed; }
  bool allowed() const { return allowed_; }

  /// Takes the page out of the queue and gives its slot back; false if it is not in flight.
  bool cancel(PageId page);
  void cancel_if(const std::function<bool(PageId)>& unwanted);

  std::size_t depth() const { return queue_.size(); }

 private:
  const placement::Platform& platform_;
  PageTable& table_;
  bool allowed_ = true;
  std::deque<PageId> queue_;
  Bytes front_done_ = 0;  ///< of the first page
};

}  // namespace lehr::runtime
