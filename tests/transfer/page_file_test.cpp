// SPDX-License-Identifier: Apache-2.0
#include "transfer/page_file.hpp"

#include <csignal>
#include <cstring>
#include <fstream>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/transfer/transfer_world.hpp"
#include "transfer/checksum.hpp"

using namespace lehr;
using namespace lehr::transfer;
using lehr::transfer::test::fill;
using lehr::transfer::test::TemporaryDirectory;

namespace {

constexpr Bytes kPage = 4096;

PageFileConfig kept(const TemporaryDirectory& directory, SlotId pages = 16) {
  PageFileConfig config;
  config.name = "nvme";
  config.path = directory.file("pages.lehr");
  config.keep = true;
  config.pages = pages;
  config.page_bytes = kPage;
  config.extent_bytes = 256 * kKiB;
  config.direct = false;
  config.layout_digest = 77;
  return config;
}

std::unique_ptr<PageFile> open(const PageFileConfig& config) {
  auto file = PageFile::open(config);
  if (!file) FAIL(file.error().what);
  return *std::move(file);
}

/// Writes a page and its record, as a finished move does.
SlotId write_page(PageFile& file, PageId page, std::uint32_t version = 1) {
  SlotId slot = kNoSlot;
  REQUIRE(file.slots().allocate({&slot, 1}));
  std::vector<std::byte> bytes(kPage);
  fill(bytes, page, version);
  REQUIRE(::pwrite(file.fd(), bytes.data(), bytes.size(),
                   static_cast<off_t>(file.address(slot).offset)) ==
          static_cast<ssize_t>(bytes.size()));
  REQUIRE(file.index().put(slot, {{0, page}, checksum(bytes), page, version}));
  return slot;
}

void damage(const std::string& path, std::uint64_t offset) {
  std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  const char byte = static_cast<char>(stream.get());
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(static_cast<char>(byte ^ 0x40));
  REQUIRE(stream.good());
}

}  // namespace

TEST_CASE("Pages lie in extents, aligned, and never overlap") {
  TemporaryDirectory directory;
  PageFileConfig config = kept(directory, 20);
  // 100 KiB pages do not divide the extent: two fit, and 56 KiB at its end stay unused.
  config.page_bytes = 100 * kKiB;
  const auto file = open(config);
  CHECK(file->stride() == 100 * kKiB);
  CHECK(file->address(0).offset == 4096);
  CHECK(file->address(1).offset == 4096 + 100 * kKiB);
  CHECK(file->address(2).offset == 4096 + 256 * kKiB);
  struct stat found {};
  REQUIRE(::stat(config.path.c_str(), &found) == 0);
  CHECK(static_cast<Bytes>(found.st_size) == 4096 + 10 * 256 * kKiB);
  CHECK(file->footprint_bytes() == 4096 + 10 * 256 * kKiB + PageIndex::file_bytes(20));
}

TEST_CASE("A page larger than an extent gets one of its own") {
  TemporaryDirectory directory;
  PageFileConfig config = kept(directory, 3);
  config.page_bytes = 300 * kKiB + 1;
  const auto file = open(config);
  CHECK(file->stride() == 304 * kKiB);
  CHECK(file->address(2).offset == 4096 + 2 * 304 * kKiB);
}

TEST_CASE("The limit holds to the byte") {
  TemporaryDirectory directory;
  PageFileConfig config = kept(directory, 64);
  const Bytes exact = 4096 + 256 * kKiB + PageIndex::file_bytes(64);
  config.limit_bytes = exact - 1;
  const auto refused = PageFile::open(config);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().reason == Reason::kOverBudget);
  CHECK(directory.entries() == 0);
  config.limit_bytes = exact;
  const auto file = open(config);
  CHECK(file->footprint_bytes() == exact);
}

TEST_CASE("A file system without room is said so before anything is taken") {
  TemporaryDirectory directory;
  PageFileConfig config = kept(directory, 1U << 30);
  config.page_bytes = kMiB;  // a PiB
  config.keep = GENERATE(true, false);
  if (!config.keep) config.path = directory.path();
  // The tables for so many slots would be large: use few slots of large pages instead.
  config.pages = 1U << 20;
  config.page_bytes = kGiB;
  const auto refused = PageFile::open(config);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kIo);
  CHECK(refused.error().reason == Reason::kNoSpace);
  CHECK(directory.entries() == 0);
}

TEST_CASE("A directory that cannot be written or is not there is an error with its path") {
  TemporaryDirectory directory;
  PageFileConfig config = kept(directory);
  config.keep = GENERATE(true, false);
  config.path = directory.file("missing/pages");
  const auto refused = PageFile::open(config);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kIo);
  CHECK(refused.error().what.find(config.path) != std::string::npos);
}

