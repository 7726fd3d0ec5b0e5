// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/profile.hpp"

#include <cstdio>
#include <fstream>
#include <string>

#include <catch2/catch.hpp>

using namespace lehr;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using config::parse_profile;

namespace {

constexpr const char* kGood = R"([platform]
name = "toy"
tflops = 1
control_us_per_layer = 2
home = "host"
[source]
date = 2026-01-02
serial = 7
[gpu]
sms = 4
l2 = 1000
l2_persisting = 500
[[tier]]
name = "hbm"
capacity = "1 MiB"
directly_readable = true
gbps = 100
[[tier]]
name = "host"
capacity = 4096
directly_readable = true
[[link]]
name = "up"
from = "host"
to = "hbm"
latency_us = 3
[link.curve]
sizes = [4096, 16384]
counts = [1, 4]
gbps = [[1, 2], [4, 8]]
[[link]]
name = "down"
from = "hbm"
to = "host"
gbps = 5
[[shared]]
links = ["up", "down"]
gbps = 9
)";

// kGood with one piece of text replaced.
std::string with(const std::string& from, const std::string& to) {
  std::string text = kGood;
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

void check_same(const placement::Platform& a, const placement::Platform& b) {
  CHECK(a.name == b.name);
  CHECK(a.flops == Approx(b.flops));
  CHECK(a.control_per_layer == Approx(b.control_per_layer));
  CHECK(a.home == b.home);
  REQUIRE(a.tiers.size() == b.tiers.size());
  for (std::size_t i = 0; i < a.tiers.size(); ++i) {
    CHECK(a.tiers[i].name == b.tiers[i].name);
    CHECK(a.tiers[i].capacity == b.tiers[i].capacity);
    CHECK(a.tiers[i].directly_readable == b.tiers[i].directly_readable);
  }
  CHECK(a.hbm.peak() == Approx(b.hbm.peak()));
  REQUIRE(a.links.size() == b.links.size());
  for (std::size_t i = 0; i < a.links.size(); ++i) {
    CHECK(a.links[i].name == b.links[i].name);
    CHECK(a.links[i].from == b.links[i].from);
    CHECK(a.links[i].to == b.links[i].to);
    CHECK(a.links[i].latency == Approx(b.links[i].latency));
    CHECK(a.links[i].curve.sizes() == b.links[i].curve.sizes());
    CHECK(a.links[i].curve.counts() == b.links[i].curve.counts());
    REQUIRE(a.links[i].curve.values().size() == b.links[i].curve.values().size());
    for (std::size_t j = 0; j < a.links[i].curve.values().size(); ++j) {
      CHECK(a.links[i].curve.values()[j] == Approx(b.links[i].curve.values()[j]));
    }
  }
  REQUIRE(a.shared.size() == b.shared.size());
  for (std::size_t i = 0; i < a.shared.size(); ++i) {
    CHECK(a.shared[i].first == b.shared[i].first);
    CHECK(a.shared[i].second == b.shared[i].second);
    CHECK(a.shared[i].bytes_per_second == Approx(b.shared[i].bytes_per_second));
  }
}

}  // namespace

TEST_CASE("a profile becomes a platform with the units converted") {
  const auto profile = parse_profile(kGood, "p.toml");
  REQUIRE(profile);
  const placement::Platform& p = profile->platform;
  CHECK(p.flops == 1e12);
  CHECK(p.control_per_layer == Approx(2e-6));
  CHECK(p.home == 1);
  CHECK(p.tiers[0].capacity == 1048576);
  CHECK(p.hbm.at(1e6, 1) == 100e9);
  CHECK(p.links[0].latency == Approx(3e-6));
  CHECK(p.links[0].curve.at(4096, 4) == 2e9);
  // Halfway between 4 KiB and 16 KiB on the log axis: the mean of the two rows.
  CHECK(p.links[0].curve.at(8192, 4) == Approx(5e9));
  CHECK(p.shared[0].bytes_per_second == 9e9);
  CHECK(profile->source.at("date") == "2026-01-02");
  CHECK(profile->source.at("serial") == "7");
  CHECK(profile->gpu.l2_persisting_bytes == 500);
}

