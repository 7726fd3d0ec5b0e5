// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "kernels/base/status.hpp"
#include "runtime/include/lehr.h"

// The exported numbers are those of the vocabulary.
#define LEHR_SAME(exported, ours) static_assert(static_cast<int>(lehr::ours) == (exported))
LEHR_SAME(LEHR_CLASS_INVALID, Code::kInvalid);
LEHR_SAME(LEHR_CLASS_NOT_FOUND, Code::kNotFound);
LEHR_SAME(LEHR_CLASS_REFUSED, Code::kRefused);
LEHR_SAME(LEHR_CLASS_IO, Code::kIo);
LEHR_SAME(LEHR_CLASS_CORRUPT, Code::kCorrupt);
LEHR_SAME(LEHR_CLASS_VERSION, Code::kVersion);
LEHR_SAME(LEHR_CLASS_UNSUPPORTED, Code::kUnsupported);
LEHR_SAME(LEHR_CLASS_STALE, Code::kStale);
LEHR_SAME(LEHR_CLASS_CANCELLED, Code::kCancelled);
LEHR_SAME(LEHR_CLASS_INTERNAL, Code::kInternal);
LEHR_SAME(LEHR_REASON_NO_EVICTABLE, Reason::kNoEvictable);
LEHR_SAME(LEHR_REASON_OVER_BUDGET, Reason::kOverBudget);
LEHR_SAME(LEHR_REASON_LOWER_TIER_BUSY, Reason::kLowerTierBusy);
LEHR_SAME(LEHR_REASON_LEASED, Reason::kLeased);
LEHR_SAME(LEHR_REASON_CHECKSUM, Reason::kChecksum);
LEHR_SAME(LEHR_REASON_GENERATION, Reason::kGeneration);
LEHR_SAME(LEHR_REASON_LAYOUT_MISMATCH, Reason::kLayoutMismatch);
LEHR_SAME(LEHR_REASON_QUOTA, Reason::kQuota);
LEHR_SAME(LEHR_REASON_NO_SPACE, Reason::kNoSpace);
LEHR_SAME(LEHR_REASON_TRUNCATED, Reason::kTruncated);
LEHR_SAME(LEHR_REASON_OUT_OF_RANGE, Reason::kOutOfRange);
LEHR_SAME(LEHR_REASON_FORKED, Reason::kForked);
LEHR_SAME(LEHR_REASON_MASK, Reason::kMask);
LEHR_SAME(LEHR_REASON_PENDING, Reason::kPending);
LEHR_SAME(LEHR_REASON_THRASH, Reason::kThrash);

namespace {

constexpr std::array<const char*, 4> kPositive{"ok", "pending", "partial", "retry"};
constexpr std::array<const char*, 11> kClasses{"ok",    "invalid",   "not_found", "refused",
                                               "io",    "corrupt",   "version",   "unsupported",
                                               "stale", "cancelled", "internal"};
constexpr std::array<const char*, 16> kReasons{
    "none",   "no_evictable", "over_budget", "lower_tier_busy",
    "leased", "checksum",     "generation",  "layout_mismatch",
    "quota",  "no_space",     "truncated",   "out_of_range",
    "forked", "mask",         "pending",     "thrash"};

template <std::size_t N>
const char* name_at(const std::array<const char*, N>& names, int32_t index) {
  return index >= 0 && static_cast<std::size_t>(index) < N ? names[static_cast<std::size_t>(index)]
                                                           : "unknown";
}

}  // namespace

extern "C" {

const char* lehr_status_name(lehr_status status) {
  return status >= 0 ? name_at(kPositive, status) : name_at(kClasses, LEHR_STATUS_CLASS(status));
}

const char* lehr_reason_name(lehr_status status) {
  return name_at(kReasons, LEHR_STATUS_REASON(status));
}

}  // extern "C"
