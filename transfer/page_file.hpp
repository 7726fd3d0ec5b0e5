// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>

#include "transfer/page_index.hpp"
#include "transfer/store.hpp"

namespace lehr::transfer {

struct PageFileConfig {
  std::string name;
  /// A directory for scratch (the file has no name and is gone with its last descriptor, also after
  /// a kill); a file name for one that is kept. The index is kept beside it as `path`.index.
  std::string path;
  bool keep = false;
  SlotId pages = 0;
  Bytes page_bytes = 0;
  Bytes extent_bytes = kMiB;  ///< 256 KiB to 2 MiB; larger pages get extents of one page
  Bytes limit_bytes = 0;      ///< data and index together never take more; 0: no limit of its own
  bool direct = true;         ///< O_DIRECT where the file system has it, else a notice
  std::uint64_t layout_digest = 0;
  /// On opening, read every recorded page and drop those whose bytes are not what was recorded.
  bool verify_contents = true;
  bool guard_leases = true;
};

/// What was found when a kept file was opened again.
struct PageFileReport {
  bool existed = false;
  bool other_layout = false;    ///< pages of another layout or geometry were there; all are misses
  SlotId found = 0;             ///< pages that can be read
  SlotId damaged_records = 0;   ///< dropped: the record itself is damaged
  SlotId damaged_contents = 0;  ///< dropped: the bytes are not the recorded ones
};

/// Page slots in one preallocated file: extents of page-first, 4 KiB aligned pages after one header
/// block. The file system's space is taken at creation, so that a write cannot meet a full disk
/// later; what does not fit is refused with kNoSpace or kOverBudget and leaves nothing behind.
class PageFile final : public Store {
 public:
  static constexpr Bytes kBlock = 4096;

  static Result<std::unique_ptr<PageFile>> open(const PageFileConfig& config);
  ~PageFile() override;

  Address address(SlotId slot) const override;
  int fd() const { return fd_.get(); }
  bool direct() const { return direct_; }
  const PageFileReport& report() const { return report_; }

  /// The header table. The owner of the slots serialises its use.
  PageIndex& index() { return *index_; }

  /// Makes what was written durable: first pages, then records.
  Status sync();
  /// Whether the file still has its name and size; a scratch file has no name to lose.
  Status check_backing() const;

 private:
  PageFile() = default;
  Status open_scratch(const PageFileConfig& config);
  Status open_kept(const PageFileConfig& config);
  Status create_kept(const PageFileConfig& config);
  Status recover(const PageFileConfig& config);
  Status reserve_space(const PageFileConfig& config, const std::string& shown);
  void enable_direct();
  Result<bool> contents_match(SlotId slot, std::span<std::byte> buffer) const;

  Fd fd_;
  std::string path_;  ///< empty for scratch
  bool direct_ = false;
  Bytes extent_bytes_ = 0;
  std::uint32_t per_extent_ = 1;
  Bytes data_bytes_ = 0;
  FileIdentity identity_;
  std::unique_ptr<PageIndex> index_;
  PageFileReport report_;
};

}  // namespace lehr::transfer
