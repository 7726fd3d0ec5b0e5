// SPDX-License-Identifier: Apache-2.0
// The host machine under faults of its transfers: what fails is told and never passes for right.
#include <catch2/catch.hpp>

#include "runtime/machines/host.hpp"
#include "tests/support/tiny_platform.hpp"

using namespace lehr;
using namespace lehr::runtime;

namespace {

constexpr PageId kPage = 7;
constexpr std::uint32_t kVersion = 3;

std::unique_ptr<Machine> machine_with(const char* faults) {
  HostMachineOptions options;
  options.platform = test::tiny_platform(true);
  options.tier_pages = {2, 2, 4};
  options.page_bytes = 8192;
  auto plan = transfer::FaultPlan::parse(faults);
  REQUIRE(plan);
  options.faults = *std::move(plan);
  auto made = make_host_machine(options);
  INFO((made ? std::string() : made.error().what));
  REQUIRE(made);
  return *std::move(made);
}

PageOp op(PageOp::Kind kind, TierId from, SlotId from_slot, TierId to, SlotId to_slot) {
  return {kind, from, to, kPage, kVersion, from_slot, to_slot};
}

/// A page is made at home, copied to HBM and read there, sent to the file and brought back to
/// another place, and read there.
Status round_trip(Machine& machine) {
  using Kind = PageOp::Kind;
  const PageOp made = op(Kind::kFill, 1, 0, 1, 0);
  LEHR_TRY(machine.set_up({&made, 1}));
  const std::vector<PageOp> up = {op(Kind::kCopy, 1, 0, kHbm, 1),
                                  op(Kind::kRead, kHbm, 1, kHbm, kNoSlot)};
  LEHR_TRY(machine.run_layer(0, 0, up));
  const std::vector<PageOp> down = {op(Kind::kCopy, 1, 0, 2, 3)};
  LEHR_TRY(machine.run_layer(0, 1, down));
  const std::vector<PageOp> back = {op(Kind::kCopy, 2, 3, 1, 1), op(Kind::kRead, 1, 1, 1, kNoSlot)};
  LEHR_TRY(machine.run_layer(1, 0, back));
  return machine.drain();
}

}  // namespace

TEST_CASE("a failing transfer of the host machine fails its layer, with the reason") {
  struct Expected {
    const char* faults;
    Code code;
    Reason reason;
  };
  const Expected e =
      GENERATE(Expected{"copy#1=eio", Code::kIo, Reason::kNone},
               Expected{"write#1=enospc", Code::kIo, Reason::kNoSpace},
               Expected{"read#1=truncate", Code::kIo, Reason::kTruncated},
               Expected{"read#1=bitflip", Code::kCorrupt, Reason::kChecksum},
               // Without the checksum of the file, the look at the contents finds it.
               Expected{"read#1=bitflip; off=checksum", Code::kCorrupt, Reason::kChecksum},
               Expected{"copy#1=bitflip", Code::kCorrupt, Reason::kChecksum});
  CAPTURE(e.faults);
  const auto machine = machine_with(e.faults);
  const Status ended = round_trip(*machine);
  REQUIRE_FALSE(ended);
  CHECK(ended.error().code == e.code);
  CHECK(ended.error().reason == e.reason);
}

TEST_CASE("transfers that are slow, short or out of order end with the right bytes") {
  const char* faults = GENERATE("", "copy#1=slow:200; read#1=slow:200", "read#1=short:4096",
                                "write#1=short:4096", "copy#1/1=reorder; write#1=reorder");
  CAPTURE(faults);
  const auto machine = machine_with(faults);
  const Status ended = round_trip(*machine);
  INFO((ended ? std::string() : ended.error().what));
  CHECK(ended);
}

TEST_CASE("a slot that one layer fills, empties and fills again ends with the last page") {
  // A page is written back, goes down, and the next one is written back to where it was: a full
  // home tier does so whenever two tails fill in one layer. Then both are read.
  using Kind = PageOp::Kind;
  const auto machine = machine_with("");
  const auto first = [](Kind kind, TierId from, SlotId from_slot, TierId to, SlotId to_slot) {
    return PageOp{kind, from, to, 7, 3, from_slot, to_slot};
  };
  const auto second = [](Kind kind, TierId from, SlotId from_slot, TierId to, SlotId to_slot) {
    return PageOp{kind, from, to, 8, 5, from_slot, to_slot};
  };
  const std::vector<PageOp> made = {first(Kind::kFill, kHbm, 0, kHbm, 0),
                                    second(Kind::kFill, kHbm, 1, kHbm, 1)};
  REQUIRE(machine->set_up(made));
  std::vector<PageOp> ops = {first(Kind::kCopy, kHbm, 0, 1, 0), first(Kind::kCopy, 1, 0, 2, 3),
                             second(Kind::kCopy, kHbm, 1, 1, 0)};
  Status ran = machine->run_layer(0, 0, ops);
  INFO((ran ? std::string() : ran.error().what));
  REQUIRE(ran);
  // And within the file: its slot is emptied by the way up and filled by the way down.
  ops = {first(Kind::kCopy, 2, 3, 1, 1),
         first(Kind::kRead, 1, 1, kHbm, kNoSlot),
         second(Kind::kCopy, 1, 0, 2, 3),
         first(Kind::kFetch, 1, 1, kHbm, 1),
         second(Kind::kCopy, 2, 3, 1, 0),
         second(Kind::kCopy, 1, 0, kHbm, 1),
         second(Kind::kRead, kHbm, 1, kHbm, kNoSlot)};
  ran = machine->run_layer(1, 0, ops);
  INFO((ran ? std::string() : ran.error().what));
  REQUIRE(ran);
  CHECK(machine->drain());
}
