// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/replay_options.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include "runtime/config/profile.hpp"
#include "runtime/config/quantity.hpp"
#include "runtime/predictor_weights.hpp"
#include "tools/lehr/report.hpp"
#include "tools/lehr/shapes.hpp"
#include "tools/lehr/trace_kind.hpp"

namespace lehr::tools {

namespace {

/// No smaller than any footprint, and safe to add to: what "unlimited" means for a tier.
constexpr std::uint32_t kUnlimitedPages = std::numeric_limits<std::uint32_t>::max() / 4;

constexpr std::uint64_t kLargestSeed = std::numeric_limits<std::int64_t>::max();
constexpr double kMostWeightsGb = 1e6;
constexpr std::uint32_t kMostSequences = 4096;
/// A month of decoding at a step in a few seconds; more is a slip of the pen.
constexpr std::uint64_t kMostSteps = 1U << 20;

Result<std::uint32_t> tier_pages(const std::string& text, Bytes fallback_bytes,
                                 std::uint64_t total_pages, Bytes page_bytes, const char* option) {
  if (text.empty()) {
    const Bytes pages = fallback_bytes / page_bytes;
    return static_cast<std::uint32_t>(std::min<Bytes>(pages, kUnlimitedPages));
  }
  auto capacity = config::parse_capacity(text);
  if (!capacity) return invalid(fmt::format("{} {}: {}", option, text, capacity.error().what));
  auto bytes = capacity->resolve(total_pages * page_bytes, page_bytes);
  if (!bytes) return invalid(fmt::format("{} {}: {}", option, text, bytes.error().what));
  return static_cast<std::uint32_t>(std::min<Bytes>(*bytes / page_bytes, kUnlimitedPages));
}

/// A request trace is called by its name, not a damaged attention trace.
Result<formats::AttentionTrace> open_attention(const std::string& file) {
  auto trace = formats::AttentionTrace::open(file);
  if (trace || trace.error().code == Code::kIo) return trace;
  const auto contents = formats::FileContents::open(file, formats::kDefaultTraceLimit);
  if (contents && !is_attention_trace(contents->bytes(), file))
    return invalid(file + ": is a request trace, expected an attention trace");
  return trace;
}

/// `count` sequences, traces in turn, each `stagger` steps after the one before.
Status arrange(const ReplayArguments& arguments, std::uint32_t count, Prepared& prepared) {
  if (count > kMostSequences) {
    return invalid(fmt::format("--sequences {}: expected at most {}", count, kMostSequences));
  }
  if (count < prepared.traces.size()) {
    return invalid(fmt::format("--sequences {}: {} traces are given, expected at least one each",
                               count, prepared.traces.size()));
  }
  const auto longest =
      std::max_element(prepared.traces.begin(), prepared.traces.end(),
                       [](const auto& a, const auto& b) { return a->steps() < b->steps(); });
  const std::uint64_t steps = std::uint64_t{count - 1} * arguments.stagger + (*longest)->steps();
  if (steps > kMostSteps) {
    return invalid(
        fmt::format("--stagger {}: {} sequences would take {} steps, expected at most {}",
                    arguments.stagger, count, steps, kMostSteps));
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    prepared.workload.sequences.push_back(
        {prepared.selections[i % prepared.selections.size()].get(), i * arguments.stagger});
  }
  LEHR_TRY(prepared.workload.validate());
  if (count > prepared.traces.size()) {
    prepared.notices.push_back(
        fmt::format("{} sequences from {} recorded ones", count, prepared.traces.size()));
  }
  return {};
}

/// What a file says wrongly is not the command line's fault.
Error of_a_file(Error error) {
  if (error.code == Code::kInvalid) error.code = Code::kCorrupt;
  return error;
}

Status impose_shape(const ReplayArguments& arguments, Prepared& prepared, KvGeometry& geometry) {
  if (!arguments.shape.empty()) {
    const ModelShape* shape = nullptr;
    std::string known;
    for (const ModelShape& s : model_shapes()) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", s.name);
      if (s.name == arguments.shape) shape = &s;
    }
    if (shape == nullptr)
      return invalid(fmt::format("--shape {}: known are {}", arguments.shape, known));
    geometry.head_dim = shape->head_dim;
    geometry.element_bytes = shape->element_bytes;
    geometry.q_heads = geometry.kv_heads * shape->query_heads_per_group;
    prepared.page_bytes = geometry.page_bytes();
    prepared.notices.push_back(fmt::format(
        "shape of {} imposed: {} bytes a page; layers, heads and selection are the trace's",
        shape->name, prepared.page_bytes));
  }
  if (!arguments.page_bytes.empty()) {
    auto bytes = config::parse_bytes(arguments.page_bytes);
    if (!bytes) return invalid("--page-bytes " + arguments.page_bytes + ": " + bytes.error().what);
    if (*bytes < geometry.page_tokens || *bytes > kGiB) {
      return invalid(fmt::format("--page-bytes {}: expected {} to 1 GiB", arguments.page_bytes,
                                 geometry.page_tokens));
    }
    prepared.page_bytes = *bytes;
    prepared.notices.push_back(
        fmt::format("{} bytes a page imposed (recorded shape: {})", *bytes, geometry.page_bytes()));
  }
  if (prepared.page_bytes == 0) prepared.page_bytes = geometry.page_bytes();
  return {};
}

/// The platform and what the tiers below HBM hold.
Status set_platform(const ReplayArguments& arguments, config::Profile given, Prepared& prepared) {
  runtime::RuntimeOptions& options = prepared.base.runtime;
  prepared.kernels_per_layer = given.gpu.kernels_per_layer;
  options.platform = std::move(given.platform);
  const placement::Platform& platform = options.platform;
  options.tier_pages.assign(platform.tiers.size(), 0);
  for (std::size_t t = 1; t < platform.tiers.size(); ++t) {
    const std::string& size = t == platform.home                 ? arguments.host
                              : platform.tiers[t].name == "nvme" ? arguments.nvme
                                                                 : std::string();
    LEHR_ASSIGN(options.tier_pages[t],
                tier_pages(size, platform.tiers[t].capacity, prepared.total_pages,
                           prepared.page_bytes, t == platform.home ? "--host" : "--nvme"));
  }
  return {};
}

}  // namespace

