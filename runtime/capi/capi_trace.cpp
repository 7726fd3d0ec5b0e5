// SPDX-License-Identifier: Apache-2.0
// Writers of attention traces.
#include <fmt/format.h>

#include "runtime/capi/boundary.hpp"

namespace lehr::capi {
namespace {

Result<std::string> text_of(const lehr_bytes& bytes, const char* what) {
  LEHR_ASSIGN(const std::string_view text, bytes_of(bytes, what));
  return std::string(text);
}

Result<formats::AttentionMeta> meta_of(const lehr_trace_desc& desc) {
  formats::AttentionMeta meta;
  LEHR_ASSIGN(meta.model, text_of(desc.model, "desc.model"));
  LEHR_ASSIGN(meta.workload, text_of(desc.workload, "desc.workload"));
  meta.page_tokens = desc.page_tokens;
  meta.q_heads = desc.q_heads;
  meta.kv_heads = desc.kv_heads;
  meta.head_dim = desc.head_dim;
  meta.kv_bytes_per_element = desc.kv_bytes_per_element;
  meta.model_layers = desc.model_layers;
  meta.prompt_tokens = desc.prompt_tokens;
  if (desc.layer_count > 0) LEHR_TRY(not_null(desc.layer_ids, "desc.layer_ids"));
  meta.layer_ids.assign(desc.layer_ids, desc.layer_ids + desc.layer_count);
  return meta;
}

/// The rows of a step, side by side.
std::vector<MassCode> packed(const std::uint8_t* codes, std::size_t rows, std::size_t pages,
                             std::size_t pitch) {
  std::vector<MassCode> out;
  out.reserve(rows * pages);
  for (std::size_t r = 0; r < rows; ++r)
    out.insert(out.end(), codes + r * pitch, codes + r * pitch + pages);
  return out;
}

/// boundary() with the trace of a handle, by one thread at a time.
template <class Body>
lehr_status with_trace(lehr_trace handle, bool last, Body body) noexcept {
  return boundary([&]() -> Status {
    Registry* const registry = Registry::get();
    if (registry == nullptr) return forked();
    LEHR_ASSIGN(const std::shared_ptr<OpenTrace> trace,
                last ? registry->remove_trace(handle.id) : registry->find_trace(handle.id));
    const std::lock_guard<std::mutex> hold(trace->mutex);
    return body(*trace);
  });
}

}  // namespace
}  // namespace lehr::capi

using namespace lehr;
using namespace lehr::capi;

extern "C" {

lehr_status lehr_trace_open(const lehr_trace_desc* desc, lehr_trace* out) {
  return boundary([&]() -> Status {
    LEHR_TRY(not_null(out, "out"));
    Registry* const registry = Registry::get();
    if (registry == nullptr) return forked();
    LEHR_ASSIGN(const lehr_trace_desc given, read_struct(desc, "desc"));
    if (given.with_peak > 1) return invalid("desc.with_peak: expected 0 or 1");
    LEHR_ASSIGN(formats::AttentionMeta meta, meta_of(given));
    LEHR_ASSIGN(const std::string path, text_of(given.path, "desc.path"));
    auto writer = formats::AttentionTraceWriter::open(path, meta, given.with_peak == 1);
    if (!writer) {
      Error error = std::move(writer).error();
      if (error.code == Code::kCorrupt) error.code = Code::kInvalid;  // the caller's, not a file's
      return error;
    }
    auto trace =
        std::make_shared<OpenTrace>(*std::move(writer), std::move(meta), given.with_peak == 1);
    out->id = registry->add_trace(std::move(trace));
    return {};
  });
}

lehr_status lehr_trace_step(lehr_trace trace, const uint8_t* mass, const uint8_t* peak,
                            uint32_t pitch) {
  return with_trace(trace, false, [&](OpenTrace& open) -> Status {
    LEHR_TRY(not_null(mass, "mass"));
    if ((peak != nullptr) != open.with_peak) {
      return invalid(open.with_peak ? "peak is NULL, the trace records it"
                                    : "peak: the trace does not record it");
    }
    const std::size_t pages = open.writer.next_pages();
    if (pitch < pages) {
      return invalid(fmt::format("pitch: {}, the step has {} pages", pitch, pages),
                     Reason::kOutOfRange);
    }
    const std::size_t rows = std::size_t{open.meta.layers()} * open.meta.kv_heads;
    const auto mass_codes = packed(mass, rows, pages, pitch);
    const auto peak_codes =
        peak == nullptr ? std::vector<MassCode>{} : packed(peak, rows, pages, pitch);
    return open.writer.step(mass_codes, peak_codes);
  });
}

lehr_status lehr_trace_close(lehr_trace trace, const int32_t* tokens, size_t count) {
  return with_trace(trace, true, [&](OpenTrace& open) -> Status {
    if (tokens != nullptr)
      LEHR_TRY(open.writer.set_tokens(std::vector<std::int32_t>(tokens, tokens + count)));
    return open.writer.close();
  });
}

lehr_status lehr_trace_discard(lehr_trace trace) {
  return with_trace(trace, true, [](OpenTrace&) -> Status { return {}; });
}

}  // extern "C"
