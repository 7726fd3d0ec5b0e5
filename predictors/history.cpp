// SPDX-License-Identifier: Apache-2.0
#include "predictors/history.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/simd.hpp"
#include "predictors/logit.hpp"

namespace lehr::predictors {

namespace {

constexpr float kDecay2 = 0.707106781F;    // 2^(-1/2)
constexpr float kDecay8 = 0.917004043F;    // 2^(-1/8)
constexpr float kDecay32 = 0.978572062F;   // 2^(-1/32)
constexpr float kDecay128 = 0.994599423F;  // 2^(-1/128)
constexpr std::int16_t kFaintest = 160;    // code that stands for "no mass": 2^-20

/// Codes of a group's masses: the mean of both where the peak is known, too.
LEHR_VECTOR_CLONES void mass_codes(const MassCode* mean, const MassCode* peak, std::size_t n,
                                   std::int16_t* code) {
  if (peak == nullptr) {
    for (std::size_t i = 0; i < n; ++i)
      code[i] = std::min(static_cast<std::int16_t>(mean[i]), kFaintest);
    return;
  }
  for (std::size_t i = 0; i < n; ++i) {
    const auto middle = static_cast<std::int16_t>((mean[i] + peak[i] + 1) / 2);
    code[i] = std::min(middle, kFaintest);
  }
}

/// The faintest code that was read among those that the mass decides, or else the loudest unread.
LEHR_VECTOR_CLONES std::int16_t limit_code(const std::int16_t* code, const std::uint8_t* read,
                                           std::size_t n) {
  std::int16_t limit = -1;
  for (std::size_t i = 1; i + 5 < n; ++i)
    limit = std::max(limit, read[i] != 0 ? code[i] : std::int16_t{-1});
  if (limit >= 0) return limit;
  limit = kFaintest;
  for (std::size_t i = 0; i < n; ++i) limit = std::min(limit, read[i] == 0 ? code[i] : kFaintest);
  return limit;
}

LEHR_VECTOR_CLONES void margins_of(const std::int16_t* code, std::int16_t limit, std::size_t n,
                                   float* margin) {
  for (std::size_t i = 0; i < n; ++i) {
    const float m = static_cast<float>(limit - code[i]) * 0.125F;
    margin[i] = std::min(std::max(m, LayerReader::kLowestMargin), LayerReader::kHighestMargin);
  }
}

/// 1 / (1 - 2^(-age / half_life)): a decayed rate that was seen for `age` steps, made comparable.
template <int HalfLife>
const std::array<float, 1024>& exposure() {
  static const std::array<float, 1024> table = [] {
    std::array<float, 1024> t{};
    for (std::size_t age = 0; age < t.size(); ++age) {
      const double seen = std::max<double>(1, static_cast<double>(age));
      t[age] = static_cast<float>(1 / (1 - std::exp2(-seen / HalfLife)));
    }
    return t;
  }();
  return table;
}

LEHR_VECTOR_CLONES void decay_rate(float* rate, const std::uint8_t* read, float decay,
                                   std::uint32_t n) {
  for (std::uint32_t i = 0; i < n; ++i)
    rate[i] = rate[i] * decay + static_cast<float>(read[i]) * (1 - decay);
}

LEHR_VECTOR_CLONES void shift_bits(std::uint64_t* bits, const std::uint8_t* read, std::uint32_t n) {
  for (std::uint32_t i = 0; i < n; ++i) bits[i] = bits[i] << 1 | read[i];
}

LEHR_VECTOR_CLONES void decay_margins(float* margin, float* peak, std::uint32_t* age,
                                      const float* now, std::uint32_t n) {
  for (std::uint32_t i = 0; i < n; ++i) {
    const float smooth = margin[i] * kDecay2 + now[i] * (1 - kDecay2);
    margin[i] = age[i] == 0 ? now[i] : smooth;
    peak[i] = std::max(peak[i] - 0.25F, now[i]);
    ++age[i];
  }
}

}  // namespace

void LayerReader::reach(PageId page) {
  if (page < seen_.size()) return;
  const std::size_t n = 2 * std::size_t{page} + Run::kLength;
  read_.resize(n, 0);
  seen_.resize(n, 0);
  margin_.resize(n, 0);
}

/// Margins of a group's pages, by position.
void LayerReader::weigh(const GroupView& group, const LayerView& view) {
  const std::size_t n = group.blocks.size();
  if (group_margin_.size() < n) {
    group_margin_.resize(2 * n);
    code_.resize(2 * n);
  }
  if (group.mass == nullptr || !use_mass_) {
    std::fill_n(group_margin_.begin(), n, 0.0F);
    return;
  }
  mass_codes(group.mass, group.peak, n, code_.data());
  // The faintest that the group selected. The first and the latest pages are read whatever their
  // mass: they say nothing of the limit.
  std::int16_t limit = -1;
  for (std::uint32_t i = group.first; i < group.first + group.count; ++i) {
    const std::uint32_t position = view.pages.position[view.selected[i]];
    if (position > 0 && position + 5 < n) limit = std::max(limit, code_[position]);
  }
  if (limit < 0) {  // it selected none, or none that other sequences had not selected, too
    group_read_.assign(n, 1);  // the tail always is
    for (std::size_t i = 0; i + 1 < n; ++i) group_read_[i] = read_[group.page(i)];
    limit = limit_code(code_.data(), group_read_.data(), n);
  }
  margins_of(code_.data(), limit, n, group_margin_.data());
}

void LayerReader::cut(const GroupView& group, const LayerView& view) {
  const std::size_t full = group.blocks.size() - 1;  // the tail is no page of ours yet
  const PageId* const blocks = group.blocks.data();
  std::uint8_t* const seen = seen_.data() + group.offset;
  float* const margin = margin_.data() + group.offset;
  for (std::size_t i = 0; i < full;) {
    const PageId first = blocks[i];
    const std::uint8_t before = seen[first];
    const std::size_t most = std::min<std::size_t>(full, i + Run::kLength);
    std::size_t end = i + 1;
    while (end < most && blocks[end] == blocks[end - 1] + 1 && seen[blocks[end]] == before) ++end;
    const auto length = static_cast<std::uint32_t>(end - i);
    if (before == 0) {
      std::fill_n(seen + first, length, std::uint8_t{1});
      std::copy_n(&group_margin_[i], length, margin + first);
      runs_.push_back({first + group.offset, static_cast<std::uint32_t>(i), length, nullptr,
                       nullptr, &group, &view});
    } else {
      for (std::uint32_t k = 0; k < length; ++k)
        margin[first + k] = std::max(margin[first + k], group_margin_[i + k]);
    }
    i = end;
  }
}

std::span<const Run> LayerReader::read(const LayerView& view) {
  for (const Run& run : runs_) std::fill_n(&seen_[run.first], run.length, std::uint8_t{0});
  for (const PageId p : selected_) read_[p] = 0;
  runs_.clear();
  selected_.assign(view.selected.begin(), view.selected.end());
  for (const PageId p : selected_) {
    reach(p);
    read_[p] = 1;
  }
  for (const GroupView& group : view.groups) {
    if (group.blocks.size() < 2) continue;
    reach(*std::max_element(group.blocks.begin(), group.blocks.end()) + group.offset);
    weigh(group, view);
    cut(group, view);
  }
  for (Run& run : runs_) {
    run.read = &read_[run.first];
    run.margin = &margin_[run.first];
  }
  return runs_;
}

void History::cover(PageId page) {
  if (page < bits.size()) return;
  const std::size_t n = std::max<std::size_t>(page + std::size_t{1}, bits.size() * 2);
  bits.resize(n, 0);
  for (auto* c : {&rate2, &rate8, &rate32, &rate128}) c->resize(n, 0);
  now.resize(n, 0);
  margin.resize(n, LayerReader::kLowestMargin);
  peak.resize(n, LayerReader::kLowestMargin);
  age.resize(n, 0);
}

void History::reset(PageId page) {
  cover(page);
  bits[page] = 0;
  rate2[page] = rate8[page] = rate32[page] = rate128[page] = 0;
  margin[page] = peak[page] = LayerReader::kLowestMargin;
  now[page] = 0;
  age[page] = 0;
}

void History::add(const Run& run) {
  cover(run.first + run.length - 1);
  const PageId p = run.first;
  const std::uint32_t n = run.length;
  shift_bits(&bits[p], run.read, n);
  decay_rate(&rate2[p], run.read, kDecay2, n);
  decay_rate(&rate8[p], run.read, kDecay8, n);
  decay_rate(&rate32[p], run.read, kDecay32, n);
  decay_rate(&rate128[p], run.read, kDecay128, n);
  std::copy_n(run.margin, n, &now[p]);
  decay_margins(&margin[p], &peak[p], &age[p], run.margin, n);
}

void History::grow_older(const Run& run) {
  for (std::uint32_t i = 0; i < run.length; ++i) ++age[run.first + i];
}

void Warmth::begin_layer(const LayerView& view) {
  if (view.layer >= by_layer_.size()) by_layer_.resize(view.layer + 1);
  auto& layer = by_layer_[view.layer];
  for (const GroupView& g : view.groups) {
    if (g.sequence >= layer.size()) layer.resize(g.sequence + 1);
    layer[g.sequence].assign(g.blocks.size(), LayerReader::kLowestMargin);
  }
}

void Warmth::add(const Run& run, const History& history) {
  float* out = by_layer_[run.view->layer][run.group->sequence].data() + run.position;
  for (std::uint32_t i = 0; i < run.length; ++i)
    out[i] = std::max(out[i], history.margin[run.first + i]);
}

std::span<const float> Warmth::of(std::uint32_t layer, std::uint32_t sequence) const {
  if (layer >= by_layer_.size() || sequence >= by_layer_[layer].size()) return {};
  return by_layer_[layer][sequence];
}

namespace {

using Row = std::array<float, Run::kLength>;

LEHR_VECTOR_CLONES void recency(const std::uint64_t* bits, std::uint32_t n, Features& out) {
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint64_t b = bits[i];
    out[0][i] = static_cast<float>(b & 1U);
    out[1][i] = static_cast<float>(b >> 1 & 1U);
    out[2][i] = static_cast<float>(b >> 2 & 1U);
  }
  for (std::uint32_t i = 0; i < n; ++i) {
    // The lowest bit's place is the exponent of its value as a number.
    const auto lowest = static_cast<float>(bits[i] & (~bits[i] + 1));
    const std::int32_t place = (std::bit_cast<std::int32_t>(lowest) >> 23) - 127;
    const float since = 1.0F + static_cast<float>(place < 0 ? 64 : place);
    out[7][i] = log_of(since) * (1.44269504F / 6.0F);
    out[8][i] = 1.0F / since;
  }
}

LEHR_VECTOR_CLONES void scale(const float* in, float by, std::uint32_t n, float* out) {
  for (std::uint32_t i = 0; i < n; ++i) out[i] = in[i] * by;
}

LEHR_VECTOR_CLONES void distances(float context, std::uint32_t position, std::uint32_t n,
                                  float* out) {
  for (std::uint32_t i = 0; i < n; ++i)
    out[i] = 1.0F / (context - static_cast<float>(static_cast<std::int32_t>(position + i)));
}

/// Rates of a long half-life, as if all pages had been seen for ever. Pages of a run mostly are of
/// one age.
template <int HalfLife>
void exposed(const float* rate, const std::uint32_t* age, std::uint32_t n, Row& out) {
  const auto& by = exposure<HalfLife>();
  const auto last = static_cast<std::uint32_t>(by.size() - 1);
  if (std::all_of(age, age + n, [age](std::uint32_t a) { return a == age[0]; })) {
    scale(rate, by[std::min(age[0], last)], n, out.data());
    return;
  }
  for (std::uint32_t i = 0; i < n; ++i) out[i] = rate[i] * by[std::min(age[i], last)];
}

void own_features(const Run& run, const History& h, Features& out) {
  const PageId p = run.first;
  const std::uint32_t n = run.length;
  recency(&h.bits[p], n, out);
  std::copy_n(&h.rate2[p], n, out[3].begin());
  std::copy_n(&h.rate8[p], n, out[4].begin());
  exposed<32>(&h.rate32[p], &h.age[p], n, out[5]);
  exposed<128>(&h.rate128[p], &h.age[p], n, out[6]);
  scale(&h.margin[p], 0.125F, n, out[9].data());
  scale(&h.peak[p], 0.125F, n, out[10].data());
  distances(static_cast<float>(run.group->blocks.size()), run.position, n, out[11].data());
  std::fill_n(out[12].begin(), n, 0.0F);
  if (run.position == 0) out[12][0] = 1;
  scale(&h.now[p], 0.125F, n, out[13].data());
}

void spread(std::span<const float> from, const Run& run, Row& out) {
  const std::size_t known = std::min<std::size_t>(
      run.length, from.size() - std::min<std::size_t>(from.size(), run.position));
  if (known > 0) scale(&from[run.position], 0.125F, static_cast<std::uint32_t>(known), out.data());
  std::fill(out.begin() + static_cast<std::ptrdiff_t>(known), out.begin() + run.length,
            LayerReader::kLowestMargin * 0.125F);
}

/// Of the pages before and after each; a run's ends look at themselves.
LEHR_VECTOR_CLONES void neighbours(const float* margin, const float* rate, std::uint32_t n,
                                   float* warmest, float* mean) {
  for (std::uint32_t i = 1; i + 1 < n; ++i) {
    warmest[i] = std::max(margin[i - 1], margin[i + 1]) * 0.125F;
    mean[i] = 0.5F * (rate[i - 1] + rate[i + 1]);
  }
  for (const std::uint32_t i : {0U, n - 1}) {
    const std::uint32_t left = i > 0 ? i - 1 : 0;
    const std::uint32_t right = i + 1 < n ? i + 1 : i;
    warmest[i] = std::max(margin[left], margin[right]) * 0.125F;
    mean[i] = 0.5F * (rate[left] + rate[right]);
  }
}

void beside_features(const Run& run, const History& h, const Warmth& warmth, Features& out) {
  neighbours(&h.margin[run.first], &h.rate8[run.first], run.length, out[14].data(), out[15].data());
  const std::uint32_t layer = run.view->layer;
  spread(warmth.of(layer, run.group->sequence), run, out[16]);
  spread(layer > 0 ? warmth.of(layer - 1, run.group->sequence) : std::span<const float>{}, run,
         out[17]);
  spread(warmth.of(layer + 1, run.group->sequence), run, out[18]);
}

}  // namespace

void make_features(const Run& run, const History& history, const Warmth& warmth,
                   std::uint32_t count, Features& out) {
  own_features(run, history, out);
  if (count > kOwnFeatures) beside_features(run, history, warmth, out);
}

void stand_alone(const Run& run, const History& history, Features& out) {
  const PageId p = run.first;
  for (const std::size_t f : {14, 16, 17, 18})
    scale(&history.margin[p], 0.125F, run.length, out[f].data());
  std::copy_n(&history.rate8[p], run.length, out[15].begin());
}

}  // namespace lehr::predictors
