// SPDX-License-Identifier: Apache-2.0
// lehr replay: one policy on one machine, predicted beside measured where the machine measures.
#include <algorithm>
#include <filesystem>
#include <system_error>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "runtime/config/config.hpp"
#include "runtime/replay/attend.hpp"
#include "tools/lehr/decode_run.hpp"
#include "tools/lehr/fail.hpp"
#include "tools/lehr/progress.hpp"
#include "tools/lehr/replay_group.hpp"
#include "tools/lehr/report.hpp"
#include "tools/lehr/table.hpp"
#include "tools/lehr/terminal.hpp"

namespace lehr::tools {

namespace {

constexpr const char* kCommand = "replay";

/// $TMPDIR or /tmp; empty if that is no folder, which is said where one is needed.
std::string scratch_directory() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::temp_directory_path(error);
  return error ? std::string() : path.string();
}

struct Arguments {
  ReplayArguments replay;
  std::string policy = config::Config{}.policy_name;  ///< what an engine gets that says nothing
  std::string machine = "sim";
  std::string nvme_directory = scratch_directory();
  DecodeOptions gpu;
  GroupArguments group;
  std::uint32_t steps = 0;
  bool attend = false;
  std::string timeline;
  std::string calibrated;
  std::vector<const CLI::Option*> of_cuda;       ///< options that are for a GPU only
  std::vector<const CLI::Option*> of_selection;  ///< that say which pages a step reads
};

/// An option that would change nothing is a misunderstanding.
void refuse_given(const std::vector<const CLI::Option*>& options, const char* why) {
  for (const CLI::Option* option : options) {
    if (option->count() > 0) fail_usage(kCommand, invalid(option->get_name() + ": " + why));
  }
}

/// Real memory: no tier gets more than the whole footprint, and what home can hold needs no place
/// below.
void fit_to_footprint(runtime::ReplayOptions& options, std::uint64_t total_pages) {
  std::uint64_t left = total_pages;
  for (std::size_t t = 0; t < options.runtime.tier_pages.size(); ++t) {
    const bool below = t > options.runtime.platform.home;
    if (below) left -= std::min<std::uint64_t>(left, options.runtime.tier_pages[t - 1]);
    std::uint32_t& pages = options.runtime.tier_pages[t];
    pages = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(pages, below && left == 0 ? 0 : total_pages));
  }
}

std::string to_text(const runtime::ReplayResult& r, const std::string& hbm,
                    const runtime::ReplayOptions& options, const Prepared& prepared) {
  std::string out = fmt::format("{} at HBM {} ({} of {} pages), profile {}\n", r.policy, hbm,
                                options.runtime.tier_pages[kHbm], prepared.total_pages,
                                options.runtime.platform.name);
  const auto line = [&](const char* what, const std::string& value) {
    out += fmt::format("  {:<26}{}\n", what, value);
  };
  line("steps, tokens", fmt::format("{}, {}", r.steps, r.tokens));
  line("predicted step p50, p99", human_seconds(percentile(r.step_seconds, 0.5)) + ", " +
                                      human_seconds(percentile(r.step_seconds, 0.99)));
  if (!r.measured_seconds.empty()) {
    line("measured step p50, p99", human_seconds(percentile(r.measured_seconds, 0.5)) + ", " +
                                       human_seconds(percentile(r.measured_seconds, 0.99)));
  }
  line("predicted tokens/s", fmt::format("{:.1f} over all {} steps",
                                         static_cast<double>(r.tokens) / r.all.total, r.steps));
  line("exposed a step", human_seconds(r.all.exposed / r.steps));
  line("byte hits",
       fmt::format("{:.3f}%", 100 * ReadBytes(r.all, prepared.page_bytes, r.lowering).hit_rate()));
  for (std::size_t i = 0; i < options.runtime.platform.links.size(); ++i) {
    if (r.all.link[i].bytes == 0) continue;
    line(("over " + options.runtime.platform.links[i].name).c_str(),
         fmt::format("{} in {} transfers", human_bytes(static_cast<double>(r.all.link[i].bytes)),
                     r.all.link[i].count));
  }
  line("replayed in", fmt::format("{} ({:.1f} M page reads/s)", human_seconds(r.wall),
                                  static_cast<double>(r.all.reads) / r.wall / 1e6));
  for (const std::string& note : r.notes) out += fmt::format("  {}\n", note);
  return out;
}

