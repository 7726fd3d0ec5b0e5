// SPDX-License-Identifier: Apache-2.0
// Movers against the ceilings of the same run.
//   lehr_bench_transfer OUT.json [--peer] [--sweep]
#include <cstring>

#include "kernels/base/rng.hpp"
#include "runtime/config/profile.hpp"
#include "tools/gpu/migrations.hpp"
#include "transfer/control.hpp"
#include "transfer/device_engine.hpp"

namespace lehr::gpu {
namespace {

constexpr Bytes kSpan = 4 * kGiB;  ///< pages are scattered over this much on each side

struct Ceilings {
  double read = 0, write = 0;  ///< plain reads and writes of the far side by SMs
  double in = 0, out = 0;      ///< copy engine, large copies
  double duplex = 0;           ///< both at once, in sum
};

struct Direction {
  const char* name;
  const Memory* from;
  const Memory* to;
};

struct Bench {
  Report& report;
  const char* far_name;
  Memory near, far;
  Bytes total = 512 * kMiB;  ///< moved a measurement
  std::uint32_t ctas = 4;
  Ceilings ceilings;
  std::unique_ptr<Reader> reader;

  Direction in() const { return {"in", &far, &near}; }
  Direction out() const { return {"out", &near, &far}; }
  double ceiling(const Direction& d) const {
    return d.from == &far ? ceilings.read : ceilings.write;
  }
};

cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  return stream;
}

void measure_ceilings(Bench& b) {
  unsigned* sink = nullptr;
  must(cudaMalloc(reinterpret_cast<void**>(&sink), 64), "sink");
  const cudaStream_t s = new_stream(), t = new_stream();
  const Bytes large = 2 * kGiB;
  for (const int grid : {66, 132, 264, 528, 2112}) {
    b.ceilings.read =
        std::max(b.ceilings.read, rate(large, [&] {
                   must(transfer::test::read_memory(b.far.base, large, grid, sink, s), "read");
                 }));
    b.ceilings.write =
        std::max(b.ceilings.write, rate(large, [&] {
                   must(transfer::test::write_memory(b.far.base, large, grid, s), "write");
                 }));
  }
  const auto copy = [&](const Direction& d, Bytes offset, cudaStream_t stream) {
    must(cudaMemcpyAsync(d.to->base + offset, d.from->base + offset, large, cudaMemcpyDefault,
                         stream),
         "copy");
  };
  b.ceilings.in = rate(large, [&] { copy(b.in(), 0, s); });
  b.ceilings.out = rate(large, [&] { copy(b.out(), 0, s); });
  b.ceilings.duplex = rate(4 * large, [&] {
    for (int i = 0; i < 2; ++i) {
      copy(b.in(), 0, s);
      copy(b.out(), large, t);
    }
  });
  const std::string far = b.far_name;
  b.report.rate("ceiling: " + far + " read by SMs", b.ceilings.read);
  b.report.rate("ceiling: " + far + " written by SMs", b.ceilings.write);
  b.report.rate("ceiling: copy engine, " + far + " in", b.ceilings.in);
  b.report.rate("ceiling: copy engine, " + far + " out", b.ceilings.out);
  b.report.rate("ceiling: copy engine, both at once, in sum", b.ceilings.duplex);
  (void)cudaStreamDestroy(s);
  (void)cudaStreamDestroy(t);
  (void)cudaFree(sink);
}

/// Two rings at once, and SMs that read and write in order at once.
void sweep_duplex(Bench& b) {
  const cudaStream_t s = new_stream(), t = new_stream();
  unsigned* sink = nullptr;
  must(cudaMalloc(reinterpret_cast<void**>(&sink), 64), "sink");
  for (const int grid : {8, 16, 66, 132}) {
    b.report.rate("sweep duplex: plain reads and writes, " + std::to_string(grid) + " CTAs each",
                  rate(2 * kGiB,
                       [&] {
                         must(transfer::test::read_memory(b.far.base, kGiB, grid, sink, s), "read");
                         must(transfer::test::write_memory(b.far.base + 2 * kGiB, kGiB, grid, t),
                              "write");
                       }),
                  b.ceilings.duplex);
  }
  const Bytes page = 16384;
  const auto pairs_of = [&](const Direction& d, Bytes offset, std::uint64_t seed) {
    const auto jobs = scattered(*d.from, *d.to, kSpan / 2, page, b.total, seed);
    auto pairs = std::make_unique<Shared<kernels::PagePair>>(jobs.size());
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      (*pairs)[i] = {reinterpret_cast<std::uint64_t>(jobs[i].source.pointer + offset),
                     reinterpret_cast<std::uint64_t>(jobs[i].destination.pointer + offset)};
    }
    return pairs;
  };
  const auto in = pairs_of(b.in(), 0, 1), out = pairs_of(b.out(), kSpan / 2, 2);
  kernels::PageLayout layout;
  layout.piece_bytes = static_cast<std::uint32_t>(page);
  const std::uint32_t scale = b.ctas / 4;
  for (const auto& [ins, outs] :
       {std::pair{4U, 4U}, {4U, 2U}, {8U, 1U}, {8U, 2U}, {4U, 1U}, {2U, 2U}, {8U, 4U}}) {
    for (const auto& [stages, bytes, open] :
         {std::tuple{12U, 16384U, 1U}, {12U, 16384U, 4U}, {4U, 32768U, 1U}}) {
      const auto go = [&](const Shared<kernels::PagePair>& pairs, std::uint32_t ctas,
                          cudaStream_t stream) {
        must(kernels::move_pages_cuda({pairs.data(), static_cast<std::uint32_t>(pairs.size())},
                                      layout, {ctas * scale, stages, bytes, open, false, false},
                                      stream),
             "move");
      };
      b.report.rate("sweep duplex ctas " + std::to_string(ins) + "+" + std::to_string(outs) +
                        " stages " + std::to_string(stages) + " x " + std::to_string(bytes / 1024) +
                        "K open " + std::to_string(open),
                    rate(
                        2 * in->size() * page,
                        [&] {
                          go(*in, ins, s);
                          go(*out, outs, t);
                        },
                        2),
                    b.ceilings.duplex);
    }
  }
  // The same pages in memory that the driver allocated.
  if (b.far.space == Space::kHostMemory) {
    Memory keep = b.far;
    void* raw = nullptr;
    must(cudaHostAlloc(&raw, kSpan, cudaHostAllocPortable), "host memory");
    b.far.base = static_cast<std::byte*>(raw);
    for (const Bytes size : {Bytes{8192}, Bytes{16384}, Bytes{65536}}) {
      for (const Direction& d : {b.in(), b.out()}) {
        const auto jobs = scattered(*d.from, *d.to, kSpan, size, b.total, 9);
        Shared<kernels::PagePair> pairs(jobs.size());
        for (std::size_t i = 0; i < jobs.size(); ++i) {
          pairs[i] = {reinterpret_cast<std::uint64_t>(jobs[i].source.pointer),
                      reinterpret_cast<std::uint64_t>(jobs[i].destination.pointer)};
        }
        kernels::PageLayout plain;
        plain.piece_bytes = static_cast<std::uint32_t>(size);
        b.report.rate("sweep cudaHostAlloc " + std::to_string(size / 1024) + "K " + d.name +
                          " ctas 4 stages 12 x 16K",
                      rate(jobs.size() * size,
                           [&] {
                             must(kernels::move_pages_cuda(
                                      {pairs.data(), static_cast<std::uint32_t>(jobs.size())},
                                      plain, {4, 12, 16384, 2, false, false}, s),
                                  "move");
                           }),
                      b.ceiling(d));
      }
    }
    must(cudaFreeHost(raw), "free");
    b.far = keep;
  }
  (void)cudaFree(sink);
  (void)cudaStreamDestroy(s);
  (void)cudaStreamDestroy(t);
}

