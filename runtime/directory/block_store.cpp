// SPDX-License-Identifier: Apache-2.0
#include "runtime/directory/block_store.hpp"

#include <array>
#include <cstring>

#include "kernels/base/check.hpp"
#include "transfer/checksum.hpp"

namespace lehr::directory {

namespace {

constexpr std::int64_t kSlice = 50'000'000;  // ns

}  // namespace

Result<std::unique_ptr<BlockStore>> BlockStore::create(const BlockStoreOptions& options) {
  const bool nvme = options.slots[kNvmeTier] > 0;
  transfer::HostEngineConfig config;
  config.page_bytes = options.block_bytes;
  const std::uint32_t host = options.slots[kHostTier] + (nvme ? kBounceSlots : 0);
  config.memory.push_back({"placement host", host, std::nullopt, {}});
  if (options.lanes != nullptr) {
    transfer::ArenaConfig arena;
    arena.pages = host;
    arena.page_bytes = options.block_bytes;
    LEHR_ASSIGN(config.memory[0].region,
                options.lanes->host_memory(transfer::Arena::bytes_for(arena),
                                           transfer::Arena::stride_for(arena)));
  }
  if (nvme) {
    if (options.nvme_directory.empty()) {
      return invalid("nvme.path: needed, as placement.nvme has a capacity");
    }
    transfer::PageFileConfig file;
    file.name = "placement nvme";
    file.path = options.nvme_directory;
    file.pages = options.slots[kNvmeTier];
    config.files.push_back(std::move(file));
  }
  config.faults = options.faults;
  config.measured = options.movers;
  LEHR_ASSIGN(auto engine, transfer::make_host_engine(std::move(config)));
  // The catalog hands out slots; to the engine all of them are taken from the start.
  const auto tiers = static_cast<TierId>(engine->tiers());
  for (TierId t = 0; t < tiers; ++t) {
    std::vector<SlotId> all(t == kHostTier ? host : options.slots[t]);
    if (!all.empty()) LEHR_TRY(engine->allocate(t, all));
  }
  return std::unique_ptr<BlockStore>(new BlockStore(options, std::move(engine)));
}

BlockStore::BlockStore(const BlockStoreOptions& options,
                       std::unique_ptr<transfer::TransferEngine> engine)
    : options_(options), engine_(std::move(engine)) {}

BlockStore::~BlockStore() = default;

std::span<std::byte> BlockStore::host_slot(SlotId slot) const {
  return {engine_->tier(kHostTier).address(slot).pointer, options_.block_bytes};
}

void BlockStore::store(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes) {
  for (std::size_t i = 0; i < moves.size(); ++i) {
    const BlockMove& move = moves[i];
    const std::span<std::byte> slot = host_slot(move.slot);
    std::size_t at = 0;
    for (const Run& run : *move.runs) {
      std::memcpy(slot.data() + at, move.block + run.offset, run.bytes);
      at += run.bytes;
    }
  }
  seal(moves, outcomes);
}

void BlockStore::seal(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes) {
  for (std::size_t i = 0; i < moves.size(); ++i) {
    if (outcomes[i].code != Code::kOk) continue;
    const BlockMove& move = moves[i];
    outcomes[i].checksum = transfer::checksum(host_slot(move.slot).first(move.bytes));
    if (versions_.size() <= move.object) versions_.resize(move.object + 1, 0);
    if (++versions_[move.object] == 0) versions_[move.object] = 1;
    const Status stamped =
        engine_->stamp({kHostTier, move.slot}, move.object, versions_[move.object]);
    if (!stamped) {
      outcomes[i].code = stamped.error().code;
      outcomes[i].reason = stamped.error().reason;
    }
  }
}

void BlockStore::verify(const BlockMove& move, ItemOutcome& outcome) const {
  const std::span<std::byte> slot = host_slot(staged_slot(move));
  if (outcome.code == Code::kOk && options_.faults.guards(transfer::Guard::kChecksum) &&
      transfer::checksum(slot.first(move.bytes)) != move.checksum) {
    outcome.code = Code::kCorrupt;
    outcome.reason = Reason::kChecksum;
  }
}

void BlockStore::scatter(const BlockMove& move, ItemOutcome& outcome) const {
  verify(move, outcome);
  if (outcome.code != Code::kOk) return;
  const std::span<std::byte> slot = host_slot(staged_slot(move));
  std::size_t at = 0;
  for (const Run& run : *move.runs) {
    std::memcpy(move.block + run.offset, slot.data() + at, run.bytes);
    at += run.bytes;
  }
}

void BlockStore::stage(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes) {
  std::vector<BlockMove> below;
  for (const BlockMove& move : moves) {
    if (move.tier != kHostTier) below.push_back(move);
  }
  std::vector<ItemOutcome> fetched(below.size());
  fetch(below, fetched);
  std::size_t next = 0;
  for (std::size_t i = 0; i < moves.size(); ++i) {
    const BlockMove& move = moves[i];
    if (move.tier != kHostTier) outcomes[i] = fetched[next++];
    verify(move, outcomes[i]);
    outcomes[i].host_copy = move.tier != kHostTier && move.host_copy < options_.slots[kHostTier] &&
                            outcomes[i].code == Code::kOk;
  }
}

void BlockStore::load(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes) {
  for (std::size_t i = 0; i < moves.size(); ++i) {
    if (moves[i].tier == kHostTier) scatter(moves[i], outcomes[i]);
  }
  // From below: copies that stay in host all at once, the others through the bounce slots in
  // groups.
  std::vector<std::size_t> kept;
  std::vector<std::size_t> passing;
  for (std::size_t i = 0; i < moves.size(); ++i) {
    if (moves[i].tier == kHostTier) continue;
    (moves[i].host_copy != kNoSlot ? kept : passing).push_back(i);
  }
  const auto group = [&](std::span<const std::size_t> indices, bool bounce) {
    std::vector<BlockMove> batch;
    for (std::size_t n = 0; n < indices.size(); ++n) {
      batch.push_back(moves[indices[n]]);
      if (bounce) {
        batch.back().host_copy = bounce_slot(n);
      }
    }
    std::vector<ItemOutcome> results(batch.size());
    fetch(batch, results);
    for (std::size_t n = 0; n < batch.size(); ++n) scatter(batch[n], results[n]);
    for (std::size_t n = 0; n < indices.size(); ++n) {
      outcomes[indices[n]] = results[n];
      outcomes[indices[n]].host_copy = !bounce && results[n].code == Code::kOk;
    }
  };
  group(kept, false);
  for (std::size_t at = 0; at < passing.size(); at += kBounceSlots) {
    const std::size_t count = std::min<std::size_t>(kBounceSlots, passing.size() - at);
    group(std::span(passing).subspan(at, count), true);
  }
}

void BlockStore::fetch(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes) {
  if (moves.empty()) return;
  std::vector<transfer::PageMove> asked;
  for (const BlockMove& move : moves) {
    transfer::PageMove page;
    page.page = move.object;
    page.version = versions_[move.object];
    page.from = {move.tier, move.slot};
    page.to = {kHostTier, move.host_copy};
    page.cause = transfer::Cause::kDemandLoad;
    page.urgency = transfer::Urgency::kUrgent;
    asked.push_back(page);
  }
  std::vector<transfer::Submission> said(moves.size());
  const transfer::Ticket ticket = engine_->submit(asked, said);
  // Each accepted move ends exactly once, so this ends; slices let the engine look at its clock.
  while (!engine_->wait(ticket, kSlice)) collect();
  collect();
  for (std::size_t i = 0; i < moves.size(); ++i) {
    if (said[i].job == 0) {
      outcomes[i].code = said[i].code;
      outcomes[i].reason = said[i].reason;
      continue;
    }
    const auto ended = fetched_.find(said[i].job);
    LEHR_CHECK(1, ended != fetched_.end());
    outcomes[i].code = ended->second.code;
    outcomes[i].reason = ended->second.reason;
    fetched_.erase(ended);
  }
}

void BlockStore::start_write(const WriteDown& write) {
  transfer::PageMove page;
  page.page = write.object;
  page.version = versions_[write.object];
  page.from = {write.from, write.from_slot};
  page.to = {write.to, write.to_slot};
  page.cause = transfer::Cause::kDemotion;
  transfer::Submission said;
  engine_->submit({&page, 1}, {&said, 1});
  if (said.job == 0) {
    refused_writes_.push_back({write, false});
  } else {
    writes_.emplace(said.job, write);
  }
}

void BlockStore::collect() {
  std::array<transfer::MoveResult, 64> results;
  std::size_t count = 0;
  do {
    count = engine_->poll(results);
    for (std::size_t i = 0; i < count; ++i) {
      const auto write = writes_.find(results[i].job);
      if (write != writes_.end()) {
        finished_writes_.push_back({write->second, results[i].code == Code::kOk});
        writes_.erase(write);
      } else {
        fetched_[results[i].job] = {results[i].code, results[i].reason, {}};
      }
    }
  } while (count == results.size());
}

std::vector<BlockStore::Written> BlockStore::poll_writes() {
  collect();
  std::vector<Written> all = std::move(finished_writes_);
  finished_writes_.clear();
  all.insert(all.end(), refused_writes_.begin(), refused_writes_.end());
  refused_writes_.clear();
  return all;
}

}  // namespace lehr::directory
