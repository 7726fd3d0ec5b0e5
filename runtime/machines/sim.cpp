// SPDX-License-Identifier: Apache-2.0
#include "runtime/machines/sim.hpp"

namespace lehr::runtime {

namespace {

class SimMachine final : public Machine {
 public:
  MachineTraits traits() const override { return {}; }
  Status set_up(std::span<const PageOp>) override { return {}; }
  Status run_layer(Step, std::uint32_t, std::span<const PageOp>) override { return {}; }
  Status drain() override { return {}; }
  Seconds take_measured() override { return 0; }
  std::vector<std::string> notes() const override { return {}; }
};

}  // namespace

std::unique_ptr<Machine> make_sim_machine() { return std::make_unique<SimMachine>(); }

}  // namespace lehr::runtime
