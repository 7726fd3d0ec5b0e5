// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <system_error>

#include <CLI/CLI.hpp>

#include "tools/lehr/bus_error.hpp"
#include "tools/lehr/commands.hpp"
#include "tools/lehr/terminal.hpp"

namespace {

int run(int argc, char** argv) {
  CLI::App app("Lehr: tiered KV caches for transformer inference, replayed and compared", "lehr");
  app.set_version_flag("--version", LEHR_BUILD_VERSION);
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();
  lehr::tools::add_compare(app);
  lehr::tools::add_replay(app);
  lehr::tools::add_inspect(app);
  lehr::tools::add_bound(app);
  lehr::tools::add_experiment(app);
  lehr::tools::add_profiles(app);
  lehr::tools::add_probe(app);
  lehr::tools::add_cut(app);
  lehr::tools::add_record(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::RuntimeError& error) {  // a command has said what is wrong
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // help, or the version
    std::string command = "lehr";
    if (!app.get_subcommands().empty()) command += " " + app.get_subcommands().front()->get_name();
    std::fprintf(stderr, "%s: %s (%s --help lists what it takes)\n", command.c_str(),
                 lehr::tools::printable(error.what()).c_str(), command.c_str());
    return lehr::tools::kExitUsage;
  }
  if (std::fflush(stdout) == 0 && std::cout.flush()) return 0;
  std::fputs("lehr: standard output: cannot write\n", stderr);
  return lehr::tools::kExitFailure;
}

}  // namespace

int main(int argc, char** argv) {
  lehr::tools::explain_bus_errors();
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("lehr: out of memory\n", stderr);
  } catch (const std::system_error& error) {  // fmt's: standard output is full or closed
    std::fprintf(stderr, "lehr: standard output: %s\n", error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lehr: %s\n", error.what());
  }
  return lehr::tools::kExitFailure;
}
