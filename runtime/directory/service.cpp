// SPDX-License-Identifier: Apache-2.0
#include "runtime/directory/service.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/base/check.hpp"

namespace lehr::directory {

namespace {

constexpr std::int64_t kLongest = std::int64_t{3600} * 1'000'000'000;  // the bound of any wait, ns
constexpr std::int64_t kSlice = 50'000'000;                            // ns

std::chrono::nanoseconds bounded(std::int64_t bound_ns) {
  return std::chrono::nanoseconds(std::clamp<std::int64_t>(bound_ns, 0, kLongest));
}

Error past_layers(std::uint32_t layer, std::uint32_t layers) {
  return invalid("layer: " + std::to_string(layer) + " of " + std::to_string(layers),
                 Reason::kOutOfRange);
}

Error stale_job() { return {Code::kStale, Reason::kNone, "job: released already"}; }

}  // namespace

Result<std::unique_ptr<Service>> Service::create(const ServiceOptions& options) {
  std::unique_ptr<BlockStore> store;
  if (options.store) {
    LEHR_ASSIGN(store, BlockStore::create(*options.store));
  }
  LEHR_ASSIGN(auto finished, transfer::EventFd::create());
  LEHR_ASSIGN(auto wake, transfer::EventFd::create());
  std::unique_ptr<Service> service(
      new Service(options, std::move(store), std::move(finished), std::move(wake)));
  if (service->store_) service->worker_ = std::thread([raw = service.get()] { raw->run(); });
  return service;
}

Service::Service(const ServiceOptions& options, std::unique_ptr<BlockStore> store,
                 transfer::EventFd finished, transfer::EventFd wake)
    : directory_(options.directory),
      store_(std::move(store)),
      finished_(std::move(finished)),
      wake_(std::move(wake)) {
  if (!store_) return;
  notices_ = store_->notices();
  lanes_ = options.store->lanes;
  guards_order_ = options.store->faults.guards(transfer::Guard::kOrder);
  if (lanes_) lanes_->on_end([this] { wake_.signal(); });
}

Service::~Service() {
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    stop_ = true;
  }
  wake_.signal();
  if (worker_.joinable()) worker_.join();
  // Flights first: they wait for what moves in the store's memory, and end in the lanes.
  for (const auto& [id, job] : lane_jobs_) {
    if (!job->storing()) job->give_up();
  }
  flying_.clear();
  delayed_.clear();
  given_up_.clear();
  lane_jobs_.clear();
  store_.reset();
  lanes_.reset();
}

bool Service::idle() const {
  return !running_ && !directory_.has_submitted() && lane_jobs_open_ == 0;
}

void Service::tell() {
  if (directory_.has_finished()) finished_.signal();
  changed_.notify_all();
}

Result<PoolId> Service::register_pool(const PoolDesc& pool) {
  if (pool.on_device && !lanes_)
    return unsupported("pool: this runtime's machine has no device; expected memory of the host");
  if (lanes_ && pool.base != nullptr) {
    LEHR_TRY(pool.on_device ? lanes_->check_device_memory(pool.base, pool.bytes)
                            : lanes_->check_host_memory(pool.base, pool.bytes));
  }
  return with([&](Directory& d) { return d.register_pool(pool); });
}

Status Service::check_order(const transfer::StreamOrder& after) {
  if (lanes_) return after.after_stream ? lanes_->check_stream(after.stream) : Status();
  if (!after.events.empty() || after.stream != nullptr)
    return unsupported("stream, events: expected none on this machine");
  return {};
}

