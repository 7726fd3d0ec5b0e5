// SPDX-License-Identifier: Apache-2.0
// `lehr record` is a Python program: it runs the model. Here it is only found and started.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include "tools/lehr/commands.hpp"

namespace lehr::tools {

namespace {

constexpr const char* kProgram = R"(import sys
try:
    from lehr.__main__ import main
except ImportError as error:
    sys.exit(f"lehr record: {sys.executable} cannot use the package lehr: {error}\n"
             "Install it with: pip install './tools/python[hf]', or name a Python that has it in LEHR_PYTHON")
sys.exit(main(["record", *sys.argv[1:]]))
)";

/// Becomes the Python program; returns only where that cannot be.
int start(const std::vector<std::string>& given) {
  const char* named = std::getenv("LEHR_PYTHON");
  std::vector<std::string> line{named != nullptr && *named != '\0' ? named : "python3", "-c",
                                kProgram};
  line.insert(line.end(), given.begin(), given.end());
  std::vector<char*> words;
  words.reserve(line.size() + 1);
  for (std::string& word : line) words.push_back(word.data());
  words.push_back(nullptr);
  execvp(words[0], words.data());
  std::perror(("lehr record: it is a Python program, and there is no " + line[0]).c_str());
  return kExitFailure;
}

}  // namespace

void add_record(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("record", "Record a trace of a model (a Python program; -h says how)");
  command->prefix_command();
  command->set_help_flag();  // the program's own help
  command->callback([command] {
    const int code = start(command->remaining());
    throw CLI::RuntimeError(code);
  });
}

}  // namespace lehr::tools
