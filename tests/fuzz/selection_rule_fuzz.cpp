// SPDX-License-Identifier: Apache-2.0
#include "runtime/selection.hpp"
#include "tests/fuzz/fuzz_input.hpp"

/// A rule that is accepted means the same after it is written and read again.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lehr;
  const auto rule = SelectionRule::parse(fuzz::as_text(data, size));
  if (!rule) return 0;
  const auto again = SelectionRule::parse((*rule).text());
  fuzz::require(again && (*again).kind == (*rule).kind && (*again).amount == (*rule).amount,
                "a rule changed on its way through text");
  return 0;
}
