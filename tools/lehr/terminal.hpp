// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace lehr::tools {

/// The text on one line and harmless to a terminal: control characters, which names inside a file
/// may carry, become \xNN.
std::string printable(std::string_view text);

/// Writes all of it to standard output, control characters but line ends and tabs as \xNN; or
/// leaves the command by fail() (a full disk, a closed descriptor).
void print(const char* command, std::string_view text);

}  // namespace lehr::tools
