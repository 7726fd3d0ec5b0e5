// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/config.hpp"

#include <map>

#include <fmt/format.h>

#include "runtime/config/toml_document.hpp"

namespace lehr::config {

namespace {

std::uint32_t element_bytes(std::string_view dtype) {
  if (dtype == "f32") return 4;
  return dtype == "f16" || dtype == "bf16" ? 2 : 1;
}

bool one_of(std::string_view word, std::string_view words) {
  for (std::size_t start = 0; start <= words.size();) {
    const std::size_t end = std::min(words.find('|', start), words.size());
    if (words.substr(start, end - start) == word) return true;
    start = end + 1;
  }
  return false;
}

// Reads keys of one file: the section tables are opened once each, and finished at the end.
class Reader {
 public:
  explicit Reader(TomlTable root) { sections_.emplace("top", std::move(root)); }

  Result<TomlTable*> section(const std::string& name) {
    if (const auto found = sections_.find(name); found != sections_.end()) return &found->second;
    LEHR_ASSIGN(auto table, sections_.at("top").table(name));
    if (!table) return static_cast<TomlTable*>(nullptr);
    return &sections_.emplace(name, std::move(*table)).first->second;
  }

  Status word(const char* where, const char* key, const char* words, std::string& out) {
    LEHR_ASSIGN(TomlTable * table, section(where));
    if (table == nullptr) return {};
    LEHR_ASSIGN(auto value, table->text(key));
    if (!value) return {};
    if (!one_of(*value, words)) {
      return table->error(key, fmt::format("expected one of {}, found \"{}\"", words, *value));
    }
    out = std::move(*value);
    return {};
  }

  template <class T, class Get>
  Status get(const char* where, T& out, Get read) {
    LEHR_ASSIGN(TomlTable * table, section(where));
    if (table == nullptr) return {};
    LEHR_ASSIGN(auto value, read(*table));
    if (value) out = std::move(*value);
    return {};
  }

  Status capacity(const char* where, const char* key, Capacity& out) {
    LEHR_ASSIGN(TomlTable * table, section(where));
    if (table == nullptr || !table->has(key)) return {};
    // A bare number is bytes; text may carry a unit, pages or a share.
    if (const auto whole = table->integer(key, 0, std::uint64_t{1} << 53);
        whole && whole->has_value()) {
      out = Capacity{Capacity::Kind::kBytes, **whole, 0};
      return {};
    }
    const auto text = table->text(key);
    if (!text || !text->has_value()) {
      return table->error(key,
                          "expected bytes, or text like \"24 GiB\", \"1000 pages\" or \"25%\"");
    }
    auto parsed = parse_capacity(**text);
    if (!parsed) return table->error(key, parsed.error().what);
    out = *parsed;
    return {};
  }

  Status finish() const {
    for (const auto& [name, table] : sections_) {
      if (name != "top") LEHR_TRY(table.finish());
    }
    return sections_.at("top").finish();
  }

