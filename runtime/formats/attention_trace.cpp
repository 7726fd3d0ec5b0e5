// SPDX-License-Identifier: Apache-2.0
#include "runtime/formats/attention_trace.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/formats/zstd.hpp"

namespace lehr::formats {
namespace {

constexpr std::string_view kFormat = "lehr.attention-trace";
constexpr std::string_view kVersion = "1";
constexpr std::string_view kEncoding = "log2_u8_8";
constexpr std::uint32_t kMaxCount = 1U << 20;   // layers, heads, head_dim, page_tokens
constexpr std::uint32_t kMaxTokens = 1U << 30;  // keeps prompt + steps far from overflow

/// A whole-number key of the metadata: one list serves reading, checking and writing.
struct CountKey {
  std::string_view name;
  std::uint32_t AttentionMeta::*field;
  std::uint32_t most;
};
constexpr std::array<CountKey, 6> kShapeKeys = {{
    {"page_tokens", &AttentionMeta::page_tokens, kMaxCount},
    {"q_heads", &AttentionMeta::q_heads, kMaxCount},
    {"kv_heads", &AttentionMeta::kv_heads, kMaxCount},
    {"head_dim", &AttentionMeta::head_dim, kMaxCount},
    {"kv_bytes_per_element", &AttentionMeta::kv_bytes_per_element, 16},
    {"layers", &AttentionMeta::model_layers, kMaxCount},
}};
constexpr std::array<CountKey, 2> kLengthKeys = {{
    {"prompt_tokens", &AttentionMeta::prompt_tokens, kMaxTokens},
    {"steps", &AttentionMeta::steps, kMaxTokens},
}};
constexpr std::array<std::string_view, 6> kTextKeys = {"format",   "version",   "model",
                                                       "workload", "layer_ids", "mass_encoding"};

bool known_key(std::string_view key) {
  const auto named = [&](const CountKey& k) { return k.name == key; };
  return std::find(kTextKeys.begin(), kTextKeys.end(), key) != kTextKeys.end() ||
         std::any_of(kShapeKeys.begin(), kShapeKeys.end(), named) ||
         std::any_of(kLengthKeys.begin(), kLengthKeys.end(), named);
}

std::optional<std::uint32_t> whole_number(std::string_view text) {
  std::uint32_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || text.empty()) return std::nullopt;
  return value;
}

class MetaReader {
 public:
  explicit MetaReader(const Metadata& metadata) : metadata_(metadata) {}

  Result<AttentionMeta> read() {
    LEHR_TRY(expect("format", kFormat, Code::kCorrupt));
    LEHR_TRY(expect("version", kVersion, Code::kVersion));
    LEHR_TRY(expect("mass_encoding", kEncoding, Code::kUnsupported));
    AttentionMeta meta;
    LEHR_ASSIGN(meta.model, text("model"));
    LEHR_ASSIGN(meta.workload, text("workload"));
    for (const CountKey& key : kShapeKeys) LEHR_TRY(count(key, meta));
    for (const CountKey& key : kLengthKeys) LEHR_TRY(count(key, meta));
    LEHR_TRY(layer_ids(meta));
    for (const auto& [key, value] : metadata_) {
      if (!known_key(key)) meta.other.emplace_back(key, value);
    }
    LEHR_TRY(meta.validate());
    return meta;
  }

 private:
  Result<std::string> text(std::string_view key) const {
    for (const auto& [name, value] : metadata_) {
      if (name == key) return value;
    }
    return corrupt(fmt::format("metadata has no '{}'", key));
  }

  Status expect(std::string_view key, std::string_view wanted, Code otherwise) const {
    LEHR_ASSIGN(const std::string found, text(key));
    if (found == wanted) return {};
    return Error{otherwise, Reason::kNone,
                 fmt::format("metadata '{}' is '{}', expected '{}'", key, found, wanted)};
  }