/// Rings of many shapes, straight through the kernel.
void sweep(Bench& b) {
  const cudaStream_t s = new_stream();
  for (const Bytes page : {Bytes{8192}, Bytes{16384}, Bytes{65536}}) {
    for (const Direction& d : {b.in(), b.out()}) {
      const std::vector<Job> jobs = scattered(*d.from, *d.to, kSpan, page, b.total, page);
      Shared<kernels::PagePair> pairs(jobs.size());
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        pairs[i] = {reinterpret_cast<std::uint64_t>(jobs[i].source.pointer),
                    reinterpret_cast<std::uint64_t>(jobs[i].destination.pointer)};
      }
      kernels::PageLayout layout;
      layout.piece_bytes = static_cast<std::uint32_t>(page);
      const auto one = [&](kernels::MoveRing ring, const char* note) {
        if (ring.stages * std::min<std::uint64_t>(ring.stage_bytes, page) > 200 * 1024) return;
        const double r = rate(
            jobs.size() * page,
            [&] {
              must(kernels::move_pages_cuda({pairs.data(), static_cast<std::uint32_t>(jobs.size())},
                                            layout, ring, s),
                   "move");
            },
            2);
        b.report.rate("sweep " + std::to_string(page / 1024) + "K " + d.name + " ctas " +
                          std::to_string(ring.ctas) + " stages " + std::to_string(ring.stages) +
                          " x " + std::to_string(ring.stage_bytes / 1024) + "K open " +
                          std::to_string(ring.open_stores) + note,
                      r, b.ceiling(d));
      };
      const std::uint32_t scale = b.ctas / 4;
      for (const std::uint32_t ctas : {1U * scale, 2U * scale, 4U * scale, 8U * scale}) {
        for (const auto& [stages, bytes] : {std::pair{8U, 4096U},
                                            {24U, 4096U},
                                            {8U, 8192U},
                                            {24U, 8192U},
                                            {8U, 16384U},
                                            {12U, 16384U},
                                            {4U, 32768U}}) {
          if (bytes > page) continue;
          one({ctas, stages, bytes, 4 < stages ? 4U : 2U, false, false}, "");
          if (ctas == 4 * scale && stages > 8) one({ctas, stages, bytes, 8, false, false}, "");
          if (ctas == 4 * scale) one({ctas, stages, bytes, 2, false, false}, "");
          if (ctas == 4 * scale && stages == 8) one({ctas, stages, bytes, 4, false, true}, " keep");
        }
      }
      if (page == 16384) one({4 * scale, 8, 16384, 4, true, false}, " register form");
    }
  }
  sweep_duplex(b);
  (void)cudaStreamDestroy(s);
}

