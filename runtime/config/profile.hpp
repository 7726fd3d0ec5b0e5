// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/result.hpp"
#include "placement/model.hpp"
#include "transfer/mover_choice.hpp"

namespace lehr::config {

/// What a profile says of the GPU beside the machine model: facts for kernels and reports. 0:
/// unknown.
struct GpuFacts {
  std::uint32_t sms = 0;
  std::uint32_t copy_engines = 0;
  Bytes l2_bytes = 0;
  Bytes l2_persisting_bytes = 0;  ///< most that an access-policy window may set aside
  double hbm_peak = 0;            ///< bytes/s of the data sheet; Platform::hbm is what is reached
  /// What a layer of this project's own kernels takes beside moving bytes: their starts and ends,
  /// not their launches alone. Stands in for Platform::control_per_layer where they run.
  Seconds kernels_per_layer = 0;
};

/// A platform profile: the machine model, what each mover was measured to do on each link, the
/// GPU's facts, and free-form facts about where it came from.
struct Profile {
  placement::Platform platform;
  std::vector<transfer::MoverCurve> movers;  ///< of the platform's links; what an engine goes by
  GpuFacts gpu;
  std::map<std::string, std::string> source;
};

/// What the profile says of the movers of each way, for an engine whose tiers are the platform's.
std::vector<transfer::MeasuredWay> measured_ways(const Profile& profile);
/// Of the way from one tier to another alone.
std::vector<transfer::MoverCurve> movers_between(const Profile& profile, TierId from, TierId to);

/// One profile of the build.
struct ProfileInfo {
  std::string name;
  std::string summary;
  std::string text;  ///< the TOML itself, comments included
};

/// The profiles embedded in this build, by name.
std::vector<ProfileInfo> shipped_profiles();

/// Parses a profile; `file` names it in errors. Every error names file, line, column, key and
/// range.
Result<Profile> parse_profile(std::string_view text, std::string_view file);

/// A shipped profile by name, or a file: anything with a '/' or ending in ".toml" is a path.
Result<Profile> read_profile(const std::string& name_or_path);

/// Only the machine model of read_profile().
Result<placement::Platform> load_profile(const std::string& name_or_path);

/// A profile as TOML. parse_profile() of it gives the same profile.
std::string write_profile(const Profile& profile);

}  // namespace lehr::config
