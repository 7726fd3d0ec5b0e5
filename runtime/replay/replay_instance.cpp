// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "runtime/replay/replay.hpp"

namespace lehr::runtime {

namespace {

using placement::Instance;

/// Builds the instance by walking through the steps as the step loop does, without a policy.
class Builder {
 public:
  Builder(const Workload& workload, const ReplayOptions& options)
      : workload_(workload),
        options_(options.runtime),
        steps_(options.max_steps != 0 ? std::min(options.max_steps, workload.steps())
                                      : workload.steps()),
        geometry_(workload.sequences.front().selection->trace().geometry()),
        groups_(geometry_.groups()),
        pages_(workload.sequences.size()),
        tail_in_hbm_(workload.sequences.size()) {
    instance_.platform = &options.runtime.platform;
    instance_.capacity = options_.tier_pages[kHbm];
    instance_.page_bytes = options_.page_bytes != 0 ? options_.page_bytes : geometry_.page_bytes();
    instance_.layers = geometry_.layers;
    up_to_home_ = options_.platform.link(kHbm, options_.platform.home);
    std::uint64_t pages = 0;
    for (const ReplaySequence& s : workload.sequences)
      pages += std::uint64_t{groups_} * s.selection->trace().pages();
    home_holds_all_ = options_.tier_pages[options_.platform.home] >= pages;
  }

  Instance build() {
    for (std::uint32_t t = 0; t < steps_; ++t) {
      arrive(t);
      for (std::uint32_t l = 0; l < geometry_.layers; ++l) layer(t, l);
      leave(t);
    }
    return std::move(instance_);
  }

 private:
  /// Prompt pages, in the order in which HBM is filled. A sequence that joins later finds the slots
  /// that its policy left free; no more than all but the tails' can be, so this many are born in
  /// HBM: the bound stays below every plan.
  void arrive(std::uint32_t t) {
    std::vector<std::size_t> who;
    std::uint32_t longest = 0;
    for (std::size_t i = 0; i < pages_.size(); ++i) {
      const ReplaySequence& s = workload_.sequences[i];
      if (s.start != t) continue;
      const auto& meta = s.selection->trace().meta();
      who.push_back(i);
      pages_[i].assign(std::size_t{groups_} * s.selection->trace().pages(), kNoPage);
      tail_in_hbm_[i].assign(geometry_.layers, 0);
      longest = std::max(longest, geometry_.pages_for(meta.prompt_tokens));
    }
    std::uint32_t room =
        options_.cold ? 0 : instance_.capacity - std::min(pinned_, instance_.capacity);
    for (std::uint32_t p = longest; p-- > 0;) {
      for (std::uint32_t group = 0; group < groups_; ++group) {
        for (const std::size_t i : who) place(i, p, group, t, room);
      }
    }
  }

  void place(std::size_t i, std::uint32_t p, std::uint32_t group, std::uint32_t t,
             std::uint32_t& room) {
    const auto& trace = workload_.sequences[i].selection->trace();
    const std::uint32_t prompt = trace.meta().prompt_tokens;
    if (p >= geometry_.pages_for(prompt)) return;
    const bool full = (p + 1) * geometry_.page_tokens <= prompt;
    const bool in_hbm = room > 0;
    if (in_hbm) --room;
    if (full) {
      add(i, group, p, t * geometry_.layers, in_hbm);
    } else if (in_hbm && t == 0 && group % geometry_.kv_heads + 1 == geometry_.kv_heads) {
      pinned_ += geometry_.kv_heads;  // the layer's last head: all of its tails are in
      tail_in_hbm_[i][group / geometry_.kv_heads] = 1;
    }
  }

  void add(std::size_t i, std::uint32_t group, std::uint32_t p, Tick born, bool in_hbm) {
    page(i, group, p) = instance_.add_page(born, in_hbm);
    instance_.name.push_back({static_cast<std::uint32_t>(i),
                              static_cast<std::uint16_t>(group / geometry_.kv_heads),
                              static_cast<std::uint16_t>(group % geometry_.kv_heads), p});
  }

