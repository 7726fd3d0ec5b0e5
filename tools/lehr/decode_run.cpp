// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/decode_run.hpp"

#include <algorithm>
#include <numeric>

#include "tools/lehr/report.hpp"

namespace lehr::tools {

using runtime::cuda::DecodeLog;
using runtime::cuda::LayerRecord;
using runtime::cuda::StepRecord;

double DecodeOutcome::p50() const { return percentile(measured, 0.5); }
double DecodeOutcome::p99() const { return percentile(measured, 0.99); }

namespace {

Seconds layer_seconds(const StepRecord& step, std::size_t layer) {
  const auto& stamps = step.times.layers;
  return static_cast<double>(stamps[layer + 1].begin - stamps[layer].begin) * 1e-9;
}

/// HBM and home hold what there is, no more; what home cannot hold lies in a file below host
/// memory.
void fit_to_pages(runtime::ReplayOptions& options, std::uint64_t total_pages) {
  runtime::RuntimeOptions& r = options.runtime;
  const placement::Platform& p = r.platform;
  std::uint64_t left = total_pages - std::min<std::uint64_t>(total_pages, r.tier_pages[p.home]);
  if (p.tiers[p.home].name == "peer") left = 0;  // a GPU's memory: no file comes there
  for (std::size_t t = 0; t < r.tier_pages.size(); ++t) {
    const bool above = t == kHbm || t == p.home;
    const bool file = t > p.home && !p.tiers[t].directly_readable && left > 0;
    r.tier_pages[t] = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(r.tier_pages[t], above || file ? total_pages : 0));
    if (file && r.tier_pages[t] > 0) left = 0;
  }
}

std::uint32_t words(std::size_t halves) { return static_cast<std::uint32_t>(halves / 2); }

/// The trace's own K, V and queries, if it has them, is alone, and keeps its shape.
kernels::PageSource recorded_contents(const Prepared& prepared) {
  kernels::PageSource r;
  const auto& trace = *prepared.traces.front();
  const auto& parts = trace.parts();
  const KvGeometry own = trace.geometry();
  const KvGeometry& seen = prepared.geometry;
  const bool kept = own.head_dim == seen.head_dim && own.q_heads == seen.q_heads;
  if (prepared.traces.size() != 1 || !kept || parts.q.empty() || parts.k.empty() ||
      parts.v.empty()) {
    return r;
  }
  // Two fp16 numbers a word; tensors of a trace are aligned for that (safetensors: 8 bytes).
  r.k = reinterpret_cast<const std::uint32_t*>(parts.k.data());
  r.v = reinterpret_cast<const std::uint32_t*>(parts.v.data());
  r.q = reinterpret_cast<const std::uint32_t*>(parts.q.data());
  r.layers = trace.layers();
  r.kv_heads = trace.kv_heads();
  r.q_heads = own.q_heads;
  r.pairs = words(own.head_dim);
  r.page_tokens = own.page_tokens;
  r.pages = trace.pages();
  r.prompt = trace.meta().prompt_tokens;
  r.tokens = r.prompt + trace.meta().steps;
  return r;
}

Seconds median_of(const DecodeLog& log, std::uint32_t warmup, Seconds (*get)(const StepRecord&)) {
  std::vector<double> values;
  for (std::size_t s = warmup; s < log.steps.size(); ++s) values.push_back(get(log.steps[s]));
  return percentile(std::move(values), 0.5);
}

/// What the GPU itself is given to do: the file's transfers run beside it or before it.
placement::LayerLoad without_below(placement::LayerLoad load, const placement::Platform& platform,
                                   TierId below) {
  if (below == 0) return load;
  load.stall = {};
  for (std::size_t i = 0; i < platform.links.size(); ++i) {
    if (platform.links[i].from == below || platform.links[i].to == below) load.link[i] = {};
  }
  return load;
}

void add_below(BelowFigures& b, const StepRecord& step, const placement::Platform& platform,
               TierId below) {
  const LinkId up = platform.link(below, platform.home), down = platform.link(platform.home, below);
  for (const LayerRecord& l : step.layers) {
    b.predicted_stall += l.predicted.stall;
    b.predicted_reads += l.predicted.stall + l.predicted.link[up];
    b.predicted_writes += l.predicted.link[down];
    b.predicted_step += l.predicted.total();
  }
  const Seconds exposed = std::min(step.below.waited, step.times.idle);
  b.staged += static_cast<double>(step.below.staged);
  b.sunk += static_cast<double>(step.below.sunk);
  b.reading += step.below.reading;
  b.writing += step.below.writing;
  b.waited += step.below.waited;
  b.exposed += exposed;
  b.measured_step += step.times.total + exposed;
}

BelowFigures below_figures(const DecodeLog& log, std::uint32_t warmup,
                           const placement::Platform& platform, TierId below) {
  BelowFigures b;
  if (below == 0 || log.steps.size() <= warmup) return b;
  b.name = platform.tiers[below].name;
  for (std::size_t s = warmup; s < log.steps.size(); ++s)
    add_below(b, log.steps[s], platform, below);
  const double n = static_cast<double>(log.steps.size() - warmup);
  for (double* x :
       {&b.staged, &b.sunk, &b.predicted_stall, &b.predicted_reads, &b.predicted_writes, &b.reading,
        &b.writing, &b.waited, &b.exposed, &b.predicted_step, &b.measured_step})
    *x /= n;
  for (const StepRecord& s : log.steps) b.in_parts += s.parts > 1 ? 1 : 0;
  return b;
}

LoopFigures loop_figures(const DecodeLog& log, std::uint32_t warmup) {
  LoopFigures loop;
  if (log.steps.size() <= warmup) return loop;
  for (std::size_t s = warmup; s < log.steps.size(); ++s) {
    loop.tokens += log.steps[s].sequences;
    loop.gpu += log.steps[s].times.total;
    loop.waited += log.steps[s].times.idle;
  }
  loop.wall = log.drained - log.steps[warmup].began;
  return loop;
}

void compare(DecodeOutcome& out, const runtime::ReplayOptions& options, TierId below) {
  const DecodeLog& log = *out.log;
  const placement::Platform& platform = options.runtime.platform;
  const std::uint32_t warmup = log.steps.size() > options.warmup_steps ? options.warmup_steps : 0;
  std::vector<Seconds> layer_predicted, layer_measured;
  for (std::size_t s = warmup; s < log.steps.size(); ++s) {
    Seconds sum = 0;
    for (std::size_t l = 0; l < log.steps[s].layers.size(); ++l) {
      const LayerRecord& r = log.steps[s].layers[l];
      const placement::LayerLoad load = without_below(r.load, platform, below);
      const Seconds predicted =
          below == 0 ? r.predicted.total() : placement::layer_time(platform, load).total();
      out.measured_layers.push_back({load, predicted, layer_seconds(log.steps[s], l)});
      layer_predicted.push_back(predicted);
      layer_measured.push_back(out.measured_layers.back().measured);
      sum += predicted;
    }
    out.predicted.push_back(sum);
    out.measured.push_back(log.steps[s].times.total);
    out.digest = out.digest * 0x9E3779B97F4A7C15ULL + log.steps[s].times.digest;
  }
  out.steps = runtime::relative_errors(out.predicted, out.measured);
  out.layers = runtime::relative_errors(layer_predicted, layer_measured);
  out.calibration = runtime::calibrate(platform, out.measured_layers);
  out.calibrated_steps =
      runtime::relative_errors(predicted_by(out, out.calibration.platform), out.measured);
  out.below = below_figures(log, warmup, platform, below);
  out.loop = loop_figures(log, warmup);
  out.host = median_of(log, warmup, [](const StepRecord& s) { return s.host + s.times.copy; });
  out.listing = median_of(log, warmup, [](const StepRecord& s) { return s.listing; });
  out.launch = median_of(log, warmup, [](const StepRecord& s) { return s.times.launch; });
  out.idle = median_of(log, warmup, [](const StepRecord& s) { return s.times.idle; });
}

}  // namespace

