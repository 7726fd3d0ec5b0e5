// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tools/lehr/decode_run.hpp"

namespace CLI {
class App;
}

namespace lehr::tools {

/// One line of a comparison on a GPU.
struct DecodeRow {
  std::string name;
  std::string policy;  ///< as on the command line
  DecodeOptions how;
  std::string hbm;  ///< capacity; empty: all pages fit
  std::optional<DecodeOutcome> outcome;
  std::string refused;  ///< why there is none
};

/// Policies side by side on one GPU, in one process: the same kernels, pages, selection and
/// profile.
struct DecodeSet {
  std::vector<DecodeRow> rows;

  /// Runs each row; one that cannot run says why and the others go on. kUnsupported where the
  /// machine itself is not to be had.
  Status run(const Prepared& prepared, std::uint32_t max_steps);
  const DecodeRow* find(const std::string& name) const;
  /// The profile fitted to the layers of these rows together: others are then predicted by what
  /// they were not part of.
  runtime::Calibration calibrate(const Prepared& prepared,
                                 const std::vector<std::string>& names) const;
  /// A table for people: measured and predicted step, errors, hits, exposed time, equal outputs.
  /// `bound`: seconds a step that no policy can go below at the rows' capacity; 0: not known.
  std::string table(const std::string& reference, const placement::Platform& calibrated,
                    Seconds bound) const;
  nlohmann::ordered_json json(const Prepared& prepared) const;
};

/// What a layer takes longer while pages move beside it and none is read over the link: median of
/// such layers over that of layers without either. 0 where either is missing.
double disturbance(const DecodeOutcome& outcome);

}  // namespace lehr::tools
