// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/base/result.hpp"
#include "runtime/capi/first_sizes.hpp"
#include "runtime/capi/handles.hpp"
#include "runtime/include/lehr.h"

// Where C meets C++: the only place with a `try`. Every extern "C" function is one call of
// boundary().

namespace lehr::capi {

lehr_status to_status(const Error& error);
/// Keeps the error's text for lehr_last_error() and returns its status. Never throws.
lehr_status fail(const Error& error) noexcept;
std::string_view last_error() noexcept;
/// Refuses a caller that was built for a later major version.
Status check_version(std::uint32_t version);
inline Error forked() {
  return refused(Reason::kForked, "the process is a fork of one that used the library");
}

/// Runs `body`, a function that returns Status or Result<lehr_status>.
template <class Body>
lehr_status boundary(Body body) noexcept {
  try {
    auto result = body();
    if (!result) return fail(result.error());
    if constexpr (requires { *result; }) {
      return *result;
    } else {
      return LEHR_OK;
    }
  } catch (const std::bad_alloc&) {
    return fail({Code::kRefused, Reason::kOverBudget, "out of memory"});
  } catch (const std::length_error&) {
    return fail({Code::kRefused, Reason::kOverBudget, "more items than memory could hold"});
  } catch (const std::exception& e) {
    return fail({Code::kInternal, Reason::kNone, e.what()});
  } catch (...) {
    return fail({Code::kInternal, Reason::kNone, "an exception of unknown type"});
  }
}

/// boundary() with the runtime of a handle.
template <class Body>
lehr_status with_runtime(lehr_runtime handle, Body body) noexcept {
  return boundary([&]() -> Result<lehr_status> {
    Registry* const registry = Registry::get();
    if (registry == nullptr) return forked();
    LEHR_ASSIGN(const std::shared_ptr<Instance> instance, registry->find(handle.id));
    auto result = body(*instance);
    if (!result) return std::move(result).error();
    if constexpr (requires { *result; }) {
      return *result;
    } else {
      return lehr_status{LEHR_OK};
    }
  });
}

/// with_runtime() for the step level: its calls take turns.
template <class Body>
lehr_status with_step(lehr_runtime handle, Body body) noexcept {
  return with_runtime(handle, [&](Instance& instance) -> decltype(body(instance)) {
    if (!instance.step) {
      return unsupported("the runtime has no step level: its configuration has no geometry");
    }
    const std::lock_guard<std::mutex> hold(instance.step_mutex);
    if (!instance.step_broken.empty()) {
      return internal_error("the step level stopped earlier: " + instance.step_broken);
    }
    return body(instance);
  });
}

/// with_runtime() for the placement level.
template <class Body>
lehr_status with_placement(lehr_runtime handle, Body body) noexcept {
  return with_runtime(handle, [&](Instance& instance) -> decltype(body(instance)) {
    if (!instance.placement) {
      return unsupported(
          "the runtime has no placement level: its configuration has no placement.block_bytes");
    }
    return body(instance);
  });
}

template <class T>
Status not_null(const T* pointer, const char* what) {
  if (pointer == nullptr) return invalid(std::string(what) + " is NULL");
  return {};
}

/// Copies a caller's struct of any known size; what it lacks is 0.
template <class T>
Result<T> read_struct(const T* given, const char* what) {
  constexpr std::size_t kLeast = kFirstSize<T>;
  LEHR_TRY(not_null(given, what));
  std::uint32_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  if (size < kLeast) {
    return Error{Code::kInvalid, Reason::kOutOfRange,
                 std::string(what) + ": struct_size " + std::to_string(size) +
                     ", expected at least " + std::to_string(kLeast)};
  }
  if (size > (1U << 16)) {
    return Error{Code::kInvalid, Reason::kOutOfRange,
                 std::string(what) + ": struct_size " + std::to_string(size)};
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      return Error{
          Code::kVersion, Reason::kNone,
          std::string(what) + ": a field that this version of the library does not know is set"};
    }
  }
  T out{};
  std::memcpy(&out, given, std::min<std::size_t>(size, sizeof(T)));
  return out;
}

