// SPDX-License-Identifier: Apache-2.0
#include "runtime/page_scores.hpp"

#include <utility>

namespace lehr::runtime {

namespace {

constexpr float kUnknownSaliency = 0.5F;
constexpr std::size_t kSampled = 61;  ///< one page of so many is learnt from

}  // namespace

Result<PageScores> PageScores::create(const ImportanceOptions& options) {
  LEHR_ASSIGN(auto scorer, Importance::create(options));
  return PageScores(std::move(scorer), options);
}

void PageScores::learn(const Heat& heat, Step now) {
  read_.resize(sample_.size());
  for (std::size_t i = 0; i < sample_.size(); ++i)
    read_[i] = heat.last_read(sample_[i]) + 1 == now ? 1 : 0;
  scorer_.learn(terms_, read_, options_.learn);
  sample_.clear();
  terms_.clear();
}

void PageScores::score(const Sequence& s, std::uint32_t groups, const Heat& heat, Step now) {
  const auto context = static_cast<std::uint32_t>(s.blocks.size());
  if (context < 2) return;
  const std::size_t full = context - 1;  // the tail is no page to be placed
  position_.resize(full);
  saliency_.resize(full);
  for (std::uint32_t i = 0; i < full; ++i)
    position_[i] = Importance::position_term(options_.decay, i, context);
  const std::size_t told = s.saliency.size() / groups;
  for (std::uint32_t g = 0; g < groups; ++g) {
    for (std::size_t i = 0; i < full; ++i)
      saliency_[i] = i < told ? s.saliency[g * told + i] : kUnknownSaliency;
    for (std::size_t i = 0; i < full;) {
      std::size_t end = i + 1;
      while (end < full && s.blocks[end] == s.blocks[end - 1] + 1) ++end;
      score_run(s.blocks[i] + g * PageTable::kRun, i, end - i, heat, now);
      i = end;
    }
  }
}

/// Neighbouring pages, the first at a position of the context.
void PageScores::score_run(PageId first, std::size_t position, std::size_t count, const Heat& heat,
                           Step now) {
  const std::size_t at = raw_.size();
  raw_.resize(at + count);
  scorer_.weigh(first, heat.columns(), now, std::span(position_).subspan(position, count),
                std::span(saliency_).subspan(position, count), &raw_[at]);
  std::size_t kept = at;
  for (std::size_t k = 0; k < count; ++k) {
    const PageId page = first + static_cast<PageId>(k);
    if (std::exchange(scored_[page], now + 1) == now + 1) continue;  // another sequence's, too
    raw_[kept++] = raw_[at + k];
    pages_.push_back(page);
    if (options_.learn > 0 && pages_.size() % kSampled == 0) {
      sample_.push_back(page);
      terms_.push_back({Importance::attention_term(heat.mean_mass(page), heat.peak_mass(page, now),
                                                   options_.peak),
                        position_[position + k], saliency_[position + k]});
    }
  }
  raw_.resize(kept);
}

void PageScores::refresh(const PageTable& table, std::uint32_t groups, const Heat& heat,
                         std::span<const std::optional<Sequence>> sequences, Step now) {
  if (options_.learn > 0 && !sample_.empty()) learn(heat, now);
  if (ranks_.size() < table.rows()) {
    ranks_.resize(table.rows(), 0.5F);
    scored_.resize(table.rows(), 0);
  }
  pages_.clear();
  raw_.clear();
  for (const auto& s : sequences) {
    if (s && !s->suspended) score(*s, groups, heat, now);
  }
  out_.resize(raw_.size());
  scorer_.rank(raw_, out_);
  for (std::size_t i = 0; i < pages_.size(); ++i) ranks_[pages_[i]] = out_[i];
}

}  // namespace lehr::runtime
