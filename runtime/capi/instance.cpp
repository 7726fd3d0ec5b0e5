// SPDX-License-Identifier: Apache-2.0
#include "runtime/capi/instance.hpp"

#include <limits>

#include <fmt/format.h>

#include "runtime/config/profile.hpp"
#include "runtime/contents/device_contents.hpp"
#include "runtime/contents/host_contents.hpp"
#include "runtime/machines/cuda/kv_cuda.hpp"
#include "runtime/machines/host.hpp"
#include "runtime/machines/sim.hpp"
#include "runtime/predictor_weights.hpp"
#include "transfer/block_lanes.hpp"
#include "transfer/faults.hpp"

namespace lehr::capi {

namespace {

constexpr std::uint64_t kMostPages = std::numeric_limits<std::uint32_t>::max() / 2;

Result<std::uint32_t> pages_of(const config::Capacity& capacity, Bytes total, Bytes page_bytes,
                               const std::string& key) {
  auto bytes = capacity.resolve(total, page_bytes);
  if (!bytes) return invalid(fmt::format("{}: {}", key, bytes.error().what));
  if (total != 0 && *bytes > total) {
    return invalid(fmt::format("{}: {} bytes, the profile's machine has {}", key, *bytes, total),
                   Reason::kOutOfRange);
  }
  if (*bytes / page_bytes > kMostPages) {
    return invalid(fmt::format("{}: {} pages, at most {}", key, *bytes / page_bytes, kMostPages),
                   Reason::kOutOfRange);
  }
  return static_cast<std::uint32_t>(*bytes / page_bytes);
}

const config::Capacity& capacity_of(const config::Config& config, const std::string& tier) {
  static const config::Capacity none;
  if (tier == "hbm") return config.capacity_hbm;
  if (tier == "host") return config.capacity_host;
  return tier == "nvme" ? config.capacity_nvme : none;
}

bool unlimited(const std::string& policy) {
  const auto descriptor = placement::find_policy(policy);
  return descriptor && (*descriptor)->traits.unlimited;
}

// Unset capacities: the profile's on sim, which takes no memory; none elsewhere.
Result<std::vector<std::uint32_t>> tier_pages(const config::Config& config, MachineKind machine,
                                              const placement::Platform& platform,
                                              Bytes page_bytes) {
  std::vector<std::uint32_t> pages;
  for (const placement::Tier& tier : platform.tiers) {
    const config::Capacity& given = capacity_of(config, tier.name);
    const std::string key = "capacity." + tier.name;
    if (given.set()) {
      // A policy that asks what if HBM held everything is not held to what the machine has.
      const bool what_if =
          machine == MachineKind::kSim && pages.empty() && unlimited(config.policy_name);
      LEHR_ASSIGN(const std::uint32_t count,
                  pages_of(given, what_if ? 0 : tier.capacity, page_bytes, key));
      pages.push_back(count);
    } else if (machine == MachineKind::kSim) {
      pages.push_back(static_cast<std::uint32_t>(std::min(tier.capacity / page_bytes, kMostPages)));
    } else {
      pages.push_back(0);
    }
  }
  if (pages[kHbm] == 0) return invalid("capacity.hbm: needed on this machine, at least one page");
  if (pages[platform.home] == 0) {
    return invalid(fmt::format("capacity.{}: needed on this machine, it is the pages' home",
                               platform.tiers[platform.home].name));
  }
  return pages;
}

std::optional<runtime::PrecisionOptions> precision_of(const config::Config& config) {
  return runtime::precision_of(config.policy_precision, config.policy_precision_mass);
}

Result<contents::ContentsOptions> contents_options(const config::Config& config) {
  contents::ContentsOptions options;
  options.geometry = config.geometry();
  if (config.geometry_dtype == "f16") {
    options.element = contents::Element::kF16;
  } else if (config.geometry_dtype == "bf16") {
    options.element = contents::Element::kBf16;
  } else if (config.geometry_dtype != "f32") {
    return unsupported(fmt::format("geometry.dtype: \"{}\", contents are f32, f16 or bf16",
                                   config.geometry_dtype));
  }
  if (config.geometry_page_bytes != 0)
    return invalid("geometry.page_bytes: contents have the bytes that the geometry gives");
  if (config.step_rounding == "e4m3") options.rounding = contents::Rounding::kE4m3;
  if (config.step_rounding == "int8") options.rounding = contents::Rounding::kInt8;
  if (const auto precision = precision_of(config)) options.lowers = precision->to;
  return options;
}

/// The step loop's machine where pages are a GPU's.
Result<std::unique_ptr<runtime::Machine>> make_on_device(Instance& instance,
                                                         std::unique_ptr<contents::KvDevice> device,
                                                         const std::vector<std::uint32_t>& pages,
                                                         const transfer::FaultPlan& faults,
                                                         contents::DeviceContents*& made) {
  const config::Config& config = instance.config;
  const placement::Platform& platform = instance.platform;
  if (config.step_contents != "kv") {
    return unsupported(
        "step.contents: machine = \"cuda\" holds the caller's K and V; expected \"kv\"");
  }
  if (platform.tiers[platform.home].name != "host") {
    return unsupported(
        fmt::format("profile: pages of machine = \"cuda\" live in host memory, not on {}",
                    platform.tiers[platform.home].name));
  }
  contents::DeviceContentsOptions options;
  LEHR_ASSIGN(options.contents, contents_options(config));
  options.tier_pages = pages;
  options.home = platform.home;
  for (std::size_t t = 1; t < platform.tiers.size(); ++t) {
    if (platform.tiers[t].name == "nvme") options.below = static_cast<TierId>(t);
  }
  options.nvme_directory = config.nvme_path;
  options.faults = faults;
  options.sequences = static_cast<std::uint32_t>(config.step_sequences);
  options.tokens = config.step_tokens;
  options.plan_pages = config.step_plan_pages;
  LEHR_ASSIGN(auto contents, contents::DeviceContents::create(options, std::move(device)));
  made = contents.get();
  instance.contents = std::move(contents);
  return made->make_machine();
}

Status open_step_level(Instance& instance, const transfer::FaultPlan& faults,
                       std::unique_ptr<contents::KvDevice> device) {
  const config::Config& config = instance.config;
  runtime::RuntimeOptions options;
  options.platform = instance.platform;
  options.geometry = config.geometry();
  options.page_bytes = config.geometry_page_bytes;
  options.weights_bytes = config.step_weights_bytes;
  options.cold = config.policy_cold;
  options.seed = config.top_seed;
  options.heat_half_life = static_cast<float>(config.policy_heat_half_life);
  options.importance =
      runtime::importance_of(config.policy_importance, config.policy_importance_learns);
  options.precision = precision_of(config);
  options.plan_every = static_cast<std::uint32_t>(config.policy_plan_every);
  options.policy = config.policy_name;
  options.policy_parameters = config.policy_parameters;
  options.prefetch_window = static_cast<std::uint32_t>(config.predictor_window);
  options.predictor = config.predictor_name;
  options.predictor_parameters = config.predictor_parameters;
  auto weights = runtime::PredictorWeights::named(config.predictor_weights);
  if (!weights) return invalid("predictor.weights: " + weights.error().what);
  options.predictor_weights = weights->tensors();
  const Bytes page_bytes =
      options.page_bytes != 0 ? options.page_bytes : options.geometry.page_bytes();
  LEHR_ASSIGN(options.tier_pages,
              tier_pages(config, instance.machine, instance.platform, page_bytes));
  const bool with_contents = config.step_contents == "kv";
  if (with_contents && instance.machine == MachineKind::kSim)
    return unsupported("step.contents: \"kv\" needs machine = \"host\" or \"cuda\", found \"sim\"");
  std::unique_ptr<runtime::Machine> machine;
  contents::HostContents* on_host = nullptr;
  contents::DeviceContents* on_device = nullptr;
  runtime::HostMachine* keeper = nullptr;
  if (instance.machine == MachineKind::kSim) {
    machine = runtime::make_sim_machine();
  } else if (instance.machine == MachineKind::kCuda) {
    LEHR_ASSIGN(machine,
                make_on_device(instance, std::move(device), options.tier_pages, faults, on_device));
  } else {
    runtime::HostMachineOptions host;
    host.platform = instance.platform;
    host.tier_pages = options.tier_pages;
    host.page_bytes = page_bytes;
    host.nvme_directory = config.nvme_path;
    host.faults = faults;
    host.movers = instance.movers;
    if (with_contents) {
      LEHR_ASSIGN(const contents::ContentsOptions kv, contents_options(config));
      LEHR_ASSIGN(auto contents, contents::HostContents::create(kv));
      LEHR_ASSIGN(auto made, runtime::make_host_machine(host, *contents));
      on_host = contents.get();
      keeper = made.get();
      machine = std::move(made);
      instance.contents = std::move(contents);
    } else {
      LEHR_ASSIGN(machine, runtime::make_host_machine(host));
    }
  }
  LEHR_ASSIGN(instance.step, runtime::Runtime::create(std::move(options), std::move(machine)));
  if (on_device != nullptr) on_device->attach(*instance.step);
  if (on_host != nullptr) on_host->attach(*instance.step, *keeper);
  return {};
}

/// The ways between host memory and files, by the store's own numbers of tiers.
std::vector<transfer::MeasuredWay> ways_of_store(const Instance& instance) {
  const auto number = [&](TierId tier) -> std::optional<TierId> {
    const std::string& name = instance.platform.tiers[tier].name;
    if (name == "host") return directory::kHostTier;
    return name == "nvme" ? std::optional(directory::kNvmeTier) : std::nullopt;
  };
  std::vector<transfer::MeasuredWay> ways;
  for (const transfer::MeasuredWay& way : instance.movers) {
    const auto from = number(way.from), to = number(way.to);
    if (from && to) ways.push_back({*from, *to, way.curve});
  }
  return ways;
}

Status open_placement_level(Instance& instance, const transfer::FaultPlan& faults) {
  const config::Config& config = instance.config;
  directory::ServiceOptions options;
  directory::CatalogOptions& catalog = options.directory.catalog;
  catalog.block_bytes = config.placement_block_bytes;
  const auto slots = [&](const config::Capacity& capacity, const char* tier,
                         const std::string& key) -> Result<std::uint32_t> {
    if (!capacity.set()) return 0U;
    const auto index = instance.platform.tier(tier);
    const Bytes total = index ? instance.platform.tiers[*index].capacity : 0;
    return pages_of(capacity, total, catalog.block_bytes, key);
  };
  LEHR_ASSIGN(catalog.slots[directory::kHostTier],
              slots(config.placement_host, "host", "placement.host"));
  LEHR_ASSIGN(catalog.slots[directory::kNvmeTier],
              slots(config.placement_nvme, "nvme", "placement.nvme"));
  if (catalog.slots[directory::kHostTier] == 0) {
    return invalid("placement.host: needed, at least one block");
  }
  catalog.most_keys = static_cast<std::uint32_t>(config.placement_keys);
  catalog.high_watermark = config.placement_high_watermark;
  catalog.low_watermark = config.placement_low_watermark;
  catalog.drop_when_busy = config.placement_when_busy == "drop";
  catalog.write_queue = static_cast<std::uint32_t>(config.placement_write_queue);
  catalog.events = config.placement_events;
  options.directory.most_jobs = static_cast<std::uint32_t>(config.placement_jobs);
  options.directory.id_seed = instance.seed;
  options.directory.moves_bytes = instance.machine != MachineKind::kSim;
  options.directory.whole_claims = faults.guards(transfer::Guard::kReservation);
  if (options.directory.moves_bytes) {
    options.store.emplace();
    options.store->block_bytes = catalog.block_bytes;
    options.store->slots = catalog.slots;
    options.store->nvme_directory = config.nvme_path;
    options.store->faults = faults;
    options.store->movers = ways_of_store(instance);
    options.store->threads = static_cast<std::uint32_t>(config.placement_threads);
  }
  if (instance.machine == MachineKind::kCuda) {
    transfer::BlockLanesConfig lanes;
    lanes.device = static_cast<std::int32_t>(config.top_device);
    for (const transfer::MeasuredWay& way : instance.movers) {
      if (way.from == kHbm && instance.platform.tiers[way.to].name == "host")
        lanes.outward.push_back(way.curve);
    }
    LEHR_ASSIGN(options.store->lanes, transfer::make_block_lanes(lanes));
  }
  LEHR_ASSIGN(instance.placement, directory::Service::create(options));
  return {};
}

/// Faults of transfers need a machine that transfers: a plan that could not happen is refused.
Result<transfer::FaultPlan> faults_of(const config::Config& config, MachineKind machine) {
  auto plan = transfer::FaultPlan::parse(config.top_faults);
  if (!plan) return invalid("faults: " + plan.error().what);
  const bool files = machine == MachineKind::kCuda &&
                     (config.placement_block_bytes > 0 || config.capacity_nvme.set());
  if (!plan->faults.empty() && machine != MachineKind::kHost && !files) {
    return invalid(
        "faults: of transfers of the host machine, or of files on a GPU's; expected machine = "
        "\"host\"");
  }
  return plan;
}

}  // namespace

Result<std::shared_ptr<Instance>> open_instance(const config::Config& config, std::uint32_t seed) {
  auto instance = std::make_shared<Instance>(seed);
  instance->config = config;
  LEHR_ASSIGN(config::Profile profile, config::read_profile(config.top_profile));
  instance->movers = config::measured_ways(profile);
  std::unique_ptr<contents::KvDevice> device;
  if (config.top_machine == "cuda") {
    const TierId home = profile.platform.home;
    const runtime::KvMovers movers{config::movers_between(profile, home, kHbm),
                                   config::movers_between(profile, kHbm, home)};
    const auto ordinal = static_cast<std::int32_t>(config.top_device);
    LEHR_ASSIGN(device, runtime::make_cuda_kv_device(ordinal, movers));
    instance->machine = MachineKind::kCuda;
    if (precision_of(config))
      return unsupported("policy.precision: needs machine = \"sim\" or \"host\", found \"cuda\"");
  } else {
    instance->machine = config.top_machine == "host" ? MachineKind::kHost : MachineKind::kSim;
  }
  instance->platform = std::move(profile.platform);
  LEHR_ASSIGN(const transfer::FaultPlan faults, faults_of(config, instance->machine));
  if (config.geometry().layers > 0) LEHR_TRY(open_step_level(*instance, faults, std::move(device)));
  if (config.placement_block_bytes > 0) LEHR_TRY(open_placement_level(*instance, faults));
  if (!instance->step && !instance->placement) {
    return invalid(
        "the configuration asks for neither level: expected geometry.layers or "
        "placement.block_bytes");
  }
  return instance;
}

}  // namespace lehr::capi
