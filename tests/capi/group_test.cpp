// SPDX-License-Identifier: Apache-2.0
// Groups of devices through the C interface, on the host's stand-ins.
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tests/capi/capi_world.hpp"

using namespace capi_world;

namespace {

constexpr std::uint32_t kLayers = 3, kHeads = 4, kQueries = 8, kDim = 8;

std::string config_of(std::uint32_t hbm, const char* more = "") {
  return "machine = \"host\"\nprofile = \"h200-pcie5\"\n" + std::string(more) +
         "[policy]\nname = \"lru\"\n[geometry]\nlayers = 3\nkv_heads = 4\nq_heads = 8\nhead_dim = "
         "8\npage_tokens = 4\ndtype = \"f32\"\n[step]\ncontents = \"kv\"\n[capacity]\nhbm = \"" +
         std::to_string(hbm) + " pages\"\nhost = \"4000 pages\"\nnvme = 0\n";
}

lehr_status try_group(const std::vector<std::string>& configs, std::int32_t split,
                      const double* weights, lehr_group& out) {
  std::vector<lehr_bytes> texts;
  texts.reserve(configs.size());
  for (const std::string& text : configs) texts.push_back({text.data(), text.size()});
  auto options = sized<lehr_group_options>();
  options.split = split;
  options.configs = texts.data();
  options.weights = weights;
  options.device_count = static_cast<std::uint32_t>(texts.size());
  return lehr_group_open(LEHR_VERSION, &options, &out);
}

std::vector<std::string> configs_of(const std::vector<std::uint32_t>& hbm) {
  std::vector<std::string> configs;
  configs.reserve(hbm.size());
  for (const std::uint32_t pages : hbm) configs.push_back(config_of(pages));
  return configs;
}

/// A group that closes itself, fed with numbers that follow from layer, position and a seed.
class Group {
 public:
  Group(const std::vector<std::uint32_t>& hbm, std::int32_t split)
      : Group(configs_of(hbm), split) {}
  Group(const std::vector<std::string>& configs, std::int32_t split) {
    if (try_group(configs, split, nullptr, handle) != LEHR_OK) FAIL(last_error());
  }
  ~Group() { lehr_group_close(handle); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  lehr_sequence sequence(std::uint64_t expected = 0) {
    lehr_sequence out{};
    REQUIRE(lehr_group_sequence_create(handle, &expected, 1, &out) == LEHR_OK);
    return out;
  }
  std::vector<float> step(lehr_sequence sequence, std::uint32_t tokens, std::uint32_t seed,
                          std::vector<lehr_step_report>* reports = nullptr) {
    REQUIRE(lehr_group_step_begin(handle, &sequence, &tokens, 1, nullptr) == LEHR_OK);
    std::vector<float> all;
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      std::vector<float> k = numbers(kHeads * tokens, seed + layer),
                         v = numbers(kHeads * tokens, seed + 10 + layer),
                         q = numbers(kQueries * tokens, seed + 20 + layer), out(q.size());
      const std::int64_t kv_shape[] = {1, kHeads, tokens, kDim};
      const std::int64_t q_shape[] = {1, kQueries, tokens, kDim};
      const lehr_tensor kt = tensor(k, kv_shape), vt = tensor(v, kv_shape);
      const lehr_tensor qt = tensor(q, q_shape), ot = tensor(out, q_shape);
      REQUIRE(lehr_group_step_append(handle, LEHR_GROUP_WHOLE, layer, &kt, &vt) == LEHR_OK);
      auto request = sized<lehr_attend_request>();
      request.layer = layer;
      request.q = &qt;
      request.out = &ot;
      const lehr_status attended = lehr_group_step_attend(handle, LEHR_GROUP_WHOLE, &request);
      INFO(last_error());
      REQUIRE(attended == LEHR_OK);
      all.insert(all.end(), out.begin(), out.end());
    }
    if (reports == nullptr) {
      REQUIRE(lehr_group_step_end(handle, nullptr, 0) == LEHR_OK);
    } else {
      REQUIRE(lehr_group_step_end(handle, reports->data(), reports->size()) == LEHR_OK);
    }
    return all;
  }
  lehr_group_device_info device(std::uint32_t index) const {
    auto info = sized<lehr_group_device_info>();
    REQUIRE(lehr_group_device(handle, index, &info) == LEHR_OK);
    return info;
  }

  static lehr_tensor tensor(std::vector<float>& data, const std::int64_t* shape) {
    auto t = sized<lehr_tensor>();
    t.device_type = 1;
    t.data = data.data();
    t.ndim = 4;
    t.dtype_code = 2;
    t.dtype_bits = 32;
    t.dtype_lanes = 1;
    t.shape = shape;
    return t;
  }

