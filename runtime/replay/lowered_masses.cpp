// SPDX-License-Identifier: Apache-2.0
#include "runtime/replay/lowered_masses.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

namespace lehr::runtime {

namespace {

double lowered_share(const StepReport& r) {
  return r.mass_seen == 0 ? 0.0
                          : static_cast<double>(r.mass_lowered) / static_cast<double>(r.mass_seen);
}

}  // namespace

LoweredMasses::LoweredMasses(float half_life)
    : kept_(std::exp2(-1.0 / static_cast<double>(half_life))) {}

void LoweredMasses::note(const StepReport& r, LoweringResult& out) {
  seen_ = kept_ * seen_ + static_cast<double>(r.mass_seen);
  lowered_ = kept_ * lowered_ + static_cast<double>(r.mass_lowered);
  out.most_mass = std::max(out.most_mass, lowered_share(r));
  if (seen_ > 0) out.most_decayed_mass = std::max(out.most_decayed_mass, lowered_ / seen_);
}

Status note_lowering(const RuntimeOptions& options, const KvGeometry& geometry,
                     ReplayResult& result) {
  if (!result.lowering) return {};
  const Bytes full = options.page_bytes != 0 ? options.page_bytes : geometry.page_bytes();
  LEHR_ASSIGN(const Bytes lowered, lowered_page_bytes(*options.precision, geometry, full));
  const StepReport& r = result.all;
  LoweringResult& l = *result.lowering;
  l.saved_a_page = full - lowered;
  l.saved_to_hbm = l.saved_a_page * r.lowered_crossings;
  l.saved_in_hbm = l.saved_a_page * r.lowered_hits;
  l.written_home = lowered * r.lowered;
  l.mean_mass = lowered_share(r);
  LEHR_ASSIGN(const auto* policy, placement::find_policy(options.policy));
  if (!policy->traits.lowers) {
    result.notes.push_back(fmt::format("{} lowers no pages", result.policy));
    return {};
  }
  result.notes.push_back(fmt::format(
      "lowered {} pages to {}: {} bytes less to HBM, {} less read in it, {} written home",
      r.lowered, precision_name(options.precision), l.saved_to_hbm, l.saved_in_hbm,
      l.written_home));
  result.notes.push_back(
      fmt::format("softmax mass on lowered pages: {:.2f}% of all, at most {:.2f}% of the latest "
                  "steps' (allowed {:.2f}%), {:.2f}% of a single step's",
                  100 * l.mean_mass, 100 * l.most_decayed_mass, 100 * options.precision->mass,
                  100 * l.most_mass));
  if (l.most_decayed_mass > options.precision->mass) {
    result.notes.emplace_back(
        "that is more than allowed: lowered pages came to draw more attention than they had");
  }
  return {};
}

}  // namespace lehr::runtime
