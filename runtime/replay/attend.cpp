// SPDX-License-Identifier: Apache-2.0
#include "runtime/replay/attend.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "kernels/base/half.hpp"
#include "runtime/replay/api_calls.hpp"
#include "runtime/replay/lowered_masses.hpp"
#include "runtime/replay/target.hpp"

namespace lehr::runtime {

namespace {

/// A tensor of the C interface over memory of ours.
struct View {
  std::array<std::int64_t, 4> shape;
  std::array<std::int64_t, 4> stride;
  lehr_tensor tensor{};

  View(const void* data, std::uint8_t bits, std::array<std::int64_t, 4> of,
       std::array<std::int64_t, 4> steps)
      : shape(of), stride(steps) {
    tensor.struct_size = sizeof tensor;
    tensor.device_type = 1;
    tensor.data = const_cast<void*>(data);
    tensor.ndim = 4;
    tensor.dtype_code = 2;
    tensor.dtype_bits = bits;
    tensor.dtype_lanes = 1;
    tensor.shape = shape.data();
    tensor.strides = stride.data();
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
};

class Attending {
 public:
  Attending(const formats::AttentionTrace& trace, lehr_runtime runtime)
      : parts_(trace.parts()),
        g_(trace.geometry()),
        tokens_(std::uint64_t{trace.meta().prompt_tokens} + trace.meta().steps),
        prompt_(trace.meta().prompt_tokens),
        runtime_(runtime) {}
  ~Attending() { lehr_close(runtime_); }
  Attending(const Attending&) = delete;
  Attending& operator=(const Attending&) = delete;

  Status begin() {
    lehr_sequence_desc desc{};
    desc.struct_size = sizeof desc;
    LEHR_TRY(said(lehr_sequence_create(runtime_, &desc, 1, &sequence_)));
    LEHR_TRY(said(lehr_step_begin_tokens(runtime_, &sequence_, &prompt_, 1, nullptr)));
    for (std::uint32_t l = 0; l < g_.layers; ++l) LEHR_TRY(append(l, 0, prompt_));
    return said(lehr_step_end(runtime_, nullptr));
  }

  Result<StepReport> step(std::uint32_t t, std::vector<double>& errors) {
    const std::uint32_t one = 1;
    LEHR_TRY(said(lehr_step_begin_tokens(runtime_, &sequence_, &one, 1, nullptr)));
    const std::uint64_t at = std::uint64_t{prompt_} + t;
    const std::int64_t dim = g_.head_dim;
    std::vector<float> q(std::size_t{g_.q_heads} * g_.head_dim);
    std::vector<float> out(q.size());
    for (std::uint32_t l = 0; l < g_.layers; ++l) {
      LEHR_TRY(append(l, at, 1));
      const std::size_t row = (std::size_t{t} * g_.layers + l) * g_.q_heads * g_.head_dim;
      for (std::size_t i = 0; i < q.size(); ++i) q[i] = from_f16(parts_.q[row + i]);
      const View from(q.data(), 32, {1, g_.q_heads, 1, dim}, {g_.q_heads * dim, dim, dim, 1});
      const View to(out.data(), 32, {1, g_.q_heads, 1, dim}, {g_.q_heads * dim, dim, dim, 1});
      lehr_attend_request request{};
      request.struct_size = sizeof request;
      request.layer = l;
      request.q = &from.tensor;
      request.out = &to.tensor;
      LEHR_TRY(said(lehr_step_attend(runtime_, &request)));
      for (std::uint32_t h = 0; h < g_.q_heads; ++h)
        errors.push_back(error_of(out.data() + std::size_t{h} * g_.head_dim,
                                  q.data() + std::size_t{h} * g_.head_dim, l, h, at + 1));
    }
    lehr_step_report report{};
    report.struct_size = sizeof report;
    LEHR_TRY(said(lehr_step_end(runtime_, &report)));
    return from_c(report);
  }

 private:
  const std::uint16_t* row(std::span<const std::uint16_t> of, std::uint32_t l, std::uint32_t head,
                           std::uint64_t token) const {
    return of.data() +
           ((std::size_t{l} * g_.kv_heads + head) * tokens_ + token) * std::size_t{g_.head_dim};
  }

  Status append(std::uint32_t l, std::uint64_t first, std::int64_t count) {
    const auto dim = static_cast<std::int64_t>(g_.head_dim);
    const auto head = static_cast<std::int64_t>(tokens_) * dim;
    const std::array<std::int64_t, 4> shape{1, g_.kv_heads, count, dim};
    const std::array<std::int64_t, 4> stride{head * g_.kv_heads, head, dim, 1};
    const View k(row(parts_.k, l, 0, first), 16, shape, stride);
    const View v(row(parts_.v, l, 0, first), 16, shape, stride);
    return said(lehr_step_append(runtime_, l, &k.tensor, &v.tensor));
  }

