// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/geometry.hpp"
#include "kernels/base/result.hpp"
#include "placement/model.hpp"
#include "placement/policy.hpp"
#include "predictors/predictor.hpp"
#include "predictors/watch.hpp"
#include "runtime/background.hpp"
#include "runtime/heat.hpp"
#include "runtime/home_tier.hpp"
#include "runtime/machine.hpp"
#include "runtime/page_scores.hpp"
#include "runtime/page_table.hpp"
#include "runtime/precision.hpp"
#include "runtime/sequence.hpp"

namespace lehr::runtime {

using SequenceId = std::uint32_t;

inline constexpr std::uint32_t kMostPlanEvery = 64;

struct RuntimeOptions {
  placement::Platform platform;
  KvGeometry geometry;
  Bytes page_bytes = 0;                   ///< 0: from the geometry; else an imposed size
  std::vector<std::uint32_t> tier_pages;  ///< capacity of each tier of the platform in pages
  Bytes weights_bytes = 0;                ///< HBM bytes a step beside KV
  bool cold = false;                      ///< HBM starts empty
  std::uint64_t seed = 0;
  float heat_half_life = 32.0F;
  std::string policy = "lru";
  Parameters policy_parameters;
  std::string predictor = "net";  ///< of the odds that the policy reads, if it reads any
  Parameters predictor_parameters;
  bool write_back_once =
      true;  ///< false: each page that leaves HBM crosses home again, as rivals do
  /// Need not outlive create(). None: in the place of a predictor that needs them stands `table`.
  std::span<const predictors::Tensor> predictor_weights;
  /// The caller's own, in the place of a named one; not begun, and serves one runtime.
  std::shared_ptr<predictors::Predictor> own_predictor;
  /// Likewise in the place of the named policy, whose traits hold for it.
  std::shared_ptr<placement::Policy> own_policy;
  predictors::WatchOptions watch;  ///< over the predictor
  /// Steps ahead over which the odds that policies read are averaged; 0: 2 to 5, by the time of a
  /// step, of the link and by confidence.
  std::uint32_t prefetch_window = 1;
  /// The predictor and policies that rank all pages look at a layer anew in every so many steps,
  /// layers in turn, and go by what they know in between; 1 to kMostPlanEvery.
  std::uint32_t plan_every = 1;
  /// What policies that lower pages may do; none: every page stays as it was written.
  std::optional<PrecisionOptions> precision;
  /// Scores of pages for policies that read them; none: nobody scores.
  std::optional<ImportanceOptions> importance;
  /// The replay that follows, for a policy with full knowledge of it; outlives the runtime.
  const placement::Instance* future = nullptr;
  /// KV groups (layer * kv_heads + KV head) whose pages are here, where devices share a model's;
  /// ascending. Empty: all.
  std::vector<std::uint32_t> groups;
};

/// What one step (or a sum of steps) did; step_report.def lists and explains the counts. Times are
/// predicted by the model, but `measured`.
struct StepReport {
  placement::LayerTime time;  ///< sums over layers of each term
  Seconds total = 0;
  Seconds exposed = 0;
  Seconds measured = 0;
  std::array<placement::LinkLoad, placement::kMaxLinks> link{};
#define LEHR_STEP_COUNT(name, unit, help) std::uint64_t name = 0;
#include "runtime/step_report.def"

  void add(const StepReport& other);
};

/// The selection of one KV group in one layer: ascending page indices of its sequence. The tail
/// page may be named or left out: it is always read.
struct GroupSelection {
  SequenceId sequence = 0;
  std::uint32_t kv_head = 0;
  std::span<const std::uint32_t> pages;
  const MassCode* mass = nullptr;  ///< codes of all pages of the context, or null
  const MassCode* peak = nullptr;
  std::span<const Tick> next_use;  ///< aligned with `pages`, only with full knowledge
  Tick filled_next_use = kNever;   ///< of the page that became full in the step before, likewise
};

/// What a step adds to its sequences: a token each; or nothing, where the new tokens lie on another
/// device and those of whole pages here are read only.
enum class Growth : std::uint8_t { kOneToken, kNone };

/// What changed with hold().
struct HeldChange {
  std::uint64_t left = 0;       ///< pages that are here no longer
  std::uint64_t came = 0;       ///< pages, tails included, that are here now
  std::uint64_t came_full = 0;  ///< of those, full pages that went to HBM at once
  std::uint64_t came_tails = 0;
};
/// Whether a page that comes should go to HBM at once: by sequence, KV group and token block.
using WantedInHbm = std::function<bool(std::uint32_t, std::uint32_t, std::size_t)>;

struct SequenceInfo {
  std::uint64_t prompt_tokens = 0;
  /// With full knowledge: first read of each full prompt page, by (layer, kv_head, page), as ticks.
  /// Else empty.
  std::span<const Tick> first_use;
  /// Saliency (Importance::saliency_term) by layer, KV head and page, of as many pages a group as
  /// are known, those to come included. Empty: unknown. Read where pages are scored.
  std::span<const float> saliency{};
};

/// Sequences, their pages, and the step loop that decides where pages live. One decision code for
/// every machine. Not thread-safe: one thread at a time.
///
/// A step: begin_step, then run_layer for each layer in order, then end_step. Every refusal leaves
/// the state as it was, and so does create_sequences where the machine fails; after run_layer's
/// kInternal and any other failure of the machine only the destructor is safe.
class Runtime {
 public:
  static Result<std::unique_ptr<Runtime>> create(RuntimeOptions options,
                                                 std::unique_ptr<Machine> machine);

