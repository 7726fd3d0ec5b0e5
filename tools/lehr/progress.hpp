// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

namespace lehr::tools {

/// A bar on stderr, drawn only if stderr is a terminal, at most ten times a second. Removed at the
/// end.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// `share` done, in [0, 1]. Call from one thread at a time.
  void show(double share);
  void label(std::string text) { label_ = std::move(text); }

 private:
  std::string label_;
  bool terminal_;
  bool drawn_ = false;
  double last_seconds_ = -1;
};

}  // namespace lehr::tools