TEST_CASE("each wrong profile gives one line with file, line, key and range") {
  struct Bad {
    std::string text;
    const char* start;
    const char* says;
  };
  const Bad cases[] = {
      {"", "p.toml:1:1: platform:", "missing"},
      {with("tflops = 1\n", ""), "p.toml:1:1: platform.tflops:", "missing"},
      {with("tflops = 1\n", "tflops = 0\n"), "p.toml:3:1: platform.tflops:", "found 0"},
      {with("tflops = 1\n", "tflops = nan\n"), "p.toml:3:1: platform.tflops:", "found nan"},
      {with("tflops = 1\n", "tflop = 1\n"), "p.toml:1:1: platform.tflops:", "missing"},
      {with("name = \"toy\"", "name = \"toy\"\ncolour = 1"),
       "p.toml:3:1: platform.colour:", "unknown key"},
      {with("home = \"host\"", "home = \"nvme\""),
       "p.toml:5:1: platform.home:", "expected a tier (hbm, host)"},
      {with("home = \"host\"", "home = \"hbm\""), "p.toml:5:1: platform.home:", "no home tier"},
      {with("sms = 4", "sms = 0"), "p.toml:10:1: gpu.sms:", "from 1 to"},
      {with("l2_persisting = 500", "l2_persisting = 5000"),
       "p.toml:12:1: gpu.l2_persisting:", "at most l2"},
      {with("\"hbm\"\ncapacity", "\"dram\"\ncapacity"),
       "p.toml:14:1: tier[0].name:", "must be \"hbm\""},
      {with("name = \"host\"\ncapacity", "name = \"hbm\"\ncapacity"),
       "p.toml:19:1: tier[1].name:", "a second tier"},
      {with("capacity = 4096", "capacity = 0"),
       "p.toml:20:1: tier[1].capacity:", "at least 1 bytes"},
      {with("capacity = 4096", "capacity = \"big\""), "p.toml:20:1: tier[1].capacity:", "number"},
      {with("gbps = 100", ""), "p.toml:13:1: tier[0].gbps:", "missing"},
      {with("gbps = 100", "gbps = 0"), "p.toml:17:1: tier[0].gbps:", "found 0"},
      {with("gbps = 100", "gbps = -4"), "p.toml:17:1: tier[0].gbps:", "found -4"},
      {with("to = \"hbm\"", "to = \"mars\""), "p.toml:25:1: link[0].to:", "expected a tier"},
      {with("to = \"hbm\"", "to = \"host\""), "p.toml:25:1: link[0].to:", "another tier"},
      {with("latency_us = 3", "latency_us = -1"), "p.toml:26:1: link[0].latency_us:", "found -1"},
      {with("sizes = [4096, 16384]", "sizes = [16384, 4096]"),
       "p.toml:28:1: link[0].curve.sizes:", "item 2: expected more than 16384"},
      {with("sizes = [4096, 16384]", "sizes = [4096, 4096]"),
       "p.toml:28:1: link[0].curve.sizes:", "expected more than 4096"},
      {with("counts = [1, 4]", "counts = [0, 4]"), "p.toml:29:1: link[0].curve.counts:", "item 1"},
      {with("counts = [1, 4]", "counts = []"),
       "p.toml:29:1: link[0].curve.counts:", "an array of numbers"},
      {with("[[1, 2], [4, 8]]", "[[1, 2], [4, 0]]"),
       "p.toml:30:1: link[0].curve.gbps:", "row 2, item 2"},
      {with("[[1, 2], [4, 8]]", "[[1, 2], [4]]"),
       "p.toml:30:1: link[0].curve.gbps:", "row 2: expected 2 numbers"},
      {with("[[1, 2], [4, 8]]", "[[1, 2]]"), "p.toml:30:1: link[0].curve.gbps:", "expected 2 rows"},
      {with("[[1, 2], [4, 8]]", "[[1, inf], [4, 8]]"),
       "p.toml:30:1: link[0].curve.gbps:", "found inf"},
      {with("[[1, 2], [4, 8]]", "7"), "p.toml:30:1: link[0].curve.gbps:", "rows of numbers"},
      {with("name = \"down\"", "name = \"up\""), "p.toml:32:1: link[1].name:", "a second link"},
      {with("from = \"hbm\"\nto = \"host\"\n", "from = \"host\"\nto = \"hbm\"\n"),
       "p.toml:34:1: link[1].to:", "a second link from host to hbm"},
      {with("[\"up\", \"down\"]", "[\"up\", \"up\"]"),
       "p.toml:37:1: shared[0].links:", "two links"},
      {with("[\"up\", \"down\"]", "[\"up\", \"left\"]"),
       "p.toml:37:1: shared[0].links:", "\"left\""},
      {with("gbps = 9", "gbps = 0"), "p.toml:38:1: shared[0].gbps:", "found 0"},
      {with("[source]", "[sauce]"), "p.toml:6:2: sauce:", "unknown key"},
  };
  for (const Bad& bad : cases) {
    INFO(bad.start << " " << bad.says);
    const auto profile = parse_profile(bad.text, "p.toml");
    REQUIRE_FALSE(profile);
    CHECK_THAT(profile.error().what, StartsWith(bad.start) && Contains(bad.says));
    CHECK(profile.error().what.find('\n') == std::string::npos);
  }
  REQUIRE(parse_profile(kGood, "p.toml"));  // the control: nothing replaced, nothing refused
}

