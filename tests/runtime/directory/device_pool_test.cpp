// SPDX-License-Identifier: Apache-2.0
// Pools in a device's memory, over a device that is not there: order in both directions, layers,
// failures, refusals.
#include <condition_variable>

#include <catch2/catch.hpp>
#include <poll.h>

#include "tests/runtime/directory/device_world.hpp"

using namespace lehr;
using namespace lehr::directory;
using Catch::Matchers::Contains;
using device_world::behind;
using device_world::kPatience;
using device_world::World;
using test::FakeLanes;

namespace {

/// Holds the service's thread where it opens its first flight.
class Hold {
 public:
  explicit Hold(FakeLanes& lanes) {
    lanes.at_open = [this] {
      std::unique_lock lock(mutex_);
      if (std::exchange(held_, true)) return;
      changed_.notify_all();
      changed_.wait(lock, [&] { return free_; });
    };
  }
  void wait_held() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    free_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false, free_ = false;
};

}  // namespace

TEST_CASE("scattered blocks on a device come back as they were, from host and from NVMe") {
  const bool layered = GENERATE(false, true);
  World w(64, 8, 64);
  for (std::uint32_t b = 0; b < 32; ++b) w.fill(b, b);
  for (std::uint32_t b = 0; b < 32; b += 4) w.stored(b, 4, b);
  CHECK(w.service->with([](Directory& d) { return d.stats(); }).written_back >= 24);
  // Eight host slots: most come from NVMe, more at once than host and the ring beside it hold.
  const auto job = w.prepare_load(0, 32, 32, layered);
  REQUIRE(job);
  REQUIRE(w.service->submit(*job));
  for (const JobItem& item : w.finish(*job)) CHECK(item.state == ItemState::kDone);
  for (std::uint32_t b = 0; b < 32; ++b) {
    CHECK(w.holds(b, b));
    CHECK(w.holds(32 + b, b));
  }
  CHECK(w.padding_untouched());
  w.service->with([](Directory& d) { CHECK(d.catalog().validate()); });
}

TEST_CASE("a store reads its blocks after what the caller enqueued, and says when it has") {
  // The control: without the order the store takes what was there before.
  const bool ordered = GENERATE(true, false);
  const bool by_event = GENERATE(true, false);
  World w(4, 4, 0, ordered ? "" : "off=order");
  w.fill(0, 1);
  FakeLanes::Stream* const writer = w.lanes->stream();
  const auto latch = w.lanes->latch(writer);
  w.lanes->work(writer, [&] { w.fill(0, 2); });
  void* const written = w.lanes->record(writer);
  const auto job = w.prepare_store(7, 1, 0);
  REQUIRE(job);
  const transfer::StreamOrder order =
      by_event ? transfer::StreamOrder{nullptr, false, {&written, 1}} : behind(writer);
  REQUIRE(w.service->submit(*job, order));
  const auto event = w.service->event(*job);
  REQUIRE(event);
  CHECK(w.lanes->passed(*event) != ordered);
  if (ordered) CHECK_FALSE(*w.service->wait(*job, 0));
  // What overwrites the block is enqueued behind the event, without waiting for it.
  FakeLanes::Stream* const next = w.lanes->stream();
  REQUIRE(*w.service->hold(*job, 0, next));
  w.lanes->work(next, [&] { w.fill(0, 3); });
  w.lanes->lift(latch);
  CHECK(w.finish(*job)[0].state == ItemState::kDone);
  const auto load = w.prepare_load(7, 1, 1);
  REQUIRE(load);
  REQUIRE(w.service->submit(*load));
  w.finish(*load);
  CHECK(w.holds(1, 2) == ordered);
}

TEST_CASE("a load overwrites a block only after its last reader") {
  // The control: without the order the reader finds the block overwritten.
  const bool ordered = GENERATE(true, false);
  World w(4, 4, 0, ordered ? "" : "off=order");
  w.fill(0, 1);
  w.stored(1, 1, 0);
  w.fill(3, 9);
  FakeLanes::Stream* const reader = w.lanes->stream();
  const auto latch = w.lanes->latch(reader);
  std::vector<std::byte> seen;
  w.lanes->work(reader, [&] { seen = w.read(3); });
  const auto job = w.prepare_load(1, 1, 3);
  REQUIRE(job);
  REQUIRE(w.service->submit(*job, behind(reader)));
  // The next user of the block is enqueued at once, and sees what was loaded.
  std::vector<std::byte> after;
  FakeLanes::Stream* const user = w.lanes->stream();
  REQUIRE(*w.service->hold(*job, 2, user));
  w.lanes->work(user, [&] { after = w.read(3); });
  if (ordered) {
    CHECK_FALSE(*w.service->wait(*job, 1'000'000));
    CHECK(after.empty());
  } else {
    REQUIRE(*w.service->wait(*job, kPatience));
  }
  w.lanes->lift(latch);
  w.finish(*job);
  CHECK((seen == w.contents(9)) == ordered);
  CHECK(after == w.contents(1));
}