/// The size of a caller's struct: at least that of its first release, at most what is sane.
template <class T>
Result<std::uint32_t> check_size(const T* out, const char* what) {
  constexpr std::size_t kLeast = kFirstSize<T>;
  LEHR_TRY(not_null(out, what));
  std::uint32_t size = 0;
  std::memcpy(&size, out, sizeof(size));
  if (size < kLeast || size > (1U << 16)) {
    return Error{Code::kInvalid, Reason::kOutOfRange,
                 std::string(what) + ": struct_size " + std::to_string(size) +
                     ", expected at least " + std::to_string(kLeast)};
  }
  return size;
}

/// Fills a result struct of `size` bytes: its struct_size stays, what this version does not know
/// becomes 0.
template <class T>
void write_struct(void* out, std::uint32_t size, T value) {
  value.struct_size = size;
  const std::size_t known = std::min<std::size_t>(size, sizeof(T));
  std::memcpy(out, &value, known);
  std::memset(static_cast<unsigned char*>(out) + known, 0, size - known);
}

/// An array of structs in caller memory, the first element's struct_size apart.
template <class T>
class StructArray {
 public:
  static Result<StructArray> of(T* items, std::size_t count, const char* what,
                                bool may_be_null = false) {
    if (count == 0 || (items == nullptr && may_be_null)) return StructArray(nullptr, 0, 0);
    LEHR_ASSIGN(const std::uint32_t size,
                check_size(static_cast<const std::remove_const_t<T>*>(items), what));
    if (size % 8 != 0) {
      return Error{
          Code::kInvalid, Reason::kOutOfRange,
          std::string(what) + ": struct_size " + std::to_string(size) + " is no multiple of 8"};
    }
    return StructArray(items, count, size);
  }
  explicit operator bool() const { return items_ != nullptr; }
  std::size_t size() const { return count_; }
  /// An element of an input array; its own struct_size is that of the first.
  Result<std::remove_const_t<T>> read(std::size_t i, const char* what) const {
    const T* at = element(i);
    std::uint32_t size = 0;
    std::memcpy(&size, at, sizeof(size));
    if (size != stride_) {
      return Error{Code::kInvalid, Reason::kOutOfRange,
                   std::string(what) + ", element " + std::to_string(i) + ": struct_size " +
                       std::to_string(size) + ", the first has " + std::to_string(stride_)};
    }
    return read_struct<std::remove_const_t<T>>(at, what);
  }
  void write(std::size_t i, const std::remove_const_t<T>& value) const {
    write_struct(const_cast<std::remove_const_t<T>*>(element(i)), stride_, value);
  }

 private:
  StructArray(T* items, std::size_t count, std::uint32_t stride)
      : items_(items), count_(count), stride_(stride) {}
  T* element(std::size_t i) const {
    using Byte = std::conditional_t<std::is_const_v<T>, const unsigned char, unsigned char>;
    return reinterpret_cast<T*>(reinterpret_cast<Byte*>(items_) + i * stride_);
  }
  T* items_;
  std::size_t count_;
  std::uint32_t stride_;
};

/// Bytes of the caller as text.
Result<std::string_view> bytes_of(const lehr_bytes& bytes, const char* what);

/// Copies text to a caller's buffer with a terminating 0, cut if need be.
Status copy_text(std::string_view text, char* buffer, std::size_t size, std::size_t* needed);

/// Runs `one(i)` for each item and reports the batch: statuses if wanted, kept text of the first
/// failure.
template <class One>
Result<lehr_status> batch(std::size_t count, lehr_status* statuses, One one) {
  std::size_t failed = 0;
  lehr_status first = LEHR_OK;
  for (std::size_t i = 0; i < count; ++i) {
    const Status done = one(i);
    lehr_status status = LEHR_OK;
    if (!done) {
      status = failed == 0 ? fail(done.error()) : to_status(done.error());
      if (failed++ == 0) first = status;
    }
    if (statuses != nullptr) statuses[i] = status;
  }
  if (failed == 0) return lehr_status{LEHR_OK};
  return failed == count ? first : lehr_status{LEHR_PARTIAL};
}

}  // namespace lehr::capi
