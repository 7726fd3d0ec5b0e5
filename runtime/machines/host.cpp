// SPDX-License-Identifier: Apache-2.0
#include "runtime/machines/host.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <unordered_set>

#include <fmt/core.h>

#include "kernels/base/check.hpp"
#include "runtime/machines/page_pattern.hpp"
#include "transfer/arena.hpp"
#include "transfer/host_engine.hpp"

namespace lehr::runtime {

namespace {

using transfer::Place;

constexpr std::int64_t kBoundNs =
    60'000'000'000;  ///< a layer's transfers that take longer are a failure
constexpr std::uint32_t kStagingSlots = 64;

transfer::Cause cause_of(const PageOp& op) {
  if (op.kind == PageOp::Kind::kFetch) return transfer::Cause::kDemandLoad;
  if (op.from == kHbm) return transfer::Cause::kWriteBack;
  return op.to == kHbm     ? transfer::Cause::kPromotion
         : op.to > op.from ? transfer::Cause::kDemotion
                           : transfer::Cause::kDemandLoad;
}

class Host final : public HostMachine {
 public:
  /// Without a source, contents are patterns.
  Host(std::unique_ptr<transfer::TransferEngine> engine, TierId home, std::vector<SlotId> staging,
       PageSource* source)
      : engine_(std::move(engine)), home_(home), staging_(std::move(staging)), source_(source) {}

  MachineTraits traits() const override { return {.moves_bytes = true, .lowers = true}; }

  Status set_up(std::span<const PageOp> ops) override {
    for (const PageOp& op : ops) LEHR_TRY(run(op));
    return flush();
  }

  Status run_layer(Step, std::uint32_t, std::span<const PageOp> ops) override {
    const auto began = std::chrono::steady_clock::now();
    engine_->begin_step();
    for (const PageOp& op : ops) LEHR_TRY(run(op));
    LEHR_TRY(flush());
    measured_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    return {};
  }

  Status drain() override { return flush(); }

  Seconds take_measured() override { return std::exchange(measured_, 0.0); }

  std::vector<std::string> notes() const override {
    const transfer::EngineStats stats = engine_->stats();
    std::vector<std::string> out;
    out.push_back(fmt::format("verified {} page reads ({} bytes) by {}", verified_, verified_bytes_,
                              source_ == nullptr ? "content" : "stamp"));
    if (lowered_ > 0) {
      out.push_back(
          fmt::format("lowered {} pages in place; their slots are moved whole", lowered_));
    }
    for (const transfer::LinkStats& link : stats.links) {
      std::map<std::string, Bytes> bytes;  // a mover may have been measured more than once
      for (const transfer::MoverShare& share : link.by_mover) bytes[share.mover] += share.bytes;
      for (const auto& [mover, moved] : bytes) {
        if (moved > 0)
          out.push_back(fmt::format("{}: {} bytes moved by {}", link.name, moved, mover));
      }
    }
    out.insert(out.end(), stats.notices.begin(), stats.notices.end());
    return out;
  }

  std::span<std::byte> memory(TierId tier, SlotId slot) const override { return bytes(tier, slot); }

  Status read_below(TierId tier, SlotId slot, PageId page, std::uint32_t version,
                    std::span<std::byte> out) override {
    if (staged_ == staging_.size()) LEHR_TRY(flush());
    const Place staging{home_, staging_[staged_++]};
    PageOp op{PageOp::Kind::kCopy, tier, home_, page, version, slot, staging.slot};
    LEHR_TRY(move(op, {tier, slot}));
    LEHR_TRY(flush());
    const auto contents = bytes(staging.tier, staging.slot);
    std::copy_n(contents.begin(), std::min(contents.size(), out.size()), out.begin());
    return {};
  }

  std::vector<PageOp> take_deferred() override { return std::exchange(deferred_, {}); }

  Status fill_now(std::span<const PageOp> ops) override {
    for (const PageOp& op : ops) LEHR_TRY(run(op));
    if (!deferred_.empty()) return internal_error("host machine: contents were promised");
    return flush();
  }

  std::uint64_t moved_pages() const override { return moved_; }
  Bytes moved_bytes() const override { return moved_bytes_; }

 private:
  static std::uint64_t key(TierId tier, SlotId slot) { return (std::uint64_t{tier} << 32) | slot; }

