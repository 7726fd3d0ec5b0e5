// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <map>

#include <dlfcn.h>
#include <sys/types.h>

#include "transfer/checksum.hpp"
#include "transfer/cufile.hpp"
#include "transfer/movers/worker_mover.hpp"

namespace lehr::transfer {
namespace {

// The part of the library's binary interface that is used here, as its version 1 defines it.
struct CuFileError {
  int error = 0;
  int cuda_error = 0;
};
struct CuFileDescriptor {
  int type = 1;  ///< a file descriptor
  union {
    int fd;
    void* handle;
  } of{};
  const void* operations = nullptr;
};
struct CuFileProperties {
  struct {
    unsigned major_version, minor_version;
    std::size_t poll_threshold, max_direct_io;
    unsigned status_flags, control_flags;
  } driver;
  unsigned feature_flags, max_device_cache, per_buffer_cache, max_device_pinned;
  unsigned max_batch_io, max_batch_io_timeout;
  unsigned room_for_later_versions[32];
};
constexpr unsigned kNvmeSupported = 1U << 4;  ///< of status_flags

/// The loaded library, its driver and the files that it knows.
class CuFile {
 public:
  static Result<std::shared_ptr<CuFile>> open(const CuFileConfig& config) {
    std::shared_ptr<CuFile> made(new CuFile);
    LEHR_TRY(made->load(config.library));
    if (const CuFileError opened = made->driver_open_(); opened.error != 0)
      return refused_by(config.library, "its driver cannot be opened", opened);
    made->driver_ = true;
    for (const int fd : config.files) {
      CuFileDescriptor descriptor;
      descriptor.of.fd = fd;
      void* handle = nullptr;
      if (const CuFileError known = made->add_(&handle, &descriptor); known.error != 0)
        return refused_by(config.library, "a file is refused", known);
      made->files_[fd] = handle;
    }
    return made;
  }
  CuFile(const CuFile&) = delete;
  CuFile& operator=(const CuFile&) = delete;
  ~CuFile() {
    for (const auto& [fd, handle] : files_) remove_(handle);
    if (driver_) driver_close_();
    if (library_ != nullptr) ::dlclose(library_);
  }

  /// What is given up; empty when reads go straight to the device.
  std::string compatibility() const {
    CuFileProperties p{};
    if (properties_(&p).error != 0) return "cuFile does not tell its mode";
    if (p.driver.major_version != 0 && (p.driver.status_flags & kNvmeSupported) != 0) return {};
    return "cuFile in compatibility mode (no nvidia-fs driver for NVMe): bytes pass through host "
           "memory";
  }

  /// Bytes moved, or a negative errno.
  ssize_t move(bool write, int fd, std::byte* memory, Bytes bytes, Bytes offset) const {
    const auto file = files_.find(fd);
    if (file == files_.end()) return -EBADF;
    const auto at = static_cast<off_t>(offset);
    errno = 0;
    const ssize_t moved = write ? write_(file->second, memory, bytes, at, 0)
                                : read_(file->second, memory, bytes, at, 0);
    if (moved >= 0) return moved;
    // -1 leaves errno; other negative numbers are the library's own.
    return errno != 0 ? -errno : -EIO;
  }

 private:
  CuFile() = default;

  static Error refused_by(const std::string& library, const char* what, CuFileError why) {
    return unsupported(library + ": " + what + " (cuFile error " + std::to_string(why.error) +
                       ", CUDA error " + std::to_string(why.cuda_error) + ")");
  }

  Status load(const std::string& library) {
    library_ = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) {
      const char* why = ::dlerror();
      return unsupported("cuFile is not here: " + std::string(why != nullptr ? why : library));
    }
    LEHR_TRY(find("cuFileDriverOpen", driver_open_));
    // Later versions export the call that takes leave under a second name.
    if (!find("cuFileDriverClose_v2", driver_close_))
      LEHR_TRY(find("cuFileDriverClose", driver_close_));
    LEHR_TRY(find("cuFileDriverGetProperties", properties_));
    LEHR_TRY(find("cuFileHandleRegister", add_));
    LEHR_TRY(find("cuFileHandleDeregister", remove_));
    LEHR_TRY(find("cuFileRead", read_));
    return find("cuFileWrite", write_);
  }

