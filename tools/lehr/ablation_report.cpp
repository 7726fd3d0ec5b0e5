// SPDX-License-Identifier: Apache-2.0
// What `lehr experiment ablation` prints and writes.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "tools/lehr/ablation.hpp"
#include "tools/lehr/report.hpp"
#include "tools/lehr/table.hpp"

namespace lehr::tools::ablation {

namespace {

using nlohmann::ordered_json;
using Cells = std::vector<const Cell*>;

std::string percent(double share) { return fmt::format("{:+.1f}%", share * 100); }

/// The least of the rivals in a cell, by misses and by time.
struct Best {
  double misses = 1e300;
  double seconds = 1e300;
};
Best best_rival(const Cell& cell, const std::vector<Contestant>& all) {
  Best best;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].role != Role::kRival || !cell.by[i].played()) continue;
    best.misses = std::min(best.misses, cell.by[i].miss_share());
    best.seconds = std::min(best.seconds, cell.by[i].mean_seconds());
  }
  return best;
}

/// Half the 95 % confidence interval of a mean, by Student's t.
double half_interval(const std::vector<double>& values) {
  constexpr std::array kT = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262};
  const std::size_t n = values.size();
  if (n < 2) return 0;
  double mean = 0;
  for (const double v : values) mean += v / static_cast<double>(n);
  double squares = 0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  const double t = n - 2 < kT.size() ? kT[n - 2] : 1.96;
  return t * std::sqrt(squares / static_cast<double>(n - 1) / static_cast<double>(n));
}

/// One contestant over some cells. Ratios are geometric means of times, less one.
struct Row {
  int cells = 0;
  double misses = 0;  ///< mean share of the pages read
  double over_bound = 0, over_oracle = 0, over_rival = 0;
  double interval = 0;          ///< of over_rival, over the seeds; 0 without
  double worst = -1;            ///< over the best rival, of all cells
  int lost = 0;                 ///< cells more than 1 % over the best rival
  int more_misses = 0;          ///< cells with at least the best rival's misses
  double closed_to_min = 0;     ///< of the way from best rival to min, in misses
  double closed_to_oracle = 0;  ///< of the way from best rival to oracle, in time
  double closed_from_lru = 0;   ///< of the way from lru to oracle
};

/// Of the way from `start` to `end`, the share that `at` has gone; nothing if there is no way.
double closed(double start, double at, double end) {
  return start > end ? (start - at) / (start - end) : 0;
}

class Rows {
 public:
  explicit Rows(const Results& results)
      : all_(results.contestants),
        min_(find(all_, "min (full knowledge)")),
        lru_(find(all_, "lru")) {}

  Row of(std::size_t i, const Cells& cells) const {
    Row out;
    double rival_misses = 0, min_misses = 0, bound = 0, oracle = 0, rival = 0;
    // Of the oracle's time in each cell: cells weigh alike.
    double own_time = 0, rival_time = 0, lru_time = 0;
    std::vector<double> by_seed;
    for (const Cell* c : cells) {
      const Figures& f = c->by[i];
      if (!f.played()) continue;
      const Best best = best_rival(*c, all_);
      const double seconds = f.mean_seconds();
      ++out.cells;
      out.misses += f.miss_share();
      rival_misses += best.misses;
      if (min_ < all_.size()) min_misses += c->by[min_].miss_share();
      bound += std::log(seconds / c->bound);
      oracle += std::log(seconds / c->oracle);
      rival += std::log(seconds / best.seconds);
      out.worst = std::max(out.worst, seconds / best.seconds - 1);
      out.lost += seconds > 1.01 * best.seconds ? 1 : 0;
      out.more_misses += f.miss_share() >= best.misses ? 1 : 0;
      own_time += seconds / c->oracle;
      rival_time += best.seconds / c->oracle;
      if (lru_ < all_.size()) lru_time += c->by[lru_].mean_seconds() / c->oracle;
      by_seed.resize(std::max(by_seed.size(), f.seconds.size()), 0);
      for (std::size_t s = 0; s < by_seed.size(); ++s) {
        by_seed[s] += std::log(f.seconds[std::min(s, f.seconds.size() - 1)] / best.seconds);
      }
    }
    if (out.cells == 0) return out;
    const double n = out.cells;
    out.closed_to_min = closed(rival_misses, out.misses, min_misses);
    out.closed_to_oracle = closed(rival_time, own_time, n);
    out.closed_from_lru = closed(lru_time, own_time, n);
    out.misses /= n;
    out.over_bound = std::exp(bound / n) - 1;
    out.over_oracle = std::exp(oracle / n) - 1;
    out.over_rival = std::exp(rival / n) - 1;
    for (double& s : by_seed) s = std::exp(s / n) - 1;
    out.interval = half_interval(by_seed);
    return out;
  }

