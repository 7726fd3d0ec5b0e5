// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "runtime/machine.hpp"

namespace lehr::runtime {

/// Time from the model, no bytes moved: runs anywhere, millions of pages.
std::unique_ptr<Machine> make_sim_machine();

}  // namespace lehr::runtime
