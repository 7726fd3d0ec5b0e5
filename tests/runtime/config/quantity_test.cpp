// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/quantity.hpp"

#include <string>

#include <catch2/catch.hpp>

using namespace lehr;
using config::Capacity;
using config::parse_bytes;
using config::parse_capacity;

TEST_CASE("bytes are read with decimal and binary units") {
  CHECK(*parse_bytes("4096") == 4096);
  CHECK(*parse_bytes(" 24 GiB ") == 24ULL * 1024 * 1024 * 1024);
  CHECK(*parse_bytes("141GB") == 141'000'000'000ULL);
  CHECK(*parse_bytes("1.5 MiB") == 1'572'864ULL);
  CHECK(*parse_bytes("0") == 0);
}

TEST_CASE("what is no number of bytes is refused with the units that would do") {
  for (const char* bad : {"", "GiB", "-1", "1 parsec", "nan", "inf", "1e300", "12 GiB extra"}) {
    INFO(bad);
    CHECK_FALSE(parse_bytes(bad));
  }
  CHECK(parse_bytes("1 parsec").error().what.find("GiB") != std::string::npos);
}

TEST_CASE("a capacity is bytes, pages or a share") {
  CHECK(parse_capacity("8 KiB")->kind == Capacity::Kind::kBytes);
  CHECK(parse_capacity("1000 pages")->count == 1000);
  CHECK(parse_capacity("25%")->share == 0.25);
  CHECK(parse_capacity("100%")->share == 1.0);
  for (const char* bad : {"0%", "120%", "-5%", "%", "1.5 pages", "nan%"}) {
    INFO(bad);
    CHECK_FALSE(parse_capacity(bad));
  }
}

TEST_CASE("a capacity resolves against what it refers to") {
  CHECK(*parse_capacity("3 pages")->resolve(0, 4096) == 12288);
  CHECK(*parse_capacity("5000")->resolve(0, 4096) == 5000);
  // 25 % of 10 pages are 2.5 pages: two whole ones.
  CHECK(*parse_capacity("25%")->resolve(10 * 4096, 4096) == 8192);
  CHECK_FALSE(parse_capacity("25%")->resolve(0, 4096));
  // A whole number of percent of 100 pages is that number of pages, whatever it is in binary.
  for (Bytes percent = 1; percent <= 100; ++percent) {
    INFO(percent);
    CHECK(*parse_capacity(std::to_string(percent) + "%")->resolve(100 * 4096, 4096) ==
          percent * 4096);
  }
  CHECK_FALSE(Capacity{}.resolve(1, 1));
  CHECK_FALSE(parse_capacity("9000000000000000 pages")->resolve(0, 4096));
}