/// On a GPU the replay calls its machine itself: what was measured is more than the C interface
/// tells.
nlohmann::ordered_json run_on_gpu(const Arguments& arguments, const Prepared& prepared,
                                  const std::string& hbm, const runtime::ReplayOptions& options) {
  ProgressBar bar("replaying");
  DecodeOptions how = arguments.gpu;
  how.nvme_directory = arguments.nvme_directory;
  const DecodeOutcome outcome =
      take(kCommand, decode(prepared, options, how, [&](double share) { bar.show(share); }));
  if (arguments.replay.json != "-") {
    print(kCommand, to_text(outcome.result, hbm, options, prepared));
    print_decode(outcome, options);
  }
  if (!arguments.calibrated.empty()) {
    take(kCommand, write_calibrated(arguments.calibrated, arguments.replay.profile, outcome));
  }
  if (!arguments.timeline.empty()) {
    take(kCommand, write_timeline(arguments.timeline, outcome, options.runtime.platform));
  }
  nlohmann::ordered_json cell = figures(outcome.result, options, prepared.page_bytes);
  cell["cuda"] = decode_figures(outcome, options);
  return cell;
}

nlohmann::ordered_json run_elsewhere(const Arguments& arguments, const Prepared& prepared,
                                     const std::string& hbm,
                                     const runtime::ReplayOptions& options) {
  ProgressBar bar("replaying");
  const runtime::ApiOptions api{arguments.machine, arguments.replay.profile,
                                arguments.nvme_directory};
  const auto result =
      take(kCommand, runtime::replay_through_api(prepared.workload, options, api,
                                                 [&](double share) { bar.show(share); }));
  if (arguments.replay.json != "-") print(kCommand, to_text(result, hbm, options, prepared));
  return figures(result, options, prepared.page_bytes);
}

/// On the CPU with the trace's own K, V and queries in the pages.
nlohmann::ordered_json run_attending(const Arguments& arguments, const Prepared& prepared,
                                     const std::string& hbm,
                                     const runtime::ReplayOptions& options) {
  ProgressBar bar("attending");
  const runtime::ApiOptions api{arguments.machine, arguments.replay.profile,
                                arguments.nvme_directory};
  auto outcome =
      take(kCommand, runtime::attend_through_api(*prepared.traces.front(), options, api,
                                                 [&](double share) { bar.show(share); }));
  const auto most = std::max_element(outcome.errors.begin(), outcome.errors.end());
  const double worst = most == outcome.errors.end() ? 0 : *most;
  const double p50 = percentile(outcome.errors, 0.5), p99 = percentile(outcome.errors, 0.99);
  outcome.replay.notes.push_back(
      fmt::format("output against float64, {} rows: {:.2e} p50, {:.2e} p99, {:.2e} at most",
                  outcome.errors.size(), p50, p99, worst));
  if (arguments.replay.json != "-")
    print(kCommand, to_text(outcome.replay, hbm, options, prepared));
  nlohmann::ordered_json cell = figures(outcome.replay, options, prepared.page_bytes);
  cell["output_error"] = {
      {"rows", outcome.errors.size()}, {"p50", p50}, {"p99", p99}, {"most", worst}};
  return cell;
}

/// Several GPUs that all serve.
nlohmann::ordered_json run_group(const Arguments& arguments, const Prepared& prepared,
                                 const std::string& hbm, const runtime::ReplayOptions& options) {
  const GroupMachines machines{arguments.machine, arguments.nvme_directory, arguments.gpu};
  const serving::GroupReplayOptions group =
      take(kCommand, group_options(arguments.group, machines, prepared, options));
  ProgressBar bar("replaying");
  const serving::GroupOutcome outcome =
      take(kCommand,
           serving::replay_group(prepared.workload, group, [&](double share) { bar.show(share); }));
  if (arguments.replay.json != "-") {
    print(kCommand,
          fmt::format("HBM {} of all: ", hbm) + group_text(outcome, arguments.group, group));
  }
  return group_figures(outcome, arguments.group, group, options, prepared.page_bytes);
}

/// What only one GPU's replay can do.
void check_group(const Arguments& arguments) {
  if (!arguments.group.asked()) {
    if (arguments.group.divides())
      fail_usage(kCommand,
                 invalid("--split, --budget, --deal, --rebalance and --turns need --gpus"));
    return;
  }
  if (!arguments.timeline.empty() || !arguments.calibrated.empty() || arguments.gpu.trace_kernels) {
    fail_usage(kCommand,
               invalid("--perfetto, --calibrated and --trace-kernels are of one GPU: leave out "
                       "--gpus"));
  }
}

/// Options that go with some machines or workloads only.
void check_together(const Arguments& arguments) {
  check_group(arguments);
  if (arguments.attend && (arguments.machine != "host" || arguments.group.asked()))
    fail_usage(kCommand, invalid("--attend needs --machine host, and no --gpus"));
  if (arguments.attend && (arguments.replay.traces.size() != 1 || arguments.replay.sequences > 1))
    fail_usage(kCommand, invalid("--attend takes one trace and one sequence"));
  if (arguments.attend) refuse_given(arguments.of_selection, "--attend reads every page");
  if (arguments.machine != "cuda") refuse_given(arguments.of_cuda, "needs --machine cuda");
}