  template <class Function>
  Status find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
    if (function != nullptr) return {};
    return unsupported(std::string("cuFile without ") + name);
  }

  void* library_ = nullptr;
  bool driver_ = false;
  std::map<int, void*> files_;
  CuFileError (*driver_open_)() = nullptr;
  CuFileError (*driver_close_)() = nullptr;
  CuFileError (*properties_)(CuFileProperties*) = nullptr;
  CuFileError (*add_)(void** handle, CuFileDescriptor* descriptor) = nullptr;
  void (*remove_)(void* handle) = nullptr;
  ssize_t (*read_)(void*, void*, std::size_t, off_t, off_t) = nullptr;
  ssize_t (*write_)(void*, const void*, std::size_t, off_t, off_t) = nullptr;
};

/// One job in a thread, with the checksum of its contents.
class Transfer {
 public:
  Transfer(const CuFile& library, const CuFileConfig& config, const Job& job)
      : library_(library),
        config_(config),
        job_(job),
        write_(job.destination.space == Space::kFile),
        file_(write_ ? job.destination : job.source),
        memory_(write_ ? job.source.pointer : job.destination.pointer) {}

  Completion run() {
    if (write_) {
      if (const Status seen = sum_contents(); !seen) return failed(seen);
    }
    Completion end = move();
    if (!write_ && end.code == Code::kOk) {
      if (const Status seen = sum_contents(); !seen) return failed(seen);
      if (job_.contents != 0 && sum_ != job_.checksum) {
        end.code = Code::kCorrupt;
        end.reason = Reason::kChecksum;
      }
    }
    end.checksum = sum_;
    return end;
  }

 private:
  Completion move() const {
    Bytes done = 0;
    while (done < job_.bytes) {
      const ssize_t moved =
          library_.move(write_, file_.unit, memory_ + done, job_.bytes - done, file_.offset + done);
      if (moved == -EINTR) continue;
      if (moved < 0) return completion_of(job_, done, static_cast<int>(-moved));
      if (moved == 0) break;
      done += static_cast<Bytes>(moved);
    }
    return completion_of(job_, done, 0);
  }
  Status sum_contents() {
    if (job_.contents == 0) return {};
    std::vector<std::byte> seen(job_.contents);
    LEHR_TRY(config_.fetch(seen.data(), memory_, job_.contents));
    sum_ = checksum(seen);
    return {};
  }
  Completion failed(const Status& why) const {
    return {job_.id, why.error().code, why.error().reason, 0, 0};
  }

  const CuFile& library_;
  const CuFileConfig& config_;
  const Job& job_;
  const bool write_;
  const Address& file_;
  std::byte* const memory_;
  std::uint64_t sum_ = 0;
};

}  // namespace

Result<std::unique_ptr<Mover>> make_file_cufile(const CuFileConfig& config) {
  if (!config.fetch) return invalid("cuFile: needs a way to look at what was moved");
  LEHR_ASSIGN(auto library, CuFile::open(config));
  MoverTraits traits;
  traits.name = "cufile";
  constexpr auto kFile = static_cast<std::size_t>(Space::kFile);
  const auto far = static_cast<std::size_t>(config.far);
  traits.moves[kFile][far] = traits.moves[far][kFile] = true;
  traits.checks = true;
  std::string mode = library->compatibility();
  return WorkerMover::create(
      traits, {config.threads, config.queue},
      [library = std::move(library), config](const Job& job) {
        return Transfer(*library, config, job).run();
      },
      std::move(mode));
}

}  // namespace lehr::transfer
