// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/result.hpp"

namespace lehr::runtime {

/// A timeline in the JSON form of trace events, which Perfetto (ui.perfetto.dev) and Chrome open.
/// Times are seconds from any zero, the same for all tracks.
class TimelineFile {
 public:
  /// A track is a process and a thread of it, by number; names are shown.
  void name_process(std::uint32_t process, std::string_view name);
  void name_track(std::uint32_t process, std::uint32_t track, std::string_view name);

  /// `details`: the members of a JSON object, for example R"("pages": 3)", or empty.
  void slice(std::uint32_t process, std::uint32_t track, std::string_view name, double begin,
             double seconds, std::string_view details = {});
  void counter(std::uint32_t process, std::string_view name, double at, double value);

  /// Whole file at once, atomically.
  Status write(const std::string& path) const;

 private:
  void event(const std::string& text);
  std::string events_;
};

/// Text as the inside of a JSON string.
std::string json_escaped(std::string_view text);

}  // namespace lehr::runtime
