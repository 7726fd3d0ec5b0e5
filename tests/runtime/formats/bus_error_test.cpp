// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/bus_error.hpp"

#include <csignal>
#include <string>

#include <catch2/catch.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/formats/file.hpp"
#include "tests/runtime/formats/trace_files.hpp"
#include "tools/lehr/commands.hpp"

using namespace lehr;

namespace {

/// Runs `body` in a child whose stderr is read; its wait status and what it said.
template <class Body>
std::pair<int, std::string> in_child(Body body) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    ::signal(SIGBUS, SIG_DFL);
    body();
    ::_exit(77);
  }
  ::close(ends[1]);
  std::string said;
  char part[256];
  for (ssize_t n = ::read(ends[0], part, sizeof part); n > 0;
       n = ::read(ends[0], part, sizeof part)) {
    said.append(part, static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return {status, said};
}

/// Maps the file, makes it empty, reads a byte that is gone.
void read_past_the_end(const std::filesystem::path& path) {
  const auto mapped = formats::MappedFile::open(path);
  const bool cut = mapped && ::truncate(path.c_str(), 0) == 0;
  const volatile std::byte* last = cut ? &mapped->bytes().back() : nullptr;
  ::_exit(last != nullptr && *last == std::byte{0} ? 3 : 4);
}

}  // namespace

TEST_CASE("a mapped file that is truncated ends the command with one line") {
  const test::TempDir dir;
  test::write_text(dir / "a", std::string(8192, 'x'));
  const auto [status, said] = in_child([&] {
    tools::explain_bus_errors();
    read_past_the_end(dir / "a");
  });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == tools::kExitFailure);
  CHECK(said.find("lehr: an input file became shorter") == 0);
  CHECK(said.find('\n') == said.size() - 1);
}

TEST_CASE("control: without the handler it dies without a word") {
  const test::TempDir dir;
  test::write_text(dir / "a", std::string(8192, 'x'));
  const auto [status, said] = in_child([&] { read_past_the_end(dir / "a"); });
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGBUS);
  CHECK(said.empty());
}

TEST_CASE("a bus error that no file is to blame for still kills") {
  const auto [status, said] = in_child([] {
    tools::explain_bus_errors();
    ::raise(SIGBUS);
  });
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGBUS);
  CHECK(said.empty());
}
