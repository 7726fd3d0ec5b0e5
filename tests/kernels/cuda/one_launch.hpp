// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lehr::kernels::test {

/// Compares a sparse step in one launch with its parts; prints and counts what differs.
int one_launch_failures(bool quick);

}  // namespace lehr::kernels::test
