// SPDX-License-Identifier: Apache-2.0
// Random page reads through the transfer engine beside fio: the same file, block size and depth, in
// the same run, in turns. Prints each round, the medians and their ratio.
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "kernels/base/rng.hpp"
#include "transfer/clock.hpp"
#include "transfer/host_engine.hpp"

namespace {

using namespace lehr;
using namespace lehr::transfer;

constexpr TierId kMemory = 0, kFile = 1;
constexpr std::int64_t kPatience = 60'000'000'000;

struct Options {
  std::string directory = ".";
  Bytes file_bytes = 2 * kGiB;
  Bytes block = 64 * kKiB;
  std::uint32_t depth = 64;
  double seconds = 4;
  int rounds = 3;
  bool verify = true;
};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "nvme_bench: %s\n", what.c_str());
  std::exit(1);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Bytes a second of fio's random reads of `path`.
double run_fio(const Options& o, const std::string& path, Bytes bytes) {
  const std::string command =
      "fio --name=beside --readonly --rw=randread --ioengine=io_uring --direct=1 --fixedbufs=1 "
      "--registerfiles=1 --norandommap=1 --time_based=1 --output-format=json --filename=" +
      path + " --bs=" + std::to_string(o.block) + " --iodepth=" + std::to_string(o.depth) +
      " --offset=4096 --size=" + std::to_string(bytes) + " --runtime=" + std::to_string(o.seconds) +
      "s 2>/dev/null";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) die("cannot start fio");
  std::string text;
  std::array<char, 4096> buffer;
  std::size_t got = 0;
  while ((got = std::fread(buffer.data(), 1, buffer.size(), pipe)) != 0)
    text.append(buffer.data(), got);
  if (::pclose(pipe) != 0) die("fio failed; is it installed?");
  const auto json = nlohmann::json::parse(text.substr(text.find('{')), nullptr, false);
  if (json.is_discarded()) die("fio printed no JSON");
  return json["jobs"][0]["read"]["bw_bytes"].get<double>();
}

struct Pages {
  TransferEngine& engine;
  std::vector<SlotId> file;    ///< page p lies in slot file[p]
  std::vector<SlotId> memory;  ///< one for each move in flight
};

PageMove load(const Pages& pages, PageId page, SlotId into) {
  PageMove move;
  move.page = page;
  move.from = {kFile, pages.file[page]};
  move.to = {kMemory, into};
  move.cause = Cause::kDemandLoad;
  move.urgency = Urgency::kUrgent;
  return move;
}

void write_all(Pages& pages) {
  Rng rng(1);
  const auto memory = static_cast<std::uint32_t>(pages.memory.size());
  std::vector<PageMove> moves;
  for (PageId page = 0; page < pages.file.size(); ++page) {
    const Place from{kMemory, pages.memory[page % memory]};
    auto* words =
        reinterpret_cast<std::uint64_t*>(pages.engine.tier(kMemory).address(from.slot).pointer);
    for (Bytes i = 0; i < pages.engine.tier(kMemory).page_bytes() / 8; ++i) words[i] = rng.next();
    if (!pages.engine.stamp(from, page, 1)) die("cannot stamp a page");
    PageMove move = load(pages, page, from.slot);
    std::swap(move.from, move.to);
    moves.push_back(move);
    if (moves.size() < memory && page + 1 < pages.file.size()) continue;
    std::vector<Submission> out(moves.size());
    const Ticket ticket = pages.engine.submit(moves, out);
    if (!pages.engine.wait(ticket, kPatience)) die("writing does not end");
    std::vector<MoveResult> results(moves.size());
    const std::size_t done = pages.engine.poll(results);
    for (const MoveResult& r : std::span(results).first(done)) {
      if (r.code != Code::kOk) die("a write failed");
    }
    if (done != moves.size()) die("a write was refused");
    moves.clear();
  }
  if (!pages.engine.flush()) die("flush failed");
}