/// Flights are enqueued without the lock; meanwhile nobody else submits or cancels.
Status Service::submit(JobId id, const transfer::StreamOrder& after) {
  const std::lock_guard<std::mutex> alone(submitting_);
  LEHR_TRY(check_order(after));
  std::vector<BlockMove> moves;
  LaneJob::Order order;
  bool on_device = false;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    LEHR_TRY(directory_.check_submit(id));
    const Job& job = *directory_.job(id);
    on_device = job.on_device && job.moving > 0;
    order = {job.kind == Job::Kind::kStore, job.layered};
    if (on_device) moves = moves_of(job);
  }
  const bool ordered = lanes_ && guards_order_ && (after.after_stream || !after.events.empty());
  std::shared_ptr<LaneJob> lane_job;
  if (on_device) {
    LEHR_ASSIGN(lane_job, LaneJob::start(*lanes_, *store_, std::move(moves), order,
                                         ordered ? after : transfer::StreamOrder{}));
  } else if (ordered) {
    LEHR_ASSIGN(lane_job, LaneJob::point(*lanes_, after));
  }
  const std::lock_guard<std::mutex> hold(mutex_);
  LEHR_TRY(directory_.submit(id, on_device && order.storing));
  if (lane_job && directory_.job(id)->state != Job::State::kDone) {
    lane_jobs_[id] = std::move(lane_job);
    ++lane_jobs_open_;
  }
  wake_.signal();
  if (directory_.has_finished()) finished_.signal();
  return {};
}

Status Service::cancel(JobId job) {
  const std::lock_guard<std::mutex> alone(submitting_);
  const std::lock_guard<std::mutex> hold(mutex_);
  LEHR_TRY(directory_.cancel(job));
  if (const auto lane = lane_jobs_.find(job); lane != lane_jobs_.end()) {
    lane->second->give_up();
    given_up_.push_back(lane->second);
    --lane_jobs_open_;
  }
  tell();
  return {};
}

Status Service::release(JobId job) {
  const std::lock_guard<std::mutex> hold(mutex_);
  LEHR_TRY(directory_.release(job));
  lane_jobs_.erase(job);
  return {};
}

Result<bool> Service::hold(JobId id, std::uint32_t layer, void* stream) {
  std::shared_ptr<LaneJob> lane_job;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    const Job* job = directory_.job(id);
    if (job == nullptr) return stale_job();
    if (job->state == Job::State::kPrepared)
      return invalid("job: not submitted, so it will not end");
    if (const auto found = lane_jobs_.find(id); job->on_device && found != lane_jobs_.end()) {
      lane_job = found->second;
    } else {
      std::uint32_t layers = 1;
      for (const JobItem& item : job->items) {
        if (const Pool* pool = directory_.pool(item.pool)) layers = pool->layers;
      }
      if (layer >= layers) return past_layers(layer, layers);
      if (!lanes_ && stream != nullptr) return unsupported("stream: expected none on this machine");
      return job->state == Job::State::kDone;
    }
  }
  if (layer >= lane_job->layers()) return past_layers(layer, lane_job->layers());
  LEHR_TRY(lanes_->check_stream(stream));
  LEHR_TRY(lane_job->hold(stream, layer));
  return true;
}

Result<void*> Service::event(JobId id) {
  const std::lock_guard<std::mutex> hold(mutex_);
  const Job* job = directory_.job(id);
  if (job == nullptr) return stale_job();
  if (!job->on_device)
    return unsupported("job: its blocks are in host memory, where no event tells of them");
  if (job->state == Job::State::kPrepared) return invalid("job: not submitted, so it has no event");
  const auto found = lane_jobs_.find(id);
  return found == lane_jobs_.end() ? nullptr : found->second->event();
}

Status Service::complete(JobId job, std::span<const ItemOutcome> outcomes) {
  const std::lock_guard<std::mutex> hold(mutex_);
  LEHR_TRY(directory_.complete(job, outcomes));
  // Nothing moves bytes here: what would be written down counts as written at once.
  while (const auto write = directory_.catalog().next_write()) {
    directory_.catalog().finish_write(*write, true);
  }
  changed_.notify_all();
  return {};
}

