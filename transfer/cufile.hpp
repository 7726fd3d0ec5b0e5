// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transfer/mover.hpp"

namespace lehr::transfer {

struct CuFileConfig {
  std::string library = "libcufile.so.0";  ///< loaded at run time
  std::vector<int> files;                  ///< opened with O_DIRECT
  std::uint32_t threads = 8;
  std::uint32_t queue = 4096;
  Space far = Space::kDeviceMemory;
  /// Copies far memory to the host, for checksums: cuFile itself checks nothing.
  std::function<Status(std::byte* to, const std::byte* from, Bytes bytes)> fetch;
};

/// Files straight to and from a device's memory, by NVIDIA's cuFile where it is installed. A system
/// without its kernel driver serves in compatibility mode, through host memory: probe() says so.
/// kUnsupported, with the reason, where the library or a device is missing.
Result<std::unique_ptr<Mover>> make_file_cufile(const CuFileConfig& config);

}  // namespace lehr::transfer
