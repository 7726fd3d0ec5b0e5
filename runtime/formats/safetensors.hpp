// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"

namespace lehr::formats {

/// The element types that the safetensors format names.
enum class TensorType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64,
};
std::string_view to_string(TensorType type);
std::size_t element_bytes(TensorType type);

/// One tensor: `data` holds exactly product(shape) elements, aligned to the element size when it
/// came from a reader.
struct Tensor {
  std::string name;
  TensorType type = TensorType::kU8;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> data;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

/// A view of a safetensors file: metadata and tensors in the header's order; it borrows the bytes.
struct Safetensors {
  Metadata metadata;
  std::vector<Tensor> tensors;

  const Tensor* find(std::string_view name) const;
};

/// Checks the whole header before anything is used: its length, JSON (UTF-8, depth, duplicate keys,
/// types), data types, shapes whose product overflows, and offsets, which must be in range,
/// aligned, and cover the data exactly, without overlap or hole. `name` leads each error line.
Result<Safetensors> parse_safetensors(std::span<const std::byte> bytes, std::string_view name);

/// The length field and JSON header for tensors laid out one after another in the order given
/// (sizes follow from type and shape; `data` is not looked at), padded so that the data starts
/// 8-byte aligned. Refuses what parse_safetensors would: duplicate names, non-UTF-8, an order of
/// types that breaks alignment.
Result<std::string> safetensors_header(const Metadata& metadata, std::span<const Tensor> tensors);

/// product(shape) * element size, or an error that names the tensor when it does not fit in 64
/// bits.
Result<Bytes> tensor_bytes(const Tensor& tensor);

/// "[2,3,4]", for messages.
std::string shape_text(std::span<const std::uint64_t> shape);

}  // namespace lehr::formats