/// What a replay at one capacity shows.
nlohmann::ordered_json run_at(const Arguments& arguments, const Prepared& prepared,
                              const std::string& hbm, runtime::ReplayOptions& options) {
  const auto descriptor = take(kCommand, placement::find_policy(options.runtime.policy));
  if (descriptor->traits.unlimited) {
    options.runtime.tier_pages[kHbm] = static_cast<std::uint32_t>(prepared.total_pages);
  }
  options.max_steps = arguments.steps;
  if (arguments.group.asked()) return run_group(arguments, prepared, hbm, options);
  if (arguments.machine == "cuda") return run_on_gpu(arguments, prepared, hbm, options);
  if (arguments.machine == "host") fit_to_footprint(options, prepared.total_pages);
  return arguments.attend ? run_attending(arguments, prepared, hbm, options)
                          : run_elsewhere(arguments, prepared, hbm, options);
}

void run(const Arguments& arguments) {
  check_together(arguments);
  const auto policy = parse_policy(arguments.policy);
  if (!policy) fail_usage(kCommand, policy.error());
  const auto made = placement::make_policy(policy->first, policy->second);
  if (!made) fail_usage(kCommand, made.error());
  std::unique_ptr<Prepared> prepared;
  {
    ProgressBar bar("reading traces");
    prepared = take(kCommand, prepare(arguments.replay, [&](double share) { bar.show(share); }));
  }
  nlohmann::ordered_json report = describe(arguments.replay, *prepared);
  report["machine"] = arguments.machine;
  for (const std::string& hbm : arguments.replay.hbm) {
    auto options = prepared->at(hbm);
    if (!options) fail(kCommand, options.error());
    options->runtime.policy = policy->first;
    options->runtime.policy_parameters = policy->second;
    nlohmann::ordered_json cell = run_at(arguments, *prepared, hbm, *options);
    cell["hbm"] = hbm;
    cell["hbm_pages"] = options->runtime.tier_pages[kHbm];
    report["cells"].push_back(std::move(cell));
  }
  if (!arguments.replay.json.empty()) take(kCommand, write_json(arguments.replay.json, report));
}

}  // namespace

void add_replay(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App& command = *app.add_subcommand("replay", "Replay a trace under one policy");
  arguments->replay.add_to(command);
  command.add_option("--policy", arguments->policy, "NAME or NAME:KEY=VALUE,...");
  command
      .add_option("--machine", arguments->machine,
                  "What carries it out: sim, host, or cuda (a GPU)")
      ->check(CLI::IsMember({"sim", "host", "cuda"}));
  command.add_option("--nvme-dir", arguments->nvme_directory,
                     "Directory for the NVMe tier's scratch file on host and cuda");
  command.add_flag("--attend", arguments->attend,
                   "On host: pages hold the trace's own K and V, every page is attended to, and "
                   "the output is held against float64");
  command.add_option("--steps", arguments->steps, "Stop after so many steps (default: all)");
  arguments->group.add_to(command);
  for (const char* name : {"--select", "--sinks", "--recent"})
    arguments->of_selection.push_back(command.get_option(name));
  arguments->of_cuda = {
      command.add_option("--gpu", arguments->gpu.gpu, "On cuda: the GPU, from 0"),
      command.add_option("--donor", arguments->gpu.donor,
                         "On cuda: the GPU whose HBM is the home tier, where the profile says "
                         "peer"),
      command.add_flag("--check-reads", arguments->gpu.check_reads,
                       "On cuda: compare every page's contents before it is read"),
      command.add_flag("--trace-kernels", arguments->gpu.trace_kernels,
                       "On cuda: stamp each kernel's end; the step takes longer for it"),
      command.add_option("--spare-pages", arguments->gpu.spare_pages,
                         "On cuda: places in host memory for pages on their way to or from NVMe "
                         "beyond --host (default: a sixteenth of it)"),
      command.add_option("--faults", arguments->gpu.faults,
                         "On cuda: faults of the NVMe tier's transfers, e.g. read#100=eio"),
      command.add_option("--calibrated", arguments->calibrated,
                         "On cuda: write the profile, fitted to what was measured, to this file"),
      command.add_option("--perfetto", arguments->timeline,
                         "On cuda: write a timeline of the run to this file (ui.perfetto.dev)")};
  command.callback([arguments] { run(*arguments); });
}

}  // namespace lehr::tools
