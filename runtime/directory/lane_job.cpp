// SPDX-License-Identifier: Apache-2.0
#include "runtime/directory/lane_job.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace lehr::directory {

namespace {

constexpr std::size_t kMostPasses = 32;  ///< of legs through the bounce slots
constexpr std::size_t kMostLegs = 8;     ///< of the others
constexpr Bytes kLegBytes = 4 * kMiB;    ///< moves in 80 us, several times what a flight costs
constexpr std::size_t kSteps = 4;        ///< from the smallest leg to those of full size
/// Of a lane's room a job takes this part at most, and a leg a few launches, events and waits.
constexpr std::uint32_t kRoomOfLeg = 4, kPartOfRoom = 8;
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

/// Legs for each way, so that one moves while the next is being summed, fewer where the lane has
/// little room; and as many more as it takes to pass what keeps no copy through the bounce slots.
void LaneJob::cut_legs(std::uint32_t room) {
  const auto way_of = [&](const BlockMove& move) {
    if (order_.storing || move.tier == kHostTier) return Way::kHost;
    return move.host_copy != kNoSlot ? Way::kBelow : Way::kBounces;
  };
  std::stable_sort(moves_.begin(), moves_.end(),
                   [&](const BlockMove& a, const BlockMove& b) { return way_of(a) < way_of(b); });
  const std::size_t most = std::clamp<std::size_t>(room / kPartOfRoom / kRoomOfLeg, 1, kMostLegs);
  const Bytes block = moves_.front().bytes;
  for (std::size_t begin = 0, end = 0; begin < moves_.size(); begin = end) {
    const Way way = way_of(moves_[begin]);
    while (end < moves_.size() && way_of(moves_[end]) == way) ++end;
    const std::size_t size = end - begin;
    if (way == Way::kBounces) {
      for (std::size_t at = begin; at < end; at += kBounceSlots)
        cut(at, std::min<std::size_t>(at + kBounceSlots, end), 1, way);
      continue;
    }
    std::size_t count = std::clamp<std::size_t>(size * block / kLegBytes, 1, std::min(most, size));
    if (order_.layered && count > 1 && end == moves_.size()) {
      // Only the last leg's layers come one by one. No layer is whole before all blocks are right:
      // until then half of them go as a whole.
      cut(begin, begin + size / 2, std::min(count - 1, size / 2), way);
      cut(begin + size / 2, end, 1, way);
    } else {
      cut(begin, end, count, way);
    }
  }
}

/// The first leg of a load is summed before anything moves, the last one of a store when all has
/// moved: legs are small at that end.
void LaneJob::cut(std::size_t begin, std::size_t end, std::size_t count, Way way) {
  const auto weight = [&](std::size_t leg) {
    return std::min<std::size_t>(order_.storing ? count - leg : leg + 1, kSteps);
  };
  std::size_t all = 0, before = 0;
  for (std::size_t leg = 0; leg < count; ++leg) all += weight(leg);
  const std::size_t size = end - begin;
  for (std::size_t leg = 0; leg < count; ++leg) {
    const std::size_t from = begin + size * before / all;
    before += weight(leg);
    const std::size_t to = begin + size * before / all;
    if (to > from) legs_.push_back({nullptr, from, to, way});
  }
}

transfer::FlightPlan LaneJob::plan_of(const Leg& leg) const {
  transfer::FlightPlan plan;
  plan.inward = !order_.storing;
  plan.layout = page_layout(*parts_);
  if (plan.inward) plan.layout = plan.layout.reversed();
  plan.pairs = static_cast<std::uint32_t>(leg.size() * parts_->in_block.size());
  const std::uint32_t cuts = layer_by_layer(leg) ? layers_ : 1;
  for (std::uint32_t c = 1; c <= cuts; ++c) plan.cuts.push_back(plan.pairs / cuts * c);
  for (std::size_t m = leg.begin; m < leg.end; ++m) {
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
  job->cut_legs(lanes.room(!order.storing));
  const BlockParts& parts = *job->parts_;
  const std::uint64_t pairs = std::uint64_t{job->moves_.size()} * parts.in_block.size();
  const auto passes = std::count_if(job->legs_.begin(), job->legs_.end(),
                                    [](const Leg& leg) { return leg.way == Way::kBounces; });
  if (static_cast<std::size_t>(passes) > kMostPasses || pairs > kMostPairs ||
      pairs * parts.pieces.size() > kMostPieces) {
    return refused(Reason::kOverBudget,
                   "job: " + std::to_string(job->moves_.size()) + " blocks of " +
                       std::to_string(parts.in_block.size() * parts.pieces.size()) +
                       " pieces each, " + std::to_string(passes) +
                       " times what passes through host memory at once: ask for fewer in one job");
  }
  std::vector<transfer::FlightPlan> plans;
  for (const Leg& leg : job->legs_) {
    plans.push_back(job->plan_of(leg));
    if (!order.storing) continue;
    plans.back().outward.resize(plans.back().pairs);
    job->write_pairs(store, leg, plans.back().outward);
  }
  LEHR_ASSIGN(auto flights, lanes.start(plans, after));
  for (std::size_t i = 0; i < flights.size(); ++i) job->legs_[i].flight = std::move(flights[i]);
  return job;
}

Result<std::shared_ptr<LaneJob>> LaneJob::point(transfer::BlockLanes& lanes,
                                                const transfer::StreamOrder& after) {
  std::shared_ptr<LaneJob> job(new LaneJob({}));
  job->legs_.emplace_back();
  const transfer::FlightPlan nothing;
  LEHR_ASSIGN(auto flights, lanes.start({&nothing, 1}, after));
  job->legs_[0].flight = std::move(flights[0]);
  return job;
}

/// Pairs lie layer by layer where layers have events of their own, else block by block, so that
/// neighbours in a block are neighbours in the list.
void LaneJob::write_pairs(const BlockStore& store, const Leg& leg,
                          std::span<kernels::PagePair> pairs) const {
  const std::size_t all = parts_->in_block.size();
  const std::size_t group = layer_by_layer(leg) ? parts_->per_layer() : all;
  for (std::size_t m = 0; m < leg.size(); ++m) {
    const BlockMove& move = moves_[leg.begin + m];
    if (outcomes_[leg.begin + m].code != Code::kOk) continue;
    const std::uint64_t block = address(move.block);
    const std::uint64_t slot = address(store.host_slot(BlockStore::staged_slot(move)).data());
    for (std::size_t p = 0; p < all; ++p) {
      const std::uint64_t there = block + parts_->in_block[p];
      const std::uint64_t here = slot + p * parts_->stored_bytes();
      kernels::PagePair& pair = pairs[(p / group * leg.size() + m) * group + p % group];
      pair = order_.storing ? kernels::PagePair{there, here} : kernels::PagePair{here, there};
    }
  }
}

void LaneJob::open(const BlockStore& store, Leg& leg) {
  write_pairs(store, leg, leg.flight->pairs());
  std::byte* entry = leg.flight->entries().data();
  for (std::size_t m = leg.begin; m < leg.end; ++m) {
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

bool LaneJob::land(const std::function<void(const Leg&)>& landed) {
  for (; landed_ < legs_.size(); ++landed_) {
    const Leg& leg = legs_[landed_];
    const Result<bool> ended = leg.flight->ended();
    if (ended && !*ended) return false;
    for (ItemOutcome& outcome : outcomes(leg)) {
      if (ended || outcome.code != Code::kOk) continue;
      outcome.code = ended.error().code;
      outcome.reason = ended.error().reason;
    }
    if (landed) landed(leg);
  }
  return true;
}

Status LaneJob::hold(void* stream, std::uint32_t layer) const {
  return legs_.back().flight->hold(stream, order_.layered ? layer : 0);
}

}  // namespace lehr::directory
