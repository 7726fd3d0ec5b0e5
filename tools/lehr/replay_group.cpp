// SPDX-License-Identifier: Apache-2.0
// lehr replay --gpus N: one workload over several devices that all serve it.
#include "tools/lehr/replay_group.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "runtime/machines/host.hpp"
#include "runtime/machines/sim.hpp"
#include "tools/lehr/report.hpp"
#include "tools/lehr/table.hpp"

namespace lehr::tools {

using nlohmann::ordered_json;
using serving::GroupOutcome;
using serving::GroupReplayOptions;
using serving::Split;

namespace {

constexpr std::uint32_t kMostGpus = 64;

Split split_of(const std::string& name) {
  if (name == "layers") return Split::kLayers;
  return name == "tokens" ? Split::kTokens : Split::kHeads;
}

Result<std::vector<double>> shares(std::vector<double> given, std::uint32_t gpus,
                                   const char* option) {
  if (given.empty()) given.assign(gpus, 1.0);
  if (given.size() != gpus)
    return invalid(fmt::format("{}: {} shares for {} GPUs", option, given.size(), gpus));
  double sum = 0;
  for (const double share : given) {
    if (!(share > 0 && share < 1e9)) return invalid(fmt::format("{}: {}", option, share));
    sum += share;
  }
  for (double& share : given) share /= sum;
  return given;
}

/// What crosses from one GPU to another: NVLink where the profile has a peer, else the host's
/// links.
std::vector<placement::Link> between(const placement::Platform& platform) {
  if (const auto peer = platform.tier("peer")) {
    const LinkId link = platform.link(*peer, kHbm);
    if (link != placement::kNoLink) return {platform.links[link]};
  }
  return {platform.links[platform.link(kHbm, platform.home)],
          platform.links[platform.link(platform.home, kHbm)]};
}

/// Each device's share of the KV, of which it holds whole heads or layers.
std::vector<double> held_shares(const GroupReplayOptions& group, const KvGeometry& g) {
  if (group.split == Split::kTokens) return group.weights;
  const std::uint32_t units = group.split == Split::kLayers ? g.layers : g.kv_heads;
  const auto dealt = placement::divide(units, group.weights);
  if (!dealt) return group.weights;  // too few: refused later, with the reason
  std::vector<double> shares;
  for (const std::uint32_t n : *dealt) shares.push_back(static_cast<double>(n) / units);
  return shares;
}

serving::MakeMachine on_host(const GroupMachines& machines) {
  return [machines](
             std::uint32_t,
             const runtime::RuntimeOptions& options) -> Result<std::unique_ptr<runtime::Machine>> {
    runtime::HostMachineOptions host;
    host.platform = options.platform;
    host.tier_pages = options.tier_pages;
    host.page_bytes = options.page_bytes;
    host.nvme_directory = machines.nvme_directory;
    return runtime::make_host_machine(host);
  };
}

serving::MakeMachine on_gpus(const GroupMachines& machines, const Prepared& prepared) {
  std::uint32_t longest = 0;
  for (const auto& trace : prepared.traces) longest = std::max(longest, trace->pages());
  return
      [machines, longest, seen = prepared.geometry, sequences = prepared.workload.peak_sequences()](
          std::uint32_t device,
          const runtime::RuntimeOptions& options) -> Result<std::unique_ptr<runtime::Machine>> {
        runtime::CudaMachineOptions cuda;
        cuda.platform = options.platform;
        cuda.tier_pages = options.tier_pages;
        cuda.geometry = seen;
        cuda.geometry.layers = options.geometry.layers;
        cuda.geometry.kv_heads = options.geometry.kv_heads;
        cuda.geometry.q_heads = seen.q_heads / seen.kv_heads * options.geometry.kv_heads;
        cuda.weights_bytes = options.weights_bytes;
        cuda.sequences = sequences;
        cuda.pages = longest;
        cuda.device = machines.gpu.gpu + static_cast<std::int32_t>(device);
        cuda.check_reads = machines.gpu.check_reads;
        cuda.log = std::make_shared<runtime::cuda::DecodeLog>();
        return runtime::make_cuda_machine(cuda);
      };
}

/// What the devices' shares follow from.
struct Sharing {
  const GroupArguments& arguments;
  const GroupMachines& machines;
  const Prepared& prepared;
  const runtime::ReplayOptions& options;
  const GroupReplayOptions& group;
  const std::vector<double>& budget;
  std::vector<double> held;  ///< of the KV
};

/// HBM by budget; the tiers below are the host's.
runtime::RuntimeOptions device_options(const Sharing& s, std::uint32_t d) {
  runtime::RuntimeOptions device = s.options.runtime;
  const bool real = s.machines.machine != "sim";
  const TierId home = device.platform.home;
  // Pages that a device of real memory could need of a tier that holds all of them.
  const bool whole = s.arguments.rebalance != 0 || s.group.split == Split::kTokens;
  const auto most = static_cast<std::uint32_t>(
      std::ceil((whole ? 1 : s.held[d]) * static_cast<double>(s.prepared.total_pages)));
  const bool all_at_home = device.tier_pages[home] >= s.prepared.total_pages;
  for (std::size_t t = 0; t < device.tier_pages.size(); ++t) {
    std::uint32_t& pages = device.tier_pages[t];
    const double share = t == kHbm ? s.budget[d] : s.held[d];
    if (t == kHbm || !all_at_home) pages = static_cast<std::uint32_t>(share * pages);
    if (t > home && all_at_home && real) pages = 0;
    if (real) pages = std::min(pages, most);
  }
  if (s.machines.machine == "cuda") {  // it is this project's own kernels that run
    if (s.prepared.kernels_per_layer > 0)
      device.platform.control_per_layer = s.prepared.kernels_per_layer;
    device.weights_bytes += runtime::box_bytes(s.prepared.geometry, s.prepared.total_pages);
  }
  return device;
}

std::string gpu_list(std::span<const std::uint32_t> units) {
  return fmt::format("{}", fmt::join(units, "/"));
}

}  // namespace

void GroupArguments::add_to(CLI::App& command) {
  command.add_option("--gpus", gpus, "GPUs that all serve, each with a part of the KV")
      ->check(CLI::Range(1U, kMostGpus));
  command
      .add_option("--split", split,
                  "With --gpus: what each holds: KV heads, layers, or a range of each sequence's "
                  "tokens")
      ->check(CLI::IsMember({"heads", "layers", "tokens"}));
  command.add_option("--budget", budget, "With --gpus: each one's share of --hbm, e.g. 3,1")
      ->delimiter(',');
  command
      .add_option("--deal", deal,
                  "With --gpus: each one's share of heads, layers or tokens at first, e.g. 2,1")
      ->delimiter(',');
  command.add_option("--rebalance", rebalance,
                     "With --gpus: look every so many steps whether units should change GPU");
  command.add_option("--rebalance-units", at_once, "Units that may change GPU at once")
      ->check(CLI::Range(1U, 1024U));
  command
      .add_option("--rebalance-gain", least_gain,
                  "Share of the slowest part's time that a change must save")
      ->check(CLI::Range(0.0, 1.0));
  command.add_flag("--turns", turns,
                   "With --gpus: promotions cross on one GPU at a time, step by step in turn");
}

Result<GroupReplayOptions> group_options(const GroupArguments& arguments,
                                         const GroupMachines& machines, const Prepared& prepared,
                                         const runtime::ReplayOptions& options) {
  GroupReplayOptions group;
  group.split = split_of(arguments.split);
  LEHR_ASSIGN(const auto budget, shares(arguments.budget, arguments.gpus, "--budget"));
  LEHR_ASSIGN(group.weights, shares(arguments.deal, arguments.gpus, "--deal"));
  LEHR_ASSIGN(const auto* policy, placement::find_policy(options.runtime.policy));
  if (policy->traits.needs_instance) {
    return unsupported(
        fmt::format("policy {} plans for one GPU's whole replay; with --gpus it has none",
                    options.runtime.policy));
  }
  group.rebalance_every = arguments.rebalance;
  group.rule = {arguments.at_once, arguments.least_gain};
  group.take_turns = arguments.turns;
  group.own_geometry = machines.machine == "cuda";
  group.between = between(options.runtime.platform);
  group.results = prepared.geometry;
  group.warmup_steps = options.warmup_steps;
  group.max_steps = options.max_steps;
  const Sharing sharing{arguments,
                        machines,
                        prepared,
                        options,
                        group,
                        budget,
                        held_shares(group, prepared.traces.front()->geometry())};
  for (std::uint32_t d = 0; d < arguments.gpus; ++d) {
    group.devices.push_back(device_options(sharing, d));
    if (policy->traits.unlimited)
      group.devices.back().tier_pages[kHbm] = static_cast<std::uint32_t>(prepared.total_pages);
  }
  if (machines.machine == "sim") {
    group.make = [](std::uint32_t,
                    const runtime::RuntimeOptions&) -> Result<std::unique_ptr<runtime::Machine>> {
      return runtime::make_sim_machine();
    };
  } else if (machines.machine == "host") {
    group.make = on_host(machines);
  } else {
    group.make = on_gpus(machines, prepared);
  }
  return group;
}

namespace {

std::string device_table(const GroupOutcome& outcome, const GroupArguments& arguments,
                         const GroupReplayOptions& options) {
  const placement::Platform& platform = options.devices.front().platform;
  std::vector<std::string> header{"GPU", arguments.split, "HBM pages", "reads", "byte hits"};
  std::vector<std::size_t> links;
  for (std::size_t i = 0; i < platform.links.size(); ++i) {
    if (outcome.whole.all.link[i].bytes == 0) continue;
    links.push_back(i);
    header.push_back("over " + platform.links[i].name);
  }
  header.insert(header.end(), {"promoted", "step p50", "p99", "exposed/step"});
  Table table(header);
  for (std::size_t d = 0; d < outcome.devices.size(); ++d) {
    const serving::DeviceOutcome& device = outcome.devices[d];
    const runtime::StepReport& r = device.all;
    const double hits =
        r.reads > 0 ? static_cast<double>(r.hits) / static_cast<double>(r.reads) : 1;
    std::string units = fmt::format("{}", device.units);
    if (device.units != device.first_units)
      units += fmt::format(", at first {}", device.first_units);
    if (options.split == Split::kTokens) units = d + 1 == outcome.devices.size() ? "last" : "range";
    std::vector<std::string> row{fmt::format("{}", d), std::move(units),
                                 fmt::format("{}", options.devices[d].tier_pages[kHbm]),
                                 fmt::format("{}", r.reads), fmt::format("{:.2f}%", 100 * hits)};
    for (const std::size_t i : links)
      row.push_back(human_bytes(static_cast<double>(r.link[i].bytes)));
    row.push_back(fmt::format("{}", r.promoted));
    row.push_back(human_seconds(percentile(device.step_seconds, 0.5)));
    row.push_back(human_seconds(percentile(device.step_seconds, 0.99)));
    row.push_back(human_seconds(r.exposed / std::max(1U, outcome.whole.steps)));
    table.add(std::move(row));
  }
  return table.text();
}

std::string line(const char* what, const std::string& value) {
  return fmt::format("  {:<26}{}\n", what, value);
}

std::string migration_text(const serving::Migration& m) {
  if (!m.refused.empty())
    return line("not rebalanced", fmt::format("before step {}: {}", m.step, m.refused));
  return line("rebalanced",
              fmt::format("before step {}: {} -> {}, since the slowest part took {} and would take "
                          "{}; {} of {} pages sent, {} in {}",
                          m.step, gpu_list(m.before), gpu_list(m.after), human_seconds(m.slowest),
                          human_seconds(m.expected), m.sent_pages, m.pages,
                          human_bytes(static_cast<double>(m.bytes)), human_seconds(m.seconds)));
}

}  // namespace

std::string group_text(const GroupOutcome& outcome, const GroupArguments& arguments,
                       const GroupReplayOptions& options) {
  std::string out =
      fmt::format("{} GPUs by {}, policy {}, profile {}\n", arguments.gpus, arguments.split,
                  outcome.whole.policy, options.devices.front().platform.name);
  out += device_table(outcome, arguments, options);
  const runtime::ReplayResult& whole = outcome.whole;
  out += line("steps, tokens", fmt::format("{}, {}", whole.steps, whole.tokens));
  out += line("predicted step p50, p99",
              fmt::format("{}, {} ({})", human_seconds(percentile(whole.step_seconds, 0.5)),
                          human_seconds(percentile(whole.step_seconds, 0.99)),
                          options.split == Split::kLayers ? "all GPUs one after the other"
                                                          : "slowest GPU and merge"));
  if (!whole.measured_seconds.empty()) {
    out += line(
        "measured step p50, p99",
        fmt::format("{}, {} (no merge)", human_seconds(percentile(whole.measured_seconds, 0.5)),
                    human_seconds(percentile(whole.measured_seconds, 0.99))));
  }
  out += line("predicted tokens/s",
              fmt::format("{:.1f}", static_cast<double>(whole.tokens) / whole.all.total));
  out +=
      line("merging a step",
           fmt::format("{} (predicted, over {})",
                       human_seconds(outcome.merging / std::max(1U, whole.steps)),
                       options.between.size() == 1 ? options.between[0].name : "the host's links"));
  if (const auto& precision = options.devices.front().precision) {
    out += line("lowered pages",
                fmt::format("{}, to {}; {:.2f}% of the softmax mass (allowed on "
                            "each GPU: {:.2f}%)",
                            whole.all.lowered, runtime::precision_name(precision),
                            100.0 * static_cast<double>(whole.all.mass_lowered) /
                                std::max(1.0, static_cast<double>(whole.all.mass_seen)),
                            100 * precision->mass));
  }
  for (const serving::Migration& m : outcome.migrations) out += migration_text(m);
  if (arguments.rebalance != 0 && outcome.migrations.empty()) {
    out += line("rebalanced", options.split == Split::kTokens
                                  ? "ranges of later sequences follow the loads; dealt ones stay"
                                  : "never: no change would have saved enough");
  }
  for (std::size_t d = 0; d < outcome.devices.size(); ++d) {
    for (const std::string& note : outcome.devices[d].notes)
      out += fmt::format("  GPU {}: {}\n", d, note);
  }
  return out;
}

ordered_json group_figures(const GroupOutcome& outcome, const GroupArguments& arguments,
                           const GroupReplayOptions& options, const runtime::ReplayOptions& whole,
                           Bytes page_bytes) {
  ordered_json out = figures(outcome.whole, whole, page_bytes);
  ordered_json group;
  group["gpus"] = arguments.gpus;
  group["split"] = arguments.split;
  group["rebalance_every"] = arguments.rebalance;
  group["turns"] = arguments.turns;
  group["merge_seconds"] = outcome.merging;
  group["migration_seconds"] = outcome.moving;
  for (std::size_t d = 0; d < outcome.devices.size(); ++d) {
    const serving::DeviceOutcome& device = outcome.devices[d];
    runtime::ReplayResult part;
    part.policy = outcome.whole.policy;
    part.all = device.all;
    part.warm = device.warm;
    part.steps = outcome.whole.steps;
    part.warm_steps = outcome.whole.warm_steps;
    part.tokens = outcome.whole.tokens;
    part.warm_tokens = outcome.whole.warm_tokens;
    part.step_seconds = device.step_seconds;
    part.notes = device.notes;
    ordered_json cell = figures(part, whole, page_bytes);
    for (const char* of_the_whole : {"policy", "replay_wall_seconds", "visits_per_second"})
      cell.erase(of_the_whole);
    cell["hbm_pages"] = options.devices[d].tier_pages[kHbm];
    cell["units_at_first"] = device.first_units;
    cell["units"] = device.units;
    group["devices"].push_back(std::move(cell));
  }
  group["migrations"] = ordered_json::array();
  for (const serving::Migration& m : outcome.migrations) {
    group["migrations"].push_back({{"before_step", m.step},
                                   {"units_before", m.before},
                                   {"units_after", m.after},
                                   {"pages", m.pages},
                                   {"sent_pages", m.sent_pages},
                                   {"sent_bytes", m.bytes},
                                   {"seconds", m.seconds},
                                   {"slowest_part_seconds", m.slowest},
                                   {"expected_seconds", m.expected},
                                   {"refused", m.refused}});
  }
  out["group"] = std::move(group);
  return out;
}

}  // namespace lehr::tools