 private:
  std::map<std::string, TomlTable, std::less<>> sections_;
};

// NOLINTNEXTLINE(readability-function-size): a line for each key of config_keys.def
Status read_keys(Reader& in, Config& out) {
#define LEHR_KEY_WORD(section, key, fallback, words, help) \
  LEHR_TRY(in.word(#section, #key, words, out.section##_##key));
#define LEHR_KEY_TEXT(section, key, fallback, help) \
  LEHR_TRY(in.get(#section, out.section##_##key, [](TomlTable& t) { return t.text(#key); }));
#define LEHR_KEY_WHOLE(section, key, fallback, minimum, maximum, help) \
  LEHR_TRY(in.get(#section, out.section##_##key,                       \
                  [](TomlTable& t) { return t.integer(#key, minimum, maximum); }));
#define LEHR_KEY_REAL(section, key, fallback, minimum, maximum, help) \
  LEHR_TRY(in.get(#section, out.section##_##key, [](TomlTable& t) {   \
    return t.number(#key, {minimum, maximum});                        \
  }));
#define LEHR_KEY_FLAG(section, key, fallback, help) \
  LEHR_TRY(in.get(#section, out.section##_##key, [](TomlTable& t) { return t.boolean(#key); }));
#define LEHR_KEY_BYTES(section, key, fallback, help) \
  LEHR_TRY(in.get(#section, out.section##_##key, [](TomlTable& t) { return t.bytes(#key, 0); }));
#define LEHR_KEY_CAPACITY(section, key, help) \
  LEHR_TRY(in.capacity(#section, #key, out.section##_##key));
#include "runtime/config/config_keys.def"
#undef LEHR_KEY_WORD
#undef LEHR_KEY_TEXT
#undef LEHR_KEY_WHOLE
#undef LEHR_KEY_REAL
#undef LEHR_KEY_FLAG
#undef LEHR_KEY_BYTES
#undef LEHR_KEY_CAPACITY
  return {};
}

Status read_parameters(Reader& in, const char* section, Parameters& out) {
  LEHR_ASSIGN(TomlTable * plugin, in.section(section));
  if (plugin == nullptr) return {};
  LEHR_ASSIGN(auto table, plugin->table("parameters"));
  if (!table) return {};
  for (const std::string& key : table->keys()) {
    const double most = std::numeric_limits<double>::max();
    LEHR_ASSIGN(const auto value, table->number(key, {-most, most}));
    out.emplace(key, value.value_or(0));
  }
  return {};
}

// What no single key can say.
Status check_together(Reader& in, Config& out) {
  LEHR_ASSIGN(TomlTable * geometry, in.section("geometry"));
  if (geometry != nullptr && out.geometry_layers > 0) {
    if (out.geometry_kv_heads == 0) return geometry->error("kv_heads", "expected at least 1");
    if (out.geometry_head_dim == 0) return geometry->error("head_dim", "expected at least 1");
    if (out.geometry_q_heads % out.geometry_kv_heads != 0) {
      return geometry->error("q_heads",
                             fmt::format("expected a multiple of kv_heads = {}, found {}",
                                         out.geometry_kv_heads, out.geometry_q_heads));
    }
  }
  LEHR_ASSIGN(TomlTable * placement, in.section("placement"));
  if (placement == nullptr) return {};
  if (out.placement_low_watermark > out.placement_high_watermark) {
    return placement->error("low_watermark",
                            fmt::format("expected at most high_watermark = {}, found {}",
                                        out.placement_high_watermark, out.placement_low_watermark));
  }
  if (out.placement_block_bytes == 0 && (out.placement_host.set() || out.placement_nvme.set())) {
    return placement->error("block_bytes", "expected at least 1, as a placement capacity is given");
  }
  return {};
}

}  // namespace

KvGeometry Config::geometry() const {
  KvGeometry g;
  if (geometry_layers == 0) return g;
  g.layers = static_cast<std::uint32_t>(geometry_layers);
  g.kv_heads = static_cast<std::uint32_t>(geometry_kv_heads);
  g.q_heads =
      static_cast<std::uint32_t>(geometry_q_heads == 0 ? geometry_kv_heads : geometry_q_heads);
  g.head_dim = static_cast<std::uint32_t>(geometry_head_dim);
  g.page_tokens = static_cast<std::uint32_t>(geometry_page_tokens);
  g.element_bytes = element_bytes(geometry_dtype);
  return g;
}

Result<Config> parse_config(std::string_view text, std::string_view file) {
  LEHR_ASSIGN(auto root, parse_toml(text, file));
  Reader in(std::move(root));
  Config out;
  LEHR_TRY(read_keys(in, out));
  LEHR_TRY(read_parameters(in, "policy", out.policy_parameters));
  LEHR_TRY(read_parameters(in, "predictor", out.predictor_parameters));
  LEHR_TRY(in.finish());
  LEHR_TRY(check_together(in, out));
  return out;
}

Result<Config> read_config(const std::string& path) {
  LEHR_ASSIGN(const std::string text, read_text_file(path));
  return parse_config(text, path);
}

std::string config_reference() {
  std::string out = "| section | key | value | default | meaning |\n|---|---|---|---|---|\n";
  const auto row = [&](std::string_view section, const char* key, const std::string& value,
                       const std::string& fallback, const char* help) {
    out += fmt::format("| {} | `{}` | {} | {} | {} |\n", section == "top" ? "" : section, key,
                       value, fallback, help);
  };
#define LEHR_KEY_WORD(section, key, fallback, words, help) \
  row(#section, #key, fmt::format("one of `{}`", words), fallback, help);
#define LEHR_KEY_TEXT(section, key, fallback, help) row(#section, #key, "text", fallback, help);
#define LEHR_KEY_WHOLE(section, key, fallback, minimum, maximum, help) \
  row(#section, #key, fmt::format("{} to {}", minimum, maximum), fmt::format("{}", fallback), help);
#define LEHR_KEY_REAL(section, key, fallback, minimum, maximum, help) \
  row(#section, #key, fmt::format("{} to {}", minimum, maximum), fmt::format("{}", fallback), help);
#define LEHR_KEY_FLAG(section, key, fallback, help) \
  row(#section, #key, "`true` or `false`", fmt::format("{}", fallback), help);
#define LEHR_KEY_BYTES(section, key, fallback, help) \
  row(#section, #key, "bytes", fmt::format("{}", fallback), help);
#define LEHR_KEY_CAPACITY(section, key, help) \
  row(#section, #key, "bytes, pages or share", "", help);
#include "runtime/config/config_keys.def"
#undef LEHR_KEY_WORD
#undef LEHR_KEY_TEXT
#undef LEHR_KEY_WHOLE
#undef LEHR_KEY_REAL
#undef LEHR_KEY_FLAG
#undef LEHR_KEY_BYTES
#undef LEHR_KEY_CAPACITY
  return out;
}

}  // namespace lehr::config
