// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/ids.hpp"
#include "kernels/base/result.hpp"
#include "transfer/os/fd.hpp"

namespace lehr::transfer {

/// The name of a page that outlives a run: 128 bits of the caller's (a content key's digest, or a
/// number).
struct PageKey {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const PageKey&, const PageKey&) = default;
};

/// What a slot of a file holds. version 0 means nothing.
struct PageRecord {
  PageKey key;
  std::uint64_t contents_checksum = 0;
  PageId page = kNoPage;
  std::uint32_t version = 0;
  bool present() const { return version != 0; }
};

/// What must agree for a file's pages to be found again. All of it is compared.
struct FileIdentity {
  std::uint64_t file_id = 0;  ///< drawn when the data file was made
  std::uint64_t layout_digest = 0;
  std::uint64_t page_bytes = 0;
  std::uint64_t stride = 0;
  std::uint64_t slots = 0;
  std::uint64_t slots_per_extent = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

/// The header table of a page file: a record a slot, in memory and, for a file that is kept, beside
/// it in an index file. A record is written only when its page's bytes were, and taken back before
/// they are overwritten, so that after a kill the index names pages that are whole. Across a power
/// loss the checksums decide. Not thread safe.
class PageIndex {
 public:
  /// Kept in memory only.
  explicit PageIndex(SlotId slots) : records_(slots) {}
  /// A new index file; `path` must not exist.
  static Result<PageIndex> create(const std::string& path, const FileIdentity& identity);

  struct Opened;
  /// An existing one. Another identity gives kVersion with kLayoutMismatch; a file that is no index
  /// of ours gives kCorrupt; damaged records are left out and counted.
  static Result<Opened> open(const std::string& path, const FileIdentity& identity);

  const PageRecord& at(SlotId slot) const { return records_[slot]; }
  Status put(SlotId slot, const PageRecord& record);
  Status erase(SlotId slot);
  Status sync();
  static std::uint64_t file_bytes(std::uint64_t slots);

 private:
  Status store(SlotId slot);
  std::vector<PageRecord> records_;
  Fd fd_;
};

struct PageIndex::Opened {
  PageIndex index;
  SlotId found = 0;
  SlotId damaged = 0;
};

/// One 4 KiB block that identifies a file: written at the start of data and index files.
Status write_identity(int fd, std::uint64_t magic, const FileIdentity& identity);
Result<FileIdentity> read_identity(int fd, std::uint64_t magic, const std::string& path);

}  // namespace lehr::transfer
