// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "transfer/block_lanes.hpp"

namespace lehr::test {

/// A device that is not there: its memory is the host's, its streams are lists of things to do. A
/// list goes on by itself until it meets what is not so yet: an event, a gate, a latch of the test.
/// Thread safe.
class FakeLanes final : public transfer::BlockLanes {
 public:
  struct Event {
    bool passed = false;
  };
  struct Op {
    std::function<bool()> ready;  ///< null: at once
    std::function<void()> run;
  };
  struct Stream {
    std::deque<Op> ops;
    bool other_device = false;
    bool capturing = false;
  };
  using Latch = std::shared_ptr<std::atomic<bool>>;

  // --- what a test does -------------------------------------------------------------------------

  Stream* stream() {
    const std::lock_guard lock(mutex_);
    return &streams_.emplace_back();
  }
  void own(const std::byte* base, Bytes bytes) { owned_[base] = bytes; }
  /// Enqueues work; it runs on any thread.
  void work(Stream* stream, std::function<void()> run) { push(*stream, {{}, std::move(run)}); }
  /// What comes behind it on the stream waits until the latch is true and go() was called.
  Latch latch(Stream* stream) {
    Latch made = std::make_shared<std::atomic<bool>>(false);
    push(*stream, {[made] { return made->load(); }, [] {}});
    return made;
  }
  void lift(const Latch& latch) {
    *latch = true;
    go();
  }
  Event* record(Stream* stream) {
    Event* const event = make_event();
    push(*stream, {{}, [event] { event->passed = true; }});
    return event;
  }
  bool passed(const void* event) {
    const std::lock_guard lock(mutex_);
    return static_cast<const Event*>(event)->passed;
  }
  void go() {
    const std::lock_guard lock(mutex_);
    advance();
  }
  /// Moves of flights that the device fails, from the next one on.
  std::atomic<int> failing{0};
  /// Launches that a lane runs before it stops; negative: all.
  std::atomic<int> launches{-1};
  std::atomic<bool> over_budget{false};
  std::atomic<std::uint32_t> room_left{384};
  std::atomic<int> started{0};  ///< flights
  /// Runs where a flight is opened, before it is.
  std::function<void()> at_open;

  // --- what the code under test does ------------------------------------------------------------

  Result<transfer::MemoryRegion> host_memory(Bytes bytes, Bytes /*stride*/) override {
    transfer::HostMemoryConfig config;
    config.bytes = bytes;
    return transfer::host_region(config);
  }
  Status check_device_memory(const std::byte* base, Bytes bytes) override {
    for (const auto& [start, size] : owned_) {
      if (base >= start && base + bytes <= start + size) return {};
    }
    return invalid("memory: of no device, or not all of it is mapped");
  }
  Status check_host_memory(const std::byte* base, Bytes /*bytes*/) override {
    for (const auto& [start, size] : owned_) {
      if (base >= start && base < start + size) return invalid("memory: of device 0");
    }
    return {};
  }
  Status check_stream(void* given) override {
    const auto* const stream = static_cast<Stream*>(given);
    if (stream == nullptr) return {};
    if (stream->capturing) return unsupported("stream: it is being captured");
    return stream->other_device ? Status(invalid("stream: of device 1, expected device 0"))
                                : Status();
  }
  std::uint32_t room(bool /*inward*/) const override { return room_left; }
  Result<std::vector<std::unique_ptr<transfer::Flight>>> start(
      std::span<const transfer::FlightPlan> plans, const transfer::StreamOrder& after) override {
    if (over_budget) return refused(Reason::kOverBudget, "device: too much is enqueued");
    const std::lock_guard lock(mutex_);
    Stream& lane = lanes_[plans.front().inward ? 1 : 0];
    for (void* event : after.events) wait(lane, static_cast<Event*>(event));
    if (after.after_stream) {
      Event* const event = &events_.emplace_back();
      Stream& stream = after.stream != nullptr ? *static_cast<Stream*>(after.stream) : default_;
      stream.ops.push_back({{}, [event] { event->passed = true; }});
      wait(lane, event);
    }
    std::vector<std::unique_ptr<transfer::Flight>> flights;
    for (const transfer::FlightPlan& plan : plans) flights.push_back(enqueue(plan, lane));
    advance();
    return flights;
  }
  Result<std::shared_ptr<std::byte>> device_memory(Bytes bytes, std::byte fill) override {
    std::shared_ptr<std::byte[]> memory(new std::byte[bytes]);
    std::fill_n(memory.get(), bytes, fill);
    return std::shared_ptr<std::byte>(memory, memory.get());
  }
  Status put(std::span<const transfer::SmallWrite> writes, std::span<const std::byte> values,
             std::span<const transfer::SmallCopy> copies, void* stream) override {
    const std::lock_guard lock(mutex_);
    Stream& s = stream != nullptr ? *static_cast<Stream*>(stream) : default_;
    s.ops.push_back({{},
                     [w = std::vector(writes.begin(), writes.end()),
                      v = std::vector(values.begin(), values.end()),
                      c = std::vector(copies.begin(), copies.end())] {
                       write(w, v);
                       for (const transfer::SmallCopy& copy : c)
                         std::memcpy(copy.to, copy.from, copy.bytes);
                     }});
    advance();
    return {};
  }
  void on_end(std::function<void()> tell) override { tell_ = std::move(tell); }