  void layer(std::uint32_t t, std::uint32_t l) {
    const std::uint32_t heads = geometry_.kv_heads;
    const Bytes token_bytes = instance_.page_bytes / geometry_.page_tokens;
    Bytes fixed = options_.weights_bytes / geometry_.layers;
    std::uint64_t tokens = 0;
    std::uint32_t written_back = 0;
    visits_.clear();
    filled_.clear();
    for (std::size_t i = 0; i < pages_.size(); ++i) {
      if (!alive(i, t)) continue;
      const TraceSelection& selection = *workload_.sequences[i].selection;
      const std::uint32_t own = t - workload_.sequences[i].start;
      const std::uint32_t context = selection.trace().meta().prompt_tokens + own + 1;
      const std::uint32_t tail = geometry_.pages_for(context) - 1;
      const std::uint32_t length = context - tail * geometry_.page_tokens;
      if (tail_in_hbm_[i][l] == 0) {
        tail_in_hbm_[i][l] = 1;
        pinned_ += heads;
      }
      fixed += token_bytes * heads * (std::uint64_t{length} + 1);
      tokens += std::uint64_t{length} * heads;
      for (std::uint32_t h = 0; h < heads; ++h) {
        for (const std::uint32_t p : selection.pages(selection.group(own, l, h))) {
          if (p != tail) visits_.push_back(page(i, l * heads + h, p));
        }
      }
      if (length == geometry_.page_tokens) {
        // A home tier that may be full keeps write-backs waiting: a replay can end without them.
        if (home_holds_all_) written_back += heads;
        filled_.emplace_back(i, tail);
      }
    }
    tokens += std::uint64_t{visits_.size()} * geometry_.page_tokens;
    const std::uint32_t ratio = std::max(1U, geometry_.q_heads / geometry_.kv_heads);
    instance_.open_tick(fixed + instance_.page_bytes * written_back,
                        4.0 * static_cast<double>(tokens) * ratio * geometry_.head_dim, pinned_);
    for (const PageId p : visits_) instance_.add_visit(p);
    if (written_back > 0) {
      instance_.add_transfer(up_to_home_, instance_.page_bytes * written_back, written_back);
    }
    const Tick next = t * geometry_.layers + l + 1;
    for (const auto& [i, tail] : filled_) {
      pinned_ -= heads;
      tail_in_hbm_[i][l] = 0;
      for (std::uint32_t h = 0; h < heads; ++h) add(i, l * heads + h, tail, next, true);
    }
  }

  void leave(std::uint32_t t) {
    const Tick now = (t + 1) * geometry_.layers;
    for (std::size_t i = 0; i < pages_.size(); ++i) {
      const ReplaySequence& s = workload_.sequences[i];
      if (!alive(i, t) || s.start + s.selection->trace().steps() != t + 1) continue;
      for (const PageId p : pages_[i]) {
        if (p != kNoPage) instance_.death[p] = now;
      }
      for (const std::uint8_t in_hbm : tail_in_hbm_[i]) pinned_ -= in_hbm * geometry_.kv_heads;
    }
  }

  bool alive(std::size_t i, std::uint32_t t) const {
    const ReplaySequence& s = workload_.sequences[i];
    return t >= s.start && t < s.start + s.selection->trace().steps();
  }
  PageId& page(std::size_t i, std::uint32_t group, std::uint32_t p) {
    return pages_[i][std::size_t{group} * workload_.sequences[i].selection->trace().pages() + p];
  }

  const Workload& workload_;
  const RuntimeOptions& options_;
  std::uint32_t steps_;
  KvGeometry geometry_;
  std::uint32_t groups_;
  LinkId up_to_home_ = 0;
  bool home_holds_all_ = false;
  Instance instance_;
  std::uint32_t pinned_ = 0;
  std::vector<std::vector<PageId>> pages_;              ///< by sequence: (group, page) to dense id
  std::vector<std::vector<std::uint8_t>> tail_in_hbm_;  ///< by sequence and layer
  std::vector<PageId> visits_;
  std::vector<std::pair<std::size_t, std::uint32_t>> filled_;
};

}  // namespace

Result<placement::Instance> replay_instance(const Workload& workload,
                                            const ReplayOptions& options) {
  LEHR_TRY(workload.validate());
  LEHR_TRY(options.runtime.platform.validate());
  Bytes lowered = 0;
  if (options.runtime.precision) {
    const KvGeometry geometry = workload.sequences.front().selection->trace().geometry();
    const Bytes own = options.runtime.page_bytes;
    LEHR_ASSIGN(lowered, lowered_page_bytes(*options.runtime.precision, geometry,
                                            own != 0 ? own : geometry.page_bytes()));
  }
  Instance instance = Builder(workload, options).build();
  instance.least_page_bytes = lowered;
  LEHR_TRY(instance.validate());
  return instance;
}

}  // namespace lehr::runtime
