// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/probe_ways.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>

#include "kernels/base/rng.hpp"

namespace lehr::tools {

using namespace transfer;

namespace {

using Clock = std::chrono::steady_clock;

const std::vector<double> kSizes{4096, 8192, 16384, 32768, 65536, 262144, 2097152};
const std::vector<double> kCounts{1, 8, 64, 512, 4096};
constexpr Bytes kMost = 512 * kMiB;     ///< moved by one batch at most
constexpr double kPointSeconds = 0.03;  ///< spent on a point, a mover and a round
constexpr int kRounds = 3;  ///< apart in time, so that one slow moment is not the figure
constexpr std::size_t kRun = 16;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A mover, and how its pages lie.
struct Candidate {
  DeviceCopy copy;
  std::size_t run;
};

/// What can be the fastest somewhere: copies that merge neighbours have something to merge in runs.
std::vector<Candidate> candidates(bool peer) {
  if (peer) return {{DeviceCopy::kRing, 1}, {DeviceCopy::kEngine, 1}, {DeviceCopy::kEngine, kRun}};
  return {{DeviceCopy::kRing, 1},    {DeviceCopy::kEngine, 1},    {DeviceCopy::kBatch, 1},
          {DeviceCopy::kRing, kRun}, {DeviceCopy::kEngine, kRun}, {DeviceCopy::kStaged, kRun}};
}

/// Median of as many repeats as fit the time; few where another mover is far ahead anyway.
Result<double> time_point(Mover& mover, std::span<const Job> jobs, double least) {
  LEHR_ASSIGN(const JobsTime first, time_jobs(mover, jobs));
  const double fit = kPointSeconds / first.all;
  const int repeats = first.all > 4 * least ? 2 : static_cast<int>(std::clamp(fit, 3.0, 501.0));
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    LEHR_ASSIGN(const JobsTime time, time_jobs(mover, jobs));
    times.push_back(time.all);
  }
  return median_of(std::move(times));
}

/// One mover's times over the grid; the lesser of each point's rounds.
struct Timed {
  Candidate candidate;
  std::unique_ptr<Mover> mover;
  TimedGrid grid;
};

/// All movers at one point.
Status time_all(const Way& way, std::vector<Timed>& all, std::size_t point) {
  const double size = kSizes[point / kCounts.size()], count = kCounts[point % kCounts.size()];
  const auto fit = static_cast<std::size_t>(static_cast<double>(kMost) / size);
  const std::size_t moved = std::min(static_cast<std::size_t>(count), fit);
  // What does not fit is extrapolated: that many bytes are bandwidth alone.
  const double scale = count / static_cast<double>(moved);
  double least = std::numeric_limits<double>::infinity();
  for (Timed& timed : all) {
    const auto jobs = jobs_of(way, static_cast<Bytes>(size), moved, timed.candidate.run);
    LEHR_ASSIGN(const double seconds, time_point(*timed.mover, jobs, least));
    least = std::min(least, seconds);
    double& known = timed.grid.seconds[point];
    known = std::min(known, seconds * scale);
  }
  return {};
}

std::string point_name(const Way& way, std::size_t point) {
  return way.name + " " +
         std::to_string(static_cast<std::uint64_t>(kSizes[point / kCounts.size()]) / 1024) +
         " KiB x " + std::to_string(static_cast<std::uint64_t>(kCounts[point % kCounts.size()]));
}

Result<std::vector<Timed>> timed_movers(const Way& way, const ProbeProgress& progress, double begin,
                                        double end) {
  std::vector<Timed> all;
  const std::size_t points = kSizes.size() * kCounts.size();
  for (const Candidate& candidate : candidates(way.peer)) {
    LEHR_ASSIGN(auto mover, make_device_mover(mover_for(way, candidate.copy)));
    TimedGrid grid{kSizes, kCounts, {}};
    grid.seconds.assign(points, std::numeric_limits<double>::infinity());
    all.push_back({candidate, std::move(mover), std::move(grid)});
  }
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t point = 0; point < points; ++point) {
      const double done =
          (round + static_cast<double>(point) / static_cast<double>(points)) / kRounds;
      progress(point_name(way, point), begin + (end - begin) * done);
      LEHR_TRY(time_all(way, all, point));
    }
  }
  return all;
}

}  // namespace

