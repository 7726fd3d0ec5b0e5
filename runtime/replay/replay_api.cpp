// SPDX-License-Identifier: Apache-2.0
// A replay as an engine would drive Lehr: through lehr.h alone.
#include <cstring>

#include <fmt/core.h>

#include "runtime/machines/sim.hpp"
#include "runtime/replay/api_calls.hpp"
#include "runtime/replay/target.hpp"

namespace lehr::runtime {

namespace {

/// Text as a TOML string.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\u{:04x}", byte);
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string dtype_of(std::uint32_t element_bytes) {
  return element_bytes == 4 ? "f32" : element_bytes == 1 ? "e4m3" : "f16";
}

}  // namespace

Status said(lehr_status status) {
  if (status >= 0) return {};
  std::string text(lehr_last_error(nullptr, 0), '\0');
  if (!text.empty()) lehr_last_error(text.data(), text.size());
  text.resize(std::strlen(text.c_str()));
  if (text.empty()) text = lehr_status_name(status);
  const auto magnitude = static_cast<std::uint32_t>(-status);
  return Error{static_cast<Code>(magnitude & 0xFF), static_cast<Reason>(magnitude >> 8 & 0xFF),
               text};
}

std::string configuration(const RuntimeOptions& options, const KvGeometry& g,
                          const ApiOptions& api) {
  std::string text = fmt::format(
      "machine = {}\nprofile = {}\nseed = {}\n"
      "[policy]\nname = {}\nheat_half_life = {}\ncold = {}\nimportance = {}\n"
      "importance_learns = {}\nprecision = {}\nprecision_mass = {}\nplan_every = {}\n",
      quoted(api.machine), quoted(api.profile), options.seed, quoted(options.policy),
      options.heat_half_life, options.cold, quoted(decay_name(options.importance)),
      options.importance ? options.importance->learn : 0.0,
      quoted(precision_name(options.precision)),
      options.precision ? options.precision->mass : PrecisionOptions{}.mass, options.plan_every);
  if (!options.policy_parameters.empty()) {
    text += "[policy.parameters]\n";
    for (const auto& [name, value] : options.policy_parameters)
      text += fmt::format("{} = {}\n", quoted(name), value);
  }
  text += fmt::format("[predictor]\nname = {}\nwindow = {}\n", quoted(options.predictor),
                      options.prefetch_window);
  if (!options.predictor_parameters.empty()) {
    text += "[predictor.parameters]\n";
    for (const auto& [name, value] : options.predictor_parameters)
      text += fmt::format("{} = {}\n", name, value);
  }
  text += fmt::format(
      "[geometry]\nlayers = {}\nkv_heads = {}\nq_heads = {}\nhead_dim = {}\npage_tokens = "
      "{}\ndtype = {}\npage_bytes = {}\n",
      g.layers, g.kv_heads, g.q_heads, g.head_dim, g.page_tokens, quoted(dtype_of(g.element_bytes)),
      options.page_bytes);
  text += fmt::format("[step]\nweights_bytes = {}\ncontents = {}\n[capacity]\n",
                      options.weights_bytes, quoted(api.contents ? "kv" : "pattern"));
  for (std::size_t t = 0; t < options.tier_pages.size(); ++t) {
    // An empty tier is said too: unset would mean the profile's capacity. That is what tiers get
    // which a configuration does not know.
    const std::string& name = options.platform.tiers[t].name;
    if (name != "hbm" && name != "host" && name != "nvme") continue;
    text += fmt::format("{} = \"{} pages\"\n", name, options.tier_pages[t]);
  }
  if (!api.nvme_directory.empty())
    text += fmt::format("[nvme]\npath = {}\n", quoted(api.nvme_directory));
  return text;
}

std::vector<std::string> notes_of(lehr_runtime runtime) {
  std::size_t needed = 0;
  if (lehr_notes(runtime, nullptr, 0, &needed) < 0 || needed <= 1) return {};
  std::string text(needed, '\0');
  if (lehr_notes(runtime, text.data(), text.size(), &needed) < 0) return {};
  std::vector<std::string> lines;
  std::size_t from = 0;
  text.resize(std::strlen(text.c_str()));
  while (from < text.size()) {
    const std::size_t end = std::min(text.find('\n', from), text.size());
    if (end > from) lines.push_back(text.substr(from, end - from));
    from = end + 1;
  }
  return lines;
}

StepReport from_c(const lehr_step_report& r) {
  StepReport out;
#define LEHR_STEP_COUNT(name, unit, help) out.name = r.name;
#define LEHR_STEP_SECONDS(field, member, statistic, help) out.member = r.field;
#include "runtime/step_report.def"
  for (std::uint32_t i = 0; i < r.link_count; ++i) {
    out.time.link[i] = r.link_seconds[i];
    out.link[i].bytes = r.link_bytes[i];
    out.link[i].count = static_cast<std::uint32_t>(r.link_transfers[i]);
  }
  return out;
}

namespace {

class ApiTarget final : public ReplayTarget {
 public:
  explicit ApiTarget(lehr_runtime runtime) : runtime_(runtime) {}
  ~ApiTarget() override { lehr_close(runtime_); }
  ApiTarget(const ApiTarget&) = delete;
  ApiTarget& operator=(const ApiTarget&) = delete;