TEST_CASE("layers arrive one by one, and a stream waits for no more than it asked for") {
  const bool layered = GENERATE(true, false);
  World w(4, 4, 0);
  w.fill(0, 1);
  w.fill(1, 2);
  w.stored(1, 2, 0);
  const auto job = w.prepare_load(1, 2, 2, layered);
  REQUIRE(job);
  w.lanes->launches = 0;
  REQUIRE(w.service->submit(*job));
  std::vector<int> arrived;
  FakeLanes::Stream* const user = w.lanes->stream();
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    REQUIRE(*w.service->hold(*job, layer, user));
    w.lanes->work(user, [&, layer] { arrived.push_back(static_cast<int>(layer)); });
  }
  CHECK(w.service->hold(*job, 3, user).error().reason == Reason::kOutOfRange);
  w.lanes->launches = 1;
  w.lanes->go();
  // The gate is the service's to open: until then no layer moves.
  if (layered) {
    while (w.lanes->launches != 0) w.lanes->go();
    w.lanes->go();  // whoever ran the launch is done with what comes behind it
    CHECK(arrived == std::vector<int>{0});
    const std::size_t layer_bytes = contents_bytes(w.layout) / 3;
    const std::vector<std::byte> found = w.read(2), wanted = w.contents(1);
    CHECK(std::equal(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(layer_bytes),
                     wanted.begin()));
    CHECK(found.back() == std::byte{0xEE});
    CHECK_FALSE(w.done(*job));
  }
  w.lanes->launches = -1;
  w.lanes->go();
  w.finish(*job);
  CHECK(arrived == std::vector<int>{0, 1, 2});
  CHECK(w.holds(2, 1));
  CHECK(w.holds(3, 2));
}

TEST_CASE("a queued load is cancelled, its block stays, and nobody waits for it") {
  World w(6, 4, 0);
  w.fill(0, 1);
  w.fill(1, 2);
  w.stored(1, 2, 0);
  w.fill(3, 9);
  Hold hold(*w.lanes);
  const auto first = w.prepare_load(1, 1, 2);
  const auto second = w.prepare_load(2, 1, 3);
  REQUIRE(first);
  REQUIRE(second);
  REQUIRE(w.service->submit(*first));
  hold.wait_held();
  REQUIRE(w.service->submit(*second));
  bool ran = false;
  FakeLanes::Stream* const user = w.lanes->stream();
  REQUIRE(*w.service->hold(*second, 0, user));
  w.lanes->work(user, [&] { ran = true; });
  const auto event = w.service->event(*second);
  REQUIRE(event);
  CHECK(w.service->cancel(*first).error().reason == Reason::kPending);
  REQUIRE(w.service->cancel(*second));
  CHECK(w.finish(*second)[0].state == ItemState::kCancelled);
  CHECK_FALSE(ran);  // behind the first one, as it was submitted
  hold.release();
  CHECK(w.finish(*first)[0].state == ItemState::kDone);
  CHECK(ran);
  CHECK(w.lanes->passed(*event));
  CHECK(w.holds(2, 1));
  CHECK(w.holds(3, 9));
  REQUIRE(w.service->release(*second));
  // Its key and block are free: the same again goes well.
  const auto again = w.prepare_load(2, 1, 3);
  REQUIRE(again);
  REQUIRE(w.service->submit(*again));
  w.finish(*again);
  CHECK(w.holds(3, 2));
}

