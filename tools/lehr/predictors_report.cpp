// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/predictors_report.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include <fmt/core.h>

#include "tools/lehr/table.hpp"

namespace lehr::tools {

namespace {

using nlohmann::ordered_json;

constexpr std::array<const char*, kLayerGroups + 1> kGroupNames{"early", "middle", "late", "all"};

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

double change(const PredictorReplay& r) { return share(r.warm.total, r.lru.total) - 1; }
double misses(const PredictorReplay& r) {
  return share(static_cast<double>(r.warm.misses), static_cast<double>(r.warm.reads));
}
double useful_bytes(const PredictorReplay& r) {
  return static_cast<double>(r.page_bytes * r.warm.promoted_used);
}
double wasted_bytes(const PredictorReplay& r) {
  return static_cast<double>(r.page_bytes *
                             (r.warm.promoted - std::min(r.warm.promoted, r.warm.promoted_used)));
}
double step_seconds(const Trial& t, std::uint32_t warmup) {
  return share(t.seconds, t.steps + warmup);
}
double page_ns(const Trial& t) { return share(1e9 * t.seconds, static_cast<double>(t.work.pages)); }

ordered_json cells_json(const Trial& t, std::size_t budget) {
  ordered_json out;
  for (std::uint32_t k = 0; k < kTrialSteps; ++k) {
    for (std::uint32_t g = 0; g <= kLayerGroups; ++g) {
      const TrialCell& c = t.cells[k][g];
      ordered_json one{{"steps_ahead", k + 1},
                       {"layers", kGroupNames[g]},
                       {"precision", c.precision(budget)},
                       {"recall", c.recall(budget)},
                       {"brier", c.brier_score()},
                       {"calibration_error", c.calibration_error()},
                       {"pages", c.pages},
                       {"reads", c.reads}};
      for (std::size_t b = 0; g == kLayerGroups && b < c.said.size(); ++b) {
        if (c.count[b] == 0) continue;
        one["reliability"].push_back({{"pages", c.count[b]},
                                      {"mean_odds", c.said[b] / c.count[b]},
                                      {"share_read", c.came[b] / c.count[b]}});
      }
      out.push_back(std::move(one));
    }
  }
  return out;
}

/// A line for each number of steps ahead: four figures, by layers.
void print_cells(const std::vector<PredictorRow>& rows) {
  std::vector<std::string> head{"predictor", "ahead"};
  for (const char* what : {"recall", "precision", "Brier", "calibration"}) {
    for (const char* layers : kGroupNames)
      head.push_back(layers == kGroupNames[0] ? fmt::format("{}: {}", what, layers) : layers);
  }
  Table table(head);
  for (const PredictorRow& row : rows) {
    for (std::uint32_t k = 0; k < kTrialSteps; ++k) {
      std::vector<std::string> line{k == 0 ? row.predictor : "", std::to_string(k + 1)};
      const auto add = [&](auto figure) {
        for (const TrialCell& c : row.trial.cells[k])
          line.push_back(fmt::format("{:.4f}", figure(c)));
      };
      add([](const TrialCell& c) { return c.recall(0); });
      add([](const TrialCell& c) { return c.precision(0); });
      add([](const TrialCell& c) { return c.brier_score(); });
      add([](const TrialCell& c) { return c.calibration_error(); });
      table.add(std::move(line));
    }
  }
  fmt::print("{}", table.text());
}

void print_worth(const std::vector<PredictorRow>& rows, const PredictorsShape& shape) {
  std::vector<std::string> head{"predictor", "returns", "numbers", "ms/step", "ns/page"};
  for (const std::string& profile : shape.profiles) {
    for (const std::string& hbm : shape.hbm) {
      head.push_back(fmt::format("{} {}", profile, hbm));
      for (const char* more : {"misses", "useful MB", "wasted MB"}) head.emplace_back(more);
    }
  }
  Table table(head);
  for (const PredictorRow& row : rows) {
    const Trial& t = row.trial;
    std::vector<std::string> line{
        row.predictor, fmt::format("{:.4f}", share(t.fetched[0].reads, t.returns)),
        t.numbers_known ? fmt::format("{:.4f}", share(t.numbers_named, t.numbers)) : "-",
        fmt::format("{:.3f}", 1e3 * step_seconds(t, shape.warmup)),
        fmt::format("{:.1f}", page_ns(t))};
    for (const PredictorReplay& r : row.replays) {
      line.push_back(fmt::format("{:+.2f}%", 100 * change(r)));
      line.push_back(fmt::format("{:.4f}", misses(r)));
      line.push_back(fmt::format("{:.1f}", useful_bytes(r) / 1e6));
      line.push_back(fmt::format("{:.1f}", wasted_bytes(r) / 1e6));
    }
    table.add(std::move(line));
  }
  fmt::print("{}", table.text());
}

}  // namespace

ordered_json row_json(const PredictorRow& row, const PredictorsShape& shape) {
  ordered_json out{{"trace", row.trace}, {"predictor", row.predictor}};
  const Trial& t = row.trial;
  for (std::size_t p = 0; p < shape.profiles.size(); ++p) {
    ordered_json one{{"profile", shape.profiles[p]}, {"cells", cells_json(t, p)}};
    one["returns"] = {{"read_again_after_a_gap", t.returns},
                      {"named_within_budget", t.fetched[p].reads},
                      {"recall", share(t.fetched[p].reads, t.returns)},
                      {"useful_pages", t.fetched[p].reads},
                      {"wasted_pages", t.fetched[p].pages - t.fetched[p].reads}};
    if (t.numbers_known) one["number_pages_recall"] = share(t.numbers_named, t.numbers);
    one["cpu_seconds_per_step"] = step_seconds(t, shape.warmup);
    one["cpu_ns_per_page"] = page_ns(t);
    one["flops_per_page"] =
        share(static_cast<double>(t.work.flops), static_cast<double>(t.work.pages));
    out["judged"].push_back(std::move(one));
  }
  for (const PredictorReplay& r : row.replays) {
    out["replays"].push_back({{"profile", r.profile},
                              {"hbm", r.hbm},
                              {"policy", "table"},
                              {"predicted_seconds", r.warm.total},
                              {"lru_predicted_seconds", r.lru.total},
                              {"change_to_lru", change(r)},
                              {"miss_share", misses(r)},
                              {"prefetch_useful_bytes", useful_bytes(r)},
                              {"prefetch_wasted_bytes", wasted_bytes(r)}});
  }
  return out;
}

void print_trace(const std::string& trace, const std::vector<PredictorRow>& rows,
                 const PredictorsShape& shape) {
  fmt::print("\n{}\n", trace);
  print_cells(rows);
  fmt::print("\n");
  print_worth(rows, shape);
  std::fflush(stdout);
}

void print_mean(const std::vector<PredictorRow>& rows, const PredictorsShape& shape) {
  std::vector<std::string> head{"mean of the traces", "recall", "returns", "Brier", "ns/page"};
  for (const std::string& profile : shape.profiles) {
    for (const std::string& hbm : shape.hbm) head.push_back(fmt::format("{} {}", profile, hbm));
  }
  fmt::print("\n");
  Table table(head);
  for (const std::string& name : shape.predictors) {
    double n = 0, recall = 0, returns = 0, brier = 0, ns = 0;
    std::vector<double> changes(shape.profiles.size() * shape.hbm.size(), 0);
    for (const PredictorRow& row : rows) {
      if (row.predictor != name) continue;
      const Trial& t = row.trial;
      ++n;
      recall += t.cells[0][kLayerGroups].recall(0);
      brier += t.cells[0][kLayerGroups].brier_score();
      returns += share(t.fetched[0].reads, t.returns);
      ns += page_ns(t);
      for (std::size_t i = 0; i < row.replays.size(); ++i) changes[i] += change(row.replays[i]);
    }
    std::vector<std::string> line{name, fmt::format("{:.4f}", recall / n),
                                  fmt::format("{:.4f}", returns / n),
                                  fmt::format("{:.5f}", brier / n), fmt::format("{:.1f}", ns / n)};
    for (const double c : changes) line.push_back(fmt::format("{:+.2f}%", 100 * c / n));
    table.add(std::move(line));
  }
  fmt::print("{}", table.text());
}

void print_legend(const PredictorsShape& shape, std::string_view trained_on) {
  fmt::print(
      "\nrecall, precision: of the pages that a step reads, 1 to 3 steps ahead, among as many of "
      "the "
      "likeliest\nas the step before read and the hidden-miss budget of {} more; calibration: mean "
      "distance of odds and share read;\nreturns: of the pages that were not read in the step "
      "before, among the budget's likeliest; numbers: recall of pages\nwhose tokens hold digits; "
      "ms/step: CPU time; profile and HBM: predicted time with policy table fed by the predictor, "
      "against lru,\nand what it fetched ahead that was read or never was. Trained models learnt "
      "from: {}\n",
      shape.profiles.front(), trained_on);
}

}  // namespace lehr::tools