  /// Sequences whose prompt was computed: every full page gets its home copy (set-up, in no step),
  /// and the latest pages go to HBM as far as it has room: position descending, then layer, KV
  /// head, sequence.
  Result<std::vector<SequenceId>> create_sequences(std::span<const SequenceInfo> infos);

  /// `tokens` more that were computed elsewhere (a prefill chunk): full pages get their home copy
  /// (bytes that cross are added to totals(), in no step), and HBM as far as it has room, as for a
  /// prompt.
  Status append(SequenceId sequence, std::uint64_t tokens);

  /// The pages of a fork are shared; nothing is copied until one of the two writes into a shared
  /// tail.
  Result<SequenceId> fork(SequenceId parent);

  /// Leaves HBM: clean pages are dropped, tails are written home. A suspended sequence takes no
  /// steps.
  Status suspend(SequenceId sequence);
  Status resume(SequenceId sequence);
  Status release(SequenceId sequence);

  /// For attention that may read any page of a sequence: those that lie below the home tier only
  /// come up and stay, with what these then gain, until the next call, or until suspend() finds no
  /// other room for a tail. kRefused where the home tier cannot hold them, others' pages moved
  /// down, at most. Nothing to do where no tier is below.
  Status keep_up(std::span<const SequenceId> sequences);

  /// Rolls back to the first `tokens`: pages past them are let go. A page that is partial then is a
  /// new one, whose contents the next write brings.
  Status truncate(SequenceId sequence, std::uint64_t tokens);

  /// sequences[i] becomes what sequences[parents[i]] was; pages are shared as by fork(). All of
  /// them are distinct and not suspended.
  Status reorder(std::span<const SequenceId> sequences, std::span<const std::uint32_t> parents);

  /// Each named sequence gets one token in this step. With Growth::kNone it gets none, and must
  /// have whole pages only and at least one (kUnsupported where the machine attends).
  Status begin_step(std::span<const SequenceId> sequences, Growth growth = Growth::kOneToken);
  /// Layers without groups of this runtime are left out.
  Status run_layer(std::uint32_t layer, std::span<const GroupSelection> groups);
  Result<StepReport> end_step();
  /// Ends a step that cannot go on. Its sequences have the tokens that they began it with; what its
  /// layers moved stays moved.
  void abandon_step();

  /// Between steps: from now on these KV groups' pages are here. Pages of others leave; those that
  /// come get their home copy, and HBM as far as it is wanted and has room. What stays is not
  /// touched, and neither is what is known of it. Refused where a sequence is suspended.
  Result<HeldChange> hold(std::vector<std::uint32_t> groups, const WantedInHbm& wanted);
  std::span<const std::uint32_t> groups() const { return held_; }
  bool holds_layer(std::uint32_t layer) const { return heads_held_[layer] != 0; }
  /// Whether promotions may cross now; else they wait, urgent ones too, where devices take turns on
  /// what they share.
  void allow_background(bool allowed) { background_.allow(allowed); }

  Step step() const { return step_; }
  bool in_step() const { return in_step_; }
  /// All steps, and what suspending and appending moved between them.
  const StepReport& totals() const { return totals_; }
  const RuntimeOptions& options() const { return options_; }
  const PageTable& table() const { return table_; }
  const Heat& heat() const { return heat_; }
  const predictors::Watch& watch() const { return watch_; }
  const PageScores* scores() const { return scores_ ? &*scores_ : nullptr; }
  Machine& machine() { return *machine_; }
  Bytes page_bytes() const { return page_bytes_; }
  std::optional<std::uint64_t> tokens(SequenceId sequence) const;
  /// The first page of each token block; empty where there is no such sequence. Valid until the
  /// next call that changes the sequence.
  std::span<const PageId> blocks(SequenceId sequence) const;
  /// Table and tiers agree with each other. O(pages).
  Status validate() const;

 private:
  Runtime(RuntimeOptions options, Bytes lowered_bytes, std::shared_ptr<placement::Policy> policy,
          std::unique_ptr<Machine> machine);
  Status begin_deciding();
  void tell_new(std::span<const PageId> pages, std::span<const Tick> first_use);
  Status set_held(std::vector<std::uint32_t> groups);
  Status check_hold(std::span<const std::uint32_t> groups) const;
  std::vector<std::pair<PageId, const Sequence*>> live_blocks() const;
  std::uint64_t let_go(std::span<const std::uint32_t> leaving);
  std::uint32_t first_held_layer(std::uint32_t from) const;
  bool plans(Step step, std::uint32_t layer);
  void foresee(LayerView& view);

