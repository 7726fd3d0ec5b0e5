// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <mutex>

#include <cudaTypedefs.h>

#include "transfer/cuda/driver.hpp"
#include "transfer/cuda/handles.hpp"
#include "transfer/device.hpp"

namespace lehr::transfer {
namespace {

constexpr Bytes kUnit = 64 * kMiB;  ///< mapped and unmapped at once

/// The driver's virtual-memory calls, looked up at run time: nothing links against the driver.
struct Driver {
  PFN_cuMemAddressReserve_v10020 reserve = nullptr;
  PFN_cuMemAddressFree_v10020 free_addresses = nullptr;
  PFN_cuMemCreate_v10020 create = nullptr;
  PFN_cuMemRelease_v10020 release = nullptr;
  PFN_cuMemMap_v10020 map = nullptr;
  PFN_cuMemUnmap_v10020 unmap = nullptr;
  PFN_cuMemSetAccess_v10020 set_access = nullptr;
  PFN_cuMemGetAllocationGranularity_v10020 granularity = nullptr;
};

using cuda::driver_error;

Result<Driver> load_driver() {
  Driver d;
  LEHR_TRY(cuda::look_up("cuMemAddressReserve", 10020, d.reserve));
  LEHR_TRY(cuda::look_up("cuMemAddressFree", 10020, d.free_addresses));
  LEHR_TRY(cuda::look_up("cuMemCreate", 10020, d.create));
  LEHR_TRY(cuda::look_up("cuMemRelease", 10020, d.release));
  LEHR_TRY(cuda::look_up("cuMemMap", 10020, d.map));
  LEHR_TRY(cuda::look_up("cuMemUnmap", 10020, d.unmap));
  LEHR_TRY(cuda::look_up("cuMemSetAccess", 10020, d.set_access));
  LEHR_TRY(cuda::look_up("cuMemGetAllocationGranularity", 10020, d.granularity));
  return d;
}

Bytes round_up(Bytes bytes, Bytes unit) { return (bytes + unit - 1) / unit * unit; }

class MappedMemory final : public DeviceMemory {
 public:
  MappedMemory(const DeviceMemoryConfig& config, const Driver& driver)
      : driver_(driver), config_(config) {}

  ~MappedMemory() override {
    (void)shrink(0);
    if (base_ != 0) (void)driver_.free_addresses(base_, reserved_);
  }

  Status open() {
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, config_.device};
    std::size_t granularity = 0;
    if (const CUresult s =
            driver_.granularity(&granularity, &properties_, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
        s != CUDA_SUCCESS) {
      return driver_error(s, "granularity of device memory");
    }
    unit_ = round_up(std::min(kUnit, std::max(config_.reserve, config_.bytes)), granularity);
    reserved_ = round_up(std::max(config_.reserve, config_.bytes), unit_);
    if (const CUresult s = driver_.reserve(&base_, reserved_, granularity, 0, 0);
        s != CUDA_SUCCESS) {
      base_ = 0;
      return driver_error(s, "reserving device addresses");
    }
    access_.push_back({properties_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    for (const std::int32_t reader : config_.readers) {
      if (reader == config_.device) continue;
      LEHR_TRY(peer_access(reader, config_.device));
      // The reader's context must be there before it is given access.
      const cuda::DeviceScope scope(reader);
      LEHR_CUDA_TRY(cudaFree(nullptr));
      access_.push_back(
          {{CU_MEM_LOCATION_TYPE_DEVICE, reader}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    }
    return resize(config_.bytes);
  }

  std::byte* base() const override { return reinterpret_cast<std::byte*>(base_); }
  Bytes mapped() const override {
    const std::lock_guard lock(mutex_);
    return units_.size() * unit_;
  }
  Bytes reserved() const override { return reserved_; }
  std::int32_t device() const override { return config_.device; }

  Status resize(Bytes bytes) override {
    const std::lock_guard lock(mutex_);
    const Bytes wanted = round_up(bytes, unit_);
    if (wanted > reserved_) {
      return refused(Reason::kOverBudget, "device " + std::to_string(config_.device) + ": " +
                                              std::to_string(bytes) +
                                              " bytes asked for, addresses are reserved for " +
                                              std::to_string(reserved_));
    }
    const std::size_t before = units_.size();
    if (wanted / unit_ <= before) return shrink(wanted / unit_);
    const cuda::DeviceScope scope(config_.device);
    LEHR_CUDA_TRY(cudaFree(nullptr));
    while (units_.size() < wanted / unit_) {
      if (Status mapped = map_one(); !mapped) {
        LEHR_TRY(shrink(before));
        return mapped;
      }
    }
    return {};
  }

 private:
  Status map_one() {
    if (++mappings_ == config_.fail_mapping_nth) {
      return driver_error(CUDA_ERROR_OUT_OF_MEMORY, "device memory (injected)");
    }
    CUmemGenericAllocationHandle handle = 0;
    if (const CUresult s = driver_.create(&handle, unit_, &properties_, 0); s != CUDA_SUCCESS) {
      return driver_error(s, "device memory");
    }
    const CUdeviceptr at = base_ + units_.size() * unit_;
    CUresult s = driver_.map(at, unit_, 0, handle, 0);
    if (s == CUDA_SUCCESS) {
      s = driver_.set_access(at, unit_, access_.data(), access_.size());
      if (s != CUDA_SUCCESS) (void)driver_.unmap(at, unit_);
    }
    if (s != CUDA_SUCCESS) {
      (void)driver_.release(handle);
      return driver_error(s, "mapping device memory");
    }
    units_.push_back(handle);
    return {};
  }

  Status shrink(std::size_t units) {
    while (units_.size() > units) {
      const CUdeviceptr at = base_ + (units_.size() - 1) * unit_;
      if (const CUresult s = driver_.unmap(at, unit_); s != CUDA_SUCCESS) {
        return driver_error(s, "unmapping device memory");
      }
      (void)driver_.release(units_.back());
      units_.pop_back();
    }
    return {};
  }

  const Driver driver_;
  const DeviceMemoryConfig config_;
  CUmemAllocationProp properties_{};
  std::vector<CUmemAccessDesc> access_;
  Bytes unit_ = 0, reserved_ = 0;
  CUdeviceptr base_ = 0;
  std::uint64_t mappings_ = 0;
  mutable std::mutex mutex_;
  std::vector<CUmemGenericAllocationHandle> units_;
};

}  // namespace

Result<std::shared_ptr<DeviceMemory>> DeviceMemory::create(const DeviceMemoryConfig& config) {
  if (config.bytes == 0 && config.reserve == 0) return invalid("device memory of 0 bytes");
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || config.device < 0 || config.device >= count) {
    (void)cudaGetLastError();
    return unsupported("no device " + std::to_string(config.device) + ": this machine has " +
                       std::to_string(count));
  }
  const cuda::DeviceScope scope(config.device);
  LEHR_CUDA_TRY(cudaFree(nullptr));
  LEHR_ASSIGN(const Driver driver, load_driver());
  auto memory = std::make_shared<MappedMemory>(config, driver);
  LEHR_TRY(memory->open());
  return std::shared_ptr<DeviceMemory>(std::move(memory));
}

MemoryRegion region_of(const std::shared_ptr<DeviceMemory>& memory) {
  MemoryRegion region;
  region.base = memory->base();
  region.bytes = memory->reserved();
  region.space = Space::kDeviceMemory;
  region.unit = memory->device();
  region.owner = memory;
  return region;
}

}  // namespace lehr::transfer