TEST_CASE("a home without both links is refused") {
  std::string text = kGood;
  text.resize(text.find("[[link]]\nname = \"down\""));
  const auto profile = parse_profile(text, "p.toml");
  REQUIRE_FALSE(profile);
  CHECK_THAT(profile.error().what, Contains("no links to and from hbm"));
}

TEST_CASE("every shipped profile loads by name, is valid and survives a round trip") {
  const auto shipped = config::shipped_profiles();
  for (const char* name : {"gh200", "h200-pcie5", "h100-pcie5", "a100-pcie4"}) {
    const bool found =
        std::any_of(shipped.begin(), shipped.end(), [&](const auto& i) { return i.name == name; });
    CHECK(found);
  }
  for (const config::ProfileInfo& info : shipped) {
    INFO(info.name);
    CHECK_FALSE(info.summary.empty());
    const auto profile = config::read_profile(info.name);
    if (!profile) FAIL(profile.error().what);
    CHECK(profile->platform.name == info.name);
    CHECK(profile->platform.validate());
    const std::string written = config::write_profile(*profile);
    const auto again = parse_profile(written, "again.toml");
    if (!again) FAIL(again.error().what << "\n" << written);
    check_same(profile->platform, again->platform);
    CHECK(again->source == profile->source);
    CHECK(again->gpu.sms == profile->gpu.sms);
    CHECK(again->gpu.hbm_peak == Approx(profile->gpu.hbm_peak));
    CHECK(again->gpu.kernels_per_layer == Approx(profile->gpu.kernels_per_layer));
    CHECK(config::write_profile(*again) == written);
  }
}

