// SPDX-License-Identifier: Apache-2.0
// The transfer layer on real devices: every page is checked by content. Exits 77 without a device.
//   lehr_test_transfer_gpu [--quick] [--moves N] [WORD...]    runs the cases whose name holds a
//   word
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string_view>

#include "kernels/base/rng.hpp"
#include "tests/transfer/cuda/stress.hpp"
#include "tests/transfer/cuda/world.hpp"
#include "transfer/device_engine.hpp"

namespace lehr::transfer::test {
namespace {

constexpr std::int64_t kLong = 60'000'000'000;

int failures = 0;
bool quick = false;
std::uint64_t stress_moves = 10'000'000;
std::int32_t donor = -1;  ///< a second device that the first can read, or none
const char* current = "";

void check(bool good, const std::string& what) {
  if (good) return;
  ++failures;
  std::printf("  FAILED %s: %s\n", current, what.c_str());
}

// ---- kernels

/// Random pages through the kernel and through the reference, compared byte by byte.
void move_against_reference(const kernels::PageLayout& layout, const kernels::MoveRing& ring,
                            std::uint32_t pages, std::uint64_t seed) {
  std::uint64_t span = 0;
  for (std::uint32_t i = 0; i < layout.count; ++i) {
    span = std::max({span, layout.from[i] + layout.piece_bytes, layout.to[i] + layout.piece_bytes});
  }
  const std::uint64_t slots = pages * 2;
  Shared<unsigned char> from(slots * span), to(slots * span), expected(slots * span);
  Rng rng(seed);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(rng.next());
  std::vector<std::uint32_t> a(slots), b(slots);
  for (std::uint32_t i = 0; i < slots; ++i) a[i] = b[i] = i;
  for (std::uint32_t i = static_cast<std::uint32_t>(slots); i > 1; --i) {
    std::swap(a[i - 1], a[rng.below(i)]);
    std::swap(b[i - 1], b[rng.below(i)]);
  }
  Shared<kernels::PagePair> pairs(pages), reference(pages);
  const auto address = [](unsigned char* p) { return reinterpret_cast<std::uint64_t>(p); };
  for (std::uint32_t p = 0; p < pages; ++p) {
    pairs[p] = {address(from.data() + a[p] * span), address(to.data() + b[p] * span)};
    if (seed % 2 == 1 && p % 3 == 1) pairs[p].from = 0;  // taken out: moves nothing
    reference[p] = {pairs[p].from, address(expected.data() + b[p] * span)};
  }
  must(kernels::move_pages_reference({reference.data(), pages}, layout), "reference");
  const Status moved = kernels::move_pages_cuda({pairs.data(), pages}, layout, ring, nullptr);
  check(moved.has_value(), moved ? "" : moved.error().what);
  must(cudaDeviceSynchronize(), "move");
  check(std::memcmp(to.data(), expected.data(), to.size()) == 0,
        std::to_string(pages) + " pages of " + std::to_string(layout.count) + " x " +
            std::to_string(layout.piece_bytes) + ", " + std::to_string(ring.ctas) + " CTAs x " +
            std::to_string(ring.stages) + " x " + std::to_string(ring.stage_bytes) + ", " +
            std::to_string(ring.open_stores) + (ring.register_copies ? " register form" : ""));
}

/// Rows of one head out of a token-major pool, and back; together on one side, or not quite.
void small_pieces(std::uint64_t seed) {
  for (const std::uint32_t count : {2U, 31U, 32U, 100U, 128U}) {
    for (const std::uint32_t bytes : {16U, 256U, 1008U, 4096U}) {
      if (count * bytes > (quick ? 10000U : 140000U)) continue;
      kernels::PageLayout rows;
      rows.count = count;
      rows.piece_bytes = bytes;
      for (std::uint32_t i = 0; i < count; ++i) {
        rows.from[i] = std::uint64_t{count - 1 - i} * (bytes + 48);
        rows.to[i] = std::uint64_t{i} * bytes;
      }
      kernels::PageLayout gap = rows;  // in a row but for the last: each piece by itself
      gap.to[count - 1] += 16;
      for (const std::uint32_t open : {1U, 2U, 4U, 8U}) {
        kernels::MoveRing ring;
        ring.ctas = open == 4 ? 1 : 3;
        ring.stages = open + 1;
        ring.stage_bytes = 16384;
        ring.open_stores = open;
        ring.keep_in_l2 = open == 2;
        for (const kernels::PageLayout& layout : {rows, rows.reversed(), gap}) {
          move_against_reference(layout, ring, 12, ++seed);
        }
        ring.register_copies = open == 1;
        ring.one_by_one = open != 1;
        move_against_reference(rows, ring, 5, ++seed);
      }
    }
  }
}

/// Pages of one piece, through rings of many shapes.
std::uint64_t whole_pages(bool registers, std::uint64_t seed) {
  for (const std::uint32_t bytes : {16U, 48U, 4096U, 8192U, 16384U, 20000U, 65536U + 16U}) {
    for (const std::uint32_t pages : {1U, 3U, 31U, 33U, 257U}) {
      if (quick && pages > 33) continue;
      for (const std::uint32_t ctas : {1U, 4U, 19U}) {
        kernels::PageLayout plain;
        plain.piece_bytes = bytes / 16 * 16;
        kernels::MoveRing ring;
        ring.ctas = ctas;
        ring.register_copies = registers;
        ring.stages = ctas == 1 ? 2 : ctas == 4 ? 8 : 25;
        ring.open_stores = ctas == 1 ? 1 : ctas == 4 ? 4 : 8;
        ring.stage_bytes = ctas == 4 ? 16384 : 4096;
        ring.keep_in_l2 = ctas == 4;
        move_against_reference(plain, ring, pages, ++seed);
      }
    }
  }
  return seed;
}

/// K and V of four layers of a token block: apart on the device, together on the host.
std::uint64_t layers_apart(bool registers, std::uint64_t seed) {
  kernels::PageLayout apart;
  apart.count = 8;
  apart.piece_bytes = 4096;
  for (std::uint32_t i = 0; i < 8; ++i) {
    apart.from[i] = std::uint64_t{7 - i} * 8192;
    apart.to[i] = std::uint64_t{i} * 4096;
  }
  kernels::MoveRing ring;
  ring.register_copies = registers;
  move_against_reference(apart, ring, 77, ++seed);
  move_against_reference(apart.reversed(), ring, 77, ++seed);
  return seed;
}

void kernel_layouts() {
  std::uint64_t seed = 1;
  for (const bool registers : {false, true}) {
    seed = layers_apart(registers, whole_pages(registers, seed));
  }
  small_pieces(seed);
  kernels::PageLayout odd;
  odd.piece_bytes = 24;
  check(!kernels::move_pages_cuda({nullptr, 0}, odd, {}, nullptr), "24 bytes are refused");
  odd.piece_bytes = 16384;
  kernels::MoveRing large;
  large.stages = 32;
  Shared<kernels::PagePair> pair(1);
  check(!kernels::move_pages_cuda({pair.data(), 1}, odd, large, nullptr),
        "a ring larger than shared memory is refused");
  check(cudaGetLastError() == cudaSuccess, "refusals leave no CUDA error behind");
}

// ---- movers

struct Side {
  const char* name;
  Memory memory;
};

/// Every job of a batch completes once, with its bytes in place; then cancelling, a full queue, and
/// jobs that the kernels cannot do.
void mover_contract(const Side& from, const Side& to, DeviceCopy copy, Bytes page) {
  const std::string what = std::string(from.name) + " to " + to.name + ", copy " +
                           std::to_string(static_cast<int>(copy)) + ", " + std::to_string(page);
  const std::uint32_t pages = quick ? 200 : 3000;
  DeviceMoverConfig config;
  config.copy = copy;
  config.batch_bytes = 2 * kMiB;
  config.seam_base = from.memory.base;
  config.seam_bytes = 64 * page;
  auto mover = must(make_device_mover(config), "mover");
  Shared<PageRef> sources(pages), destinations(pages);
  Shared<PageErrors> errors(1);
  Rng rng(page + static_cast<std::uint64_t>(copy));
  std::vector<Job> jobs;
  for (std::uint32_t p = 0; p < pages; ++p) {
    // Runs of 16 lie together on both sides, then everything is scattered.
    const std::uint64_t run = p / 16, within = p % 16;
    const std::uint64_t a = (run * 37 % (pages / 16 + 1)) * 16 + within;
    const std::uint64_t b =
        (run * 11 % (pages / 16 + 1)) * 16 + (p % 32 < 16 ? within : 15 - within);
    sources[p] = {reinterpret_cast<std::uint64_t>(from.memory.base + a * page), p, 7};
    destinations[p] = {reinterpret_cast<std::uint64_t>(to.memory.base + b * page), p, 7};
    jobs.push_back({p + 1, from.memory.at(a * page), to.memory.at(b * page), page, Cause::kOther,
                    p % 97 == 5 ? Urgency::kUrgent : Urgency::kBackground, 0});
  }
  must(fill_pages(sources.data(), pages, static_cast<std::uint32_t>(page), nullptr), "fill");
  must(cudaDeviceSynchronize(), "fill");
  check(mover->submit(jobs) == pages, what + ": all are accepted");
  check(mover->drain(kLong), what + ": drains");
  std::vector<Completion> done(pages + 1);
  done.resize(mover->poll(done));
  std::set<JobId> seen;
  for (const Completion& c : done) {
    check(c.code == Code::kOk && c.bytes == page && seen.insert(c.id).second,
          what + ": completes once");
  }
  check(seen.size() == pages, what + ": each completes");
  must(verify_pages(destinations.data(), pages, static_cast<std::uint32_t>(page), errors.data(), 0,
                    nullptr),
       "verify");
  must(cudaDeviceSynchronize(), "verify");
  check(errors[0].pages == pages && errors[0].wrong == 0,
        what + ": " + std::to_string(errors[0].wrong) + " of " + std::to_string(pages) + " wrong");
  // Cancelled jobs complete, too; nothing is left behind.
  std::vector<JobId> ids;
  ids.reserve(jobs.size());
  for (const Job& job : jobs) ids.push_back(job.id);
  check(mover->submit(jobs) == pages, what + ": accepted again");
  const std::size_t cancelled = mover->cancel(ids);
  check(mover->drain(kLong), what + ": drains after cancelling");
  std::size_t said = 0, count = 0;
  done.resize(pages + 1);
  done.resize(mover->poll(done));
  for (const Completion& c : done) {
    said += c.code == Code::kCancelled;
    ++count;
  }
  check(said == cancelled && count == pages, what + ": cancelled jobs say so");
  Completion none;
  const int fd = mover->event_fd();
  check(fd >= 0 && mover->poll({&none, 1}) == 0, what + ": nothing is left");
}

void movers() {
  DeviceMoverConfig many;
  many.batches = DeviceMoverConfig::kMostBatches + 1;
  check(!make_device_mover(many), "more batches than events are safe for are refused");
  const Bytes most = Bytes{3200} * 65536;
  std::vector<std::int32_t> readers;
  if (donor >= 0) readers.push_back(donor);
  std::vector<Side> sides;
  sides.push_back({"hbm", device_place(0, quick ? most / 8 : most, readers)});
  sides.push_back({"host", host_place(quick ? most / 8 : most)});
  if (donor >= 0) sides.push_back({"peer", device_place(donor, quick ? most / 8 : most, {0})});
  for (const Side& from : sides) {
    for (const Side& to : sides) {
      if (&from == &to) continue;
      for (const DeviceCopy copy :
           {DeviceCopy::kEngine, DeviceCopy::kBatch, DeviceCopy::kRing, DeviceCopy::kStaged}) {
        // 5000 is no multiple of 16: the kernels' movers fall back to the copy engine.
        for (const Bytes page : {Bytes{4096}, Bytes{16384}, Bytes{65536}, Bytes{5000}}) {
          if (quick && page > 16384) continue;
          mover_contract(from, to, copy, page);
        }
      }
    }
  }
}

void urgent_overtakes() {
  const Bytes page = 65536;
  const std::uint32_t pages = quick ? 512 : 4096;
  const Memory host = host_place((pages + 1) * page);
  const Memory hbm = device_place(0, (pages + 1) * page, {});
  auto mover = must(make_device_mover({}), "mover");
  std::vector<Job> jobs;
  for (std::uint32_t p = 0; p < pages; ++p) {
    jobs.push_back(
        {p + 1, host.at(p * page), hbm.at(p * page), page, Cause::kOther, Urgency::kBackground, 0});
  }
  const Job urgent{pages + 1, host.at(pages * page), hbm.at(pages * page),
                   page,      Cause::kDemandLoad,    Urgency::kUrgent,
                   0};
  check(mover->submit(jobs) == pages, "background is accepted");
  check(mover->submit({&urgent, 1}) == 1, "urgent is accepted");
  std::vector<Completion> done(pages + 1);
  std::size_t before = 0;
  bool seen = false;
  while (!seen) {
    if (!mover->wait(kLong)) break;
    const std::size_t count = mover->poll(done);
    for (std::size_t i = 0; i < count && !seen; ++i) {
      seen = done[i].id == urgent.id;
      before += !seen;
    }
  }
  // Two launches of 8 MiB may be ahead, and what the same look found finished.
  check(seen && before <= 4 * 8 * kMiB / page,
        "an urgent page came after " + std::to_string(before) + " of " + std::to_string(pages));
  check(mover->drain(kLong), "drains");
}

// ---- memory

void device_memory() {
  DeviceMemoryConfig config;
  config.bytes = 128 * kMiB;
  config.reserve = kGiB;
  auto memory = must(DeviceMemory::create(config), "device memory");
  std::byte* const base = memory->base();
  const Bytes first = memory->mapped();
  const std::uint32_t page = 16384;
  const auto pages = static_cast<std::uint32_t>(first / page);
  Shared<PageRef> refs(4 * pages);
  Shared<PageErrors> errors(1);
  for (std::uint32_t p = 0; p < refs.size(); ++p) {
    refs[p] = {reinterpret_cast<std::uint64_t>(base) + std::uint64_t{p} * page, p, 1};
  }
  must(fill_pages(refs.data(), pages, page, nullptr), "fill");
  // A captured graph keeps its addresses while the arena grows behind them.
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  must(cudaDeviceSynchronize(), "filled");
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  must(verify_pages(refs.data(), pages, page, errors.data(), 0, stream), "captured");
  must(cudaStreamEndCapture(stream, &graph), "end of capture");
  must(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
  check(memory->resize(4 * first).has_value(), "grows to four times");
  check(memory->base() == base && memory->mapped() == 4 * first, "the base stays");
  must(fill_pages(refs.data() + pages, 3 * pages, page, nullptr), "fill the new part");
  must(cudaDeviceSynchronize(), "filled");
  must(cudaGraphLaunch(replay, stream), "replay");
  must(cudaStreamSynchronize(stream), "replay");
  check(errors[0].pages == pages && errors[0].wrong == 0, "old pages are intact in a replay");
  const Status past = memory->resize(2 * kGiB);
  check(!past && past.error().reason == Reason::kOverBudget && memory->mapped() == 4 * first,
        "growing past the reserve is refused and changes nothing");
  check(memory->resize(first).has_value() && memory->mapped() == first, "shrinks");
  must(cudaGraphLaunch(replay, stream), "replay");
  must(cudaStreamSynchronize(stream), "replay");
  check(errors[0].pages == 2 * pages && errors[0].wrong == 0, "and after shrinking");
  (void)cudaGraphExecDestroy(replay);
  (void)cudaGraphDestroy(graph);
  (void)cudaStreamDestroy(stream);

  config.fail_mapping_nth = 4;
  auto poor = must(DeviceMemory::create(config), "device memory");
  const Bytes before = poor->mapped();
  const Status none = poor->resize(kGiB);
  check(!none && none.error().reason == Reason::kOverBudget && poor->mapped() == before,
        "out of memory in the middle is refused and changes nothing");
  config.device = 99;
  check(!DeviceMemory::create(config), "a device that is not there is refused");
}

void pinned_memory() {
  PinnedMemoryConfig config;
  config.memory.bytes = 64 * kMiB;
  config.chunk_bytes = 16 * kMiB;
  config.page_stride = 12288;
  auto memory = must(PinnedMemory::create(config), "pinned memory");
  check(memory->wait(kLong).has_value() && memory->ready_bytes() == memory->size(), "all is ready");
  check(memory->chunk_bytes() % 12288 == 0, "no page lies across the end of a piece");
  config.fail_chunk_nth = 3;
  auto refused = must(PinnedMemory::create(config), "pinned memory");
  const Status why = refused->wait(kLong);
  check(!why && refused->ready_bytes() == 2 * refused->chunk_bytes(),
        "a refusal keeps what is ready");
  check(!refused->notices().empty(), "and says why");
  const Memory hbm = device_place(0, 16 * kMiB, {});
  const Bytes piece = refused->chunk_bytes();
  must(cudaMemcpy(hbm.base, refused->base() + piece, piece, cudaMemcpyDefault),
       "use of the ready part");
}

// ---- engine

DeviceEngineConfig small_world(Bytes page) {
  DeviceEngineConfig config;
  config.page_bytes = page;
  config.hbm_pages = 8;
  config.host_pages = 64;
  if (donor >= 0) config.donors = {{"peer", donor, 16}};
  return config;
}

bool page_is(TransferEngine& engine, transfer::Place place, PageId page, std::uint32_t version,
             Bytes bytes) {
  Shared<PageRef> ref(1);
  Shared<PageErrors> errors(1);
  ref[0] = {reinterpret_cast<std::uint64_t>(engine.tier(place.tier).address(place.slot).pointer),
            page, version};
  must(verify_pages(ref.data(), 1, static_cast<std::uint32_t>(bytes), errors.data(), 0, nullptr),
       "verify");
  must(cudaDeviceSynchronize(), "verify");
  return errors[0].wrong == 0 && engine.holds(place, page, version);
}

transfer::Place make_page(TransferEngine& engine, TierId tier, PageId page, std::uint32_t version,
                          Bytes bytes) {
  SlotId slot = kNoSlot;
  must(engine.allocate(tier, {&slot, 1}), "allocate");
  Shared<PageRef> ref(1);
  ref[0] = {reinterpret_cast<std::uint64_t>(engine.tier(tier).address(slot).pointer), page,
            version};
  must(fill_pages(ref.data(), 1, static_cast<std::uint32_t>(bytes), nullptr), "fill");
  must(cudaDeviceSynchronize(), "fill");
  must(engine.stamp({tier, slot}, page, version), "stamp");
  return {tier, slot};
}

DeviceEngine open_engine(DeviceEngineConfig config) {
  DeviceEngine world = must(make_device_engine(std::move(config)), "engine");
  must(world.host->wait(kLong), "host memory");
  world.serve_ready_host();
  return world;
}

MoveResult run_move(TransferEngine& engine, const PageMove& move) {
  Submission said;
  engine.submit({&move, 1}, {&said, 1});
  MoveResult result;
  if (said.job == 0) {
    result.code = said.code;
    result.reason = said.reason;
    return result;
  }
  if (engine.wait_some({&result, 1}, kLong) == 0) result.code = Code::kInternal;
  return result;
}

void engine_round_trip() {
  const Bytes bytes = 16384;
  DeviceEngine world = open_engine(small_world(bytes));
  TransferEngine& engine = *world.engine;
  std::vector<TierId> way{kHbm, world.host_tier, kHbm};
  if (donor >= 0) way = {kHbm, 1, world.host_tier, 1, kHbm, world.host_tier, kHbm};
  transfer::Place at = make_page(engine, kHbm, 5, 3, bytes);
  for (std::size_t i = 1; i < way.size(); ++i) {
    const MoveResult r =
        run_move(engine, {5, 3, at, {way[i], kNoSlot}, Cause::kOther, Urgency::kUrgent, {}});
    check(r.code == Code::kOk && page_is(engine, r.to, 5, 3, bytes),
          "hop " + std::to_string(i) + " to tier " + std::to_string(way[i]));
    check(page_is(engine, at, 5, 3, bytes), "the copy left behind is intact");
    must(engine.release(at), "release");
    at = r.to;
  }
  const MoveResult stale =
      run_move(engine, {5, 2, at, {world.host_tier, kNoSlot}, Cause::kOther, Urgency::kUrgent, {}});
  check(stale.reason == Reason::kGeneration, "another version is refused");
  must(engine.shutdown(kLong), "shutdown");
}

/// Pages to a file and back without a stop in the host tier, by the relay and, where it is
/// installed, by cuFile; then a bit that flipped on the drive.
void files_and_hbm(bool cufile) {
  const Bytes bytes = 65536;
  DeviceEngineConfig config = small_world(bytes);
  config.donors.clear();
  config.hbm_pages = 256;
  config.relay_pages = 64;
  config.try_cufile = cufile;
  PageFileConfig file;
  file.name = "nvme";
  file.path = "/tmp";
  file.pages = 512;
  config.files = {file};
  DeviceEngine world = open_engine(std::move(config));
  TransferEngine& engine = *world.engine;
  const auto tier = static_cast<TierId>(world.host_tier + 1);
  for (const std::string& notice : engine.stats().notices) std::printf("  %s\n", notice.c_str());
  const SlotId pages = quick ? 16 : 256;
  for (int round = 0; round < 3; ++round) {
    std::vector<PageMove> moves;
    std::vector<Submission> said(pages);
    std::vector<MoveResult> results(pages);
    for (SlotId i = 0; i < pages; ++i) {
      const auto version = static_cast<std::uint32_t>(round + 1);
      moves.push_back({i,
                       version,
                       make_page(engine, kHbm, i, version, bytes),
                       {tier, kNoSlot},
                       Cause::kWriteBack,
                       Urgency::kBackground,
                       {}});
    }
    const auto all = [&] {
      engine.submit(moves, said);
      must(engine.wait_all(kLong), "moves");
      check(engine.poll(results) == pages, "every move is told");
      for (const MoveResult& r : results) check(r.code == Code::kOk, "a move of a file");
    };
    all();
    for (SlotId i = 0; i < pages; ++i) {
      must(engine.release(moves[i].from), "release");
      moves[i].from = {tier, said[i].slot};
      moves[i].to = {kHbm, kNoSlot};
    }
    all();
    for (SlotId i = 0; i < pages; ++i) {
      check(page_is(engine, {kHbm, said[i].slot}, i, moves[i].version, bytes), "what a file gave");
      must(engine.release({kHbm, said[i].slot}), "release");
      must(engine.release(moves[i].from), "release");
    }
  }
  must(engine.shutdown(kLong), "shutdown");
}

void relay() { files_and_hbm(false); }
void cufile() { files_and_hbm(true); }

/// Batches go with the mover that was measured to be the fastest for them.
void measured_movers() {
  const Bytes bytes = 16384;
  DeviceEngineConfig config = small_world(bytes);
  config.donors.clear();
  config.hbm_pages = config.host_pages = 4096;
  config.host_limits.bytes_per_second = 1e15;
  for (auto* curves : {&config.measured.host_in, &config.measured.host_out}) {
    *curves = {{"", "copy_engine", 1, 11e-6, BandwidthCurve(5e9)},
               {"", "ring", 1, 18e-6, BandwidthCurve(48e9)},
               {"", "copy_engine", 16, 11e-6, BandwidthCurve(54e9)}};
  }
  DeviceEngine world = open_engine(std::move(config));
  TransferEngine& engine = *world.engine;
  std::vector<SlotId> near(4096);
  must(engine.allocate(kHbm, near), "slots");
  std::vector<PageMove> moves;
  for (SlotId i = 0; i < 2048; ++i) {
    PageMove move;
    move.page = i;
    move.from = make_page(engine, world.host_tier, i, 1, bytes);
    moves.push_back(move);
  }
  std::vector<MoveResult> results(4096);
  const auto run = [&](SlotId first, SlotId count, SlotId step) {
    std::vector<Submission> said(count);
    for (SlotId i = 0; i < count; ++i) moves[first + i].to = {kHbm, near[i * step]};
    engine.submit(std::span(moves).subspan(first, count), said);
    must(engine.wait_all(kLong), "moves");
    check(engine.poll(results) == count, "every move is told");
    for (SlotId i = 0; i < count; ++i)
      check(page_is(engine, moves[first + i].to, first + i, 1, bytes), "a dispatched page");
  };
  const auto by = [&] {
    return engine.stats().links[*engine.link(world.host_tier, kHbm)].by_mover;
  };
  run(0, 2, 2);
  check(by()[0].jobs == 2, "two pages go with the copy engine");
  run(0, 1024, 2);
  check(by()[1].jobs == 1024, "a thousand scattered ones with the ring");
  run(0, 1024, 1);
  check(by()[2].jobs == 1024, "a thousand in a row with the copy engine, merged");
  must(engine.shutdown(kLong), "shutdown");
}

/// Reported failure: a slot is filled again before its last reader is done. The reader waits 2 ms
/// on the device; its page is dropped and the only free slot is asked for at once.
unsigned long long reuse_before_last_reader(bool guarded) {
  const Bytes bytes = 16384;
  DeviceEngineConfig config = small_world(bytes);
  config.hbm_pages = 2;
  config.donors.clear();
  if (!guarded) config.faults.guards_off = {Guard::kLeases};
  DeviceEngine world = open_engine(std::move(config));
  TransferEngine& engine = *world.engine;
  cudaStream_t reader = nullptr;
  must(cudaStreamCreateWithFlags(&reader, cudaStreamNonBlocking), "stream");
  Shared<PageRef> ref(1);
  Shared<PageErrors> errors(1);
  EventLeases leases;
  const transfer::Place b = make_page(engine, world.host_tier, 2, 1, bytes);
  const transfer::Place other = make_page(engine, kHbm, 3, 1, bytes);
  const int rounds = quick ? 5 : 200;
  for (int round = 0; round < rounds; ++round) {
    const transfer::Place a = make_page(engine, kHbm, 1, 1, bytes);
    ref[0] = {reinterpret_cast<std::uint64_t>(engine.tier(kHbm).address(a.slot).pointer), 1, 1};
    std::vector<Lease> held;
    held.push_back(must(engine.lease(a, LeaseMode::kRead), "lease"));
    must(verify_pages(ref.data(), 1, static_cast<std::uint32_t>(bytes), errors.data(), 2'000'000,
                      reader),
         "reader");
    must(leases.after(reader, std::move(held)), "lease until the event");
    must(engine.release(a), "release");
    // Only a's slot is free, and only behind its reader.
    const PageMove load{2, 1, b, {kHbm, kNoSlot}, Cause::kDemandLoad, Urgency::kUrgent, {}};
    Submission said;
    engine.submit({&load, 1}, {&said, 1});
    check(said.job != 0, "the load is taken");
    MoveResult result;
    std::size_t got = 0;
    while (got == 0) {
      leases.poll();
      got = engine.wait_some({&result, 1}, 1'000'000);
    }
    check(result.code == Code::kOk && page_is(engine, result.to, 2, 1, bytes), "the load arrives");
    must(cudaStreamSynchronize(reader), "reader");
    while (leases.poll() != 0) {
    }
    must(engine.release(result.to), "release");
  }
  check(page_is(engine, other, 3, 1, bytes), "other pages are untouched");
  (void)cudaStreamDestroy(reader);
  must(engine.shutdown(kLong), "shutdown");
  return errors[0].wrong;
}

void last_reader() {
  const auto guarded = reuse_before_last_reader(true);
  check(guarded == 0, std::to_string(guarded) + " readers saw another page");
  const auto unguarded = reuse_before_last_reader(false);
  check(unguarded != 0, "without leases a reader sees another page: the control must fail");
}

void donor_takes_back() {
  if (donor < 0) return;
  const Bytes bytes = 16384;
  const SlotId pages = 16384;
  DeviceEngineConfig config = small_world(bytes);
  config.donors = {{"peer", donor, pages}};
  config.host_pages = pages * 3 / 4;
  DeviceEngine world = open_engine(std::move(config));
  TransferEngine& engine = *world.engine;
  std::vector<SlotId> slots(pages);
  must(engine.allocate(1, slots), "allocate");
  Shared<PageRef> refs(pages);
  Shared<PageErrors> errors(1);
  for (SlotId p = 0; p < pages; ++p) {
    refs[p] = {reinterpret_cast<std::uint64_t>(engine.tier(1).address(slots[p]).pointer), p, 4};
    must(engine.stamp({1, slots[p]}, p, 4), "stamp");
  }
  must(fill_pages(refs.data(), pages, static_cast<std::uint32_t>(bytes), nullptr), "fill");
  must(cudaDeviceSynchronize(), "fill");
  check(world.resize(1, pages / 2).error().reason == Reason::kLeased,
        "memory in use is not given back");
  // Half of it: the pages move on to host.
  const Evacuation half = evacuate(engine, 1, pages / 2, world.host_tier, kLong);
  check(half.complete() && half.moved.size() == pages / 2, "half of the donor is vacated");
  std::map<PageId, transfer::Place> places;
  for (SlotId p = 0; p < pages; ++p) places[p] = {1, slots[p]};
  for (const MoveResult& r : half.moved) places[r.page] = r.to;
  check(world.resize(1, pages / 2).has_value() &&
            world.donors[0]->mapped() <= pages / 2 * engine.tier(1).stride() + 64 * kMiB,
        "and its memory is given back");
  // Host has room for half of the rest: the others stay readable where they are.
  const Evacuation rest = evacuate(engine, 1, 0, world.host_tier, kLong);
  for (const MoveResult& r : rest.moved) places[r.page] = r.to;
  check(!rest.complete() && rest.left == pages / 4, "what host has no room for stays");
  for (const auto& [page, place] : places) {
    refs[page].address =
        reinterpret_cast<std::uint64_t>(engine.tier(place.tier).address(place.slot).pointer);
  }
  must(verify_pages(refs.data(), pages, static_cast<std::uint32_t>(bytes), errors.data(), 0,
                    nullptr),
       "verify");
  must(cudaDeviceSynchronize(), "verify");
  check(errors[0].pages == pages && errors[0].wrong == 0, "nothing is lost");
  check(world.resize(1, 0).error().reason == Reason::kLeased, "the rest cannot be taken yet");
  must(engine.shutdown(kLong), "shutdown");
}

void donor_left_out() {
  DeviceEngineConfig config = small_world(8192);
  config.donors = {{"peer", 99, 16}};
  DeviceEngine world = open_engine(std::move(config));
  check(world.donors.size() == 1 && world.donors[0] == nullptr, "no such donor");
  check(!world.engine->stats().notices.empty(), "and it is said");
  SlotId slot = kNoSlot;
  check(!world.engine->allocate(1, {&slot, 1}), "its tier has no slot");
  const transfer::Place at = make_page(*world.engine, kHbm, 1, 1, 8192);
  const MoveResult r = run_move(
      *world.engine, {1, 1, at, {world.host_tier, kNoSlot}, Cause::kOther, Urgency::kUrgent, {}});
  check(r.code == Code::kOk, "host serves");
  must(world.engine->shutdown(kLong), "shutdown");
}

void faults() {
  const Bytes bytes = 16384;
  DeviceEngineConfig config = small_world(bytes);
  config.faults = must(FaultPlan::parse("copy#2=eio; copy#4=short:100; copy#5=slow:2000"), "plan");
  DeviceEngine world = open_engine(std::move(config));
  TransferEngine& engine = *world.engine;
  const transfer::Place at = make_page(engine, world.host_tier, 9, 1, bytes);
  for (int i = 1; i <= 6; ++i) {
    const MoveResult r =
        run_move(engine, {9, 1, at, {kHbm, kNoSlot}, Cause::kOther, Urgency::kUrgent, {}});
    check((r.code == Code::kOk) == (i != 2), "copy " + std::to_string(i));
    if (r.code == Code::kOk) {
      check(page_is(engine, r.to, 9, 1, bytes), "contents of copy " + std::to_string(i));
      must(engine.release(r.to), "release");
    }
    check(page_is(engine, at, 9, 1, bytes), "the source stays readable");
  }
  check(engine.tier(kHbm).slots().usage().held == 0, "failed loads give their slots back");
  must(engine.shutdown(kLong), "shutdown");
}

void stress() {
  StressConfig config;
  config.donor = donor;
  config.moves = quick ? std::min<std::uint64_t>(stress_moves, 2000) : stress_moves;
  if (quick) {
    config.hbm_pages = 128;
    config.host_pages = 256;
    config.peer_pages = 128;
    config.round = 64;
    config.readers = 32;
  }
  const StressResult r = run_stress(config);
  check(r.ok, r.problem);
  std::printf(
      "  %llu moves (%llu rewrites, %llu refused) in %.1f s: %.2f M/s; readers looked at %llu "
      "pages beside them; %llu pages checked, %llu wrong\n",
      static_cast<unsigned long long>(r.moves), static_cast<unsigned long long>(r.rewrites),
      static_cast<unsigned long long>(r.refused), r.seconds,
      static_cast<double>(r.moves) / r.seconds * 1e-6, static_cast<unsigned long long>(r.read),
      static_cast<unsigned long long>(r.verified), static_cast<unsigned long long>(r.wrong));
}

int run_all(const std::vector<std::string_view>& words) {
  const std::pair<const char*, void (*)()> cases[] = {
      {"kernel layouts", kernel_layouts},
      {"device memory", device_memory},
      {"pinned memory", pinned_memory},
      {"movers", movers},
      {"urgent overtakes", urgent_overtakes},
      {"engine round trip", engine_round_trip},
      {"measured movers", measured_movers},
      {"relay", relay},
      {"cufile", cufile},
      {"last reader", last_reader},
      {"donor takes back", donor_takes_back},
      {"donor left out", donor_left_out},
      {"faults", faults},
      {"stress", stress},
  };
  for (const auto& [name, run] : cases) {
    bool wanted = words.empty();
    for (const auto word : words) {
      wanted = wanted || std::string_view(name).find(word) != std::string_view::npos;
    }
    if (!wanted) continue;
    const int before = failures;
    current = name;
    run();
    must(cudaDeviceSynchronize(), name);
    std::printf("%-20s %s\n", name, failures == before ? "ok" : "FAILED");
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace lehr::transfer::test

int main(int argc, char** argv) {
  using namespace lehr::transfer::test;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto found = lehr::transfer::devices();
  if (found.empty()) {
    std::printf("no CUDA device: skipped\n");
    return 77;
  }
  std::vector<std::string_view> words;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--quick") {
      quick = true;
    } else if (word == "--moves" && i + 1 < argc) {
      stress_moves = std::strtoull(argv[++i], nullptr, 10);
    } else {
      words.push_back(word);
    }
  }
  if (found.size() > 1 && lehr::transfer::peer_access(0, 1)) donor = 1;
  std::printf("%s, %zu device%s%s\n", found[0].name.c_str(), found.size(),
              found.size() > 1 ? "s" : "", donor >= 0 ? ", with a peer" : "");
  return run_all(words);
}
