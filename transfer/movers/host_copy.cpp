// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "transfer/movers/worker_mover.hpp"

namespace lehr::transfer {
namespace {

Completion copy(const Job& job) {
  std::memcpy(job.destination.pointer, job.source.pointer, job.bytes);
  return completion_of(job, job.bytes, 0);
}

}  // namespace

Result<std::unique_ptr<Mover>> make_host_copy(const WorkerMoverConfig& config) {
  MoverTraits traits;
  traits.name = "host_copy";
  traits.moves[static_cast<std::size_t>(Space::kHostMemory)]
              [static_cast<std::size_t>(Space::kHostMemory)] = true;
  return WorkerMover::create(traits, config, copy);
}

}  // namespace lehr::transfer
