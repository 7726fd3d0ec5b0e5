// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/base/geometry.hpp"
#include "placement/model.hpp"
#include "runtime/machine.hpp"
#include "runtime/machines/cuda/log.hpp"
#include "transfer/faults.hpp"

namespace lehr::runtime {

/// How pages live below the home tier: in a file.
struct BelowOptions {
  std::string directory;  ///< for the file; empty: the system's temporary one
  bool use_uring = true;
  transfer::FaultPlan faults;  ///< of its transfers
  /// Places in host memory beyond those of the home tier, for pages on their way up or down; 0: a
  /// sixteenth of the home tier's, 256 to 65536. A step that brings up more is launched in parts.
  std::uint32_t spare_pages = 0;
  std::int64_t bound_ns = 60'000'000'000;  ///< a step that waits longer for its pages fails
  // For tests of the checks alone: a place is given away while launches use it; pages are read
  // after the launch that reads them; pages are written before the launch that makes them has
  // ended.
  bool reuse_at_once = false;
  bool reads_late = false;
  bool writes_early = false;
};

struct CudaMachineOptions {
  placement::Platform platform;           ///< names and order of the tiers
  std::vector<std::uint32_t> tier_pages;  ///< as the runtime has them; below the home tier at most
                                          ///< one has pages
  KvGeometry geometry;                    ///< as the kernels see it; fp16
  Bytes weights_bytes = 0;                ///< HBM read a step beside KV, by a stand-in
  std::uint32_t sequences = 0;            ///< that tables are made for; a larger batch has the step
                                          ///< captured again
  std::uint32_t pages = 0;                ///< likewise, of a sequence
  std::int32_t device = 0;
  std::int32_t donor = 1;        ///< whose HBM a home tier named "peer" is
  bool tiering = true;           ///< false: no movers; every page must stay in HBM
  bool sparse = true;            ///< false: neither scores nor selects nor feeds back
  bool check_reads = false;      ///< compares the contents of every page before it is read (slow)
  bool trace_kernels = false;    ///< stamps after each kernel: about 1.5 us more for each
  std::uint32_t mover_ctas = 0;  ///< 0: 8, or 32 over NVLink
  /// A recorded sequence's K, V and queries in host memory that outlives the machine, for batches
  /// of that sequence alone; without it contents are made from page ids.
  kernels::PageSource recorded;
  BelowOptions below;
  std::shared_ptr<cuda::DecodeLog> log;

  /// The tier below the home tier that has pages; 0: none.
  TierId below_home() const;
  /// Places in the home tier's memory: its slots, and spare ones where a tier is below it.
  std::uint32_t home_places() const;
};

/// HBM of a GPU, pinned host memory or another GPU's HBM as the home tier, a file below pinned host
/// memory, and a decode step of all layers in one CUDA graph: append, box scores, selection,
/// residency, attention, heat, and movers beside them. Pages are made from their ids; the selection
/// is what the caller imposes, scores and selection of the kernels' own are computed and put aside.
/// run() lists, end_step() launches: the next step is decided while this one runs, and its pages
/// come up from the file meanwhile.
///
/// kUnsupported in a build without CUDA, without a device, and for what the kernels do not offer.
Result<std::unique_ptr<Machine>> make_cuda_machine(const CudaMachineOptions& options);

/// HBM bytes that box scores read a step, for `pages` of full context: part of what a step reads
/// beside KV.
Bytes box_bytes(const KvGeometry& geometry, std::uint64_t pages);

}  // namespace lehr::runtime
