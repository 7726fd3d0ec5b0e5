// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "kernels/base/registry.hpp"
#include "kernels/base/result.hpp"

namespace lehr::tools::ablation {

/// What `lehr experiment ablation` is asked for.
struct Arguments {
  std::vector<std::string> traces;
  std::vector<std::string> hbm = {"5%", "10%", "25%", "50%"};
  std::vector<std::string> select = {"mass:0.95", "topk:10%"};
  std::vector<std::string> profiles = {"gh200", "h200-pcie5"};
  std::uint32_t seeds = 5;
  std::uint32_t mixed = 8;
  std::uint32_t stagger = 12;
  std::uint32_t warmup = 16;
  std::string json;
};

enum class Role : std::uint8_t {
  kRival,          ///< without full knowledge and not ours: what the best of a cell is chosen from
  kOurs,           ///< without full knowledge, made for this
  kVariant,        ///< of another contestant, `base`, with one feature off or changed
  kFullKnowledge,  ///< an oracle or upper estimate, no product
};

/// A policy with parameters that takes part.
struct Contestant {
  std::string label;
  std::string policy;
  Parameters parameters{};
  Role role = Role::kRival;
  bool seeded = false;  ///< draws: runs once for each seed
  Parameters predictor{};
  bool write_back_once = true;
  std::string base{};  ///< of a variant: the label of what it is compared with
  bool blind = false;  ///< decides alike on every platform: replayed once for all of them
  /// Played under the first selection rule and in single sequences only: time. Variants are.
  bool narrow = false;
  bool once = false;  ///< and on the first profile only
};

/// All policies of the build but `unlimited`, then the variants.
std::vector<Contestant> contestants();
std::size_t find(const std::vector<Contestant>& all, const std::string& label);

/// One contestant in one cell, without the warm-up.
struct Figures {
  double misses = 0;  ///< sums over the seeds
  double reads = 0;
  std::vector<double> seconds;  ///< predicted, by seed

  bool played() const { return !seconds.empty(); }
  double miss_share() const { return misses / reads; }
  double mean_seconds() const;
};

/// One trace (or the mixed batch) under one rule, capacity and profile.
struct Cell {
  std::string trace, select, hbm, profile;
  bool mixed = false;
  std::vector<Figures> by;  ///< by contestant
  double bound = 0;         ///< seconds, the best of the bounds
  std::string bound_name;
  double oracle = 0;
  std::optional<Error> failed;
};

struct Results {
  std::vector<Contestant> contestants;
  std::vector<Cell> cells;
  std::vector<double> cpu_seconds;  ///< by contestant, then bounds, then oracle
  double wall_seconds = 0;
  std::vector<std::string> notes;
};

/// Plays everything, on as many threads as there are cores. Each selection is computed once, each
/// instance is built once for bound and oracle, and a policy that cannot see the platform is
/// replayed once for all profiles.
Result<Results> play(const Arguments& arguments, const std::function<void(double)>& progress);

/// The tables, for people. They say what was predicted and what has full knowledge.
std::string text(const Results& results);
/// The same and every cell.
nlohmann::ordered_json json(const Arguments& arguments, const Results& results);

}  // namespace lehr::tools::ablation
