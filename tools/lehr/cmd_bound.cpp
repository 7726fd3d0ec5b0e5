// SPDX-License-Identifier: Apache-2.0
// lehr bound: what no policy can go below on a trace, capacity and profile.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "placement/bounds.hpp"
#include "tools/lehr/fail.hpp"
#include "tools/lehr/progress.hpp"
#include "tools/lehr/report.hpp"
#include "tools/lehr/table.hpp"
#include "tools/lehr/terminal.hpp"

namespace lehr::tools {

namespace {

constexpr const char* kCommand = "bound";

void run(const ReplayArguments& arguments) {
  std::unique_ptr<Prepared> prepared;
  {
    ProgressBar bar("reading traces");
    prepared = take(kCommand, prepare(arguments, [&](double share) { bar.show(share); }));
  }
  nlohmann::ordered_json report = describe(arguments, *prepared);
  Table table({"HBM", "bound", "all steps", "a step", "after warm-up", "a step"});
  const double steps = prepared->workload.steps();
  const double warm = std::max(0.0, steps - arguments.warmup);
  for (const std::string& hbm : arguments.hbm) {
    const auto options = prepared->at(hbm);
    if (!options) fail(kCommand, options.error());
    const auto instance = take(kCommand, runtime::replay_instance(prepared->workload, *options));
    placement::BoundOptions bound_options;
    bound_options.warmup_steps = arguments.warmup;
    const placement::Bound bound = take(kCommand, placement::lower_bound(instance, bound_options));
    nlohmann::ordered_json cell{
        {"hbm", hbm}, {"hbm_pages", instance.capacity}, {"best", bound.best.name}};
    for (const placement::BoundValue& v : bound.each) {
      table.add({hbm, v.name, human_seconds(v.total), human_seconds(v.total / steps),
                 warm > 0 ? human_seconds(v.without_warmup) : "-",
                 warm > 0 ? human_seconds(v.without_warmup / warm) : "-"});
      cell["bounds"].push_back(
          {{"name", v.name}, {"seconds", v.total}, {"seconds_without_warmup", v.without_warmup}});
    }
    report["cells"].push_back(std::move(cell));
  }
  std::string text;
  for (const std::string& notice : prepared->notices) text += "note: " + notice + "\n";
  if (arguments.json != "-") print(kCommand, text + table.text());
  if (!arguments.json.empty()) take(kCommand, write_json(arguments.json, report));
}

}  // namespace

void add_bound(CLI::App& app) {
  auto arguments = std::make_shared<ReplayArguments>();
  CLI::App& command =
      *app.add_subcommand("bound", "Certified lower bounds of a trace's predicted time");
  arguments->add_to(command);
  command.callback([arguments] { run(*arguments); });
}

}  // namespace lehr::tools
