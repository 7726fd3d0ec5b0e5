// SPDX-License-Identifier: Apache-2.0
// lehr-train: fits the trained predictors (logistic, net, gru) to recorded traces, from scratch or
// from earlier weights, and says how they do on traces they have not seen.
#include <chrono>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include "runtime/formats/file.hpp"
#include "runtime/predictor_weights.hpp"
#include "tools/train/trainers.hpp"

namespace lehr::train {

namespace {

struct Arguments {
  std::vector<std::string> traces;
  std::vector<std::string> held;
  std::vector<std::string> select = {"mass:0.95", "topk:10%"};
  std::string from;
  std::string out = "predictors.safetensors";
  std::uint32_t epochs = 2;
  std::uint32_t samples = 12000;
  double rate = 0.002;
  double number_weight = 2;
  std::uint64_t seed = 1;
};

struct Opened {
  std::string name;
  std::unique_ptr<formats::AttentionTrace> trace;
  std::vector<std::unique_ptr<runtime::TraceSelection>> selections;
};

Result<std::vector<Opened>> open_all(const std::vector<std::string>& files,
                                     const std::vector<std::string>& rules) {
  std::vector<Opened> out;
  for (const std::string& file : files) {
    Opened o;
    o.name = file.substr(file.find_last_of('/') + 1);
    LEHR_ASSIGN(auto trace, formats::AttentionTrace::open(file));
    o.trace = std::make_unique<formats::AttentionTrace>(std::move(trace));
    if (o.trace->steps() <= predictors::kTrainedSteps)
      return invalid(fmt::format("{}: {} steps, expected more than {}", file, o.trace->steps(),
                                 predictors::kTrainedSteps));
    for (const std::string& text : rules) {
      LEHR_ASSIGN(const SelectionRule rule, SelectionRule::parse(text));
      o.selections.push_back(std::make_unique<runtime::TraceSelection>(*o.trace, rule));
    }
    out.push_back(std::move(o));
  }
  return out;
}

/// A trace that is learnt from says nothing of unseen ones, under whatever name it is given.
Status check_apart(const std::vector<Opened>& learnt, const std::vector<Opened>& held) {
  for (const Opened& h : held) {
    for (const Opened& l : learnt) {
      const auto a = h.trace->parts().mass;
      const auto b = l.trace->parts().mass;
      if (!std::equal(a.begin(), a.end(), b.begin(), b.end())) continue;
      return invalid(
          fmt::format("--held {}: the same trace as {}, which is learnt from", h.name, l.name));
    }
  }
  return {};
}

using Trainers = std::vector<std::unique_ptr<Trainer>>;

/// One pass over a trace; the losses of each trainer, and the number of samples.
std::vector<Loss> pass(const Opened& o, std::uint32_t samples, std::uint64_t seed, bool learn,
                       float rate, double number_weight, Trainers& trainers) {
  std::vector<Loss> losses(trainers.size());
  const double groups =
      static_cast<double>(o.trace->geometry().groups() * o.selections.size()) * o.trace->steps();
  SampleOptions options;
  options.share = std::min(1.0, samples / groups);
  options.number_weight = learn ? number_weight : 1;
  options.seed = seed;
  for (const auto& selection : o.selections) {
    for_each_sample(*selection, options, [&](const Sample& sample) {
      for (std::size_t i = 0; i < trainers.size(); ++i)
        trainers[i]->see(sample, learn, rate, losses[i]);
    });
  }
  return losses;
}

std::string losses_text(const std::vector<Loss>& losses, const Trainers& trainers) {
  std::string out;
  for (std::size_t i = 0; i < trainers.size(); ++i) {
    out += fmt::format("  {}", trainers[i]->name());
    for (const double s : losses[i].sum) out += fmt::format(" {:.5f}", s / losses[i].weight);
  }
  return out;
}

Status write(const std::string& path, const Trainers& trainers, const formats::Metadata& metadata) {
  std::vector<NamedTensor> named;
  for (const auto& t : trainers) {
    for (NamedTensor& n : t->weights()) named.push_back(std::move(n));
  }
  std::vector<formats::Tensor> tensors;
  tensors.reserve(named.size());
  for (const NamedTensor& n : named) {
    tensors.push_back({n.name, formats::TensorType::kF32, n.shape,
                       std::as_bytes(std::span<const float>(n.values))});
  }
  LEHR_ASSIGN(const std::string header, formats::safetensors_header(metadata, tensors));
  LEHR_ASSIGN(auto file, formats::AtomicFile::create(path));
  LEHR_TRY(file.write(std::as_bytes(std::span<const char>(header))));
  for (const formats::Tensor& t : tensors) LEHR_TRY(file.write(t.data));
  return file.commit();
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& w : words) out += (out.empty() ? "" : " ") + w;
  return out;
}

Status train(const Arguments& a, const std::string& command) {
  const auto began = std::chrono::steady_clock::now();
  Trainers trainers;
  trainers.push_back(make_logistic_trainer());
  trainers.push_back(make_net_trainer(a.seed));
  trainers.push_back(make_gru_trainer(a.seed));
  if (!a.from.empty()) {
    LEHR_ASSIGN(const auto weights, runtime::PredictorWeights::named(a.from));
    for (auto& t : trainers) LEHR_TRY(t->load(weights.tensors()));
  }
  LEHR_ASSIGN(auto traces, open_all(a.traces, a.select));
  LEHR_ASSIGN(const auto held, open_all(a.held, a.select));
  LEHR_TRY(check_apart(traces, held));
  // The curriculum: short contexts first. Each stage goes on to longer ones and keeps the shorter.
  std::stable_sort(traces.begin(), traces.end(), [](const Opened& x, const Opened& y) {
    return x.trace->meta().prompt_tokens < y.trace->meta().prompt_tokens;
  });
  std::uint64_t seed = a.seed;
  const auto stages = static_cast<std::uint32_t>(traces.size()) + a.epochs - 1;
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    const std::size_t longest = std::min<std::size_t>(stage + 1, traces.size());
    const float rate = static_cast<float>(a.rate) *
                       (1.0F - 0.9F * static_cast<float>(stage) / static_cast<float>(stages));
    for (std::size_t i = 0; i < longest; ++i) {
      // Traces met for the first time, and all of them at the end, count in full.
      const bool whole = i + 1 == longest || stage + 1 >= traces.size();
      const auto losses = pass(traces[i], whole ? a.samples : a.samples / 4, ++seed, true, rate,
                               a.number_weight, trainers);
      fmt::print("stage {}/{}  {}{}\n", stage + 1, stages, traces[i].name,
                 losses_text(losses, trainers));
      std::fflush(stdout);
    }
  }
  std::string figures;
  for (const Opened& o : held) {
    const auto losses = pass(o, 4000, 77, false, 0, 1, trainers);
    figures += fmt::format("{}:{}; ", o.name, losses_text(losses, trainers));
    fmt::print("held out  {}{}\n", o.name, losses_text(losses, trainers));
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::vector<std::string> names;
  names.reserve(traces.size());
  for (const Opened& o : traces) names.push_back(o.name);
  LEHR_TRY(write(a.out, trainers,
                 {{"format", std::string(runtime::PredictorWeights::kFormat)},
                  {"version", std::string(runtime::PredictorWeights::kVersion)},
                  {"command", command},
                  {"trained_on", joined(names)},
                  {"held_out_log_loss", figures},
                  {"seconds", fmt::format("{:.0f}", seconds)}}));
  fmt::print("wrote {} after {:.0f} s\n", a.out, seconds);
  return {};
}

int run(int argc, char** argv) {
  Arguments a;
  CLI::App app("Trains the predictors logistic, net and gru on recorded traces");
  app.add_option("traces", a.traces, "Attention traces to learn from")->required();
  app.add_option("--held", a.held, "Traces kept apart: losses on them are printed and recorded");
  app.add_option("--select", a.select, "Selections to learn from (mass:SHARE, topk:RATIO, …)");
  app.add_option("--from", a.from, "Weights to go on from: \"shipped\" or a file (fine-tuning)");
  app.add_option("--out", a.out, "Where the weights go");
  app.add_option("--epochs", a.epochs, "Passes over all traces after the curriculum")
      ->check(CLI::Range(1, 100));
  app.add_option("--samples", a.samples, "Group steps a trace and pass")
      ->check(CLI::Range(1U, 1000000000U));
  app.add_option("--rate", a.rate, "Learning rate at the start")->check(CLI::Range(1e-6, 0.1));
  app.add_option("--number-weight", a.number_weight, "Of pages that hold digits, in the loss")
      ->check(CLI::Range(0.0, 100.0));
  app.add_option("--seed", a.seed, "Seed of samples and first weights");
  CLI11_PARSE(app, argc, argv);
  std::string command = "lehr-train";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    command += " " + word.substr(word.find_last_of('/') + 1);
  }
  const Status done = train(a, command);
  if (done) return 0;
  fmt::print(stderr, "lehr-train: {}\n", done.error().what);
  return 1;
}

}  // namespace

}  // namespace lehr::train

int main(int argc, char** argv) {
  try {
    return lehr::train::run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("lehr-train: out of memory\n", stderr);
  } catch (const std::exception& error) {  // fmt's: standard output is full or closed
    std::fprintf(stderr, "lehr-train: %s\n", error.what());
  }
  return 1;
}
