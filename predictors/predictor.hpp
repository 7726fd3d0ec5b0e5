// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/base/exchange.hpp"
#include "kernels/base/registry.hpp"
#include "kernels/base/result.hpp"

namespace lehr::predictors {

/// One named array of trained weights, row-major. Predictors read no files: whoever does hands
/// these in.
struct Tensor {
  std::string_view name;
  std::span<const std::uint32_t> shape;
  std::span<const float> values;
};

/// What a predictor is told once, before the first layer.
struct PredictorContext {
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t page_tokens = 16;
  std::uint32_t horizon = 1;        ///< steps ahead that are wanted, 1 to kMaxHorizon
  std::span<const Tensor> weights;  ///< need not outlive begin()
  std::uint64_t seed = 0;
};

/// Refuses a model without layers or KV heads, and a horizon outside 1 to kMaxHorizon.
Status check_context(const PredictorContext& context);

struct PredictorTraits {
  bool needs_weights = false;  ///< begin() refuses without its tensors
  bool within_step = false;    ///< a layer's outcome changes the odds of later layers, too
};

/// What it did so far, counted rather than timed, so that it is the same on every machine.
struct Work {
  std::uint64_t pages = 0;  ///< page updates: pages of the layers observed
  std::uint64_t flops = 0;  ///< of networks; 0 for the others
};

/// Tells which pages the coming steps will read. One instance serves one replay or runtime; not
/// thread-safe. Called once a layer with the whole batch, never once a page. Deterministic: the
/// same calls give the same odds on every machine.
class Predictor {
 public:
  virtual ~Predictor() = default;

  /// Before everything else, once. Refuses weights of another shape, or that are no numbers.
  virtual Status begin(const PredictorContext& context) = 0;

  /// Pages that exist from now on, full and with no history.
  virtual void add_pages(std::span<const PageId> pages, const PageColumns& columns) = 0;

  /// Pages that cease to exist. Their ids may come back by add_pages.
  virtual void remove_pages(std::span<const PageId> pages) = 0;

  /// Learns from a layer whose selection was resolved (pages in view.filled are new), and estimates
  /// its pages anew. Reads neither view.odds nor view.forecast.
  virtual void observe(const LayerView& view) = 0;

  /// By PageId, for each page observed: probability that the `step`-th next run of its layer reads
  /// it, 1 <= step <= context.horizon. Covers every page added; valid until the next call.
  virtual std::span<const float> odds(std::uint32_t step) const = 0;

  virtual Work work() const = 0;
};

/// One predictor: a file that defines this, and a line in the build list.
struct PredictorDescriptor {
  const char* name;
  const char* summary;
  std::span<const ParameterInfo> parameters;
  PredictorTraits traits;
  /// Parameters are complete and in range.
  std::unique_ptr<Predictor> (*make)(const Parameters& parameters);
};

/// Every predictor of the build, in the order of the build list.
std::span<const PredictorDescriptor* const> models();

/// By name; the error lists the known names.
Result<const PredictorDescriptor*> find_predictor(std::string_view name);

/// Checks the parameters and makes the predictor.
Result<std::unique_ptr<Predictor>> make_predictor(std::string_view name,
                                                  const Parameters& parameters);

}  // namespace lehr::predictors
