// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <unistd.h>

#include "tests/capi/capi_world.hpp"

namespace hostile {

using namespace capi_world;

/// A handle of every kind, all real, and a handle taken for another kind.
struct Handles {
  lehr_runtime runtime;
  std::uint64_t sequence, ns, pool, job, lease, claim, table, trace, group, member;
};

/// Where a call gets its arguments from: which handles it uses, and whether its pointers are NULL
/// and its structs of a wrong size.
struct Caller {
  Handles h;
  bool null_pointers = false;
  std::uint32_t wrong_size = 0;  // 0: the right one

  template <class T>
  T* out(T& value) const {
    value = sized<T>();
    if (wrong_size != 0) value.struct_size = wrong_size;
    return null_pointers ? nullptr : &value;
  }
  template <class T>
  T* plain(T& value) const {
    return null_pointers ? nullptr : &value;
  }
};

using Call = std::function<lehr_status(const Caller&)>;

struct Row {
  bool takes_runtime = true;
  std::string handle;          // the kind of handle it takes, or ""
  bool takes_structs = false;  // a wrong struct_size must be refused
  bool needs_pointers = true;  // NULL for its pointers must be refused
  Call call;
};

/// A call of every function of the interface, by its name.
std::map<std::string, Row> rows();

/// Traces that the calls write, given up at the end.
class Traces {
 public:
  Traces()
      : folder_(std::filesystem::temp_directory_path() /
                ("lehr-hostile-" + std::to_string(::getpid()))) {
    std::filesystem::create_directory(folder_);
    path_ = folder_ / "t.safetensors";
  }
  ~Traces() {
    for (const lehr_trace trace : open_) lehr_trace_discard(trace);
    std::filesystem::remove_all(folder_);
  }
  Traces(const Traces&) = delete;
  Traces& operator=(const Traces&) = delete;

  void describe(lehr_trace_desc& desc) const {
    static constexpr std::uint32_t kLayer = 0;
    desc.path = {path_.c_str(), path_.string().size()};
    desc.model = desc.workload = {"m", 1};
    desc.page_tokens = 16;
    desc.q_heads = desc.kv_heads = 1;
    desc.head_dim = 8;
    desc.kv_bytes_per_element = 2;
    desc.model_layers = desc.layer_count = 1;
    desc.layer_ids = &kLayer;
    desc.prompt_tokens = 16;
  }
  void keep(lehr_trace trace) { open_.push_back(trace); }

 private:
  std::filesystem::path folder_, path_;
  std::vector<lehr_trace> open_;
};

Traces& traces();

/// Groups of two stand-ins that tests open.
class Groups {
 public:
  ~Groups() { close(); }
  std::uint64_t open();
  void close() {
    for (const lehr_group group : open_) lehr_group_close(group);
    open_.clear();
  }
  static void describe(lehr_group_options& options);

 private:
  std::vector<lehr_group> open_;
};

Groups& groups();

}  // namespace hostile
