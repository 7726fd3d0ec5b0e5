// SPDX-License-Identifier: Apache-2.0
// lehr probe: measures this machine and writes its profile, or says what a profile no longer tells.
#include <algorithm>
#include <cmath>
#include <fstream>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "runtime/config/profile.hpp"
#include "tools/lehr/fail.hpp"
#include "tools/lehr/probe.hpp"
#include "tools/lehr/progress.hpp"
#include "tools/lehr/table.hpp"

namespace lehr::tools {
namespace {

struct Arguments {
  ProbeOptions options;
  std::string out, check, name;
  double tolerance = 0.10;
  bool json = false, no_gpu = false;
};

std::string percent(double ratio) { return fmt::format("{:+.1f} %", 100 * (ratio - 1)); }

nlohmann::json to_json(const ProbeResult& result) {
  nlohmann::json figures = nlohmann::json::array();
  for (const ProbeFigure& f : result.figures) {
    figures.push_back({{"name", f.name}, {"value", f.value}, {"unit", f.unit}});
  }
  return {{"schema", 1},
          {"source", result.profile.source},
          {"figures", figures},
          {"notices", result.notices},
          {"profile", config::write_profile(result.profile)}};
}

/// Exit code 1 when something drifted.
void check(const Arguments& args, const ProbeResult& result) {
  const config::Profile profile = take("probe", config::read_profile(args.check));
  std::vector<Drift> drifts = compare_profiles(profile, result);
  std::stable_sort(drifts.begin(), drifts.end(), [](const Drift& a, const Drift& b) {
    return std::abs(std::log(a.ratio())) > std::abs(std::log(b.ratio()));
  });
  const auto far = [&](const Drift& d) { return std::abs(d.ratio() - 1) > args.tolerance; };
  const auto drifted = std::count_if(drifts.begin(), drifts.end(), far);
  if (args.json) {
    nlohmann::json list = nlohmann::json::array();
    for (const Drift& d : drifts) {
      list.push_back({{"what", d.what},
                      {"profile", d.profile},
                      {"measured", d.measured},
                      {"drifted", far(d)}});
    }
    nlohmann::json all = to_json(result);
    all["check"] = {{"profile", args.check}, {"tolerance", args.tolerance}, {"figures", list}};
    fmt::print("{}\n", all.dump(2));
  } else {
    Table table({"figure", "profile", "measured", "drift"});
    for (const Drift& d : drifts) {
      if (!far(d)) break;
      table.add({d.what, human_bytes(d.profile) + "/s", human_bytes(d.measured) + "/s",
                 percent(d.ratio())});
    }
    if (drifted != 0) fmt::print("{}", table.text());
    fmt::print("{} of {} figures of {} differ by more than {:.0f} %\n", drifted, drifts.size(),
               args.check, 100 * args.tolerance);
  }
  if (drifted != 0) throw CLI::RuntimeError(kExitFailure);
}

void write(const Arguments& args, const ProbeResult& result) {
  const std::string text = config::write_profile(result.profile);
  // What is written is what the reader accepts, or it is not written.
  take("probe", config::parse_profile(text, "the new profile"));
  if (!args.out.empty()) {
    std::ofstream file(args.out);
    file << text;
    file.close();
    if (!file) fail("probe", io_error(args.out + ": cannot be written"));
  }
  if (args.json) return fmt::print("{}\n", to_json(result).dump(2));
  if (args.out.empty()) return fmt::print("{}", text);
  Table table({"figure", "value", "unit"});
  for (const ProbeFigure& f : result.figures) {
    table.add({f.name, fmt::format("{:.2f}", f.value), f.unit});
  }
  fmt::print("{}", table.text());
}

void run(const Arguments& args) {
  // A profile that cannot be read is said at once, not after two minutes.
  if (!args.check.empty()) take("probe", config::read_profile(args.check));
  ProbeOptions options = args.options;
  options.devices = !args.no_gpu;
  ProgressBar bar("probe");
  ProbeResult result = take("probe", run_probe(options, [&](const std::string& part, double done) {
                              bar.label("probe: " + part);
                              bar.show(done);
                            }));
  if (!args.name.empty()) result.profile.platform.name = args.name;
  for (const std::string& notice : result.notices) fmt::print(stderr, "lehr probe: {}\n", notice);
  if (args.check.empty()) return write(args, result);
  check(args, result);
}

}  // namespace

void add_probe(CLI::App& app) {
  auto args = std::make_shared<Arguments>();
  CLI::App& command = *app.add_subcommand(
      "probe", "Measure this machine's memories and links, and write its platform profile");
  command.add_option("-o,--out", args->out, "Write the profile to this file and print a table");
  command.add_option("--check", args->check,
                     "Say which figures of this profile differ from what is measured");
  command.add_option("--tolerance", args->tolerance, "Share by which a figure may differ")
      ->check(CLI::Range(0.001, 10.0));
  command.add_option("--nvme", args->options.nvme,
                     "A folder on the drive to measure (1 GiB is written there, and removed)");
  command.add_option("--base", args->options.base,
                     "Profile whose figures stand where nothing was measured");
  command.add_option("--name", args->name, "Name of the new profile");
  command.add_flag("--no-gpu", args->no_gpu, "Host memory and drive only");
  command.add_flag("--json", args->json, "Print JSON");
  command.callback([args] { run(*args); });
}

}  // namespace lehr::tools