Seconds mean(const std::vector<Seconds>& values) {
  return values.empty() ? 0
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

std::vector<Seconds> predicted_by(const DecodeOutcome& outcome,
                                  const placement::Platform& platform) {
  std::vector<Seconds> steps(outcome.measured.size(), 0.0);
  for (std::size_t i = 0; i < outcome.measured_layers.size(); ++i) {
    steps[i * steps.size() / outcome.measured_layers.size()] +=
        placement::layer_time(platform, outcome.measured_layers[i].load).total();
  }
  return steps;
}

Result<DecodeOutcome> decode(const Prepared& prepared, runtime::ReplayOptions options,
                             const DecodeOptions& how, const runtime::Progress& progress) {
  if (prepared.page_bytes != prepared.geometry.page_bytes()) {
    return unsupported(
        "machine cuda: pages have the bytes of their shape; impose a --shape, not "
        "--page-bytes");
  }
  fit_to_pages(options, prepared.total_pages);
  // It is this project's own kernels that run.
  if (prepared.kernels_per_layer > 0)
    options.runtime.platform.control_per_layer = prepared.kernels_per_layer;
  DecodeOutcome out;
  out.log = std::make_shared<DecodeLog>();
  runtime::CudaMachineOptions machine;
  machine.platform = options.runtime.platform;
  machine.tier_pages = options.runtime.tier_pages;
  machine.geometry = prepared.geometry;
  machine.weights_bytes = options.runtime.weights_bytes;
  machine.sequences = prepared.workload.peak_sequences();
  for (const auto& trace : prepared.traces) machine.pages = std::max(machine.pages, trace->pages());
  machine.device = how.gpu;
  machine.donor = how.donor;
  machine.check_reads = how.check_reads;
  machine.tiering = how.tiering;
  machine.trace_kernels = how.trace_kernels;
  machine.recorded = recorded_contents(prepared);
  machine.below.directory = how.nvme_directory;
  machine.below.spare_pages = how.spare_pages;
  if (!how.faults.empty()) {
    LEHR_ASSIGN(machine.below.faults, transfer::FaultPlan::parse(how.faults));
  }
  const TierId below = machine.below_home();
  machine.log = out.log;
  LEHR_ASSIGN(auto made, runtime::make_cuda_machine(machine));
  // Scores read every page's box: HBM bytes beside KV, like weights.
  options.runtime.weights_bytes += runtime::box_bytes(prepared.geometry, prepared.total_pages);
  LEHR_ASSIGN(out.result, runtime::replay(prepared.workload, options, std::move(made), progress));
  out.result.measured_seconds.clear();
  for (const StepRecord& s : out.log->steps) out.result.measured_seconds.push_back(s.times.total);
  compare(out, options, below);
  return out;
}

}  // namespace lehr::tools