void ReplayArguments::add_to(CLI::App& command) {
  command.add_option("traces", traces, "Attention traces (*.safetensors or *.safetensors.zst)")
      ->required();
  command.add_option("--profile", profile, "Platform profile: a shipped name or a TOML file");
  command
      .add_option(
          "--hbm", hbm,
          "HBM for KV: share of all pages (25%), bytes (24GB) or pages (2000 pages); a list sweeps")
      ->delimiter(',');
  command.add_option("--host", host,
                     "Host memory for KV, in the same forms (default: the profile's)");
  command.add_option("--nvme", nvme, "NVMe for KV, in the same forms (default: the profile's)");
  command.add_option("--select", select,
                     "Pages a step reads: all, topk:RATIO, count:N or mass:SHARE");
  command.add_option("--sinks", sinks, "First pages that are always read");
  command.add_option("--recent", recent, "Last pages that are always read");
  command.add_option("--sequences", sequences,
                     "Sequences in the batch; traces are used in turn (default: one a trace)");
  command.add_option("--stagger", stagger, "Steps between the starts of sequences");
  command.add_option("--warmup", warmup, "Steps left out of the second set of totals");
  command.add_option("--seed", seed, "Seed of whatever a policy draws")
      ->check(CLI::Range(std::uint64_t{0}, kLargestSeed));
  command.add_option("--predictor", predictor,
                     "Of the odds that policies read: NAME or NAME:KEY=VALUE,...");
  command
      .add_option("--window", window,
                  "Steps ahead over which those odds are averaged; 0: 2 to 5, by step time, link "
                  "time and confidence")
      ->check(CLI::Range(0U, kMaxHorizon));
  command
      .add_option("--importance", importance,
                  "Score pages for policies that read scores (lfu-importance): none, cosine or "
                  "exponential, the fall of the position term")
      ->check(CLI::IsMember({"none", "cosine", "exponential"}));
  command
      .add_option("--importance-learns", importance_learns,
                  "Rate at which the weights of the scores follow what is read")
      ->check(CLI::Range(0.0, 1.0));
  command
      .add_option("--plan-every", plan_every,
                  "Steps between two plans of a layer (table, knapsack, sa): less host time")
      ->check(CLI::Range(1U, runtime::kMostPlanEvery));
  command
      .add_option(
          "--precision", precision,
          "Lower precision that policies which lower pages (sa) may convert pages to: none, "
          "e4m3 or int8")
      ->check(CLI::IsMember({"none", "e4m3", "int8"}));
  command
      .add_option("--precision-mass", precision_mass,
                  "Share of a step's softmax mass that may be expected on such pages")
      ->check(CLI::Range(0.0, 1.0));
  command.add_option("--weights-gb", weights_gb, "HBM traffic of the weights, GB a step");
  command.add_option("--shape", shape, "Impose a model's page bytes, e.g. llama-3.1-8b");
  command.add_option("--page-bytes", page_bytes, "Impose the bytes of a page");
  command.add_flag("--cold", cold, "Start with an empty HBM instead of the prompt's latest pages");
  command.add_option("--json", json,
                     "Write the report as JSON to this file (- for standard output)");
}

