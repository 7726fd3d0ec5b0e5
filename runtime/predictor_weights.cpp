// SPDX-License-Identifier: Apache-2.0
#include "runtime/predictor_weights.hpp"

#include <cstring>

#include <fmt/core.h>

#include "runtime/formats/file.hpp"
#include "runtime/formats/safetensors.hpp"

// The shipped file, embedded by the assembler. LEHR_WEIGHTS_FILE is the build's to say.
// clang-format off
__asm__(".section .rodata\n"
        ".balign 64\n"
        "lehr_weights_begin:\n"
        ".incbin \"" LEHR_WEIGHTS_FILE "\"\n"
        "lehr_weights_end:\n"
        ".previous\n");
// clang-format on
extern "C" {  // NOLINTBEGIN(readability-identifier-naming): labels of the assembler text above
__attribute__((visibility("hidden"))) extern const std::byte lehr_weights_begin;
__attribute__((visibility("hidden"))) extern const std::byte lehr_weights_end;
}  // NOLINTEND(readability-identifier-naming)

namespace lehr::runtime {

namespace {

std::span<const std::byte> shipped_file() { return {&lehr_weights_begin, &lehr_weights_end}; }

}  // namespace

Result<PredictorWeights> PredictorWeights::parse(std::span<const std::byte> bytes,
                                                 std::string_view name) {
  if (bytes.size() > kMostBytes) {
    return invalid(
        fmt::format("{}: {} bytes, weights have at most {}", name, bytes.size(), kMostBytes));
  }
  LEHR_ASSIGN(const auto file, formats::parse_safetensors(bytes, name));
  PredictorWeights out;
  for (const auto& [key, value] : file.metadata) out.notes_.emplace_back(key, value);
  if (out.note("format") != kFormat || out.note("version") != kVersion) {
    return invalid(fmt::format("{}: format \"{}\", version \"{}\"; expected \"{}\", \"{}\"", name,
                               out.note("format"), out.note("version"), kFormat, kVersion));
  }
  out.stored_.reserve(file.tensors.size());
  for (const formats::Tensor& t : file.tensors) {
    if (t.type != formats::TensorType::kF32) {
      return invalid(fmt::format("{}: tensor '{}' is {}, expected F32", name, t.name,
                                 formats::to_string(t.type)));
    }
    Stored s;
    s.name = t.name;
    for (const std::uint64_t n : t.shape) s.shape.push_back(static_cast<std::uint32_t>(n));
    s.values.resize(t.data.size() / sizeof(float));
    if (!t.data.empty()) std::memcpy(s.values.data(), t.data.data(), t.data.size());
    out.stored_.push_back(std::move(s));
  }
  for (const Stored& s : out.stored_) out.tensors_.push_back({s.name, s.shape, s.values});
  return out;
}

Result<PredictorWeights> PredictorWeights::read(const std::filesystem::path& path) {
  LEHR_ASSIGN(const auto contents, formats::FileContents::open(path, kMostBytes));
  return parse(contents.bytes(), path.string());
}

const PredictorWeights& PredictorWeights::shipped() {
  static const PredictorWeights weights = [] {
    auto parsed = named("shipped");
    return parsed ? *std::move(parsed) : PredictorWeights{};  // a test holds that they parse
  }();
  return weights;
}

Result<PredictorWeights> PredictorWeights::named(const std::string& what) {
  if (what == "shipped") return parse(shipped_file(), "shipped weights");
  return read(what);
}

std::string_view PredictorWeights::note(std::string_view key) const {
  for (const auto& [k, v] : notes_) {
    if (k == key) return v;
  }
  return {};
}

}  // namespace lehr::runtime
