// SPDX-License-Identifier: Apache-2.0
#include "transfer/faults.hpp"

#include <catch2/catch.hpp>

using namespace lehr;
using namespace lehr::transfer;

TEST_CASE("A fault plan is read from text") {
  const auto plan =
      FaultPlan::parse("read#3=eio; write#1/4=short:512 ;copy=slow:250; off=checksum");
  REQUIRE(plan);
  REQUIRE(plan->faults.size() == 3);
  CHECK(plan->faults[0].op == FaultOp::kRead);
  CHECK(plan->faults[0].kind == FaultKind::kIoError);
  CHECK(plan->faults[0].nth == 3);
  CHECK(plan->faults[1].every == 4);
  CHECK(plan->faults[1].amount == 512);
  CHECK(plan->faults[2].nth == 1);
  CHECK_FALSE(plan->guards(Guard::kChecksum));
  CHECK(plan->guards(Guard::kLeases));
  CHECK(FaultPlan::parse("")->faults.empty());
}

TEST_CASE("A wrong fault plan is refused with what was expected") {
  const char* text = GENERATE("flush#1=eio", "read#x=eio", "read#1=melt", "read#1=slow:fast",
                              "read", "off=everything", "read#1/=eio/");
  CAPTURE(text);
  const auto plan = FaultPlan::parse(text);
  REQUIRE_FALSE(plan);
  CHECK(plan.error().code == Code::kInvalid);
  CHECK(plan.error().what.find("fault plan") == 0);
}

TEST_CASE("Faults hit the operations that they name") {
  FaultInjector injector(*FaultPlan::parse("read#2/3=eio;write#1=enospc"));
  std::vector<int> hit;
  for (int i = 1; i <= 9; ++i) {
    if (injector.next(FaultOp::kRead)) hit.push_back(i);
  }
  CHECK(hit == std::vector<int>{2, 5, 8});
  CHECK(injector.next(FaultOp::kWrite)->kind == FaultKind::kNoSpace);
  CHECK_FALSE(injector.next(FaultOp::kWrite));
  CHECK_FALSE(injector.next(FaultOp::kCopy));
  CHECK(injector.injected() == 4);
}
