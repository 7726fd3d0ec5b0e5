// SPDX-License-Identifier: Apache-2.0
#include "kernels/score.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/values.hpp"

namespace lehr::kernels {
namespace {

using reference::value_at;

/// q . centre + spread * |q| . half-width, as weights on the two ends so that an infinite end with
/// a zero weight adds nothing.
double box_score(const StepShape& shape, const ScoreParams& params, std::size_t q_row,
                 std::size_t page_index) {
  const double outer = (1.0 + double{params.spread}) / 2;
  const double inner = (1.0 - double{params.spread}) / 2;
  const std::size_t box = page_index * 2 * shape.head_dim;
  double sum = 0;
  for (std::uint32_t c = 0; c < shape.head_dim; ++c) {
    const double q = value_at(shape.dtype, params.q, q_row * shape.head_dim + c);
    const double low = value_at(shape.dtype, params.boxes, box + c);
    const double high = value_at(shape.dtype, params.boxes, box + shape.head_dim + c);
    const double near = q >= 0 ? high : low;
    const double far = q >= 0 ? low : high;
    if (q != 0) sum += q * near * outer;
    if (q != 0 && inner != 0) sum += q * far * inner;
  }
  return sum;
}

/// Whether a page lies in a listed block.
bool in_blocks(const ScoreParams& params, std::size_t group, std::uint32_t page) {
  if (params.blocks == nullptr) return true;
  const std::uint32_t* list = params.blocks + group * params.block_pitch;
  const std::uint32_t count = std::min(params.block_counts[group], params.block_pitch);
  return std::find(list, list + count, page / params.block_pages) != list + count;
}

float rounded_up(double x) {
  const auto f = static_cast<float>(x);
  return double{f} < x ? std::nextafter(f, std::numeric_limits<float>::infinity()) : f;
}

}  // namespace

Status check_score(const StepShape& shape, const ScoreParams& params) {
  LEHR_TRY(check_shape(shape));
  if (!(params.spread >= 0.0F && params.spread <= 1.0F)) return invalid("spread must be 0 to 1");
  if ((params.blocks == nullptr) != (params.block_counts == nullptr)) {
    return invalid("blocks and block_counts go together: one of them is null");
  }
  if (params.blocks != nullptr) {
    const std::uint32_t n = params.block_pages;
    if (n < 16 || n > 256 || (n & (n - 1)) != 0) {
      return unsupported("block_pages; offered are 16, 32, 64, 128 and 256");
    }
    if (params.block_pitch == 0) return invalid("block_pitch is 0", Reason::kOutOfRange);
  }
  if (shape.sequences == 0) return {};
  LEHR_TRY(check_pointer(params.q, 16, "q"));
  LEHR_TRY(check_pointer(params.boxes, 16, "boxes"));
  LEHR_TRY(check_pointer(params.lengths, 4, "lengths"));
  return check_pointer(params.scores, 4, "scores");
}

Status score_reference(const StepShape& shape, const ScoreParams& params) {
  LEHR_TRY(check_score(shape, params));
  for (std::size_t group = 0; group < shape.groups(); ++group) {
    const std::size_t sequence = group / shape.kv_heads;
    const std::uint32_t pages =
        std::min(shape.pages_for(params.lengths[sequence]), shape.max_pages);
    for (std::uint32_t page = 0; page < pages; ++page) {
      double best = -std::numeric_limits<double>::infinity();
      if (!in_blocks(params, group, page)) {
        params.scores[group * shape.max_pages + page] = static_cast<float>(best);
        continue;
      }
      for (std::uint32_t row = 0; row < shape.rows(); ++row) {
        const std::size_t head = group % shape.kv_heads * shape.ratio() + row % shape.ratio();
        const std::size_t q_row =
            (sequence * shape.q_len + row / shape.ratio()) * shape.q_heads + head;
        const double s = box_score(shape, params, q_row, group * shape.max_pages + page);
        // A NaN (infinite ends of both signs, or a NaN query) must not hide a page.
        best = std::isnan(s) ? std::numeric_limits<double>::infinity() : std::max(best, s);
      }
      params.scores[group * shape.max_pages + page] = rounded_up(best);
    }
  }
  return {};
}

}  // namespace lehr::kernels