TEST_CASE("a store whose bytes may be moving is not cancelled, one that was only prepared is") {
  World w(4, 4, 0);
  FakeLanes::Stream* const writer = w.lanes->stream();
  const auto latch = w.lanes->latch(writer);
  const auto moving = w.prepare_store(1, 1, 0);
  const auto prepared = w.prepare_store(2, 1, 1);
  REQUIRE(w.service->submit(*moving, behind(writer)));
  CHECK(w.service->cancel(*moving).error().reason == Reason::kPending);
  CHECK(w.service->cancel(*prepared));
  w.lanes->lift(latch);
  CHECK(w.finish(*moving)[0].state == ItemState::kDone);
}

TEST_CASE("a pool whose blocks are in use is not given back") {
  World w(4, 4, 0);
  const auto refused = [&] {
    const auto said = w.service->with([&](Directory& d) { return d.unregister_pool(w.pool); });
    return !said && said.error().reason == Reason::kLeased;
  };
  FakeLanes::Stream* const writer = w.lanes->stream();
  const auto latch = w.lanes->latch(writer);
  const auto job = w.prepare_store(1, 1, 0);
  CHECK(refused());
  REQUIRE(w.service->submit(*job, behind(writer)));
  CHECK(refused());
  w.lanes->lift(latch);
  w.finish(*job);
  CHECK_FALSE(refused());
}

TEST_CASE("bytes that are wrong in host memory never reach the device, and the others do") {
  // The control: unchecked, they arrive.
  const bool checked = GENERATE(true, false);
  World w(6, 4, 0, checked ? "" : "off=checksum");
  w.fill(0, 1);
  w.fill(1, 2);
  w.stored(1, 2, 0);
  const auto job = w.prepare_load(1, 2, 3);
  REQUIRE(job);
  const JobItem bad = w.service->with([&](Directory& d) { return d.job(*job)->items[0]; });
  w.service->store()->host_slot(bad.slot)[5] ^= std::byte{1};
  w.fill(3, 9);
  REQUIRE(w.service->submit(*job));
  const auto items = w.finish(*job);
  CHECK(w.holds(4, 2));
  CHECK(items[1].state == ItemState::kDone);
  CHECK(w.holds(3, 9) == checked);
  CHECK((items[0].state == ItemState::kFailed) == checked);
  if (checked) CHECK(items[0].reason == Reason::kChecksum);
}

TEST_CASE("a file or a device that fails leaves blocks and store as they were") {
  World w(24, 2, 32, "read#1=eio");
  for (std::uint32_t b = 0; b < 8; ++b) w.fill(b, b);
  for (std::uint32_t b = 0; b < 8; b += 2) w.stored(b, 2, b);
  w.fill(10, 99);
  const auto job = w.prepare_load(0, 2, 10);  // from NVMe
  REQUIRE(job);
  REQUIRE(w.service->submit(*job));
  const auto items = w.finish(*job);
  CHECK(items[0].state != items[1].state);
  for (std::uint32_t i = 0; i < 2; ++i) {
    if (items[i].state == ItemState::kDone) CHECK(w.holds(10 + i, i));
    if (items[i].state == ItemState::kFailed) {
      CHECK(items[i].code == Code::kIo);
      if (i == 0) CHECK(w.holds(10, 99));
    }
  }
  w.lanes->failing = 1;
  const auto store = w.prepare_store(50, 1, 20);
  REQUIRE(store);
  REQUIRE(w.service->submit(*store));
  CHECK(w.finish(*store)[0].state == ItemState::kFailed);
  CHECK_FALSE(w.prepare_load(50, 1, 21));
  w.fill(20, 50);
  w.stored(50, 1, 20);  // and can be stored again
  w.lanes->failing = 1;
  w.fill(21, 77);
  const auto load = w.prepare_load(50, 1, 21);
  REQUIRE(load);
  REQUIRE(w.service->submit(*load));
  CHECK(w.finish(*load)[0].code == Code::kIo);
  CHECK(w.holds(21, 77));
  w.service->with([](Directory& d) { CHECK(d.catalog().validate()); });
}

TEST_CASE("the event descriptor tells of jobs on a device, too") {
  World w(4, 4, 0);
  const auto readable = [&] {
    pollfd entry{w.service->event_fd(), POLLIN, 0};
    return ::poll(&entry, 1, 0) == 1;
  };
  FakeLanes::Stream* const writer = w.lanes->stream();
  const auto latch = w.lanes->latch(writer);
  const auto job = w.prepare_store(1, 1, 0);
  REQUIRE(w.service->submit(*job, behind(writer)));
  CHECK_FALSE(w.service->drain(1'000'000));
  CHECK_FALSE(readable());
  w.lanes->lift(latch);
  w.finish(*job);
  CHECK(readable());
  CHECK(w.service->poll() == *job);
  CHECK(w.service->drain(kPatience));
}