  Status count(const CountKey& key, AttentionMeta& meta) const {
    LEHR_ASSIGN(const std::string found, text(key.name));
    const auto value = whole_number(found);
    if (!value) {
      return corrupt(fmt::format("metadata '{}' is '{}', expected a whole number from 1 to {}",
                                 key.name, found, key.most));
    }
    meta.*key.field = *value;
    return {};
  }

  Status layer_ids(AttentionMeta& meta) const {
    LEHR_ASSIGN(const std::string list, text("layer_ids"));
    for (std::size_t begin = 0; begin <= list.size();) {
      const std::size_t comma = std::min(list.find(',', begin), list.size());
      const auto id = whole_number(std::string_view(list).substr(begin, comma - begin));
      if (!id) {
        return corrupt(fmt::format(
            "metadata 'layer_ids' is '{:.80}', expected whole numbers with commas between", list));
      }
      meta.layer_ids.push_back(*id);
      begin = comma + 1;
    }
    return {};
  }

  const Metadata& metadata_;
};

Metadata to_metadata(const AttentionMeta& meta) {
  Metadata out = {{"format", std::string(kFormat)}, {"version", std::string(kVersion)}};
  out.emplace_back("model", meta.model);
  out.emplace_back("workload", meta.workload);
  for (const CountKey& key : kShapeKeys) {
    out.emplace_back(key.name, std::to_string(meta.*key.field));
  }
  out.emplace_back("layer_ids", fmt::format("{}", fmt::join(meta.layer_ids, ",")));
  for (const CountKey& key : kLengthKeys) {
    out.emplace_back(key.name, std::to_string(meta.*key.field));
  }
  out.emplace_back("mass_encoding", std::string(kEncoding));
  out.insert(out.end(), meta.other.begin(), meta.other.end());
  return out;
}

/// The tensors that Lehr knows: type and shape follow from the metadata.
struct Expected {
  std::string_view name;
  TensorType type;
  std::vector<std::uint64_t> shape;
  std::string_view axes;
};

std::vector<Expected> expected_tensors(const AttentionMeta& m) {
  const std::vector<std::uint64_t> mass = {m.steps, m.layers(), m.kv_heads, m.pages()};
  const std::vector<std::uint64_t> kv = {m.layers(), m.kv_heads, m.tokens(), m.head_dim};
  return {{"mass", TensorType::kU8, mass, "[T,L,H,P]"},
          {"peak", TensorType::kU8, mass, "[T,L,H,P]"},
          {"tokens", TensorType::kI32, {m.tokens()}, "[prompt+T]"},
          {"q", TensorType::kF16, {m.steps, m.layers(), m.q_heads, m.head_dim}, "[T,L,Hq,D]"},
          {"k", TensorType::kF16, kv, "[L,H,prompt+T,D]"},
          {"v", TensorType::kF16, kv, "[L,H,prompt+T,D]"}};
}

template <class T>
std::span<const T> typed(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

void assign(AttentionParts& parts, std::string_view name, std::span<const std::byte> data) {
  if (name == "mass") parts.mass = typed<MassCode>(data);
  if (name == "peak") parts.peak = typed<MassCode>(data);
  if (name == "tokens") parts.tokens = typed<std::int32_t>(data);
  if (name == "q") parts.q = typed<std::uint16_t>(data);
  if (name == "k") parts.k = typed<std::uint16_t>(data);
  if (name == "v") parts.v = typed<std::uint16_t>(data);
}

std::span<const std::byte> data_of(const AttentionParts& parts, std::string_view name) {
  if (name == "mass") return std::as_bytes(parts.mass);
  if (name == "peak") return std::as_bytes(parts.peak);
  if (name == "tokens") return std::as_bytes(parts.tokens);
  if (name == "q") return std::as_bytes(parts.q);
  if (name == "k") return std::as_bytes(parts.k);
  return std::as_bytes(parts.v);
}

/// Pages past a step's context do not exist yet, so they must have no mass.
Status check_future(const AttentionMeta& meta, std::string_view name,
                    std::span<const MassCode> codes) {
  const std::size_t pages = meta.pages();
  const std::size_t rows = std::size_t{meta.layers()} * meta.kv_heads;
  for (std::uint32_t step = 0; step < meta.steps; ++step) {
    for (std::size_t row = 0; row < rows; ++row) {
      const auto line = codes.subspan((step * rows + row) * pages, pages);
      for (std::size_t page = meta.pages_at(step); page < pages; ++page) {
        if (line[page] == kNoMass) continue;
        return corrupt(fmt::format(
            "tensor '{}': [{},{},{},{}] is {}, expected 255: at that step the context has {} pages",
            name, step, row / meta.kv_heads, row % meta.kv_heads, page, line[page],
            meta.pages_at(step)));
      }
    }
  }
  return {};
}

Result<AttentionParts> to_parts(const Safetensors& file) {
  AttentionParts parts;
  LEHR_ASSIGN(parts.meta, MetaReader(file.metadata).read());
  const auto known = expected_tensors(parts.meta);
  for (const Tensor& tensor : file.tensors) {
    const auto want = std::find_if(known.begin(), known.end(),
                                   [&](const Expected& e) { return e.name == tensor.name; });
    if (want == known.end()) {
      parts.other.push_back(tensor);
      continue;
    }
    if (tensor.type != want->type) {
      return corrupt(fmt::format("tensor '{}': dtype {}, expected {}", tensor.name,
                                 to_string(tensor.type), to_string(want->type)));
    }
    if (tensor.shape != want->shape) {
      return corrupt(fmt::format("tensor '{}': shape {}, expected {} = {} from the metadata",
                                 tensor.name, shape_text(tensor.shape), want->axes,
                                 shape_text(want->shape)));
    }
    assign(parts, tensor.name, tensor.data);
  }
  if (parts.mass.empty()) return corrupt("no tensor 'mass'");
  if (parts.k.empty() != parts.v.empty()) {
    return corrupt(fmt::format("tensor '{}' without '{}'", parts.k.empty() ? "v" : "k",
                               parts.k.empty() ? "k" : "v"));
  }
  LEHR_TRY(check_future(parts.meta, "mass", parts.mass));
  if (!parts.peak.empty()) LEHR_TRY(check_future(parts.meta, "peak", parts.peak));
  return parts;
}

Error prefixed(std::string_view name, Error error) {
  error.what = fmt::format("{}: {}", name, error.what);
  return error;
}

/// Wide types first, so that every tensor is aligned whatever the counts are.
void order_by_alignment(std::vector<Tensor>& tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    return element_bytes(a.type) > element_bytes(b.type);
  });
}

}  // namespace

