// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/progress.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include <unistd.h>

namespace lehr::tools {

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::show(double share) {
  if (!terminal_) return;
  const double now =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  if (last_seconds_ >= 0 && now - last_seconds_ < 0.1) return;
  last_seconds_ = now;
  drawn_ = true;
  constexpr int kWidth = 30;
  const int full = static_cast<int>(std::clamp(share, 0.0, 1.0) * kWidth);
  std::fprintf(stderr, "\r\033[K%-24s [%.*s%*s] %3.0f%%", label_.c_str(), full,
               "##############################", kWidth - full, "", share * 100);
  std::fflush(stderr);
}

}  // namespace lehr::tools
