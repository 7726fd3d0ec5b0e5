// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/certify.hpp"

#include "tools/lehr/parallel.hpp"

namespace lehr::tools {

Result<Certified> certify(const runtime::Workload& workload, const runtime::ReplayOptions& replay,
                          const CertifyOptions& options) {
  Certified out;
  const double began = thread_seconds();
  LEHR_ASSIGN(const auto instance, runtime::replay_instance(workload, replay));
  placement::BoundOptions bound;
  bound.warmup_steps = replay.warmup_steps;
  if (options.brief) bound.visit_budget /= 2;
  LEHR_ASSIGN(out.bound, placement::lower_bound(instance, bound));
  const double between = thread_seconds();
  placement::OracleOptions oracle;
  oracle.warmup_steps = replay.warmup_steps;
  oracle.seed = options.seed;
  oracle.seeds = options.seeds;
  if (options.brief) oracle.sweeps = 1;
  LEHR_ASSIGN(out.oracle, placement::oracle_plan(instance, oracle));
  out.bound_seconds = between - began;
  out.oracle_seconds = thread_seconds() - between;
  return out;
}

}  // namespace lehr::tools
