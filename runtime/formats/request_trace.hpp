// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"

namespace lehr::formats {

/// One request of a request trace. Block i covers the prompt's tokens [i * block, (i + 1) * block).
struct Request {
  double timestamp_ms = 0;
  std::uint32_t input_length = 0;
  std::uint32_t output_length = 0;
  std::uint32_t block_size = 0;  ///< tokens a block as recorded, 0 where the line does not say
  std::uint32_t block_count = 0;
  std::uint64_t first_block = 0;  ///< index into RequestTrace::hash_ids
  std::int64_t session = -1;      ///< -1 where the line does not say
};

/// A request trace (DESIGN §6) in memory, requests in file order.
class RequestTrace {
 public:
  /// Plain or zstd-compressed (told by content), at most `limit` bytes when decompressed. Unknown
  /// keys and blank lines are skipped; an error names file, line and key.
  static Result<RequestTrace> open(const std::filesystem::path& path, Bytes limit = 4 * kGiB);
  static Result<RequestTrace> parse(std::string_view text, std::string_view name);

  std::span<const Request> requests() const { return requests_; }
  /// Block ids of a request, as recorded: equal id, equal content and equal prefix before it.
  std::span<const std::uint64_t> blocks(const Request& request) const {
    return std::span(hash_ids_).subspan(request.first_block, request.block_count);
  }
  std::span<const std::uint64_t> hash_ids() const { return hash_ids_; }

 private:
  std::vector<Request> requests_;
  std::vector<std::uint64_t> hash_ids_;
};

}  // namespace lehr::formats