  lehr_group handle{};

 private:
  static std::vector<float> numbers(std::size_t rows, std::uint32_t seed) {
    std::vector<float> out(rows * kDim);
    std::uint32_t x = seed * 2654435761U + 1;
    for (float& value : out) {
      x = x * 1664525U + 1013904223U;
      value = static_cast<float>(x >> 8) / static_cast<float>(1U << 23) - 1.0F;
    }
    return out;
  }
};

std::vector<float> life(Group& group, bool rebalanced) {
  std::vector<float> all;
  const lehr_sequence first = group.sequence(30);
  const auto note = [&](const std::vector<float>& out) {
    all.insert(all.end(), out.begin(), out.end());
  };
  note(group.step(first, 30, 100));
  lehr_sequence fork{};
  REQUIRE(lehr_group_sequence_fork(group.handle, &first, 1, &fork, nullptr) == LEHR_OK);
  for (std::uint32_t i = 0; i < 8; ++i) {
    note(group.step(first, 1, 200 + 50 * i));
    note(group.step(fork, 1, 1000 + 50 * i));
    if (!rebalanced || i != 4) continue;
    auto info = sized<lehr_group_info>();
    REQUIRE(lehr_group_describe(group.handle, &info) == LEHR_OK);
    std::uint32_t units[] = {group.device(0).units - 1, group.device(1).units + 1};
    auto request = sized<lehr_rebalance_request>();
    request.units = units;
    request.unit_count = 2;
    auto report = sized<lehr_rebalance_report>();
    REQUIRE(lehr_group_rebalance(group.handle, &request, &report) == LEHR_OK);
    CHECK(report.moved == 1);
    CHECK(report.shared_tokens >= 28);  // of the fork
    CHECK(report.copied_tokens + report.shared_tokens == 2 * 35);
    CHECK(report.copied_bytes > 0);
    CHECK(group.device(0).units == units[0]);
  }
  return all;
}

std::int32_t reason(lehr_status status) { return LEHR_STATUS_REASON(status); }
std::int32_t class_of(lehr_status status) { return LEHR_STATUS_CLASS(status); }

}  // namespace

TEST_CASE("a group gives what one device gives, also when units change device") {
  Group one(configs_of({400}), LEHR_SPLIT_HEADS);
  const std::vector<float> whole = life(one, false);
  for (const std::int32_t split : {LEHR_SPLIT_HEADS, LEHR_SPLIT_LAYERS}) {
    Group even({400, 400}, split), tight({20, 400}, split);
    CHECK(life(even, false) == whole);
    CHECK(life(tight, true) == whole);
  }
  Group ranges({400, 60}, LEHR_SPLIT_TOKENS), moved({400, 60}, LEHR_SPLIT_TOKENS);
  for (const std::vector<float>& merged : {life(ranges, false), life(moved, true)}) {
    REQUIRE(merged.size() == whole.size());
    double worst = 0;
    for (std::size_t i = 0; i < whole.size(); ++i)
      worst = std::max(worst, std::abs(double{merged[i]} - double{whole[i]}));
    CHECK(worst < 2e-6);
  }
}

TEST_CASE("devices of a group report their own steps and say what they hold") {
  Group group({20, 400}, LEHR_SPLIT_HEADS);
  const lehr_sequence s = group.sequence();
  (void)group.step(s, 40, 1);
  std::vector<lehr_step_report> reports(2, sized<lehr_step_report>());
  (void)group.step(s, 1, 2, &reports);
  CHECK(reports[0].reads == reports[1].reads);
  CHECK(reports[0].hits < reports[1].hits);
  CHECK(reports[1].misses == 0);
  CHECK(group.device(0).first_unit == 0);
  CHECK(group.device(1).first_unit == 2);
  CHECK(group.device(1).gpu == -1);
  CHECK(group.device(1).hbm_pages == 400);
  CHECK(group.device(0).pages == group.device(1).pages);
  auto info = sized<lehr_group_info>();
  REQUIRE(lehr_group_describe(group.handle, &info) == LEHR_OK);
  CHECK(info.devices == 2);
  CHECK(info.kv_heads == kHeads);
  CHECK(info.machine == LEHR_MACHINE_HOST);
  auto request = sized<lehr_rebalance_request>();
  auto report = sized<lehr_rebalance_report>();
  REQUIRE(lehr_group_rebalance(group.handle, &request, &report) == LEHR_OK);
  CHECK(report.slowest_seconds > 0);
  CHECK(report.expected_seconds <= report.slowest_seconds);
}