Result<bool> Service::wait(JobId id, std::int64_t bound_ns) {
  std::unique_lock<std::mutex> hold(mutex_);
  const auto done = [&] {
    const Job* job = directory_.job(id);
    return job == nullptr || job->state == Job::State::kDone;
  };
  if (directory_.job(id) == nullptr) return stale_job();
  if (directory_.job(id)->state == Job::State::kPrepared) {
    return invalid("job: not submitted, so it will not end");
  }
  return changed_.wait_for(hold, bounded(bound_ns), done);
}

bool Service::drain(std::int64_t bound_ns) {
  std::unique_lock<std::mutex> hold(mutex_);
  return changed_.wait_for(hold, bounded(bound_ns), [&] {
    return idle() && (!store_ || directory_.catalog().waiting_write() == 0);
  });
}

std::optional<JobId> Service::poll() {
  const std::lock_guard<std::mutex> hold(mutex_);
  JobId id = 0;
  if (directory_.pop_finished(id)) return id;
  finished_.clear();
  return std::nullopt;
}

void Service::run() {
  std::unique_lock<std::mutex> hold(mutex_);
  while (!stop_) {
    // Writes first: they make room, and run beside the jobs.
    std::vector<WriteDown> starts;
    while (const auto write = directory_.catalog().next_write()) starts.push_back(*write);
    JobId id = 0;
    const bool job = directory_.pop_submitted(id);
    running_ = job;
    hold.unlock();
    for (const WriteDown& write : starts) store_->start_write(write);
    if (job) take_up(id);
    const bool landed = land();
    const auto written = store_->poll_writes();
    hold.lock();
    running_ = false;
    for (const BlockStore::Written& w : written) directory_.catalog().finish_write(w.write, w.ok);
    std::erase_if(given_up_, [](const auto& given) { return given->land(); });
    if (job || landed || !written.empty()) {
      tell();
      continue;
    }
    hold.unlock();
    std::vector<int> fds = store_->event_fds();
    fds.push_back(wake_.get());
    transfer::wait_readable(fds, kSlice);
    wake_.clear();
    hold.lock();
  }
  // What was started is ended, so that no write lands in memory that is gone.
  while (store_->writes_in_flight() > 0) {
    hold.unlock();
    transfer::wait_readable(store_->event_fds(), kSlice);
    const auto written = store_->poll_writes();
    hold.lock();
    for (const BlockStore::Written& w : written) directory_.catalog().finish_write(w.write, w.ok);
  }
}

/// With the directory's lock.
std::vector<BlockMove> Service::moves_of(const Job& job) {
  std::vector<BlockMove> moves;
  for (std::size_t i = 0; i < job.items.size(); ++i) {
    const JobItem& item = job.items[i];
    if (item.state != ItemState::kMove) continue;
    const Pool* pool = directory_.pool(item.pool);
    const Catalog::Object& object = directory_.catalog().at(item.object);
    BlockMove move;
    move.index = i;
    move.block = pool->desc.base + item.block * pool->desc.layout.block_stride;
    move.runs = pool->runs;
    move.parts = pool->parts;
    move.bytes = object.bytes;
    move.object = item.object;
    move.tier = item.tier;
    move.slot = item.slot;
    move.host_copy = item.host_copy;
    move.checksum = object.checksum;
    if (const BlockTable* table = directory_.table(item.table)) {
      move.entry = *directory_.table_entry(*table, item.row, item.column);
      move.entry_bytes = table->entry_bytes();
      move.absent = table->absent();
      move.entry_value = *directory_.table_value(*table, item.block);
    }
    moves.push_back(move);
  }
  return moves;
}

void Service::take_up(JobId id) {
  std::shared_ptr<LaneJob> lane_job;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    if (const auto found = lane_jobs_.find(id); found != lane_jobs_.end()) lane_job = found->second;
  }
  if (!lane_job) {
    run_job(id);
  } else if (lane_job->moves().empty()) {
    delayed_.push_back({id, std::move(lane_job)});
  } else {
    if (!lane_job->storing()) stage(*lane_job);
    flying_.push_back({id, std::move(lane_job)});
  }
}

