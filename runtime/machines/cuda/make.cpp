// SPDX-License-Identifier: Apache-2.0
#include "runtime/machines/cuda/cuda_device.hpp"
#include "runtime/machines/cuda/decode_machine.hpp"
#include "runtime/machines/cuda/on_device.hpp"

namespace lehr::runtime {

Result<std::unique_ptr<Machine>> make_cuda_machine(const CudaMachineOptions& options) {
  LEHR_ASSIGN(auto device, cuda::CudaDevice::create(options));
  if (options.log) options.log->device = cuda::describe_device(options.device);
  LEHR_ASSIGN(auto machine, cuda::DecodeMachine::create(options, std::move(device)));
  return std::unique_ptr<Machine>(
      std::make_unique<cuda::OnDevice>(options.device, std::move(machine)));
}

}  // namespace lehr::runtime