DeviceMoverConfig mover_config(const Bench& b, DeviceCopy copy, std::uint32_t ctas,
                               Bytes page = 16384) {
  DeviceMoverConfig config;
  config.copy = copy;
  config.ring.ctas = ctas;
  if (b.ctas > 4) {
    config.batch_bytes = 192 * kMiB;
    config.ring.stages = 24;
    config.ring.stage_bytes = 8192;
  }
  // One batch waits behind those in flight; more would only leave the caches.
  config.queue = static_cast<std::uint32_t>(3 * config.batch_bytes / page + 1024);
  return config;
}

double mover_rate(const Bench& b, const Direction& d, DeviceCopy copy, Bytes page,
                  std::uint32_t ctas, Bytes total) {
  auto mover = must(make_device_mover(mover_config(b, copy, ctas, page)), "mover");
  const std::vector<Job> jobs = scattered(*d.from, *d.to, kSpan, page, total, page + 7);
  return rate(jobs.size() * page, [&] { run_jobs(*mover, jobs); });
}

void scattered_pages(Bench& b) {
  const bool host = b.ctas == 4;
  for (const Bytes page :
       {Bytes{4096}, Bytes{8192}, Bytes{16384}, Bytes{32768}, Bytes{65536}, Bytes{262144}}) {
    for (const Direction& d : {b.in(), b.out()}) {
      const double top = b.ceiling(d);
      const std::string name = std::to_string(page / 1024) + " KiB " + d.name;
      double ring = mover_rate(b, d, DeviceCopy::kRing, page, b.ctas, b.total);
      b.report.rate(name + ", ring of " + std::to_string(b.ctas) + " CTAs", ring, top);
      if (!host) {
        const double half = mover_rate(b, d, DeviceCopy::kRing, page, b.ctas / 2, b.total);
        b.report.rate(name + ", ring of " + std::to_string(b.ctas / 2) + " CTAs", half, top);
        ring = std::max(ring, half);
      }
      // Slow ones move less, so that the run stays short.
      const Bytes little = std::min<Bytes>(b.total, page * 8192);
      const double batch = mover_rate(b, d, DeviceCopy::kBatch, page, 4, little);
      const double each = mover_rate(b, d, DeviceCopy::kEngine, page, 4, little);
      b.report.rate(name + ", cudaMemcpyBatchAsync", batch, top);
      b.report.rate(name + ", cudaMemcpyAsync each", each, top);
      const double wanted = page < 8192 ? 0 : page < 16384 ? 0.90 : page < 65536 ? 0.95 : 0.97;
      if (wanted == 0 || (!host && page != 16384)) continue;
      b.report.target(name + " over the ceiling by SMs", ring / top, "",
                      wanted == 0.90   ? ">= 0.90"
                      : wanted == 0.95 ? ">= 0.95"
                                       : ">= 0.97",
                      ring / top >= wanted);
      if (page == 16384) {
        b.report.value(name + ", ring over cudaMemcpyAsync each", ring / each, "x");
        b.report.value(name + ", ring over cudaMemcpyBatchAsync", ring / batch, "x");
      }
    }
  }
}

