// SPDX-License-Identifier: Apache-2.0
#include "transfer/host_engine.hpp"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "transfer/arena.hpp"

namespace lehr::transfer {
namespace {

/// Carries a notice about a mover that was passed over into the engine's list.
void note(EngineParts& parts, std::string notice) {
  if (!notice.empty()) parts.notices.push_back(std::move(notice));
}

/// The movers between memory and files: the first that works, and pread where it was measured too.
Status add_file_movers(const HostEngineConfig& config, const FileMoverConfig& files,
                       EngineParts& parts) {
  const bool pread_measured =
      std::any_of(config.measured.begin(), config.measured.end(),
                  [](const MeasuredWay& way) { return way.curve.mover == "file_pread"; });
  const auto pread = [&] { return make_file_pread({std::min(config.file_depth, 8U), 4096}); };
  bool have_pread = !config.use_uring;
  if (config.use_uring) {
    std::string notice;
    LEHR_ASSIGN(auto mover, make_file_mover(files, notice));
    note(parts, std::move(notice));
    have_pread = mover->traits().name == std::string_view("file_pread");
    parts.movers.push_back(std::move(mover));
  }
  if (!config.use_uring || (pread_measured && !have_pread)) {
    LEHR_ASSIGN(auto mover, pread());
    parts.movers.push_back(std::move(mover));
  }
  return {};
}

/// Gives each link the movers that were measured on its way.
void name_measured(std::span<const MeasuredWay> measured, EngineParts& parts) {
  for (const MeasuredWay& way : measured) {
    const auto link = std::find_if(
        parts.links.begin(), parts.links.end(),
        [&](const LinkConfig& l) { return l.from == way.from && l.to == way.to && !l.mover; });
    const auto mover =
        std::find_if(parts.movers.begin(), parts.movers.end(), [&](const auto& candidate) {
          return candidate->traits().name == std::string_view(way.curve.mover);
        });
    if (link == parts.links.end() || mover == parts.movers.end()) continue;
    link->measured.push_back({static_cast<std::uint32_t>(mover - parts.movers.begin()), way.curve});
  }
}

std::vector<LinkConfig> neighbour_links(const EngineParts& parts, const LinkLimits& limits) {
  std::vector<LinkConfig> links;
  for (std::size_t t = 0; t + 1 < parts.tiers.size(); ++t) {
    const auto upper = static_cast<TierId>(t);
    const auto lower = static_cast<TierId>(t + 1);
    const std::string& a = parts.tiers[t]->name();
    const std::string& b = parts.tiers[t + 1]->name();
    links.push_back({a + " to " + b, upper, lower, limits, {}});
    links.push_back({b + " to " + a, lower, upper, limits, {}});
  }
  return links;
}

}  // namespace

Result<std::unique_ptr<TransferEngine>> make_host_engine(HostEngineConfig config) {
  EngineParts parts;
  FileMoverConfig file_mover;
  file_mover.depth = config.file_depth;
  const bool guard_leases = config.faults.guards(Guard::kLeases);
  for (HostTierConfig& memory : config.memory) {
    ArenaConfig arena;
    arena.name = memory.name;
    arena.pages = memory.pages;
    arena.page_bytes = config.page_bytes;
    arena.guard_leases = guard_leases;
    MemoryRegion region = std::move(memory.region);
    if (region.base == nullptr) {
      HostMemoryConfig region_config;
      region_config.bytes = Arena::bytes_for(arena);
      region_config.numa_node = memory.numa_node;
      region_config.touch_threads = config.touch_threads;
      LEHR_ASSIGN(region, host_region(region_config));
    }
    LEHR_ASSIGN(auto made, Arena::create(arena, std::move(region)));
    file_mover.buffers.push_back(made->memory());
    parts.tiers.push_back(std::move(made));
  }
  for (PageFileConfig file : config.files) {
    file.page_bytes = config.page_bytes;
    file.guard_leases = guard_leases;
    LEHR_ASSIGN(auto made, PageFile::open(file));
    file_mover.files.push_back(made->fd());
    parts.tiers.push_back(std::move(made));
  }
  if (config.memory.size() > 1) {
    LEHR_ASSIGN(auto copy, make_host_copy({config.copy_threads, 4096}));
    parts.movers.push_back(std::move(copy));
  }
  if (!config.files.empty()) LEHR_TRY(add_file_movers(config, file_mover, parts));
  parts.links = config.links.empty() ? neighbour_links(parts, config.default_limits)
                                     : std::move(config.links);
  name_measured(config.measured, parts);
  parts.faults = std::move(config.faults);
  parts.clock = config.clock;
  parts.max_jobs = config.max_jobs;
  return TransferEngine::create(std::move(parts));
}

Status take_all_slots(TransferEngine& engine, TierId tier) {
  const SlotId count = engine.tier(tier).slots().usage().capacity;
  std::vector<SlotId> slots(count);
  LEHR_TRY(engine.allocate(tier, slots));
  const bool numbered =
      std::all_of(slots.begin(), slots.end(), [count](SlotId s) { return s < count; });
  return numbered ? Status{} : internal_error("transfer: slots are not numbered from 0");
}

Result<std::string> scratch_folder(const std::string& wanted) {
  if (!wanted.empty()) return wanted;
  std::error_code error;
  std::string found = std::filesystem::temp_directory_path(error).string();
  if (error) return not_found("no folder for temporary files ($TMPDIR): " + error.message());
  return found;
}

const char* what_failed(const MoveResult& result) {
  switch (result.reason) {
    case Reason::kChecksum:
      return "the bytes read are not those that were written (checksum)";
    case Reason::kGeneration:
      return "the source holds another page or version";
    case Reason::kTruncated:
      return "the file ends before the page does";
    case Reason::kNoSpace:
      return "no space is left";
    default:
      return result.code == Code::kCancelled ? "cancelled" : "the device failed";
  }
}

}  // namespace lehr::transfer