double run_engine(const Options& o, Pages& pages, Rng& rng) {
  const SteadyClock clock;
  std::vector<SlotId> idle = pages.memory;
  std::vector<PageMove> moves;
  std::vector<Submission> out(idle.size());
  std::vector<MoveResult> results(idle.size());
  Bytes moved = 0;
  std::size_t running = 0;
  const std::int64_t start = clock.now_ns();
  const std::int64_t end = start + static_cast<std::int64_t>(o.seconds * 1e9);
  bool stopping = false;
  const auto count = static_cast<std::uint32_t>(pages.file.size());
  while (!stopping || running != 0) {
    stopping = stopping || clock.now_ns() >= end;
    moves.clear();
    while (!stopping && !idle.empty()) {
      moves.push_back(load(pages, rng.below(count), idle.back()));
      idle.pop_back();
    }
    if (!moves.empty()) {
      pages.engine.submit(moves, out);
      for (std::size_t i = 0; i < moves.size(); ++i) {
        if (out[i].job == 0) die("a read was refused");
      }
      running += moves.size();
    }
    const std::size_t done = pages.engine.wait_some(results, kPatience);
    for (const MoveResult& r : std::span(results).first(done)) {
      if (r.code != Code::kOk) die("a read failed");
      idle.push_back(r.to.slot);
      moved += r.bytes;
    }
    running -= done;
  }
  return static_cast<double>(moved) / (static_cast<double>(clock.now_ns() - start) * 1e-9);
}

int bench(const Options& o) {
  const std::string path = o.directory + "/lehr-nvme-bench." + std::to_string(::getpid());
  HostEngineConfig config;
  config.page_bytes = o.block;
  // As many pages again wait for the device as it has in flight, as on a link that is the
  // bottleneck.
  const std::uint32_t slots = 2 * o.depth;
  config.memory = {{"memory", slots, {}}};
  PageFileConfig file;
  file.name = "nvme";
  file.path = path;
  file.keep = true;
  file.pages = static_cast<SlotId>(o.file_bytes / o.block);
  config.files = {file};
  config.file_depth = o.depth;
  config.default_limits.urgent_depth = o.depth;
  if (!o.verify) config.faults.guards_off = {Guard::kChecksum};
  auto engine = make_host_engine(std::move(config));
  if (!engine) die(engine.error().what);
  for (const std::string& notice : (*engine)->stats().notices)
    std::printf("notice: %s\n", notice.c_str());
  Pages pages{**engine, std::vector<SlotId>(file.pages), std::vector<SlotId>(slots)};
  if (!(*engine)->allocate(kFile, pages.file) || !(*engine)->allocate(kMemory, pages.memory)) {
    die("cannot allocate pages");
  }
  write_all(pages);

  std::vector<double> fio, ours;
  Rng rng(7);
  for (int round = 0; round < o.rounds; ++round) {
    fio.push_back(run_fio(o, path, Bytes{file.pages} * o.block));
    ours.push_back(run_engine(o, pages, rng));
    std::printf("round %d: fio %.1f MB/s, engine %.1f MB/s, ratio %.3f\n", round + 1,
                fio.back() / 1e6, ours.back() / 1e6, ours.back() / fio.back());
    std::fflush(stdout);
  }
  std::printf(
      "block %llu, depth %u, %s, checksums %s: fio %.1f MB/s, engine %.1f MB/s, ratio %.3f\n",
      static_cast<unsigned long long>(o.block), o.depth, (*engine)->stats().links[1].mover.c_str(),
      o.verify ? "verified" : "off", median(fio) / 1e6, median(ours) / 1e6,
      median(ours) / median(fio));
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".index");
  return 0;
}

int run(int argc, char** argv) {
  Options o;
  CLI::App app("Random page reads through the transfer engine beside fio");
  app.add_option("--dir", o.directory, "where the file is made");
  app.add_option("--size", o.file_bytes, "bytes of the file")->transform(CLI::AsSizeValue(false));
  app.add_option("--block", o.block, "bytes of a page")->transform(CLI::AsSizeValue(false));
  app.add_option("--depth", o.depth, "reads in flight")->check(CLI::Range(1, 1024));
  app.add_option("--seconds", o.seconds, "of each measurement");
  app.add_option("--rounds", o.rounds, "measurements of each side")->check(CLI::Range(1, 100));
  app.add_flag("!--no-verify", o.verify, "leave out the checksum of every page read");
  CLI11_PARSE(app, argc, argv);
  return bench(o);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {  // of the libraries
    std::fprintf(stderr, "%s\n", error.what());
  }
  return 1;
}