TEST_CASE("A scratch file leaves nothing behind, also after a kill") {
  const bool kept = GENERATE(false, true);  // the control: a kept file and its index are there
  TemporaryDirectory directory;
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    PageFileConfig config;
    config.path = kept ? directory.file("pages") : directory.path();
    config.keep = kept;
    config.pages = 64;
    config.page_bytes = kPage;
    const auto file = PageFile::open(config);
    const char word = file ? 'y' : 'n';
    if (::write(ready[1], &word, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char word = 0;
  REQUIRE(::read(ready[0], &word, 1) == 1);
  CHECK(word == 'y');
  REQUIRE(::kill(child, SIGKILL) == 0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK(directory.entries() == (kept ? 2 : 0));
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("A kept file is found again with its pages, and only those") {
  TemporaryDirectory directory;
  const PageFileConfig config = kept(directory);
  SlotId first = kNoSlot, second = kNoSlot;
  {
    const auto file = open(config);
    CHECK_FALSE(file->report().existed);
    first = write_page(*file, 10);
    second = write_page(*file, 11, 4);
    const SlotId dropped = write_page(*file, 12);
    REQUIRE(file->index().erase(dropped));
    REQUIRE(file->sync());
    REQUIRE(file->check_backing());
  }
  const auto file = open(config);
  CHECK(file->report().existed);
  CHECK(file->report().found == 2);
  CHECK(file->report().damaged_contents == 0);
  CHECK(file->index().at(first).page == 10);
  CHECK(file->index().at(second).version == 4);
  CHECK(file->slots().usage().held == 2);
  CHECK(file->slots().is_held(first));
  CHECK(file->slots().validate());
  CHECK(directory.entries() == 2);
}

TEST_CASE("A flipped bit in a page drops that page alone") {
  TemporaryDirectory directory;
  const PageFileConfig config = kept(directory);
  std::uint64_t at = 0;
  {
    const auto file = open(config);
    at = file->address(write_page(*file, 1)).offset;
    write_page(*file, 2);
  }
  damage(config.path, at + 1234);
  {
    const auto file = open(config);
    CHECK(file->report().found == 1);
    CHECK(file->report().damaged_contents == 1);
  }
  // The control: without the look at the contents the damaged page would be found.
  {
    const auto file = open(config);
    CHECK(file->report().found == 1);  // dropped for good the first time
  }
  damage(config.path, at + kPage + 17);
  PageFileConfig trusting = config;
  trusting.verify_contents = false;
  CHECK(open(trusting)->report().found == 1);
  CHECK(open(config)->report().found == 0);
}

TEST_CASE("A damaged or cut index gives fewer pages, never wrong ones") {
  TemporaryDirectory directory;
  const PageFileConfig config = kept(directory);
  {
    const auto file = open(config);
    for (PageId p = 0; p < 5; ++p) write_page(*file, p);
  }
  SECTION("one record") {
    damage(config.path + ".index", 4096 + 2 * 64 + 9);
    const auto file = open(config);
    CHECK(file->report().found == 4);
    CHECK(file->report().damaged_records == 1);
  }
  SECTION("cut in the middle of a record") {
    REQUIRE(::truncate((config.path + ".index").c_str(), 4096 + 3 * 64 + 10) == 0);
    CHECK(open(config)->report().found == 3);
  }
  SECTION("gone") {
    REQUIRE(::unlink((config.path + ".index").c_str()) == 0);
    const auto file = open(config);
    CHECK(file->report().existed);
    CHECK(file->report().found == 0);
    CHECK(file->slots().usage().free == config.pages);
  }
  SECTION("the index of another file") {
    damage(config.path + ".index", 17);
    CHECK(open(config)->report().found == 0);
  }
  SECTION("data cut short") {
    REQUIRE(::truncate(config.path.c_str(), 4096 + 2 * kPage + 100) == 0);
    const auto file = open(config);
    CHECK(file->report().found == 2);
    CHECK(file->report().damaged_contents == 3);
  }
}

TEST_CASE("Pages of another layout are misses, and said to be") {
  TemporaryDirectory directory;
  PageFileConfig config = kept(directory);
  { write_page(*open(config), 1); }
  config.layout_digest = 78;
  const auto file = open(config);
  CHECK(file->report().existed);
  CHECK(file->report().other_layout);
  CHECK(file->report().found == 0);
}

TEST_CASE("A file that is not ours is refused and left alone") {
  TemporaryDirectory directory;
  const PageFileConfig config = kept(directory);
  const std::string text(10000, 'x');
  std::ofstream(config.path) << text;
  const auto refused = PageFile::open(config);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kCorrupt);
  std::ifstream stream(config.path);
  const std::string now((std::istreambuf_iterator<char>(stream)), {});
  CHECK(now == text);
  CHECK(directory.entries() == 1);
}

TEST_CASE("Two runtimes cannot use one file") {
  TemporaryDirectory directory;
  const PageFileConfig config = kept(directory);
  const auto first = open(config);
  const auto second = PageFile::open(config);
  REQUIRE_FALSE(second);
  CHECK(second.error().reason == Reason::kLeased);
}

TEST_CASE("A backing file that lost its name, or was replaced, is noticed") {
  TemporaryDirectory directory;
  const PageFileConfig config = kept(directory);
  const auto file = open(config);
  SECTION("unlinked") {
    REQUIRE(::unlink(config.path.c_str()) == 0);
    CHECK(file->check_backing().error().code == Code::kNotFound);
  }
  SECTION("replaced") {
    REQUIRE(::unlink(config.path.c_str()) == 0);
    std::ofstream(config.path) << "another";
    CHECK(file->check_backing().error().reason == Reason::kGeneration);
  }
  SECTION("truncated") {
    REQUIRE(::truncate(config.path.c_str(), 5000) == 0);
    CHECK(file->check_backing().error().reason == Reason::kTruncated);
  }
}
