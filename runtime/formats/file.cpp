// SPDX-License-Identifier: Apache-2.0
#include "runtime/formats/file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/formats/zstd.hpp"

namespace lehr::formats {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kWriteBuffer = std::size_t{1} << 20;

/// A descriptor closed on every path out.
struct Fd {
  int value = -1;
  explicit Fd(int fd) : value(fd) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  Fd(Fd&& other) noexcept : value(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(value, other.value);
    return *this;
  }
  ~Fd() {
    if (value >= 0) ::close(value);
  }
  int release() { return std::exchange(value, -1); }
};

/// write(2) until all is written; 0 or an errno.
int write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    if (n == 0) return EIO;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return 0;
}

/// A name beside the target that nobody else has: process id and a counter, then O_EXCL decides.
fs::path temporary_name(const fs::path& target, unsigned attempt) {
  return target.parent_path() /
         fmt::format(".{}.{}.{}.tmp", target.filename().string(), ::getpid(), attempt);
}

fs::path directory_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

}  // namespace

Error system_error(const fs::path& path, const char* action, int error_number) {
  const std::string what = fmt::format("{}: cannot {}: {}", path.string(), action,
                                       std::generic_category().message(error_number));
  if (error_number == ENOENT) return not_found(what);
  const bool full = error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
  return io_error(what, full ? Reason::kNoSpace : Reason::kNone);
}

namespace {

/// A regular file opened for reading, and its size at that moment.
Result<std::pair<Fd, std::size_t>> open_regular(const fs::path& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it is refused just below.
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.value < 0) return system_error(path, "open", errno);
  struct stat info {};
  if (::fstat(fd.value, &info) != 0) return system_error(path, "stat", errno);
  if (!S_ISREG(info.st_mode)) {
    return invalid(fmt::format("{}: {}, expected a regular file", path.string(),
                               S_ISDIR(info.st_mode) ? "is a directory" : "is not a file"));
  }
  return std::pair(std::move(fd), static_cast<std::size_t>(info.st_size));
}

/// pread(2) until `out` is full: 0, an errno, or kEnded where the file ended before.
constexpr int kEnded = -1;
int read_all(int fd, Bytes offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t n = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return kEnded;
    offset += static_cast<Bytes>(n);
    out = out.subspan(static_cast<std::size_t>(n));
  }
  return 0;
}

Result<Blob> copy_of(int fd, std::size_t size, const fs::path& path) {
  Blob out;
  if (const Status room = out.reserve(size); !room) {
    return refused(Reason::kNoSpace, fmt::format("{}: {}", path.string(), room.error().what));
  }
  const int error = read_all(fd, 0, {out.data(), size});
  if (error == kEnded) {
    return corrupt(
        fmt::format("{}: became shorter while it was read, expected {} bytes", path.string(), size),
        Reason::kTruncated);
  }
  if (error != 0) return system_error(path, "read", error);
  out.set_size(size);
  return out;
}

}  // namespace

Result<MappedFile> MappedFile::open(const fs::path& path) {
  LEHR_ASSIGN(const auto file, open_regular(path));
  return of(file.first.value, file.second, path);
}

Result<MappedFile> MappedFile::of(int fd, std::size_t size, const fs::path& path) {
  MappedFile out;
  if (size == 0) return out;
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) return system_error(path, "map", errno);
  out.data_ = static_cast<const std::byte*>(data);
  out.size_ = size;
  return out;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void Blob::Free::operator()(std::byte* p) const { std::free(p); }

Status Blob::reserve(std::size_t capacity) {
  if (capacity <= capacity_) return {};
  void* grown = std::realloc(data_.get(), capacity);
  if (grown == nullptr) {
    return refused(Reason::kNoSpace, fmt::format("no memory for {} bytes", capacity));
  }
  static_cast<void>(data_.release());
  data_.reset(static_cast<std::byte*>(grown));
  capacity_ = capacity;
  return {};
}

Result<FileContents> FileContents::open(const fs::path& path, Bytes limit, Bytes copy_up_to) {
  LEHR_ASSIGN(const auto file, open_regular(path));
  const auto& [fd, size] = file;
  FileContents out;
  out.file_bytes_ = size;
  out.in_memory_ = size <= copy_up_to;
  if (out.in_memory_) {
    LEHR_ASSIGN(out.blob_, copy_of(fd.value, size, path));
  } else {
    LEHR_ASSIGN(out.file_, MappedFile::of(fd.value, size, path));
  }
  if (is_zstd(out.bytes())) {
    LEHR_ASSIGN(out.blob_, zstd_decompress(out.bytes(), limit, path.string()));
    out.compressed_ = true;
    out.in_memory_ = true;
    out.file_ = MappedFile();
  }
  return out;
}

