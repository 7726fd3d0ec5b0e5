// SPDX-License-Identifier: Apache-2.0
#include "tests/transfer/cuda/stress.hpp"

#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "kernels/base/rng.hpp"
#include "tests/transfer/cuda/world.hpp"

namespace lehr::transfer::test {
namespace {

constexpr std::int64_t kBound = 30'000'000'000;

class Wanderers {
 public:
  explicit Wanderers(const StressConfig& config)
      : config_(config),
        rng_(config.seed),
        moved_(config.round),
        watched_(config.readers),
        rewritten_(std::max(1U, config.rewrites)),
        errors_(2) {
    DeviceEngineConfig engine;
    engine.page_bytes = config.page_bytes;
    engine.hbm_pages = config.hbm_pages;
    engine.host_pages = config.host_pages;
    if (config.donor >= 0) engine.donors = {{"peer", config.donor, config.peer_pages}};
    world_ = must(make_device_engine(std::move(engine)), "engine");
    must(world_.host->wait(kBound), "host memory");
    world_.serve_ready_host();
    must(cudaStreamCreateWithFlags(&checks_, cudaStreamNonBlocking), "stream");
    must(cudaStreamCreateWithFlags(&reads_, cudaStreamNonBlocking), "stream");
    populate();
  }
  ~Wanderers() {
    (void)cudaStreamDestroy(checks_);
    (void)cudaStreamDestroy(reads_);
  }
  Wanderers(const Wanderers&) = delete;
  Wanderers& operator=(const Wanderers&) = delete;

  StressResult run() {
    const auto start = std::chrono::steady_clock::now();
    while (result_.problem.empty() && result_.moves < config_.moves) round();
    while (leases_.poll() != 0) {
    }
    must(cudaDeviceSynchronize(), "readers");
    result_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    result_.verified = errors_[0].pages;
    result_.read = errors_[1].pages;
    result_.wrong = errors_[0].wrong + errors_[1].wrong;
    if (result_.wrong != 0 && result_.problem.empty()) {
      const PageErrors& e = errors_[errors_[0].wrong != 0 ? 0 : 1];
      result_.problem = "page " + std::to_string(e.first_page) + " version " +
                        std::to_string(e.first_version) + " held page " +
                        std::to_string(e.found_page) + " version " +
                        std::to_string(e.found_version);
    }
    if (result_.problem.empty() && !engine().shutdown(kBound)) result_.problem = "shutdown";
    for (TierId t = 0; t < engine().tiers(); ++t) {
      if (!engine().tier(t).slots().validate()) result_.problem = "slot bookkeeping is broken";
    }
    result_.ok = result_.problem.empty();
    return result_;
  }

 private:
  struct Page {
    Place at;
    std::uint32_t version = 1;
    std::uint64_t round = 0;  ///< last one that it moved in
  };

  TransferEngine& engine() { return *world_.engine; }
  std::uint64_t address(Place at) {
    return reinterpret_cast<std::uint64_t>(engine().tier(at.tier).address(at.slot).pointer);
  }
  PageRef ref(PageId page) { return {address(pages_[page].at), page, pages_[page].version}; }
  std::uint32_t bytes() const { return static_cast<std::uint32_t>(config_.page_bytes); }
  PageId any_page() { return rng_.below(static_cast<std::uint32_t>(pages_.size())); }

  /// Pages in 7 of 8 slots of each tier.
  void populate() {
    for (TierId t = 0; t < engine().tiers(); ++t) {
      std::vector<SlotId> slots(engine().tier(t).slots().limit() / 8 * 7);
      must(engine().allocate(t, slots), "allocate");
      for (const SlotId slot : slots) {
        const auto page = static_cast<PageId>(pages_.size());
        pages_.push_back({{t, slot}, 1, 0});
        must(engine().stamp({t, slot}, page, 1), "stamp");
      }
    }
    Shared<PageRef> refs(pages_.size());
    for (PageId p = 0; p < pages_.size(); ++p) refs[p] = ref(p);
    must(fill_pages(refs.data(), static_cast<std::uint32_t>(pages_.size()), bytes(), checks_),
         "fill");
    must(cudaStreamSynchronize(checks_), "fill");
  }

  void round() {
    ++round_;
    rewrite();
    watch();
    submit();
    collect();
    verify();
  }

