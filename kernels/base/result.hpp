// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cassert>
#include <optional>
#include <utility>
#include <variant>

#include "kernels/base/status.hpp"

namespace lehr {

/// A value or an Error. Lehr throws nothing of its own; every fallible function returns one of
/// these.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  explicit operator bool() const { return state_.index() == 0; }
  bool has_value() const { return state_.index() == 0; }

  T& operator*() & {
    assert(has_value());
    return *std::get_if<0>(&state_);
  }
  const T& operator*() const& {
    assert(has_value());
    return *std::get_if<0>(&state_);
  }
  T&& operator*() && {
    assert(has_value());
    return std::move(*std::get_if<0>(&state_));
  }
  T* operator->() { return &**this; }
  const T* operator->() const { return &**this; }

  const Error& error() const& {
    assert(!has_value());
    return *std::get_if<1>(&state_);
  }
  Error&& error() && {
    assert(!has_value());
    return std::move(*std::get_if<1>(&state_));
  }

 private:
  std::variant<T, Error> state_;
};

/// Success without a value, or an Error: `return {};` is success.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  explicit operator bool() const { return !error_.has_value(); }
  bool has_value() const { return !error_.has_value(); }
  const Error& error() const& {
    assert(error_.has_value());
    return *error_;
  }
  Error&& error() && {
    assert(error_.has_value());
    return std::move(*error_);
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace lehr

// Propagate a failure. LEHR_TRY(expr) drops the value; LEHR_ASSIGN(decl, expr) keeps it.
#define LEHR_CONCAT_INNER(a, b) a##b
#define LEHR_CONCAT(a, b) LEHR_CONCAT_INNER(a, b)
#define LEHR_TRY(expr)                                          \
  do {                                                          \
    auto lehr_try_result = (expr);                              \
    if (!lehr_try_result) {                                     \
      return ::lehr::Error(std::move(lehr_try_result).error()); \
    }                                                           \
  } while (false)
#define LEHR_ASSIGN_IMPL(tmp, decl, expr)                 \
  auto tmp = (expr);                                      \
  if (!tmp) return ::lehr::Error(std::move(tmp).error()); \
  decl = *std::move(tmp)
#define LEHR_ASSIGN(decl, expr) LEHR_ASSIGN_IMPL(LEHR_CONCAT(lehr_result_, __LINE__), decl, expr)