  bool is_memory(TierId tier) const {
    return engine_->tier(tier).space() == transfer::Space::kHostMemory;
  }
  std::span<std::byte> bytes(TierId tier, SlotId slot) const {
    return static_cast<const transfer::Arena&>(engine_->tier(tier)).page(slot);
  }

  Status run(const PageOp& op) {
    // One writer of a slot at a time: the engine orders readers after it, but takes no second one.
    if (op.kind != PageOp::Kind::kRead && arriving_.contains(key(op.to, op.to_slot)))
      LEHR_TRY(flush());
    switch (op.kind) {
      case PageOp::Kind::kFill:
        return fill(op);
      case PageOp::Kind::kRead:
        return read(op);
      case PageOp::Kind::kFetch:
        LEHR_TRY(read(op));
        return move(op, {op.from, op.from_slot});
      case PageOp::Kind::kCopy:
        return move(op, {op.from, op.from_slot});
      case PageOp::Kind::kLower:
        return lower(op);
    }
    return internal_error("host machine: unknown operation");
  }

  Status fill(const PageOp& op) {
    if (!is_memory(op.to)) {  // made in a staging slot of the home tier, then moved
      if (staged_ == staging_.size()) LEHR_TRY(flush());
      const Place staging{home_, staging_[staged_++]};
      if (!write_contents(op, bytes(staging.tier, staging.slot))) return {};
      LEHR_TRY(engine_->stamp(staging, op.page, op.version));
      return move(op, staging);
    }
    if (touched_.contains(key(op.to, op.to_slot))) LEHR_TRY(flush());
    if (!write_contents(op, bytes(op.to, op.to_slot))) return {};
    return engine_->stamp({op.to, op.to_slot}, op.page, op.version);
  }

  /// False where the source has them later: the operation is kept for then.
  bool write_contents(const PageOp& op, std::span<std::byte> out) {
    if (source_ == nullptr) {
      PagePattern(op.page, op.version).fill(out);
      return true;
    }
    if (source_->fill(op.page, op.version, out)) return true;
    deferred_.push_back(op);
    return false;
  }

  Status read(const PageOp& op) {
    if (arriving_.contains(key(op.from, op.from_slot))) LEHR_TRY(flush());
    const Place place{op.from, op.from_slot};
    LEHR_ASSIGN(const transfer::Lease lease, engine_->lease(place, transfer::LeaseMode::kRead));
    const auto contents = bytes(op.from, op.from_slot);
    if (!lease.ready() || !engine_->holds(place, op.page, op.version) ||
        (source_ == nullptr && !PagePattern(op.page, op.version).matches(contents))) {
      return corrupt(
          fmt::format("tier {}, slot {}: expected page {} version {}, found other contents",
                      op.from, op.from_slot, op.page, op.version),
          Reason::kChecksum);
    }
    ++verified_;
    verified_bytes_ += contents.size();
    return {};
  }

  /// The contents before are verified as at a read; from here on every check is for the new form.
  Status lower(const PageOp& op) {
    if (touched_.contains(key(op.from, op.from_slot))) LEHR_TRY(flush());
    PageOp before = op;
    --before.version;
    LEHR_TRY(read(before));
    const auto contents = bytes(op.from, op.from_slot);
    if (source_ != nullptr) {
      LEHR_TRY(source_->lower(op.page, contents));
    } else {
      PagePattern(op.page, op.version).fill(contents);
    }
    ++lowered_;
    return engine_->stamp({op.from, op.from_slot}, op.page, op.version);
  }

  Status move(const PageOp& op, Place from) {
    transfer::PageMove m;
    m.page = op.page;
    m.version = op.version;
    m.from = from;
    m.to = {op.to, op.to_slot};
    m.cause = cause_of(op);
    m.urgency = transfer::Urgency::kUrgent;
    moves_.push_back(m);
    touched_.insert(key(from.tier, from.slot));
    touched_.insert(key(op.to, op.to_slot));
    arriving_.insert(key(op.to, op.to_slot));
    return moves_.size() >= kBatch ? submit() : Status{};
  }

  Status submit() {
    if (moves_.empty()) return {};
    said_.resize(moves_.size());
    tickets_.push_back(engine_->submit(moves_, said_));
    for (const transfer::Submission& s : said_) {
      if (s.job == 0) {
        // No refusal to the caller: the step loop has decided, and counts on its moves.
        return Error{s.code == Code::kRefused ? Code::kInternal : s.code, s.reason,
                     "host machine: the transfer engine refused a move"};
      }
    }
    moves_.clear();
    return {};
  }

