// SPDX-License-Identifier: Apache-2.0
#include "transfer/relay.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <thread>
#include <vector>

#include "transfer/checksum.hpp"
#include "transfer/movers/job_queue.hpp"
#include "transfer/os/event_fd.hpp"

namespace lehr::transfer {
namespace {

constexpr Bytes kBlock = 4096;
constexpr std::int64_t kSliceNs = 1'000'000;  ///< a lost wake-up costs this much
constexpr std::size_t kTaken = 64;

class Relay final : public Mover {
 public:
  Relay(RelayConfig config, Bytes stride, EventFd event, EventFd wake)
      : config_(std::move(config)),
        stride_(stride),
        event_(std::move(event)),
        wake_(std::move(wake)),
        loads_(config_.ring.bytes / stride + config_.queue),
        writes_(config_.ring.bytes / stride + config_.queue) {
    traits_.name = "relay";
    constexpr auto kFile = static_cast<std::size_t>(Space::kFile);
    const auto far = static_cast<std::size_t>(config_.far);
    traits_.moves[kFile][far] = traits_.moves[far][kFile] = true;
    const auto slots = static_cast<std::uint32_t>(config_.ring.bytes / stride_);
    traits_.depth = slots;
    traits_.queue = config_.queue;
    traits_.works_unpolled = traits_.checks = true;
    flights_.resize(slots);
    for (std::uint32_t i = slots; i-- > 0;) free_.push_back(i);
    most_writes_ = slots / 2;
    thread_ = std::jthread([this] { run(); });
  }

  ~Relay() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.signal();
    thread_.join();
    // What the two still move lies in the ring, which goes last.
    config_.file.reset();
    config_.copy.reset();
  }

  const MoverTraits& traits() const override { return traits_; }
  Probe probe() const override {
    const Probe file = config_.file->probe(), copy = config_.copy->probe();
    return {file.usable && copy.usable, file.why.empty() ? copy.why : file.why};
  }
  int event_fd() const override { return event_.get(); }

 private:
  /// A page on its way, in the ring's slot of the same number. The thread's alone.
  struct Flight {
    Job job;
    bool write = false;
    bool second = false;  ///< half
    std::uint64_t sum = 0;
  };

  std::size_t do_submit(std::span<const Job> jobs) override {
    std::size_t count = 0;
    {
      const std::lock_guard lock(mutex_);
      while (count < jobs.size()) {
        JobQueue& queue = jobs[count].destination.space == Space::kFile ? writes_ : loads_;
        if (queue.push(jobs.subspan(count, 1)) == 0) break;
        ++count;
      }
    }
    if (count != 0) wake_.signal();
    return count;
  }

  std::size_t do_poll(std::span<Completion> out) override {
    const std::lock_guard lock(mutex_);
    if (finished() == 0) return 0;
    event_.clear();
    std::size_t count = loads_.take(out);
    count += writes_.take(out.subspan(count));
    if (finished() != 0) event_.signal();
    return count;
  }

  std::size_t do_cancel(std::span<const JobId> ids) override {
    const std::lock_guard lock(mutex_);
    const std::size_t count = loads_.cancel(ids) + writes_.cancel(ids);
    if (count != 0) event_.signal();
    return count;
  }

  Load load() override {
    const std::lock_guard lock(mutex_);
    return {loads_.unfinished() + writes_.unfinished(), finished()};
  }

  std::size_t finished() const { return loads_.finished() + writes_.finished(); }

  // ---- the thread

