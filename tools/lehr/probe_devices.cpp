// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "tools/lehr/probe.hpp"
#include "tools/lehr/probe_ways.hpp"
#include "transfer/arena.hpp"
#include "transfer/device.hpp"

namespace lehr::tools {
namespace {

using namespace transfer;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Both ways at once, large copies.
Result<double> measure_duplex(const Way& in, const Way& out) {
  LEHR_ASSIGN(auto mover_in, make_device_mover(mover_for(in, DeviceCopy::kEngine)));
  LEHR_ASSIGN(auto mover_out, make_device_mover(mover_for(out, DeviceCopy::kEngine)));
  const auto ins = jobs_of(in, 8 * kMiB, 128, 128);
  const auto outs = jobs_of(out, 8 * kMiB, 128, 128);
  std::vector<double> rates;
  for (int i = 0; i < 5; ++i) {
    Result<JobsTime> other = JobsTime{};
    const auto start = Clock::now();
    {
      std::jthread thread([&] { other = time_jobs(*mover_out, outs); });
      LEHR_TRY(time_jobs(*mover_in, ins));
    }
    LEHR_TRY(other);
    rates.push_back(static_cast<double>((ins.size() + outs.size()) * 8 * kMiB) /
                    seconds_since(start));
  }
  return median_of(std::move(rates));
}

/// How much slower a memory-bound kernel is beside a mover at full rate.
Result<double> measure_disturbance(const Way& way, const DeviceMemory& memory, DeviceCopy copy) {
  const auto pass = [&]() -> Result<double> {
    LEHR_ASSIGN(auto times, read_passes(way.device, memory.base(), memory.mapped(), 2112, 21));
    return median_of(std::move(times));
  };
  LEHR_ASSIGN(const double alone, pass());
  LEHR_ASSIGN(auto mover, make_device_mover(mover_for(way, copy)));
  const auto jobs = jobs_of(way, 16384, 65536, copy == DeviceCopy::kEngine ? 65536 : 1);
  std::atomic<bool> stop{false};
  Status failed;
  std::jthread background([&] {
    while (!stop && failed) {
      if (auto run = time_jobs(*mover, jobs); !run) failed = run.error();
    }
  });
  LEHR_ASSIGN(const double beside, pass());
  stop = true;
  background.join();
  LEHR_TRY(failed);
  return beside / alone - 1;
}

/// One device and what it reaches.
class DeviceProbe {
 public:
  DeviceProbe(ProbeResult& result, const ProbeProgress& progress)
      : result_(result), platform_(result.profile.platform), progress_(progress) {}

  Status run() {
    const std::vector<DeviceInfo> devices = transfer::devices();
    describe(devices[0]);
    if (devices.size() > 1) {
      if (const Status access = peer_access(0, devices[1].ordinal); access) {
        peer_ = devices[1].ordinal;
      } else {
        result_.notices.push_back("no peer was measured: " + access.error().what);
      }
    }
    LEHR_TRY(open());
    LEHR_TRY(read_hbm());
    const TierId host = platform_.home;
    const Way h2d{"h2d", &host_, &hbm_, 0, false}, d2h{"d2h", &hbm_, &host_, 0, false};
    LEHR_TRY(probe_way(h2d, host, kHbm, result_, progress_, 0.15, 0.35));
    LEHR_TRY(probe_way(d2h, kHbm, host, result_, progress_, 0.35, 0.55));
    LEHR_TRY(duplex("h2d", "d2h", h2d, d2h));
    LEHR_TRY(disturb("h2d", h2d));
    LEHR_TRY(disturb("d2h", d2h));
    if (peer_ >= 0) LEHR_TRY(peer(devices[1]));
    return {};
  }

 private:
  void describe(const DeviceInfo& device) {
    auto& source = result_.profile.source;
    source["gpu"] = device.name;
    source["driver"] = device.driver;
    source["cuda"] = device.runtime;
    config::GpuFacts& gpu = result_.profile.gpu;
    gpu.sms = device.sms;
    gpu.copy_engines = device.copy_engines;
    gpu.l2_bytes = device.l2_bytes;
    gpu.l2_persisting_bytes = std::min(device.l2_persisting_bytes, device.l2_bytes);
    if (device.hbm_peak > 0) gpu.hbm_peak = device.hbm_peak;
    platform_.tiers[kHbm].capacity = device.memory_bytes;
  }

