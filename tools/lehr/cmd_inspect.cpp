// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "runtime/formats/file.hpp"
#include "tools/lehr/fail.hpp"
#include "tools/lehr/inspect.hpp"
#include "tools/lehr/report.hpp"
#include "tools/lehr/table.hpp"
#include "tools/lehr/terminal.hpp"
#include "tools/lehr/trace_kind.hpp"

namespace lehr::tools {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kCommand = "inspect";
constexpr int kSchema = 1;

struct Options {
  std::string file;
  std::string select = "mass:0.95";
  std::uint32_t sinks = SelectionRule().sinks;
  std::uint32_t recent = SelectionRule().recent;
  std::uint32_t block_tokens = 512;
  std::string json;  ///< "-" is standard output
};

std::string percent(double share) { return fmt::format("{:.1f} %", share * 100); }

std::string span_text(double milliseconds) {
  const double seconds = milliseconds / 1000;
  if (seconds < 120) return fmt::format("{:.1f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.1f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

// ---- attention traces

Json to_json(const SelectionSummary& s) {
  return {{"selected", s.selected},
          {"selected_min", s.least},
          {"selected_max", s.most},
          {"overlap", s.overlap},
          {"ever", s.ever}};
}

Json to_json(const ReuseSummary& reuse) {
  Json percentiles = Json::array();
  for (const auto& [share, distance] : reuse.percentiles) {
    percentiles.push_back({{"share", share}, {"distance", distance ? Json(*distance) : Json()}});
  }
  Json lru = Json::array();
  for (const auto& [capacity, hit] : reuse.lru) {
    lru.push_back({{"capacity", capacity}, {"hit_ratio", hit}});
  }
  return {{"accesses", reuse.accesses},
          {"distinct", reuse.distinct},
          {"percentiles", percentiles},
          {"lru", lru}};
}

Json to_json(const formats::AttentionTrace& trace, const AttentionReport& report) {
  const auto& meta = trace.meta();
  const KvGeometry geometry = meta.geometry();
  Json out = {{"model", meta.model},
              {"workload", meta.workload},
              {"steps", meta.steps},
              {"prompt_tokens", meta.prompt_tokens},
              {"layers_recorded", meta.layers()},
              {"layers_model", meta.model_layers},
              {"q_heads", meta.q_heads},
              {"kv_heads", meta.kv_heads},
              {"head_dim", meta.head_dim},
              {"kv_bytes_per_element", meta.kv_bytes_per_element},
              {"page_tokens", meta.page_tokens},
              {"page_bytes", geometry.page_bytes()},
              {"pages_per_group", meta.pages()},
              {"pages", std::uint64_t{geometry.groups()} * meta.pages()},
              {"kv_bytes", std::uint64_t{geometry.groups()} * meta.pages() * geometry.page_bytes()},
              {"kv_bytes_per_token", geometry.page_bytes() / meta.page_tokens * geometry.groups()},
              {"file_bytes", trace.file_bytes()},
              {"compressed", trace.compressed()}};
  Json& records = out["records"] = Json::array({"mass"});
  const auto& parts = trace.parts();
  if (!parts.peak.empty()) records.push_back("peak");
  if (!parts.tokens.empty()) records.push_back("tokens");
  if (!parts.q.empty()) records.push_back("q");
  if (!parts.k.empty()) records.push_back("k");
  if (!parts.v.empty()) records.push_back("v");
  for (const auto& tensor : parts.other) records.push_back(tensor.name);
  for (const auto& [key, value] : meta.other) out["notes"][key] = value;

  out["select"] = report.rule.text();
  out["sinks"] = report.rule.sinks;
  out["recent"] = report.rule.recent;
  Json& selection = out["selection"] = Json::object();
  for (const auto& [rule, summary] : report.rules) selection[rule] = to_json(summary);
  Json& layers = out["layers"] = Json::array();
  for (const auto& [id, summary] : report.layers) {
    Json layer = {{"layer", id}};
    layer.update(to_json(summary));
    layers.push_back(layer);
  }
  out["window_steps"] = report.window_steps;
  Json& points = out["working_set"] = Json::array();
  for (const auto& p : report.working_set) {
    points.push_back({{"step", p.step},
                      {"context_tokens", p.context_tokens},
                      {"pages", p.pages},
                      {"selected", p.selected},
                      {"window", p.window},
                      {"ever", p.ever}});
  }
  out["reuse"] = to_json(report.reuse);
  return out;
}

/// Percentiles and LRU hit ratios as two short tables; `item_bytes` 0 leaves bytes out.
std::string reuse_text(const ReuseSummary& reuse, Bytes item_bytes, const char* items) {
  const double repeated = static_cast<double>(reuse.accesses - reuse.distinct);
  std::string out = fmt::format(
      "reuse: {} reads of {} {}; {} are repeats\n", reuse.accesses, reuse.distinct, items,
      percent(reuse.accesses == 0 ? 0 : repeated / static_cast<double>(reuse.accesses)));
  std::vector<std::string> header = {"  repeats within"};
  std::vector<std::string> distances = {fmt::format("  other {} read between", items)};
  std::vector<std::string> bytes = {"  in bytes"};
  for (const auto& [share, distance] : reuse.percentiles) {
    header.push_back(fmt::format("{:.0f} %", share * 100));
    distances.push_back(distance ? std::to_string(*distance) : "-");
    bytes.push_back(distance ? human_bytes(static_cast<double>(*distance * item_bytes)) : "-");
  }
  Table table(header);
  table.add(distances);
  if (item_bytes != 0) table.add(bytes);
  out += table.text();

  std::vector<std::string> capacities = {fmt::format("  LRU with room for, of the {} read", items)};
  std::vector<std::string> hits = {"  hits"};
  for (const auto& [capacity, hit] : reuse.lru) {
    capacities.push_back(fmt::format("{:.0f} %", capacity * 100));
    hits.push_back(percent(hit));
  }
  Table lru(capacities);
  lru.add(hits);
  return out + lru.text();
}

std::string records_text(const formats::AttentionParts& parts) {
  std::vector<std::string> names = {"mass"};
  if (!parts.peak.empty()) names.emplace_back("peak");
  if (!parts.tokens.empty()) names.emplace_back("tokens");
  if (!parts.q.empty()) names.emplace_back("q");
  if (!parts.k.empty()) names.emplace_back("k, v");
  for (const auto& tensor : parts.other) names.push_back(printable(tensor.name) + " (ignored)");
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string heading(const formats::AttentionTrace& trace, const Options& options) {
  const auto& meta = trace.meta();
  const KvGeometry geometry = meta.geometry();
  const std::uint64_t pages = std::uint64_t{geometry.groups()} * meta.pages();
  std::string out = fmt::format("{}: attention trace, {}{}\n", printable(options.file),
                                human_bytes(static_cast<double>(trace.file_bytes())),
                                trace.compressed() ? " (zstd)" : "");
  out += fmt::format("model      {}\nworkload   {}\n", printable(meta.model),
                     printable(meta.workload));
  out += fmt::format(
      "shape      {} steps after a prompt of {} tokens; {} of {} layers, {} KV heads, {} "
      "query heads, head_dim {}, {} bytes an element\n",
      meta.steps, meta.prompt_tokens, meta.layers(), meta.model_layers, meta.kv_heads, meta.q_heads,
      meta.head_dim, meta.kv_bytes_per_element);
  out += fmt::format("footprint  {} pages of {} tokens and {} bytes = {}; {} a token\n", pages,
                     meta.page_tokens, geometry.page_bytes(),
                     human_bytes(static_cast<double>(pages * geometry.page_bytes())),
                     human_bytes(static_cast<double>(geometry.page_bytes()) / meta.page_tokens *
                                 geometry.groups()));
  out += fmt::format("records    {}\n", records_text(trace.parts()));
  for (const auto& [key, value] : meta.other)
    out += fmt::format("{:<10} {}\n", printable(key), printable(value));

  return out;
}

std::string to_text(const formats::AttentionTrace& trace, const AttentionReport& report,
                    const Options& options) {
  const Bytes page_bytes = trace.geometry().page_bytes();
  std::string out = heading(trace, options);

  out += fmt::format("\nselection, with {} sink and {} recent pages always in\n", report.rule.sinks,
                     report.rule.recent);
  Table rules({"  rule", "pages read", "least", "most", "read the step before", "ever read"});
  for (const auto& [rule, s] : report.rules) {
    rules.add({"  " + rule, percent(s.selected), percent(s.least), percent(s.most),
               percent(s.overlap), percent(s.ever)});
  }
  out += rules.text();

  out += fmt::format("\nworking set under {}\n", report.rule.text());
  Table sets({"  step", "context", "pages", "read", "bytes read",
              fmt::format("in {} steps", report.window_steps), "since start"});
  for (const auto& p : report.working_set) {
    sets.add({fmt::format("  {}", p.step), std::to_string(p.context_tokens),
              std::to_string(p.pages), std::to_string(p.selected),
              human_bytes(static_cast<double>(p.selected * page_bytes)), std::to_string(p.window),
              std::to_string(p.ever)});
  }
  out += sets.text();

  out += "\n" + reuse_text(report.reuse, page_bytes, "pages");

  out += fmt::format("\nlayers under {}\n", report.rule.text());
  Table layers({"  layer", "pages read", "least", "most", "read the step before", "ever read"});
  for (const auto& [id, s] : report.layers) {
    layers.add({fmt::format("  {}", id), percent(s.selected), percent(s.least), percent(s.most),
                percent(s.overlap), percent(s.ever)});
  }
  return out + layers.text();
}

// ---- request traces

Json to_json(const LengthSummary& s) {
  return {
      {"total", s.total}, {"mean", s.mean}, {"median", s.median}, {"p99", s.p99}, {"max", s.most}};
}

Json to_json(const RequestReport& report) {
  Json out = {{"requests", report.requests},
              {"sessions", report.sessions},
              {"duration_ms", report.duration_ms},
              {"block_tokens", report.block_tokens},
              {"block_tokens_recorded", report.block_tokens_recorded},
              {"input_tokens", to_json(report.input)},
              {"output_tokens", to_json(report.output)},
              {"block_visits", report.visits},
              {"distinct_blocks", report.distinct},
              {"seen_before", report.seen_before},
              {"prefix_seen_before", report.prefix_before},
              {"hottest_1_percent", report.hottest_percent}};
  Json& phases = out["phases"] = Json::array();
  for (const auto& p : report.phases) {
    phases.push_back({{"requests", p.requests},
                      {"block_visits", p.visits},
                      {"distinct_blocks", p.distinct},
                      {"seen_before", p.seen_before}});
  }
  out["reuse"] = to_json(report.reuse);
  return out;
}

std::string to_text(const RequestReport& report, const Options& options, Bytes file_bytes) {
  std::string out = fmt::format("{}: request trace, {}\n", printable(options.file),
                                human_bytes(static_cast<double>(file_bytes)));
  out += fmt::format("requests   {} in {}{}\n", report.requests, span_text(report.duration_ms),
                     report.sessions == 0 ? "" : fmt::format(", {} sessions", report.sessions));
  out += fmt::format("blocks     {} visits to {} distinct blocks of {} tokens ({})\n",
                     report.visits, report.distinct, report.block_tokens,
                     report.block_tokens_recorded ? "as recorded" : "assumed, see --block-tokens");
  out += fmt::format(
      "seen       {} of the visits are to a block visited before, {} when all blocks "
      "before it must be too\n",
      percent(report.seen_before), percent(report.prefix_before));
  out += fmt::format("hot        the most visited 1 % of the blocks take {} of the visits\n\n",
                     percent(report.hottest_percent));
  Table lengths({"  tokens a request", "total", "mean", "median", "p99", "most"});
  for (const auto& [name, s] : {std::pair("  input", report.input), {"  output", report.output}}) {
    lengths.add({name, std::to_string(s.total), fmt::format("{:.0f}", s.mean),
                 std::to_string(s.median), std::to_string(s.p99), std::to_string(s.most)});
  }
  out += lengths.text();

  out += "\nworking set over time\n";
  Table phases({"  requests up to", "visits", "distinct blocks", "seen before"});
  std::uint64_t upto = 0;
  for (const auto& p : report.phases) {
    upto += p.requests;
    const double visits = static_cast<double>(std::max<std::uint64_t>(1, p.visits));
    phases.add({fmt::format("  {}", upto), std::to_string(p.visits), std::to_string(p.distinct),
                percent(static_cast<double>(p.seen_before) / visits)});
  }
  out += phases.text();
  return out + "\n" + reuse_text(report.reuse, 0, "blocks");
}

// ---- the command

void write(const Options& options, const char* kind, const Json& body) {
  Json out = {{"schema", "lehr.inspect"},
              {"schema_version", kSchema},
              {"file", options.file},
              {"kind", kind}};
  out.update(body);
  take(kCommand, write_json(options.json, out));
}

void inspect(const Options& options) {
  auto rule = SelectionRule::parse(options.select);
  if (!rule) fail_usage(kCommand, rule.error());
  if (!options.json.empty()) take(kCommand, can_write_json(options.json));
  (*rule).sinks = options.sinks;
  (*rule).recent = options.recent;

  auto contents =
      take(kCommand, formats::FileContents::open(options.file, formats::kDefaultTraceLimit));
  const Bytes file_bytes = contents.file_bytes();
  if (is_attention_trace(contents.bytes(), options.file)) {
    const auto trace =
        take(kCommand, formats::AttentionTrace::from(std::move(contents), options.file));
    const AttentionReport report = inspect_attention(trace, *rule);
    if (options.json != "-") print(kCommand, to_text(trace, report, options));
    if (!options.json.empty()) write(options, "attention-trace", to_json(trace, report));
    return;
  }
  const std::string_view text(reinterpret_cast<const char*>(contents.bytes().data()),
                              contents.bytes().size());
  const auto trace = take(kCommand, formats::RequestTrace::parse(text, options.file));
  const RequestReport report = inspect_requests(trace, options.block_tokens);
  if (options.json != "-") print(kCommand, to_text(report, options, file_bytes));
  if (!options.json.empty()) write(options, "request-trace", to_json(report));
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Describe a trace: shape, footprint, selection, working set, reuse");
  CLI::Option* file =
      command->add_option("file", options->file, "Attention trace or request trace, plain or .zst");
  command->add_option(
      "--select", options->select,
      "Rule for working set, reuse and layers: all, topk:RATIO, count:N, mass:SHARE");
  command->add_option("--sinks", options->sinks, "Pages at the start that are always read");
  command->add_option("--recent", options->recent, "Pages at the end that are always read");
  command
      ->add_option("--block-tokens", options->block_tokens,
                   "Tokens a block where a request trace does not say")
      ->check(CLI::PositiveNumber);
  CLI::Option* json = command->add_option(
      "--json", options->json,
      "Write the report as JSON to this file (- or nothing for standard output)");
  json->expected(0, 1);
  command->callback([=] {
    if (file->empty() && !options->json.empty()) std::swap(options->file, options->json);
    if (options->file.empty()) throw CLI::RequiredError("file");
    if (json->count() > 0 && options->json.empty()) options->json = "-";
    inspect(*options);
  });
}

}  // namespace lehr::tools