Status AttentionMeta::validate() const {
  const auto check = [&](const CountKey& key) -> Status {
    const std::uint32_t value = this->*key.field;
    if (value >= 1 && value <= key.most) return {};
    return corrupt(fmt::format("metadata '{}' is {}, expected 1 to {}", key.name, value, key.most),
                   Reason::kOutOfRange);
  };
  for (const CountKey& key : kShapeKeys) LEHR_TRY(check(key));
  for (const CountKey& key : kLengthKeys) LEHR_TRY(check(key));
  if (q_heads % kv_heads != 0) {
    return corrupt(fmt::format("metadata 'q_heads' is {}, expected a multiple of kv_heads = {}",
                               q_heads, kv_heads));
  }
  if (layer_ids.empty()) return corrupt("metadata 'layer_ids' is empty");
  for (std::size_t i = 0; i < layer_ids.size(); ++i) {
    if (layer_ids[i] >= model_layers || (i > 0 && layer_ids[i] <= layer_ids[i - 1])) {
      return corrupt(
          fmt::format("metadata 'layer_ids' has {}, expected ascending numbers below "
                      "layers = {}",
                      layer_ids[i], model_layers));
    }
  }
  // What a replay indexes with 32 bits: one page of each layer, head and position.
  const std::uint64_t groups = std::uint64_t{layers()} * kv_heads;
  if (groups * pages() >= kNoPage) {
    return corrupt(fmt::format("{} layers x {} KV heads x {} pages are more than 2^32 pages",
                               layers(), kv_heads, pages()),
                   Reason::kOutOfRange);
  }
  return {};
}

