// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/base/exchange.hpp"
#include "kernels/base/registry.hpp"
#include "kernels/base/result.hpp"
#include "placement/model.hpp"
#include "placement/replacement.hpp"

namespace lehr::placement {

struct Instance;

/// What a policy is told once, before the first layer.
struct PolicyContext {
  const Platform* platform = nullptr;  ///< outlives the policy
  std::uint32_t capacity = 0;          ///< HBM slots
  Bytes page_bytes = 0;
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
  std::uint64_t seed = 0;
  /// The replay that follows, its pages named; null but for policies that need it. Outlives the
  /// policy.
  const Instance* future = nullptr;
  Bytes lowered_bytes = 0;  ///< of a page at the lower precision; 0: there is none
  /// Share of a step's softmax mass that may be expected on lowered pages.
  double lowered_mass = 0;
};

struct PolicyTraits {
  bool needs_future =
      false;                 ///< reads LayerView::next_use: an oracle, labelled so, never a product
  bool block_cache = false;  ///< offers a Replacement for request traces
  bool unlimited = false;    ///< assumes that HBM holds everything
  bool needs_instance = false;   ///< reads PolicyContext::future: runs in replays only
  bool lowers = false;           ///< lowers pages where that is allowed
  std::uint32_t needs_odds = 0;  ///< steps ahead of which it reads the odds (LayerView::forecast)
};

/// What keeps a policy from moving pages ahead of need.
enum class Restraint : std::uint8_t {
  kNone,
  kWrongPredictions,  ///< steps took other times than foretold, or the predictor's odds are off
  kThrashing,         ///< a step reads more than HBM holds, and what was promoted left unread
};

/// Decides where pages should live. One instance serves one replay or runtime; not thread-safe.
/// Called once a layer with the whole batch, never once a page. Deterministic: the same calls and
/// seed give the same plans on every machine.
class Policy {
 public:
  virtual ~Policy() = default;

  /// Before everything else, once.
  virtual void begin(const PolicyContext& context) = 0;

  /// Pages that exist from now on, full; those in HBM are so in `columns`. `first_use` (with full
  /// knowledge, else empty) is aligned with `pages`.
  virtual void add_pages(std::span<const PageId> pages, std::span<const Tick> first_use,
                         const PageColumns& columns) = 0;

  /// Pages that cease to exist (their HBM slots are free already).
  virtual void remove_pages(std::span<const PageId> pages) = 0;

  /// Fills `plan` (given empty). Pages in view.filled are new to the policy: they were tails and
  /// are in HBM now. A page that left HBM by another's decision arrives as remove_pages, then
  /// add_pages. Contract, checked by plan_check: every drop is evictable and named once; installs
  /// are missed pages; free_slots + drops >= must_free + installs + promotions; lowered pages are
  /// of the selection, full, at home, held by nobody else and named once.
  virtual void decide(const LayerView& view, LayerPlan& plan) = 0;

  /// As of the last decide(), for reports.
  virtual Restraint restraint() const { return Restraint::kNone; }
};

/// One policy: a file that defines this, and a line in the build list.
struct PolicyDescriptor {
  const char* name;
  const char* summary;
  std::span<const ParameterInfo> parameters;
  PolicyTraits traits;
  /// Parameters are complete and in range.
  std::unique_ptr<Policy> (*make)(const Parameters& parameters);
  /// The same order as a cache of blocks, or null.
  std::unique_ptr<Replacement> (*make_replacement)(const Parameters& parameters);
};

/// Every policy of the build, in the order of the build list.
std::span<const PolicyDescriptor* const> policies();

/// By name; the error lists the known names.
Result<const PolicyDescriptor*> find_policy(std::string_view name);

/// Checks the parameters and makes the policy.
Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const Parameters& parameters);

}  // namespace lehr::placement
