// SPDX-License-Identifier: Apache-2.0
#include "transfer/page_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "transfer/checksum.hpp"

namespace lehr::transfer {
namespace {

constexpr std::uint64_t kDataMagic = 0x3147'4150'5248'454CULL;  // "LEHRPAG1"

Bytes round_up(Bytes bytes, Bytes unit) { return (bytes + unit - 1) / unit * unit; }

std::uint64_t draw_file_id() {
  std::uint64_t id = 0;
  if (::getrandom(&id, sizeof id, GRND_NONBLOCK) != sizeof id) {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    id = static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(now.tv_nsec);
  }
  return id;
}

}  // namespace

Result<std::unique_ptr<PageFile>> PageFile::open(const PageFileConfig& config) {
  if (config.page_bytes == 0 || config.page_bytes > kGiB) {
    return invalid(config.name + ": page bytes must be 1 to 1 GiB", Reason::kOutOfRange);
  }
  if (config.extent_bytes < 256 * kKiB || config.extent_bytes > 2 * kMiB) {
    return invalid(config.name + ": extents must be 256 KiB to 2 MiB", Reason::kOutOfRange);
  }
  std::unique_ptr<PageFile> file(new PageFile());
  file->name_ = config.name;
  file->space_ = Space::kFile;
  file->page_bytes_ = config.page_bytes;
  file->stride_ = round_up(config.page_bytes, kBlock);
  file->per_extent_ =
      static_cast<std::uint32_t>(std::max<Bytes>(1, config.extent_bytes / file->stride_));
  // A page size that does not divide the extent leaves the extent's end unused.
  file->extent_bytes_ = std::max(config.extent_bytes, file->stride_);
  const Bytes extents = (Bytes{config.pages} + file->per_extent_ - 1) / file->per_extent_;
  file->data_bytes_ = kBlock + extents * file->extent_bytes_;
  file->footprint_ = file->data_bytes_ + (config.keep ? PageIndex::file_bytes(config.pages) : 0);
  if (config.limit_bytes != 0 && file->footprint_ > config.limit_bytes) {
    return refused(Reason::kOverBudget, config.name + ": " + std::to_string(config.pages) +
                                            " pages take " + std::to_string(file->footprint_) +
                                            " bytes of a limit of " +
                                            std::to_string(config.limit_bytes));
  }
  LEHR_ASSIGN(file->slots_,
              SlotPool::create({config.pages, file->per_extent_, config.guard_leases}));
  file->identity_ = {draw_file_id(), config.layout_digest, config.page_bytes,
                     file->stride_,  config.pages,         file->per_extent_};
  LEHR_TRY(config.keep ? file->open_kept(config) : file->open_scratch(config));
  if (config.direct) file->enable_direct();
  return file;
}

PageFile::~PageFile() {
  // An io_uring lets go of registered files some time after it is closed, and would keep the lock
  // alive.
  if (!path_.empty() && fd_) ::flock(fd_.get(), LOCK_UN);
}

Status PageFile::open_scratch(const PageFileConfig& config) {
  fd_ = Fd(::open(config.path.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fd_ && (errno == EOPNOTSUPP || errno == EISDIR)) {
    // A file system without O_TMPFILE: take a name for an instant.
    std::string name = config.path + "/.lehr-scratch-XXXXXX";
    fd_ = Fd(::mkostemp(name.data(), O_CLOEXEC));
    if (fd_) ::unlink(name.c_str());
  }
  if (!fd_) return os_error(config.name + ": opening a scratch file in " + config.path, errno);
  index_ = std::make_unique<PageIndex>(config.pages);
  return reserve_space(config, config.path);
}

Status PageFile::open_kept(const PageFileConfig& config) {
  path_ = config.path;
  fd_ = Fd(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd_ && errno == ENOENT) return create_kept(config);
  if (!fd_) return os_error(config.name + ": opening " + path_, errno);
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    return refused(Reason::kLeased, path_ + ": in use by another runtime");
  }
  // Refused here when it is no file of ours: nobody else's bytes are ever overwritten.
  LEHR_ASSIGN(const FileIdentity found, read_identity(fd_.get(), kDataMagic, path_));
  report_.existed = true;
  identity_.file_id = found.file_id;
  if (!(found == identity_)) {
    report_.other_layout = true;
    fd_.reset();
    return create_kept(config);
  }
  return recover(config);
}

Status PageFile::create_kept(const PageFileConfig& config) {
  // Built under other names and renamed when whole: a kill in between leaves what was there before.
  identity_.file_id = draw_file_id();
  const std::string data = path_ + ".new";
  const std::string index = path_ + ".index.new";
  ::unlink(data.c_str());
  ::unlink(index.c_str());
  fd_ = Fd(::open(data.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd_) return os_error(config.name + ": creating " + data, errno);
  const auto build = [&]() -> Status {
    if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
      return refused(Reason::kLeased, data + ": in use by another runtime");
    }
    LEHR_TRY(reserve_space(config, data));
    LEHR_TRY(write_identity(fd_.get(), kDataMagic, identity_));
    LEHR_ASSIGN(PageIndex made, PageIndex::create(index, identity_));
    index_ = std::make_unique<PageIndex>(std::move(made));
    // The old index first: data without an index is empty, an index without its data is refused.
    if (::rename(index.c_str(), (path_ + ".index").c_str()) != 0 ||
        ::rename(data.c_str(), path_.c_str()) != 0) {
      return os_error(config.name + ": naming " + path_, errno);
    }
    return {};
  };
  Status built = build();
  if (!built) {
    ::unlink(data.c_str());
    ::unlink(index.c_str());
  }
  return built;
}

Status PageFile::recover(const PageFileConfig& config) {
  auto opened = PageIndex::open(path_ + ".index", identity_);
  if (!opened) {
    const Code code = opened.error().code;
    if (code != Code::kNotFound && code != Code::kVersion && code != Code::kCorrupt) {
      return opened.error();
    }
    // Pages without a usable index cannot be told apart: all are misses.
    report_.other_layout = code == Code::kVersion;
    fd_.reset();
    return create_kept(config);
  }
  report_.damaged_records = opened->damaged;
  index_ = std::make_unique<PageIndex>(std::move(opened->index));
  std::unique_ptr<std::byte, decltype(&std::free)> buffer(
      static_cast<std::byte*>(std::aligned_alloc(kBlock, stride_)), &std::free);
  for (SlotId s = 0; s < config.pages; ++s) {
    if (!index_->at(s).present()) continue;
    bool whole = true;
    if (config.verify_contents) {
      LEHR_ASSIGN(whole, contents_match(s, {buffer.get(), stride_}));
    }
    if (whole) {
      LEHR_TRY(slots_->claim(s));
      ++report_.found;
    } else {
      LEHR_TRY(index_->erase(s));
      ++report_.damaged_contents;
    }
  }
  return {};
}

Result<bool> PageFile::contents_match(SlotId slot, std::span<std::byte> buffer) const {
  std::size_t done = 0;
  while (done < page_bytes_) {
    const ssize_t got = ::pread(fd_.get(), buffer.data() + done, page_bytes_ - done,
                                static_cast<off_t>(address(slot).offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os_error("reading " + path_, errno);
    if (got == 0) return false;  // the file was cut
    done += static_cast<std::size_t>(got);
  }
  return checksum(buffer.first(page_bytes_)) == index_->at(slot).contents_checksum;
}

Status PageFile::reserve_space(const PageFileConfig& config, const std::string& shown) {
  // Asked first, because a failing fallocate fills the disk for everyone before it gives up.
  struct statvfs fs {};
  if (::fstatvfs(fd_.get(), &fs) == 0) {
    const Bytes available = Bytes{fs.f_bavail} * fs.f_frsize;
    if (footprint_ > available) {
      return io_error(config.name + ": " + shown + " has " + std::to_string(available) +
                          " bytes free, " + std::to_string(footprint_) + " are needed",
                      Reason::kNoSpace);
    }
  }
  int rc = 0;
  do {
    rc = ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(data_bytes_)) == 0 ? 0 : errno;
  } while (rc == EINTR);
  if (rc == EOPNOTSUPP) {
    notices_.push_back(config.name + ": " + shown +
                       " cannot reserve space ahead; a full disk will show at a write");
    rc = ::ftruncate(fd_.get(), static_cast<off_t>(data_bytes_)) == 0 ? 0 : errno;
  }
  if (rc != 0) {
    return os_error(
        config.name + ": reserving " + std::to_string(data_bytes_) + " bytes in " + shown, rc);
  }
  return {};
}

void PageFile::enable_direct() {
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  if (flags >= 0 && ::fcntl(fd_.get(), F_SETFL, flags | O_DIRECT) == 0) {
    // Some file systems accept the flag and refuse the first request.
    std::unique_ptr<std::byte, decltype(&std::free)> block(
        static_cast<std::byte*>(std::aligned_alloc(kBlock, kBlock)), &std::free);
    if (::pread(fd_.get(), block.get(), kBlock, 0) >= 0) {
      direct_ = true;
      return;
    }
    ::fcntl(fd_.get(), F_SETFL, flags);
  }
  notices_.push_back(name_ +
                     ": O_DIRECT is refused here; reads and writes go through the page cache");
}

Address PageFile::address(SlotId slot) const {
  const Bytes offset =
      kBlock + Bytes{slot / per_extent_} * extent_bytes_ + Bytes{slot % per_extent_} * stride_;
  return {Space::kFile, fd_.get(), nullptr, offset};
}

Status PageFile::sync() {
  if (path_.empty()) return {};
  if (::fdatasync(fd_.get()) != 0) return os_error(name_ + ": syncing " + path_, errno);
  return index_->sync();
}

Status PageFile::check_backing() const {
  struct stat open_file {};
  if (::fstat(fd_.get(), &open_file) != 0) return os_error(name_, errno);
  if (static_cast<Bytes>(open_file.st_size) < data_bytes_) {
    return corrupt(name_ + ": the file has " + std::to_string(open_file.st_size) +
                       " bytes, expected " + std::to_string(data_bytes_),
                   Reason::kTruncated);
  }
  if (path_.empty()) return {};
  struct stat named {};
  if (::stat(path_.c_str(), &named) != 0) return not_found(path_ + ": the file lost its name");
  if (named.st_ino != open_file.st_ino || named.st_dev != open_file.st_dev) {
    return corrupt(path_ + ": another file has taken its name", Reason::kGeneration);
  }
  return {};
}

}  // namespace lehr::transfer
