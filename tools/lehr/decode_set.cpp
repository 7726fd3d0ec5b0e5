// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/decode_set.hpp"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "tools/lehr/progress.hpp"
#include "tools/lehr/report.hpp"
#include "tools/lehr/table.hpp"

namespace lehr::tools {

namespace {

Result<runtime::ReplayOptions> options_of(const Prepared& prepared, const DecodeRow& row,
                                          std::uint32_t max_steps) {
  const auto policy = parse_policy(row.policy);
  if (!policy) return Error(policy.error());
  LEHR_ASSIGN(runtime::ReplayOptions options, prepared.at(row.hbm.empty() ? "100%" : row.hbm));
  options.runtime.policy = policy->first;
  options.runtime.policy_parameters = policy->second;
  options.max_steps = max_steps;
  return options;
}

}  // namespace

Status DecodeSet::run(const Prepared& prepared, std::uint32_t max_steps) {
  for (DecodeRow& row : rows) {
    LEHR_ASSIGN(const runtime::ReplayOptions options, options_of(prepared, row, max_steps));
    ProgressBar bar(row.name);
    auto outcome = decode(prepared, options, row.how, [&](double share) { bar.show(share); });
    if (outcome) {
      row.outcome = *std::move(outcome);
      continue;
    }
    if (outcome.error().code != Code::kRefused) {
      return Error{outcome.error().code, outcome.error().reason,
                   row.name + ": " + outcome.error().what};
    }
    row.refused = outcome.error().what;
  }
  return {};
}

const DecodeRow* DecodeSet::find(const std::string& name) const {
  for (const DecodeRow& row : rows) {
    if (row.name == name) return row.outcome ? &row : nullptr;
  }
  return nullptr;
}

runtime::Calibration DecodeSet::calibrate(const Prepared& prepared,
                                          const std::vector<std::string>& names) const {
  std::vector<runtime::MeasuredLayer> layers;
  for (const std::string& name : names) {
    const DecodeRow* row = find(name);
    if (row == nullptr) continue;
    layers.insert(layers.end(), row->outcome->measured_layers.begin(),
                  row->outcome->measured_layers.end());
  }
  return runtime::calibrate(prepared.base.runtime.platform, layers);
}

std::string DecodeSet::table(const std::string& reference, const placement::Platform& calibrated,
                             Seconds bound) const {
  Table t({"policy", "HBM", "measured p50", "p99", "predicted", "step error p50, p95", "calibrated",
           "its error", "hits", "over link", "x bound", "x " + reference, "outputs"});
  const DecodeRow* base = find(reference);
  for (const DecodeRow& row : rows) {
    const std::string hbm = row.hbm.empty() ? "all" : row.hbm;
    if (!row.outcome) {
      t.add({row.name, hbm, row.refused, "", "", "", "", "", "", "", "", "", ""});
      continue;
    }
    const DecodeOutcome& o = *row.outcome;
    double over_link = 0;
    for (const auto& s : o.log->steps) {
      for (const auto& l : s.layers) over_link += l.over_link;
    }
    const auto reads = static_cast<double>(std::max<std::uint64_t>(o.result.all.reads, 1));
    const std::vector<Seconds> again = predicted_by(o, calibrated);
    const runtime::ErrorQuantiles left = runtime::relative_errors(again, o.measured);
    std::string same = "-";
    if (base != nullptr) same = o.digest == base->outcome->digest ? "equal" : "DIFFERENT";
    t.add({row.name, hbm, human_seconds(o.p50()), human_seconds(o.p99()),
           human_seconds(percentile(o.predicted, 0.5)),
           fmt::format("{:.1f} %, {:.1f} %", 100 * o.steps.median, 100 * o.steps.p95),
           human_seconds(percentile(again, 0.5)),
           fmt::format("{:.1f} %, {:.1f} %", 100 * left.median, 100 * left.p95),
           fmt::format("{:.2f} %", 100 * static_cast<double>(o.result.all.hits) / reads),
           fmt::format("{:.2f} %", 100 * over_link / reads),
           bound > 0 && !row.hbm.empty() ? fmt::format("{:.2f}", mean(o.measured) / bound) : "-",
           base == nullptr ? "-" : fmt::format("{:.3f}", o.p50() / base->outcome->p50()), same});
  }
  return t.text();
}

nlohmann::ordered_json DecodeSet::json(const Prepared& prepared) const {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const DecodeRow& row : rows) {
    nlohmann::ordered_json cell{{"name", row.name}, {"policy", row.policy}, {"hbm", row.hbm}};
    if (row.outcome) {
      runtime::ReplayOptions options = prepared.base;
      cell["figures"] = figures(row.outcome->result, options, prepared.page_bytes);
      cell["cuda"] = decode_figures(*row.outcome, options);
    } else {
      cell["refused"] = row.refused;
    }
    out.push_back(std::move(cell));
  }
  return out;
}

double disturbance(const DecodeOutcome& o) {
  std::vector<double> still, moving;
  const auto& steps = o.log->steps;
  for (std::size_t s = steps.size() - o.measured.size(); s < steps.size(); ++s) {
    for (std::size_t l = 0; l < steps[s].layers.size(); ++l) {
      const auto& r = steps[s].layers[l];
      if (r.over_link > 0) continue;
      const auto& stamps = steps[s].times.layers;
      const auto took = static_cast<double>(stamps[l + 1].begin - stamps[l].begin);
      (r.arrived + r.written > 0 ? moving : still).push_back(took);
    }
  }
  if (still.empty() || moving.empty()) return 0;
  return percentile(std::move(moving), 0.5) / percentile(std::move(still), 0.5) - 1;
}

}  // namespace lehr::tools
