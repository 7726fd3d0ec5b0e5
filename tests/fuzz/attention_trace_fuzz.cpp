// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "runtime/formats/attention_trace.hpp"
#include "runtime/selection.hpp"
#include "tests/fuzz/fuzz_input.hpp"

/// What is accepted can be walked and selected from, to the last row.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lehr;
  const fuzz::AlignedInput input(data, size);
  const auto trace = formats::AttentionTrace::parse(input.bytes(), "fuzz");
  if (!trace) {
    fuzz::require(!trace.error().what.empty(), "an error without a text");
    return 0;
  }
  Selector selector(*SelectionRule::parse("mass:0.95"));
  for (std::uint32_t step = 0; step < (*trace).steps(); ++step) {
    for (std::uint32_t layer = 0; layer < (*trace).layers(); ++layer) {
      for (std::uint32_t head = 0; head < (*trace).kv_heads(); ++head) {
        const std::uint32_t pages = (*trace).pages_at(step);
        const auto chosen = selector.select((*trace).mass_row(step, layer, head),
                                            (*trace).peak_row(step, layer, head), pages);
        fuzz::require(!chosen.empty() && chosen.back() == pages - 1, "the tail is not selected");
        fuzz::require(std::is_sorted(chosen.begin(), chosen.end()), "selection out of order");
      }
    }
  }
  return 0;
}