Result<runtime::ReplayOptions> Prepared::at(const std::string& hbm) const {
  runtime::ReplayOptions options = base;
  if (hbm.empty()) return invalid("--hbm: expected a share, bytes or pages, found nothing");
  LEHR_ASSIGN(options.runtime.tier_pages[kHbm],
              tier_pages(hbm, options.runtime.platform.tiers[kHbm].capacity, total_pages,
                         page_bytes, "--hbm"));
  const std::uint32_t tails = workload.peak_sequences() * traces.front()->geometry().groups();
  if (options.runtime.tier_pages[kHbm] < tails) {
    return invalid(
        fmt::format("--hbm {}: {} pages, but the pages being written take {} (one for each layer, "
                    "KV head and sequence)",
                    hbm, options.runtime.tier_pages[kHbm], tails));
  }
  const Bytes bytes = Bytes{options.runtime.tier_pages[kHbm]} * page_bytes;
  if (bytes > options.runtime.platform.tiers[kHbm].capacity) {
    return invalid(fmt::format("--hbm {}: {} bytes are more than the {} of HBM that profile {} has",
                               hbm, bytes, options.runtime.platform.tiers[kHbm].capacity,
                               options.runtime.platform.name));
  }
  return options;
}

Result<std::unique_ptr<Prepared>> prepare(const ReplayArguments& arguments,
                                          const runtime::Progress& progress) {
  auto prepared = std::make_unique<Prepared>();
  auto rule = SelectionRule::parse(arguments.select);
  if (!rule) return invalid("--select " + arguments.select + ": " + rule.error().what);
  rule->sinks = arguments.sinks;
  rule->recent = arguments.recent;
  if (!(arguments.weights_gb >= 0 && arguments.weights_gb <= kMostWeightsGb)) {
    return invalid(
        fmt::format("--weights-gb {}: expected 0 to {}", arguments.weights_gb, kMostWeightsGb));
  }
  if (!arguments.json.empty()) LEHR_TRY(can_write_json(arguments.json));
  auto profile = config::read_profile(arguments.profile);  // before the long work
  if (!profile) return of_a_file(std::move(profile).error());
  for (std::size_t i = 0; i < arguments.traces.size(); ++i) {
    LEHR_ASSIGN(auto trace, open_attention(arguments.traces[i]));
    prepared->traces.push_back(std::make_shared<formats::AttentionTrace>(std::move(trace)));
    const double files = static_cast<double>(arguments.traces.size());
    const auto part = [&](double share) {
      if (progress) progress((static_cast<double>(i) + share) / files);
    };
    prepared->selections.push_back(
        std::make_shared<runtime::TraceSelection>(*prepared->traces.back(), *rule, part));
  }
  const std::uint32_t count = arguments.sequences != 0
                                  ? arguments.sequences
                                  : static_cast<std::uint32_t>(arguments.traces.size());
  LEHR_TRY(arrange(arguments, count, *prepared));
  prepared->total_pages = prepared->workload.total_pages();
  if (prepared->total_pages > kUnlimitedPages) return invalid("the batch has more than 2^30 pages");

  KvGeometry geometry = prepared->traces.front()->geometry();
  LEHR_TRY(impose_shape(arguments, *prepared, geometry));
  prepared->geometry = geometry;
  runtime::RuntimeOptions& options = prepared->base.runtime;
  options.page_bytes = prepared->page_bytes;
  options.weights_bytes = static_cast<Bytes>(arguments.weights_gb * kGB);
  options.cold = arguments.cold;
  options.seed = arguments.seed;
  LEHR_ASSIGN(auto predictor, parse_policy(arguments.predictor));
  options.predictor = std::move(predictor.first);
  options.predictor_parameters = std::move(predictor.second);
  options.predictor_weights = runtime::PredictorWeights::shipped().tensors();
  options.prefetch_window = arguments.window;
  options.plan_every = arguments.plan_every;
  options.importance = runtime::importance_of(arguments.importance, arguments.importance_learns);
  if (!(arguments.precision_mass >= 0 && arguments.precision_mass <= 1))
    return invalid(fmt::format("--precision-mass {}: expected 0 to 1", arguments.precision_mass));
  options.precision = runtime::precision_of(arguments.precision, arguments.precision_mass);
  if (options.precision) {
    LEHR_ASSIGN(
        prepared->lowered_bytes,
        runtime::lowered_page_bytes(*options.precision, prepared->traces.front()->geometry(),
                                    prepared->page_bytes));
    prepared->notices.push_back(
        fmt::format("{} allowed: {} bytes a lowered page; bounds count every read as one",
                    arguments.precision, prepared->lowered_bytes));
  }
  prepared->base.warmup_steps = arguments.warmup;
  LEHR_TRY(set_platform(arguments, *std::move(profile), *prepared));
  const TierId home = options.platform.home;
  if (options.tier_pages[home] < prepared->total_pages) {
    prepared->notices.push_back(fmt::format(
        "{} holds {} of {} pages: bounds and oracle leave out what the tiers below it cost",
        options.platform.tiers[home].name, options.tier_pages[home], prepared->total_pages));
  }
  return prepared;
}

