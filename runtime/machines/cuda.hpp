// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/base/geometry.hpp"
#include "placement/model.hpp"
#include "runtime/machine.hpp"
#include "runtime/machines/cuda/log.hpp"

namespace lehr::runtime {

struct CudaMachineOptions {
  placement::Platform platform;           ///< names and order of the tiers
  std::vector<std::uint32_t> tier_pages;  ///< as the runtime has them; none below the home tier
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
  std::shared_ptr<cuda::DecodeLog> log;
};

/// HBM of a GPU, pinned host memory or another GPU's HBM as the home tier, and a decode step of all
/// layers in one CUDA graph: append, box scores, selection, residency, attention, heat, and movers
/// beside them. Pages are made from their ids; the selection is what the caller imposes, scores and
/// selection of the kernels' own are computed and put aside. run() lists, end_step() launches: the
/// next step is decided while this one runs.
///
/// kUnsupported in a build without CUDA, without a device, and for what the kernels do not offer.
Result<std::unique_ptr<Machine>> make_cuda_machine(const CudaMachineOptions& options);

/// HBM bytes that box scores read a step, for `pages` of full context: part of what a step reads
/// beside KV.
Bytes box_bytes(const KvGeometry& geometry, std::uint64_t pages);

}  // namespace lehr::runtime