TEST_CASE("the shipped figures are those that were measured or published") {
  const auto h200 = config::load_profile("h200-pcie5");
  REQUIRE(h200);
  const auto& up = h200->links[h200->link(*h200->tier("host"), kHbm)];
  CHECK(up.curve.at(16384, 4096) == 48.36e9);
  CHECK(up.curve.peak() == 54.69e9);
  CHECK(h200->hbm.peak() == 4542e9);
  CHECK(h200->link(*h200->tier("nvme"), kHbm) == placement::kNoLink);  // staged through host
  const auto gh200 = config::load_profile("gh200");
  REQUIRE(gh200);
  CHECK(gh200->tiers[kHbm].capacity == 96'000'000'000ULL);
  CHECK(config::read_profile("gh200")->gpu.hbm_peak == 4000e9);
  CHECK(config::read_profile("h200-pcie5")->gpu.kernels_per_layer == Approx(60e-6));
  // No transfer of pages is promised more than the whole link does.
  for (const auto& info : config::shipped_profiles()) {
    const auto p = config::load_profile(info.name);
    for (const auto& link : p->links) {
      CHECK(link.curve.at(4096, 1) <= link.curve.at(1 << 30, 64));
    }
  }
}

TEST_CASE("what movers were measured to do is read, written again, and chosen by") {
  const std::string movers = R"([[mover]]
link = "up"
name = "ring"
latency_us = 18
gbps = 50
[[mover]]
link = "up"
name = "copy_engine"
run_pages = 16
latency_us = 11
[mover.curve]
sizes = [4096, 16384]
counts = [1, 64]
gbps = [[2, 40], [8, 55]]
)";
  const auto profile = parse_profile(kGood + movers, "p.toml");
  if (!profile) FAIL(profile.error().what);
  REQUIRE(profile->movers.size() == 2);
  CHECK(profile->movers[0].run_pages == 1);
  CHECK(profile->movers[1].run_pages == 16);
  CHECK(profile->movers[1].latency == Approx(11e-6));
  CHECK(profile->movers[1].curve.at(16384, 64) == 55e9);
  const placement::Link& up = profile->platform.links[0];
  REQUIRE(up.name == "up");
  CHECK(config::movers_between(*profile, up.from, up.to).size() == 2);
  CHECK(config::movers_between(*profile, up.to, up.from).empty());
  const auto ways = config::measured_ways(*profile);
  REQUIRE(ways.size() == 2);
  CHECK((ways[1].from == up.from && ways[1].to == up.to && ways[1].curve.mover == "copy_engine"));
  const auto again = parse_profile(config::write_profile(*profile), "w.toml");
  if (!again) FAIL(again.error().what);
  REQUIRE(again->movers.size() == 2);
  CHECK(again->movers[1].mover == "copy_engine");
  CHECK(again->movers[1].curve.values() == profile->movers[1].curve.values());
  const auto refused = [&](const std::string& from, const std::string& to, const char* says) {
    std::string text = kGood + movers;
    const auto at = text.rfind(from);
    REQUIRE(at != std::string::npos);
    const auto bad = parse_profile(text.replace(at, from.size(), to), "p.toml");
    REQUIRE_FALSE(bad);
    CHECK_THAT(bad.error().what, StartsWith("p.toml:") && Contains(says));
  };
  refused("link = \"up\"", "link = \"sideways\"", "no link is named \"sideways\"");
  refused("run_pages = 16", "run_pages = 0", "run_pages");
  refused("name = \"copy_engine\"\nrun_pages = 16", "name = \"ring\"\nrun_pages = 1",
          "a second \"ring\"");
  refused("latency_us = 11", "latency_us = -1", "latency_us");
  refused("gbps = [[2, 40], [8, 55]]", "gbps = [[2, 40]]", "expected 2 rows");
}

TEST_CASE("a profile is found by path, and a wrong name lists the right ones") {
  const std::string path = "profile_test_copy.toml";
  std::ofstream(path) << kGood;
  CHECK(config::load_profile(path));
  CHECK(config::load_profile("./" + path));
  std::remove(path.c_str());
  CHECK(config::load_profile("./" + path).error().code == Code::kNotFound);
  const auto unknown = config::load_profile("gh2000");
  REQUIRE_FALSE(unknown);
  CHECK_THAT(unknown.error().what, Contains("gh200, ") && Contains("path"));
  CHECK_FALSE(config::load_profile("/"));
}

TEST_CASE("names that need quoting survive a round trip") {
  auto profile = parse_profile(kGood, "p.toml");
  REQUIRE(profile);
  profile->source["a \"quoted\" key"] = "back\\slash\nand newline";
  const auto again = parse_profile(config::write_profile(*profile), "w.toml");
  REQUIRE(again);
  CHECK(again->source == profile->source);
}