Result<std::unique_ptr<Prepared>> on_profile(const Prepared& prepared,
                                             const ReplayArguments& arguments) {
  auto profile = config::read_profile(arguments.profile);
  if (!profile) return of_a_file(std::move(profile).error());
  auto other = std::make_unique<Prepared>(prepared);
  LEHR_TRY(set_platform(arguments, *std::move(profile), *other));
  return other;
}

Result<std::pair<std::string, Parameters>> parse_policy(const std::string& text) {
  const std::size_t colon = text.find(':');
  std::pair<std::string, Parameters> out{text.substr(0, colon), {}};
  if (colon == std::string::npos) return out;
  for (std::size_t at = colon + 1; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string_view item = std::string_view(text).substr(at, end - at);
    const std::size_t equals = std::min(item.find('='), item.size());
    const std::string key(item.substr(0, equals));
    const std::string_view number = item.substr(std::min(equals + 1, item.size()));
    double value = 0;
    const auto [rest, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (key.empty() || number.empty() || error != std::errc() ||
        rest != number.data() + number.size() || !std::isfinite(value)) {
      return invalid(fmt::format("policy '{}': expected KEY=NUMBER, found '{}'", text, item));
    }
    if (!out.second.emplace(key, value).second) {
      return invalid(fmt::format("policy '{}': '{}' is given twice", text, key));
    }
    at = end + 1;
  }
  return out;
}

}  // namespace lehr::tools