TEST_CASE("blocks in host memory wait for a device's streams as well") {
  World w(4, 4, 0);
  std::vector<std::byte> plain(w.memory.size());
  PoolDesc desc = w.desc();
  desc.base = plain.data();
  desc.on_device = false;
  const auto pool = w.service->register_pool(desc);
  REQUIRE(pool);
  w.pool = *pool;
  FakeLanes::Stream* const writer = w.lanes->stream();
  const auto latch = w.lanes->latch(writer);
  w.lanes->work(writer, [&] { plain[0] = std::byte{42}; });
  const auto job = w.prepare_store(1, 1, 0);
  REQUIRE(w.service->submit(*job, behind(writer)));
  CHECK_FALSE(*w.service->wait(*job, 1'000'000));
  CHECK_FALSE(*w.service->hold(*job, 0, nullptr));
  w.lanes->lift(latch);
  w.finish(*job);
  CHECK(*w.service->hold(*job, 0, nullptr));
  CHECK(w.service->event(*job).error().code == Code::kUnsupported);
  const auto load = w.prepare_load(1, 1, 1);
  REQUIRE(w.service->submit(*load));
  w.finish(*load);
  CHECK(plain[w.layout.block_stride] == std::byte{42});
}

TEST_CASE("what cannot be is refused with a reason, and changes nothing") {
  World w(4, 4, 0);
  const auto says = [](const auto& result, Code code, const char* text) {
    REQUIRE_FALSE(result);
    CHECK(result.error().code == code);
    CHECK_THAT(result.error().what, Contains(text));
  };
  // Memory.
  std::vector<std::byte> elsewhere(w.memory.size());
  PoolDesc desc = w.desc();
  desc.base = elsewhere.data();
  says(w.service->register_pool(desc), Code::kInvalid, "of no device");
  desc = w.desc();
  desc.bytes += 16;
  says(w.service->register_pool(desc), Code::kInvalid, "of no device");
  desc = w.desc();
  desc.on_device = false;
  says(w.service->register_pool(desc), Code::kInvalid, "of device 0");
  desc = w.desc();
  desc.bytes = 100;
  says(w.service->register_pool(desc), Code::kInvalid, "do not fit");
  desc = w.desc();
  desc.layout.k_offset += 8;
  desc.layout.v_offset += 8;
  desc.bytes = w.memory.size();
  desc.blocks = 3;
  says(w.service->register_pool(desc), Code::kInvalid, "k_offset");
  desc = w.desc();
  desc.layout.block_stride += 8;
  desc.blocks = 2;
  says(w.service->register_pool(desc), Code::kInvalid, "block_stride");
  {
    placement_world::RealBytes plain(4, 4, 0);
    desc = w.desc();
    says(plain.service->register_pool(desc), Code::kUnsupported, "no device");
    const auto job = plain.prepare_store({"a"}, 0);
    says(plain.service->submit(*job, behind(w.lanes->stream())), Code::kUnsupported, "stream");
    CHECK(plain.run(*job)[0].state == ItemState::kDone);
  }
  // Streams, and too much of everything: the job stays as it was prepared.
  const auto job = w.prepare_store(1, 1, 0);
  REQUIRE(job);
  says(w.service->hold(*job, 0, nullptr), Code::kInvalid, "not submitted");
  says(w.service->event(*job), Code::kInvalid, "not submitted");
  FakeLanes::Stream* const other = w.lanes->stream();
  other->other_device = true;
  says(w.service->submit(*job, behind(other)), Code::kInvalid, "device 1");
  other->other_device = false;
  other->capturing = true;
  says(w.service->submit(*job, behind(other)), Code::kUnsupported, "captured");
  w.lanes->over_budget = true;
  const Status full = w.service->submit(*job);
  REQUIRE_FALSE(full);
  CHECK(full.error().reason == Reason::kOverBudget);
  w.lanes->over_budget = false;
  REQUIRE(w.service->submit(*job));
  CHECK(w.finish(*job)[0].state == ItemState::kDone);
  says(w.service->hold(*job, 0, other), Code::kUnsupported, "captured");
  says(w.service->submit(*job), Code::kInvalid, "submitted already");
  // A job that has nothing to move has nothing to wait for.
  const auto again = w.prepare_store(1, 1, 0);
  REQUIRE(w.service->submit(*again));
  CHECK(*w.service->event(*again) == nullptr);
  CHECK(*w.service->hold(*again, 0, nullptr));
  // One job, one kind of memory.
  desc = w.desc();
  desc.base = elsewhere.data();
  desc.on_device = false;
  const auto plain = w.service->register_pool(desc);
  REQUIRE(plain);
  const ItemRequest mixed[] = {{"x", w.pool, 2, false}, {"y", *plain, 2, false}};
  says(w.service->with([&](Directory& d) {
    std::vector<Evicted> evicted;
    return d.prepare_store({w.ns, 0, kNormalPriority, kAllTiers}, mixed, evicted);
  }),
       Code::kInvalid, "not where item 0's is");
}

