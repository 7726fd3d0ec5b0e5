// SPDX-License-Identifier: Apache-2.0
#include "transfer/page_index.hpp"

#include <cerrno>
#include <cstring>
#include <memory>
#include <new>

#include <fcntl.h>

#include "transfer/checksum.hpp"

namespace lehr::transfer {
namespace {

constexpr std::uint64_t kBlockBytes = 4096;
constexpr std::uint64_t kIndexMagic = 0x3158'4449'5248'454CULL;  // "LEHRIDX1"
constexpr std::uint32_t kFormatVersion = 1;

/// Written field by field, so that padding never reaches the disk.
struct PackedRecord {
  std::uint64_t words[8];
};
static_assert(sizeof(PackedRecord) == 64);

std::uint64_t sum(const std::uint64_t* words, std::size_t count) {
  return checksum(std::as_bytes(std::span(words, count)));
}

PackedRecord pack(SlotId slot, const PageRecord& r) {
  PackedRecord p{};
  p.words[0] = r.key.high;
  p.words[1] = r.key.low;
  p.words[2] = r.contents_checksum;
  p.words[3] = (std::uint64_t{r.version} << 32) | r.page;
  p.words[4] = slot;  // a record copied to another place is no record
  p.words[7] = sum(p.words, 7);
  return p;
}

bool unpack(SlotId slot, const PackedRecord& p, PageRecord& r) {
  if (p.words[7] != sum(p.words, 7) || p.words[4] != slot) return false;
  r.key = {p.words[0], p.words[1]};
  r.contents_checksum = p.words[2];
  r.page = static_cast<PageId>(p.words[3]);
  r.version = static_cast<std::uint32_t>(p.words[3] >> 32);
  return true;
}

struct Block {
  alignas(kBlockBytes) std::uint64_t words[kBlockBytes / 8];
};

Status write_all(int fd, const void* data, std::size_t bytes, std::uint64_t offset,
                 const char* what) {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes != 0) {
    const ssize_t wrote = ::pwrite(fd, at, bytes, static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return os_error(what, errno);
    at += wrote;
    bytes -= static_cast<std::size_t>(wrote);
    offset += static_cast<std::uint64_t>(wrote);
  }
  return {};
}

/// Bytes read until `bytes` or the end of the file.
Result<std::size_t> read_all(int fd, void* data, std::size_t bytes, std::uint64_t offset,
                             const std::string& path) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::pread(fd, static_cast<std::byte*>(data) + done, bytes - done,
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os_error("reading " + path, errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

}  // namespace

Status write_identity(int fd, std::uint64_t magic, const FileIdentity& id) {
  auto block = std::make_unique<Block>();
  std::memset(block.get(), 0, sizeof(Block));
  const std::uint64_t fields[] = {magic,         kFormatVersion, id.file_id, id.layout_digest,
                                  id.page_bytes, id.stride,      id.slots,   id.slots_per_extent};
  std::copy(std::begin(fields), std::end(fields), block->words);
  block->words[8] = sum(block->words, 8);
  return write_all(fd, block->words, kBlockBytes, 0, "writing a file header");
}

Result<FileIdentity> read_identity(int fd, std::uint64_t magic, const std::string& path) {
  auto block = std::make_unique<Block>();
  LEHR_ASSIGN(const std::size_t got, read_all(fd, block->words, kBlockBytes, 0, path));
  if (got < kBlockBytes) {
    return corrupt(path + ": " + std::to_string(got) + " bytes, expected a header of 4096",
                   Reason::kTruncated);
  }
  const std::uint64_t* w = block->words;
  if (w[0] != magic) return corrupt(path + ": not a file of Lehr's (wrong magic)");
  if (w[8] != sum(w, 8)) return corrupt(path + ": damaged header", Reason::kChecksum);
  if (w[1] != kFormatVersion) {
    return Error{Code::kVersion, Reason::kNone,
                 path + ": format version " + std::to_string(w[1]) + ", expected 1"};
  }
  return FileIdentity{w[2], w[3], w[4], w[5], w[6], w[7]};
}

std::uint64_t PageIndex::file_bytes(std::uint64_t slots) {
  return kBlockBytes + (slots * sizeof(PackedRecord) + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

Result<PageIndex> PageIndex::create(const std::string& path, const FileIdentity& identity) {
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) return os_error("creating " + path, errno);
  const std::uint64_t bytes = file_bytes(identity.slots);
  Status made = {};
  if (const int rc = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)); rc != 0) {
    made = os_error("reserving " + std::to_string(bytes) + " bytes for " + path, rc);
  } else {
    made = write_identity(fd.get(), kIndexMagic, identity);
  }
  if (!made) {
    ::unlink(path.c_str());
    return made.error();
  }
  PageIndex index(static_cast<SlotId>(identity.slots));
  index.fd_ = std::move(fd);
  return index;
}

Result<PageIndex::Opened> PageIndex::open(const std::string& path, const FileIdentity& identity) {
  Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) {
    if (errno == ENOENT) return not_found(path + ": no such file");
    return os_error("opening " + path, errno);
  }
  LEHR_ASSIGN(const FileIdentity found, read_identity(fd.get(), kIndexMagic, path));
  if (!(found == identity)) {
    return Error{Code::kVersion, Reason::kLayoutMismatch,
                 path + ": belongs to another file or page layout"};
  }
  Opened opened{PageIndex(static_cast<SlotId>(identity.slots))};
  std::vector<PackedRecord> packed(identity.slots);
  LEHR_ASSIGN(
      const std::size_t got,
      read_all(fd.get(), packed.data(), packed.size() * sizeof(PackedRecord), kBlockBytes, path));
  static constexpr PackedRecord kBlank{};
  for (SlotId s = 0; s < packed.size(); ++s) {
    const bool there = (std::size_t{s} + 1) * sizeof(PackedRecord) <= got;
    if (there && std::memcmp(&packed[s], &kBlank, sizeof kBlank) == 0) continue;
    if (there && unpack(s, packed[s], opened.index.records_[s])) {
      opened.found += opened.index.records_[s].present();
    } else {
      ++opened.damaged;
    }
  }
  opened.index.fd_ = std::move(fd);
  return opened;
}

Status PageIndex::put(SlotId slot, const PageRecord& record) {
  records_[slot] = record;
  return store(slot);
}

Status PageIndex::erase(SlotId slot) {
  if (!records_[slot].present()) return {};
  records_[slot] = {};
  return store(slot);
}

Status PageIndex::store(SlotId slot) {
  if (!fd_) return {};
  PackedRecord packed{};
  if (records_[slot].present()) packed = pack(slot, records_[slot]);
  return write_all(fd_.get(), &packed, sizeof packed, kBlockBytes + slot * sizeof packed,
                   "writing the page index");
}

Status PageIndex::sync() {
  if (fd_ && ::fdatasync(fd_.get()) != 0) return os_error("syncing the page index", errno);
  return {};
}

}  // namespace lehr::transfer