 private:
  const std::vector<Contestant>& all_;
  std::size_t min_;
  std::size_t lru_;
};

ordered_json row_json(const Contestant& c, const Row& r) {
  return {{"policy", c.label},
          {"cells", r.cells},
          {"misses", r.misses},
          {"closed_to_min", r.closed_to_min},
          {"over_bound", r.over_bound},
          {"over_oracle", r.over_oracle},
          {"over_best_rival", r.over_rival},
          {"half_interval_95", r.interval},
          {"worst_cell", r.worst},
          {"cells_above_one_percent", r.lost},
          {"cells_of_more_misses", r.more_misses},
          {"closed_to_oracle", r.closed_to_oracle},
          {"closed_to_oracle_from_lru", r.closed_from_lru}};
}

/// The cells of one capacity and profile, in the order in which they were asked for.
struct Part {
  std::string hbm, profile;
  Cells cells;
};
std::vector<Part> parts(const Results& results) {
  std::vector<Part> out;
  for (const Cell& c : results.cells) {
    auto it = std::find_if(out.begin(), out.end(),
                           [&](const Part& p) { return p.hbm == c.hbm && p.profile == c.profile; });
    if (it == out.end()) it = out.insert(out.end(), Part{c.hbm, c.profile, {}});
    it->cells.push_back(&c);
  }
  return out;
}

Cells all_cells(const Results& results) {
  Cells out;
  for (const Cell& c : results.cells) out.push_back(&c);
  return out;
}

std::string seeds_text(const Contestant& c, const Row& r) {
  return c.seeded && r.interval > 0 ? fmt::format("+-{:.2f}%", r.interval * 100) : std::string("-");
}

std::string part_table(const Results& results, const Part& part) {
  const Rows rows(results);
  Table table({"policy", "misses", "closed to min", "over bound", "over oracle", "over best rival",
               "95 %", "worst cell", "closed to oracle", "cells lost"});
  for (std::size_t i = 0; i < results.contestants.size(); ++i) {
    const Contestant& c = results.contestants[i];
    const Row r = rows.of(i, part.cells);
    if (r.cells == 0) continue;
    table.add({c.label, fmt::format("{:.4f}", r.misses), percent(r.closed_to_min),
               percent(r.over_bound), percent(r.over_oracle), percent(r.over_rival),
               seeds_text(c, r), percent(r.worst), percent(r.closed_to_oracle),
               fmt::format("{}/{}", r.lost, r.cells)});
  }
  return table.text();
}

/// How far the oracle is above the best bound, and which bound that is.
struct Certified {
  double mean = 0, most = 0;
  std::map<std::string, int> best;
};
Certified certified(const Cells& cells) {
  Certified out;
  for (const Cell* c : cells) {
    const double over = c->oracle / c->bound - 1;
    out.mean += over / static_cast<double>(cells.size());
    out.most = std::max(out.most, over);
    ++out.best[c->bound_name];
  }
  return out;
}