  Sequence* find(SequenceId id);
  std::uint64_t room_below_hbm() const;  ///< free pages in all other tiers
  std::uint64_t live_sequences() const;  ///< not suspended
  Status check_room(std::span<const SequenceInfo> infos) const;
  void open_block(Sequence& sequence);
  void free_page(PageId page);
  void free_block(PageId base);
  void leave_blocks(Sequence& sequence, std::size_t first);
  void unshare_blocks(Sequence& sequence, std::size_t first);
  void forget(Sequence& sequence);
  void append_token(Sequence& sequence);
  void own_tail(Sequence& sequence);
  void place_page(PageId page, std::uint32_t written, bool to_hbm, std::vector<PageOp>& ops);
  void place_blocks(std::span<const SequenceId> ids, std::size_t first, std::vector<PageOp>& ops);
  void fill_tail(PageId page, std::uint32_t tokens, std::vector<PageOp>& ops);
  void add_to_totals(const placement::LayerLoad& load);
  Status make_room_at_home(std::uint64_t pages);

  Status send_tail_home(PageId page, placement::LayerLoad& load, std::vector<PageOp>& ops);
  Result<bool> leave_hbm(PageId page, bool tail, placement::LayerLoad& load,
                         std::vector<PageOp>& ops);

  // The layer, in the order in which it happens (layer.cpp).
  struct Layer;
  struct Told {  ///< what all groups of a layer say of their pages
    bool mass, peak, future;
  };
  Status check_group(Layer& layer, const GroupSelection& group);
  void select_pages(Layer& layer, const GroupSelection& group, Told told);
  static Tick next_use_of_filled(const Layer& layer, PageId page,
                                 std::span<const GroupSelection> groups);
  Status resolve(Layer& layer, std::span<const GroupSelection> groups);
  Status stage_missing(Layer& layer);
  void find_tails(Layer& layer);
  Status make_room_for_tails(Layer& layer);
  std::uint32_t owed_by_policy(const Layer& layer) const;
  void open_tails(Layer& layer);
  void apply(Layer& layer);
  void promote(Layer& layer, const Promotion& promotion);
  void note_reads(Layer& layer);
  void note_lowered_reads(Layer& layer);
  void load_lowering(Layer& layer);
  void lower_pages(Layer& layer);
  void write_back_full_tails(Layer& layer);
  void finish(Layer& layer);
  void list_groups(Layer& layer, std::span<const GroupSelection> groups);
  std::span<const std::uint8_t> hits_of(Layer& layer, const GroupView& view,
                                        const GroupSelection& group, std::size_t named_pages);
  Status run_machine(Layer& layer, std::span<const GroupSelection> groups);
  void drop_from_hbm(PageId page);
  void tell_policy_left(std::span<const PageId> pages);
  bool write_back(PageId page, Layer& layer);
  PageId forced_victim();

  std::uint32_t tail_tokens(const Sequence& s) const {
    const auto rest = static_cast<std::uint32_t>(s.tokens % options_.geometry.page_tokens);
    return rest == 0 ? options_.geometry.page_tokens : rest;
  }

  RuntimeOptions options_;
  Bytes page_bytes_;
  Bytes lowered_bytes_;  ///< 0: no page is ever lowered
  PageTable table_;
  Heat heat_;
  HomeTier home_;
  LinkId to_hbm_;   ///< from the home tier
  LinkId to_home_;  ///< from HBM
  Background background_;
  std::shared_ptr<placement::Policy> policy_;
  std::uint32_t odds_steps_ = 0;  ///< steps ahead of which the policy reads odds
  std::shared_ptr<predictors::Predictor> predictor_;  ///< null where it reads none
  predictors::Watch watch_;
  std::vector<std::uint8_t> planned_;  ///< by layer: 1 once it was, since pages came from outside
  std::optional<PageScores> scores_;
  Seconds last_step_ = 0;  ///< predicted
  std::unique_ptr<Machine> machine_;
  bool moves_bytes_;
  std::vector<std::optional<Sequence>> sequences_;
  std::vector<std::uint32_t> held_;        ///< KV groups
  std::vector<std::uint8_t> is_held_;      ///< by KV group
  std::vector<std::uint32_t> heads_held_;  ///< by layer: of its KV heads
  Growth growth_ = Growth::kOneToken;      ///< of the open step

  Step step_ = 0;
  bool in_step_ = false;
  std::uint32_t next_layer_ = 0;
  std::vector<SequenceId> batch_;
  std::vector<std::vector<PageId>>
      filled_;  ///< by layer: tails that became full, for the policy's next view
  std::vector<PageId> waiting_write_back_;  ///< full, but the tiers below were busy
  StepReport current_;
  StepReport totals_;
  std::uint32_t clock_hand_ = 0;
  std::uint64_t unread_promotions_ = 0;
  std::unique_ptr<Layer> scratch_;

 public:
  ~Runtime();
};

}  // namespace lehr::runtime
