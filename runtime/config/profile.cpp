// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/profile.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "runtime/config/toml_document.hpp"

namespace lehr::config {

using placement::Link;
using placement::Platform;
using placement::SharedMedium;
using placement::Tier;

namespace {

// Wide enough for any machine to come, narrow enough to catch a wrong unit.
constexpr Range kGbps{1e-6, 1e6};
constexpr Range kMicroseconds{0, 1e6};
constexpr double kLargestAxis = 1e15;

template <class T>
Result<T> required(const TomlTable& table, std::string_view key, Result<std::optional<T>> value) {
  if (!value) return std::move(value).error();
  if (!value->has_value()) return table.error(key, "missing");
  return std::move(**value);
}

Status rising(const TomlTable& table, std::string_view key, const std::vector<double>& axis) {
  for (std::size_t i = 1; i < axis.size(); ++i) {
    if (axis[i] <= axis[i - 1]) {
      return table.error(key, fmt::format("item {}: expected more than {}, found {}", i + 1,
                                          axis[i - 1], axis[i]));
    }
  }
  return {};
}

// `gbps = 55` for one number, or `[….curve]` with sizes, counts and a grid gbps[size][count].
Result<BandwidthCurve> read_curve(TomlTable& owner) {
  LEHR_ASSIGN(auto curve, owner.table("curve"));
  LEHR_ASSIGN(const auto flat, owner.number("gbps", kGbps));
  if (flat && curve) return owner.error("gbps", "give either gbps or a curve, not both");
  if (flat) return BandwidthCurve(*flat * kGB);
  if (!curve) return owner.error("gbps", "missing: a bandwidth in GB/s, or a curve");
  LEHR_ASSIGN(auto sizes, required(*curve, "sizes", curve->numbers("sizes", {1, kLargestAxis})));
  LEHR_ASSIGN(auto counts, required(*curve, "counts", curve->numbers("counts", {1, kLargestAxis})));
  LEHR_ASSIGN(const auto grid, required(*curve, "gbps", curve->grid("gbps", kGbps)));
  LEHR_TRY(curve->finish());
  LEHR_TRY(rising(*curve, "sizes", sizes));
  LEHR_TRY(rising(*curve, "counts", counts));
  if (grid.size() != sizes.size() || grid.front().size() != counts.size()) {
    return curve->error(
        "gbps", fmt::format("expected {} rows (sizes) of {} numbers (counts), found {} of {}",
                            sizes.size(), counts.size(), grid.size(), grid.front().size()));
  }
  std::vector<double> values;
  for (const auto& row : grid) {
    for (const double gbps : row) values.push_back(gbps * kGB);
  }
  return BandwidthCurve(std::move(sizes), std::move(counts), std::move(values));
}

Result<TierId> tier_named(const Platform& platform, const TomlTable& table, std::string_view key,
                          const std::string& name) {
  if (const auto found = platform.tier(name)) return *found;
  std::string names;
  for (const Tier& tier : platform.tiers) names += (names.empty() ? "" : ", ") + tier.name;
  return table.error(key, fmt::format("expected a tier ({}), found \"{}\"", names, name));
}

Status read_tiers(TomlTable& root, Platform& platform) {
  LEHR_ASSIGN(auto tables, root.tables("tier"));
  if (tables.size() < 2 || tables.size() > kMaxTiers) {
    return root.error("tier", fmt::format("expected 2 to {} tiers, hbm first, found {}", kMaxTiers,
                                          tables.size()));
  }
  for (TomlTable& table : tables) {
    Tier tier;
    LEHR_ASSIGN(tier.name, required(table, "name", table.text("name")));
    if (tier.name.empty()) return table.error("name", "expected a name, found \"\"");
    if (platform.tier(tier.name)) {
      return table.error("name", fmt::format("a second tier \"{}\"", tier.name));
    }
    if (platform.tiers.empty() && tier.name != "hbm") {
      return table.error("name",
                         fmt::format("the first tier must be \"hbm\", found \"{}\"", tier.name));
    }
    LEHR_ASSIGN(tier.capacity, required(table, "capacity", table.bytes("capacity", 1)));
    LEHR_ASSIGN(const auto direct, table.boolean("directly_readable"));
    tier.directly_readable = direct.value_or(false);
    if (platform.tiers.empty()) {
      LEHR_ASSIGN(platform.hbm, read_curve(table));
    }
    LEHR_TRY(table.finish());
    platform.tiers.push_back(std::move(tier));
  }
  return {};
}

Status read_links(TomlTable& root, Platform& platform) {
  LEHR_ASSIGN(auto tables, root.tables("link"));
  if (tables.size() > placement::kMaxLinks) {
    return root.error("link", fmt::format("expected at most {} links, found {}",
                                          placement::kMaxLinks, tables.size()));
  }
  for (TomlTable& table : tables) {
    Link link;
    LEHR_ASSIGN(link.name, required(table, "name", table.text("name")));
    for (const Link& other : platform.links) {
      if (other.name == link.name) {
        return table.error("name", fmt::format("a second link \"{}\"", link.name));
      }
    }
    LEHR_ASSIGN(const auto from, required(table, "from", table.text("from")));
    LEHR_ASSIGN(const auto to, required(table, "to", table.text("to")));
    LEHR_ASSIGN(link.from, tier_named(platform, table, "from", from));
    LEHR_ASSIGN(link.to, tier_named(platform, table, "to", to));
    if (link.from == link.to) return table.error("to", "expected another tier than from");
    if (platform.link(link.from, link.to) != placement::kNoLink) {
      return table.error("to", fmt::format("a second link from {} to {}", from, to));
    }
    LEHR_ASSIGN(const auto latency, table.number("latency_us", kMicroseconds));
    link.latency = latency.value_or(0) * 1e-6;
    LEHR_ASSIGN(link.curve, read_curve(table));
    LEHR_TRY(table.finish());
    platform.links.push_back(std::move(link));
  }
  return {};
}

Status read_shared(TomlTable& root, Platform& platform) {
  LEHR_ASSIGN(auto tables, root.tables("shared"));
  for (TomlTable& table : tables) {
    LEHR_ASSIGN(const auto names, required(table, "links", table.texts("links")));
    LEHR_ASSIGN(const double gbps, required(table, "gbps", table.number("gbps", kGbps)));
    LEHR_TRY(table.finish());
    SharedMedium medium;
    medium.bytes_per_second = gbps * kGB;
    if (names.size() != 2 || names[0] == names[1]) {
      return table.error("links",
                         fmt::format("expected the names of two links, found {}", names.size()));
    }
    for (std::size_t i = 0; i < 2; ++i) {
      LinkId id = placement::kNoLink;
      for (std::size_t l = 0; l < platform.links.size(); ++l) {
        if (platform.links[l].name == names[i]) id = static_cast<LinkId>(l);
      }
      if (id == placement::kNoLink) {
        return table.error("links", fmt::format("no link is named \"{}\"", names[i]));
      }
      (i == 0 ? medium.first : medium.second) = id;
    }
    platform.shared.push_back(medium);
  }
  return {};
}

Status read_movers(TomlTable& root, const Platform& platform,
                   std::vector<transfer::MoverCurve>& movers) {
  LEHR_ASSIGN(auto tables, root.tables("mover"));
  for (TomlTable& table : tables) {
    transfer::MoverCurve mover;
    LEHR_ASSIGN(mover.link, required(table, "link", table.text("link")));
    LEHR_ASSIGN(mover.mover, required(table, "name", table.text("name")));
    LEHR_ASSIGN(const auto run, table.number("run_pages", {1, kLargestAxis}));
    LEHR_ASSIGN(const auto latency, table.number("latency_us", kMicroseconds));
    mover.run_pages = run.value_or(1);
    mover.latency = latency.value_or(0) * 1e-6;
    LEHR_ASSIGN(mover.curve, read_curve(table));
    LEHR_TRY(table.finish());
    const bool known = std::any_of(platform.links.begin(), platform.links.end(),
                                   [&](const Link& link) { return link.name == mover.link; });
    if (!known) return table.error("link", fmt::format("no link is named \"{}\"", mover.link));
    for (const transfer::MoverCurve& other : movers) {
      if (other.link == mover.link && other.mover == mover.mover &&
          other.run_pages == mover.run_pages) {
        return table.error("name", fmt::format("a second \"{}\" on {} for runs of {} pages",
                                               mover.mover, mover.link, mover.run_pages));
      }
    }
    movers.push_back(std::move(mover));
  }
  return {};
}

Status read_platform(TomlTable& root, Platform& platform) {
  LEHR_ASSIGN(auto table, required(root, "platform", root.table("platform")));
  LEHR_ASSIGN(platform.name, required(table, "name", table.text("name")));
  LEHR_ASSIGN(const double tflops, required(table, "tflops", table.number("tflops", {1e-6, 1e6})));
  platform.flops = tflops * 1e12;
  LEHR_ASSIGN(const double control, required(table, "control_us_per_layer",
                                             table.number("control_us_per_layer", kMicroseconds)));
  platform.control_per_layer = control * 1e-6;
  LEHR_ASSIGN(const auto home, required(table, "home", table.text("home")));
  LEHR_TRY(table.finish());
  LEHR_TRY(read_tiers(root, platform));
  LEHR_TRY(read_links(root, platform));
  LEHR_TRY(read_shared(root, platform));
  LEHR_ASSIGN(platform.home, tier_named(platform, table, "home", home));
  const Status usable = platform.validate();
  if (!usable) return table.error("home", usable.error().what);
  return {};
}

Status read_gpu(TomlTable& root, GpuFacts& gpu) {
  LEHR_ASSIGN(auto table, root.table("gpu"));
  if (!table) return {};
  LEHR_ASSIGN(const auto sms, table->integer("sms", 1, 100000));
  LEHR_ASSIGN(const auto engines, table->integer("copy_engines", 0, 1000));
  LEHR_ASSIGN(const auto l2, table->bytes("l2", 0));
  LEHR_ASSIGN(const auto window, table->bytes("l2_persisting", 0));
  LEHR_ASSIGN(const auto peak, table->number("hbm_peak_gbps", kGbps));
  LEHR_ASSIGN(const auto kernels, table->number("kernels_us_per_layer", kMicroseconds));
  LEHR_TRY(table->finish());
  gpu.kernels_per_layer = kernels.value_or(0) * 1e-6;
  gpu.sms = static_cast<std::uint32_t>(sms.value_or(0));
  gpu.copy_engines = static_cast<std::uint32_t>(engines.value_or(0));
  gpu.l2_bytes = l2.value_or(0);
  gpu.l2_persisting_bytes = window.value_or(0);
  gpu.hbm_peak = peak.value_or(0) * kGB;
  if (gpu.l2_persisting_bytes > gpu.l2_bytes) {
    return table->error("l2_persisting", fmt::format("expected at most l2 = {} bytes, found {}",
                                                     gpu.l2_bytes, gpu.l2_persisting_bytes));
  }
  return {};
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\u{:04X}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

// Twelve digits: the conversion of units leaves noise in the last of seventeen.
std::string plain(double value) { return fmt::format("{:.12g}", value); }

std::string list(const std::vector<double>& values, std::size_t first, std::size_t count,
                 double scale) {
  std::string out = "[";
  for (std::size_t i = first; i < first + count; ++i) {
    out += (i == first ? "" : ", ") + plain(values[i] / scale);
  }
  return out + "]";
}

void write_curve(std::string& out, std::string_view path, const BandwidthCurve& curve) {
  if (curve.values().size() == 1) {
    out += fmt::format("gbps = {}\n", plain(curve.peak() / kGB));
    return;
  }
  const std::size_t columns = curve.counts().size();
  out += fmt::format("[{}.curve]\nsizes = {}\ncounts = {}\ngbps = [\n", path,
                     list(curve.sizes(), 0, curve.sizes().size(), 1),
                     list(curve.counts(), 0, columns, 1));
  for (std::size_t row = 0; row < curve.sizes().size(); ++row) {
    out += fmt::format("  {},\n", list(curve.values(), row * columns, columns, kGB));
  }
  out += "]\n";
}

}  // namespace

Result<Profile> parse_profile(std::string_view text, std::string_view file) {
  LEHR_ASSIGN(auto root, parse_toml(text, file));
  Profile profile;
  LEHR_TRY(read_platform(root, profile.platform));
  LEHR_TRY(read_movers(root, profile.platform, profile.movers));
  LEHR_TRY(read_gpu(root, profile.gpu));
  LEHR_ASSIGN(auto source, root.table("source"));
  if (source) {
    for (const std::string& key : source->keys()) {
      LEHR_ASSIGN(profile.source[key], source->fact(key));
    }
  }
  LEHR_TRY(root.finish());
  return profile;
}

std::vector<transfer::MeasuredWay> measured_ways(const Profile& profile) {
  std::vector<transfer::MeasuredWay> ways;
  for (const transfer::MoverCurve& mover : profile.movers) {
    for (const Link& link : profile.platform.links) {
      if (link.name == mover.link) ways.push_back({link.from, link.to, mover});
    }
  }
  return ways;
}

std::vector<transfer::MoverCurve> movers_between(const Profile& profile, TierId from, TierId to) {
  std::vector<transfer::MoverCurve> curves;
  for (transfer::MeasuredWay& way : measured_ways(profile)) {
    if (way.from == from && way.to == to) curves.push_back(std::move(way.curve));
  }
  return curves;
}

Result<Profile> read_profile(const std::string& name_or_path) {
  const std::vector<ProfileInfo> shipped = shipped_profiles();
  for (const ProfileInfo& info : shipped) {
    if (info.name == name_or_path) return parse_profile(info.text, "<" + info.name + ">");
  }
  const std::string suffix = ".toml";
  const bool is_path =
      name_or_path.find('/') != std::string::npos ||
      (name_or_path.size() > suffix.size() &&
       name_or_path.compare(name_or_path.size() - suffix.size(), suffix.size(), suffix) == 0);
  if (!is_path) {
    std::string names;
    for (const ProfileInfo& info : shipped) names += (names.empty() ? "" : ", ") + info.name;
    return not_found(fmt::format("no profile '{}': expected one of {}, or a path to a .toml file",
                                 name_or_path, names));
  }
  LEHR_ASSIGN(const std::string text, read_text_file(name_or_path));
  return parse_profile(text, name_or_path);
}

Result<Platform> load_profile(const std::string& name_or_path) {
  LEHR_ASSIGN(Profile profile, read_profile(name_or_path));
  return std::move(profile.platform);
}

std::string write_profile(const Profile& profile) {
  const Platform& p = profile.platform;
  std::string out = fmt::format(
      "# Lehr platform profile\n\n[platform]\nname = {}\ntflops = {}\ncontrol_us_per_layer = "
      "{}\nhome = {}\n",
      quoted(p.name), plain(p.flops / 1e12), plain(p.control_per_layer * 1e6),
      quoted(p.tiers[p.home].name));
  if (!profile.source.empty()) {
    out += "\n[source]\n";
    for (const auto& [key, value] : profile.source) {
      out += fmt::format("{} = {}\n", quoted(key), quoted(value));
    }
  }
  const GpuFacts& gpu = profile.gpu;
  if (gpu.sms != 0 || gpu.l2_bytes != 0 || gpu.copy_engines != 0 || gpu.hbm_peak > 0 ||
      gpu.kernels_per_layer > 0) {
    out += "\n[gpu]\n";
    if (gpu.sms != 0) out += fmt::format("sms = {}\n", gpu.sms);
    if (gpu.copy_engines != 0) out += fmt::format("copy_engines = {}\n", gpu.copy_engines);
    if (gpu.l2_bytes != 0) out += fmt::format("l2 = {}\n", gpu.l2_bytes);
    if (gpu.l2_persisting_bytes != 0)
      out += fmt::format("l2_persisting = {}\n", gpu.l2_persisting_bytes);
    if (gpu.hbm_peak > 0) out += fmt::format("hbm_peak_gbps = {}\n", plain(gpu.hbm_peak / kGB));
    if (gpu.kernels_per_layer > 0)
      out += fmt::format("kernels_us_per_layer = {}\n", plain(gpu.kernels_per_layer * 1e6));
  }
  for (std::size_t i = 0; i < p.tiers.size(); ++i) {
    out += fmt::format("\n[[tier]]\nname = {}\ncapacity = {}\ndirectly_readable = {}\n",
                       quoted(p.tiers[i].name), p.tiers[i].capacity, p.tiers[i].directly_readable);
    if (i == kHbm) write_curve(out, "tier", p.hbm);
  }
  for (const Link& link : p.links) {
    out += fmt::format("\n[[link]]\nname = {}\nfrom = {}\nto = {}\nlatency_us = {}\n",
                       quoted(link.name), quoted(p.tiers[link.from].name),
                       quoted(p.tiers[link.to].name), plain(link.latency * 1e6));
    write_curve(out, "link", link.curve);
  }
  for (const SharedMedium& medium : p.shared) {
    out += fmt::format("\n[[shared]]\nlinks = [{}, {}]\ngbps = {}\n",
                       quoted(p.links[medium.first].name), quoted(p.links[medium.second].name),
                       plain(medium.bytes_per_second / kGB));
  }
  for (const transfer::MoverCurve& mover : profile.movers) {
    out += fmt::format("\n[[mover]]\nlink = {}\nname = {}\nrun_pages = {}\nlatency_us = {}\n",
                       quoted(mover.link), quoted(mover.mover), plain(mover.run_pages),
                       plain(mover.latency * 1e6));
    write_curve(out, "mover", mover.curve);
  }
  return out;
}

}  // namespace lehr::config
