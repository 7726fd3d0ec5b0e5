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

/// Pages have one home and no place below: HBM and home hold what there is, no more.
void fit_to_pages(runtime::ReplayOptions& options, std::uint64_t total_pages) {
  runtime::RuntimeOptions& r = options.runtime;
  for (std::size_t t = 0; t < r.tier_pages.size(); ++t) {
    const bool used = t == kHbm || t == r.platform.home;
    r.tier_pages[t] = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(r.tier_pages[t], used ? total_pages : 0));
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

void compare(DecodeOutcome& out, const runtime::ReplayOptions& options) {
  const DecodeLog& log = *out.log;
  const std::uint32_t warmup = log.steps.size() > options.warmup_steps ? options.warmup_steps : 0;
  std::vector<Seconds> layer_predicted, layer_measured;
  for (std::size_t s = warmup; s < log.steps.size(); ++s) {
    Seconds sum = 0;
    for (std::size_t l = 0; l < log.steps[s].layers.size(); ++l) {
      const LayerRecord& r = log.steps[s].layers[l];
      out.measured_layers.push_back({r.load, r.predicted.total(), layer_seconds(log.steps[s], l)});
      layer_predicted.push_back(out.measured_layers.back().predicted);
      layer_measured.push_back(out.measured_layers.back().measured);
      sum += layer_predicted.back();
    }
    out.predicted.push_back(sum);
    out.measured.push_back(log.steps[s].times.total);
    out.digest = out.digest * 0x9E3779B97F4A7C15ULL + log.steps[s].times.digest;
  }
  out.steps = runtime::relative_errors(out.predicted, out.measured);
  out.layers = runtime::relative_errors(layer_predicted, layer_measured);
  out.calibration = runtime::calibrate(options.runtime.platform, out.measured_layers);
  out.calibrated_steps =
      runtime::relative_errors(predicted_by(out, out.calibration.platform), out.measured);
  out.host = median_of(log, warmup, [](const StepRecord& s) { return s.host + s.times.copy; });
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
  machine.log = out.log;
  LEHR_ASSIGN(auto made, runtime::make_cuda_machine(machine));
  // Scores read every page's box: HBM bytes beside KV, like weights.
  options.runtime.weights_bytes += runtime::box_bytes(prepared.geometry, prepared.total_pages);
  LEHR_ASSIGN(out.result, runtime::replay(prepared.workload, options, std::move(made), progress));
  out.result.measured_seconds.clear();
  for (const StepRecord& s : out.log->steps) out.result.measured_seconds.push_back(s.times.total);
  compare(out, options);
  return out;
}

}  // namespace lehr::tools