 private:
  static void write(const std::vector<transfer::SmallWrite>& writes,
                    const std::vector<std::byte>& values) {
    const std::byte* from = values.data();
    for (const transfer::SmallWrite& w : writes) {
      std::memcpy(w.to, from, w.bytes);
      from += w.bytes;
    }
  }

  class FakeFlight final : public transfer::Flight {
   public:
    struct State {
      std::vector<kernels::PagePair> pairs;
      kernels::PageLayout layout;
      std::atomic<bool> open{false};
      bool failed = false;
      std::vector<Event*> cuts;
      std::vector<transfer::SmallWrite> entries;
      std::vector<std::byte> values;

      void write() const { FakeLanes::write(entries, values); }
      void move(std::uint32_t from, std::uint32_t to) const {
        if (to == from) return;
        const Status moved =
            kernels::move_pages_reference({pairs.data() + from, to - from}, layout);
        if (!moved) std::terminate();
      }
    };

    FakeFlight(FakeLanes& lanes, const transfer::FlightPlan& plan)
        : state(std::make_shared<State>()), lanes_(lanes), inward_(plan.inward) {
      state->pairs.resize(plan.pairs);
      state->layout = plan.layout;
      state->entries = plan.entries;
    }
    ~FakeFlight() override {
      if (!inward_ || state->open) return;
      std::fill(state->pairs.begin(), state->pairs.end(), kernels::PagePair{});
      std::byte* value = state->values.data();
      for (const transfer::SmallWrite& e : state->entries)
        value = std::fill_n(value, e.bytes, e.absent);
      state->open = true;
      lanes_.go();
    }
    std::span<kernels::PagePair> pairs() override { return state->pairs; }
    std::span<std::byte> entries() override { return state->values; }
    void open() override {
      if (lanes_.at_open) lanes_.at_open();
      state->open = true;
      lanes_.go();
    }
    Result<bool> ended() override {
      const std::lock_guard lock(lanes_.mutex_);
      if (!state->cuts.back()->passed) return false;
      if (state->failed) return Error{Code::kIo, Reason::kNone, "a move: the device failed"};
      return true;
    }
    Status hold(void* stream, std::size_t cut) override {
      const std::lock_guard lock(lanes_.mutex_);
      wait(stream != nullptr ? *static_cast<Stream*>(stream) : lanes_.default_,
           state->cuts[std::min(cut, state->cuts.size() - 1)]);
      lanes_.advance();
      return {};
    }
    void* event() override { return state->cuts.back(); }

    const std::shared_ptr<State> state;

   private:
    FakeLanes& lanes_;
    bool inward_;
  };

  std::unique_ptr<transfer::Flight> enqueue(const transfer::FlightPlan& plan, Stream& lane) {
    ++started;
    auto flight = std::make_unique<FakeFlight>(*this, plan);
    const std::shared_ptr<FakeFlight::State> state = flight->state;
    for (const transfer::SmallWrite& entry : plan.entries) {
      lane.ops.push_back({{}, [entry] { std::fill_n(entry.to, entry.bytes, entry.absent); }});
      state->values.resize(state->values.size() + entry.bytes, entry.absent);
    }
    std::copy(plan.outward.begin(), plan.outward.end(), state->pairs.begin());
    if (plan.inward) lane.ops.push_back({[state] { return state->open.load(); }, [] {}});
    const bool fails = plan.pairs > 0 && failing > 0 && failing-- > 0;
    std::uint32_t from = 0;
    for (const std::uint32_t cut : plan.cuts) {
      Event* const event = &events_.emplace_back();
      state->cuts.push_back(event);
      lane.ops.push_back({[this] { return launches != 0; },
                          [this, state, from, cut, event, fails] {
                            if (launches > 0) --launches;
                            if (!fails) state->move(from, cut);
                            state->failed = fails;
                            if (cut == state->pairs.size()) state->write();
                            event->passed = true;
                          }});
      from = cut;
    }
    if (plan.cuts.empty()) {
      Event* const event = &events_.emplace_back();
      state->cuts.push_back(event);
      lane.ops.push_back({{}, [event] { event->passed = true; }});
    }
    return flight;
  }

  static void wait(Stream& stream, const Event* event) {
    stream.ops.push_back({[event] { return event->passed; }, [] {}});
  }
  Event* make_event() {
    const std::lock_guard lock(mutex_);
    return &events_.emplace_back();
  }
  void push(Stream& stream, Op op) {
    const std::lock_guard lock(mutex_);
    stream.ops.push_back(std::move(op));
    advance();
  }
  static bool advance(Stream& stream) {
    bool any = false;
    while (!stream.ops.empty() && (!stream.ops.front().ready || stream.ops.front().ready())) {
      stream.ops.front().run();
      stream.ops.pop_front();
      any = true;
    }
    return any;
  }
  void advance() {
    bool any = true, told = false;
    while (std::exchange(any, false)) {
      for (Stream& stream : lanes_) any = advance(stream) || any;
      told = told || any;
      any = advance(default_) || any;
      for (Stream& stream : streams_) any = advance(stream) || any;
    }
    if (told && tell_) tell_();
  }

  std::mutex mutex_;
  std::deque<Event> events_;
  std::deque<Stream> streams_;
  Stream lanes_[2];
  Stream default_;
  std::map<const std::byte*, Bytes> owned_;
  std::function<void()> tell_;
};

}  // namespace lehr::test
