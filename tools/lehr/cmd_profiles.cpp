// SPDX-License-Identifier: Apache-2.0
// lehr profiles: the shipped platform profiles, or one as TOML.
#include <CLI/CLI.hpp>

#include "runtime/config/profile.hpp"
#include "tools/lehr/fail.hpp"
#include "tools/lehr/table.hpp"
#include "tools/lehr/terminal.hpp"

namespace lehr::tools {

namespace {

constexpr const char* kCommand = "profiles";

void list() {
  Table table({"profile", "HBM", "HBM read", "to HBM, 16 KiB pages", "from HBM", "summary"});
  for (const config::ProfileInfo& info : config::shipped_profiles()) {
    const config::Profile p = take(kCommand, config::parse_profile(info.text, info.name));
    const auto& links = p.platform.links;
    const LinkId up = p.platform.link(p.platform.home, kHbm);
    const LinkId down = p.platform.link(kHbm, p.platform.home);
    constexpr double kPage = 16 * 1024;
    table.add({info.name, human_bytes(static_cast<double>(p.platform.tiers[kHbm].capacity)),
               human_bytes(p.platform.hbm.peak()) + "/s",
               human_bytes(links[up].curve.best_for_size(kPage)) + "/s",
               human_bytes(links[down].curve.best_for_size(kPage)) + "/s", info.summary});
  }
  print(kCommand, table.text());
}

}  // namespace

void add_profiles(CLI::App& app) {
  auto name = std::make_shared<std::string>();
  CLI::App& command =
      *app.add_subcommand("profiles", "List the shipped platform profiles, or print one");
  command.add_option("name", *name, "Print this profile (a name, or a file to check) as TOML");
  command.callback([name] {
    if (name->empty()) return list();
    for (const config::ProfileInfo& info : config::shipped_profiles()) {
      if (info.name == *name) return print(kCommand, info.text);
    }
    print(kCommand, config::write_profile(take(kCommand, config::read_profile(*name))));
  });
}

}  // namespace lehr::tools