DeviceMoverConfig mover_for(const Way& way, DeviceCopy copy) {
  DeviceMoverConfig config;
  config.device = way.device;
  config.copy = copy;
  if (way.peer) {
    config.ring = {32, 24, 8192, 4, false, false};
    config.batch_bytes = 192 * kMiB;
  }
  return config;
}

std::vector<Job> jobs_of(const Way& way, Bytes size, std::size_t count, std::size_t run) {
  const auto slots = static_cast<std::uint32_t>(kProbeSpan / (size * run));
  const auto used =
      static_cast<std::uint32_t>(std::min<std::size_t>((count + run - 1) / run, slots));
  std::vector<std::uint32_t> a(slots), b(slots);
  std::iota(a.begin(), a.end(), 0U);
  std::iota(b.begin(), b.end(), 0U);
  Rng rng(size + count);
  for (std::uint32_t i = 0; i < used; ++i) {
    std::swap(a[i], a[i + rng.below(slots - i)]);
    std::swap(b[i], b[i + rng.below(slots - i)]);
  }
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < count && i / run < used; ++i) {
    const Bytes within = i % run * size;
    jobs.push_back({i + 1, way.from->at(a[i / run] * size * run + within),
                    way.to->at(b[i / run] * size * run + within), size, Cause::kOther,
                    Urgency::kBackground, 0});
  }
  return jobs;
}

Result<JobsTime> time_jobs(Mover& mover, std::span<const Job> jobs) {
  std::vector<Completion> done(4096);
  JobsTime time;
  const auto start = Clock::now();
  std::size_t submitted = 0, finished = 0;
  while (finished < jobs.size()) {
    if (submitted < jobs.size()) {
      const auto called = Clock::now();
      submitted += mover.submit(
          jobs.subspan(submitted, std::min<std::size_t>(4096, jobs.size() - submitted)));
      time.submit += seconds_since(called);
    }
    const std::size_t count = mover.poll(done);
    for (const Completion& c : std::span(done).first(count)) {
      if (c.code != Code::kOk) return io_error("a transfer failed while it was measured");
    }
    finished += count;
  }
  time.all = seconds_since(start);
  return time;
}

Status probe_way(const Way& way, TierId from, TierId to, ProbeResult& result,
                 const ProbeProgress& progress, double begin, double end) {
  LEHR_ASSIGN(auto all, timed_movers(way, progress, begin, end));
  TimedGrid best = all.front().grid;
  std::erase_if(result.profile.movers, [&](const MoverCurve& m) { return m.link == way.name; });
  for (const Timed& timed : all) {
    MoverCurve curve;
    curve.link = way.name;
    curve.mover = timed.mover->traits().name;
    curve.run_pages = static_cast<double>(timed.candidate.run);
    std::tie(curve.curve, curve.latency) = curve_of(timed.grid);
    result.profile.movers.push_back(std::move(curve));
    if (timed.candidate.run != 1) continue;
    for (std::size_t i = 0; i < best.seconds.size(); ++i)
      best.seconds[i] = std::min(best.seconds[i], timed.grid.seconds[i]);
  }
  placement::Link link;
  link.name = way.name;
  link.from = from;
  link.to = to;
  Seconds called = 0;
  std::tie(link.curve, called) = curve_of(best);
  // In a step no host call stands before a transfer: it starts as a node of the step's graph.
  LEHR_ASSIGN(link.latency,
              graph_move_seconds(way.device, way.from->region.base, way.to->region.base, 4096));
  LEHR_ASSIGN(const JobsTime many, time_jobs(*all.front().mover, jobs_of(way, 4096, 65536, 1)));
  result.figures.push_back({way.name + " at best", link.curve.peak() / kGB, "GB/s"});
  result.figures.push_back({way.name + " latency in a graph", link.latency * 1e6, "us"});
  result.figures.push_back({way.name + " latency by a call", called * 1e6, "us"});
  result.figures.push_back({way.name + " 16 KiB x 4096",
                            16384.0 * 4096 / best.seconds[2 * kCounts.size() + 4] / kGB, "GB/s"});
  result.figures.push_back({way.name + " submission", many.submit / 65536 * 1e9, "ns a page"});
  put_link(result, std::move(link));
  return {};
}

}  // namespace lehr::tools
