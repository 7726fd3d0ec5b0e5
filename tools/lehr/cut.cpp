// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/cut.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "runtime/formats/request_trace.hpp"

namespace lehr::tools {
namespace {

/// Axes of the cut in the source: layers kept by position, steps, pages and tokens by range.
struct Window {
  std::vector<std::uint32_t> layers;
  std::uint32_t first_step = 0;
  std::uint32_t steps = 0;
  std::uint32_t first_page = 0;
  std::uint32_t first_token = 0;
};

Result<Window> resolve(const formats::AttentionMeta& meta, const CutSpec& spec) {
  Window out;
  if (spec.first_step >= meta.steps) {
    return invalid(fmt::format("--from-step {}: the trace has steps 0 to {}", spec.first_step,
                               meta.steps - 1));
  }
  const std::uint32_t left = meta.steps - spec.first_step;
  out.first_step = spec.first_step;
  out.steps = spec.steps.value_or(left);
  if (out.steps == 0 || out.steps > left) {
    return invalid(fmt::format("--steps {}: expected 1 to {}", out.steps, left));
  }
  for (std::uint32_t i = 0; i < meta.layers(); ++i) {
    const std::uint32_t id = meta.layer_ids[i];
    if (spec.layer_ids.empty() ||
        std::binary_search(spec.layer_ids.begin(), spec.layer_ids.end(), id)) {
      out.layers.push_back(i);
    }
  }
  if (!spec.layer_ids.empty() && out.layers.size() != spec.layer_ids.size()) {
    return invalid("--layers: the trace does not record all of these layers");
  }
  const std::uint32_t prompt = meta.prompt_tokens + out.first_step;
  if (spec.prompt_tail) {
    if (*spec.prompt_tail == 0 || *spec.prompt_tail > prompt) {
      return invalid(fmt::format("--prompt-tail {}: expected 1 to {}", *spec.prompt_tail, prompt));
    }
    out.first_page = (prompt - *spec.prompt_tail) / meta.page_tokens;
    out.first_token = out.first_page * meta.page_tokens;
  }
  return out;
}

void cut_codes(const formats::AttentionTrace& trace, const Window& window, std::uint32_t pages,
               bool peak, std::vector<MassCode>& out) {
  out.reserve(std::size_t{window.steps} * window.layers.size() * trace.kv_heads() * pages);
  for (std::uint32_t step = 0; step < window.steps; ++step) {
    for (const std::uint32_t layer : window.layers) {
      for (std::uint32_t head = 0; head < trace.kv_heads(); ++head) {
        const std::uint32_t from = step + window.first_step;
        const MassCode* row =
            peak ? trace.peak_row(from, layer, head) : trace.mass_row(from, layer, head);
        out.insert(out.end(), row + window.first_page, row + window.first_page + pages);
      }
    }
  }
}

void cut_queries(const formats::AttentionTrace& trace, const Window& window,
                 std::vector<std::uint16_t>& out) {
  const auto& meta = trace.meta();
  const std::size_t row = std::size_t{meta.q_heads} * meta.head_dim;
  for (std::size_t step = window.first_step; step < window.first_step + window.steps; ++step) {
    for (const std::uint32_t layer : window.layers) {
      const auto part = trace.parts().q.subspan((step * meta.layers() + layer) * row, row);
      out.insert(out.end(), part.begin(), part.end());
    }
  }
}

void cut_kv(const formats::AttentionMeta& meta, std::span<const std::uint16_t> source,
            const Window& window, std::uint32_t tokens, std::vector<std::uint16_t>& out) {
  const std::size_t dim = meta.head_dim;
  for (const std::uint32_t layer : window.layers) {
    for (std::size_t head = 0; head < meta.kv_heads; ++head) {
      const std::size_t group = std::size_t{layer} * meta.kv_heads + head;
      const auto part =
          source.subspan((group * meta.tokens() + window.first_token) * dim, tokens * dim);
      out.insert(out.end(), part.begin(), part.end());
    }
  }
}

}  // namespace

Result<OwnedTrace> cut_trace(const formats::AttentionTrace& trace, const CutSpec& spec) {
  const formats::AttentionMeta& from = trace.meta();
  LEHR_ASSIGN(const Window window, resolve(from, spec));
  OwnedTrace out;
  formats::AttentionMeta& meta = out.parts.meta;
  meta = from;
  meta.steps = window.steps;
  meta.prompt_tokens = from.prompt_tokens + window.first_step - window.first_token;
  meta.layer_ids.clear();
  for (const std::uint32_t layer : window.layers) meta.layer_ids.push_back(from.layer_ids[layer]);
  std::erase_if(meta.other, [](const auto& entry) { return entry.first == "cut"; });
  meta.other.emplace_back(
      "cut", fmt::format("steps {} to {} of {}, {} of {} layers, tokens from {}", window.first_step,
                         window.first_step + window.steps - 1, from.steps, window.layers.size(),
                         from.layers(), window.first_token));

  const formats::AttentionParts& parts = trace.parts();
  cut_codes(trace, window, meta.pages(), false, out.mass);
  if (trace.has_peak()) cut_codes(trace, window, meta.pages(), true, out.peak);
  if (!parts.tokens.empty()) {
    const auto part = parts.tokens.subspan(window.first_token, meta.tokens());
    out.tokens.assign(part.begin(), part.end());
  }
  if (!parts.q.empty()) cut_queries(trace, window, out.q);
  if (!parts.k.empty()) {
    cut_kv(from, parts.k, window, meta.tokens(), out.k);
    cut_kv(from, parts.v, window, meta.tokens(), out.v);
  }
  // Spans follow the vectors' storage, which a move of the owner does not touch.
  out.parts.mass = out.mass;
  out.parts.peak = out.peak;
  out.parts.tokens = out.tokens;
  out.parts.q = out.q;
  out.parts.k = out.k;
  out.parts.v = out.v;
  return out;
}

Result<std::vector<std::uint32_t>> parse_layer_list(std::string_view text) {
  constexpr std::uint32_t kMost = 1U << 20;
  const auto bad = [&] {
    return invalid(fmt::format("--layers '{}': expected ascending numbers such as 0,2,5-9", text));
  };
  std::vector<std::uint32_t> out;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    std::uint32_t first = 0;
    auto [stop, error] = std::from_chars(at, end, first);
    if (error != std::errc()) return bad();
    std::uint32_t last = first;
    if (stop != end && *stop == '-') {
      const auto [range_stop, range_error] = std::from_chars(stop + 1, end, last);
      if (range_error != std::errc()) return bad();
      stop = range_stop;
    }
    if (last < first || last >= kMost || (!out.empty() && first <= out.back())) return bad();
    for (std::uint32_t id = first; id <= last; ++id) out.push_back(id);
    if (stop == end) return out;
    if (*stop != ',') return bad();
    at = stop + 1;
  }
}

Result<std::string> cut_requests(std::string_view text, std::string_view name,
                                 std::uint64_t requests) {
  LEHR_TRY(formats::RequestTrace::parse(text, name));
  std::string out;
  for (std::uint64_t kept = 0; kept < requests && !text.empty();) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    out.append(line).push_back('\n');
    ++kept;
  }
  return out;
}

}  // namespace lehr::tools