TEST_CASE("groups that cannot be are refused, and say which device is at fault") {
  lehr_group out{};
  const std::string good = config_of(200);
  CHECK(class_of(try_group({good, config_of(2)}, LEHR_SPLIT_HEADS, nullptr, out)) ==
        LEHR_CLASS_REFUSED);
  CHECK(last_error().find("device 1") != std::string::npos);
  CHECK(reason(try_group({good, good, good, good, good}, LEHR_SPLIT_HEADS, nullptr, out)) ==
        LEHR_REASON_OUT_OF_RANGE);
  CHECK(class_of(try_group({good}, 3, nullptr, out)) == LEHR_CLASS_INVALID);
  CHECK(class_of(try_group({good}, -1, nullptr, out)) == LEHR_CLASS_INVALID);
  CHECK(class_of(try_group({}, LEHR_SPLIT_HEADS, nullptr, out)) == LEHR_CLASS_INVALID);
  const double wrong[] = {1, -1}, not_a_number[] = {1, std::nan("")};
  CHECK(class_of(try_group({good, good}, LEHR_SPLIT_HEADS, wrong, out)) == LEHR_CLASS_INVALID);
  CHECK(class_of(try_group({good, good}, LEHR_SPLIT_HEADS, not_a_number, out)) ==
        LEHR_CLASS_INVALID);
  std::string rounded = good;
  rounded.replace(rounded.find("contents = "), 0, "rounding = \"int8\"\n");
  rounded.replace(rounded.find("head_dim = 8"), 12, "head_dim = 32");
  std::string wide = good;
  wide.replace(wide.find("head_dim = 8"), 12, "head_dim = 32");
  CHECK(reason(try_group({wide, rounded}, LEHR_SPLIT_HEADS, nullptr, out)) ==
        LEHR_REASON_LAYOUT_MISMATCH);
  std::string other = good;
  other.replace(other.find("page_tokens = 4"), 15, "page_tokens = 8");
  CHECK(reason(try_group({good, other}, LEHR_SPLIT_HEADS, nullptr, out)) ==
        LEHR_REASON_LAYOUT_MISMATCH);
  CHECK(class_of(try_group({good, kStep}, LEHR_SPLIT_HEADS, nullptr, out)) == LEHR_CLASS_INVALID);
  CHECK(class_of(try_group({good + kPlacement}, LEHR_SPLIT_HEADS, nullptr, out)) ==
        LEHR_CLASS_INVALID);
  CHECK(class_of(try_group({good, "machine = 7"}, LEHR_SPLIT_HEADS, nullptr, out)) ==
        LEHR_CLASS_INVALID);
  CHECK(last_error().find("<config 1>") != std::string::npos);
  auto options = sized<lehr_group_options>();
  options.device_count = 1;
  CHECK(class_of(lehr_group_open(LEHR_VERSION, &options, &out)) == LEHR_CLASS_INVALID);
  options.device_count = 65;
  CHECK(class_of(lehr_group_open(LEHR_VERSION, &options, &out)) == LEHR_CLASS_INVALID);
  options.flags = 1;
  CHECK(class_of(lehr_group_open(LEHR_VERSION, &options, &out)) == LEHR_CLASS_INVALID);
  CHECK(class_of(lehr_group_open(LEHR_VERSION + 1'000'000, &options, &out)) == LEHR_CLASS_VERSION);
  CHECK(out.id == 0);
}

