// SPDX-License-Identifier: Apache-2.0
#include "runtime/formats/file.hpp"

#include <algorithm>
#include <csignal>
#include <string>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/runtime/formats/trace_files.hpp"

namespace lehr::formats {
namespace {

using test::bytes_of;
using test::read_text;
using test::TempDir;
using test::write_text;

TEST_CASE("a mapped file shows the file's bytes, also after it is removed") {
  const TempDir dir;
  write_text(dir / "a", "hello");
  auto file = MappedFile::open(dir / "a");
  REQUIRE(file);
  std::filesystem::remove(dir / "a");
  const MappedFile moved = *std::move(file);
  CHECK(std::string(reinterpret_cast<const char*>(moved.bytes().data()), moved.bytes().size()) ==
        "hello");
}

TEST_CASE("a path that names no file is refused before anything is written for it") {
  const TempDir dir;
  const std::string zero = (dir / "a").string() + std::string("\0b", 2);
  for (const std::filesystem::path& path :
       {std::filesystem::path(), dir / "", dir / ".", std::filesystem::path(zero)}) {
    const auto file = AtomicFile::create(path);
    REQUIRE_FALSE(file);
    CHECK(file.error().code == Code::kInvalid);
  }
  CHECK(AtomicFile::create(dir / "a"));  // the control
}

TEST_CASE("an empty file maps to no bytes") {
  const TempDir dir;
  write_text(dir / "empty", "");
  const auto file = MappedFile::open(dir / "empty");
  REQUIRE(file);
  CHECK((*file).bytes().empty());
}

TEST_CASE("contents that were copied do not care what becomes of the file") {
  const TempDir dir;
  write_text(dir / "a", std::string(1 << 20, 'x'));
  const auto contents = FileContents::open(dir / "a", kGiB);
  REQUIRE(contents);
  REQUIRE(::truncate((dir / "a").c_str(), 0) == 0);
  const auto bytes = contents->bytes();
  REQUIRE(bytes.size() == 1 << 20);
  CHECK(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{'x'}; }));
}

TEST_CASE("control: a mapping's reader dies when the file is truncated under it") {
  const TempDir dir;
  write_text(dir / "a", std::string(1 << 20, 'x'));
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGBUS, SIG_DFL);  // a sanitizer's handler would make an exit of it
    const auto contents = FileContents::open(dir / "a", kGiB, 0);  // 0: a mapping whatever the size
    const bool cut = contents && ::truncate((dir / "a").c_str(), 0) == 0;
    const volatile std::byte* last = cut ? &contents->bytes().back() : nullptr;
    ::_exit(last != nullptr && *last == std::byte{'x'} ? 1 : 2);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGBUS);
}

TEST_CASE("a file that ends before its size is refused, never padded") {
  // What the kernel shows here says it has a page of bytes and gives a few: as a file does that is
  // truncated between the look at its size and the reading.
  const std::filesystem::path shorter = "/sys/devices/system/cpu/online";
  REQUIRE(std::filesystem::file_size(shorter) > 100);
  const auto contents = FileContents::open(shorter, kGiB);
  REQUIRE_FALSE(contents);
  CHECK(contents.error().code == Code::kCorrupt);
  CHECK(contents.error().reason == Reason::kTruncated);
  CHECK(contents.error().what.find(shorter.string() + ": became shorter") == 0);
}

TEST_CASE("what is not a readable regular file is refused by name") {
  const TempDir dir;
  REQUIRE(::mkfifo((dir / "fifo").c_str(), 0600) == 0);
  for (const auto& [path, code] : {std::pair(dir / "missing", Code::kNotFound),
                                   {dir.path(), Code::kInvalid},
                                   {dir / "fifo", Code::kInvalid},
                                   {"/dev/null", Code::kInvalid}}) {
    const auto file = MappedFile::open(path);
    REQUIRE_FALSE(file);
    CHECK(file.error().code == code);
    CHECK(file.error().what.find(path.string()) == 0);
  }
}

