// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/ids.hpp"

namespace lehr::runtime {

/// What Heat holds, by page, for loops over many: sums decayed to each page's last read.
struct HeatColumns {
  std::span<const float> mass;      ///< sum over the reads in which one was seen
  std::span<const float> exposure;  ///< of those reads
  std::span<const float> peak;
  std::span<const Step> last;
  std::span<const float> decay;  ///< by steps since; 0 past its end
};

/// Decayed access frequency and softmax mass of each page, in columns indexed by PageId (20 bytes a
/// page). Decay is exponential with a half-life in steps and applied lazily: only pages that are
/// read cost time. Masses are corrected for exposure: they are averaged over the reads in which a
/// mass was seen, since a page that was not read had no chance to show one.
class Heat {
 public:
  static constexpr std::size_t kBytesPerPage = 4 * sizeof(float) + sizeof(Step);

  explicit Heat(float half_life_steps = 32.0F);

  void grow(std::uint32_t rows);
  void forget(PageId page);

  /// Reads of `pages` in `step`; `mass` and `peak` aligned, or empty where unknown.
  void read(std::span<const PageId> pages, std::span<const MassCode> mass,
            std::span<const MassCode> peak, Step step);

  float frequency(PageId page, Step now) const {
    return frequency_[page] * decay(now - last_[page]);
  }
  float mean_mass(PageId page) const {
    return exposure_[page] > 0 ? mass_[page] / exposure_[page] : 0;
  }
  float peak_mass(PageId page, Step now) const { return peak_[page] * decay(now - last_[page]); }

  Step last_read(PageId page) const { return last_[page]; }
  HeatColumns columns() const { return {mass_, exposure_, peak_, last_, decay_}; }

  /// 2^(-age / half-life); 0 once that is below 2^-32 or the table's end.
  float decay(std::uint32_t age) const { return age < decay_.size() ? decay_[age] : 0.0F; }

 private:
  std::vector<float> decay_;
  std::vector<float> frequency_;
  std::vector<float> mass_;
  std::vector<float> peak_;
  std::vector<float> exposure_;
  std::vector<Step> last_;
};

}  // namespace lehr::runtime