/// Far side in order, near side scattered: what staging is for.
void contiguous_far(Bench& b) {
  const Bytes page = 16384;
  for (const Direction& d : {b.in(), b.out()}) {
    std::vector<Job> jobs = scattered(*d.from, *d.to, kSpan, page, b.total, 3);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      (d.from == &b.far ? jobs[i].source : jobs[i].destination) = b.far.at(i * page);
    }
    auto mover = must(make_device_mover(mover_config(b, DeviceCopy::kStaged, b.ctas)), "mover");
    b.report.rate(std::string("16 KiB ") + d.name + ", far side in order, staged",
                  rate(jobs.size() * page, [&] { run_jobs(*mover, jobs); }),
                  d.from == &b.far ? b.ceilings.in : b.ceilings.out);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      (d.from == &b.far ? jobs[i].destination : jobs[i].source) = b.near.at(i * page);
    }
    auto engine = must(make_device_mover(mover_config(b, DeviceCopy::kEngine, 4)), "mover");
    b.report.rate(std::string("16 KiB ") + d.name + ", both sides in order, copy engine merged",
                  rate(jobs.size() * page, [&] { run_jobs(*engine, jobs); }),
                  d.from == &b.far ? b.ceilings.in : b.ceilings.out);
  }
}

/// Both ways at once: two rings, one that mixes, and, where what goes out goes to neighbouring
/// slots (as write-backs to fresh extents do), a ring in and staged copies out.
double duplex_of(Bench& b, Bytes page) {
  const bool host = b.ctas == 4;
  const auto ins = scattered(b.far, b.near, kSpan / 2, page, b.total / 2, 11);
  Memory near = b.near, far = b.far;
  near.base += kSpan / 2;
  far.base += kSpan / 2;
  auto outs = scattered(near, far, kSpan / 2, page, b.total / 2, 12);
  const Bytes bytes = (ins.size() + outs.size()) * page;
  const std::string what = std::to_string(page / 1024) + " KiB both at once, in sum, ";
  const auto both = [&](const std::string& name, DeviceCopy copy_in, DeviceCopy copy_out,
                        std::uint32_t ctas) {
    auto in = must(make_device_mover(mover_config(b, copy_in, ctas, page)), "mover");
    auto out = must(make_device_mover(mover_config(b, copy_out, ctas, page)), "mover");
    const double sum = rate(bytes, [&] {
      std::jthread other([&] { run_jobs(*out, outs); });
      run_jobs(*in, ins);
    });
    b.report.rate(what + name, sum, b.ceilings.duplex);
    return sum;
  };
  double best = both("two rings", DeviceCopy::kRing, DeviceCopy::kRing, b.ctas);
  if (host && page == 16384)
    best = std::max(best, both("two rings of 2 CTAs", DeviceCopy::kRing, DeviceCopy::kRing, 2));
  if (host && page >= 65536) {
    best = std::max(best, both("driver's batches", DeviceCopy::kBatch, DeviceCopy::kBatch, b.ctas));
  }
  for (std::size_t i = 0; i < outs.size(); ++i) outs[i].destination = far.at(i * page);
  if (host && page == 16384) {
    best = std::max(
        best, both("ring in, staged out in order", DeviceCopy::kRing, DeviceCopy::kStaged, b.ctas));
  }
  return best;
}

void duplex(Bench& b) {
  const double best = duplex_of(b, 16384);
  b.report.target("duplex over contiguous duplex", best / b.ceilings.duplex, "", ">= 0.90",
                  best / b.ceilings.duplex >= 0.90);
  if (b.ctas != 4) return;
  for (const Bytes page : {Bytes{65536}, Bytes{262144}, 2 * kMiB}) {
    const double larger = duplex_of(b, page);
    b.report.value("  " + std::to_string(page / 1024) + " KiB, over contiguous duplex",
                   larger / b.ceilings.duplex, "");
  }
}

