// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"

namespace lehr::formats {

/// A read-only mapping of a regular file. Removing or renaming the file while it is mapped is
/// harmless; once another process truncates it in place, a read past its new end raises SIGBUS, as
/// with any mapping. FileContents keeps out of that for all but very large files.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);
  /// Of the first `size` bytes of an open file; `path` is for messages.
  static Result<MappedFile> of(int fd, std::size_t size, const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Growable bytes that are not initialised on growth and report a lack of memory as a value.
class Blob {
 public:
  Status reserve(std::size_t capacity);
  void set_size(std::size_t size) { size_ = size; }  ///< size <= capacity()

  std::byte* data() { return data_.get(); }
  std::size_t size() const { return size_; }
  std::size_t capacity() const { return capacity_; }
  std::span<const std::byte> bytes() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

/// What a reader reads: a copy in memory, decompressed where the file is zstd, or a mapping of a
/// plain file that is large. A copy does not care what others do to the file from then on; one that
/// shrinks while it is copied is refused with kTruncated.
class FileContents {
 public:
  /// Files up to this size are copied: about 20 ms for the largest.
  static constexpr Bytes kCopyUpTo = 64 * kMiB;

  /// Compression is told by the file's first bytes, not by its name. `limit` bounds the
  /// decompressed size; plain files are opened whatever their size. Files above `copy_up_to` are
  /// mapped (with MappedFile's caveat), compressed ones for as long as this call takes.
  static Result<FileContents> open(const std::filesystem::path& path, Bytes limit,
                                   Bytes copy_up_to = kCopyUpTo);

  std::span<const std::byte> bytes() const { return in_memory_ ? blob_.bytes() : file_.bytes(); }
  bool compressed() const { return compressed_; }
  Bytes file_bytes() const { return file_bytes_; }

 private:
  MappedFile file_;
  Blob blob_;
  Bytes file_bytes_ = 0;
  bool in_memory_ = false;
  bool compressed_ = false;
};

/// A file that appears whole or not at all. Bytes go to an unnamed (where the file system has none:
/// a hidden) temporary file in the same directory; commit() flushes it to the device and renames it
/// over `path`. Destruction without commit leaves the directory as it was. Writes are buffered.
class AtomicFile {
 public:
  /// Refuses what is not a regular file. A symbolic link is followed.
  static Result<AtomicFile> create(const std::filesystem::path& path);

  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) noexcept;
  ~AtomicFile();

  Status write(std::span<const std::byte> bytes);
  Status commit();
  Bytes written() const;

 private:
  struct State;
  explicit AtomicFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Temporary bytes without a name: written in order, then read back from the start. Gone with the
/// owner, also after a crash (where the file system has no unnamed files, the name is removed at
/// once).
class SpoolFile {
 public:
  static Result<SpoolFile> create(const std::filesystem::path& directory);

  SpoolFile(SpoolFile&& other) noexcept;
  SpoolFile& operator=(SpoolFile&& other) noexcept;
  ~SpoolFile();

  Status append(std::span<const std::byte> bytes);
  Status read(Bytes offset, std::span<std::byte> out) const;

 private:
  explicit SpoolFile(int fd) : fd_(fd) {}
  int fd_ = -1;
  Bytes size_ = 0;
};

/// Text of the system's last error for `path`: "path: cannot open: No such file or directory".
Error system_error(const std::filesystem::path& path, const char* action, int error_number);

}  // namespace lehr::formats