struct AtomicFile::State {
  fs::path target;
  fs::path named;  ///< the temporary file's name, while it has one
  int fd = -1;
  Bytes written = 0;
  std::vector<std::byte> buffer;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (fd >= 0) ::close(fd);
    if (!named.empty()) ::unlink(named.c_str());
  }

  Status flush() {
    const int error = write_all(fd, buffer);
    if (error != 0) return system_error(target, "write", error);
    buffer.clear();
    return {};
  }

  /// Gives an unnamed temporary file a name, so that it can be renamed over the target.
  Status give_name() {
    const std::string source = fmt::format("/proc/self/fd/{}", fd);
    for (unsigned attempt = 0; attempt < 100; ++attempt) {
      const fs::path name = temporary_name(target, attempt);
      if (::linkat(AT_FDCWD, source.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
        named = name;
        return {};
      }
      if (errno != EEXIST) return system_error(target, "create", errno);
    }
    return system_error(target, "create", EEXIST);
  }
};

AtomicFile::AtomicFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
AtomicFile::AtomicFile(AtomicFile&&) noexcept = default;
AtomicFile& AtomicFile::operator=(AtomicFile&&) noexcept = default;
AtomicFile::~AtomicFile() = default;

Result<AtomicFile> AtomicFile::create(const fs::path& path) {
  if (!path.has_filename() || path.native().find('\0') != std::string::npos)
    return invalid(fmt::format("'{}': expected the name of a file", path.string()));
  auto state = std::make_unique<State>();
  state->target = path;
  mode_t mode = 0666;
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    if (!S_ISREG(info.st_mode)) {
      return invalid(fmt::format("{}: exists and is not a regular file", path.string()));
    }
    mode = info.st_mode & 07777U;
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    if (!error) state->target = real;
  }
  const fs::path directory = directory_of(state->target);
  state->fd = ::open(directory.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
  if (state->fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    for (unsigned attempt = 0; attempt < 100 && state->fd < 0; ++attempt) {
      const fs::path name = temporary_name(state->target, attempt);
      state->fd = ::open(name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, mode);
      if (state->fd >= 0) state->named = name;
      if (state->fd < 0 && errno != EEXIST) break;
    }
  }
  if (state->fd < 0) return system_error(path, "create", errno);
  state->buffer.reserve(kWriteBuffer);
  return AtomicFile(std::move(state));
}

Status AtomicFile::write(std::span<const std::byte> bytes) {
  State& s = *state_;
  s.written += bytes.size();
  if (s.buffer.size() + bytes.size() > kWriteBuffer) LEHR_TRY(s.flush());
  if (bytes.size() >= kWriteBuffer) {
    const int error = write_all(s.fd, bytes);
    return error == 0 ? Status() : Status(system_error(s.target, "write", error));
  }
  s.buffer.insert(s.buffer.end(), bytes.begin(), bytes.end());
  return {};
}

Status AtomicFile::commit() {
  State& s = *state_;
  LEHR_TRY(s.flush());
  if (::fsync(s.fd) != 0) return system_error(s.target, "flush", errno);
  if (s.named.empty()) LEHR_TRY(s.give_name());
  // Some file systems report a failed write only here.
  if (::close(std::exchange(s.fd, -1)) != 0) return system_error(s.target, "close", errno);
  if (::rename(s.named.c_str(), s.target.c_str()) != 0) {
    return system_error(s.target, "create", errno);
  }
  s.named.clear();
  // The name itself is durable once the directory is; a file system that cannot sync one is
  // tolerated.
  const Fd directory(::open(directory_of(s.target).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.value >= 0) static_cast<void>(::fsync(directory.value));
  return {};
}

Bytes AtomicFile::written() const { return state_->written; }

Result<SpoolFile> SpoolFile::create(const fs::path& directory) {
  const fs::path where = directory.empty() ? fs::path(".") : directory;
  Fd fd(::open(where.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.value < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    std::string name = (where / ".lehr-spool-XXXXXX").string();
    fd.value = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd.value >= 0) ::unlink(name.c_str());
  }
  if (fd.value < 0) return system_error(where, "create a temporary file in", errno);
  return SpoolFile(fd.release());
}

SpoolFile::SpoolFile(SpoolFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), size_(std::exchange(other.size_, 0)) {}

SpoolFile& SpoolFile::operator=(SpoolFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;
}

SpoolFile::~SpoolFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status SpoolFile::append(std::span<const std::byte> bytes) {
  const int error = write_all(fd_, bytes);
  if (error != 0) return system_error("temporary file", "write", error);
  size_ += bytes.size();
  return {};
}

Status SpoolFile::read(Bytes offset, std::span<std::byte> out) const {
  const int error = read_all(fd_, offset, out);
  if (error == kEnded) return corrupt("temporary file: ended early", Reason::kTruncated);
  if (error != 0) return system_error("temporary file", "read", error);
  return {};
}

}  // namespace lehr::formats