Result<AttentionTrace> AttentionTrace::parse(std::span<const std::byte> bytes,
                                             std::string_view name) {
  LEHR_ASSIGN(const Safetensors file, parse_safetensors(bytes, name));
  auto parts = to_parts(file);
  if (!parts) return prefixed(name, std::move(parts).error());
  AttentionTrace out;
  out.parts_ = *std::move(parts);
  out.pages_ = out.parts_.meta.pages();
  return out;
}

Result<AttentionTrace> AttentionTrace::open(const std::filesystem::path& path, Bytes limit) {
  LEHR_ASSIGN(FileContents contents, FileContents::open(path, limit));
  return from(std::move(contents), path.string());
}

Result<AttentionTrace> AttentionTrace::from(FileContents contents, std::string_view name) {
  LEHR_ASSIGN(AttentionTrace out, parse(contents.bytes(), name));
  out.contents_ = std::move(contents);
  return out;
}

Status write_attention_trace(const std::filesystem::path& path, const AttentionParts& parts) {
  LEHR_TRY(parts.meta.validate());
  if (parts.mass.empty()) return invalid("a trace needs 'mass'");
  std::vector<Tensor> tensors;
  for (const Expected& want : expected_tensors(parts.meta)) {
    const auto data = data_of(parts, want.name);
    if (!data.empty()) tensors.push_back({std::string(want.name), want.type, want.shape, data});
  }
  tensors.insert(tensors.end(), parts.other.begin(), parts.other.end());
  order_by_alignment(tensors);
  for (const Tensor& tensor : tensors) {
    LEHR_ASSIGN(const Bytes size, tensor_bytes(tensor));
    if (size != tensor.data.size()) {
      return invalid(fmt::format("tensor '{}': {} bytes given, expected {}", tensor.name,
                                 tensor.data.size(), size));
    }
  }
  LEHR_TRY(check_future(parts.meta, "mass", parts.mass));
  if (!parts.peak.empty()) LEHR_TRY(check_future(parts.meta, "peak", parts.peak));

  LEHR_ASSIGN(const std::string header, safetensors_header(to_metadata(parts.meta), tensors));
  LEHR_ASSIGN(OutputFile file, OutputFile::create(path));
  LEHR_TRY(file.write(std::as_bytes(std::span(header))));
  for (const Tensor& tensor : tensors) LEHR_TRY(file.write(tensor.data));
  return file.commit();
}

struct AttentionTraceWriter::State {
  std::filesystem::path path;
  AttentionMeta meta;
  bool with_peak = false;
  bool broken = false;
  std::vector<std::int32_t> tokens;
  // Rows of a step are as long as its context; the final file, whose rows all have the last step's
  // length, is laid out at close.
  SpoolFile mass;
  SpoolFile peak;

  std::size_t rows() const { return std::size_t{meta.layers()} * meta.kv_heads; }

  Status copy_padded(const SpoolFile& spool, OutputFile& out) const {
    const std::size_t pages = meta.pages();
    std::vector<MassCode> step_codes(rows() * pages);
    std::vector<MassCode> padded(rows() * pages);
    Bytes offset = 0;
    for (std::uint32_t step = 0; step < meta.steps; ++step) {
      const std::size_t live = meta.pages_at(step);
      const auto codes = std::span(step_codes).first(rows() * live);
      LEHR_TRY(spool.read(offset, std::as_writable_bytes(codes)));
      offset += codes.size();
      std::fill(padded.begin(), padded.end(), kNoMass);
      for (std::size_t row = 0; row < rows(); ++row) {
        std::copy_n(codes.data() + row * live, live, padded.data() + row * pages);
      }
      LEHR_TRY(out.write(std::as_bytes(std::span(padded))));
    }
    return {};
  }
};

