// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"
#include "runtime/formats/file.hpp"

namespace lehr::formats {

/// Do these bytes start a zstd frame?
bool is_zstd(std::span<const std::byte> bytes);

/// All frames of `input` in one buffer of at most `limit` bytes. The size that a frame declares is
/// only a hint: memory grows with what really comes out. Truncated and damaged frames are refused;
/// `name` leads the error line.
Result<Blob> zstd_decompress(std::span<const std::byte> input, Bytes limit, std::string_view name);

/// An AtomicFile that compresses what is written when its name ends in ".zst".
class OutputFile {
 public:
  static Result<OutputFile> create(const std::filesystem::path& path, int level = 19);

  OutputFile(OutputFile&&) noexcept;
  OutputFile& operator=(OutputFile&&) noexcept;
  ~OutputFile();

  Status write(std::span<const std::byte> bytes);
  Status commit();
  /// Bytes handed to the file system so far (after compression).
  Bytes written() const;

 private:
  struct Compressor;
  OutputFile(AtomicFile file, std::unique_ptr<Compressor> compressor);
  AtomicFile file_;
  std::unique_ptr<Compressor> compressor_;
};

}  // namespace lehr::formats
