// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/replay/replay.hpp"

namespace CLI {
class App;
}

namespace lehr::tools {

/// What replay, compare and bound have in common on the command line.
struct ReplayArguments {
  std::vector<std::string> traces;
  std::string profile = "h200-pcie5";
  std::vector<std::string> hbm = {"25%"};
  std::string host;
  std::string nvme;
  std::string select = "mass:0.95";
  std::uint32_t sinks = 1;
  std::uint32_t recent = 4;
  std::uint32_t sequences = 0;  ///< 0: one for each trace file
  std::uint32_t stagger = 0;
  std::uint32_t warmup = 16;
  std::uint64_t seed = 0;
  double weights_gb = 0;
  std::string predictor = runtime::RuntimeOptions{}.predictor;  ///< NAME or NAME:KEY=VALUE,...
  std::uint32_t window = runtime::RuntimeOptions{}.prefetch_window;
  std::uint32_t plan_every = runtime::RuntimeOptions{}.plan_every;
  std::string importance = "none";
  double importance_learns = 0;
  std::string precision = "none";
  double precision_mass = runtime::PrecisionOptions{}.mass;
  std::string shape;
  std::string page_bytes;
  bool cold = false;
  std::string json;  ///< "-" is standard output

  void add_to(CLI::App& command);
};

/// Traces opened and selected, the platform read: ready to replay at any capacity.
struct Prepared {
  std::vector<std::shared_ptr<const formats::AttentionTrace>> traces;  ///< copies share them
  std::vector<std::shared_ptr<const runtime::TraceSelection>> selections;
  runtime::Workload workload;
  runtime::ReplayOptions base;  ///< everything but policy and HBM capacity
  std::vector<std::string>
      notices;          ///< imposed shapes, many copies of one trace: what the figures stand for
  KvGeometry geometry;  ///< with an imposed shape: what kernels see
  Bytes page_bytes = 0;
  Bytes lowered_bytes = 0;  ///< of a page at the lower precision; 0: none is allowed
  std::uint64_t total_pages = 0;
  Seconds kernels_per_layer = 0;  ///< of the profile (config::GpuFacts); 0: it does not say

  /// `hbm` as given on the command line ("25%", "24GB", "2000 pages").
  Result<runtime::ReplayOptions> at(const std::string& hbm) const;
};

Result<std::unique_ptr<Prepared>> prepare(const ReplayArguments& arguments,
                                          const runtime::Progress& progress);

/// The same traces and selection on the profile that `arguments` names; nothing is read again.
Result<std::unique_ptr<Prepared>> on_profile(const Prepared& prepared,
                                             const ReplayArguments& arguments);

/// "name" or "name:key=value,key=value".
Result<std::pair<std::string, Parameters>> parse_policy(const std::string& text);

}  // namespace lehr::tools