std::string certified_table(const Results& results) {
  Table table({"HBM", "profile", "oracle over bound", "worst cell", "target", "best bound"});
  for (const Part& part : parts(results)) {
    const Certified c = certified(part.cells);
    std::string names;
    for (const auto& [name, count] : c.best) {
      names += fmt::format("{}{} in {}", names.empty() ? "" : ", ", name, count);
    }
    table.add({part.hbm, part.profile, percent(c.mean), percent(c.most),
               part.profile == "gh200" ? "+10.0%" : "-", names});
  }
  return table.text();
}

/// Each variant against what it is a variant of, in the cells that both played.
std::string variant_table(const Results& results, ordered_json& json) {
  const auto& all = results.contestants;
  Table table({"variant", "time", "95 %", "worst cell", "best cell", "misses", "cells"});
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].role != Role::kVariant) continue;
    const std::size_t base = find(all, all[i].base);
    double time = 0, worst = -1, best = 1, misses = 0, before = 0;
    int n = 0;
    for (const Cell& c : results.cells) {
      if (!c.by[i].played() || base >= all.size() || !c.by[base].played()) continue;
      const double ratio = c.by[i].mean_seconds() / c.by[base].mean_seconds();
      time += std::log(ratio);
      worst = std::max(worst, ratio - 1);
      best = std::min(best, ratio - 1);
      misses += c.by[i].miss_share();
      before += c.by[base].miss_share();
      ++n;
    }
    if (n == 0) continue;
    const double ratio = std::exp(time / n) - 1;
    const double more = misses / before - 1;
    table.add({all[i].label, fmt::format("{:+.2f}%", ratio * 100), "-", percent(worst),
               percent(best), percent(more), fmt::format("{}", n)});
    json.push_back({{"variant", all[i].label},
                    {"of", all[i].base},
                    {"time", ratio},
                    {"worst_cell", worst},
                    {"best_cell", best},
                    {"misses", more},
                    {"cells", n}});
  }
  return table.text();
}

/// What was aimed at, beside what was reached.
struct Target {
  const char* hbm;
  double closed;
};
constexpr std::array kTargets = {Target{"5%", 0.92}, Target{"10%", 0.42}, Target{"25%", 0.25},
                                 Target{"50%", 0.15}};

std::string verdict(const Results& results, std::size_t i, ordered_json& json) {
  const Rows rows(results);
  const Contestant& who = results.contestants[i];
  Table table({"HBM", "closed to min", "target", "time over best rival", "worst cell", "target",
               "cells of more misses"});
  ordered_json by_hbm;
  for (const Target& t : kTargets) {
    Cells cells;
    for (const Cell& c : results.cells) {
      if (c.hbm == t.hbm) cells.push_back(&c);
    }
    const Row r = rows.of(i, cells);
    if (r.cells == 0) continue;
    table.add({t.hbm, percent(r.closed_to_min), percent(t.closed), percent(r.over_rival),
               percent(r.worst), "+1.0%", fmt::format("{}/{}", r.more_misses, r.cells)});
    ordered_json row = row_json(who, r);
    row["hbm"] = t.hbm;
    row["closed_to_min_target"] = t.closed;
    row["worst_cell_target"] = 0.01;
    by_hbm.push_back(std::move(row));
  }
  const Row r = rows.of(i, all_cells(results));
  json.push_back({{"policy", who.label},
                  {"by_hbm", std::move(by_hbm)},
                  {"closed_to_oracle", r.closed_to_oracle},
                  {"closed_to_oracle_target", 0.4},
                  {"closed_to_oracle_from_lru", r.closed_from_lru},
                  {"closed_to_oracle_from_lru_target", 0.8},
                  {"time_over_best_rival", r.over_rival},
                  {"half_interval_95", r.interval}});
  return fmt::format(
      "\n{} against the best rival of each cell\n{}to oracle in time, all cells: {} closed (target "
      "+40.0%), from lru {} (target +80.0%); time over the best rivals': {} ({}), more than 1 % in "
      "{} of {}\n",
      who.label, table.text(), percent(r.closed_to_oracle), percent(r.closed_from_lru),
      percent(r.over_rival), seeds_text(who, r), r.lost, r.cells);
}