void Service::run_job(JobId id) {
  std::vector<BlockMove> moves;
  bool storing = false;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    const Job* job = directory_.job(id);
    storing = job->kind == Job::Kind::kStore;
    moves = moves_of(*job);
  }
  for (const BlockMove& move : moves) {
    if (move.entry != nullptr) std::fill_n(move.entry, move.entry_bytes, move.absent);
  }
  std::vector<ItemOutcome> outcomes(moves.size());
  if (storing) {
    store_->store(moves, outcomes);
  } else {
    store_->load(moves, outcomes);
  }
  for (std::size_t i = 0; i < moves.size(); ++i) {
    if (moves[i].entry != nullptr && outcomes[i].code == Code::kOk)
      std::memcpy(moves[i].entry, &moves[i].entry_value, moves[i].entry_bytes);
  }
  finish(id, moves, outcomes);
}

/// Bytes into host memory, verified, and leg by leg let go. What this waits for was enqueued before
/// the leg, so the leg's gate holds up nothing that it needs.
void Service::stage(LaneJob& job) {
  std::vector<LaneJob::Leg>& legs = job.legs();
  for (auto first = legs.begin(), last = first; first != legs.end(); first = last) {
    ++last;
    if (first->way == LaneJob::Way::kBounces) {
      take_bounce_slots(job, *first);
    } else {
      while (last != legs.end() && last->way == first->way) ++last;
    }
    const std::size_t begin = first->begin, size = std::prev(last)->end - begin;
    auto next = first;
    store_->stage(job.moves().subspan(begin, size), job.outcomes().subspan(begin, size),
                  [&](std::size_t ready) {
                    for (; next != last && next->end <= begin + ready; ++next)
                      job.open(*store_, *next);
                  });
  }
}

/// Waits until the leg before that uses them has landed.
void Service::take_bounce_slots(LaneJob& job, const LaneJob::Leg& leg) {
  while (bouncing_ != nullptr) {
    const Result<bool> ended = bouncing_->ended();
    if (!ended || *ended) break;
    const int fds[] = {wake_.get()};
    transfer::wait_readable(fds, kSlice);
    wake_.clear();
  }
  bouncing_ = leg.flight.get();
  std::size_t taken = 0;
  for (BlockMove& move : job.moves(leg)) move.host_copy = store_->bounce_slot(taken++);
}

/// Ends what has landed, and runs what waited; whether there was any.
bool Service::land() {
  std::vector<Flying> landed, due;
  const auto take = [&](std::vector<Flying>& from, std::vector<Flying>& to) {
    std::erase_if(from, [&](Flying& f) {
      // Of a store each leg is sealed as it lands, while those behind it move.
      const bool all = f.job->land([&](const LaneJob::Leg& leg) {
        if (f.job->storing()) store_->seal(f.job->moves(leg), f.job->outcomes(leg));
      });
      if (all) to.push_back(std::move(f));
      return all;
    });
  };
  take(flying_, landed);
  take(delayed_, due);
  for (Flying& f : landed) {
    for (const LaneJob::Leg& leg : f.job->legs()) {
      if (leg.flight.get() == bouncing_) bouncing_ = nullptr;
    }
    finish(f.id, f.job->moves(), f.job->outcomes());
  }
  for (const Flying& f : due) run_job(f.id);
  if (landed.empty() && due.empty()) return false;
  const std::lock_guard<std::mutex> hold(mutex_);
  lane_jobs_open_ -= landed.size() + due.size();
  return true;
}

void Service::finish(JobId id, std::span<const BlockMove> moves,
                     std::span<const ItemOutcome> outcomes) {
  const std::lock_guard<std::mutex> hold(mutex_);
  for (std::size_t i = 0; i < moves.size(); ++i) {
    directory_.finish_item(id, moves[i].index, outcomes[i]);
  }
}

}  // namespace lehr::directory
