// SPDX-License-Identifier: Apache-2.0
#include "runtime/directory/block_store.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/base/check.hpp"
#include "transfer/checksum.hpp"

namespace lehr::directory {

namespace {

constexpr std::int64_t kSlice = 50'000'000;  // ns
constexpr Bytes kPiece = 256 * kKiB;         // of a block, that one thread sums

std::size_t pieces_of(Bytes bytes) { return (bytes + kPiece - 1) / kPiece; }

std::span<const std::byte> piece(std::span<const std::byte> block, std::size_t index) {
  const std::size_t at = index * kPiece;
  return block.subspan(at, std::min<std::size_t>(kPiece, block.size() - at));
}

std::uint64_t checksum_of(std::span<const std::byte> block) {
  std::vector<std::uint64_t> sums(pieces_of(block.size()));
  for (std::size_t p = 0; p < sums.size(); ++p) sums[p] = transfer::checksum(piece(block, p));
  return transfer::checksum_of_pieces(sums);
}

Bytes bytes_of(std::span<const BlockMove> moves) {
  Bytes all = 0;
  for (const BlockMove& move : moves) all += move.bytes;
  return all;
}

void judge_sum(const BlockMove& move, std::uint64_t found, ItemOutcome& outcome) {
  if (found == move.checksum) return;
  outcome.code = Code::kCorrupt;
  outcome.reason = Reason::kChecksum;
}

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
  for (std::size_t t = 0; t < engine->tiers(); ++t)
    LEHR_TRY(transfer::take_all_slots(*engine, static_cast<TierId>(t)));
  return std::unique_ptr<BlockStore>(new BlockStore(options, std::move(engine)));
}

BlockStore::BlockStore(const BlockStoreOptions& options,
                       std::unique_ptr<transfer::TransferEngine> engine)
    : options_(options), engine_(std::move(engine)), helpers_(options.threads) {}

BlockStore::~BlockStore() = default;

std::span<std::byte> BlockStore::host_slot(SlotId slot) const {
  return {engine_->tier(kHostTier).address(slot).pointer, options_.block_bytes};
}

void BlockStore::store(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes) {
  const auto gather = [&](std::size_t i) {
    const BlockMove& move = moves[i];
    std::byte* to = host_slot(move.slot).data();
    for (const Run& run : *move.runs) {
      std::memcpy(to, move.block + run.offset, run.bytes);
      to += run.bytes;
    }
    outcomes[i].checksum = checksum_of(staged(move));
  };
  helpers_.run(moves.size(), bytes_of(moves), gather);
  stamp(moves, outcomes);
}

void BlockStore::seal(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes) {
  sum(moves, outcomes, [&](std::size_t i, std::uint64_t found) { outcomes[i].checksum = found; });
  stamp(moves, outcomes);
}

void BlockStore::stamp(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes) {
  for (std::size_t i = 0; i < moves.size(); ++i) {
    if (outcomes[i].code != Code::kOk) continue;
    const BlockMove& move = moves[i];
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

/// Piece by piece, so that few large blocks keep several threads busy too.
void BlockStore::sum(std::span<const BlockMove> moves, std::span<const ItemOutcome> outcomes,
                     const std::function<void(std::size_t, std::uint64_t)>& known,
                     const std::function<void(std::size_t)>& ready) {
  std::vector<std::size_t> ends;  // of each move's pieces
  std::size_t count = 0;
  for (std::size_t i = 0; i < moves.size(); ++i) {
    if (outcomes[i].code == Code::kOk) count += pieces_of(moves[i].bytes);
    ends.push_back(count);
  }
  std::vector<std::uint64_t> sums(count);
  const auto sum_piece = [&](std::size_t p) {
    const auto end = std::upper_bound(ends.begin(), ends.end(), p);
    const std::size_t first = end == ends.begin() ? 0 : *std::prev(end);
    sums[p] = transfer::checksum(
        piece(staged(moves[static_cast<std::size_t>(end - ends.begin())]), p - first));
  };
  std::size_t told = 0;
  const auto reached = [&](std::size_t done) {
    const std::size_t before = told;
    for (; told < moves.size() && ends[told] <= done; ++told) {
      const std::size_t first = told == 0 ? 0 : ends[told - 1];
      if (first < ends[told])
        known(told,
              transfer::checksum_of_pieces(std::span(sums).subspan(first, ends[told] - first)));
    }
    if (told > before && ready) ready(told);
  };
  helpers_.run(count, bytes_of(moves), sum_piece, reached);
  reached(count);
}

void BlockStore::verify(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes,
                        const std::function<void(std::size_t)>& ready) {
  if (!checks()) {
    ready(moves.size());
    return;
  }
  const auto judge = [&](std::size_t i, std::uint64_t found) {
    judge_sum(moves[i], found, outcomes[i]);
  };
  sum(moves, outcomes, judge, ready);
}

void BlockStore::stage(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes,
                       const std::function<void(std::size_t)>& ready) {
  fetch(moves, outcomes);
  verify(moves, outcomes, ready);
  keep_copies(moves, outcomes);
}

void BlockStore::scatter(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes) {
  const auto scatter_one = [&](std::size_t i) {
    const BlockMove& move = moves[i];
    if (outcomes[i].code == Code::kOk && checks())
      judge_sum(move, checksum_of(staged(move)), outcomes[i]);
    if (outcomes[i].code != Code::kOk) return;
    const std::byte* from = staged(move).data();
    for (const Run& run : *move.runs) {
      std::memcpy(move.block + run.offset, from, run.bytes);
      from += run.bytes;
    }
  };
  helpers_.run(moves.size(), bytes_of(moves), scatter_one);
}

void BlockStore::load(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes) {
  std::vector<std::size_t> here;
  std::vector<std::size_t> kept;
  std::vector<std::size_t> passing;
  for (std::size_t i = 0; i < moves.size(); ++i) {
    const bool keeps = moves[i].host_copy != kNoSlot;
    (moves[i].tier == kHostTier ? here : keeps ? kept : passing).push_back(i);
  }
  const auto group = [&](std::span<const std::size_t> indices, bool bounce) {
    std::vector<BlockMove> batch;
    for (std::size_t n = 0; n < indices.size(); ++n) {
      batch.push_back(moves[indices[n]]);
      if (bounce) batch.back().host_copy = bounce_slot(n);
    }
    std::vector<ItemOutcome> results(batch.size());
    fetch(batch, results);
    scatter(batch, results);
    for (std::size_t n = 0; n < indices.size(); ++n) outcomes[indices[n]] = results[n];
  };
  // From below: copies that stay in host all at once, the others through the bounce slots in
  // groups.
  group(here, false);
  group(kept, false);
  for (std::size_t at = 0; at < passing.size(); at += kBounceSlots) {
    const std::size_t count = std::min<std::size_t>(kBounceSlots, passing.size() - at);
    group(std::span(passing).subspan(at, count), true);
  }
  keep_copies(moves, outcomes);
}

/// Of what came from below into a slot of the catalog's and is right.
void BlockStore::keep_copies(std::span<const BlockMove> moves,
                             std::span<ItemOutcome> outcomes) const {
  for (std::size_t i = 0; i < moves.size(); ++i) {
    outcomes[i].host_copy = moves[i].tier != kHostTier &&
                            moves[i].host_copy < options_.slots[kHostTier] &&
                            outcomes[i].code == Code::kOk;
  }
}

/// Moves from a tier below into their host copies; the others stay as they are.
void BlockStore::fetch(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes) {
  std::vector<std::size_t> below;
  std::vector<transfer::PageMove> asked;
  for (std::size_t i = 0; i < moves.size(); ++i) {
    const BlockMove& move = moves[i];
    if (move.tier == kHostTier) continue;
    transfer::PageMove page;
    page.page = move.object;
    page.version = versions_[move.object];
    page.from = {move.tier, move.slot};
    page.to = {kHostTier, move.host_copy};
    page.cause = transfer::Cause::kDemandLoad;
    page.urgency = transfer::Urgency::kUrgent;
    asked.push_back(page);
    below.push_back(i);
  }
  if (asked.empty()) return;
  std::vector<transfer::Submission> said(asked.size());
  const transfer::Ticket ticket = engine_->submit(asked, said);
  // Each accepted move ends exactly once, so this ends; slices let the engine look at its clock.
  while (!engine_->wait(ticket, kSlice)) collect();
  collect();
  for (std::size_t n = 0; n < below.size(); ++n) {
    ItemOutcome& outcome = outcomes[below[n]];
    if (said[n].job == 0) {
      outcome.code = said[n].code;
      outcome.reason = said[n].reason;
      continue;
    }
    const auto ended = fetched_.find(said[n].job);
    LEHR_CHECK(1, ended != fetched_.end());
    outcome.code = ended->second.code;
    outcome.reason = ended->second.reason;
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