TEST_CASE("a table says where a block is from the moment that its bytes are there") {
  const auto form = GENERATE(BlockTable::Form::kIndex, BlockTable::Form::kPointer);
  World w(8, 4, 0);
  w.fill(0, 1);
  w.fill(1, 2);
  w.stored(1, 2, 0);
  BlockTable desc;
  desc.pool = w.pool;
  desc.form = form;
  desc.rows = 2;
  desc.columns = 4;
  const auto table = w.service->open_table(desc);
  REQUIRE(table);
  const std::byte* const base =
      w.service->with([&](Directory& d) { return d.table(*table)->base; });
  const auto value = [&](std::uint32_t row, std::uint32_t column) {
    std::uint64_t read = 0;
    const std::uint32_t bytes = desc.entry_bytes();
    std::memcpy(&read, base + (row * 4 + column) * bytes, bytes);
    return form == BlockTable::Form::kIndex ? read | (read == 0xFFFFFFFFU ? ~0ULL << 32 : 0) : read;
  };
  const auto of_block = [&](std::uint32_t block) -> std::uint64_t {
    if (form == BlockTable::Form::kIndex) return block == kNoBlock ? ~0ULL : block;
    if (block == kNoBlock) return 0;
    return reinterpret_cast<std::uint64_t>(w.memory.data()) + block * w.layout.block_stride;
  };
  for (std::uint32_t i = 0; i < 8; ++i) CHECK(value(i / 4, i % 4) == of_block(kNoBlock));
  // The caller's own block, in the order of its stream.
  FakeLanes::Stream* const user = w.lanes->stream();
  const auto latch = w.lanes->latch(user);
  const Service::Entry own[] = {{1, 0, 5}, {1, 1, 6}, {0, 1, 7}};
  REQUIRE(w.service->write_table(*table, own, user));
  CHECK(value(1, 0) == of_block(kNoBlock));
  // A load that names entries: one of its items turns out wrong.
  auto items = w.items(1, 2, 2);
  items[0].table = items[1].table = *table;
  items[0].row = items[1].row = 1;
  items[0].column = 1;
  items[1].column = 2;
  const auto job = w.service->with([&](Directory& d) {
    return d.prepare_load({w.ns, 0, false, 0}, items);
  });
  REQUIRE(job);
  const SlotId bad = w.service->with([&](Directory& d) { return d.job(*job)->items[0].slot; });
  w.service->store()->host_slot(bad)[0] ^= std::byte{1};
  CHECK(w.service->close_table(*table).error().reason == Reason::kLeased);
  REQUIRE(w.service->submit(*job, behind(user)));
  w.lanes->launches = 0;
  w.lanes->lift(latch);
  CHECK(value(1, 0) == of_block(5));
  CHECK(value(0, 1) == of_block(7));
  CHECK(value(1, 1) == of_block(kNoBlock));  // on its way
  w.lanes->launches = -1;
  w.lanes->go();
  w.finish(*job);
  CHECK(value(1, 1) == of_block(kNoBlock));  // it failed
  CHECK(value(1, 2) == of_block(3));
  // What cannot be: outside, another pool's, in a store; and nothing is written of what is refused.
  const Service::Entry outside[] = {{0, 0, 1}, {2, 0, 1}};
  CHECK(w.service->write_table(*table, outside, nullptr).error().reason == Reason::kOutOfRange);
  const Service::Entry no_block[] = {{0, 0, 8}};
  CHECK(w.service->write_table(*table, no_block, nullptr).error().reason == Reason::kOutOfRange);
  CHECK(value(0, 0) == of_block(kNoBlock));
  items[1].column = 4;
  CHECK(w.service->with([&](Directory& d) {
                   return d.prepare_load({w.ns, 0, false, 0}, items);
                 })
            .error()
            .reason == Reason::kOutOfRange);
  CHECK(w.service->with([&](Directory& d) { return d.unregister_pool(w.pool); }).error().reason ==
        Reason::kLeased);
  REQUIRE(w.service->close_table(*table));
  CHECK(w.service->close_table(*table).error().code == Code::kStale);
  CHECK(w.service->with([&](Directory& d) { return d.unregister_pool(w.pool); }));
}

