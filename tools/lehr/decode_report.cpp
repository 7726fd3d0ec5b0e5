// SPDX-License-Identifier: Apache-2.0
// What a replay on a GPU says: terms beside each other, errors, calibration, a timeline.
#include <algorithm>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "runtime/config/profile.hpp"
#include "runtime/formats/file.hpp"
#include "runtime/machines/cuda/program.hpp"
#include "runtime/report/perfetto.hpp"
#include "tools/lehr/decode_run.hpp"
#include "tools/lehr/report.hpp"
#include "tools/lehr/table.hpp"

namespace lehr::tools {

using nlohmann::ordered_json;
using runtime::cuda::LayerRecord;
using runtime::cuda::StepRecord;

namespace {

constexpr std::uint64_t kNoMove = ~std::uint64_t{0};

Seconds move_seconds(const kernels::LayerStamps& stamps) {
  if (stamps.move_begin == kNoMove || stamps.move_end <= stamps.move_begin) return 0;
  return static_cast<double>(stamps.move_end - stamps.move_begin) * 1e-9;
}

/// Sums over the steps after the warm-up, seconds a step.
struct Terms {
  double total = 0, hbm = 0, up = 0, down = 0, control = 0, stall = 0, exposed = 0;
};

Terms predicted_terms(const DecodeOutcome& o, const runtime::ReplayOptions& options) {
  const placement::Platform& p = options.runtime.platform;
  const LinkId up = p.link(p.home, kHbm), down = p.link(kHbm, p.home);
  Terms t;
  const auto& steps = o.log->steps;
  const std::size_t first = steps.size() - o.measured.size();
  for (std::size_t s = first; s < steps.size(); ++s) {
    for (const LayerRecord& l : steps[s].layers) {
      t.total += l.predicted.total();
      t.hbm += l.predicted.under_compute();
      t.up += l.predicted.link[up];
      t.down += l.predicted.link[down];
      t.control += l.predicted.control;
      t.stall += l.predicted.stall;
      t.exposed += l.predicted.exposed();
    }
  }
  const double n = std::max<double>(1, static_cast<double>(o.measured.size()));
  for (double* x : {&t.total, &t.hbm, &t.up, &t.down, &t.control, &t.stall, &t.exposed}) *x /= n;
  return t;
}

/// What layers took beyond the calibrated model's word for the same layer without any transfer: the
/// transfers' exposed time as measured. Below zero counts as none.
struct Exposure {
  double exposed = 0, hidden = 0;                                 ///< seconds a step
  double in_place = 0, installs = 0, promotions = 0, writes = 0;  ///< of exposed, by reason
  double movers = 0;                                              ///< seconds a step that they ran
};

Exposure measured_exposure(const DecodeOutcome& o) {
  Exposure e;
  const auto& steps = o.log->steps;
  const std::size_t first = steps.size() - o.measured.size();
  for (std::size_t s = first; s < steps.size(); ++s) {
    const StepRecord& step = steps[s];
    for (std::size_t l = 0; l < step.layers.size(); ++l) {
      const LayerRecord& r = step.layers[l];
      const double measured =
          static_cast<double>(step.times.layers[l + 1].begin - step.times.layers[l].begin) * 1e-9;
      const auto with = placement::layer_time(o.calibration.platform, r.load);
      const double exposed = std::max(0.0, measured - with.under_compute() - with.control);
      const double links = with.links + with.stall;
      e.movers += move_seconds(step.times.layers[l]);
      if (links <= 0) continue;
      const double own = std::min(exposed, links);
      e.exposed += own;
      e.hidden += links - own;
      const double pages = std::max<double>(1, r.over_link + r.arrived + r.written);
      e.in_place += own * (r.over_link - r.installed) / pages;
      e.installs += own * r.installed / pages;
      e.promotions += own * r.arrived / pages;
      e.writes += own * r.written / pages;
    }
  }
  const double n = std::max<double>(1, static_cast<double>(o.measured.size()));
  for (double* x :
       {&e.exposed, &e.hidden, &e.in_place, &e.installs, &e.promotions, &e.writes, &e.movers})
    *x /= n;
  return e;
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

/// Median over the layers of the last step, microseconds of each kernel; where they were traced.
std::vector<std::pair<std::string, double>> kernel_times(const DecodeOutcome& o) {
  using runtime::cuda::kLaunchKinds;
  std::vector<std::pair<std::string, double>> out;
  const auto& stamps = o.log->kernel_stamps;
  if (stamps.empty() || o.log->steps.empty()) return out;
  const auto& begins = o.log->steps.back().times.layers;
  std::vector<std::vector<double>> times(kLaunchKinds);
  for (std::size_t l = 0; l < stamps.size() / kLaunchKinds; ++l) {
    std::uint64_t before = begins[l].begin;
    for (std::size_t k = 0; k < kLaunchKinds; ++k) {
      const std::uint64_t at = stamps[l * kLaunchKinds + k];
      if (at == 0) continue;
      times[k].push_back(static_cast<double>(at - before) * 1e-3);
      before = at;
    }
  }
  for (std::size_t k = 0; k < kLaunchKinds; ++k) {
    if (times[k].empty()) continue;
    out.emplace_back(runtime::cuda::name(static_cast<runtime::cuda::LaunchKind>(k)),
                     percentile(std::move(times[k]), 0.5));
  }
  return out;
}

/// The host's time for a step beside the GPU's, and what both come to together.
std::vector<std::pair<const char*, std::string>> loop_lines(const DecodeOutcome& o) {
  const LoopFigures& loop = o.loop;
  const double n = std::max<double>(1, static_cast<double>(o.measured.size()));
  std::vector<std::pair<const char*, std::string>> out;
  out.emplace_back(
      "host a step",
      fmt::format("deciding {}, listing {}, launch {}; wall clock {} a step, of which "
                  "the GPU worked {} and waited {}",
                  human_seconds(std::max(0.0, o.host - o.listing)), human_seconds(o.listing),
                  human_seconds(o.launch), human_seconds(loop.wall / n),
                  human_seconds(loop.gpu / n), human_seconds(loop.waited / n)));
  const bool waited = loop.waited > 0.05 * loop.wall;
  out.emplace_back(
      "tokens/s",
      fmt::format("{:.0f} of the whole loop by the wall clock, {:.0f} by the GPU's time "
                  "alone: {}",
                  loop.per_second(), loop.per_gpu_second(),
                  waited ? "the GPU waited for the host" : "the host kept up"));
  return out;
}

std::vector<std::pair<const char*, std::string>> below_lines(const BelowFigures& b) {
  std::vector<std::pair<const char*, std::string>> out;
  if (b.name.empty()) return out;
  out.emplace_back("file below, a step",
                   fmt::format("{:.1f} pages up from {}, {:.1f} down; {} steps launched in parts",
                               b.staged, b.name, b.sunk, b.in_parts));
  out.emplace_back("  predicted",
                   fmt::format("reads {} of which layers stall for {}, writes {}",
                               human_seconds(b.predicted_reads), human_seconds(b.predicted_stall),
                               human_seconds(b.predicted_writes)));
  out.emplace_back(
      "  measured",
      fmt::format("reads under way {}, the host waited {}, the GPU with it {} (stall); "
                  "writes under way {}",
                  human_seconds(b.reading), human_seconds(b.waited), human_seconds(b.exposed),
                  human_seconds(b.writing)));
  out.emplace_back("step with its stalls",
                   fmt::format("predicted {}, measured {} (mean)", human_seconds(b.predicted_step),
                               human_seconds(b.measured_step)));
  return out;
}

ordered_json below_json(const BelowFigures& b) {
  return {{"tier", b.name},
          {"pages_up", b.staged},
          {"pages_down", b.sunk},
          {"steps_in_parts", b.in_parts},
          {"predicted_reads_ms", b.predicted_reads * 1e3},
          {"predicted_stall_ms", b.predicted_stall * 1e3},
          {"predicted_writes_ms", b.predicted_writes * 1e3},
          {"measured_reads_ms", b.reading * 1e3},
          {"measured_wait_ms", b.waited * 1e3},
          {"measured_stall_ms", b.exposed * 1e3},
          {"measured_writes_ms", b.writing * 1e3},
          {"predicted_step_ms", b.predicted_step * 1e3},
          {"measured_step_ms", b.measured_step * 1e3}};
}

std::string trust_line(const DecodeOutcome& o) {
  if (runtime::trusted(o.steps)) {
    return fmt::format(
        "the model may be trusted on this machine: steps off by {} (median), {} "
        "(p95)",
        percent(o.steps.median), percent(o.steps.p95));
  }
  return fmt::format(
      "the model may NOT be trusted on this machine: steps off by {} (median), {} "
      "(p95), limits 10 % and 25 %",
      percent(o.steps.median), percent(o.steps.p95));
}

std::string calibration_line(const DecodeOutcome& o) {
  const runtime::Calibration& c = o.calibration;
  return fmt::format(
      "calibrated: kernels_us_per_layer = {:.2f}, hbm gbps x {:.2f}, {} gbps x "
      "{:.2f}; steps then off by {} (median), {} (p95)",
      c.control_per_layer * 1e6, c.hbm_scale,
      c.platform.links[c.platform.link(c.platform.home, kHbm)].name, c.link_scale,
      percent(o.calibrated_steps.median), percent(o.calibrated_steps.p95));
}

}  // namespace

Status write_calibrated(const std::string& path, const std::string& name,
                        const DecodeOutcome& outcome) {
  LEHR_ASSIGN(config::Profile profile, config::read_profile(name));
  const Seconds launches = profile.platform.control_per_layer;
  profile.platform = outcome.calibration.platform;
  profile.platform.control_per_layer = launches;
  profile.gpu.kernels_per_layer = outcome.calibration.control_per_layer;
  profile.platform.name += "-calibrated";
  const std::string text = config::write_profile(profile);
  LEHR_ASSIGN(auto file, formats::AtomicFile::create(path));
  LEHR_TRY(file.write(std::as_bytes(std::span(text))));
  return file.commit();
}

void print_decode(const DecodeOutcome& o, const runtime::ReplayOptions& options) {
  const auto line = [](const char* what, const std::string& value) {
    fmt::print("  {:<26}{}\n", what, value);
  };
  const Terms t = predicted_terms(o, options);
  const Exposure e = measured_exposure(o);
  line("measured step p50, p99",
       human_seconds(o.p50()) + ", " + human_seconds(o.p99()) + " on " + o.log->device);
  line("predicted a step",
       fmt::format("{} = HBM {}, to HBM {}, to home {}, control {}, stall {}; exposed {}",
                   human_seconds(t.total), human_seconds(t.hbm), human_seconds(t.up),
                   human_seconds(t.down), human_seconds(t.control), human_seconds(t.stall),
                   human_seconds(t.exposed)));
  line("measured transfers",
       fmt::format("exposed {} (read in place {}, installs {}, promotions {}, write-backs {}), "
                   "hidden {}; movers ran {} a step",
                   human_seconds(e.exposed), human_seconds(e.in_place), human_seconds(e.installs),
                   human_seconds(e.promotions), human_seconds(e.writes), human_seconds(e.hidden),
                   human_seconds(e.movers)));
  for (const auto& [what, value] : below_lines(o.below)) line(what, value);
  for (const auto& [what, value] : loop_lines(o)) line(what, value);
  std::string kernels;
  for (const auto& [name, us] : kernel_times(o)) kernels += fmt::format("{} {:.1f}, ", name, us);
  if (!kernels.empty()) line("kernels of a layer, us", kernels + "each with its stamp");
  if (o.log->repeated.total > 0) {
    line("last step, back to back",
         fmt::format("{}, GPU idle between {}", human_seconds(o.log->repeated.total),
                     human_seconds(o.log->repeated.idle)));
  }
  line("error of layers", fmt::format("{} (median), {} (p95) of {}", percent(o.layers.median),
                                      percent(o.layers.p95), o.layers.count));
  fmt::print("  {}\n", trust_line(o));
  if (!runtime::trusted(o.steps)) fmt::print("  {}\n", calibration_line(o));
}

ordered_json decode_figures(const DecodeOutcome& o, const runtime::ReplayOptions& options) {
  const Terms t = predicted_terms(o, options);
  const Exposure e = measured_exposure(o);
  ordered_json out;
  out["device"] = o.log->device;
  out["measured_step_p50_ms"] = o.p50() * 1e3;
  out["measured_step_p99_ms"] = o.p99() * 1e3;
  out["predicted_ms_per_step"] = {{"total", t.total * 1e3},     {"hbm", t.hbm * 1e3},
                                  {"to_hbm", t.up * 1e3},       {"to_home", t.down * 1e3},
                                  {"control", t.control * 1e3}, {"stall", t.stall * 1e3},
                                  {"exposed", t.exposed * 1e3}};
  out["measured_exposed_ms_per_step"] = {{"all", e.exposed * 1e3},
                                         {"read_in_place", e.in_place * 1e3},
                                         {"installs", e.installs * 1e3},
                                         {"promotions", e.promotions * 1e3},
                                         {"write_backs", e.writes * 1e3}};
  out["measured_hidden_ms_per_step"] = e.hidden * 1e3;
  out["movers_ms_per_step"] = e.movers * 1e3;
  out["host_ms_per_step"] = o.host * 1e3;
  out["listing_ms_per_step"] = o.listing * 1e3;
  out["launch_us"] = o.launch * 1e6;
  out["idle_us"] = o.idle * 1e6;
  const double n = std::max<double>(1, static_cast<double>(o.measured.size()));
  out["wall_ms_per_step"] = o.loop.wall / n * 1e3;
  out["gpu_waited_ms_per_step"] = o.loop.waited / n * 1e3;
  out["tokens_per_second"] = {{"wall_clock", o.loop.per_second()},
                              {"gpu_time", o.loop.per_gpu_second()}};
  if (!o.below.name.empty()) out["below"] = below_json(o.below);
  out["step_error"] = {{"median", o.steps.median}, {"p95", o.steps.p95}};
  out["layer_error"] = {{"median", o.layers.median}, {"p95", o.layers.p95}};
  out["trusted"] = runtime::trusted(o.steps);
  out["calibration"] = {{"control_us_per_layer", o.calibration.control_per_layer * 1e6},
                        {"hbm_scale", o.calibration.hbm_scale},
                        {"link_scale", o.calibration.link_scale},
                        {"step_error_median", o.calibrated_steps.median},
                        {"step_error_p95", o.calibrated_steps.p95}};
  out["back_to_back"] = {{"step_ms", o.log->repeated.total * 1e3},
                         {"idle_us", o.log->repeated.idle * 1e6}};
  out["slots_checked"] = o.log->pages_checked;
  out["captures"] = o.log->captures;
  out["digest"] = fmt::format("{:016x}", o.digest);
  for (const auto& [name, us] : kernel_times(o)) out["kernel_us"][name] = us;
  ordered_json steps = ordered_json::array();
  for (std::size_t i = 0; i < o.measured.size(); ++i)
    steps.push_back({{"predicted_ms", o.predicted[i] * 1e3}, {"measured_ms", o.measured[i] * 1e3}});
  out["steps"] = std::move(steps);
  return out;
}

namespace {

enum Track : std::uint32_t { kSteps = 1, kLayers, kKernels, kWeights, kMovers, kPredicted, kWaits };
constexpr std::uint32_t kGpu = 1, kHost = 2;

void add_layer(runtime::TimelineFile& file, const StepRecord& step, std::size_t l, double at,
               std::uint64_t zero) {
  const kernels::LayerStamps& s = step.times.layers[l];
  const LayerRecord& r = step.layers[l];
  const auto seconds = [&](std::uint64_t ns) {
    return ns > zero ? static_cast<double>(ns - zero) * 1e-9 : 0.0;
  };
  const double begin = seconds(s.begin);
  const double took = seconds(step.times.layers[l + 1].begin) - begin;
  const std::string counts = fmt::format(
      R"("over_link": {}, "installed": {}, "arrived": {}, "written_back": {}, "predicted_us": {:.2f})",
      r.over_link, r.installed, r.arrived, r.written, r.predicted.total() * 1e6);
  file.slice(kGpu, kLayers, fmt::format("layer {}", l), begin, took, counts);
  file.slice(kGpu, kPredicted, fmt::format("layer {} predicted", l), at, r.predicted.total(),
             fmt::format(R"("hbm_us": {:.2f}, "links_us": {:.2f})",
                         r.predicted.under_compute() * 1e6, r.predicted.links * 1e6));
  if (s.weights_end > s.begin)
    file.slice(kGpu, kWeights, "weights", begin, seconds(s.weights_end) - begin);
  if (move_seconds(s) > 0)
    file.slice(kGpu, kMovers, "copies", seconds(s.move_begin), move_seconds(s), counts);
  file.counter(kGpu, "pages read over the link", begin, r.over_link);
}

/// Of the last step, where they were traced.
void add_kernels(runtime::TimelineFile& file, const DecodeOutcome& o, std::uint64_t zero) {
  using runtime::cuda::kLaunchKinds;
  const auto& stamps = o.log->kernel_stamps;
  for (std::size_t l = 0; l < stamps.size() / kLaunchKinds; ++l) {
    std::uint64_t before = o.log->steps.back().times.layers[l].begin;
    for (std::size_t k = 0; k < kLaunchKinds; ++k) {
      const std::uint64_t at = stamps[l * kLaunchKinds + k];
      if (at == 0) continue;
      file.slice(kGpu, kKernels, runtime::cuda::name(static_cast<runtime::cuda::LaunchKind>(k)),
                 static_cast<double>(before - zero) * 1e-9,
                 static_cast<double>(at - before) * 1e-9);
      before = at;
    }
  }
}

}  // namespace

Status write_timeline(const std::string& path, const DecodeOutcome& o,
                      const placement::Platform& platform) {
  runtime::TimelineFile file;
  file.name_process(kGpu, o.log->device);
  file.name_track(kGpu, kSteps, "steps");
  file.name_track(kGpu, kLayers, "layers");
  file.name_track(kGpu, kKernels, "kernels (last step, if traced)");
  file.name_track(kGpu, kWeights, "weights' reader");
  file.name_track(kGpu, kMovers,
                  fmt::format("movers: {} and hbm", platform.tiers[platform.home].name));
  file.name_track(kGpu, kPredicted, "predicted");
  file.name_process(kHost, "host (aligned at each launch)");
  file.name_track(kHost, kSteps, "deciding and listing");
  if (!o.below.name.empty()) file.name_track(kHost, kWaits, "waiting for " + o.below.name);
  const auto& steps = o.log->steps;
  const std::uint64_t zero = steps.empty() ? 0 : steps.front().times.layers.front().begin;
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const StepRecord& step = steps[s];
    const double begin = static_cast<double>(step.times.layers.front().begin - zero) * 1e-9;
    file.slice(kGpu, kSteps, fmt::format("step {}", s), begin, step.times.total,
               fmt::format(R"("idle_before_us": {:.1f})", step.times.idle * 1e6));
    file.slice(kHost, kSteps, fmt::format("step {}", s), begin - step.host - step.below.waited,
               step.host, fmt::format(R"("launch_us": {:.1f})", step.times.launch * 1e6));
    if (step.below.waited > 0) {
      file.slice(
          kHost, kWaits, "wait", begin - step.below.waited, step.below.waited,
          fmt::format(R"("pages_up": {}, "pages_down": {})", step.below.staged, step.below.sunk));
    }
    double at = begin;
    for (std::size_t l = 0; l < step.layers.size(); ++l) {
      add_layer(file, step, l, at, zero);
      at += step.layers[l].predicted.total();
    }
  }
  add_kernels(file, o, zero);
  return file.write(path);
}

}  // namespace lehr::tools
