// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace lehr {

/// What kind of failure an Error is. Values are append-only: the C API exports them.
enum class Code : std::uint8_t {
  kOk = 0,
  kInvalid = 1,      ///< the caller's argument or input is wrong
  kNotFound = 2,     ///< a name, key or file that is not there
  kRefused = 3,      ///< legal, but not possible now; the reason says why, state is unchanged
  kIo = 4,           ///< the operating system or a device failed
  kCorrupt = 5,      ///< stored bytes are not what was written, or a file breaks its format
  kVersion = 6,      ///< a newer or foreign version
  kUnsupported = 7,  ///< understood, but not offered by this build, machine or shape
  kStale = 8,        ///< a handle whose object is gone, or that belongs to another runtime
  kCancelled = 9,
  kInternal = 10,  ///< a broken invariant of Lehr's own
};

/// Why something was refused. Values are append-only: the C API exports them.
enum class Reason : std::uint8_t {
  kNone = 0,
  kNoEvictable = 1,     ///< every candidate is pinned, leased or being read
  kOverBudget = 2,      ///< a byte, page or queue budget would be passed
  kLowerTierBusy = 3,   ///< the tier below cannot take what would have to go down
  kLeased = 4,          ///< a lease holds the object
  kChecksum = 5,        ///< contents do not match their checksum
  kGeneration = 6,      ///< contents are of another generation than asked for
  kLayoutMismatch = 7,  ///< same name, another byte layout
  kQuota = 8,           ///< a tenant's quota
  kNoSpace = 9,         ///< the file system or device is full
  kTruncated = 10,      ///< fewer bytes than the format promises
  kOutOfRange = 11,
  kForked = 12,  ///< used in a forked child
  kMask = 13,    ///< an attention mask that cannot be honoured
  kPending = 14,
  kThrash = 15,
};

/// A failure as a value: kind, reason, and one line "what, where, what was expected".
struct Error {
  Code code = Code::kInternal;
  Reason reason = Reason::kNone;
  std::string what;
};

inline Error invalid(std::string what, Reason reason = Reason::kNone) {
  return {Code::kInvalid, reason, std::move(what)};
}
inline Error refused(Reason reason, std::string what) {
  return {Code::kRefused, reason, std::move(what)};
}
inline Error corrupt(std::string what, Reason reason = Reason::kNone) {
  return {Code::kCorrupt, reason, std::move(what)};
}
inline Error io_error(std::string what, Reason reason = Reason::kNone) {
  return {Code::kIo, reason, std::move(what)};
}
inline Error not_found(std::string what) {
  return {Code::kNotFound, Reason::kNone, std::move(what)};
}
inline Error unsupported(std::string what) {
  return {Code::kUnsupported, Reason::kNone, std::move(what)};
}
inline Error internal_error(std::string what) {
  return {Code::kInternal, Reason::kNone, std::move(what)};
}

}  // namespace lehr
