// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include "tests/capi/capi_world.hpp"

using namespace capi_world;

TEST_CASE("a forked child is refused, in every call, and the parent goes on") {
  Runtime runtime(std::string("machine = \"host\"\n") + kPlacement);
  const lehr_namespace ns = open_namespace(runtime);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto refused = [](lehr_status status) {
      return LEHR_STATUS_CLASS(status) == LEHR_CLASS_REFUSED &&
             LEHR_STATUS_REASON(status) == LEHR_REASON_FORKED;
    };
    auto info = sized<lehr_runtime_info>();
    auto result = sized<lehr_lookup_result>();
    const lehr_bytes key{"a", 1};
    lehr_runtime other{};
    const bool right = refused(lehr_runtime_describe(runtime, &info)) &&
                       refused(lehr_lookup(runtime, ns, &key, 1, &result, nullptr)) &&
                       refused(try_open(kStep, other)) && refused(lehr_close(runtime)) &&
                       last_error().find("fork") != std::string::npos;
    _exit(right ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  auto info = sized<lehr_runtime_info>();
  CHECK(lehr_runtime_describe(runtime, &info) == LEHR_OK);  // the control
}
