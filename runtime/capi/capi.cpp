// SPDX-License-Identifier: Apache-2.0
// The runtime as a whole: version, opening, description, statistics.
#include <algorithm>

#include <fmt/format.h>

#include "kernels/base/check.hpp"
#include "runtime/capi/boundary.hpp"

namespace lehr::capi {
namespace {

template <std::size_t N>
void copy_name(char (&out)[N], const std::string& name) {
  std::memset(out, 0, N);
  std::memcpy(out, name.data(), std::min(name.size(), N - 1));
}

Result<config::Config> read_options(const lehr_open_options& options) {
  if (options.flags != 0) return invalid("options.flags: expected 0");
  if (options.config != nullptr && options.config_path != nullptr) {
    return invalid("options: give either config or config_path, not both");
  }
  if (options.config_path != nullptr) return config::read_config(options.config_path);
  if (options.config == nullptr) return invalid("options: neither config nor config_path is given");
  return config::parse_config({options.config, options.config_size}, "<config>");
}

struct StatRow {
  lehr_stat_info info;
  std::uint64_t directory::Stats::*placement;
  std::uint64_t runtime::StepReport::*step;
  double (*seconds)(const runtime::StepReport&);
};

// One list of all statistics: those of the placement level, then those of the step level.
const std::vector<StatRow>& stat_rows() {
  static const std::vector<StatRow> rows = [] {
    std::vector<StatRow> all;
    const auto info = [](int32_t type, const char* name, const char* unit, const char* help) {
      lehr_stat_info i{};
      i.type = type;
      i.name = name;
      i.unit = unit;
      i.help = help;
      return i;
    };
#define LEHR_STAT(name, unit, help)                                                                \
  all.push_back({info(LEHR_STAT_COUNTER, "placement_" #name, unit, help), &directory::Stats::name, \
                 nullptr, nullptr});
#define LEHR_GAUGE(name, unit, help)                                                             \
  all.push_back({info(LEHR_STAT_GAUGE, "placement_" #name, unit, help), &directory::Stats::name, \
                 nullptr, nullptr});
#include "runtime/directory/stats.def"
#undef LEHR_STAT
#undef LEHR_GAUGE
#define LEHR_STEP_COUNT(name, unit, help)                                     \
  all.push_back({info(LEHR_STAT_COUNTER, "step_" #name, unit, help), nullptr, \
                 &runtime::StepReport::name, nullptr});
#define LEHR_STEP_SECONDS(field, member, statistic, help)                                       \
  all.push_back({info(LEHR_STAT_SECONDS, "step_" statistic, "seconds", help), nullptr, nullptr, \
                 [](const runtime::StepReport& r) { return r.member; }});
#include "runtime/step_report.def"
    return all;
  }();
  return rows;
}

}  // namespace
}  // namespace lehr::capi

using namespace lehr;
using namespace lehr::capi;

extern "C" {

uint32_t lehr_version(void) { return LEHR_VERSION; }

size_t lehr_last_error(char* buffer, size_t size) {
  size_t needed = 0;
  // A buffer that cannot be written is no new error: that would replace the one asked for.
  (void)copy_text(last_error(), buffer, buffer == nullptr ? 0 : size, &needed);
  return needed;
}

lehr_status lehr_build_info(char* buffer, size_t size, size_t* needed) {
  return boundary([&]() -> Status {
    const std::string text =
        fmt::format(R"({{"version":"{}.{}.{}","cuda":{},"io_uring":{},"checks":{}}})",
                    LEHR_VERSION_MAJOR, LEHR_VERSION_MINOR, LEHR_VERSION_PATCH,
#ifdef LEHR_HAVE_CUDA
                    true,
#else
                    false,
#endif
#ifdef LEHR_HAVE_URING
                    true,
#else
                    false,
#endif
                    LEHR_CHECKS);
    return copy_text(text, buffer, size, needed);
  });
}

lehr_status lehr_open(uint32_t version, const lehr_open_options* options, lehr_runtime* out) {
  return boundary([&]() -> Status {
    LEHR_TRY(not_null(out, "out"));
    Registry* const registry = Registry::get();
    if (registry == nullptr) return forked();
    LEHR_TRY(check_version(version));
    LEHR_ASSIGN(const lehr_open_options given, read_struct(options, "options"));
    LEHR_ASSIGN(const config::Config config, read_options(given));
    LEHR_ASSIGN(auto instance, open_instance(config, registry->next_seed()));
    out->id = registry->add(instance);
    return {};
  });
}

lehr_status lehr_close(lehr_runtime runtime) {
  return boundary([&]() -> Status {
    Registry* const registry = Registry::get();
    if (registry == nullptr) return forked();
    LEHR_ASSIGN(auto instance, registry->remove(runtime.id));
    instance.reset();  // here, unless another thread's call still uses it
    return {};
  });
}

lehr_status lehr_runtime_describe(lehr_runtime runtime, lehr_runtime_info* out) {
  return with_runtime(runtime, [&](Instance& instance) -> Status {
    LEHR_ASSIGN(const std::uint32_t size, check_size(out, "out"));
    lehr_runtime_info info{};
    info.machine = static_cast<int32_t>(instance.machine);
    info.has_step_level = instance.step ? 1 : 0;
    info.has_placement_level = instance.placement ? 1 : 0;
    const KvGeometry geometry = instance.config.geometry();
    info.layers = geometry.layers;
    info.kv_heads = geometry.kv_heads;
    info.q_heads = geometry.q_heads;
    info.head_dim = geometry.head_dim;
    info.page_tokens = geometry.page_tokens;
    info.tiers = static_cast<uint32_t>(instance.platform.tiers.size());
    info.links = static_cast<uint32_t>(instance.platform.links.size());
    info.page_bytes = instance.step ? instance.step->page_bytes() : 0;
    info.block_bytes = instance.config.placement_block_bytes;
    write_struct(out, size, info);
    return {};
  });
}

lehr_status lehr_tier_describe(lehr_runtime runtime, uint32_t index, lehr_tier_info* out) {
  return with_runtime(runtime, [&](Instance& instance) -> Status {
    LEHR_ASSIGN(const std::uint32_t size, check_size(out, "out"));
    if (index >= instance.platform.tiers.size()) {
      return invalid(fmt::format("tier {} of {}", index, instance.platform.tiers.size()),
                     Reason::kOutOfRange);
    }
    lehr_tier_info info{};
    copy_name(info.name, instance.platform.tiers[index].name);
    info.directly_readable = instance.platform.tiers[index].directly_readable ? 1 : 0;
    if (instance.step) {
      const std::lock_guard<std::mutex> hold(instance.step_mutex);
      const auto& slots = instance.step->table().slots(static_cast<TierId>(index));
      info.capacity_pages = slots.capacity();
      info.used_pages = slots.used();
    }
    write_struct(out, size, info);
    return {};
  });
}

lehr_status lehr_link_describe(lehr_runtime runtime, uint32_t index, lehr_link_info* out) {
  return with_runtime(runtime, [&](Instance& instance) -> Status {
    LEHR_ASSIGN(const std::uint32_t size, check_size(out, "out"));
    if (index >= instance.platform.links.size()) {
      return invalid(fmt::format("link {} of {}", index, instance.platform.links.size()),
                     Reason::kOutOfRange);
    }
    const placement::Link& link = instance.platform.links[index];
    lehr_link_info info{};
    copy_name(info.name, link.name);
    info.from = link.from;
    info.to = link.to;
    info.peak_bytes_per_second = link.curve.peak();
    write_struct(out, size, info);
    return {};
  });
}

lehr_status lehr_notes(lehr_runtime runtime, char* buffer, size_t size, size_t* needed) {
  return with_runtime(runtime, [&](Instance& instance) -> Status {
    std::string text;
    if (instance.step) {
      const std::lock_guard<std::mutex> hold(instance.step_mutex);
      for (const std::string& line : instance.step->machine().notes()) text += line + '\n';
    }
    if (instance.placement) {
      for (const std::string& line : instance.placement->notices()) text += line + '\n';
      const auto advice =
          instance.placement->with([](directory::Directory& d) { return d.advice(); });
      for (const std::string& line : advice) text += line + '\n';
    }
    return copy_text(text, buffer, size, needed);
  });
}

lehr_status lehr_stat_describe(uint32_t index, lehr_stat_info* out) {
  return boundary([&]() -> Status {
    LEHR_ASSIGN(const std::uint32_t size, check_size(out, "out"));
    if (index >= stat_rows().size()) {
      return invalid(fmt::format("statistic {} of {}", index, stat_rows().size()),
                     Reason::kOutOfRange);
    }
    write_struct(out, size, stat_rows()[index].info);
    return {};
  });
}

lehr_status lehr_stats_read(lehr_runtime runtime, lehr_stat_value* values, size_t capacity,
                            size_t* count) {
  return with_runtime(runtime, [&](Instance& instance) -> Status {
    LEHR_TRY(not_null(count, "count"));
    LEHR_ASSIGN(const auto out, StructArray<lehr_stat_value>::of(values, capacity, "values"));
    directory::Stats placement;
    if (instance.placement) {
      placement = instance.placement->with([](directory::Directory& d) { return d.stats(); });
    }
    runtime::StepReport step;
    if (instance.step) {
      const std::lock_guard<std::mutex> hold(instance.step_mutex);
      step = instance.step->totals();
    }
    const auto& rows = stat_rows();
    for (std::size_t i = 0; i < std::min(out.size(), rows.size()); ++i) {
      lehr_stat_value value{};
      value.type = rows[i].info.type;
      if (rows[i].placement != nullptr) value.count = placement.*rows[i].placement;
      if (rows[i].step != nullptr) value.count = step.*rows[i].step;
      if (rows[i].seconds != nullptr) value.seconds = rows[i].seconds(step);
      out.write(i, value);
    }
    *count = rows.size();
    return {};
  });
}

}  // extern "C"