TEST_CASE("calls out of place change nothing in a group") {
  Group group({200, 200}, LEHR_SPLIT_HEADS), other({200, 200}, LEHR_SPLIT_HEADS);
  const lehr_sequence s = group.sequence(), foreign = other.sequence();
  (void)group.step(s, 9, 1);
  CHECK(class_of(lehr_group_step_begin(group.handle, &foreign, nullptr, 1, nullptr)) ==
        LEHR_CLASS_STALE);
  Runtime runtime(config_of(200));
  std::uint64_t tokens = 0;
  CHECK(class_of(lehr_sequence_tokens(runtime, s, &tokens)) == LEHR_CLASS_STALE);
  CHECK(class_of(lehr_group_step_end(group.handle, nullptr, 0)) == LEHR_CLASS_INVALID);
  CHECK(class_of(lehr_group_step_abandon(group.handle)) == LEHR_CLASS_INVALID);
  int place = 0;
  void* const streams[] = {&place, &place};
  CHECK(class_of(lehr_group_step_begin(group.handle, &s, nullptr, 1, streams)) ==
        LEHR_CLASS_UNSUPPORTED);
  REQUIRE(lehr_group_step_begin(group.handle, &s, nullptr, 1, nullptr) == LEHR_OK);
  CHECK(class_of(lehr_group_step_begin(group.handle, &s, nullptr, 1, nullptr)) ==
        LEHR_CLASS_INVALID);
  lehr_sequence child{};
  CHECK(lehr_group_sequence_fork(group.handle, &s, 1, &child, nullptr) < 0);
  CHECK(lehr_group_sequence_release(group.handle, &s, 1, nullptr) < 0);
  lehr_sequence more{};
  CHECK(lehr_group_sequence_create(group.handle, nullptr, 1, &more) < 0);
  const std::uint32_t units[] = {3, 1};
  auto request = sized<lehr_rebalance_request>();
  request.units = units;
  request.unit_count = 2;
  CHECK(class_of(lehr_group_rebalance(group.handle, &request, nullptr)) == LEHR_CLASS_INVALID);
  std::vector<lehr_step_report> reports(3, sized<lehr_step_report>());
  CHECK(reason(lehr_group_step_end(group.handle, reports.data(), 3)) == LEHR_REASON_OUT_OF_RANGE);
  std::vector<float> data(kHeads * kDim);
  const std::int64_t shape[] = {1, kHeads, 1, kDim};
  const lehr_tensor t = Group::tensor(data, shape);
  CHECK(reason(lehr_group_step_append(group.handle, 2, 0, &t, &t)) == LEHR_REASON_OUT_OF_RANGE);
  CHECK(reason(lehr_group_step_append(group.handle, 0, 0, &t, &t)) ==
        LEHR_REASON_LAYOUT_MISMATCH);  // all heads, where device 0 has half of them
  REQUIRE(lehr_group_step_abandon(group.handle) == LEHR_OK);
  request.unit_count = 1;
  CHECK(reason(lehr_group_rebalance(group.handle, &request, nullptr)) == LEHR_REASON_OUT_OF_RANGE);
  request.unit_count = 2;
  request.units = nullptr;
  CHECK(class_of(lehr_group_rebalance(group.handle, &request, nullptr)) == LEHR_CLASS_INVALID);
  request.unit_count = 0;
  request.least_gain = -1;
  CHECK(class_of(lehr_group_rebalance(group.handle, &request, nullptr)) == LEHR_CLASS_INVALID);
  // The control: what was refused left the group as it was.
  Group same({200, 200}, LEHR_SPLIT_HEADS);
  const lehr_sequence like = same.sequence();
  (void)same.step(like, 9, 1);
  CHECK(same.step(like, 1, 3) == group.step(s, 1, 3));
  REQUIRE(lehr_group_sequence_release(group.handle, &s, 1, nullptr) == LEHR_OK);
  CHECK(class_of(lehr_group_sequence_release(group.handle, &s, 1, nullptr)) == LEHR_CLASS_STALE);
}

TEST_CASE("each device of a group has a file of its own below its host memory") {
  Group one(configs_of({400}), LEHR_SPLIT_HEADS);
  const std::vector<float> whole = life(one, false);
  const std::string folder = std::filesystem::temp_directory_path().string();
  for (const std::int32_t split : {LEHR_SPLIT_HEADS, LEHR_SPLIT_LAYERS}) {
    std::vector<std::string> configs = configs_of({24, 24});
    for (std::string& c : configs) {
      c.replace(c.find("host = \"4000 pages\"\nnvme = 0"), 30,
                "host = \"50 pages\"\nnvme = \"400 pages\"\n[nvme]\npath = \"" + folder + "\"");
    }
    Group files(configs, split);
    CHECK(life(files, true) == whole);
    CHECK(files.device(1).pages > 50 + 24);  // more than memory has room for
  }
}

