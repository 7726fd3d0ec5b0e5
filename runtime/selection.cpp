// SPDX-License-Identifier: Apache-2.0
#include "runtime/selection.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstring>

#include <fmt/format.h>

// The loops below are plain C++ that the compiler turns into vector code; on x86-64 it does so once
// for each instruction set and picks at load time. Sanitizers do not allow that: they are not up
// yet when the choice is made.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LEHR_VECTOR_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#else
#define LEHR_VECTOR_CLONES
#endif

namespace lehr {
namespace {

/// 2^31 * 2^(-i/8): the share of code c is kOctave[c % 8] >> (c / 8).
constexpr std::array<std::uint32_t, 8> kOctave = {2147483648U, 1969229276U, 1805811301U,
                                                  1655954786U, 1518500250U, 1392470869U,
                                                  1276901417U, 1170923762U};

/// A share in 31-bit fixed point: exact to add, so that the same pages are chosen everywhere.
constexpr std::array<std::uint32_t, 256> make_weights() {
  std::array<std::uint32_t, 256> table{};
  for (unsigned c = 0; c < kNoMass; ++c) table[c] = kOctave[c % 8] >> (c / 8);
  return table;
}
constexpr std::array<std::uint32_t, 256> kWeights = make_weights();

LEHR_VECTOR_CLONES
void mean_codes(const MassCode* mass, const MassCode* peak, std::size_t n, MassCode* keys) {
  for (std::size_t i = 0; i < n; ++i) {
    keys[i] = static_cast<MassCode>((unsigned{mass[i]} + unsigned{peak[i]} + 1U) >> 1U);
  }
}

/// Number of keys <= limit.
LEHR_VECTOR_CLONES
std::size_t count_to(const MassCode* keys, std::size_t n, MassCode limit) {
  std::size_t total = 0;
  // Byte-wide counters for as long as they cannot overflow: that keeps whole vectors of lanes at
  // work.
  constexpr std::size_t kLanes = 64;
  std::size_t i = 0;
  while (i + kLanes <= n) {
    std::array<std::uint8_t, kLanes> lanes{};
    const std::size_t stop = std::min(n - kLanes, i + kLanes * 254);
    for (; i <= stop; i += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] = static_cast<std::uint8_t>(lanes[lane] + (keys[i + lane] <= limit ? 1 : 0));
      }
    }
    for (const std::uint8_t lane : lanes) total += lane;
  }
  for (; i < n; ++i) total += keys[i] <= limit ? 1U : 0U;
  return total;
}

/// Sum of the weights of pages whose key <= limit.
LEHR_VECTOR_CLONES
std::uint64_t weight_to(const MassCode* keys, const std::uint32_t* weights, std::size_t n,
                        MassCode limit) {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < n; ++i) total += keys[i] <= limit ? weights[i] : 0U;
  return total;
}

LEHR_VECTOR_CLONES
std::uint64_t look_up_weights(const MassCode* mass, std::size_t n, std::uint32_t* weights) {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t w = kWeights[mass[i]];
    weights[i] = w;
    total += w;
  }
  return total;
}

/// The smallest code for which enough(code) holds; enough(255) is taken to hold.
template <class Enough>
MassCode smallest(Enough enough) {
  unsigned low = 0;
  unsigned high = kNoMass;
  while (low < high) {
    const unsigned middle = (low + high) / 2;
    if (enough(static_cast<MassCode>(middle))) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return static_cast<MassCode>(low);
}

/// Bit 7 of each byte: is the key <= the byte of `limits` (all equal)?
std::uint64_t bytes_up_to(std::uint64_t keys, std::uint64_t limits) {
  constexpr std::uint64_t kHigh = 0x8080808080808080ULL;
  const std::uint64_t low_part = (limits | kHigh) - (keys & ~kHigh);
  return ((~keys & limits) | (~(keys ^ limits) & low_part)) & kHigh;
}

/// Appends the indices in [begin, end) whose key <= limit.
std::uint32_t* emit(const MassCode* keys, std::uint32_t begin, std::uint32_t end, MassCode limit,
                    std::uint32_t* out) {
  const std::uint64_t limits = limit * 0x0101010101010101ULL;
  std::uint32_t i = begin;
  for (; i + 8 <= end; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, keys + i, sizeof word);
    for (std::uint64_t hits = bytes_up_to(word, limits); hits != 0; hits &= hits - 1) {
      const auto bit = static_cast<std::uint32_t>(std::countr_zero(hits));
      if constexpr (std::endian::native == std::endian::little) {
        *out++ = i + bit / 8;
      } else {
        *out++ = i + 7 - bit / 8;
      }
    }
  }
  for (; i < end; ++i) {
    if (keys[i] <= limit) *out++ = i;
  }
  return out;
}

std::uint32_t* emit_range(std::uint32_t begin, std::uint32_t end, std::uint32_t* out) {
  for (std::uint32_t i = begin; i < end; ++i) *out++ = i;
  return out;
}

/// Where a ranking is cut: keys below `code` are in, of those equal to it the ones from
/// `first_equal` on.
struct Cut {
  MassCode code;
  std::uint32_t first_equal;
};

