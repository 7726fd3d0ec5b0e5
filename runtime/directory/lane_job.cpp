// SPDX-License-Identifier: Apache-2.0
#include "runtime/directory/lane_job.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace lehr::directory {

namespace {

constexpr std::size_t kMostLegs = 32;
constexpr std::uint64_t kMostPairs = std::uint64_t{1} << 30;  ///< lanes have limits of their own
constexpr std::uint64_t kMostPieces = std::uint64_t{1} << 27;

std::uint64_t address(const std::byte* p) { return reinterpret_cast<std::uint64_t>(p); }

/// From blocks to slots.
kernels::PageLayout page_layout(const BlockParts& parts) {
  kernels::PageLayout layout;
  layout.count = static_cast<std::uint32_t>(parts.pieces.size());
  layout.piece_bytes = parts.piece_bytes;
  for (std::uint32_t i = 0; i < layout.count; ++i) {
    layout.from[i] = parts.pieces[i];
    layout.to[i] = std::uint64_t{i} * parts.piece_bytes;
  }
  return layout;
}

}  // namespace

/// One leg, and as many more as it takes to pass what keeps no copy through the bounce slots.
void LaneJob::cut_legs() {
  legs_.emplace_back();
  std::size_t passing = 0;
  for (std::size_t i = 0; i < moves_.size(); ++i) {
    BlockMove& move = moves_[i];
    if (order_.storing || move.tier == kHostTier || move.host_copy != kNoSlot) {
      legs_.front().moves.push_back(i);
      continue;
    }
    const std::size_t leg = passing++ / kBounceSlots;
    if (leg == legs_.size()) legs_.emplace_back();
    legs_[leg].bounces = true;
    legs_[leg].moves.push_back(i);
  }
}

transfer::FlightPlan LaneJob::plan_of(const Leg& leg) const {
  transfer::FlightPlan plan;
  plan.inward = !order_.storing;
  plan.layout = page_layout(*parts_);
  if (plan.inward) plan.layout = plan.layout.reversed();
  plan.pairs = static_cast<std::uint32_t>(leg.moves.size() * parts_->in_block.size());
  const std::uint32_t cuts = order_.layered ? layers_ : 1;
  for (std::uint32_t c = 1; c <= cuts; ++c) plan.cuts.push_back(plan.pairs / cuts * c);
  for (const std::size_t m : leg.moves) {
    const BlockMove& move = moves_[m];
    if (move.entry == nullptr) continue;
    // Neighbours are written at once.
    if (!plan.entries.empty() && plan.entries.back().absent == move.absent &&
        plan.entries.back().to + plan.entries.back().bytes == move.entry) {
      plan.entries.back().bytes += move.entry_bytes;
    } else {
      plan.entries.push_back({move.entry, move.entry_bytes, move.absent});
    }
  }
  return plan;
}

Result<std::shared_ptr<LaneJob>> LaneJob::start(transfer::BlockLanes& lanes,
                                                const BlockStore& store,
                                                std::vector<BlockMove> moves, const Order& order,
                                                const transfer::StreamOrder& after) {
  std::shared_ptr<LaneJob> job(new LaneJob(order));
  job->parts_ = moves.front().parts;
  job->layers_ = job->parts_->layers;
  job->moves_ = std::move(moves);
  job->outcomes_.resize(job->moves_.size());
  job->cut_legs();
  const BlockParts& parts = *job->parts_;
  const std::uint64_t pairs = std::uint64_t{job->moves_.size()} * parts.in_block.size();
  if (job->legs_.size() > kMostLegs || pairs > kMostPairs ||
      pairs * parts.pieces.size() > kMostPieces) {
    return refused(Reason::kOverBudget,
                   "job: " + std::to_string(job->moves_.size()) + " blocks of " +
                       std::to_string(parts.in_block.size() * parts.pieces.size()) +
                       " pieces each, " + std::to_string(job->legs_.size()) +
                       " times what passes through host memory at once: ask for fewer in one job");
  }
  transfer::StreamOrder once = after;
  for (Leg& leg : job->legs_) {
    const transfer::FlightPlan plan = job->plan_of(leg);
    std::vector<kernels::PagePair> outward;
    if (order.storing) {
      outward.resize(plan.pairs);
      job->write_pairs(store, leg, outward);
    }
    LEHR_ASSIGN(leg.flight, lanes.start(plan, outward, once));
    once = {};  // what the first flight waits for, those behind it wait for
  }
  return job;
}

Result<std::shared_ptr<LaneJob>> LaneJob::point(transfer::BlockLanes& lanes,
                                                const transfer::StreamOrder& after) {
  std::shared_ptr<LaneJob> job(new LaneJob({}));
  job->legs_.emplace_back();
  LEHR_ASSIGN(job->legs_[0].flight, lanes.start({}, {}, after));
  return job;
}

/// Pairs lie layer by layer where layers have events of their own, else block by block, so that
/// neighbours in a block are neighbours in the list.
void LaneJob::write_pairs(const BlockStore& store, const Leg& leg,
                          std::span<kernels::PagePair> pairs) const {
  const std::size_t all = parts_->in_block.size();
  const std::size_t group = order_.layered ? parts_->per_layer() : all;
  for (std::size_t m = 0; m < leg.moves.size(); ++m) {
    const BlockMove& move = moves_[leg.moves[m]];
    if (outcomes_[leg.moves[m]].code != Code::kOk) continue;
    const std::uint64_t block = address(move.block);
    const std::uint64_t slot = address(store.host_slot(BlockStore::staged_slot(move)).data());
    for (std::size_t p = 0; p < all; ++p) {
      const std::uint64_t there = block + parts_->in_block[p];
      const std::uint64_t here = slot + p * parts_->stored_bytes();
      kernels::PagePair& pair = pairs[(p / group * leg.moves.size() + m) * group + p % group];
      pair = order_.storing ? kernels::PagePair{there, here} : kernels::PagePair{here, there};
    }
  }
}

void LaneJob::open(const BlockStore& store, Leg& leg) {
  write_pairs(store, leg, leg.flight->pairs());
  std::byte* entry = leg.flight->entries().data();
  for (const std::size_t m : leg.moves) {
    const BlockMove& move = moves_[m];
    if (move.entry == nullptr) continue;
    if (outcomes_[m].code == Code::kOk) std::memcpy(entry, &move.entry_value, move.entry_bytes);
    entry += move.entry_bytes;
  }
  leg.flight->open();
}

void LaneJob::give_up() {
  for (Leg& leg : legs_) leg.flight->open();
}

bool LaneJob::ended() {
  bool all = true;
  for (Leg& leg : legs_) {
    const Result<bool> ended = leg.flight->ended();
    if (ended && !*ended) all = false;
    if (ended) continue;
    for (const std::size_t m : leg.moves) {
      if (outcomes_[m].code != Code::kOk) continue;
      outcomes_[m].code = ended.error().code;
      outcomes_[m].reason = ended.error().reason;
    }
  }
  return all;
}

Status LaneJob::hold(void* stream, std::uint32_t layer) const {
  return legs_.back().flight->hold(stream, order_.layered ? layer : 0);
}

}  // namespace lehr::directory
