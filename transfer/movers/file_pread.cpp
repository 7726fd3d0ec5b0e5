// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>

#include <unistd.h>

#include "transfer/movers/worker_mover.hpp"

namespace lehr::transfer {
namespace {

/// O_DIRECT takes whole blocks only, so the rest of a short request starts at one.
constexpr Bytes kBlock = 4096;

Completion transfer(const Job& job) {
  const bool write = job.destination.space == Space::kFile;
  const Address& file = write ? job.destination : job.source;
  std::byte* const memory = write ? job.source.pointer : job.destination.pointer;
  Bytes done = 0;
  Bytes limit = job.first_bytes;
  while (done < job.bytes) {
    Bytes asked = job.bytes - done;
    if (limit != 0) asked = std::min(asked, limit);
    limit = 0;
    const auto at = static_cast<off_t>(file.offset + done);
    const ssize_t result = write ? ::pwrite(file.unit, memory + done, asked, at)
                                 : ::pread(file.unit, memory + done, asked, at);
    if (result < 0 && errno == EINTR) continue;
    if (result < 0) return completion_of(job, done, errno);
    const Bytes reached = done + static_cast<Bytes>(result);
    if (reached >= job.bytes) {
      done = reached;
    } else if (const Bytes whole = reached / kBlock * kBlock; whole > done) {
      done = whole;
    } else {
      return completion_of(job, reached, 0);  // not one block more: the file ends here
    }
  }
  return completion_of(job, done, 0);
}

}  // namespace

Result<std::unique_ptr<Mover>> make_file_pread(const WorkerMoverConfig& config) {
  MoverTraits traits;
  traits.name = "file_pread";
  const auto host = static_cast<std::size_t>(Space::kHostMemory);
  const auto file = static_cast<std::size_t>(Space::kFile);
  traits.moves[host][file] = traits.moves[file][host] = true;
  return WorkerMover::create(traits, config, transfer);
}

}  // namespace lehr::transfer
