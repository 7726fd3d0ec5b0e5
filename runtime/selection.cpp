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

/// 2^31 * 2^(-i/8), rounded down: the share of code c is kOctave[c % 8] >> (c / 8), rounded down
/// too.
constexpr std::array<std::uint32_t, 8> kOctave = {2147483648U, 1969251187U, 1805811301U,
                                                  1655936264U, 1518500249U, 1392470868U,
                                                  1276901416U, 1170923761U};

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

/// Sum of the weights of pages whose key <= limit. Where the row's total fits,
/// 32-bit sums double the lanes at work.
LEHR_VECTOR_CLONES
std::uint32_t weight_to(const MassCode* keys, const std::uint32_t* weights, std::size_t n,
                        MassCode limit, std::uint32_t total) {
  for (std::size_t i = 0; i < n; ++i) total += keys[i] <= limit ? weights[i] : 0U;
  return total;
}

LEHR_VECTOR_CLONES
std::uint64_t weight_to(const MassCode* keys, const std::uint32_t* weights, std::size_t n,
                        MassCode limit, std::uint64_t total) {
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

/// Where a ranking is cut: keys below `code` are in, of those equal to it the ones from
/// `first_equal` on.
struct Cut {
  MassCode code;
  std::uint32_t first_equal;
};

/// The smallest code up to which the pages sum to `wanted`, and what those below it sum to. The sum
/// up to code 255 is taken to be enough.
template <class T>
struct Threshold {
  MassCode code;
  T below;
};
template <class T, class Sum>
Threshold<T> threshold(T wanted, Sum sum_to) {
  unsigned low = 0;
  unsigned high = kNoMass;
  T below = 0;
  while (low < high) {
    const unsigned middle = (low + high) / 2;
    const T sum = sum_to(static_cast<MassCode>(middle));
    if (sum >= wanted) {
      high = middle;
    } else {
      low = middle + 1;
      below = sum;
    }
  }
  return {static_cast<MassCode>(low), below};
}

constexpr std::uint64_t kLow7 = 0x7F7F7F7F7F7F7F7FULL;
constexpr std::uint64_t kHigh = ~kLow7;
static_assert(std::endian::native == std::endian::little, "byte i of a word is page i");

std::uint64_t load_word(const MassCode* keys) {
  std::uint64_t word = 0;
  std::memcpy(&word, keys, sizeof word);
  return word;
}

std::uint64_t in_each_byte(MassCode code) { return code * 0x0101010101010101ULL; }

/// Bit i: is byte i of `keys` <= that byte of `limits`?
std::uint64_t bytes_up_to(std::uint64_t keys, std::uint64_t limits) {
  const std::uint64_t low_part = (limits | kHigh) - (keys & kLow7);
  const std::uint64_t flags = ((~keys & limits) | (~(keys ^ limits) & low_part)) & kHigh;
  return ((flags >> 7) * 0x0102040810204080ULL) >> 56;  // gathers the eight flags in the top byte
}

/// Is any byte of `keys` equal to that byte of `wanted`?
bool any_equal(std::uint64_t keys, std::uint64_t wanted) {
  const std::uint64_t differ = keys ^ wanted;
  return (~(((differ & kLow7) + kLow7) | differ) & kHigh) != 0;
}

/// Walks from the last page down over those with `code` until take(page) says that it was the last
/// one needed. Returns that page, or `pages` if none was taken.
template <class Take>
std::uint32_t take_latest(const MassCode* keys, std::uint32_t pages, MassCode code, Take take) {
  const std::uint64_t wanted = in_each_byte(code);
  std::uint32_t first = pages;
  std::uint32_t end = pages;
  while (end > 0) {
    const std::uint32_t begin = end >= 8 ? end - 8 : 0;
    if (end >= 8 && !any_equal(load_word(keys + begin), wanted)) {
      end = begin;
      continue;
    }
    for (; end > begin; --end) {
      if (keys[end - 1] != code) continue;
      first = end - 1;
      if (take(first)) return first;
    }
  }
  return first;
}

Cut cut_by_count(const MassCode* keys, std::uint32_t pages, std::size_t wanted) {
  const auto at = threshold(wanted, [&](MassCode c) { return count_to(keys, pages, c); });
  std::size_t left = wanted - at.below;
  return {at.code, take_latest(keys, pages, at.code, [&](std::uint32_t) { return --left == 0; })};
}

template <class T>
Cut cut_by_mass(const MassCode* keys, const std::uint32_t* weights, std::uint32_t pages, T wanted) {
  if (wanted == 0) return {0, pages};
  const auto at =
      threshold(wanted, [&](MassCode c) { return weight_to(keys, weights, pages, c, T{0}); });
  T have = at.below;
  return {at.code, take_latest(keys, pages, at.code, [&](std::uint32_t page) {
            have += weights[page];
            return have >= wanted;
          })};
}

/// Appends the indices in [begin, end) whose key <= limit.
std::uint32_t* emit(const MassCode* keys, std::uint32_t begin, std::uint32_t end, MassCode limit,
                    std::uint32_t* out) {
  const std::uint64_t limits = in_each_byte(limit);
  std::uint32_t i = begin;
  // 64 pages at a time: the inner loop then ends, and is mispredicted, once in 64 pages.
  for (; i + 64 <= end; i += 64) {
    std::uint64_t hits = 0;
    for (std::uint32_t word = 0; word < 8; ++word) {
      hits |= bytes_up_to(load_word(keys + i + 8 * word), limits) << (8 * word);
    }
    for (; hits != 0; hits &= hits - 1) {
      *out++ = i + static_cast<std::uint32_t>(std::countr_zero(hits));
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
    const std::uint64_t wanted = ceil_share(rule_.amount, total);
    cut = total <= UINT32_MAX
              ? cut_by_mass(keys, weights_.data(), pages, static_cast<std::uint32_t>(wanted))
              : cut_by_mass(keys, weights_.data(), pages, wanted);
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
