// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include <CLI/CLI.hpp>

#include "runtime/formats/zstd.hpp"
#include "tools/lehr/cut.hpp"
#include "tools/lehr/fail.hpp"
#include "tools/lehr/terminal.hpp"
#include "tools/lehr/trace_kind.hpp"

namespace lehr::tools {
namespace {

constexpr const char* kCommand = "cut";

struct Options {
  std::string input;
  std::string output;
  std::string layers;
  std::uint32_t first_step = 0;
  std::uint32_t steps = 0;
  std::uint32_t prompt_tail = 0;
  std::uint64_t requests = 0;
  bool attention_option = false;  ///< an option that only attention traces have was given
};

void cut_attention(formats::FileContents contents, const Options& options) {
  if (options.requests != 0) {
    fail_usage(kCommand, invalid("--requests is for request traces; " + options.input +
                                 " is an attention trace"));
  }
  CutSpec spec;
  spec.first_step = options.first_step;
  if (options.steps != 0) spec.steps = options.steps;
  if (options.prompt_tail != 0) spec.prompt_tail = options.prompt_tail;
  if (!options.layers.empty()) {
    auto layers = parse_layer_list(options.layers);
    if (!layers) fail_usage(kCommand, layers.error());
    spec.layer_ids = *std::move(layers);
  }
  const auto trace =
      take(kCommand, formats::AttentionTrace::from(std::move(contents), options.input));
  auto cut = cut_trace(trace, spec);
  if (!cut) fail_usage(kCommand, cut.error());
  for (const auto& tensor : trace.parts().other) {
    std::fprintf(stderr, "lehr cut: tensor '%s' is not one of Lehr's, left out\n",
                 printable(tensor.name).c_str());
  }
  take(kCommand, formats::write_attention_trace(options.output, (*cut).parts));
}

void cut_request_trace(const formats::FileContents& contents, const Options& options) {
  if (options.requests == 0 || options.attention_option) {
    fail_usage(kCommand,
               invalid(options.input + " is a request trace, which is cut with --requests"));
  }
  const std::string_view text(reinterpret_cast<const char*>(contents.bytes().data()),
                              contents.bytes().size());
  const std::string kept = take(kCommand, cut_requests(text, options.input, options.requests));
  auto file = take(kCommand, formats::OutputFile::create(options.output));
  take(kCommand, file.write(std::as_bytes(std::span(kept))));
  take(kCommand, file.commit());
}

void cut(const Options& options) {
  auto contents =
      take(kCommand, formats::FileContents::open(options.input, formats::kDefaultTraceLimit));
  if (is_attention_trace(contents.bytes(), options.input)) {
    cut_attention(std::move(contents), options);
  } else {
    cut_request_trace(contents, options);
  }
}

}  // namespace

void add_cut(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("cut", "Make a smaller trace of a part of one");
  command->add_option("in", options->input, "Trace to read, plain or .zst")->required();
  command->add_option("out", options->output, "Trace to write; compressed if the name ends in .zst")
      ->required();
  const CLI::Option* const attention[] = {
      command->add_option("--steps", options->steps, "Steps to keep")->check(CLI::PositiveNumber),
      command->add_option("--from-step", options->first_step,
                          "First step to keep; those before become part of the prompt"),
      command->add_option("--layers", options->layers, "Layers to keep, such as 0,2,5-9"),
      command
          ->add_option("--prompt-tail", options->prompt_tail,
                       "Keep only the last N prompt tokens, rounded up to whole pages")
          ->check(CLI::PositiveNumber)};
  command->add_option("--requests", options->requests, "Requests to keep of a request trace")
      ->check(CLI::PositiveNumber);
  command->callback([options, attention = std::vector(std::begin(attention), std::end(attention))] {
    for (const CLI::Option* option : attention) {
      options->attention_option = options->attention_option || option->count() > 0;
    }
    cut(*options);
  });
}

}  // namespace lehr::tools
