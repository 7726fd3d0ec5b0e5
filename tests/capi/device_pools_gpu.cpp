// SPDX-License-Identifier: Apache-2.0
// Pools in a GPU's memory through the C interface, on a GPU:
//   lehr_test_device_pools [--quick] [--threads N] [WORD...]    runs the cases whose name holds a
//   word, with N threads that check blocks
// Ends with 77 where there is no device. What is measured is printed beside a plain copy of the
// same bytes in the same run.
#include <string>
#include <string_view>
#include <vector>

#include <poll.h>

#include "tests/capi/device_pools.hpp"

namespace lehr::test::pools {

namespace {

void round_trip(const Shape& shape, bool nvme, std::uint32_t flags, cudaStream_t stream) {
  const std::uint32_t count = nvme ? 40 : 12;
  World w(shape, 2 * count, nvme ? 6 : 16, nvme ? 64 : 0);
  std::vector<unsigned char> expected = w.fetch();
  for (std::uint32_t b = 0; b < count; ++b) w.put(expected, b, b);
  w.send(expected);
  for (std::uint32_t b = 0; b < count; b += 4) w.store(b, 4, b, stream);
  check(w.fetch() == expected, std::string(shape.name) + ": a store leaves blocks alone");
  // The first half of the pool is forgotten; blocks come back into the second.
  std::vector<unsigned char> after(w.bytes, 0x11);
  w.send(after);
  for (std::uint32_t b = 0; b < count; ++b) w.put(after, count + b, b);
  const lehr_job_report report = w.run(w.prepare(true, 0, count, count, flags), stream);
  check(report.status == LEHR_OK && report.succeeded == count, "a load went well");
  check(w.fetch() == after, std::string(shape.name) + (nvme ? " from NVMe" : " from host") +
                                ": the same bytes, and nothing else");
}

void round_trips() {
  cudaStream_t stream = make_stream();
  for (const Shape& shape : {kPaged, kHeads, kPadded, kOpaque, kLarge}) {
    for (const bool nvme : {false, true}) {
      round_trip(shape, nvme, 0, stream);
      round_trip(shape, nvme, LEHR_LOAD_LAYERED, stream);
    }
  }
  must(cudaStreamDestroy(stream), "stream");
}

void store_order() {
  for (const bool ordered : {true, false}) {  // the control: without the order old bytes are stored
    for (const bool by_event : {false, true}) {
      World w(kPaged, 4, 4, 0, ordered ? "" : "off=order");
      w.fill(0, 1);
      std::vector<unsigned char> image = w.fetch();
      w.put(image, 0, 2);
      unsigned char* fresh = nullptr;  // pinned: a copy of anything else may wait for the latch
      must(cudaHostAlloc(reinterpret_cast<void**>(&fresh), w.bytes, 0), "pinned");
      std::memcpy(fresh, image.data(), w.bytes);
      cudaStream_t writer = make_stream(), next = make_stream();
      cudaEvent_t written = nullptr;
      must(cudaEventCreateWithFlags(&written, cudaEventDisableTiming), "event");
      Latch latch(writer);
      must(cudaMemcpyAsync(w.memory, fresh, w.bytes, cudaMemcpyHostToDevice, writer), "write");
      must(cudaEventRecord(written, writer), "record");
      lehr_job job = w.prepare(false, 7, 1, 0);
      if (by_event) {
        auto after = sized<lehr_order>();
        after.flags = LEHR_ORDER_EVENTS_ONLY;
        void* events[] = {written};
        after.events = events;
        after.event_count = 1;
        ok(lehr_jobs_submit_after(w.runtime, &job, 1, &after, nullptr), "submit after");
      } else {
        ok(lehr_jobs_submit(w.runtime, &job, 1, writer, nullptr), "submit");
      }
      void* event = nullptr;
      ok(lehr_job_event(w.runtime, job, &event), "event");
      if (ordered) {
        check(lehr_job_wait(w.runtime, job, 20'000'000) == LEHR_PENDING, "it waits for its writer");
        check(cudaEventQuery(static_cast<cudaEvent_t>(event)) == cudaErrorNotReady, "so its event");
        (void)cudaGetLastError();
      } else {
        must(cudaEventSynchronize(static_cast<cudaEvent_t>(event)), "event");
      }
      // The block's next writer is enqueued behind the store.
      must(cudaStreamWaitEvent(next, static_cast<cudaEvent_t>(event), 0), "wait");
      must(cudaMemsetAsync(w.memory, 0x33, w.bytes, next), "overwrite");
      latch.lift();
      check(w.finish(job).status == LEHR_OK, "the store went well");
      must(cudaDeviceSynchronize(), "all");
      check(w.run(w.prepare(true, 7, 1, 1), next).status == LEHR_OK, "the load went well");
      check(w.holds(w.fetch(), 1, ordered ? 2 : 1),
            ordered ? "what was stored is what the writer wrote" : "the control stores old bytes");
      must(cudaFreeHost(fresh), "pinned");
    }
  }
}

void load_order() {
  for (const bool ordered : {true, false}) {  // the control: the reader finds it overwritten
    World w(kPaged, 4, 4, 0, ordered ? "" : "off=order");
    cudaStream_t reader = make_stream();
    w.fill(0, 1);
    w.store(1, 1, 0, reader);
    w.fill(3, 9);
    unsigned char* seen = nullptr;
    must(cudaMalloc(reinterpret_cast<void**>(&seen), w.bytes), "copy");
    Latch latch(reader);
    must(cudaMemcpyAsync(seen, w.memory, w.bytes, cudaMemcpyDeviceToDevice, reader), "read");
    lehr_job job = w.prepare(true, 1, 1, 3);
    ok(lehr_jobs_submit(w.runtime, &job, 1, reader, nullptr), "submit");
    if (ordered) {
      check(lehr_job_wait(w.runtime, job, 20'000'000) == LEHR_PENDING, "it waits for the reader");
    } else {
      ok(lehr_job_wait(w.runtime, job, kPatience), "wait");
    }
    latch.lift();
    check(w.finish(job).status == LEHR_OK, "the load went well");
    must(cudaStreamSynchronize(reader), "reader");
    std::vector<unsigned char> found(w.bytes);
    must(cudaMemcpy(found.data(), seen, w.bytes, cudaMemcpyDeviceToHost), "fetch");
    check(w.holds(found, 3, 9) == ordered,
          ordered ? "the reader saw what was there" : "the control's reader did not");
    check(w.holds(w.fetch(), 3, 1), "then the block was loaded");
    must(cudaFree(seen), "copy");
  }
}

void layers() {
  // Slow files: the host has long enqueued its waits when bytes arrive.
  const std::uint32_t count = 24;
  World w(kPaged, 2 * count, 4, 64, "read#1/1=slow:3000");
  cudaStream_t stream = make_stream(), user = make_stream();
  std::vector<unsigned char> all = w.fetch();
  for (std::uint32_t b = 0; b < count; ++b) w.put(all, b, b);
  w.send(all);
  for (std::uint32_t b = 0; b < count; b += 4) w.store(b, 4, b, stream);
  lehr_job job = w.prepare(true, 0, count, count, LEHR_LOAD_LAYERED);
  const std::uint64_t layer_bytes = w.layout.layer_stride;
  std::vector<unsigned char*> copies(kPaged.layers);
  for (unsigned char*& copy : copies)
    must(cudaMalloc(reinterpret_cast<void**>(&copy), layer_bytes), "copy");
  ok(lehr_jobs_submit(w.runtime, &job, 1, stream, nullptr), "submit");
  for (std::uint32_t l = 0; l < kPaged.layers; ++l) {
    ok(lehr_job_wait_layer(w.runtime, job, l, user), "wait layer");
    must(cudaMemcpyAsync(copies[l], w.memory + l * layer_bytes, layer_bytes,
                         cudaMemcpyDeviceToDevice, user),
         "use");
  }
  check(cudaStreamQuery(user) == cudaErrorNotReady, "no host block: the bytes have yet to come");
  (void)cudaGetLastError();
  must(cudaStreamSynchronize(user), "user");
  for (std::uint32_t l = 0; l < kPaged.layers; ++l) {
    must(cudaMemcpy(all.data() + l * layer_bytes, copies[l], layer_bytes, cudaMemcpyDeviceToHost),
         "fetch");
    must(cudaFree(copies[l]), "copy");
  }
  for (std::uint32_t b = 0; b < count; ++b)
    check(w.holds(all, count + b, b), "each layer was there when its turn came");
  check(lehr_job_wait_layer(w.runtime, job, kPaged.layers, user) < 0, "no such layer");
  check(w.finish(job).status == LEHR_OK, "the load went well");
}

void event_fd() {
  World w(kPaged, 4, 4, 0);
  cudaStream_t stream = make_stream();
  std::int32_t fd = -1;
  ok(lehr_jobs_event_fd(w.runtime, &fd), "fd");
  Latch latch(stream);
  lehr_job job = w.prepare(false, 1, 1, 0);
  ok(lehr_jobs_submit(w.runtime, &job, 1, stream, nullptr), "submit");
  pollfd entry{fd, POLLIN, 0};
  check(::poll(&entry, 1, 10) == 0, "not readable before");
  latch.lift();
  check(::poll(&entry, 1, 10000) == 1, "readable at its end");
  auto report = sized<lehr_job_report>();
  std::size_t taken = 0;
  ok(lehr_jobs_poll(w.runtime, &report, 1, &taken), "poll");
  check(taken == 1 && report.job.id == job.id && report.status == LEHR_OK, "its report");
}

void cancel_and_close() {
  World w(kPaged, 8, 4, 0);
  cudaStream_t stream = make_stream();
  w.fill(0, 1);
  w.store(1, 1, 0, stream);
  w.fill(2, 9);
  // A file is slow elsewhere; here the service may have taken the load up before it is cancelled.
  Latch latch(stream);
  lehr_job load = w.prepare(true, 1, 1, 2), stored = w.prepare(false, 5, 1, 3);
  ok(lehr_jobs_submit(w.runtime, &load, 1, stream, nullptr), "submit");
  ok(lehr_jobs_submit(w.runtime, &stored, 1, stream, nullptr), "submit");
  const lehr_status said = lehr_jobs_cancel(w.runtime, &load, 1, nullptr);
  check(said == LEHR_OK || LEHR_STATUS_REASON(said) == LEHR_REASON_PENDING, "cancelled, or moving");
  check(LEHR_STATUS_REASON(lehr_jobs_cancel(w.runtime, &stored, 1, nullptr)) == LEHR_REASON_PENDING,
        "a store that was submitted has started");
  check(LEHR_STATUS_REASON(lehr_pool_unregister(w.runtime, w.pool)) == LEHR_REASON_LEASED,
        "the pool is in use");
  latch.lift();
  w.finish(load);
  w.finish(stored);
  check(w.holds(w.fetch(), 2, said == LEHR_OK ? 9 : 1), "a cancelled load leaves its block");
  ok(lehr_pool_unregister(w.runtime, w.pool), "unregister");
  ok(w.register_pool(w.memory, w.bytes, 8, LEHR_MEMORY_DEVICE, w.pool), "register");
  // Closed with work under way: bytes that move arrive, nothing else happens.
  cudaStream_t other = make_stream();
  lehr_job last = w.prepare(true, 1, 1, 4);
  ok(lehr_jobs_submit(w.runtime, &last, 1, other, nullptr), "submit");
  ok(lehr_close(w.runtime), "close");
  w.runtime = {};
  must(cudaDeviceSynchronize(), "all");
}

/// A fault on the way leaves the block as it was, and the others arrive.
void faults() {
  World w(kPaged, 32, 4, 32, "read#1=eio; read#3=bitflip");
  cudaStream_t stream = make_stream();
  std::vector<unsigned char> all = w.fetch();
  for (std::uint32_t b = 0; b < 8; ++b) w.put(all, b, b);
  w.send(all);
  for (std::uint32_t b = 0; b < 8; b += 2) w.store(b, 2, b, stream);
  for (std::uint32_t b = 16; b < 24; ++b) w.fill(b, 99);
  lehr_job job = w.prepare(true, 0, 8, 16);
  ok(lehr_jobs_submit(w.runtime, &job, 1, stream, nullptr), "submit");
  ok(lehr_job_wait(w.runtime, job, kPatience), "wait");
  lehr_item_state states[8];
  states[0] = sized<lehr_item_state>();
  std::size_t count = 0;
  ok(lehr_job_items(w.runtime, job, states, 8, &count), "items");
  all = w.fetch();
  int failed = 0;
  for (std::uint32_t i = 0; i < 8; ++i) {
    failed += states[i].state == LEHR_ITEM_FAILED ? 1 : 0;
    check(w.holds(all, 16 + i, states[i].state == LEHR_ITEM_DONE ? i : 99), "as its state says");
  }
  check(failed == 2, std::to_string(failed) + " failed, expected an I/O error and a checksum");
  w.finish(job);
}

void refusals() {
  World w(kPaged, 4, 4, 0);
  lehr_pool pool{};
  const auto refused = [&](void* base, std::uint64_t size, int kind, const char* says) {
    const lehr_status status = w.register_pool(base, size, 4, kind, pool);
    check(LEHR_STATUS_CLASS(status) == LEHR_CLASS_INVALID &&
              last_error().find(says) != std::string::npos,
          std::string("expected \"") + says + "\": " + last_error());
  };
  std::vector<unsigned char> host(w.bytes);
  refused(host.data(), w.bytes, LEHR_MEMORY_DEVICE, "of no device");
  refused(w.memory, w.bytes, LEHR_MEMORY_HOST, "memory of the host was named");
  refused(w.memory, w.bytes + (64ULL << 20), LEHR_MEMORY_DEVICE, "");
  refused(w.memory + 8, w.bytes, LEHR_MEMORY_DEVICE, "multiple of 16");
  refused(w.memory, w.layout.block_stride, LEHR_MEMORY_DEVICE, "do not fit");
  void* other = nullptr;
  must(cudaHostAlloc(&other, w.bytes, cudaHostAllocMapped), "pinned");
  refused(other, w.bytes, LEHR_MEMORY_DEVICE, "of the host");
  must(cudaFreeHost(other), "pinned");
  int devices = 0;
  must(cudaGetDeviceCount(&devices), "devices");
  cudaStream_t stream = make_stream();
  lehr_job job = w.prepare(false, 1, 1, 0);
  if (devices > 1) {
    must(cudaSetDevice(1), "device 1");
    must(cudaMalloc(&other, w.bytes), "memory of device 1");
    cudaStream_t far = make_stream();
    must(cudaSetDevice(0), "device 0");
    refused(other, w.bytes, LEHR_MEMORY_DEVICE, "of device 1");
    check(
        LEHR_STATUS_CLASS(lehr_jobs_submit(w.runtime, &job, 1, far, nullptr)) == LEHR_CLASS_INVALID,
        "a stream of another device");
  } else {
    std::printf("  one device: memory and streams of another were not tried\n");
  }
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  check(LEHR_STATUS_CLASS(lehr_jobs_submit(w.runtime, &job, 1, stream, nullptr)) ==
            LEHR_CLASS_UNSUPPORTED,
        "a stream that is being captured");
  cudaGraph_t graph = nullptr;
  must(cudaStreamEndCapture(stream, &graph), "capture goes on");
  must(cudaGraphDestroy(graph), "graph");
  check(w.run(job, stream).status == LEHR_OK, "the job was left as it was");
  // More than the device takes at once is refused, and goes through later.
  const Shape small{"small", 1, 0, 0, 0, 0, false, 4096};
  World many(small, 300, 300, 0);
  Latch latch(stream);
  std::vector<lehr_job> jobs;
  lehr_status status = LEHR_OK;
  while (status == LEHR_OK && jobs.size() < 300) {
    const auto i = static_cast<std::uint32_t>(jobs.size());
    jobs.push_back(many.prepare(false, i, 1, i));
    status = lehr_jobs_submit(many.runtime, &jobs.back(), 1, stream, nullptr);
  }
  check(LEHR_STATUS_REASON(status) == LEHR_REASON_OVER_BUDGET, "too much is refused");
  latch.lift();
  const lehr_job late = jobs.back();
  jobs.pop_back();
  for (const lehr_job j : jobs) check(many.finish(j).status == LEHR_OK, "what was taken goes well");
  check(many.run(late, stream).status == LEHR_OK, "and what was refused, later");
}

/// Memory that is mapped piece by piece, as growing pools are.
void mapped_memory() {
  using Granularity =
      CUresult (*)(size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags);
  using Reserve = CUresult (*)(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long);
  using Create = CUresult (*)(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
                              unsigned long long);
  using Map =
      CUresult (*)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
  using Access = CUresult (*)(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t);
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  std::size_t unit = 0;
  driver<Granularity>("cuMemGetAllocationGranularity", 10020)(&unit, &prop,
                                                              CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  CUdeviceptr base = 0;
  check(driver<Reserve>("cuMemAddressReserve", 10020)(&base, 4 * unit, unit, 0, 0) == CUDA_SUCCESS,
        "addresses");
  const auto map = [&](std::size_t i) {
    CUmemGenericAllocationHandle piece = 0;
    CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return driver<Create>("cuMemCreate", 10020)(&piece, unit, &prop, 0) == CUDA_SUCCESS &&
           driver<Map>("cuMemMap", 10020)(base + i * unit, unit, 0, piece, 0) == CUDA_SUCCESS &&
           driver<Access>("cuMemSetAccess", 10020)(base + i * unit, unit, &access, 1) ==
               CUDA_SUCCESS;
  };
  check(map(0) && map(1) && map(3), "pieces");  // not 2
  constexpr std::uint64_t kBlock = 64 * 1024;
  const Shape shape{"mapped", 1, 0, 0, 0, 0, false, kBlock};
  World w(shape, 4, 8, 0);
  auto* const memory = reinterpret_cast<unsigned char*>(base);
  lehr_pool pool{};
  const auto blocks = static_cast<std::uint32_t>(2 * unit / kBlock);
  check(w.register_pool(memory, 4 * unit, 2 * blocks, LEHR_MEMORY_DEVICE, pool) < 0,
        "a hole in the range is refused");
  check(w.register_pool(memory, 3 * unit, blocks, LEHR_MEMORY_DEVICE, pool) < 0,
        "and one at its end");
  ok(w.register_pool(memory, 2 * unit, blocks, LEHR_MEMORY_DEVICE, pool), "two pieces in a row");
  cudaStream_t stream = make_stream();
  std::vector<unsigned char> data(kBlock), back(kBlock);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = World::value(4, 0, i);
  must(cudaMemcpy(memory + unit, data.data(), kBlock, cudaMemcpyHostToDevice), "send");
  w.pool = pool;
  const auto in_second = static_cast<std::uint32_t>(unit / kBlock);
  w.store(1, 1, in_second, stream);
  check(w.run(w.prepare(true, 1, 1, in_second - 1), stream).status == LEHR_OK, "load");
  must(cudaMemcpy(back.data(), memory + unit - kBlock, kBlock, cudaMemcpyDeviceToHost), "fetch");
  check(back == data, "the same bytes");
}

/// A load of three blocks into 8 to 10: two in row 0 of one table, the last in row 1 of another.
lehr_job load_with_entries(World& w, lehr_table numbers, lehr_table addresses) {
  std::vector<std::string> keys = {"k0", "k1", "k2"};
  std::vector<lehr_item> items(3, sized<lehr_item>());
  for (std::uint32_t i = 0; i < 3; ++i) {
    items[i].key = keys[i].data();
    items[i].key_size = 2;
    items[i].block = 8 + i;
    items[i].pool = w.pool;
    items[i].table = i < 2 ? numbers : addresses;
    items[i].row = i < 2 ? 0 : 1;
    items[i].column = i;
  }
  auto request = sized<lehr_load_request>();
  request.ns = w.ns;
  lehr_job job{};
  ok(lehr_load_prepare(w.runtime, &request, items.data(), 3, nullptr, &job), "load");
  return job;
}

/// A table in FlashInfer's form: indptr, then last_page_len, then indices.
class Ragged {
 public:
  Ragged() { must(cudaMalloc(reinterpret_cast<void**>(&memory_), kNumbers * 4), "ragged"); }
  ~Ragged() { (void)cudaFree(memory_); }
  Ragged(const Ragged&) = delete;
  Ragged& operator=(const Ragged&) = delete;

  void write(const World& w, lehr_table table, cudaStream_t stream) {
    const std::uint32_t tokens[] = {18, 0, 32};
    auto out = sized<lehr_ragged>();
    out.block_tokens = 16;
    out.indptr = memory_;
    out.last_page_len = memory_ + 4;
    out.indices = memory_ + 7;
    out.capacity = 8;
    ok(lehr_table_ragged(w.runtime, table, tokens, 3, &out, stream), "ragged");
  }
  std::vector<std::int32_t> read() const {
    std::vector<std::int32_t> all(11);
    must(cudaMemcpy(all.data(), memory_, 44, cudaMemcpyDeviceToHost), "read");
    return all;
  }

 private:
  static constexpr std::size_t kNumbers = 15;
  std::int32_t* memory_ = nullptr;
};

/// Entries of tables, in the order of streams and of loads that name them.
void tables() {
  World w(kPaged, 16, 8, 0);
  cudaStream_t stream = make_stream(), user = make_stream();
  for (std::uint32_t b = 0; b < 4; ++b) w.fill(b, b);
  w.store(0, 4, 0, stream);
  auto desc = sized<lehr_table_desc>();
  desc.pool = w.pool;
  desc.rows = 3;
  desc.columns = 4;
  lehr_table table{}, addresses{};
  void *entries = nullptr, *pointers = nullptr;
  ok(lehr_table_open(w.runtime, &desc, &table, &entries), "table");
  desc.form = LEHR_TABLE_POINTER;
  ok(lehr_table_open(w.runtime, &desc, &addresses, &pointers), "table of addresses");
  const auto read = [&] {
    std::vector<std::int32_t> all(12);
    must(cudaMemcpy(all.data(), entries, 48, cudaMemcpyDeviceToHost), "read");
    return all;
  };
  Ragged ragged;
  check(read() == std::vector<std::int32_t>(12, -1), "all none");
  // The caller's own, behind its stream; then a load behind the same.
  Latch latch(stream);
  lehr_table_entry own[2] = {sized<lehr_table_entry>(), sized<lehr_table_entry>()};
  own[0].row = 2, own[0].block = 5;
  own[1].row = 2, own[1].column = 1, own[1].block = 15;
  ok(lehr_table_write(w.runtime, table, own, 2, stream), "write");
  check(read() == std::vector<std::int32_t>(12, -1), "not before its turn");
  const lehr_job job = load_with_entries(w, table, addresses);
  ok(lehr_jobs_submit(w.runtime, &job, 1, stream, nullptr), "submit");
  check(LEHR_STATUS_REASON(lehr_table_close(w.runtime, table)) == LEHR_REASON_LEASED, "in use");
  ok(lehr_job_wait_layer(w.runtime, job, 0, user), "wait");
  ragged.write(w, table, user);
  latch.lift();
  must(cudaStreamSynchronize(user), "user");
  check(ragged.read() == std::vector<std::int32_t>{0, 2, 2, 4, 2, 0, 16, 8, 9, 5, 15},
        "indptr, last_page_len, indices");
  check(w.finish(job).status == LEHR_OK, "the load went well");
  check(read() == std::vector<std::int32_t>{8, 9, -1, -1, -1, -1, -1, -1, 5, 15, -1, -1},
        "entries");
  std::vector<std::uint64_t> address(12), expected(12, 0);
  expected[6] = reinterpret_cast<std::uint64_t>(w.memory) + 10 * w.layout.block_stride;
  must(cudaMemcpy(address.data(), pointers, 96, cudaMemcpyDeviceToHost), "read");
  check(address == expected, "addresses");
  ok(lehr_table_close(w.runtime, table), "close");
  ok(lehr_table_close(w.runtime, addresses), "close");
}

}  // namespace

}  // namespace lehr::test::pools

int main(int argc, char** argv) {
  using namespace lehr::test::pools;
  using lehr::test::must;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::printf("no CUDA device: skipped\n");
    return 77;
  }
  std::vector<std::string_view> words;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--quick") {
      quick = true;
    } else if (word == "--threads" && i + 1 < argc) {
      threads = argv[++i];
    } else {
      words.push_back(word);
    }
  }
  const std::pair<const char*, void (*)()> cases[] = {{"round trips", round_trips},
                                                      {"store order", store_order},
                                                      {"load order", load_order},
                                                      {"layers", layers},
                                                      {"event fd", event_fd},
                                                      {"cancel and close", cancel_and_close},
                                                      {"faults", faults},
                                                      {"refusals", refusals},
                                                      {"mapped memory", mapped_memory},
                                                      {"tables", tables},
                                                      {"speed", speed}};
  for (const auto& [name, run] : cases) {
    bool wanted = words.empty();
    for (const std::string_view word : words)
      wanted = wanted || std::string_view(name).find(word) != std::string_view::npos;
    if (!wanted) continue;
    const int before = failures;
    current = name;
    const double start = now();
    run();
    must(cudaDeviceSynchronize(), name);
    std::printf("%-18s %s (%.1f s)\n", name, failures == before ? "ok" : "FAILED", now() - start);
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