  Status open() {
    progress_("memory", 0.01);
    DeviceMemoryConfig memory;
    memory.bytes = kProbeSpan;
    if (peer_ >= 0) memory.readers = {peer_};
    LEHR_ASSIGN(auto hbm, DeviceMemory::create(memory));
    hbm_ = {region_of(hbm)};
    PinnedMemoryConfig pinned;
    pinned.memory.bytes = kProbeSpan;
    pinned.memory.touch_threads = std::max(2U, std::thread::hardware_concurrency());
    pinned.chunk_bytes = kProbeSpan;
    const auto start = Clock::now();
    LEHR_ASSIGN(auto host, PinnedMemory::create(pinned));
    LEHR_TRY(host->wait(120'000'000'000));
    result_.figures.push_back(
        {"pinning, first touch included",
         static_cast<double>(kProbeSpan) / seconds_since(start) / static_cast<double>(kGiB),
         "GiB/s"});
    host_ = {region_of(host)};
    return {};
  }

  Status read_hbm() {
    progress_("HBM", 0.08);
    DeviceMemoryConfig config;
    config.bytes = 8 * kGiB;
    LEHR_ASSIGN(reader_, DeviceMemory::create(config));
    const Bytes bytes = reader_->mapped();
    LEHR_ASSIGN(auto times, read_passes(0, reader_->base(), bytes, 0, 9));
    platform_.hbm = BandwidthCurve(static_cast<double>(bytes) / median_of(std::move(times)));
    result_.measured.push_back("hbm");
    result_.figures.push_back({"hbm read", platform_.hbm.peak() / kGB, "GB/s"});
    const Bytes small = std::min<Bytes>(32 * kMiB, result_.profile.gpu.l2_bytes / 2);
    LEHR_ASSIGN(auto again, read_passes(0, reader_->base(), small, 0, 31));
    result_.figures.push_back({"l2 read again, launch included",
                               static_cast<double>(small) / median_of(std::move(again)) / kGB,
                               "GB/s"});
    const Bytes hot = std::min<Bytes>(16 * kMiB, small);
    LEHR_ASSIGN(const WindowGain window, window_gain(0, reader_->base(), hot, 512 * kMiB));
    result_.figures.push_back({"hot 16 MiB after 512 MiB went by", window.without * 1e6, "us"});
    result_.figures.push_back({"the same under an L2 window", window.with * 1e6, "us"});
    constexpr Bytes kPart = kProbeSpan / 2;
    LEHR_ASSIGN(auto link, read_passes(0, host_.region.base, kPart, 0, 5));
    result_.figures.push_back({"host read in place by SMs",
                               static_cast<double>(kPart) / median_of(std::move(link)) / kGB,
                               "GB/s"});
    return {};
  }

  Status duplex(const std::string& first, const std::string& second, const Way& in,
                const Way& out) {
    LEHR_ASSIGN(const double sum, measure_duplex(in, out));
    result_.figures.push_back({first + " and " + second + " at once", sum / kGB, "GB/s"});
    placement::SharedMedium medium;
    for (std::size_t l = 0; l < platform_.links.size(); ++l) {
      const auto id = static_cast<LinkId>(l);
      if (platform_.links[l].name == first) medium.first = id;
      if (platform_.links[l].name == second) medium.second = id;
    }
    medium.bytes_per_second = sum;
    std::erase_if(platform_.shared, [&](const placement::SharedMedium& m) {
      return m.first == medium.first && m.second == medium.second;
    });
    platform_.shared.push_back(medium);
    return {};
  }

  Status disturb(const std::string& name, const Way& way) {
    progress_("disturbance by " + name, 0.58);
    for (const auto& [copy, mover] :
         {std::pair{DeviceCopy::kRing, "ring"}, {DeviceCopy::kEngine, "copy engine"}}) {
      LEHR_ASSIGN(const double slower, measure_disturbance(way, *reader_, copy));
      result_.figures.push_back(
          {"reader of HBM beside " + name + " by " + mover + ", slower by", 100 * slower, "%"});
    }
    return {};
  }

  Status peer(const DeviceInfo& donor) {
    progress_("peer", 0.62);
    DeviceMemoryConfig config;
    config.device = peer_;
    config.bytes = kProbeSpan;
    config.readers = {0};
    LEHR_ASSIGN(auto memory, DeviceMemory::create(config));
    donor_ = {region_of(memory)};
    placement::Tier tier;
    tier.name = "peer";
    tier.capacity = donor.memory_bytes;
    tier.directly_readable = true;
    const TierId id = put_tier(platform_, tier);
    const Way in{"peer_read", &donor_, &hbm_, 0, true}, out{"peer_write", &hbm_, &donor_, 0, true};
    LEHR_TRY(probe_way(in, id, kHbm, result_, progress_, 0.62, 0.74));
    LEHR_TRY(probe_way(out, kHbm, id, result_, progress_, 0.74, 0.86));
    LEHR_TRY(duplex("peer_read", "peer_write", in, out));
    LEHR_TRY(disturb("peer_read", in));
    // A donor that takes its memory back sends pages on to host.
    const Way down{"peer_to_host", &donor_, &host_, 0, false};
    const Way up{"host_to_peer", &host_, &donor_, 0, false};
    LEHR_TRY(probe_way(down, id, platform_.home, result_, progress_, 0.86, 0.89));
    LEHR_TRY(probe_way(up, platform_.home, id, result_, progress_, 0.89, 0.92));
    LEHR_ASSIGN(auto times, read_passes(0, donor_.region.base, kProbeSpan, 0, 5));
    result_.figures.push_back({"peer read in place by SMs",
                               static_cast<double>(kProbeSpan) / median_of(std::move(times)) / kGB,
                               "GB/s"});
    return {};
  }

  ProbeResult& result_;
  placement::Platform& platform_;
  const ProbeProgress& progress_;
  std::int32_t peer_ = -1;
  Side hbm_, host_, donor_;
  std::shared_ptr<DeviceMemory> reader_;
};

}  // namespace

Status probe_devices(ProbeResult& result, const ProbeProgress& progress) {
  return DeviceProbe(result, progress).run();
}

}  // namespace lehr::tools
