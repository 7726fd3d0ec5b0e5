// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "runtime/include/lehr.h"

namespace lehr::capi {

/// The size of each struct in the release that introduced it. Never changed: what a caller of that
/// release sends is at least as long.
template <class T>
inline constexpr std::size_t kFirstSize = 0;

#define LEHR_FIRST_SIZE(type, bytes)                     \
  template <>                                            \
  inline constexpr std::size_t kFirstSize<type> = bytes; \
  static_assert(sizeof(type) >= (bytes) && (bytes) % 8 == 0);

LEHR_FIRST_SIZE(lehr_open_options, 32)
LEHR_FIRST_SIZE(lehr_runtime_info, 64)
LEHR_FIRST_SIZE(lehr_tier_info, 56)
LEHR_FIRST_SIZE(lehr_link_info, 56)
LEHR_FIRST_SIZE(lehr_stat_info, 32)
LEHR_FIRST_SIZE(lehr_stat_value, 24)
LEHR_FIRST_SIZE(lehr_sequence_desc, 32)
LEHR_FIRST_SIZE(lehr_selection, 64)
LEHR_FIRST_SIZE(lehr_step_report, 560)
LEHR_FIRST_SIZE(lehr_tensor, 56)
LEHR_FIRST_SIZE(lehr_attend_request, 80)
LEHR_FIRST_SIZE(lehr_contents_report, 48)
LEHR_FIRST_SIZE(lehr_group_options, 32)
LEHR_FIRST_SIZE(lehr_group_info, 40)
LEHR_FIRST_SIZE(lehr_group_device_info, 40)
LEHR_FIRST_SIZE(lehr_rebalance_request, 32)
LEHR_FIRST_SIZE(lehr_rebalance_report, 48)
LEHR_FIRST_SIZE(lehr_trace_desc, 96)
LEHR_FIRST_SIZE(lehr_layout, 96)
LEHR_FIRST_SIZE(lehr_namespace_desc, 64)
LEHR_FIRST_SIZE(lehr_pool_desc, 40)
LEHR_FIRST_SIZE(lehr_lookup_result, 16)
LEHR_FIRST_SIZE(lehr_item, 32)
LEHR_FIRST_SIZE(lehr_item_state, 24)
LEHR_FIRST_SIZE(lehr_evicted, 280)
LEHR_FIRST_SIZE(lehr_store_request, 32)
LEHR_FIRST_SIZE(lehr_load_request, 32)
LEHR_FIRST_SIZE(lehr_order, 32)
LEHR_FIRST_SIZE(lehr_table_desc, 24)
LEHR_FIRST_SIZE(lehr_table_entry, 16)
LEHR_FIRST_SIZE(lehr_ragged, 40)
LEHR_FIRST_SIZE(lehr_job_report, 48)
LEHR_FIRST_SIZE(lehr_event, 296)

#undef LEHR_FIRST_SIZE

}  // namespace lehr::capi
