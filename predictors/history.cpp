// SPDX-License-Identifier: Apache-2.0
#include "predictors/history.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/simd.hpp"

namespace lehr::predictors {

namespace {

constexpr float kDecay2 = 0.707106781F;    // 2^(-1/2)
constexpr float kDecay8 = 0.917004043F;    // 2^(-1/8)
constexpr float kDecay32 = 0.978572062F;   // 2^(-1/32)
constexpr float kDecay128 = 0.994599423F;  // 2^(-1/128)
constexpr int kFaintest = 160;             // code that stands for "no mass": 2^-20

int code_of(const GroupView& group, std::size_t i) {
  const int mean = group.mass[i];
  if (group.peak == nullptr) return std::min(mean, kFaintest);
  return std::min((mean + group.peak[i] + 1) / 2, kFaintest);
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

const std::array<float, 65>& gap_scale() {
  static const std::array<float, 65> table = [] {
    std::array<float, 65> t{};
    for (std::size_t g = 0; g < t.size(); ++g)
      t[g] = static_cast<float>(std::log2(1.0 + static_cast<double>(g)) / 6);
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

void GroupReader::prepare(const GroupView& group, const LayerView& view) {
  const std::size_t n = group.blocks.size();
  if (read_.size() < n) {
    read_.resize(2 * n);
    margin_.resize(2 * n);
  }
  std::fill_n(read_.begin(), n, std::uint8_t{0});
  for (std::uint32_t i = group.first; i < group.first + group.count; ++i) {
    const std::uint32_t position = view.pages.position[view.selected[i]];
    if (position < n) read_[position] = 1;
  }
  if (group.mass == nullptr) {
    std::fill_n(margin_.begin(), n, 0.0F);
    return;
  }
  // The first and the latest pages are read whatever their mass: they say nothing of the limit.
  int limit = -1;
  for (std::size_t i = 1; i + 5 < n; ++i) {
    if (read_[i] != 0) limit = std::max(limit, code_of(group, i));
  }
  if (limit < 0) {
    limit = kFaintest;
    for (std::size_t i = 0; i < n; ++i) {
      if (read_[i] == 0) limit = std::min(limit, code_of(group, i));
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    const float m = static_cast<float>(limit - code_of(group, i)) * 0.125F;
    margin_[i] = std::clamp(m, kLowestMargin, kHighestMargin);
  }
}

void History::cover(PageId page) {
  if (page < bits.size()) return;
  const std::size_t n = std::max<std::size_t>(page + std::size_t{1}, bits.size() * 2);
  bits.resize(n, 0);
  for (auto* c : {&rate2, &rate8, &rate32, &rate128}) c->resize(n, 0);
  now.resize(n, 0);
  margin.resize(n, GroupReader::kLowestMargin);
  peak.resize(n, GroupReader::kLowestMargin);
  age.resize(n, 0);
}

void History::reset(PageId page) {
  cover(page);
  bits[page] = 0;
  rate2[page] = rate8[page] = rate32[page] = rate128[page] = 0;
  margin[page] = peak[page] = GroupReader::kLowestMargin;
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

void History::join(const Run& run) {
  for (std::uint32_t i = 0; i < run.length; ++i) {
    const PageId p = run.first + i;
    margin[p] = std::max(margin[p], run.margin[i]);
    peak[p] = std::max(peak[p], run.margin[i]);
    if (run.read[i] == 0 || (bits[p] & 1U) != 0) continue;
    bits[p] |= 1U;
    rate2[p] += 1 - kDecay2;
    rate8[p] += 1 - kDecay8;
    rate32[p] += 1 - kDecay32;
    rate128[p] += 1 - kDecay128;
  }
}

void Warmth::begin_layer(const LayerView& view) {
  if (view.layer >= by_layer_.size()) by_layer_.resize(view.layer + 1);
  auto& layer = by_layer_[view.layer];
  for (const GroupView& g : view.groups) {
    if (g.sequence >= layer.size()) layer.resize(g.sequence + 1);
    layer[g.sequence].assign(g.blocks.size(), GroupReader::kLowestMargin);
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

void own_features(const Run& run, const History& h, Features& out) {
  const PageId p = run.first;
  const auto& e32 = exposure<32>();
  const auto& e128 = exposure<128>();
  const auto& gaps = gap_scale();
  const auto context = static_cast<float>(run.group->blocks.size());
  for (std::uint32_t i = 0; i < run.length; ++i) {
    const std::uint64_t b = h.bits[p + i];
    const std::uint32_t gap = h.gap(p + i);
    const std::uint32_t age = std::min<std::uint32_t>(h.age[p + i], 1023);
    out[0][i] = static_cast<float>(b & 1U);
    out[1][i] = static_cast<float>(b >> 1 & 1U);
    out[2][i] = static_cast<float>(b >> 2 & 1U);
    out[3][i] = h.rate2[p + i];
    out[4][i] = h.rate8[p + i];
    out[5][i] = h.rate32[p + i] * e32[age];
    out[6][i] = h.rate128[p + i] * e128[age];
    out[7][i] = gaps[gap];
    out[8][i] = 1.0F / (1.0F + static_cast<float>(gap));
    out[9][i] = h.margin[p + i] * 0.125F;
    out[10][i] = h.peak[p + i] * 0.125F;
    const float distance = context - static_cast<float>(run.position + i);
    out[11][i] = 1.0F / distance;
    out[12][i] = run.position + i == 0 ? 1.0F : 0.0F;
    out[13][i] = h.now[p + i] * 0.125F;
  }
}

void spread(std::span<const float> from, const Run& run, std::array<float, Run::kLength>& out) {
  for (std::uint32_t i = 0; i < run.length; ++i) {
    const std::size_t at = run.position + i;
    out[i] = (at < from.size() ? from[at] : GroupReader::kLowestMargin) * 0.125F;
  }
}

void beside_features(const Run& run, const History& h, const Warmth& warmth, Features& out) {
  const PageId p = run.first;
  const std::uint32_t n = run.length;
  for (std::uint32_t i = 0; i < n; ++i) {  // a run's ends look at themselves
    const PageId left = i > 0 ? p + i - 1 : p;
    const PageId right = i + 1 < n ? p + i + 1 : p + i;
    out[14][i] = std::max(h.margin[left], h.margin[right]) * 0.125F;
    out[15][i] = 0.5F * (h.rate8[left] + h.rate8[right]);
  }
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

}  // namespace lehr::predictors
