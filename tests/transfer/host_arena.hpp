// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <catch2/catch.hpp>

#include "transfer/arena.hpp"

namespace lehr::transfer::test {

/// Pages in memory of the host.
inline std::unique_ptr<Arena> host_arena(const char* name, SlotId pages, Bytes page_bytes) {
  ArenaConfig config;
  config.name = name;
  config.pages = pages;
  config.page_bytes = page_bytes;
  HostMemoryConfig memory;
  memory.bytes = Arena::bytes_for(config);
  auto region = host_region(memory);
  REQUIRE(region);
  auto made = Arena::create(config, *std::move(region));
  REQUIRE(made);
  return *std::move(made);
}

}  // namespace lehr::transfer::test
