// SPDX-License-Identifier: Apache-2.0
// lehr experiment gh200-decode: the published setting (HBM 24 GB at 4.9 TB/s, link 450 GB/s a
// direction, DRAM 500 GB/s, prompt of 30k and decode of 10k tokens, sparsity from 0 to 95 %), the
// schemes it compares, and their ratios beside the published ones.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "kernels/base/rng.hpp"
#include "placement/window_scheme.hpp"
#include "runtime/replay/replay.hpp"
#include "tools/lehr/cmd_experiment.hpp"
#include "tools/lehr/fail.hpp"
#include "tools/lehr/parallel.hpp"
#include "tools/lehr/progress.hpp"
#include "tools/lehr/report.hpp"
#include "tools/lehr/table.hpp"
#include "tools/lehr/terminal.hpp"

namespace lehr::tools {

namespace {

using nlohmann::ordered_json;
using placement::Instance;
using placement::Scheme;

constexpr const char* kCommand = "experiment gh200-decode";
constexpr double kPublishedBest = 5.87;  ///< over static
constexpr double kFitRatio = 0.1;        ///< selection at which the generator is fitted

struct Arguments {
  std::vector<std::string> traces;
  std::vector<double> sparsity = {0, 20, 40, 60, 80, 90, 95};
  std::uint32_t sequences = 8;
  std::uint32_t prompt = 30000;
  std::uint32_t decode = 10000;
  std::uint32_t stride = 10;
  std::uint32_t page_tokens = 64;
  std::uint32_t kv_bytes_per_token = 131072;
  double hbm_gb = 24;
  std::uint64_t seed = 1;
  std::string json;
};

placement::Platform published_platform(double hbm_gb) {
  placement::Platform p;
  p.name = "gh200-published";
  const double link = std::min(450.0, 500.0) * kGB;  // the DRAM is no slower than the link
  p.tiers = {{"hbm", static_cast<Bytes>(hbm_gb * kGB), true}, {"host", 480'000'000'000, true}};
  p.links = {{"h2d", 1, 0, BandwidthCurve(link), 0}, {"d2h", 0, 1, BandwidthCurve(link), 0}};
  p.hbm = BandwidthCurve(4900 * kGB);
  p.flops = 989e12;
  p.home = 1;
  return p;
}

/// What is asked of the generator: of what a step reads, the share that the step before read too,
/// and of all pages those that are ever read.
struct Statistics {
  double overlap = 0.80;
  double ever = 0.45;
  std::string source = "the mean of the four long recorded traces at top-k 10 %";
};

/// Scores of pages: a lasting part and one that wanders (autoregressive), top-k of which a step
/// reads.
struct Model {
  double lasting = 0.5;  ///< share of the variance
  double memory = 0.9;   ///< of the wandering part, from step to step
};

double gaussian(Rng& rng) {  // sum of twelve: the tails do not matter to a ranking
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += rng.uniform();
  return sum;
}

class Scores {
 public:
  Scores(const Model& model, std::uint64_t seed)
      : rng_(seed),
        lasting_(std::sqrt(model.lasting)),
        wandering_(std::sqrt(1 - model.lasting)),
        memory_(model.memory),
        noise_(std::sqrt(1 - model.memory * model.memory)) {}

  /// The pages that a step reads: first, last and the best of the others; ascending.
  const std::vector<std::uint32_t>& select(std::uint32_t pages, double ratio) {
    while (base_.size() < pages) {
      base_.push_back(lasting_ * gaussian(rng_));
      now_.push_back(gaussian(rng_));
    }
    order_.resize(pages);
    std::iota(order_.begin(), order_.end(), 0U);
    for (std::uint32_t i = 0; i < pages; ++i) now_[i] = memory_ * now_[i] + noise_ * gaussian(rng_);
    const auto score = [&](std::uint32_t i) {
      return i == 0 || i + 1 == pages ? 1e9 : base_[i] + wandering_ * now_[i];
    };
    const auto k = std::clamp(static_cast<std::uint32_t>(std::ceil(ratio * pages)), 1U, pages);
    std::nth_element(order_.begin(), order_.begin() + (k - 1), order_.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return score(a) > score(b); });
    order_.resize(k);
    std::sort(order_.begin(), order_.end());
    return order_;
  }

 private:
  Rng rng_;
  double lasting_, wandering_, memory_, noise_;
  std::vector<double> base_, now_;
  std::vector<std::uint32_t> order_;
};

Statistics statistics_of(const Model& model, std::uint64_t seed) {
  constexpr std::uint32_t kPages = 500;
  constexpr std::uint32_t kSteps = 224;
  Scores scores(model, seed);
  std::vector<std::uint8_t> ever(kPages, 0), before(kPages, 0);
  double again = 0, reads = 0;
  for (std::uint32_t s = 0; s < kSteps; ++s) {
    const auto& chosen = scores.select(kPages, kFitRatio);
    std::vector<std::uint8_t> now(kPages, 0);
    for (const std::uint32_t p : chosen) {
      if (s > 0) again += before[p], reads += 1;
      now[p] = ever[p] = 1;
    }
    before.swap(now);
  }
  Statistics out;
  out.overlap = again / reads;
  out.ever = static_cast<double>(std::count(ever.begin(), ever.end(), 1)) / kPages;
  return out;
}

/// The grid point whose overlap and share of pages ever read come closest.
Model fit(const Statistics& wanted, std::uint64_t seed) {
  Model best;
  double least = 1e300;
  for (int l = 0; l <= 19; ++l) {
    for (const double memory : {0.5, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99}) {
      const Model model{l / 20.0, memory};
      const Statistics s = statistics_of(model, seed);
      const double off = std::abs(s.overlap - wanted.overlap) + std::abs(s.ever - wanted.ever);
      if (off < least) least = off, best = model;
    }
  }
  return best;
}

Result<Statistics> measure(const std::vector<std::unique_ptr<formats::AttentionTrace>>& traces) {
  Statistics out{0, 0, "the given traces at top-k 10 %"};
  LEHR_ASSIGN(const SelectionRule rule, SelectionRule::parse("topk:0.1"));
  for (const auto& trace : traces) {
    const runtime::TraceSelection selection(*trace, rule);
    double again = 0, reads = 0, ever = 0, pages = 0;
    for (std::uint32_t l = 0; l < trace->layers(); ++l) {
      for (std::uint32_t h = 0; h < trace->kv_heads(); ++h) {
        std::vector<std::uint32_t> last(trace->pages(), 0);
        for (std::uint32_t t = 0; t < trace->steps(); ++t) {
          for (const std::uint32_t p : selection.pages(selection.group(t, l, h))) {
            if (t > 0) again += last[p] == t ? 1 : 0, reads += 1;
            ever += last[p] == 0 ? 1 : 0;
            last[p] = t + 1;
          }
        }
        pages += trace->pages();
      }
    }
    out.overlap += again / reads / static_cast<double>(traces.size());
    out.ever += ever / pages / static_cast<double>(traces.size());
  }
  return out;
}

/// The published setting as an instance: a tick is one step, which stands for `stride` steps.
Instance generate(const Arguments& a, const placement::Platform& platform, const Model& model,
                  double sparsity) {
  Instance out;
  out.platform = &platform;
  out.page_bytes = Bytes{a.page_tokens} * a.kv_bytes_per_token;
  out.capacity = static_cast<std::uint32_t>(a.hbm_gb * kGB / static_cast<double>(out.page_bytes));
  std::vector<Scores> scores;
  std::vector<std::vector<PageId>> pages(a.sequences);
  const std::uint32_t full = a.prompt / a.page_tokens;
  for (std::uint32_t s = 0; s < a.sequences; ++s) scores.emplace_back(model, a.seed * 1000 + s);
  std::uint32_t room = out.capacity > a.sequences ? out.capacity - a.sequences : 0;
  for (auto& own : pages) own.resize(full);
  for (std::uint32_t p = full; p-- > 0;) {  // the latest first, as HBM is filled
    for (auto& own : pages) {
      own[p] = out.add_page(0, room > 0);
      if (room > 0) --room;
    }
  }
  const Bytes token = a.kv_bytes_per_token;
  for (std::uint32_t step = 0; step * a.stride < a.decode; ++step) {
    const std::uint32_t context = a.prompt + step * a.stride;
    const std::uint32_t complete = context / a.page_tokens;
    for (auto& own : pages) {
      while (own.size() < complete) own.push_back(out.add_page(step, true));
    }
    const std::uint32_t tail = context % a.page_tokens;
    out.open_tick(Bytes{a.sequences} * token * (tail + 1), 0, a.sequences);
    for (std::uint32_t s = 0; s < a.sequences; ++s) {
      for (const std::uint32_t p : scores[s].select(complete, 1 - sparsity))
        out.add_visit(pages[s][p]);
    }
  }
  return out;
}

struct Row {
  std::string workload;
  double sparsity = 0;
  double fixed = 0, reactive = 0, page = 0, window = 0;  ///< seconds
  placement::WindowChoice choice;
  std::optional<Error> failed;
};

void play(Row& row, const Instance& instance, std::uint64_t seed) {
  const auto time = [&](Scheme scheme) {
    const auto t = placement::scheme_time(instance, scheme, {}, 0);
    if (!t) row.failed = t.error();
    return t ? t->total : 0.0;
  };
  row.fixed = time(Scheme::kStatic);
  row.reactive = time(Scheme::kReactive);
  row.page = time(Scheme::kPage);
  placement::WindowOptions options;
  options.seed = seed;
  options.most = 32;
  options.warmup_steps = 0;
  const auto plan = placement::anneal_window(instance, options);
  if (!plan) {
    row.failed = plan.error();
    return;
  }
  row.window = plan->time.total;
  row.choice = plan->choice;
}

using Traces = std::vector<std::unique_ptr<formats::AttentionTrace>>;

/// What all rows of the experiment share.
struct Setting {
  const Arguments& arguments;
  const placement::Platform& platform;
  const Traces& traces;
  Statistics wanted;
  Model model;
  Statistics got;    ///< of the generated workload
  double kv = 0;     ///< bytes
  double share = 0;  ///< of it that HBM holds
};

std::vector<Row> rows_of(const Arguments& arguments) {
  std::vector<Row> rows;
  const auto add = [&](const std::string& workload) {
    for (const double s : arguments.sparsity) rows.push_back({workload, s, 0, 0, 0, 0, {}, {}});
  };
  add("generated");
  for (const std::string& file : arguments.traces) {
    const std::size_t slash = file.find_last_of('/');
    const std::string name = file.substr(slash == std::string::npos ? 0 : slash + 1);
    add(name.substr(0, name.find('.')));
  }
  return rows;
}

Status play_recorded(Row& row, const formats::AttentionTrace& trace, const Setting& setting) {
  LEHR_ASSIGN(const SelectionRule rule,
              SelectionRule::parse(fmt::format("topk:{}", std::max(1e-6, 1 - row.sparsity / 100))));
  const runtime::TraceSelection selection(trace, rule);
  runtime::Workload workload;
  workload.sequences.push_back({&selection, 0});
  runtime::ReplayOptions options;
  options.runtime.platform = setting.platform;
  options.runtime.tier_pages = {
      static_cast<std::uint32_t>(setting.share * static_cast<double>(workload.total_pages())),
      1U << 28};
  LEHR_ASSIGN(const auto instance, runtime::replay_instance(workload, options));
  play(row, instance, setting.arguments.seed);
  return {};
}

void play_all(std::vector<Row>& rows, const Setting& setting) {
  const Arguments& arguments = setting.arguments;
  const std::size_t sweep = arguments.sparsity.size();
  ProgressBar bar("gh200-decode");
  parallel(
      rows.size(),
      [&](std::size_t i) {
        Row& row = rows[i];
        if (i < sweep) {
          play(row, generate(arguments, setting.platform, setting.model, row.sparsity / 100),
               arguments.seed);
          return;
        }
        const Status played = play_recorded(row, *setting.traces[i / sweep - 1], setting);
        if (!played) row.failed = played.error();
      },
      [&](double done) { bar.show(done); });
}

std::string to_text(const std::vector<Row>& rows, const Setting& setting) {
  const Arguments& a = setting.arguments;
  Table table(
      {"workload", "sparsity", "static", "reactive", "page", "SA window", "window", "share"});
  double best = 0;
  for (const Row& r : rows) {
    const auto ratio = [&](double seconds) { return fmt::format("{:.2f}x", r.fixed / seconds); };
    best = std::max(best, r.fixed / r.window);
    table.add({r.workload, fmt::format("{:.0f}%", r.sparsity), ratio(r.fixed), ratio(r.reactive),
               ratio(r.page), ratio(r.window), fmt::format("{}", r.choice.window),
               fmt::format("{:.1f}", r.choice.share)});
  }
  std::string out = fmt::format(
      "HBM {:.0f} GB at 4.9 TB/s, link 450 GB/s a direction, DRAM 500 GB/s; {} sequences of {} + "
      "{} tokens, {} a token: {}\nKV, of which HBM holds {:.0f} %. Predicted times, as decode "
      "rates over static.\n",
      a.hbm_gb, a.sequences, a.prompt, a.decode,
      human_bytes(static_cast<double>(a.kv_bytes_per_token)), human_bytes(setting.kv),
      100 * setting.share);
  out += fmt::format(
      "The recorded traces are shorter than this decode. The generated workload is drawn from a "
      "seed and stands for it:\nfitted to {} (overlap {:.2f}, wanted {:.2f}; ever read {:.2f}, "
      "wanted {:.2f}); one step in {} is played.\n",
      setting.wanted.source, setting.got.overlap, setting.wanted.overlap, setting.got.ever,
      setting.wanted.ever, a.stride);
  if (!a.traces.empty()) {
    out += "Recorded traces are played as they are, with the same share of HBM.\n";
  }
  out += fmt::format(
      "\n{}\nSA window knows the future: an upper estimate of its scheme, no bound. Best over "
      "static here {:.2f}x; published: up to {:.2f}x.\n",
      table.text(), best, kPublishedBest);
  return out;
}

ordered_json to_json(const std::vector<Row>& rows, const Setting& setting) {
  ordered_json report{
      {"schema", kReportSchema},        {"lehr", LEHR_BUILD_VERSION},
      {"experiment", "gh200-decode"},   {"predicted", true},
      {"seed", setting.arguments.seed}, {"published_best_over_static", kPublishedBest}};
  for (const Row& r : rows) {
    report["rows"].push_back({{"workload", r.workload},
                              {"sparsity", r.sparsity},
                              {"static_seconds", r.fixed},
                              {"reactive_seconds", r.reactive},
                              {"page_seconds", r.page},
                              {"sa_window_seconds", r.window},
                              {"window", r.choice.window},
                              {"share", r.choice.share},
                              {"full_knowledge", "sa_window"}});
  }
  report["generator"] = {
      {"lasting", setting.model.lasting},         {"memory", setting.model.memory},
      {"overlap", setting.got.overlap},           {"ever", setting.got.ever},
      {"wanted_overlap", setting.wanted.overlap}, {"wanted_ever", setting.wanted.ever}};
  return report;
}

void run(const Arguments& arguments) {
  if (!arguments.json.empty()) take(kCommand, can_write_json(arguments.json));
  const placement::Platform platform = published_platform(arguments.hbm_gb);
  Traces traces;
  for (const std::string& file : arguments.traces) {
    traces.push_back(std::make_unique<formats::AttentionTrace>(
        take(kCommand, formats::AttentionTrace::open(file))));
  }
  Setting setting{arguments, platform, traces, {}, {}, {}, 0, 0};
  if (!traces.empty()) setting.wanted = take(kCommand, measure(traces));
  setting.model = fit(setting.wanted, arguments.seed);
  setting.got = statistics_of(setting.model, arguments.seed);
  setting.kv = static_cast<double>(arguments.prompt + arguments.decode) * arguments.sequences *
               static_cast<double>(arguments.kv_bytes_per_token);
  setting.share = std::min(1.0, arguments.hbm_gb * kGB / setting.kv);
  std::vector<Row> rows = rows_of(arguments);
  play_all(rows, setting);
  for (const Row& r : rows) {
    if (r.failed) fail(kCommand, *r.failed);
  }
  if (arguments.json != "-") print(kCommand, to_text(rows, setting));
  if (!arguments.json.empty()) take(kCommand, write_json(arguments.json, to_json(rows, setting)));
}

}  // namespace

void add_gh200_decode(CLI::App& experiments) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App& command = *experiments.add_subcommand(
      "gh200-decode",
      "The published GH200 setting: static, reactive, page and annealed window over sparsity");
  command.add_option("traces", arguments->traces,
                     "Attention traces to fit the generator to, and to play as well");
  command
      .add_option("--sparsity", arguments->sparsity, "Percent of the pages that a step leaves out")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 99.9));
  command.add_option("--sequences", arguments->sequences, "Sequences of the batch")
      ->check(CLI::Range(1U, 256U));
  command.add_option("--prompt", arguments->prompt, "Prompt tokens")
      ->check(CLI::Range(1024U, 1U << 20));
  command.add_option("--decode", arguments->decode, "Decoded tokens")
      ->check(CLI::Range(16U, 1U << 20));
  command.add_option("--stride", arguments->stride, "Steps that one played step stands for")
      ->check(CLI::Range(1U, 1000U));
  command.add_option("--page-tokens", arguments->page_tokens, "Tokens of a page")
      ->check(CLI::Range(1U, 1024U));
  command.add_option("--kv-bytes", arguments->kv_bytes_per_token, "KV bytes of a token")
      ->check(CLI::Range(1024U, 1U << 24));
  command.add_option("--hbm-gb", arguments->hbm_gb, "HBM for KV")->check(CLI::Range(0.1, 1000.0));
  command.add_option("--seed", arguments->seed, "Of the generated workload");
  command.add_option("--json", arguments->json,
                     "Write the report as JSON to this file (- for standard output)");
  command.callback([arguments] { run(*arguments); });
}

}  // namespace lehr::tools