TEST_CASE("rows of a table one after the other, as FlashInfer reads them") {
  const bool on_device = GENERATE(true, false);
  World w(16, 4, 0);
  std::vector<std::byte> plain(w.memory.size());
  if (!on_device) {
    PoolDesc desc = w.desc();
    desc.base = plain.data();
    desc.on_device = false;
    w.pool = *w.service->register_pool(desc);
  }
  BlockTable desc;
  desc.pool = w.pool;
  desc.rows = 3;
  desc.columns = 4;
  const auto table = w.service->open_table(desc);
  REQUIRE(table);
  const Service::Entry entries[] = {{0, 0, 9}, {0, 1, 3}, {2, 0, 12}, {2, 1, kNoBlock}, {2, 2, 1}};
  REQUIRE(w.service->write_table(*table, entries, nullptr));
  const std::uint32_t tokens[] = {17, 0, 48};  // blocks of 16
  std::int32_t begins[4] = {}, blocks[6] = {7, 7, 7, 7, 7, 7}, last[3] = {};
  Service::Ragged out{tokens, 16, begins, blocks, last, 5};
  REQUIRE(w.service->write_ragged(*table, out, nullptr));
  CHECK(std::vector<std::int32_t>(begins, begins + 4) == std::vector<std::int32_t>{0, 2, 2, 5});
  CHECK(std::vector<std::int32_t>(blocks, blocks + 6) ==
        std::vector<std::int32_t>{9, 3, 12, -1, 1, 7});
  CHECK(std::vector<std::int32_t>(last, last + 3) == std::vector<std::int32_t>{1, 0, 16});
  out.capacity = 4;
  CHECK(w.service->write_ragged(*table, out, nullptr).error().reason == Reason::kOutOfRange);
  const std::uint32_t too_long[] = {65};
  out.tokens = too_long;
  out.capacity = 6;
  CHECK(w.service->write_ragged(*table, out, nullptr).error().reason == Reason::kOutOfRange);
}

TEST_CASE("a service may end with loads queued and under way") {
  World w(6, 4, 0);
  w.fill(0, 1);
  w.stored(1, 1, 0);
  w.fill(2, 9);
  Hold hold(*w.lanes);
  const auto first = w.prepare_load(1, 1, 1);
  const auto second = w.prepare_load(1, 1, 2);
  REQUIRE(w.service->submit(*first));
  hold.wait_held();
  REQUIRE(w.service->submit(*second));
  std::thread closing([&] { w.service.reset(); });
  hold.release();
  closing.join();
  w.lanes->go();
  CHECK(w.holds(1, 1));
}

TEST_CASE("several threads store and load on a device beside each other") {
  World w(48, 12, 64);
  std::atomic<int> wrong{0};
  std::mutex memory;  // of the items list that the world keeps
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint32_t round = 0; round < 20; ++round) {
        const std::uint32_t what = t * 1000 + round, block = t * 16 + round % 8;
        w.fill(block, what);
        Result<JobId> job = internal_error("not asked yet");
        while (!job) {  // refused while the lower tier is busy; drain is bounded
          {
            const std::lock_guard lock(memory);
            job = w.prepare_store(what, 1, block);
          }
          if (!job) w.service->drain(kPatience);
        }
        if (!w.service->submit(*job) || !*w.service->wait(*job, kPatience)) ++wrong;
        Result<JobId> load = internal_error("not asked yet");
        {
          const std::lock_guard lock(memory);
          load = w.prepare_load(what, 1, block + 8, round % 2 == 0);
        }
        if (!load || !w.service->submit(*load) || !*w.service->wait(*load, kPatience) ||
            !w.holds(block + 8, what)) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  w.service->with([](Directory& d) { CHECK(d.catalog().validate()); });
}