TEST_CASE(
    "an atomic file appears whole at commit, replaces, and keeps the mode of what it replaces") {
  const TempDir dir;
  write_text(dir / "out", "old");
  REQUIRE(::chmod((dir / "out").c_str(), 0640) == 0);
  auto file = AtomicFile::create(dir / "out");
  REQUIRE(file);
  const std::string large(3 << 20, 'z');
  REQUIRE((*file).write(bytes_of("head ")));
  REQUIRE((*file).write(bytes_of(large)));
  CHECK(read_text(dir / "out") == "old");
  REQUIRE((*file).commit());
  CHECK(read_text(dir / "out") == "head " + large);
  CHECK(dir.entries() == 1);
  struct stat info {};
  REQUIRE(::stat((dir / "out").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777U) == 0640U);
}

TEST_CASE("an atomic file that is not committed leaves nothing") {
  const TempDir dir;
  {
    auto file = AtomicFile::create(dir / "out");
    REQUIRE(file);
    REQUIRE((*file).write(bytes_of(std::string(2 << 20, 'x'))));
  }
  CHECK(dir.entries() == 0);
}

TEST_CASE("a process killed while writing leaves nothing, or what was there before") {
  const TempDir dir;
  write_text(dir / "out", "old");
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    auto file = AtomicFile::create(dir / "out");
    const bool wrote = file && (*file).write(bytes_of(std::string(2 << 20, 'x')));
    ::raise(wrote ? SIGKILL : SIGTERM);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  REQUIRE(WTERMSIG(status) == SIGKILL);
  CHECK(read_text(dir / "out") == "old");
}

TEST_CASE("a full disk is an error with its reason, and nothing is left behind") {
  const TempDir dir;
  write_text(dir / "out", "old");
  // The limit on file size makes write(2) fail like a full device does.
  struct rlimit before {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  struct rlimit small = before;
  small.rlim_cur = 1 << 20;
  auto* const old_handler = ::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  Status status;
  {
    auto file = AtomicFile::create(dir / "out");
    if (file) status = (*file).write(bytes_of(std::string(2 << 20, 'x')));
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, old_handler);
  REQUIRE_FALSE(status);
  CHECK(status.error().code == Code::kIo);
  CHECK(status.error().reason == Reason::kNoSpace);
  CHECK(status.error().what.find("out: cannot write") != std::string::npos);
  CHECK(read_text(dir / "out") == "old");
  CHECK(dir.entries() == 1);
}

TEST_CASE("a target that cannot be written is refused when it is opened") {
  const TempDir dir;
  std::filesystem::create_directory(dir / "sub");
  CHECK_FALSE(AtomicFile::create(dir / "sub"));          // a directory
  CHECK_FALSE(AtomicFile::create(dir / "missing/out"));  // no such directory
  CHECK_FALSE(AtomicFile::create("/dev/null"));          // must not be replaced by a file
  struct stat info {};
  REQUIRE(::stat("/dev/null", &info) == 0);
  CHECK(S_ISCHR(info.st_mode));
  // A directory without write permission; root may write anyway, /proc nobody can.
  const auto read_only = AtomicFile::create("/proc/out");
  REQUIRE_FALSE(read_only);
  CHECK(read_only.error().what.find("/proc/out: cannot create") == 0);
}

TEST_CASE("a symbolic link is followed, not replaced") {
  const TempDir dir;
  write_text(dir / "real", "old");
  std::filesystem::create_symlink("real", dir / "link");
  auto file = AtomicFile::create(dir / "link");
  REQUIRE(file);
  REQUIRE((*file).write(bytes_of("new")));
  REQUIRE((*file).commit());
  CHECK(std::filesystem::is_symlink(dir / "link"));
  CHECK(read_text(dir / "real") == "new");
}

TEST_CASE("a spool gives back what went in, and nothing more") {
  const TempDir dir;
  auto spool = SpoolFile::create(dir.path());
  REQUIRE(spool);
  CHECK(dir.entries() == 0);
  REQUIRE((*spool).append(bytes_of("abc")));
  REQUIRE((*spool).append(bytes_of("defg")));
  std::string out(5, '\0');
  REQUIRE((*spool).read(2, std::as_writable_bytes(std::span(out))));
  CHECK(out == "cdefg");
  const Status past = (*spool).read(3, std::as_writable_bytes(std::span(out)));
  REQUIRE_FALSE(past);
  CHECK(past.error().reason == Reason::kTruncated);
}

}  // namespace
}  // namespace lehr::formats
