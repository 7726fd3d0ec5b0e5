// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/config.hpp"

#include <string>

#include <catch2/catch.hpp>

using namespace lehr;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using config::parse_config;

namespace {

constexpr const char* kFull = R"(
machine = "host"
profile = "gh200"
seed = 7
[policy]
name = "arc"
heat_half_life = 8
[policy.parameters]
window = 16
threshold = 0.7
[geometry]
layers = 30
kv_heads = 3
q_heads = 9
head_dim = 64
page_tokens = 16
dtype = "f16"
[capacity]
hbm = "25%"
host = "4 GiB"
nvme = 1048576
[nvme]
path = "/tmp"
[placement]
block_bytes = "32 KiB"
host = "423 pages"
high_watermark = 0.9
low_watermark = 0.8
)";

}  // namespace

TEST_CASE("an empty configuration is the defaults") {
  const auto c = parse_config("", "c.toml");
  REQUIRE(c);
  CHECK(c->top_machine == "sim");
  CHECK(c->policy_name == "sa");
  CHECK_FALSE(c->capacity_hbm.set());
  CHECK(c->geometry().layers == 0);
}

TEST_CASE("every kind of key is read") {
  const auto c = parse_config(kFull, "c.toml");
  REQUIRE(c);
  CHECK(c->top_machine == "host");
  CHECK(c->top_seed == 7);
  CHECK(c->policy_heat_half_life == 8);
  CHECK(c->policy_parameters.at("threshold") == 0.7);
  CHECK(c->geometry().page_bytes() == 2 * 16 * 64 * 2);
  CHECK(c->geometry().q_heads == 9);
  CHECK(c->capacity_hbm.share == 0.25);
  CHECK(c->capacity_host.count == 4ULL << 30);
  CHECK(c->capacity_nvme.count == 1048576);
  CHECK(c->placement_host.kind == config::Capacity::Kind::kPages);
  CHECK(c->placement_block_bytes == 32768);
}

TEST_CASE("each wrong configuration gives one line with file, line, key and range") {
  struct Bad {
    const char* text;
    const char* start;
    const char* says;
  };
  const Bad cases[] = {
      {"machine = \"gpu\"", "c.toml:1:1: machine:", "expected one of sim|host|cuda, found \"gpu\""},
      {"\nmachin = \"sim\"", "c.toml:2:1: machin:", "unknown key, expected one of"},
      {"seed = -1", "c.toml:1:1: seed:", "expected a whole number from 0 to"},
      {"seed = 1.5", "c.toml:1:1: seed:", "found 1.5"},
      {"seed = \"1\"", "c.toml:1:1: seed:", "found \"1\""},
      {"[geometry]\nlayers = 70000", "c.toml:2:1: geometry.layers:", "from 0 to 65535"},
      {"[geometry]\nlayers = 1\nhead_dim = 64", "c.toml:1:1: geometry.kv_heads:", "at least 1"},
      {"[geometry]\nlayers = 1\nkv_heads = 4\nq_heads = 6\nhead_dim = 64",
       "c.toml:4:1: geometry.q_heads:", "multiple of kv_heads = 4"},
      {"[capacity]\nhbm = \"120%\"", "c.toml:2:1: capacity.hbm:", "at most 100%"},
      {"[capacity]\nhbm = true", "c.toml:2:1: capacity.hbm:", "1000 pages"},
      {"[capacity]\nhbm = -5", "c.toml:2:1: capacity.hbm:", "expected bytes"},
      {"[policy]\nheat_half_life = nan", "c.toml:2:1: policy.heat_half_life:", "from 0.001"},
      {"[policy]\ncold = 1", "c.toml:2:1: policy.cold:", "true or false"},
      {"[policy.parameters]\nx = inf", "c.toml:2:1: policy.parameters.x:", "found inf"},
      {"[policy.parameters]\nx = \"a\"", "c.toml:2:1: policy.parameters.x:", "found \"a\""},
      {"policy = 3", "c.toml:1:1: policy:", "expected a table"},
      {"[placement]\nhost = \"8 pages\"", "c.toml:1:1: placement.block_bytes:", "at least 1"},
      {"[placement]\nlow_watermark = 0.9\nhigh_watermark = 0.5",
       "c.toml:2:1: placement.low_watermark:", "at most high_watermark = 0.5"},
      {"[sttep]\nweights_bytes = 1", "c.toml:1:2: sttep:", "unknown key"},
      {"[step]\nweights_bytes = \"many\"", "c.toml:2:1: step.weights_bytes:", "number"},
      {"a = \n", "c.toml:", "not valid TOML"},
      {"seed = 1\nseed = 2", "c.toml:2:", "not valid TOML"},
      {"machine = \"\xff\"", "c.toml:", "not valid TOML"},
  };
  for (const Bad& bad : cases) {
    INFO(bad.text);
    const auto c = parse_config(bad.text, "c.toml");
    REQUIRE_FALSE(c);
    CHECK_THAT(c.error().what, StartsWith(bad.start) && Contains(bad.says));
    CHECK(c.error().what.find('\n') == std::string::npos);
    CHECK(c.error().code == Code::kInvalid);
  }
}

