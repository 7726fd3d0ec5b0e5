// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <lehr.h>

// Small runtimes for tests of the C interface.
namespace capi_world {

inline std::string last_error() {
  std::string text(lehr_last_error(nullptr, 0), '\0');
  lehr_last_error(text.data(), text.size());
  text.resize(text.size() - 1);
  return text;
}

template <class T>
T sized() {
  T value;
  std::memset(&value, 0, sizeof(value));
  value.struct_size = sizeof(T);
  return value;
}

inline lehr_status try_open(const std::string& config, lehr_runtime& out) {
  auto options = sized<lehr_open_options>();
  options.config = config.data();
  options.config_size = config.size();
  return lehr_open(LEHR_VERSION, &options, &out);
}

inline constexpr const char* kStep =
    "[geometry]\nlayers = 2\nkv_heads = 1\nhead_dim = 8\n[capacity]\nhbm = \"16 pages\"\nhost = "
    "\"64 "
    "pages\"\nnvme = 0\n";
inline constexpr const char* kPlacement = "[placement]\nblock_bytes = 4096\nhost = \"4 pages\"\n";

/// A runtime that closes itself.
class Runtime {
 public:
  explicit Runtime(const std::string& config) {
    const lehr_status status = try_open(config, handle);
    if (status != LEHR_OK) FAIL(last_error());
  }
  ~Runtime() { lehr_close(handle); }
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  operator lehr_runtime() const { return handle; }

  lehr_runtime handle{};
};

inline lehr_layout opaque(std::uint64_t bytes) {
  auto layout = sized<lehr_layout>();
  layout.opaque_bytes = bytes;
  return layout;
}

inline lehr_namespace open_namespace(lehr_runtime runtime) {
  const lehr_layout layout = opaque(4096);
  auto desc = sized<lehr_namespace_desc>();
  desc.layout = &layout;
  desc.model = {"m", 1};
  lehr_namespace ns{};
  REQUIRE(lehr_namespace_open(runtime, &desc, &ns) == LEHR_OK);
  return ns;
}

/// A pool of opaque blocks of 4096 bytes that only the caller ever touches.
inline lehr_pool pool_of(lehr_runtime runtime, std::uint64_t blocks) {
  const lehr_layout layout = opaque(4096);
  auto desc = sized<lehr_pool_desc>();
  desc.layout = &layout;
  desc.blocks = static_cast<decltype(desc.blocks)>(blocks);
  desc.bytes = blocks * 4096;
  lehr_pool pool{};
  REQUIRE(lehr_pool_register(runtime, &desc, &pool) == LEHR_OK);
  return pool;
}

inline lehr_item item_of(const char* key, lehr_pool pool = {}, std::uint32_t block = 0) {
  auto item = sized<lehr_item>();
  item.key = key;
  item.key_size = static_cast<std::uint32_t>(std::strlen(key));
  item.pool = pool;
  item.block = block;
  return item;
}

}  // namespace capi_world
