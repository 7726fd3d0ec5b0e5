// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"
#include "runtime/formats/safetensors.hpp"
#include "runtime/predictor_weights.hpp"

namespace lehr::runtime {
namespace {

std::vector<std::byte> file_of(const formats::Metadata& metadata, formats::TensorType type,
                               std::size_t count) {
  const std::vector<std::byte> data(count * formats::element_bytes(type), std::byte{0});
  const std::vector<formats::Tensor> tensors{{"logistic.bias", type, {count}, data}};
  const auto header = formats::safetensors_header(metadata, tensors);
  REQUIRE(header);
  std::vector<std::byte> out(header->size() + data.size());
  std::memcpy(out.data(), header->data(), header->size());
  std::copy(data.begin(), data.end(), out.begin() + static_cast<std::ptrdiff_t>(header->size()));
  return out;
}

const formats::Metadata kGood{{"format", "lehr.predictor-weights"}, {"version", "1"}};

TEST_CASE("the shipped weights serve every trained predictor") {
  const auto& shipped = PredictorWeights::shipped();
  CHECK(shipped.tensors().size() == 14);
  CHECK_FALSE(shipped.note("command").empty());
  CHECK_FALSE(shipped.note("trained_on").empty());
  CHECK_FALSE(shipped.note("held_out_log_loss").empty());
  for (const auto* d : predictors::models()) {
    auto made = predictors::make_predictor(d->name, {});
    REQUIRE(made);
    predictors::PredictorContext context;
    context.layers = 2;
    context.kv_heads = 1;
    context.horizon = 3;
    context.weights = shipped.tensors();
    const Status begun = (*made)->begin(context);
    INFO((begun ? std::string() : begun.error().what));
    CHECK(begun);
  }
}

TEST_CASE("weight files of another format, version or type are refused with what was expected") {
  CHECK(PredictorWeights::parse(file_of(kGood, formats::TensorType::kF32, 3), "w"));
  const auto wrong_version =
      PredictorWeights::parse(file_of({{"format", "lehr.predictor-weights"}, {"version", "2"}},
                                      formats::TensorType::kF32, 3),
                              "w");
  REQUIRE_FALSE(wrong_version);
  CHECK(wrong_version.error().what.find("version \"2\"") != std::string::npos);
  CHECK_FALSE(PredictorWeights::parse(file_of({}, formats::TensorType::kF32, 3), "w"));
  const auto half = PredictorWeights::parse(file_of(kGood, formats::TensorType::kF16, 3), "w");
  REQUIRE_FALSE(half);
  CHECK(half.error().what.find("F32") != std::string::npos);
  const auto large = PredictorWeights::parse(
      file_of(kGood, formats::TensorType::kF32, PredictorWeights::kMostBytes / 4), "w");
  REQUIRE_FALSE(large);
  CHECK(large.error().what.find("at most") != std::string::npos);
  CHECK_FALSE(PredictorWeights::named("/no/such/file.safetensors"));
}

TEST_CASE("a weight file with any byte changed or cut off is read or refused, never more") {
  const auto good = file_of(kGood, formats::TensorType::kF32, 3);
  for (std::size_t n = 0; n < good.size(); ++n)
    CHECK_FALSE(PredictorWeights::parse(std::span(good).first(n), "w"));
  Rng rng(4);
  for (int i = 0; i < 3000; ++i) {
    auto bad = good;
    bad[rng.below(static_cast<std::uint32_t>(bad.size()))] = static_cast<std::byte>(rng.below(256));
    const auto read = PredictorWeights::parse(bad, "w");
    if (!read) continue;
    auto line = predictors::make_predictor("logistic", {});
    REQUIRE(line);
    predictors::PredictorContext context;
    context.layers = context.kv_heads = 1;
    context.weights = read->tensors();
    CHECK_FALSE((*line)->begin(context));  // logistic.weight is not there
  }
}

}  // namespace
}  // namespace lehr::runtime
