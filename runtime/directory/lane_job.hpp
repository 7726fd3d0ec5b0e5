// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/directory/block_store.hpp"

namespace lehr::directory {

/// A job whose blocks are on a device, or one that waits for work there: flights that were enqueued
/// when the job was submitted, behind what the caller named. A store's bytes are on their way from
/// then on. A load's flights are gated: the service's thread opens them once the bytes are in host
/// memory and right, so what is wrong leaves its block as it was, and events hold from the start.
/// A large job has several flights, so that blocks move while others are being summed.
class LaneJob {
 public:
  struct Order {
    bool storing = false;
    bool layered = false;
  };
  /// kOverBudget, and nothing enqueued, where one job asks for too much.
  static Result<std::shared_ptr<LaneJob>> start(transfer::BlockLanes& lanes,
                                                const BlockStore& store,
                                                std::vector<BlockMove> moves, const Order& order,
                                                const transfer::StreamOrder& after);
  /// Nothing to move: a point in the order of the caller's streams.
  static Result<std::shared_ptr<LaneJob>> point(transfer::BlockLanes& lanes,
                                                const transfer::StreamOrder& after);

  /// Where the blocks of a leg come from, or where those of a store go: in the order of the legs.
  enum class Way : std::uint8_t {
    kHost,     ///< slots of host memory
    kBelow,    ///< from a tier below, into host slots that keep them
    kBounces,  ///< from a tier below through the bounce slots, all of them
  };
  /// A flight, and its moves: `moves()` from `begin` on. Legs move and end in their order.
  struct Leg {
    std::unique_ptr<transfer::Flight> flight;
    std::size_t begin = 0, end = 0;
    Way way = Way::kHost;
    std::size_t size() const { return end - begin; }
  };
  std::vector<Leg>& legs() { return legs_; }
  bool storing() const { return order_.storing; }
  std::span<BlockMove> moves() { return moves_; }
  std::span<BlockMove> moves(const Leg& leg) { return moves().subspan(leg.begin, leg.size()); }
  std::span<ItemOutcome> outcomes() { return outcomes_; }
  std::span<ItemOutcome> outcomes(const Leg& leg) {
    return outcomes().subspan(leg.begin, leg.size());
  }

  /// Names the bytes of a leg's moves, those with an outcome of kOk, and lets it go.
  void open(const BlockStore& store, Leg& leg);
  /// A load that is not to be: lets all legs go with nothing to move.
  void give_up();
  /// Takes the legs that have ended, each once, after those that failed left their outcome; whether
  /// all have.
  bool land(const std::function<void(const Leg&)>& landed = {});

  std::uint32_t layers() const { return layers_; }
  /// See Flight::hold; a layer that has no event of its own comes with all.
  Status hold(void* stream, std::uint32_t layer) const;
  void* event() const { return legs_.back().flight->event(); }

 private:
  explicit LaneJob(const Order& order) : order_(order) {}
  void cut_legs(std::uint32_t room);
  void cut(std::size_t begin, std::size_t end, std::size_t count, Way way);
  bool layer_by_layer(const Leg& leg) const { return order_.layered && &leg == &legs_.back(); }
  transfer::FlightPlan plan_of(const Leg& leg) const;
  void write_pairs(const BlockStore& store, const Leg& leg,
                   std::span<kernels::PagePair> pairs) const;

  Order order_;
  std::uint32_t layers_ = 1;
  std::vector<BlockMove> moves_;
  std::vector<ItemOutcome> outcomes_;
  std::shared_ptr<const BlockParts> parts_;
  std::vector<Leg> legs_;
  std::size_t landed_ = 0;
};

}  // namespace lehr::directory
