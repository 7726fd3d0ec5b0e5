// SPDX-License-Identifier: Apache-2.0
#include "runtime/directory/service.hpp"

#include <algorithm>
#include <chrono>

#include "kernels/base/check.hpp"

namespace lehr::directory {

namespace {

constexpr std::int64_t kLongest = std::int64_t{3600} * 1'000'000'000;  // the bound of any wait, ns
constexpr std::int64_t kSlice = 50'000'000;                            // ns

std::chrono::nanoseconds bounded(std::int64_t bound_ns) {
  return std::chrono::nanoseconds(std::clamp<std::int64_t>(bound_ns, 0, kLongest));
}

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
  if (store_) notices_ = store_->notices();
}

Service::~Service() {
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    stop_ = true;
  }
  wake_.signal();
  if (worker_.joinable()) worker_.join();
}

bool Service::idle() const { return !running_ && !directory_.has_submitted(); }

void Service::tell() {
  if (directory_.has_finished()) finished_.signal();
  changed_.notify_all();
}

Status Service::submit(JobId job) {
  const std::lock_guard<std::mutex> hold(mutex_);
  LEHR_TRY(directory_.submit(job));
  wake_.signal();
  if (directory_.has_finished()) finished_.signal();
  return {};
}

Status Service::cancel(JobId job) {
  const std::lock_guard<std::mutex> hold(mutex_);
  LEHR_TRY(directory_.cancel(job));
  tell();
  return {};
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
  if (directory_.job(id) == nullptr)
    return Error{Code::kStale, Reason::kNone, "job: released already"};
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
    if (job) run_job(id);
    const auto written = store_->poll_writes();
    hold.lock();
    running_ = false;
    for (const BlockStore::Written& w : written) directory_.catalog().finish_write(w.write, w.ok);
    if (job || !written.empty()) {
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

void Service::run_job(JobId id) {
  std::vector<BlockMove> moves;
  bool storing = false;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    const Job* job = directory_.job(id);
    storing = job->kind == Job::Kind::kStore;
    for (std::size_t i = 0; i < job->items.size(); ++i) {
      const JobItem& item = job->items[i];
      if (item.state != ItemState::kMove) continue;
      const Pool* pool = directory_.pool(item.pool);
      const Catalog::Object& object = directory_.catalog().at(item.object);
      BlockMove move;
      move.index = i;
      move.block = pool->desc.base + item.block * pool->desc.layout.block_stride;
      move.runs = pool->runs;
      move.bytes = object.bytes;
      move.object = item.object;
      move.tier = item.tier;
      move.slot = item.slot;
      move.host_copy = item.host_copy;
      move.checksum = object.checksum;
      moves.push_back(move);
    }
  }
  std::vector<ItemOutcome> outcomes(moves.size());
  if (storing) {
    store_->store(moves, outcomes);
  } else {
    store_->load(moves, outcomes);
  }
  const std::lock_guard<std::mutex> hold(mutex_);
  for (std::size_t i = 0; i < moves.size(); ++i) {
    directory_.finish_item(id, moves[i].index, outcomes[i]);
  }
}

}  // namespace lehr::directory
