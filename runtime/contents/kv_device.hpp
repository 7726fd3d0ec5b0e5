// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "kernels/append.hpp"
#include "kernels/attend.hpp"
#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"
#include "kernels/boxes.hpp"
#include "kernels/move.hpp"
#include "kernels/rows.hpp"
#include "kernels/score_select.hpp"

namespace lehr::contents {

/// A piece of memory that a device reads and writes; `host` is null where the host cannot.
struct Block {
  std::uint64_t device = 0;
  std::byte* host = nullptr;
  Bytes bytes = 0;
};

/// The caller's stream, and one beside it for copies that nobody waits for yet.
enum class Lane : std::uint8_t { kMain, kSide };

struct ScoreSelectWork {
  kernels::ScoreParams score;
  kernels::SelectParams select;
};
struct AttendWork {
  kernels::AttendParams params;
  Block workspace;
};
/// What can be launched on the main lane.
using Work = std::variant<kernels::AppendParams, kernels::StoreParams, kernels::LoadParams,
                          kernels::CopyRowsParams, kernels::BoxesParams, ScoreSelectWork,
                          AttendWork, kernels::NoteParams>;

/// A point in a lane's order.
using Mark = std::uint64_t;

/// Memory, launches and their order, as contents on a device need them. Calls enqueue and return;
/// what is enqueued on a lane runs in order, and lanes meet at marks. One thread.
class KvDevice {
 public:
  virtual ~KvDevice() = default;

  /// Zeroed. Device memory, or host memory that the device reads and writes.
  virtual Result<Block> memory(Bytes bytes) = 0;
  virtual Result<Block> pinned(Bytes bytes) = 0;
  /// Once everything enqueued has run; this waits for it.
  virtual void release(const Block& block) = 0;

  /// Makes `stream` the main lane; what was enqueued before stays before.
  virtual Status use(void* stream) = 0;
  /// The main lane is being captured into a graph: nothing that is enqueued runs now.
  virtual Result<bool> capturing() = 0;

  /// Scratch that attention of this shape needs.
  virtual Result<Bytes> workspace(const kernels::StepShape& shape) = 0;
  virtual Status launch(const kernels::StepShape& shape, const Work& work) = 0;
  virtual Status write(const kernels::WriteWordsParams& words) = 0;
  /// Pages of `page_bytes`, from and to anywhere. `pairs` is pinned memory, as the device sees it.
  virtual Status move(std::uint64_t pairs, std::uint32_t count, std::uint32_t page_bytes,
                      Lane lane) = 0;
  virtual Status copy(std::uint64_t to, std::uint64_t from, Bytes bytes, Lane lane) = 0;

  virtual Result<Mark> mark(Lane lane) = 0;
  virtual Status wait(Lane lane, Mark mark) = 0;
  virtual Status wait_host(Mark mark) = 0;

  virtual std::string describe() const = 0;
};

}  // namespace lehr::contents