  /// Some pages get new contents, under a write lease.
  void rewrite() {
    std::uint32_t count = 0;
    std::vector<Lease> held;
    for (std::uint32_t i = 0; i < config_.rewrites; ++i) {
      const PageId page = any_page();
      auto lease = engine().lease(pages_[page].at, LeaseMode::kWrite);
      if (!lease) continue;  // chosen twice
      while (!lease->ready()) leases_.poll();
      ++pages_[page].version;
      rewritten_[count++] = ref(page);
      must(engine().stamp(pages_[page].at, page, pages_[page].version), "stamp");
      held.push_back(*std::move(lease));
    }
    must(fill_pages(rewritten_.data(), count, bytes(), checks_), "rewrite");
    must(cudaStreamSynchronize(checks_), "rewrite");
    result_.rewrites += count;
  }

  /// Readers hold pages that the moves of this round take away under them.
  void watch() {
    leases_.poll();
    if (reading_ != nullptr && cudaEventQuery(reading_) == cudaErrorNotReady) return;
    std::uint32_t count = 0;
    std::vector<Lease> held;
    for (std::uint32_t i = 0; i < config_.readers; ++i) {
      const PageId page = any_page();
      auto lease = engine().lease(pages_[page].at, LeaseMode::kRead);
      if (!lease || !lease->ready()) continue;
      watched_[count++] = ref(page);
      held.push_back(*std::move(lease));
    }
    must(verify_pages(watched_.data(), count, bytes(), &errors_[1], 200'000, reads_), "readers");
    if (reading_ == nullptr) {
      must(cudaEventCreateWithFlags(&reading_, cudaEventDisableTiming), "event");
    }
    must(cudaEventRecord(reading_, reads_), "event");
    must(leases_.after(reads_, std::move(held)), "leases");
  }

  void submit() {
    std::vector<PageMove> moves;
    while (moves.size() < config_.round) {
      const PageId page = any_page();
      if (pages_[page].round == round_) {
        if (rng_.below(8) == 0) break;  // most pages are on their way already
        continue;
      }
      pages_[page].round = round_;
      const auto tiers = static_cast<std::uint32_t>(engine().tiers());
      const auto to =
          static_cast<TierId>((pages_[page].at.tier + 1 + rng_.below(tiers - 1)) % tiers);
      moves.push_back({page,
                       pages_[page].version,
                       pages_[page].at,
                       {to, kNoSlot},
                       Cause::kOther,
                       rng_.below(4) == 0 ? Urgency::kUrgent : Urgency::kBackground,
                       {}});
    }
    said_.resize(moves.size());
    // In slices, so that slots given up by one are filled by the next while still being read.
    constexpr std::size_t kSlice = 512;
    for (std::size_t at = 0; at < moves.size(); at += kSlice) {
      const std::size_t count = std::min(kSlice, moves.size() - at);
      engine().submit(std::span(moves).subspan(at, count), std::span(said_).subspan(at, count));
      for (std::size_t i = at; i < at + count; ++i) {
        if (said_[i].job == 0) {
          ++result_.refused;
          continue;
        }
        ++outstanding_;
        must(engine().release(moves[i].from), "release");
      }
    }
  }

  void collect() {
    std::vector<MoveResult> batch(2048);
    done_ = 0;
    const auto start = std::chrono::steady_clock::now();
    while (outstanding_ != 0) {
      leases_.poll();
      const std::size_t count = engine().wait_some(batch, 1'000'000);
      for (const MoveResult& r : std::span(batch).first(count)) {
        --outstanding_;
        if (r.code != Code::kOk) {
          result_.problem = "move of page " + std::to_string(r.page) + " failed with code " +
                            std::to_string(static_cast<int>(r.code));
          continue;
        }
        pages_[r.page].at = r.to;
        moved_[done_++] = ref(r.page);
        ++result_.moves;
      }
      if (std::chrono::steady_clock::now() - start > std::chrono::seconds(30)) {
        result_.problem = std::to_string(outstanding_) + " moves did not end in 30 s";
        return;
      }
    }
  }

  void verify() {
    must(verify_pages(moved_.data(), done_, bytes(), errors_.data(), 0, checks_), "verify");
    must(cudaStreamSynchronize(checks_), "verify");
  }

  const StressConfig config_;
  Rng rng_;
  DeviceEngine world_;
  std::vector<Page> pages_;
  Shared<PageRef> moved_, watched_, rewritten_;
  Shared<PageErrors> errors_;
  cudaStream_t checks_ = nullptr, reads_ = nullptr;
  cudaEvent_t reading_ = nullptr;
  EventLeases leases_;
  std::vector<Submission> said_;
  std::uint64_t round_ = 0, outstanding_ = 0;
  std::uint32_t done_ = 0;
  StressResult result_;
};

}  // namespace

StressResult run_stress(const StressConfig& config) {
  // Longer than the bound of any wait inside; a hang shows as a problem, not as a hang.
  return Wanderers(config).run();
}

}  // namespace lehr::transfer::test
