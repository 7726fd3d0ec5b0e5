// SPDX-License-Identifier: Apache-2.0
// What single models and their parts compute, against values by hand or in double precision.
#include <cmath>
#include <numeric>

#include <catch2/catch.hpp>

#include "predictors/logit.hpp"
#include "predictors/networks.hpp"
#include "predictors/odds_scaler.hpp"
#include "tests/support/some_weights.hpp"

namespace lehr::predictors {
namespace {

TEST_CASE("exp_of and sigmoid are close to the library's, everywhere") {
  for (int i = 0; i <= 432; ++i) {
    const float x = -80 + 0.37F * static_cast<float>(i);
    const double truth = std::exp(static_cast<double>(x));
    CHECK(std::abs(static_cast<double>(exp_of(x)) - truth) <= 1e-5 * truth);
  }
  for (int i = 0; i <= 545; ++i) {
    const float x = -30 + 0.11F * static_cast<float>(i);
    CHECK(sigmoid(x) == Approx(1 / (1 + std::exp(-static_cast<double>(x)))).epsilon(1e-5));
  }
  CHECK(sigmoid(1e30F) == Approx(1));
  CHECK(sigmoid(-1e30F) == Approx(0).margin(1e-15));
  for (int i = -96; i <= 96; ++i) {
    const auto x = static_cast<float>(std::pow(2.05, i));
    const double truth = std::log(static_cast<double>(x));
    CHECK(std::abs(static_cast<double>(log_of(x)) - truth) <=
          4e-7 * std::max(1.0, std::abs(truth)));
  }
  for (int i = 0; i < 200; ++i) {
    const float x = 0.9F + 0.001F * static_cast<float>(i);
    CHECK(log_of(x) == Approx(std::log(static_cast<double>(x))).epsilon(1e-4).margin(1e-7));
  }
  CHECK(logit(0.5F) == Approx(0).margin(1e-6));
  CHECK(std::isfinite(logit(0)));
  CHECK(std::isfinite(logit(1)));
}

TEST_CASE("OddsScaler finds temperature and threshold, and never turns the order round") {
  Rng rng(5);
  const bool inverted = GENERATE(false, true);
  OddsScaler scaler;
  std::array<float, 64> x;
  std::array<std::uint8_t, 64> read;
  for (int step = 0; step < 200; ++step) {
    for (int run = 0; run < 40; ++run) {
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = static_cast<float>(6 * rng.uniform() - 3);
        const double truth = inverted ? -1.0 : 0.5;
        const double p = 1 / (1 + std::exp(-(truth * static_cast<double>(x[i]) - 1.5)));
        read[i] = rng.uniform() < p ? 1 : 0;
      }
      scaler.learn(1, x.data(), read.data(), 64);
    }
    scaler.end_step();
  }
  if (inverted) {
    CHECK(scaler.fit(1).slope == Approx(0.02));  // the least there is: order is kept, odds are flat
  } else {
    CHECK(scaler.fit(1).slope == Approx(0.5).margin(0.08));
    CHECK(scaler.fit(1).offset == Approx(-1.5).margin(0.12));
  }
  CHECK(scaler.fit(2).slope == 1);  // nobody taught it
}

TEST_CASE("the history's columns after reads by hand") {
  History h;
  h.reset(9);
  std::array<std::uint8_t, 1> read{};
  std::array<float, 1> margin{};
  GroupView group;
  LayerView view;
  for (const int r : {1, 0, 0, 1, 0}) {
    read[0] = static_cast<std::uint8_t>(r);
    margin[0] = r != 0 ? 1.0F : -2.0F;
    h.add({9, 0, 1, read.data(), margin.data(), &group, &view});
  }
  CHECK(h.bits[9] == 0b10010U);
  CHECK(h.gap(9) == 1);
  CHECK(h.age[9] == 5);
  const double d = std::exp2(-1.0 / 8);
  CHECK(h.rate8[9] == Approx((std::pow(d, 4) + d) * (1 - d)));
  CHECK(h.peak[9] == Approx(0.75));
  double m = 1;
  const double half = std::exp2(-0.5);
  for (const double now : {-2.0, -2.0, 1.0, -2.0}) m = m * half + now * (1 - half);
  CHECK(h.margin[9] == Approx(m));
}

constexpr std::size_t kH = GruWeights::kHidden;
constexpr std::size_t kI = GruWeights::kInputs;

/// One step of one direction in double precision, plainly.
std::vector<double> plain_step(const GruWeights::Direction& w, const std::vector<double>& input,
                               const std::vector<double>& before) {
  const auto sig = [](double x) { return 1 / (1 + std::exp(-x)); };
  std::vector<double> x(3 * kH), u(3 * kH);
  for (std::size_t g = 0; g < 3 * kH; ++g) {
    x[g] = w.b[g];
    for (std::size_t i = 0; i < kI; ++i) x[g] += w.w[g * kI + i] * input[i];
    for (std::size_t i = 0; i < kH; ++i) u[g] += w.u[g * kH + i] * before[i];
  }
  std::vector<double> after(kH);
  for (std::size_t j = 0; j < kH; ++j) {
    const double z = sig(x[j] + u[j]);
    const double r = sig(x[kH + j] + u[kH + j]);
    after[j] = (1 - z) * std::tanh(x[2 * kH + j] + r * u[2 * kH + j]) + z * before[j];
  }
  return after;
}

/// The whole network of networks.hpp, likewise.
std::vector<std::vector<double>> plain_gru(const GruWeights& w,
                                           const std::vector<std::vector<double>>& inputs) {
  const std::size_t n = inputs.size();
  std::vector<std::vector<double>> states(n, std::vector<double>(2 * kH));
  for (std::size_t d = 0; d < 2; ++d) {
    std::vector<double> h(kH, 0);
    for (std::size_t s = 0; s < n; ++s) {
      const std::size_t b = d == 0 ? s : n - 1 - s;
      h = plain_step(w.direction[d], inputs[b], h);
      std::copy(h.begin(), h.end(), states[b].begin() + static_cast<std::ptrdiff_t>(d * kH));
    }
  }
  std::vector<std::vector<double>> out(n, std::vector<double>(GruWeights::kOutputs));
  for (std::size_t b = 0; b < n; ++b) {
    for (std::size_t o = 0; o < GruWeights::kOutputs; ++o) {
      out[b][o] = w.c[o];
      for (std::size_t k = 0; k < 2 * kH; ++k) out[b][o] += w.v[o * 2 * kH + k] * states[b][k];
    }
  }
  return out;
}

TEST_CASE("the batched recurrent network agrees with double precision, lanes of any length") {
  const test::SomeWeights some(11, 0.25F);
  const auto tensors = some.tensors();
  const auto weights = GruWeights::from(tensors);
  REQUIRE(weights);
  Rng rng(3);
  GruBatch batch;
  batch.shape(5);
  std::array<std::uint32_t, 4> lengths{5, 1, 3, 4};
  std::vector<std::vector<std::vector<double>>> inputs(lengths.size());
  for (std::uint32_t lane = 0; lane < lengths.size(); ++lane) {
    batch.set_length(lane, lengths[lane]);
    for (std::uint32_t b = 0; b < lengths[lane]; ++b) {
      inputs[lane].emplace_back(GruWeights::kInputs);
      for (std::uint32_t i = 0; i < GruWeights::kInputs; ++i) {
        const auto x = static_cast<float>(2 * rng.uniform() - 1);
        inputs[lane][b][i] = static_cast<double>(x);
        batch.input(b, lane)[i * GruBatch::kLanes] = x;
      }
    }
  }
  batch.run(*weights);
  for (std::uint32_t lane = 0; lane < lengths.size(); ++lane) {
    const auto truth = plain_gru(*weights, inputs[lane]);
    for (std::uint32_t b = 0; b < lengths[lane]; ++b) {
      for (std::uint32_t o = 0; o < GruWeights::kOutputs; ++o) {
        CHECK(batch.output(b, lane)[o * GruBatch::kLanes] == Approx(truth[b][o]).margin(2e-5));
      }
    }
  }
}

TEST_CASE("line and net agree with double precision") {
  const test::SomeWeights some(7);
  const auto tensors = some.tensors();
  const auto line = LogisticWeights::from(tensors);
  const auto net = NetWeights::from(tensors);
  REQUIRE(line);
  REQUIRE(net);
  Rng rng(9);
  Features f;
  for (auto& row : f) {
    for (float& v : row) v = static_cast<float>(2 * rng.uniform() - 1);
  }
  Logits by_line;
  Logits by_net;
  line->logits(f, by_line);
  net->logits(f, by_net);
  for (std::size_t i = 0; i < Run::kLength; ++i) {
    for (std::size_t k = 0; k < kTrainedSteps; ++k) {
      double a = line->bias[k];
      for (std::size_t j = 0; j < LogisticWeights::kInputs; ++j)
        a += static_cast<double>(line->weight[k][j]) * f[j][i];
      CHECK(by_line[k][i] == Approx(a).margin(1e-5));
      double b = net->b2[k];
      for (std::size_t h = 0; h < NetWeights::kHidden; ++h) {
        double u = net->b1[h];
        for (std::size_t j = 0; j < NetWeights::kInputs; ++j)
          u += static_cast<double>(net->w1[h][j]) * f[j][i];
        b += static_cast<double>(net->w2[k][h]) * std::max(u, 0.0);
      }
      CHECK(by_net[k][i] == Approx(b).margin(1e-5));
    }
  }
}

}  // namespace
}  // namespace lehr::predictors
