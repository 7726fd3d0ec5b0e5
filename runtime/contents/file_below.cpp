// SPDX-License-Identifier: Apache-2.0
#include "runtime/contents/file_below.hpp"

#include <algorithm>
#include <array>

#include <fmt/core.h>

#include "transfer/arena.hpp"
#include "transfer/host_engine.hpp"

namespace lehr::contents {

namespace {

constexpr TierId kMemory = 0, kFile = 1;
constexpr std::size_t kBatch = 4096;
constexpr std::int64_t kPatientNs = 60'000'000'000;

}  // namespace

Bytes FileBelow::stride(Bytes page_bytes) {
  transfer::ArenaConfig arena;
  arena.page_bytes = page_bytes;
  return transfer::Arena::stride_for(arena);
}

FileBelow::FileBelow(const FileBelowOptions& options,
                     std::unique_ptr<transfer::TransferEngine> engine)
    : options_(options), engine_(std::move(engine)) {}

Result<std::unique_ptr<FileBelow>> FileBelow::create(const FileBelowOptions& options,
                                                     std::span<std::byte> home) {
  transfer::HostEngineConfig config;
  config.page_bytes = options.page_bytes;
  config.faults = options.faults;
  transfer::HostTierConfig memory;
  memory.name = "host";
  memory.pages = options.home_pages;
  memory.region.base = home.data();
  memory.region.bytes = home.size();
  config.memory.push_back(std::move(memory));
  transfer::PageFileConfig file;
  file.name = "nvme";
  file.pages = options.pages;
  auto folder = transfer::scratch_folder(options.directory);
  if (!folder) return not_found("nvme: " + folder.error().what);
  file.path = *std::move(folder);
  config.files.push_back(std::move(file));
  LEHR_ASSIGN(auto engine, transfer::make_host_engine(std::move(config)));
  LEHR_TRY(transfer::take_all_slots(*engine, kMemory));
  LEHR_TRY(transfer::take_all_slots(*engine, kFile));
  return std::unique_ptr<FileBelow>(new FileBelow(options, std::move(engine)));
}

Status FileBelow::run(std::span<const runtime::PageOp> ops) {
  while (!ops.empty()) {
    const auto some = ops.first(std::min(ops.size(), kBatch));
    ops = ops.subspan(some.size());
    std::vector<transfer::PageMove> moves;
    for (const runtime::PageOp& op : some) {
      const bool down = op.to == options_.below;
      transfer::PageMove move;
      move.page = op.page;
      move.version = op.version;
      move.from = {down ? kMemory : kFile, op.from_slot};
      move.to = {down ? kFile : kMemory, op.to_slot};
      move.cause = down ? transfer::Cause::kDemotion : transfer::Cause::kDemandLoad;
      move.urgency = transfer::Urgency::kUrgent;
      if (down) LEHR_TRY(engine_->stamp(move.from, op.page, op.version));
      moves.push_back(move);
    }
    std::vector<transfer::Submission> said(moves.size());
    const transfer::Ticket ticket = engine_->submit(moves, said);
    LEHR_TRY(engine_->wait(ticket, kPatientNs));
    for (const transfer::Submission& s : said) {
      if (s.job == 0) {
        return Error{s.code == Code::kRefused ? Code::kInternal : s.code, s.reason,
                     "nvme: the transfer engine refused a move"};
      }
    }
    LEHR_TRY(take_results());
  }
  return {};
}

Status FileBelow::take_results() {
  Status first;
  std::array<transfer::MoveResult, 64> results;
  for (std::size_t n = engine_->poll(results); n > 0; n = engine_->poll(results)) {
    for (const transfer::MoveResult& r : std::span(results).first(n)) {
      if (r.code == Code::kOk || !first) continue;
      first =
          Error{r.code, r.reason,
                fmt::format("nvme: page {} (version {}) did not {}: {}", r.page, r.version,
                            r.to.tier == kFile ? "go down" : "come up", transfer::what_failed(r))};
    }
  }
  return first;
}

}  // namespace lehr::contents