TEST_CASE("documents too deep to be destroyed are refused before they are built") {
  const auto repeated = [](const std::string& part, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += part;
    return out;
  };
  const std::string dots = repeated("a.", 100'000) + "a";
  for (const std::string& text :
       {"[" + dots + "]", dots + " = 1", "\n\n[[" + dots + "]]", dots,
        repeated("\"a,b\" . ", 100'000), "x = " + repeated("[", 100'000),
        "x = " + repeated("{a=", 100'000), "x = {" + dots + " = 1}", "\"#\"." + dots + " = 1",
        // What ends a string, and what only seems to.
        "x = [\"\"\"text\"\"\"\"\", {" + dots + " = 1}]", "x = 'a'#'\n" + dots + " = 1",
        "x = \"\\\"\"\n" + dots + " = 1", "x = '''\n'''''\n" + dots + " = 1",
        "x = '\\'\n" + dots + " = 1", "x = \"\"\n" + dots + " = 1"}) {
    INFO(text.substr(0, 40));
    const auto c = parse_config(text, "c.toml");
    REQUIRE_FALSE(c);
    CHECK_THAT(c.error().what, Contains("nest deeper"));
  }
  CHECK_THAT(parse_config("\n\n[" + dots + "]", "c.toml").error().what, StartsWith("c.toml:3:"));
  // The control: what strings and comments hold nests nothing.
  const std::string brackets(100, '[');
  CHECK(parse_config("# " + dots + "\nprofile = \"" + dots + "\" # " + brackets +
                         "\n[nvme]\npath = '''" + dots + "\n" + brackets + "'''\n",
                     "c.toml"));
}

TEST_CASE("oversized and missing files are refused") {
  CHECK_FALSE(parse_config(std::string((1U << 20) + 1, ' '), "c.toml"));
  CHECK(parse_config(std::string(1U << 20, ' '), "c.toml"));
  const auto gone = config::read_config("/nonexistent/c.toml");
  REQUIRE_FALSE(gone);
  CHECK(gone.error().code == Code::kNotFound);
}

TEST_CASE("the reference names every key") {
  const std::string reference = config::config_reference();
  std::size_t keys = 0;
#define LEHR_COUNT(key) \
  ++keys;               \
  CHECK_THAT(reference, Contains("`" #key "`"));
#define LEHR_KEY_WORD(section, key, fallback, words, help) LEHR_COUNT(key)
#define LEHR_KEY_TEXT(section, key, fallback, help) LEHR_COUNT(key)
#define LEHR_KEY_WHOLE(section, key, fallback, minimum, maximum, help) LEHR_COUNT(key)
#define LEHR_KEY_REAL(section, key, fallback, minimum, maximum, help) LEHR_COUNT(key)
#define LEHR_KEY_FLAG(section, key, fallback, help) LEHR_COUNT(key)
#define LEHR_KEY_BYTES(section, key, fallback, help) LEHR_COUNT(key)
#define LEHR_KEY_CAPACITY(section, key, help) LEHR_COUNT(key)
#include "runtime/config/config_keys.def"
  CHECK(keys > 20);
}
