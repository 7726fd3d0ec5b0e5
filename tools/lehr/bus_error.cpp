// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/bus_error.hpp"

#include <csignal>

#include <unistd.h>

#include "tools/lehr/commands.hpp"

namespace lehr::tools {
namespace {

constexpr char kLine[] =
    "lehr: an input file became shorter, or could not be read from its device, while it was in "
    "use\n";

/// Only calls that are safe in a signal handler.
void on_bus_error(int signal_number, siginfo_t* info, void*) {
  if (info->si_code != BUS_ADRERR) {  // not a mapping's end: what would have happened without us
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    ::sigaction(signal_number, &standard, nullptr);
    ::raise(signal_number);
    return;
  }
  // Nobody is left to tell if even this cannot be written.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kLine, sizeof kLine - 1);
  ::_exit(kExitFailure);
}

}  // namespace

void explain_bus_errors() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace lehr::tools
