// SPDX-License-Identifier: Apache-2.0
#pragma once

/// On a function: compiled for AVX-512, AVX2 and the baseline, the best chosen when the program is
/// loaded. Not under sanitizers: the choice would run before their runtime does.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LEHR_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define LEHR_VECTOR_CLONES
#endif
