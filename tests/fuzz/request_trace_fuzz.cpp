// SPDX-License-Identifier: Apache-2.0
#include "runtime/formats/request_trace.hpp"
#include "tests/fuzz/fuzz_input.hpp"

/// What is accepted is complete: every request's blocks are there.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lehr;
  const auto trace = formats::RequestTrace::parse(fuzz::as_text(data, size), "fuzz");
  if (!trace) {
    fuzz::require(trace.error().what.find('\n') == std::string::npos, "an error of two lines");
    return 0;
  }
  std::size_t blocks = 0;
  for (const auto& request : (*trace).requests()) {
    fuzz::require(request.timestamp_ms >= 0, "negative time");
    blocks += (*trace).blocks(request).size();
  }
  fuzz::require(blocks == (*trace).hash_ids().size(), "blocks without a request");
  return 0;
}
