// SPDX-License-Identifier: Apache-2.0
#include "predictors/said.hpp"

#include <algorithm>

#include "kernels/base/simd.hpp"
#include "predictors/logit.hpp"

namespace lehr::predictors {

namespace {

constexpr float kTenths = 10.0F;

LEHR_VECTOR_CLONES void to_tenths(const float* x, std::uint32_t n, std::int8_t* said) {
  for (std::uint32_t i = 0; i < n; ++i) {
    const float raw = std::min(std::max(x[i], -kMostLogit), kMostLogit);
    said[i] = static_cast<std::int8_t>(raw * kTenths);
  }
}

LEHR_VECTOR_CLONES void from_tenths(const std::int8_t* said, std::uint32_t n, float* x) {
  for (std::uint32_t i = 0; i < n; ++i) x[i] = static_cast<float>(said[i]) / kTenths;
}

LEHR_VECTOR_CLONES void go_on(Step now, std::uint32_t n, Step* last, Step* since) {
  for (std::uint32_t i = 0; i < n; ++i) {
    since[i] = now != 0 && last[i] + 1 == now ? since[i] : now;
    last[i] = now;
  }
}

}  // namespace

void Said::cover(std::size_t pages) {
  if (pages <= last_.size()) return;
  last_.resize(pages, kNeverSeen);
  since_.resize(pages, kNeverSeen);
  for (std::uint32_t slot = 0; slot < kMaxHorizon; ++slot) {
    for (std::uint32_t row = 0; row < rows_; ++row) column(slot, row).resize(pages, 0);
  }
}

void Said::take_part(const Run& run) {
  go_on(run.view->step, run.length, &last_[run.first], &since_[run.first]);
}

std::uint32_t Said::ago(const Run& run, std::uint32_t ahead, std::uint32_t row, float* x) const {
  const Step now = run.view->step;
  if (now < ahead) return 0;
  const Step then = now - ahead;
  const Step* since = &since_[run.first];
  std::uint32_t n = 0;
  while (n < run.length && since[n] <= then) ++n;
  from_tenths(&kept_[(then % kMaxHorizon) * kMaxHorizon + row][run.first], n, x);
  return n;
}

void Said::keep(const Run& run, std::uint32_t row, const float* x) {
  to_tenths(x, run.length, &column(run.view->step, row)[run.first]);
}

}  // namespace lehr::predictors
