// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>
#include <tuple>

#include <unistd.h>

#include "kernels/base/rng.hpp"
#include "tools/lehr/probe.hpp"
#include "transfer/arena.hpp"
#include "transfer/mover.hpp"
#include "transfer/page_file.hpp"
#include "transfer/topology.hpp"

namespace lehr::tools {
namespace {

using namespace transfer;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr Bytes kHalf = 256 * kMiB;

/// Bytes/s of copies between two halves of memory of a NUMA node, by all threads.
Result<double> copy_rate(std::optional<unsigned> node) {
  const unsigned threads = std::max(1U, std::min(16U, std::thread::hardware_concurrency()));
  HostMemoryConfig config;
  config.bytes = 2 * kHalf;
  config.numa_node = node;
  config.touch_threads = threads;
  LEHR_ASSIGN(HostMemory memory, HostMemory::create(config));
  std::vector<double> rates;
  for (int i = 0; i < 5; ++i) {
    const auto start = Clock::now();
    {
      std::vector<std::jthread> helpers;
      for (unsigned t = 0; t < threads; ++t) {
        helpers.emplace_back([&, t] {
          const Bytes part = kHalf / threads;
          std::memcpy(memory.data() + kHalf + t * part, memory.data() + t * part, part);
        });
      }
    }
    rates.push_back(2 * static_cast<double>(kHalf) / seconds_since(start));
  }
  return median_of(std::move(rates));
}

constexpr Bytes kFileBytes = kGiB;

struct FileWay {
  Arena& memory;
  PageFile& file;
  Mover& mover;
  bool read;
};

/// Writes all of a file once: what was never written is read without a drive.
Status fill(const PageFile& file, std::span<const std::byte> data) {
  const Bytes end = file.slots().usage().capacity * file.stride();
  for (Bytes at = 0; at < end; at += data.size()) {
    const Bytes bytes = std::min<Bytes>(data.size(), end - at);
    const ssize_t written =
        ::pwrite(file.fd(), data.data(), bytes, static_cast<off_t>(file.address(0).offset + at));
    if (written != static_cast<ssize_t>(bytes)) {
      return io_error("the drive's test file cannot be written");
    }
  }
  return {};
}

/// `count` pages in flight at once until `seconds` have passed; seconds a page times `count`.
Result<double> time_depth(const FileWay& way, std::uint32_t count, double seconds) {
  const SlotId memory_slots = way.memory.slots().usage().capacity;
  const SlotId file_slots = way.file.slots().usage().capacity;
  Rng rng(count);
  std::vector<Completion> done(256);
  const auto start = Clock::now();
  std::uint64_t next = 0, finished = 0, flying = 0;
  while (flying != 0 || seconds_since(start) < seconds) {
    while (flying < count && seconds_since(start) < seconds) {
      const Address memory = way.memory.address(static_cast<SlotId>(next % memory_slots));
      const Address file = way.file.address(rng.below(file_slots));
      const Job job{++next,
                    way.read ? file : memory,
                    way.read ? memory : file,
                    way.file.stride(),
                    Cause::kOther,
                    Urgency::kBackground,
                    0};
      if (way.mover.submit({&job, 1}) == 0) break;
      ++flying;
    }
    way.mover.wait(1'000'000'000);
    const std::size_t ended = way.mover.poll(done);
    for (std::size_t i = 0; i < ended; ++i) {
      if (done[i].code != Code::kOk) return io_error("the drive failed while it was measured");
    }
    flying -= ended;
    finished += ended;
  }
  return seconds_since(start) / static_cast<double>(finished) * count;
}

const std::vector<double> kFileSizes{4096, 16384, 131072};
const std::vector<double> kFileCounts{1, 8, 64, 128};

/// What one mover does between memory and a drive.
struct MoverGrids {
  std::string mover;
  TimedGrid reads{kFileSizes, kFileCounts, {}}, writes{kFileSizes, kFileCounts, {}};
};

/// A full file of pages of one size, memory beside it, and the movers between them.
struct Drive {
  std::unique_ptr<PageFile> file;
  std::unique_ptr<Arena> memory;
  std::vector<std::unique_ptr<Mover>> movers;

  static Result<Drive> open(const std::string& folder, Bytes page_bytes, ProbeResult& result) {
    Drive drive;
    PageFileConfig config;
    config.name = "probe";
    config.path = folder;
    config.page_bytes = page_bytes;
    config.pages = static_cast<SlotId>(kFileBytes / page_bytes);
    LEHR_ASSIGN(drive.file, PageFile::open(config));
    ArenaConfig slots;
    slots.name = "probe";
    slots.pages = 256;  // 1 MiB or more, whole blocks: filling the file uses it too
    slots.page_bytes = page_bytes;
    HostMemoryConfig memory;
    memory.bytes = Arena::bytes_for(slots);
    LEHR_ASSIGN(MemoryRegion region, host_region(memory));
    // Drives may compress: what is written is random.
    Rng rng(1);
    for (Bytes i = 0; i + 8 <= memory.bytes; i += 8) {
      const std::uint64_t word = rng.next();
      std::memcpy(region.base + i, &word, 8);
    }
    LEHR_TRY(fill(*drive.file, {region.base, memory.bytes}));
    LEHR_ASSIGN(drive.memory, Arena::create(slots, std::move(region)));
    LEHR_TRY(drive.add_movers(result));
    if (!drive.file->direct()) {
      result.notices.push_back(
          folder + ": O_DIRECT is refused there, so the page cache is part of the figures");
    }
    return drive;
  }

  /// io_uring where it works, and threads that wait.
  Status add_movers(ProbeResult& result) {
    FileMoverConfig config;
    config.files = {file->fd()};
    config.buffers = {memory->memory()};
    config.depth = 128;
    std::string notice;
    LEHR_ASSIGN(auto best, make_file_mover(config, notice));
    if (!notice.empty()) result.notices.push_back(notice);
    const bool uring = best->traits().name != std::string_view("file_pread");
    movers.push_back(std::move(best));
    if (!uring) return {};
    LEHR_ASSIGN(auto threads, make_file_pread({8, config.queue}));
    movers.push_back(std::move(threads));
    return {};
  }

  /// One row of each mover's grid.
  Status measure(bool read, std::vector<MoverGrids>& grids) const {
    grids.resize(movers.size());
    for (std::size_t m = 0; m < movers.size(); ++m) {
      grids[m].mover = movers[m]->traits().name;
      TimedGrid& grid = read ? grids[m].reads : grids[m].writes;
      for (const double count : kFileCounts) {
        LEHR_ASSIGN(const double seconds, time_depth({*memory, *file, *movers[m], read},
                                                     static_cast<std::uint32_t>(count), 0.3));
        grid.seconds.push_back(seconds);
      }
    }
    return {};
  }
};

/// A link and its movers' curves; the link's own is the best of theirs at each point.
void put_drive_link(placement::Link link, bool read, const std::vector<MoverGrids>& grids,
                    ProbeResult& result) {
  TimedGrid best = read ? grids.front().reads : grids.front().writes;
  std::erase_if(result.profile.movers, [&](const MoverCurve& m) { return m.link == link.name; });
  for (const MoverGrids& of : grids) {
    const TimedGrid& grid = read ? of.reads : of.writes;
    MoverCurve curve;
    curve.link = link.name;
    curve.mover = of.mover;
    std::tie(curve.curve, curve.latency) = curve_of(grid);
    result.profile.movers.push_back(std::move(curve));
    for (std::size_t i = 0; i < best.seconds.size(); ++i)
      best.seconds[i] = std::min(best.seconds[i], grid.seconds[i]);
  }
  std::tie(link.curve, link.latency) = curve_of(best);
  result.figures.push_back({link.name + " at best", link.curve.peak() / kGB, "GB/s"});
  put_link(result, std::move(link));
}

}  // namespace

Status probe_host(ProbeResult& result, const ProbeProgress& progress) {
  progress("host memory", 0.92);
  placement::Platform& platform = result.profile.platform;
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  const bool measured = result.profile.source.count("gpu_figures") == 0;
  if (pages > 0 && page > 0 && measured) {
    platform.tiers[platform.home].capacity = static_cast<Bytes>(pages) * static_cast<Bytes>(page);
  }
  LEHR_ASSIGN(const Topology topology, Topology::detect());
  for (const NumaNode& node : topology.nodes) {
    LEHR_ASSIGN(const double rate, copy_rate(node.id));
    result.figures.push_back(
        {"host copy, read and written, NUMA node " + std::to_string(node.id), rate / kGB, "GB/s"});
  }
  return {};
}

Status probe_nvme(const std::string& folder, ProbeResult& result, const ProbeProgress& progress) {
  placement::Platform& platform = result.profile.platform;
  std::vector<MoverGrids> grids;
  double part = 0;
  const auto show = [&](const std::string& what) {
    progress("drive " + what, 0.93 + 0.07 * part++ / static_cast<double>(2 * kFileSizes.size()));
  };
  for (const double size : kFileSizes) {
    const std::string pages = std::to_string(static_cast<std::uint64_t>(size) / 1024) + " KiB";
    LEHR_ASSIGN(const Drive drive, Drive::open(folder, static_cast<Bytes>(size), result));
    show("write " + pages);
    LEHR_TRY(drive.measure(false, grids));
    LEHR_TRY(drive.file->sync());
    show("read " + pages);
    LEHR_TRY(drive.measure(true, grids));
  }
  placement::Tier tier;
  tier.name = "nvme";
  if (const auto known = platform.tier("nvme")) tier = platform.tiers[*known];
  if (tier.capacity == 0) tier.capacity = kFileBytes;
  const TierId id = put_tier(platform, tier);
  for (const bool read : {true, false}) {
    placement::Link link;
    link.name = read ? "nvme_read" : "nvme_write";
    link.from = read ? id : platform.home;
    link.to = read ? platform.home : id;
    put_drive_link(std::move(link), read, grids, result);
  }
  result.profile.source["nvme_folder"] = folder;
  return {};
}

}  // namespace lehr::tools