TEST_CASE("numbers that no group can have are refused, and change nothing") {
  Group group({400, 400}, LEHR_SPLIT_TOKENS);
  lehr_sequence out[2]{};
  const std::uint64_t expected[] = {12, ~std::uint64_t{0}};
  CHECK(reason(lehr_group_sequence_create(group.handle, expected, 2, out)) ==
        LEHR_REASON_OUT_OF_RANGE);
  CHECK(out[0].id == 0);
  const lehr_sequence s = group.sequence(12);
  (void)group.step(s, 12, 1);
  (void)group.step(s, 1, 2);
  const std::uint32_t most = ~0U;
  CHECK(lehr_group_step_begin(group.handle, &s, &most, 1, nullptr) < 0);
  const std::uint32_t huge[] = {~0U, ~0U};
  auto request = sized<lehr_rebalance_request>();
  request.units = huge;
  request.unit_count = 1000;  // of which the caller has two
  CHECK(reason(lehr_group_rebalance(group.handle, &request, nullptr)) == LEHR_REASON_OUT_OF_RANGE);
  request.unit_count = 2;
  CHECK(reason(lehr_group_rebalance(group.handle, &request, nullptr)) == LEHR_REASON_OUT_OF_RANGE);
  // Loads that were seen stay seen where a rebalance is refused.
  REQUIRE(lehr_group_step_begin(group.handle, &s, nullptr, 1, nullptr) == LEHR_OK);
  request.unit_count = 0;
  CHECK(class_of(lehr_group_rebalance(group.handle, &request, nullptr)) == LEHR_CLASS_INVALID);
  REQUIRE(lehr_group_step_abandon(group.handle) == LEHR_OK);
  auto report = sized<lehr_rebalance_report>();
  REQUIRE(lehr_group_rebalance(group.handle, &request, &report) == LEHR_OK);
  CHECK(report.slowest_seconds > 0);
  (void)group.step(s, 1, 3);
}

TEST_CASE("a step ends on all devices of a group or on none") {
  Group group({400, 400}, LEHR_SPLIT_LAYERS), like({400, 400}, LEHR_SPLIT_LAYERS);
  const lehr_sequence s = group.sequence(), same = like.sequence();
  CHECK(group.step(s, 9, 1) == like.step(same, 9, 1));
  REQUIRE(lehr_group_step_begin(group.handle, &s, nullptr, 1, nullptr) == LEHR_OK);
  std::vector<float> data(kHeads * kDim, 1.0F);
  const std::int64_t shape[] = {1, kHeads, 1, kDim};
  const lehr_tensor t = Group::tensor(data, shape);
  for (std::uint32_t layer = 0; layer < group.device(0).units; ++layer)
    REQUIRE(lehr_group_step_append(group.handle, 0, layer, &t, &t) == LEHR_OK);
  CHECK(class_of(lehr_group_step_end(group.handle, nullptr, 0)) == LEHR_CLASS_INVALID);
  CHECK(last_error().find("device 1") != std::string::npos);
  REQUIRE(lehr_group_step_abandon(group.handle) == LEHR_OK);
  CHECK(group.step(s, 1, 2) == like.step(same, 1, 2));
}

namespace {

/// Begins steps and gives them up until the group is gone; counts what is neither done nor refused
/// as it should be.
void use_until_closed(lehr_group group, lehr_sequence s, std::atomic<int>& calls,
                      std::atomic<int>& wrong) {
  const auto look = [&](lehr_status status) {
    const std::int32_t c = class_of(status);
    if (status != LEHR_OK && c != LEHR_CLASS_STALE && c != LEHR_CLASS_INVALID) ++wrong;
    return c != LEHR_CLASS_STALE;
  };
  while (look(lehr_group_step_begin(group, &s, nullptr, 1, nullptr))) {
    (void)look(lehr_group_step_abandon(group));
    ++calls;
  }
}

std::pair<lehr_group, lehr_sequence> open_pair() {
  std::pair<lehr_group, lehr_sequence> out{};
  REQUIRE(try_group(configs_of({400, 400}), LEHR_SPLIT_HEADS, nullptr, out.first) == LEHR_OK);
  REQUIRE(lehr_group_sequence_create(out.first, nullptr, 1, &out.second) == LEHR_OK);
  return out;
}

}  // namespace

TEST_CASE("a group that is closed while others call it, or inside a step, is gone for all") {
  for (int round = 0; round < 8; ++round) {
    const auto [group, s] = open_pair();
    std::atomic<int> wrong{0}, calls{0};
    std::vector<std::thread> threads(3);
    for (std::thread& t : threads)
      t = std::thread(use_until_closed, group, s, std::ref(calls), std::ref(wrong));
    while (calls < 20) std::this_thread::yield();
    CHECK(lehr_group_close(group) == LEHR_OK);
    for (std::thread& t : threads) t.join();
    CHECK(wrong == 0);
    CHECK(class_of(lehr_group_close(group)) == LEHR_CLASS_STALE);
  }
  const auto [group, s] = open_pair();
  REQUIRE(lehr_group_step_begin(group, &s, nullptr, 1, nullptr) == LEHR_OK);
  CHECK(lehr_group_close(group) == LEHR_OK);
  CHECK(class_of(lehr_group_step_abandon(group)) == LEHR_CLASS_STALE);
}
