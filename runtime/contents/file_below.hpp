// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/result.hpp"
#include "runtime/machine.hpp"
#include "transfer/engine.hpp"

namespace lehr::contents {

struct FileBelowOptions {
  TierId below = 0;  ///< the file, as operations number it; the other end is the home tier
  Bytes page_bytes = 0;
  std::uint32_t home_pages = 0;
  std::uint32_t pages = 0;  ///< of the file
  std::string directory;  ///< of the scratch file, which vanishes with the process; empty: $TMPDIR
  transfer::FaultPlan faults;
};

/// A file below the home tier of contents on a device: pages move between it and host memory that
/// the device reads, while nothing else uses their places. Every page is verified by name, version
/// and checksum as it comes up. One thread.
class FileBelow {
 public:
  /// From place to place of the home tier.
  static Bytes stride(Bytes page_bytes);
  /// `home`: memory of home_pages places, at a multiple of 4 KiB, that outlives this.
  static Result<std::unique_ptr<FileBelow>> create(const FileBelowOptions& options,
                                                   std::span<std::byte> home);

  /// Carries out copies between the home tier and the file, in order; returns when all have ended.
  /// What a page holds at home is taken for what the operation says. After an error its pages are
  /// nowhere.
  Status run(std::span<const runtime::PageOp> ops);

  std::vector<std::string> notices() const { return engine_->stats().notices; }

 private:
  FileBelow(const FileBelowOptions& options, std::unique_ptr<transfer::TransferEngine> engine);
  Status take_results();

  FileBelowOptions options_;
  std::unique_ptr<transfer::TransferEngine> engine_;
};

}  // namespace lehr::contents