Cut cut_by_count(const MassCode* keys, std::uint32_t pages, std::size_t wanted) {
  const MassCode code = smallest([&](MassCode c) { return count_to(keys, pages, c) >= wanted; });
  const std::size_t below = code == 0 ? 0 : count_to(keys, pages, static_cast<MassCode>(code - 1));
  std::size_t left = wanted > below ? wanted - below : 0;
  std::uint32_t first = pages;
  while (left > 0 && first > 0) left -= keys[--first] == code ? 1U : 0U;
  return {code, first};
}

Cut cut_by_mass(const MassCode* keys, const std::uint32_t* weights, std::uint32_t pages,
                std::uint64_t wanted) {
  const MassCode code =
      smallest([&](MassCode c) { return weight_to(keys, weights, pages, c) >= wanted; });
  std::uint64_t have =
      code == 0 ? 0 : weight_to(keys, weights, pages, static_cast<MassCode>(code - 1));
  std::uint32_t first = pages;
  while (have < wanted && first > 0) {
    --first;
    if (keys[first] == code) have += weights[first];
  }
  return {code, first};
}

/// ceil(share * whole), forgiving the rounding of shares such as 0.1.
std::uint64_t ceil_share(double share, std::uint64_t whole) {
  const double exact = share * static_cast<double>(whole);
  const double nearest = std::round(exact);
  const double up = std::abs(exact - nearest) <= 1e-9 * exact ? nearest : std::ceil(exact);
  return std::min(whole, static_cast<std::uint64_t>(up));
}

Error nonsense(std::string_view text, std::string_view expected) {
  return invalid(fmt::format("selection '{}': expected {}", text, expected));
}

/// "0.1" or "10%".
bool parse_share(std::string_view text, double& share) {
  const bool percent = text.ends_with('%');
  if (percent) text.remove_suffix(1);
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (error != std::errc() || stop != text.data() + text.size()) return false;
  if (percent) share /= 100.0;
  return share > 0.0 && share <= 1.0;
}

}  // namespace

Result<SelectionRule> SelectionRule::parse(std::string_view text) {
  SelectionRule rule;
  if (text == "all") return rule;
  const std::size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  const std::string_view value =
      colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  if (kind == "count") {
    std::uint32_t count = 0;
    const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), count);
    if (error != std::errc() || stop != value.data() + value.size() || count == 0) {
      return nonsense(text, "count:N with N a whole number of pages, at least 1");
    }
    rule.kind = Kind::kCount;
    rule.amount = count;
    return rule;
  }
  if (kind != "topk" && kind != "mass") {
    return nonsense(text, "all, topk:RATIO, count:N or mass:SHARE");
  }
  if (!parse_share(value, rule.amount)) {
    return nonsense(text,
                    fmt::format("{0}:SHARE with a share above 0 and up to 1, such as {0}:{1}", kind,
                                kind == "topk" ? "0.1 or topk:10%" : "0.95 or mass:95%"));
  }
  rule.kind = kind == "topk" ? Kind::kTopRatio : Kind::kMass;
  return rule;
}

std::string SelectionRule::text() const {
  switch (kind) {
    case Kind::kTopRatio:
      return fmt::format("topk:{}", amount);
    case Kind::kCount:
      return fmt::format("count:{}", amount);
    case Kind::kMass:
      return fmt::format("mass:{}", amount);
    case Kind::kAll:
      break;
  }
  return "all";
}

void Selector::reserve(std::uint32_t pages) {
  if (pages <= chosen_.size()) return;
  keys_.resize(pages);
  weights_.resize(pages);
  chosen_.resize(pages);
}

std::span<const std::uint32_t> Selector::select(const MassCode* mass, const MassCode* peak,
                                                std::uint32_t pages) {
  if (pages == 0) return {};
  reserve(pages);
  std::uint32_t* const start = chosen_.data();
  const std::uint32_t recent = std::clamp<std::uint32_t>(rule_.recent, 1, pages);
  const std::uint32_t window = pages - recent;
  const std::uint32_t sinks = std::min(rule_.sinks, window);

  const std::uint64_t count = rule_.kind == SelectionRule::Kind::kTopRatio
                                  ? ceil_share(rule_.amount, pages)
                                  : static_cast<std::uint64_t>(rule_.amount);
  if (rule_.kind == SelectionRule::Kind::kAll ||
      (rule_.kind != SelectionRule::Kind::kMass && count >= pages)) {
    return {start, emit_range(0, pages, start)};
  }

  const MassCode* keys = mass;
  if (peak != nullptr) {
    mean_codes(mass, peak, pages, keys_.data());
    keys = keys_.data();
  }
  Cut cut{};
  if (rule_.kind == SelectionRule::Kind::kMass) {
    const std::uint64_t total = look_up_weights(mass, pages, weights_.data());
    cut = cut_by_mass(keys, weights_.data(), pages, ceil_share(rule_.amount, total));
  } else {
    cut = cut_by_count(keys, pages, count);
  }

  std::uint32_t* out = emit_range(0, sinks, start);
  const std::uint32_t middle = std::clamp(cut.first_equal, sinks, window);
  if (cut.code > 0) out = emit(keys, sinks, middle, static_cast<MassCode>(cut.code - 1), out);
  out = emit(keys, middle, window, cut.code, out);
  return {start, emit_range(window, pages, out)};
}

}  // namespace lehr
