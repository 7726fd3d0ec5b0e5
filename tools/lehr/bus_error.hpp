// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lehr::tools {

/// From here on a read of a mapped input file that another process made shorter (or whose device
/// failed) ends the process with one line on stderr and kExitFailure, in place of SIGBUS's death
/// without a word. For programs only: a library must not claim a signal of its host.
void explain_bus_errors();

}  // namespace lehr::tools
