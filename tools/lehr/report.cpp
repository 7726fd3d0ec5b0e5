// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/report.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <span>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "runtime/formats/file.hpp"

namespace lehr::tools {

using nlohmann::ordered_json;

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  const std::size_t at = std::max<std::size_t>(rank, 1) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

ReadBytes::ReadBytes(const runtime::StepReport& report, Bytes page_bytes,
                     const std::optional<runtime::LoweringResult>& lowering) {
  const auto whole = [page_bytes](std::uint64_t pages) {
    return static_cast<double>(pages * page_bytes);
  };
  const double saved = lowering ? static_cast<double>(lowering->saved_a_page) : 0;
  const double crossed = saved * static_cast<double>(report.lowered_crossings);
  hits = whole(report.hits) - saved * static_cast<double>(report.lowered_hits);
  misses = std::max(0.0, whole(report.misses) - crossed);
  useful = whole(report.misses + report.promoted_used) - crossed;
}

ordered_json describe(const ReplayArguments& arguments, const Prepared& prepared) {
  const KvGeometry g = prepared.traces.front()->geometry();
  ordered_json out;
  out["schema"] = kReportSchema;
  out["lehr"] = LEHR_BUILD_VERSION;
  for (std::size_t i = 0; i < arguments.traces.size(); ++i) {
    const auto& meta = prepared.traces[i]->meta();
    out["traces"].push_back({{"file", arguments.traces[i]},
                             {"model", meta.model},
                             {"workload", meta.workload},
                             {"prompt_tokens", meta.prompt_tokens},
                             {"steps", meta.steps}});
  }
  out["sequences"] = prepared.workload.sequences.size();
  out["steps"] = prepared.workload.steps();
  out["layers"] = g.layers;
  out["kv_heads"] = g.kv_heads;
  out["page_tokens"] = g.page_tokens;
  out["page_bytes"] = prepared.page_bytes;
  out["pages"] = prepared.total_pages;
  out["select"] = arguments.select;
  out["sinks"] = arguments.sinks;
  out["recent"] = arguments.recent;
  out["profile"] = prepared.base.runtime.platform.name;
  out["weights_gb"] = arguments.weights_gb;
  out["cold"] = arguments.cold;
  out["predictor"] = arguments.predictor;
  out["window"] = arguments.window;
  out["importance"] = arguments.importance;
  out["plan_every"] = arguments.plan_every;
  out["precision"] = arguments.precision;
  if (prepared.lowered_bytes > 0) {
    out["precision_mass"] = arguments.precision_mass;
    out["lowered_page_bytes"] = prepared.lowered_bytes;
  }
  out["warmup_steps"] = arguments.warmup;
  out["seed"] = arguments.seed;
  out["times"] = "predicted";  // but those whose name says measured
  out["notices"] = prepared.notices;
  return out;
}

namespace {

/// The counts' own names, but that a bare "reads" says too little in a report.
std::string count_key(const std::string& name) {
  return name == "reads" || name == "hits" || name == "misses" ? "page_" + name : name;
}

/// `step_seconds`: of the steps that `r` adds up.
ordered_json totals(const runtime::StepReport& r, std::uint64_t tokens,
                    std::span<const Seconds> step_seconds, const placement::Platform& platform,
                    const ReadBytes& read) {
  ordered_json out;
  const double n = std::max<double>(1, static_cast<double>(step_seconds.size()));
  out["steps"] = step_seconds.size();
  out["step_p50_ms"] = percentile({step_seconds.begin(), step_seconds.end()}, 0.50) * 1e3;
  out["step_p99_ms"] = percentile({step_seconds.begin(), step_seconds.end()}, 0.99) * 1e3;
  out["predicted_seconds"] = r.total;
  out["predicted_tokens_per_second"] = r.total > 0 ? static_cast<double>(tokens) / r.total : 0;
  out["exposed_ms_per_step"] = r.exposed * 1e3 / n;
  out["terms_ms_per_step"] = {{"compute", r.time.compute * 1e3 / n},
                              {"hbm", r.time.hbm * 1e3 / n},
                              {"links", r.time.links * 1e3 / n},
                              {"control", r.time.control * 1e3 / n},
                              {"stall", r.time.stall * 1e3 / n}};
#define LEHR_STEP_COUNT(name, unit, help) out[count_key(#name)] = r.name;
#include "runtime/step_report.def"
  out["byte_hit_rate"] = read.hit_rate();
  ordered_json links;
  Bytes up = 0;
  for (std::size_t i = 0; i < platform.links.size(); ++i) {
    links[platform.links[i].name] = {{"bytes", r.link[i].bytes}, {"transfers", r.link[i].count}};
    if (platform.links[i].to == kHbm) up += r.link[i].bytes;
  }
  out["links"] = links;
  // Moved towards HBM and read at least once: misses are read by the crossing itself.
  out["useful_share"] = up > 0 ? std::min(1.0, read.useful / static_cast<double>(up)) : 1.0;
  return out;
}

}  // namespace

ordered_json figures(const runtime::ReplayResult& result, const runtime::ReplayOptions& options,
                     Bytes page_bytes) {
  ordered_json out;
  out["policy"] = result.policy;
  const std::span<const Seconds> steps(result.step_seconds);
  const placement::Platform& platform = options.runtime.platform;
  out["all"] =
      totals(result.all, result.tokens, steps, platform, {result.all, page_bytes, result.lowering});
  out["warm"] = totals(result.warm, result.warm_tokens, steps.last(result.warm_steps), platform,
                       {result.warm, page_bytes, result.lowering});
  if (!result.measured_seconds.empty()) {
    out["measured_step_p50_ms"] = percentile(result.measured_seconds, 0.50) * 1e3;
    out["measured_seconds"] = result.all.measured;
  }
  if (result.lowering) {
    const runtime::LoweringResult& l = *result.lowering;
    out["lowering"] = {
        {"saved_to_hbm_bytes", l.saved_to_hbm},   {"saved_in_hbm_bytes", l.saved_in_hbm},
        {"written_home_bytes", l.written_home},   {"mean_mass_share", l.mean_mass},
        {"most_mass_share", l.most_decayed_mass}, {"most_mass_share_of_a_step", l.most_mass}};
  }
  out["replay_wall_seconds"] = result.wall;
  out["visits_per_second"] =
      result.wall > 0 ? static_cast<double>(result.all.reads) / result.wall : 0;
  out["notes"] = result.notes;
  return out;
}

Status can_write_json(const std::string& path) {
  if (path != "-") LEHR_TRY(formats::AtomicFile::create(path));
  return {};
}

Status write_json(const std::string& path, const ordered_json& report) {
  // File names need not be UTF-8; JSON must be.
  const std::string text =
      report.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  if (path == "-") {
    errno = 0;
    if (std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return {};
    return io_error(fmt::format("standard output: cannot write: {}", std::strerror(errno)));
  }
  LEHR_ASSIGN(auto file, formats::AtomicFile::create(path));
  LEHR_TRY(file.write(std::as_bytes(std::span(text))));
  return file.commit();
}

}  // namespace lehr::tools
