// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/replay_options.hpp"

#include <charconv>
#include <limits>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include "runtime/config/profile.hpp"
#include "runtime/config/quantity.hpp"
#include "tools/lehr/shapes.hpp"

namespace lehr::tools {

namespace {

/// No smaller than any footprint, and safe to add to: what "unlimited" means for a tier.
constexpr std::uint32_t kUnlimitedPages = std::numeric_limits<std::uint32_t>::max() / 4;

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

Status impose_shape(const ReplayArguments& arguments, Prepared& prepared, KvGeometry& geometry) {
  if (!arguments.shape.empty()) {
    const ModelShape* shape = nullptr;
    std::string known;
    for (const ModelShape& s : model_shapes()) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", s.name);
      if (s.name == arguments.shape) shape = &s;
    }
    if (shape == nullptr)
      return not_found(fmt::format("--shape {}: known are {}", arguments.shape, known));
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
  command.add_option("--seed", seed, "Seed of whatever a policy draws");
  command.add_option("--weights-gb", weights_gb, "HBM traffic of the weights, GB a step")
      ->check(CLI::Range(0.0, 1e6));
  command.add_option("--shape", shape, "Impose a model's page bytes, e.g. llama-3.1-8b");
  command.add_option("--page-bytes", page_bytes, "Impose the bytes of a page");
  command.add_flag("--cold", cold, "Start with an empty HBM instead of the prompt's latest pages");
  command.add_option("--json", json,
                     "Write the report as JSON to this file (- for standard output)");
}

Result<runtime::ReplayOptions> Prepared::at(const std::string& hbm) const {
  runtime::ReplayOptions options = base;
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
  LEHR_ASSIGN(auto profile, config::read_profile(arguments.profile));
  for (std::size_t i = 0; i < arguments.traces.size(); ++i) {
    LEHR_ASSIGN(auto trace, formats::AttentionTrace::open(arguments.traces[i]));
    prepared->traces.push_back(std::make_unique<formats::AttentionTrace>(std::move(trace)));
    const double files = static_cast<double>(arguments.traces.size());
    const auto part = [&](double share) {
      if (progress) progress((static_cast<double>(i) + share) / files);
    };
    prepared->selections.push_back(
        std::make_unique<runtime::TraceSelection>(*prepared->traces.back(), *rule, part));
  }
  const std::uint32_t count = arguments.sequences != 0
                                  ? arguments.sequences
                                  : static_cast<std::uint32_t>(arguments.traces.size());
  if (count > 4096) return invalid(fmt::format("--sequences {}: expected at most 4096", count));
  for (std::uint32_t i = 0; i < count; ++i) {
    prepared->workload.sequences.push_back(
        {prepared->selections[i % prepared->selections.size()].get(), i * arguments.stagger});
  }
  LEHR_TRY(prepared->workload.validate());
  if (count > arguments.traces.size()) {
    prepared->notices.push_back(
        fmt::format("{} sequences from {} recorded ones", count, arguments.traces.size()));
  }
  prepared->total_pages = prepared->workload.total_pages();
  if (prepared->total_pages > kUnlimitedPages) return invalid("the batch has more than 2^30 pages");

  KvGeometry geometry = prepared->traces.front()->geometry();
  LEHR_TRY(impose_shape(arguments, *prepared, geometry));
  prepared->geometry = geometry;
  runtime::RuntimeOptions& options = prepared->base.runtime;
  options.platform = std::move(profile.platform);
  options.page_bytes = prepared->page_bytes;
  options.weights_bytes = static_cast<Bytes>(arguments.weights_gb * kGB);
  options.cold = arguments.cold;
  options.seed = arguments.seed;
  prepared->base.warmup_steps = arguments.warmup;
  const placement::Platform& platform = options.platform;
  options.tier_pages.assign(platform.tiers.size(), 0);
  for (TierId t = 1; t < platform.tiers.size(); ++t) {
    const std::string& given = t == platform.home                 ? arguments.host
                               : platform.tiers[t].name == "nvme" ? arguments.nvme
                                                                  : std::string();
    LEHR_ASSIGN(options.tier_pages[t],
                tier_pages(given, platform.tiers[t].capacity, prepared->total_pages,
                           prepared->page_bytes, t == platform.home ? "--host" : "--nvme"));
  }
  return prepared;
}

Result<std::pair<std::string, Parameters>> parse_policy(const std::string& text) {
  const std::size_t colon = text.find(':');
  std::pair<std::string, Parameters> out{text.substr(0, colon), {}};
  if (colon == std::string::npos) return out;
  std::string_view rest = std::string_view(text).substr(colon + 1);
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const std::size_t equals = item.find('=');
    double value = 0;
    const char* end = item.data() + item.size();
    const bool read = equals != std::string_view::npos &&
                      std::from_chars(item.data() + equals + 1, end, value).ptr == end &&
                      equals + 1 < item.size();
    if (!read)
      return invalid(fmt::format("policy '{}': expected KEY=NUMBER, found '{}'", text, item));
    out.second[std::string(item.substr(0, equals))] = value;
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return out;
}

}  // namespace lehr::tools
