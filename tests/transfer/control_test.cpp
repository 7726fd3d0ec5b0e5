// SPDX-License-Identifier: Apache-2.0
#include "transfer/control.hpp"

#include <atomic>
#include <thread>

#include <catch2/catch.hpp>

#include "tests/transfer/transfer_world.hpp"
#include "transfer/topology.hpp"

using namespace lehr;
using namespace lehr::transfer;
using namespace lehr::transfer::test;

TEST_CASE("With a control loop moves go on while nobody polls") {
  World world;
  auto loop = ControlLoop::start(world.engine());
  REQUIRE(loop);
  const Place host = world.make(kHost, 4);
  const Place file{kNvme, world.take(kNvme)};
  const Place back{kHost, world.take(kHost)};
  const Place hbm{kHbm, world.take(kHbm)};
  const std::vector<PageMove> moves{move_of(4, host, file), move_of(4, file, back),
                                    move_of(4, back, hbm)};
  std::vector<Submission> out(3);
  world.engine().submit(moves, out);
  // stats() looks without pumping: only the loop's thread can finish the chain.
  while (world.engine().stats().finished < 3) std::this_thread::yield();
  CHECK(world.intact(hbm, 4));
}

TEST_CASE("Several threads submit and wait beside a control loop") {
  WorldConfig config;
  config.host = 64;
  config.hbm = 32;
  World world(config);
  auto loop = ControlLoop::start(world.engine());
  REQUIRE(loop);
  std::vector<Place> hosts;
  for (PageId p = 0; p < 4; ++p) hosts.push_back(world.make(kHost, p));
  std::atomic<int> wrong{0};
  const auto work = [&](PageId page) {
    for (int i = 0; i < 200; ++i) {
      const PageMove move = move_of(page, hosts[page], {kHbm, kNoSlot});
      Submission out;
      const Ticket ticket = world.engine().submit({&move, 1}, {&out, 1});
      if (out.job == 0 || !world.engine().wait(ticket, kLong)) {
        ++wrong;
        continue;
      }
      const Place place{kHbm, out.slot};
      {
        auto lease = world.engine().lease(place, LeaseMode::kRead);
        if (!lease || !lease->ready()) ++wrong;
        // Not intact(): it uses the test framework, which is for one thread.
        if (!world.engine().holds(place, page, 1)) ++wrong;
      }
      if (!world.engine().release(place)) ++wrong;
    }
  };
  {
    std::vector<std::jthread> threads;
    for (PageId p = 0; p < 4; ++p) threads.emplace_back(work, p);
  }
  CHECK(wrong == 0);
  CHECK(world.engine().stats().finished == 800);
  loop->reset();
  world.validate();
}

TEST_CASE("The machine has a NUMA node with memory and processors") {
  const auto topology = Topology::detect();
  REQUIRE(topology);
  Bytes memory = 0;
  unsigned cpus = 0;
  for (const NumaNode& node : topology->nodes) {
    memory += node.memory_bytes;
    cpus += node.cpus;
  }
  CHECK(memory > 0);
  CHECK(cpus > 0);
  CHECK_FALSE(numa_node_of_pci(0xFFFF, 0xFF, 0x1F, 7));
}
