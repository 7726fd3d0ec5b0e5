// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "runtime/machine.hpp"

namespace lehr::runtime::cuda {

/// A machine whose calls find its own GPU current, whichever was current before: several of them
/// take turns in one thread. The GPU stays current after a call.
class OnDevice final : public Machine {
 public:
  OnDevice(std::int32_t device, std::unique_ptr<Machine> machine)
      : device_(device), machine_(std::move(machine)) {}
  ~OnDevice() override {
    use();
    machine_.reset();
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  MachineTraits traits() const override { return machine_->traits(); }
  void attach(const PageTable& table) override { machine_->attach(table); }
  Status set_up(std::span<const PageOp> ops) override { return here().set_up(ops); }
  Status run_layer(Step step, std::uint32_t layer, std::span<const PageOp> ops) override {
    return here().run_layer(step, layer, ops);
  }
  Status run(const LayerWork& work) override { return here().run(work); }
  Status end_step(Step step) override { return here().end_step(step); }
  Status drain() override { return here().drain(); }
  Status check() override { return here().check(); }
  Seconds take_measured() override { return here().take_measured(); }
  std::vector<std::string> notes() const override { return here().notes(); }

 private:
  void use() const { (void)cudaSetDevice(device_); }
  Machine& here() const {
    use();
    return *machine_;
  }

  std::int32_t device_;
  std::unique_ptr<Machine> machine_;
};

}  // namespace lehr::runtime::cuda