void submission(Bench& b) {
  for (const DeviceCopy copy : {DeviceCopy::kRing, DeviceCopy::kBatch}) {
    auto mover = must(make_device_mover(mover_config(b, copy, b.ctas)), "mover");
    const auto jobs = scattered(b.far, b.near, kSpan, 16384, 8 * kMiB, 5);
    std::vector<double> times;
    for (int i = 0; i < 41; ++i) {
      times.push_back(seconds_of([&] { (void)mover->submit(jobs); }));
      if (!mover->drain(10'000'000'000)) must(Status(io_error("no end")), "drain");
      std::vector<Completion> done(jobs.size());
      (void)mover->poll(done);
    }
    const double each = median(times) / static_cast<double>(jobs.size()) * 1e6;
    if (copy == DeviceCopy::kRing) {
      b.report.target("submission, a page of 512", each, "us", "<= 0.1", each <= 0.1);
    } else {
      b.report.value("submission, a page of 512, driver batch", each, "us");
    }
  }
}

double disturbed(Reader& reader, Mover& mover, const std::vector<Job>& jobs, double& moved) {
  Background background(mover, jobs);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const Bytes before = background.bytes();
  double ms = 0;
  const double seconds = seconds_of([&] { ms = reader.median_pass(41); });
  moved = static_cast<double>(background.bytes() - before) / seconds;
  return ms;
}

/// A reader beside pages that a step waits for: budgets do not bind these.
void urgent_pages(Bench& b, Reader& reader, double alone, const std::string& who) {
  for (const Direction& d : {b.in(), b.out()}) {
    auto mover = must(make_device_mover(mover_config(b, DeviceCopy::kRing, b.ctas)), "mover");
    std::vector<Job> jobs = scattered(*d.from, *d.to, kSpan, 16384, kGiB, 21);
    for (Job& job : jobs) job.urgency = Urgency::kUrgent;
    double moved = 0;
    const double slow = disturbed(reader, *mover, jobs, moved) / alone - 1;
    b.report.value(who + " beside urgent pages " + d.name + ", slower by", 100 * slow, "%");
    b.report.rate("  moved meanwhile", moved, b.ceiling(d));
  }
}

/// How much slower a reader is beside full-rate migration. The reader's SMs are split between L1
/// and shared memory either as for kernels without shared memory, or as for attention kernels: a
/// ring needs the latter, and an SM changes over only when it is empty.
void disturbance(Bench& b, std::int32_t device, bool like_attention) {
  const bool host = b.ctas == 4;
  must(transfer::test::prefer_shared_memory(like_attention), "carve-out");
  Reader reader(device);
  const double alone = reader.median_pass(41);
  const std::string who = std::string(like_attention ? "reader" : "L1 reader") +
                          (host ? "" : " on GPU " + std::to_string(device));
  b.report.value(who + " of 8 GiB, alone", alone, "ms");
  const auto one = [&](const std::string& name, const Direction& d, DeviceMoverConfig config,
                       Bytes page, bool ordered) {
    auto mover = must(make_device_mover(config), "mover");
    std::vector<Job> jobs = scattered(*d.from, *d.to, kSpan, page, 2 * kGiB, 21);
    for (std::size_t i = 0; ordered && i < jobs.size(); ++i) {
      jobs[i].source = d.from->at(i * page);
      jobs[i].destination = d.to->at(i * page);
    }
    double moved = 0;
    const double slow = disturbed(reader, *mover, jobs, moved) / alone - 1;
    b.report.value(who + " beside " + name + " " + d.name + ", slower by", 100 * slow, "%");
    b.report.rate("  moved meanwhile", moved, b.ceiling(d));
    return std::pair(slow, moved / b.ceiling(d));
  };
  // A mover that hardly moves disturbs nobody: the rate belongs to the target.
  const auto judge = [&](const std::string& what, std::pair<double, double> seen,
                         double rate_wanted, double most, const char* wanted) {
    b.report.target(what, 100 * seen.first, "%", wanted,
                    seen.first <= most && seen.second >= rate_wanted);
  };
  if (host) urgent_pages(b, reader, alone, who);
  for (const Direction& d : {b.in(), b.out()}) {
    DeviceMoverConfig engine = mover_config(b, DeviceCopy::kEngine, 4);
    engine.batch_bytes = 64 * kMiB;
    one("copy engine, contiguous,", d, engine, kMiB, true);
    const auto ring = one("ring of " + std::to_string(b.ctas) + " CTAs, 16 KiB,", d,
                          mover_config(b, DeviceCopy::kRing, b.ctas), 16384, false);
    const std::string what = std::string(d.name) + " slows the " + who;
    if (host) {
      DeviceMoverConfig longer = mover_config(b, DeviceCopy::kRing, b.ctas);
      longer.batch_bytes = 192 * kMiB;
      longer.queue = 65536;
      one("ring of 4 CTAs, launches of 192 MiB,", d, longer, 16384, false);
      longer.ring.ctas = 3;
      one("ring of 3 CTAs, launches of 192 MiB,", d, longer, 16384, false);
      judge("full-rate migration " + what, ring, 0.90, 0.03, "<= 3");
      continue;
    }
    DeviceMoverConfig slower = mover_config(b, DeviceCopy::kRing, 8);
    slower.ring.stages = d.from == &b.far ? 12 : 8;  // about half of the rate, found by sweeping
    const auto half = one("ring of 8 CTAs, fewer stages,", d, slower, 16384, false);
    judge("half-rate migration " + what, half, 0.45, 0.04, "<= 4");
  }
}

/// The whole loop: the engine moves background pages, is told the measured slow-down after each
/// step, and keeps it within 1 %.
void budgeted(Bench& b) {
  DeviceEngineConfig config;
  config.page_bytes = 16384;
  config.hbm_pages = config.host_pages = 32768;
  config.host_limits.allowed_slowdown = 0.01;
  config.host_limits.bytes_per_second = b.ceilings.read;
  DeviceEngine world = must(make_device_engine(config), "engine");
  must(world.host->wait(60'000'000'000), "host memory");
  world.serve_ready_host();
  TransferEngine& engine = *world.engine;
  std::vector<SlotId> near(config.hbm_pages), far(config.host_pages);
  must(engine.allocate(kHbm, near), "slots");
  must(engine.allocate(world.host_tier, far), "slots");
  std::vector<PageMove> moves;
  for (SlotId i = 0; i < config.host_pages; ++i) {
    must(engine.stamp({world.host_tier, far[i]}, i, 1), "stamp");
    moves.push_back({i,
                     1,
                     {world.host_tier, far[i]},
                     {kHbm, near[i]},
                     Cause::kPromotion,
                     Urgency::kBackground,
                     {}});
  }
  // Through the engine alone first: what a page costs all told.
  std::vector<Submission> said(moves.size());
  std::vector<MoveResult> results(4096);
  const auto all_through = [&] {
    engine.submit(moves, said);
    std::size_t finished = 0;
    while (finished < moves.size()) finished += engine.wait_some(results, 1'000'000'000);
  };
  const double rate_of_engine = rate(moves.size() * config.page_bytes, all_through);
  b.report.rate("16 KiB in, through the engine", rate_of_engine, b.ceilings.read);

  Reader reader(0);
  const double alone = reader.median_pass(41);
  auto control = must(ControlLoop::start(engine, 200'000), "control loop");
  std::size_t outstanding = 0, next = 0;
  std::vector<double> slow;
  Bytes before = 0;
  double seconds = 0;
  const auto moved = [&] {
    Bytes sum = 0;
    for (const LinkStats& link : engine.stats().links) {
      for (const Bytes bytes : link.bytes) sum += bytes;
    }
    return sum;
  };
  for (int step = 0; step < 300; ++step) {
    while (outstanding < 12288) {
      engine.submit(std::span(moves).subspan(next, 2048), std::span(said).first(2048));
      next = (next + 2048) % moves.size();
      std::size_t taken = 0;
      for (const Submission& one : std::span(said).first(2048)) taken += one.job != 0;
      outstanding += taken;
      if (taken == 0) break;
    }
    const auto start = std::chrono::steady_clock::now();
    const double ms = reader.pass();
    outstanding -= engine.poll(results);
    if (step == 200) before = moved();
    engine.step_slowdown(ms / alone - 1);
    if (step >= 200) {
      slow.push_back(ms / alone - 1);
      seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
  }
  double mean = 0;
  for (const double s : slow) mean += s / static_cast<double>(slow.size());
  b.report.target("with a budget of 1 %, mean slow-down", 100 * mean, "%", "<= 1.5", mean <= 0.015);
  b.report.value("with a budget of 1 %, median slow-down", 100 * median(slow), "%");
  b.report.rate("  moved, pauses between passes included",
                static_cast<double>(moved() - before) / seconds, b.ceilings.read);
  control.reset();
  must(engine.shutdown(20'000'000'000), "shutdown");
}

/// Batches of one shape through an engine: by a fixed ring, and by what the shipped profile says of
/// its movers.
void dispatched(Bench& b) {
  const auto profile = must(config::read_profile("h200-pcie5"), "profile");
  const Bytes page = 16384;
  const SlotId slots = 16384;
  double worst = 1e9;
  for (const auto& [pages, run] :
       {std::pair{1U, 1U}, {8U, 1U}, {64U, 1U}, {4096U, 1U}, {4096U, 64U}}) {
    double rates[2] = {};
    std::string by;
    for (const bool measured : {false, true}) {
      DeviceEngineConfig config;
      config.page_bytes = page;
      config.hbm_pages = config.host_pages = slots;
      config.host_limits.bytes_per_second = 1e15;
      if (measured)
        config.measured.host_in = config::movers_between(profile, profile.platform.home, kHbm);
      DeviceEngine world = must(make_device_engine(config), "engine");
      must(world.host->wait(60'000'000'000), "host memory");
      world.serve_ready_host();
      std::vector<SlotId> near(slots), far(slots);
      must(world.engine->allocate(kHbm, near), "slots");
      must(world.engine->allocate(world.host_tier, far), "slots");
      Rng rng(run);
      std::vector<PageMove> moves;
      for (std::uint32_t i = 0; i < pages; ++i) {
        // Runs lie apart by as much again.
        const SlotId at = i / run * 2 * run + i % run;
        must(world.engine->stamp({world.host_tier, far[at]}, i, 1), "stamp");
        moves.push_back({i,
                         1,
                         {world.host_tier, far[at]},
                         {kHbm, near[at]},
                         Cause::kPromotion,
                         Urgency::kUrgent,
                         {}});
      }
      if (run == 1) {
        for (std::size_t i = pages; i > 1; --i)
          std::swap(moves[i - 1].to, moves[rng.below(static_cast<std::uint32_t>(i))].to);
      }
      std::vector<Submission> said(pages);
      std::vector<MoveResult> results(pages);
      std::vector<double> seconds;
      for (int i = 0; i < (pages > 1000 ? 11 : 101); ++i) {
        seconds.push_back(seconds_of([&] {
          world.engine->submit(moves, said);
          std::size_t finished = 0;
          while (finished < pages) finished += world.engine->poll(results);
        }));
      }
      rates[measured] = static_cast<double>(pages * page) / median(seconds);
      const auto link = world.engine->stats().links[*world.engine->link(world.host_tier, kHbm)];
      if (measured) {
        for (const transfer::MoverShare& share : link.by_mover) {
          if (share.jobs != 0) by += (by.empty() ? "" : ", ") + share.mover;
        }
      }
      must(world.engine->shutdown(20'000'000'000), "shutdown");
    }
    const std::string shape =
        std::to_string(pages) + " x 16 KiB in, runs of " + std::to_string(run);
    b.report.rate(shape + ", engine with a ring", rates[0], b.ceilings.read);
    b.report.rate(shape + ", engine by profile: " + by, rates[1], b.ceilings.read);
    worst = std::min(worst, rates[1] / rates[0]);
  }
  b.report.value("least of the profile's choice over the ring", worst, "x");
}

/// A drive's pages to HBM: read to the host alone, and on through the ring to the device.
void relayed(Bench& b) {
  const Bytes page = 65536;
  const SlotId pages = 4096;
  DeviceEngineConfig config;
  config.page_bytes = page;
  config.hbm_pages = config.host_pages = pages;
  config.relay_pages = 256;
  config.host_limits.bytes_per_second = config.file_limits.bytes_per_second = 1e12;
  PageFileConfig file;
  file.name = "nvme";
  file.path = "/tmp";
  file.pages = pages;
  config.files = {file};
  DeviceEngine world = must(make_device_engine(config), "engine");
  must(world.host->wait(60'000'000'000), "host memory");
  world.serve_ready_host();
  TransferEngine& engine = *world.engine;
  const auto tier = static_cast<TierId>(world.host_tier + 1);
  std::vector<SlotId> near(pages), far(pages), stored(pages);
  must(engine.allocate(kHbm, near), "slots");
  must(engine.allocate(world.host_tier, far), "slots");
  must(engine.allocate(tier, stored), "slots");
  const auto all = [&](TierId from, const std::vector<SlotId>& sources, TierId to,
                       const std::vector<SlotId>& destinations) {
    std::vector<PageMove> moves;
    for (SlotId i = 0; i < pages; ++i) {
      moves.push_back({i,
                       1,
                       {from, sources[i]},
                       {to, destinations[i]},
                       Cause::kDemandLoad,
                       Urgency::kUrgent,
                       {}});
    }
    std::vector<Submission> said(pages);
    std::vector<MoveResult> results(pages);
    const double seconds = seconds_of([&] {
      engine.submit(moves, said);
      std::size_t finished = 0;
      while (finished < pages) finished += engine.wait_some(results, 1'000'000'000);
    });
    return static_cast<double>(pages) * static_cast<double>(page) / seconds;
  };
  for (SlotId i = 0; i < pages; ++i) must(engine.stamp({kHbm, near[i]}, i, 1), "stamp");
  b.report.rate("64 KiB, hbm to a file through the ring", all(kHbm, near, tier, stored));
  double to_host = 0, to_hbm = 0;
  for (int round = 0; round < 3; ++round) {
    to_host = std::max(to_host, all(tier, stored, world.host_tier, far));
    to_hbm = std::max(to_hbm, all(tier, stored, kHbm, near));
  }
  b.report.rate("64 KiB, a file to host memory", to_host);
  b.report.rate("64 KiB, a file to hbm through the ring", to_hbm, to_host);
  must(engine.shutdown(60'000'000'000), "shutdown");
}

/// Makes memory present and registers it, while another stream goes on.
void pinning(Report& report) {
  PinnedMemoryConfig config;
  config.memory.bytes = 16 * kGiB;
  config.memory.touch_threads = std::max(4U, std::thread::hardware_concurrency());
  unsigned* sink = nullptr;
  must(cudaMalloc(reinterpret_cast<void**>(&sink), kMiB), "memory");
  const cudaStream_t s = new_stream();
  std::vector<double> calls;
  std::shared_ptr<PinnedMemory> memory;
  const double seconds = seconds_of([&] {
    memory = must(PinnedMemory::create(config), "pinned memory");
    while (memory->ready_bytes() < memory->size()) {
      calls.push_back(seconds_of([&] {
        must(cudaMemsetAsync(sink, 0, kMiB, s), "memset");
        must(cudaStreamSynchronize(s), "synchronize");
      }));
    }
  });
  const double gib = 16 / seconds;
  report.target("pinning of 16 GiB, first touch included", gib, "GiB/s", ">= 4", gib >= 4);
  const double worst = *std::max_element(calls.begin(), calls.end()) * 1e3;
  report.target("longest other CUDA call meanwhile", worst, "ms", "<= 50", worst <= 50);
  (void)cudaFree(sink);
  (void)cudaStreamDestroy(s);
}

void run(Report& report, bool peer, bool with_sweep) {
  if (peer) {
    Bench b{report,
            "peer",
            transfer::test::device_place(0, kSpan, {1}),
            transfer::test::device_place(1, kSpan, {0}),
            4 * kGiB,
            32,
            {},
            {}};
    measure_ceilings(b);
    if (with_sweep) sweep(b);
    scattered_pages(b);
    duplex(b);
    for (const std::int32_t device : {0, 1}) {
      disturbance(b, device, false);
      disturbance(b, device, true);
    }
    return;
  }
  pinning(report);
  Bench b{report,
          "host",
          transfer::test::device_place(0, kSpan, {}),
          transfer::test::host_place(kSpan),
          2 * kGiB,
          4,
          {},
          {}};
  measure_ceilings(b);
  if (with_sweep) sweep(b);
  scattered_pages(b);
  contiguous_far(b);
  duplex(b);
  submission(b);
  disturbance(b, 0, false);
  disturbance(b, 0, true);
  budgeted(b);
  dispatched(b);
  relayed(b);
}

}  // namespace
}  // namespace lehr::gpu

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto found = lehr::transfer::devices();
  if (found.empty()) {
    std::printf("no CUDA device: skipped\n");
    return 77;
  }
  bool peer = false, sweep = false;
  for (int i = 2; i < argc; ++i) {
    peer = peer || std::strcmp(argv[i], "--peer") == 0;
    sweep = sweep || std::strcmp(argv[i], "--sweep") == 0;
  }
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s OUT.json [--peer] [--sweep]\n", argv[0]);
    return 2;
  }
  if (peer && (found.size() < 2 || !lehr::transfer::peer_access(0, 1))) {
    std::printf("no second device that the first can read: skipped\n");
    return 77;
  }
  lehr::gpu::Report report(argv[1]);
  lehr::gpu::run(report, peer, sweep);
  return 0;
}