  void run() {
    const std::array<int, 3> fds{wake_.get(), config_.file->event_fd(), config_.copy->event_fd()};
    for (;;) {
      bool moved = start();
      moved |= advance(*config_.file);
      moved |= advance(*config_.copy);
      give(*config_.file, for_file_);
      give(*config_.copy, for_copy_);
      if (moved) continue;
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) return;
      }
      wait_readable(fds, kSliceNs);
      wake_.clear();
    }
  }

  /// Gives free slots to loads first, then to writes as far as their half goes.
  bool start() {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    bool any = false;
    Job job;
    while (!free_.empty() && loads_.pop(job)) any |= begin(job, false);
    while (!free_.empty() && writing_ < most_writes_ && writes_.pop(job)) any |= begin(job, true);
    return any;
  }

  bool begin(const Job& job, bool write) {
    if (job.bytes > stride_) {
      (write ? writes_ : loads_).finish({job.id, Code::kInvalid, Reason::kOutOfRange, 0, 0});
      event_.signal();
      return true;
    }
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    flights_[slot] = {job, write, false, 0};
    if (write) ++writing_;
    push_half(slot);
    return true;
  }

  /// From its source to the ring, or from the ring to its destination.
  void push_half(std::uint32_t slot) {
    const Flight& flight = flights_[slot];
    Job half = flight.job;
    half.id = slot + 1;  // 0 names no job
    const Address here{Space::kHostMemory, -1, memory(slot), 0};
    (flight.second ? half.source : half.destination) = here;
    if (flight.second) half.first_bytes = 0;
    (flight.write == flight.second ? for_file_ : for_copy_).push(half);
  }

  std::byte* memory(std::uint32_t slot) const { return config_.ring.base + slot * stride_; }

  static void give(Mover& mover, Fifo<Job>& jobs) {
    if (!jobs.empty()) jobs.drop(mover.submit(jobs.waiting()));
  }

  bool advance(Mover& mover) {
    std::array<Completion, kTaken> batch;
    const std::size_t count = mover.poll(batch);
    for (const Completion& done : std::span(batch).first(count)) {
      const auto slot = static_cast<std::uint32_t>(done.id - 1);
      Flight& flight = flights_[slot];
      if (done.code != Code::kOk || flight.second) {
        finish(slot, done);
      } else if (check(flight, slot)) {
        flight.second = true;
        push_half(slot);
      } else {
        finish(slot, {done.id, Code::kCorrupt, Reason::kChecksum, done.bytes, 0});
      }
    }
    return count != 0;
  }

  /// Whether what lies in the ring may go on.
  bool check(Flight& flight, std::uint32_t slot) const {
    const Bytes counted = std::min(flight.job.contents, flight.job.bytes);
    if (counted == 0) return true;
    flight.sum = checksum({memory(slot), counted});
    return flight.write || flight.sum == flight.job.checksum;
  }

  void finish(std::uint32_t slot, Completion done) {
    const Flight& flight = flights_[slot];
    done.id = flight.job.id;
    done.checksum = flight.sum;
    const std::lock_guard lock(mutex_);
    (flight.write ? writes_ : loads_).finish(done);
    if (flight.write) --writing_;
    free_.push_back(slot);
    event_.signal();
  }

  RelayConfig config_;
  const Bytes stride_;
  MoverTraits traits_;
  EventFd event_, wake_;
  std::mutex mutex_;
  JobQueue loads_, writes_;
  bool stopping_ = false;
  std::vector<Flight> flights_;
  std::vector<std::uint32_t> free_;
  std::uint32_t writing_ = 0, most_writes_ = 0;
  Fifo<Job> for_file_, for_copy_;
  std::jthread thread_;
};

}  // namespace

Result<std::unique_ptr<Mover>> make_relay(RelayConfig config) {
  const Bytes stride = (config.slot_bytes + kBlock - 1) / kBlock * kBlock;
  if (config.file == nullptr || config.copy == nullptr || config.queue == 0 || stride == 0)
    return invalid("relay: needs two movers, a queue and a slot size");
  if (config.ring.space != Space::kHostMemory || config.ring.bytes / stride < 2)
    return invalid("relay: needs a ring of at least two slots in host memory");
  constexpr auto kHost = static_cast<std::size_t>(Space::kHostMemory);
  constexpr auto kFile = static_cast<std::size_t>(Space::kFile);
  const auto far = static_cast<std::size_t>(config.far);
  const auto both = [](const Mover& mover, std::size_t a, std::size_t b) {
    return mover.traits().moves[a][b] && mover.traits().moves[b][a];
  };
  if (!both(*config.file, kHost, kFile) || !both(*config.copy, kHost, far))
    return unsupported("relay: its movers do not meet in host memory");
  LEHR_ASSIGN(EventFd event, EventFd::create());
  LEHR_ASSIGN(EventFd wake, EventFd::create());
  return std::unique_ptr<Mover>(
      new Relay(std::move(config), stride, std::move(event), std::move(wake)));
}

}  // namespace lehr::transfer
