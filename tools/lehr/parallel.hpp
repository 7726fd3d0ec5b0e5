// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

namespace lehr::tools {

/// Runs work(0) .. work(count - 1) on as many threads as there are cores. `done(share)` is called
/// under a lock after each.
void parallel(std::size_t count, const std::function<void(std::size_t)>& work,
              const std::function<void(double)>& done);

/// CPU time of the calling thread.
double thread_seconds();

}  // namespace lehr::tools