  /// Against float64 over all tokens of the context, as they were recorded.
  double error_of(const float* out, const float* q, std::uint32_t l, std::uint32_t h,
                  std::uint64_t context) {
    const std::uint32_t head = h / (g_.q_heads / g_.kv_heads);
    const double scale = 1 / std::sqrt(static_cast<double>(g_.head_dim));
    weight_.resize(context);
    double most = -HUGE_VAL;
    for (std::uint64_t t = 0; t < context; ++t) {
      const std::uint16_t* const k = row(parts_.k, l, head, t);
      double dot = 0;
      for (std::uint32_t c = 0; c < g_.head_dim; ++c)
        dot += static_cast<double>(q[c]) * static_cast<double>(from_f16(k[c]));
      weight_[t] = dot * scale;
      most = std::max(most, weight_[t]);
    }
    double sum = 0;
    right_.assign(g_.head_dim, 0);
    for (std::uint64_t t = 0; t < context; ++t) {
      const double w = std::exp(weight_[t] - most);
      sum += w;
      const std::uint16_t* const v = row(parts_.v, l, head, t);
      for (std::uint32_t c = 0; c < g_.head_dim; ++c)
        right_[c] += w * static_cast<double>(from_f16(v[c]));
    }
    double length = 0;
    double distance = 0;
    for (std::uint32_t c = 0; c < g_.head_dim; ++c) {
      const double right = right_[c] / sum;
      const double off = static_cast<double>(out[c]) - right;
      length += right * right;
      distance += off * off;
    }
    return length > 0 ? std::sqrt(distance / length) : std::sqrt(distance);
  }

  const formats::AttentionParts& parts_;
  KvGeometry g_;
  std::uint64_t tokens_;
  std::uint32_t prompt_;
  lehr_runtime runtime_;
  lehr_sequence sequence_{};
  std::vector<double> weight_;
  std::vector<double> right_;
};

}  // namespace

Result<AttendResult> attend_through_api(const formats::AttentionTrace& trace,
                                        const ReplayOptions& options, const ApiOptions& api,
                                        const Progress& progress) {
  const KvGeometry g = trace.geometry();
  const formats::AttentionParts& parts = trace.parts();
  if (parts.q.empty() || parts.k.empty() || parts.v.empty())
    return invalid("the trace has no queries, K and V: there is nothing to attend to");
  LEHR_ASSIGN(const auto* policy, placement::find_policy(options.runtime.policy));
  if (policy->traits.needs_future || policy->traits.needs_instance) {
    return invalid("policy " + options.runtime.policy +
                   " knows the replay in advance, which nobody does where attention runs");
  }
  RuntimeOptions own = options.runtime;
  if (own.page_bytes != 0 && own.page_bytes != g.page_bytes())
    return invalid("attention needs pages of the recorded shape");
  own.page_bytes = 0;
  ApiOptions with = api;
  with.contents = true;
  const std::string config = configuration(own, g, with);
  lehr_open_options open{};
  open.struct_size = sizeof open;
  open.config = config.c_str();
  open.config_size = config.size();
  lehr_runtime runtime{};
  LEHR_TRY(said(lehr_open(LEHR_VERSION, &open, &runtime)));
  Attending attending(trace, runtime);
  AttendResult out;
  ReplayResult& result = out.replay;
  result.policy = own.policy;
  result.steps = trace.steps();
  if (options.max_steps != 0) result.steps = std::min(result.steps, options.max_steps);
  const auto began = std::chrono::steady_clock::now();
  LEHR_TRY(attending.begin());
  LoweredMasses masses(own.heat_half_life);
  if (own.precision) result.lowering.emplace();
  for (std::uint32_t t = 0; t < result.steps; ++t) {
    if (progress) progress(static_cast<double>(t) / result.steps);
    LEHR_ASSIGN(const StepReport report, attending.step(t, out.errors));
    result.all.add(report);
    ++result.tokens;
    result.step_seconds.push_back(report.total);
    if (report.measured > 0) result.measured_seconds.push_back(report.measured);
    if (result.lowering) masses.note(report, *result.lowering);
    if (t < options.warmup_steps) continue;
    result.warm.add(report);
    ++result.warm_tokens;
    ++result.warm_steps;
  }
  result.wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  result.notes = notes_of(runtime);
  LEHR_TRY(note_lowering(own, g, result));
  note_policy(own, g.layers, *policy, result);
  return out;
}

}  // namespace lehr::runtime