/// The contestant without full knowledge whose times are least over the cells.
std::string winner(const Results& results) {
  const Rows rows(results);
  std::string best;
  double least = 1e300;
  for (std::size_t i = 0; i < results.contestants.size(); ++i) {
    const Contestant& c = results.contestants[i];
    if (c.role != Role::kOurs && c.role != Role::kRival) continue;
    const Row r = rows.of(i, all_cells(results));
    if (r.cells == 0 || r.over_rival >= least) continue;
    least = r.over_rival;
    best = c.label;
  }
  return best;
}

ordered_json cell_json(const Cell& cell, const std::vector<Contestant>& all) {
  ordered_json out{
      {"trace", cell.trace},          {"select", cell.select},       {"hbm", cell.hbm},
      {"profile", cell.profile},      {"bound_seconds", cell.bound}, {"bound", cell.bound_name},
      {"oracle_seconds", cell.oracle}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!cell.by[i].played()) continue;
    out["policies"].push_back({{"policy", all[i].label},
                               {"misses", cell.by[i].miss_share()},
                               {"seconds", cell.by[i].seconds}});
  }
  return out;
}

}  // namespace

std::string text(const Results& results) {
  std::string out;
  for (const std::string& note : results.notes) out += fmt::format("note: {}\n", note);
  for (const Part& part : parts(results)) {
    out += fmt::format(
        "\nHBM {}, {}: {} cells, geometric means; times predicted, without the warm-up\n{}",
        part.hbm, part.profile, part.cells.size(), part_table(results, part));
  }
  out += "\noracle (full knowledge) over the best certified bound\n" + certified_table(results);
  ordered_json unused;
  out += "\nvariants against what they change\n" + variant_table(results, unused);
  for (std::size_t i = 0; i < results.contestants.size(); ++i) {
    if (results.contestants[i].role == Role::kOurs) out += verdict(results, i, unused);
  }
  double cpu = 0;
  for (const double s : results.cpu_seconds) cpu += s;
  out += fmt::format(
      "\nfastest without full knowledge, geometric mean over all cells: {}\n"
      "{} cells in {:.0f} s, {:.0f} s of CPU (bounds {:.0f}, oracle {:.0f})\n",
      winner(results), results.cells.size(), results.wall_seconds, cpu,
      results.cpu_seconds[results.contestants.size()],
      results.cpu_seconds[results.contestants.size() + 1]);
  return out;
}

ordered_json json(const Arguments& arguments, const Results& results) {
  const auto& all = results.contestants;
  const Rows rows(results);
  ordered_json report{{"schema", kReportSchema},          {"lehr", LEHR_BUILD_VERSION},
                      {"experiment", "ablation"},         {"seeds", arguments.seeds},
                      {"warmup_steps", arguments.warmup}, {"wall_seconds", results.wall_seconds}};
  for (const Part& part : parts(results)) {
    const Certified c = certified(part.cells);
    ordered_json out{{"hbm", part.hbm},
                     {"profile", part.profile},
                     {"cells", part.cells.size()},
                     {"oracle_over_bound", c.mean},
                     {"oracle_over_bound_most", c.most},
                     {"best_bounds", c.best}};
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Row r = rows.of(i, part.cells);
      if (r.cells > 0) out["rows"].push_back(row_json(all[i], r));
    }
    report["summary"].push_back(std::move(out));
  }
  variant_table(results, report["variants"]);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].role == Role::kOurs) verdict(results, i, report["verdicts"]);
  }
  report["fastest_without_full_knowledge"] = winner(results);
  for (const Cell& cell : results.cells) report["cells"].push_back(cell_json(cell, all));
  for (std::size_t i = 0; i < all.size(); ++i) {
    report["cpu_seconds"][all[i].label] = results.cpu_seconds[i];
  }
  report["cpu_seconds"]["bounds"] = results.cpu_seconds[all.size()];
  report["cpu_seconds"]["oracle"] = results.cpu_seconds[all.size() + 1];
  report["notes"] = results.notes;
  return report;
}

}  // namespace lehr::tools::ablation