  /// Everything submitted has ended well.
  Status flush() {
    LEHR_TRY(submit());
    for (const transfer::Ticket ticket : tickets_) LEHR_TRY(engine_->wait(ticket, kBoundNs));
    tickets_.clear();
    touched_.clear();
    arriving_.clear();
    staged_ = 0;
    transfer::MoveResult results[64];
    for (std::size_t n = engine_->poll(results); n > 0; n = engine_->poll(results)) {
      for (const transfer::MoveResult& r : std::span(results).first(n)) {
        if (r.code == Code::kOk) {
          ++moved_;
          moved_bytes_ += r.bytes;
          continue;
        }
        return Error{r.code, r.reason,
                     fmt::format("moving page {} (version {}) from {} to {}: {}", r.page, r.version,
                                 engine_->tier(r.from.tier).name(), engine_->tier(r.to.tier).name(),
                                 transfer::what_failed(r))};
      }
    }
    return {};
  }

  static constexpr std::size_t kBatch = 256;

  std::unique_ptr<transfer::TransferEngine> engine_;
  TierId home_;
  std::vector<SlotId> staging_;
  PageSource* source_;
  std::vector<PageOp> deferred_;
  std::size_t staged_ = 0;
  std::vector<transfer::PageMove> moves_;
  std::vector<transfer::Submission> said_;
  std::vector<transfer::Ticket> tickets_;
  std::unordered_set<std::uint64_t> touched_;   ///< slots that unfinished moves read or write
  std::unordered_set<std::uint64_t> arriving_;  ///< slots that unfinished moves write
  std::uint64_t verified_ = 0;
  Bytes verified_bytes_ = 0;
  std::uint64_t moved_ = 0;
  Bytes moved_bytes_ = 0;
  std::uint64_t lowered_ = 0;
  Seconds measured_ = 0;
};

Result<std::unique_ptr<HostMachine>> make(const HostMachineOptions& options, PageSource* source) {
  const placement::Platform& platform = options.platform;
  transfer::HostEngineConfig config;
  config.page_bytes = options.page_bytes;
  config.use_uring = options.use_uring;
  config.faults = options.faults;
  config.measured = options.movers;
  bool files = false;
  for (std::size_t t = 0; t < platform.tiers.size(); ++t) {
    const std::uint32_t pages = options.tier_pages[t];
    if (pages == 0 && t > platform.home) continue;
    if (t == kHbm || platform.tiers[t].directly_readable) {
      if (files) return unsupported("host machine: a readable tier below one that is not");
      config.memory.push_back(
          {platform.tiers[t].name, pages + (t == platform.home ? kStagingSlots : 0), {}});
      continue;
    }
    files = true;
    transfer::PageFileConfig file;
    file.name = platform.tiers[t].name;
    auto folder = transfer::scratch_folder(options.nvme_directory);
    if (!folder) return not_found(file.name + ": " + folder.error().what);
    file.path = *std::move(folder);
    file.pages = pages;
    file.page_bytes = options.page_bytes;
    config.files.push_back(file);
  }
  LEHR_ASSIGN(auto engine, transfer::make_host_engine(std::move(config)));
  std::vector<SlotId> staging;
  for (std::size_t t = 0; t < engine->tiers(); ++t) {
    const bool home = t == platform.home;
    const std::uint32_t pages = options.tier_pages[t] + (home ? kStagingSlots : 0);
    LEHR_TRY(transfer::take_all_slots(*engine, static_cast<TierId>(t)));
    for (std::uint32_t i = options.tier_pages[t]; i < pages; ++i) staging.push_back(i);
  }
  return std::unique_ptr<HostMachine>(
      std::make_unique<Host>(std::move(engine), platform.home, std::move(staging), source));
}

}  // namespace

Result<std::unique_ptr<Machine>> make_host_machine(const HostMachineOptions& options) {
  LEHR_ASSIGN(auto made, make(options, nullptr));
  return std::unique_ptr<Machine>(std::move(made));
}

Result<std::unique_ptr<HostMachine>> make_host_machine(const HostMachineOptions& options,
                                                       PageSource& source) {
  return make(options, &source);
}

}  // namespace lehr::runtime