  Result<std::vector<SequenceId>> create(std::span<const SequenceInfo> infos) override {
    std::vector<lehr_sequence_desc> descs;
    for (const SequenceInfo& info : infos) {
      lehr_sequence_desc desc{};
      desc.struct_size = sizeof desc;
      desc.prompt_tokens = info.prompt_tokens;
      desc.first_use = info.first_use.empty() ? nullptr : info.first_use.data();
      desc.first_use_count = info.first_use.size();
      descs.push_back(desc);
    }
    std::vector<lehr_sequence> made(infos.size());
    LEHR_TRY(said(lehr_sequence_create(runtime_, descs.data(), descs.size(), made.data())));
    std::vector<SequenceId> ids;
    for (const lehr_sequence s : made) {
      ids.push_back(static_cast<SequenceId>(handles_.size()));
      handles_.push_back(s);
    }
    return ids;
  }

  Status begin_step(std::span<const SequenceId> sequences) override {
    batch_.clear();
    for (const SequenceId id : sequences) batch_.push_back(handles_[id]);
    return said(lehr_step_begin(runtime_, batch_.data(), batch_.size(), nullptr));
  }

  Status run_layer(std::uint32_t layer, std::span<const GroupSelection> groups,
                   std::span<const std::uint32_t> contexts) override {
    selections_.assign(groups.size(), lehr_selection{});
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const GroupSelection& g = groups[i];
      lehr_selection& s = selections_[i];
      s.struct_size = sizeof s;
      s.kv_head = g.kv_head;
      s.sequence = handles_[g.sequence];
      s.pages = g.pages.data();
      s.page_count = static_cast<std::uint32_t>(g.pages.size());
      s.next_use = g.next_use.empty() ? nullptr : g.next_use.data();
      s.mass = g.mass;
      s.peak = g.peak;
      s.code_count = contexts[i];
      s.filled_next_use = g.filled_next_use == kNever ? 0 : g.filled_next_use;
    }
    return said(lehr_step_layer(runtime_, layer, selections_.data(), selections_.size()));
  }

  Result<StepReport> end_step() override {
    lehr_step_report r{};
    r.struct_size = sizeof r;
    LEHR_TRY(said(lehr_step_end(runtime_, &r)));
    return from_c(r);
  }

  Status release(SequenceId sequence) override {
    lehr_status each = 0;
    return said(lehr_sequence_release(runtime_, &handles_[sequence], 1, &each));
  }

  std::vector<std::string> notes() override { return notes_of(runtime_); }

 private:
  lehr_runtime runtime_;
  std::vector<lehr_sequence> handles_;  ///< by SequenceId of this target
  std::vector<lehr_sequence> batch_;
  std::vector<lehr_selection> selections_;
};

}  // namespace

Result<ReplayResult> replay_through_api(const Workload& workload, const ReplayOptions& options,
                                        const ApiOptions& api, const Progress& progress) {
  LEHR_TRY(workload.validate());
  LEHR_ASSIGN(const placement::PolicyDescriptor* descriptor,
              placement::find_policy(options.runtime.policy));
  if (descriptor->traits.needs_instance && api.machine == "sim") {
    return replay(workload, options, make_sim_machine(), progress);
  }
  const std::string config =
      configuration(options.runtime, workload.sequences.front().selection->trace().geometry(), api);
  lehr_open_options open{};
  open.struct_size = sizeof open;
  open.config = config.c_str();
  open.config_size = config.size();
  lehr_runtime runtime{};
  LEHR_TRY(said(lehr_open(LEHR_VERSION, &open, &runtime)));
  ApiTarget target(runtime);
  LEHR_ASSIGN(auto result, replay_on(target, workload, options, progress));
  if (options.runtime.importance)
    result.notes.emplace_back("importance goes by attention and position: saliency is not told");
  return result;
}

}  // namespace lehr::runtime
