// SPDX-License-Identifier: Apache-2.0
#include "transfer/faults.hpp"

#include <charconv>
#include <string>

namespace lehr::transfer {
namespace {

constexpr struct {
  std::string_view name;
  FaultKind kind;
} kKinds[] = {
    {"eio", FaultKind::kIoError},       {"enospc", FaultKind::kNoSpace},
    {"truncate", FaultKind::kTruncate}, {"short", FaultKind::kShort},
    {"slow", FaultKind::kSlow},         {"reorder", FaultKind::kReorder},
    {"bitflip", FaultKind::kBitFlip},
};
constexpr struct {
  std::string_view name;
  FaultOp op;
} kOps[] = {{"copy", FaultOp::kCopy}, {"read", FaultOp::kRead}, {"write", FaultOp::kWrite}};
constexpr struct {
  std::string_view name;
  Guard guard;
} kGuards[] = {{"leases", Guard::kLeases},
               {"checksum", Guard::kChecksum},
               {"generation", Guard::kGeneration},
               {"reservation", Guard::kReservation},
               {"order", Guard::kOrder}};

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

/// The part before `mark`; `text` keeps the part after it.
std::string_view cut(std::string_view& text, char mark) {
  const std::size_t at = text.find(mark);
  const std::string_view head = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view{} : text.substr(at + 1);
  return trim(head);
}

Result<std::uint64_t> number(std::string_view text, std::string_view entry) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return invalid("fault plan: '" + std::string(entry) + "': '" + std::string(text) +
                   "' is not a number");
  }
  return value;
}

Result<Fault> parse_fault(std::string_view entry) {
  Fault fault;
  std::string_view rest = entry;
  std::string_view where = cut(rest, '=');
  std::string_view what = trim(rest);
  const std::string_view op = cut(where, '#');
  const std::string_view nth = cut(where, '/');
  bool known = false;
  for (const auto& candidate : kOps) {
    if (candidate.name == op) {
      fault.op = candidate.op;
      known = true;
    }
  }
  if (!known) {
    return invalid("fault plan: '" + std::string(entry) + "': expected copy, read or write");
  }
  if (!nth.empty()) {
    LEHR_ASSIGN(fault.nth, number(nth, entry));
  }
  if (!where.empty()) {
    LEHR_ASSIGN(fault.every, number(trim(where), entry));
  }
  const std::string_view kind = cut(what, ':');
  if (!what.empty()) {
    LEHR_ASSIGN(fault.amount, number(trim(what), entry));
  }
  for (const auto& candidate : kKinds) {
    if (candidate.name == kind) {
      fault.kind = candidate.kind;
      return fault;
    }
  }
  return invalid("fault plan: '" + std::string(entry) +
                 "': expected eio, enospc, truncate, short, slow, reorder or bitflip");
}

}  // namespace

Result<FaultPlan> FaultPlan::parse(std::string_view text) {
  FaultPlan plan;
  while (!text.empty()) {
    const std::string_view entry = cut(text, ';');
    if (entry.empty()) continue;
    if (entry.substr(0, 4) == "off=") {
      const std::size_t before = plan.guards_off.size();
      for (const auto& candidate : kGuards) {
        if (candidate.name == trim(entry.substr(4))) plan.guards_off.push_back(candidate.guard);
      }
      if (plan.guards_off.size() == before) {
        return invalid("fault plan: '" + std::string(entry) +
                       "': expected leases, checksum, generation or reservation");
      }
      continue;
    }
    LEHR_ASSIGN(const Fault fault, parse_fault(entry));
    plan.faults.push_back(fault);
  }
  return plan;
}

std::optional<Fault> FaultInjector::next(FaultOp op) {
  const std::uint64_t count =
      seen_[static_cast<std::size_t>(op)].fetch_add(1, std::memory_order_relaxed) + 1;
  for (const Fault& fault : plan_.faults) {
    if (fault.op != op || count < fault.nth) continue;
    const std::uint64_t past = count - fault.nth;
    if (past == 0 || (fault.every != 0 && past % fault.every == 0)) {
      injected_.fetch_add(1, std::memory_order_relaxed);
      return fault;
    }
  }
  return std::nullopt;
}

}  // namespace lehr::transfer
