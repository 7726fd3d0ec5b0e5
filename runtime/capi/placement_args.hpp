// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/capi/boundary.hpp"

// What the placement level's functions share in taking arguments apart.

namespace lehr::capi {

Result<directory::NamespaceId> namespace_of(Instance& instance, lehr_namespace handle);
lehr_namespace to_handle(Instance& instance, directory::NamespaceId id);

/// Views of the caller's keys.
Result<std::vector<std::string_view>> keys_of(const lehr_bytes* keys, std::size_t count);

void copy_key(const std::string& key, std::uint8_t (&out)[LEHR_MAX_KEY_BYTES + 1],
              std::uint32_t& size);

}  // namespace lehr::capi