AttentionTraceWriter::AttentionTraceWriter(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
AttentionTraceWriter::AttentionTraceWriter(AttentionTraceWriter&&) noexcept = default;
AttentionTraceWriter& AttentionTraceWriter::operator=(AttentionTraceWriter&&) noexcept = default;
AttentionTraceWriter::~AttentionTraceWriter() = default;

Result<AttentionTraceWriter> AttentionTraceWriter::open(const std::filesystem::path& path,
                                                        AttentionMeta meta, bool with_peak) {
  meta.steps = 1;  // validates the rest
  LEHR_TRY(meta.validate());
  // A target that cannot be written is found now, not after an hour of recording.
  LEHR_TRY(AtomicFile::create(path));
  const auto directory = path.parent_path();
  LEHR_ASSIGN(SpoolFile mass, SpoolFile::create(directory));
  LEHR_ASSIGN(SpoolFile peak, SpoolFile::create(directory));
  meta.steps = 0;
  return AttentionTraceWriter(std::make_unique<State>(
      State{path, std::move(meta), with_peak, false, {}, std::move(mass), std::move(peak)}));
}

std::uint32_t AttentionTraceWriter::steps() const { return state_->meta.steps; }
std::uint32_t AttentionTraceWriter::next_pages() const {
  return state_->meta.pages_at(state_->meta.steps);
}

Status AttentionTraceWriter::step(std::span<const MassCode> mass, std::span<const MassCode> peak) {
  State& s = *state_;
  if (s.broken) return refused(Reason::kNone, s.path.string() + ": an earlier write failed");
  AttentionMeta next = s.meta;
  ++next.steps;
  LEHR_TRY(next.validate());
  const std::size_t wanted = s.rows() * next_pages();
  if (mass.size() != wanted || peak.size() != (s.with_peak ? wanted : 0)) {
    return invalid(fmt::format("step {}: {} mass and {} peak codes, expected {} and {}",
                               s.meta.steps, mass.size(), peak.size(), wanted,
                               s.with_peak ? wanted : 0));
  }
  s.broken = true;  // until both columns are in
  LEHR_TRY(s.mass.append(std::as_bytes(mass)));
  LEHR_TRY(s.peak.append(std::as_bytes(peak)));
  s.broken = false;
  ++s.meta.steps;
  return {};
}

Status AttentionTraceWriter::set_tokens(std::vector<std::int32_t> tokens) {
  state_->tokens = std::move(tokens);
  return {};
}

Status AttentionTraceWriter::close() {
  State& s = *state_;
  if (s.broken) return refused(Reason::kNone, s.path.string() + ": an earlier write failed");
  if (s.meta.steps == 0) return invalid(s.path.string() + ": a trace needs at least one step");
  if (!s.tokens.empty() && s.tokens.size() != s.meta.tokens()) {
    return invalid(fmt::format("{} token ids, expected {}", s.tokens.size(), s.meta.tokens()));
  }
  std::vector<Tensor> tensors;
  for (const Expected& want : expected_tensors(s.meta)) {
    const bool present = want.name == "mass" || (want.name == "peak" && s.with_peak) ||
                         (want.name == "tokens" && !s.tokens.empty());
    if (present) tensors.push_back({std::string(want.name), want.type, want.shape, {}});
  }
  order_by_alignment(tensors);
  LEHR_ASSIGN(const std::string header, safetensors_header(to_metadata(s.meta), tensors));
  LEHR_ASSIGN(OutputFile file, OutputFile::create(s.path));
  LEHR_TRY(file.write(std::as_bytes(std::span(header))));
  for (const Tensor& tensor : tensors) {
    if (tensor.name == "tokens") LEHR_TRY(file.write(std::as_bytes(std::span(s.tokens))));
    if (tensor.name == "mass") LEHR_TRY(s.copy_padded(s.mass, file));
    if (tensor.name == "peak") LEHR_TRY(s.copy_padded(s.peak, file));
  }
  return file.commit();
}

}  // namespace lehr::formats
