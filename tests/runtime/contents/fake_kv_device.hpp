// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"
#include "runtime/contents/kv_device.hpp"

namespace lehr::test {

/// A device in host memory: kernels are the reference, and lanes run as late, as early and as far
/// apart as their marks allow, by a seed. What is enqueued runs when it has to, or by chance.
class FakeKvDevice final : public contents::KvDevice {
 public:
  using Op = std::function<void()>;

  explicit FakeKvDevice(std::uint64_t seed) : random_(seed) {}
  ~FakeKvDevice() override {
    finish();
    for (void* p : owned_) std::free(p);
  }

  bool ignore_waits = false;  ///< the control: lanes do not wait for each other
  std::uint64_t most_bytes = ~0ULL;
  std::uint64_t bytes() const { return bytes_; }

  // ---- as the caller of a stream

  void begin_capture() { recording_ = true; }
  std::vector<Op> end_capture() {
    recording_ = false;
    return std::exchange(recorded_, {});
  }
  void replay(const std::vector<Op>& graph) {
    for (const Op& op : graph) enqueue(contents::Lane::kMain, op);
  }
  /// All has run.
  void finish() {
    while (run_one(contents::Lane::kMain) || run_one(contents::Lane::kSide)) {
    }
    REQUIRE(lanes_[0].empty());
    REQUIRE(lanes_[1].empty());
  }

  // ---- KvDevice

  Result<contents::Block> memory(Bytes bytes) override { return allocate(bytes, false); }
  Result<contents::Block> pinned(Bytes bytes) override { return allocate(bytes, true); }
  void release(const contents::Block& block) override {
    finish();
    void* const p = reinterpret_cast<void*>(block.device);
    REQUIRE(owned_.erase(p) == 1);
    std::memset(p, 0xEE, block.bytes);
    bytes_ -= block.bytes;
    std::free(p);
  }
  Status use(void*) override { return {}; }
  Result<bool> capturing() override { return recording_; }

  Result<Bytes> workspace(const kernels::StepShape&) override { return Bytes{128}; }
  Status launch(const kernels::StepShape& shape, const contents::Work& work) override {
    const auto run = [shape, work] {
      const Status done = std::visit([&](const auto& w) { return reference(shape, w); }, work);
      INFO((done ? std::string() : done.error().what));
      REQUIRE(done);
    };
    enqueue(contents::Lane::kMain, run);
    return {};
  }
  Status write(const kernels::WriteWordsParams& words) override {
    enqueue(contents::Lane::kMain, [words] { REQUIRE(kernels::write_words_reference(words)); });
    return {};
  }
  Status move(std::uint64_t pairs, std::uint32_t count, std::uint32_t page_bytes,
              contents::Lane lane) override {
    const std::uint64_t seed = random_.next();
    enqueue(lane, [=] {
      // The pages of one move go in any order.
      const auto* list = reinterpret_cast<const kernels::PagePair*>(pairs);
      std::vector<kernels::PagePair> order(list, list + count);
      Rng shuffle(seed);
      for (std::uint32_t i = count; i > 1; --i) std::swap(order[i - 1], order[shuffle.below(i)]);
      for (const kernels::PagePair& pair : order) {
        std::memcpy(reinterpret_cast<void*>(pair.to), reinterpret_cast<const void*>(pair.from),
                    page_bytes);
      }
    });
    return {};
  }
  Status copy(std::uint64_t to, std::uint64_t from, Bytes bytes, contents::Lane lane) override {
    enqueue(lane, [=] {
      std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    });
    return {};
  }
  Result<contents::Mark> mark(contents::Lane lane) override {
    const contents::Mark m = ++marks_;
    lanes_[index(lane)].push_back({[this, m] { done_.insert(m); }, 0});
    return m;
  }
  Status wait(contents::Lane lane, contents::Mark mark) override {
    if (!ignore_waits) lanes_[index(lane)].push_back({[] {}, mark});
    by_chance();
    return {};
  }
  Status wait_host(contents::Mark mark) override {
    while (!done_.contains(mark)) {
      const auto first = random_.next() % 2 == 0 ? contents::Lane::kMain : contents::Lane::kSide;
      const auto second =
          first == contents::Lane::kMain ? contents::Lane::kSide : contents::Lane::kMain;
      REQUIRE((run_one(first) || run_one(second)));
    }
    return {};
  }
  std::string describe() const override { return "stand-in"; }

 private:
  struct Queued {
    Op run;
    contents::Mark after;  ///< 0: nothing
  };
  static std::size_t index(contents::Lane lane) { return static_cast<std::size_t>(lane); }

  static Status reference(const kernels::StepShape& s, const kernels::AppendParams& p) {
    return append_reference(s, p);
  }
  static Status reference(const kernels::StepShape& s, const kernels::StoreParams& p) {
    return store_rows_reference(s, p);
  }
  static Status reference(const kernels::StepShape& s, const kernels::LoadParams& p) {
    return load_rows_reference(s, p);
  }
  static Status reference(const kernels::StepShape& s, const kernels::CopyRowsParams& p) {
    return copy_rows_reference(s, p);
  }
  static Status reference(const kernels::StepShape& s, const kernels::BoxesParams& p) {
    return boxes_reference(s, p);
  }
  static Status reference(const kernels::StepShape& s, const contents::ScoreSelectWork& w) {
    return score_select_reference(s, w.score, w.select);
  }
  static Status reference(const kernels::StepShape& s, const contents::AttendWork& w) {
    return attend_reference(s, w.params);
  }
  static Status reference(const kernels::StepShape& s, const kernels::NoteParams& p) {
    return note_reads_reference(s, p);
  }

  Result<contents::Block> allocate(Bytes bytes, bool host) {
    // Pinned memory starts at a page of the host's, as a GPU's does.
    const Bytes alignment = host ? 4096 : 128;
    const Bytes size = (std::max<Bytes>(bytes, 1) + alignment - 1) / alignment * alignment;
    if (bytes_ + size > most_bytes)
      return Error{Code::kRefused, Reason::kNoSpace, "the stand-in's memory is full"};
    void* const p = std::aligned_alloc(alignment, size);
    std::memset(p, 0, size);
    owned_.insert(p);
    bytes_ += size;
    return contents::Block{reinterpret_cast<std::uint64_t>(p),
                           host ? static_cast<std::byte*>(p) : nullptr, size};
  }
  void enqueue(contents::Lane lane, Op op) {
    if (recording_) {
      REQUIRE(lane == contents::Lane::kMain);
      recorded_.push_back(std::move(op));
      return;
    }
    lanes_[index(lane)].push_back({std::move(op), 0});
    by_chance();
  }
  void by_chance() {
    const std::uint64_t mood = random_.next() % 4;  // often nothing runs for a long time
    for (std::uint64_t i = 0; mood == 0 && i < random_.next() % 8; ++i)
      (void)run_one(random_.next() % 2 == 0 ? contents::Lane::kMain : contents::Lane::kSide);
  }
  bool run_one(contents::Lane lane) {
    auto& queue = lanes_[index(lane)];
    if (queue.empty()) return false;
    if (queue.front().after != 0 && !done_.contains(queue.front().after)) return false;
    const Op run = std::move(queue.front().run);
    queue.pop_front();
    run();
    return true;
  }

  Rng random_;
  std::set<void*> owned_;
  std::uint64_t bytes_ = 0;
  std::deque<Queued> lanes_[2];
  std::set<contents::Mark> done_;
  contents::Mark marks_ = 0;
  bool recording_ = false;
  std::vector<Op> recorded_;
};

}  // namespace lehr::test
