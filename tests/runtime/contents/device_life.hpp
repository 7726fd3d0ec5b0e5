// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/runtime/contents/device_world.hpp"

/// What contents on a device, the stand-in or a real one, are put through.
namespace lehr::test {

using contents::ChoiceRule;

using Tokens = std::vector<std::uint64_t>;

inline float at(const contents::Tensor& t, std::size_t b, std::size_t h, std::size_t j,
                std::size_t c) {
  return from_f16(reinterpret_cast<const std::uint16_t*>(t.row(b, h, j))[c]);
}

/// Attention over a text in float64: the largest distance of query `j` (of the latest `count`).
inline double distance(const contents::Tensor& out, std::size_t b, const Tokens& text,
                       std::size_t count, std::uint32_t layer) {
  double worst = 0;
  for (std::size_t j = 0; j < count; ++j) {
    const std::size_t seen = text.size() - count + j + 1;
    for (std::uint32_t h = 0; h < kQHeads; ++h) {
      const std::uint32_t kv = h / (kQHeads / kHeads);
      std::vector<double> weights;
      double sum = 0;
      for (std::size_t p = 0; p < seen; ++p) {
        double s = 0;
        for (std::uint32_t c = 0; c < kDim; ++c)
          s += static_cast<double>(from_f16(model_value(2, text[seen - 1], layer, h, c))) *
               static_cast<double>(from_f16(model_value(0, text[p], layer, kv, c)));
        weights.push_back(std::exp(s / std::sqrt(double{kDim})));
        sum += weights.back();
      }
      for (std::uint32_t c = 0; c < kDim; ++c) {
        double v = 0;
        for (std::size_t p = 0; p < seen; ++p)
          v += weights[p] / sum *
               static_cast<double>(from_f16(model_value(1, text[p], layer, kv, c)));
        worst = std::max(worst, std::abs(v - static_cast<double>(at(out, b, h, j, c))));
      }
    }
  }
  return worst;
}

inline bool same_bits(const contents::Tensor& a, const contents::Tensor& b,
                      const std::vector<Tokens>& tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    for (std::uint32_t h = 0; h < kQHeads; ++h) {
      for (std::size_t j = 0; j < tokens[i].size(); ++j) {
        if (std::memcmp(a.row(i, h, j), b.row(i, h, j), kDim * 2) != 0) return false;
      }
    }
  }
  return true;
}

inline Tokens some_tokens(Rng& random, std::size_t count) {
  Tokens t;
  for (std::size_t i = 0; i < count; ++i) t.push_back(random.next());
  return t;
}

inline ChoiceRule half_of_the_pages() {
  ChoiceRule rule;
  rule.by = ChoiceRule::By::kRatio;
  rule.amount = 0.5;
  rule.recent = 2;
  return rule;
}

/// The same life in two worlds, all outputs compared bit for bit. Returns how many differed.
inline std::size_t live(DeviceWorld& a, DeviceWorld& b, std::uint64_t seed, std::uint32_t turns) {
  Rng random(seed);
  std::vector<std::uint32_t> ids;
  std::vector<std::uint32_t> asleep;
  const auto both = [&](auto&& act) {
    act(a);
    act(b);
  };
  std::size_t different = 0;
  for (std::uint32_t turn = 0; turn < turns; ++turn) {
    const std::uint32_t what = random.below(20);
    if (ids.size() < 2 || (what == 0 && ids.size() + asleep.size() < 5)) {
      const std::uint32_t id = a.create();
      REQUIRE(b.create() == id);
      ids.push_back(id);
    } else if (what == 1 && ids.size() + asleep.size() < 5) {
      const std::uint32_t parent = ids[random.below(static_cast<std::uint32_t>(ids.size()))];
      const std::uint32_t id = a.fork(parent);
      REQUIRE(b.fork(parent) == id);
      ids.push_back(id);
    } else if (what == 2 && ids.size() > 2) {
      both([&](DeviceWorld& w) { w.release(ids.back()); });
      ids.pop_back();
    } else if (what == 3 && ids.size() > 2) {
      both([&](DeviceWorld& w) { w.suspend(ids.back()); });
      asleep.push_back(ids.back());
      ids.pop_back();
    } else if (what == 4 && !asleep.empty()) {
      both([&](DeviceWorld& w) { w.resume(asleep.back()); });
      ids.push_back(asleep.back());
      asleep.pop_back();
    } else if (what == 5) {
      const std::uint32_t id = ids[random.below(static_cast<std::uint32_t>(ids.size()))];
      const std::size_t keep = random.below(static_cast<std::uint32_t>(a.text.at(id).size() + 1));
      both([&](DeviceWorld& w) { w.truncate(id, keep); });
    } else if (what == 6) {
      std::vector<std::uint32_t> parents;
      for (std::size_t i = 0; i < ids.size(); ++i)
        parents.push_back(random.below(static_cast<std::uint32_t>(ids.size())));
      both([&](DeviceWorld& w) { w.reorder(ids, parents); });
    } else if (what == 7) {
      std::rotate(ids.begin(), ids.begin() + 1, ids.end());  // other rows of the batch
    }
    const bool chunk = what >= 16;
    std::vector<Tokens> tokens;
    for (std::size_t i = 0; i < ids.size(); ++i)
      tokens.push_back(some_tokens(random, chunk ? random.below(40) : 1));
    const bool alone =
        std::all_of(tokens.begin(), tokens.end(), [](const Tokens& t) { return t.size() == 1; });
    const ChoiceRule rule = alone && random.below(2) == 0 ? half_of_the_pages() : ChoiceRule{};
    const bool apart = random.below(2) == 0;
    if (random.below(12) == 0) {  // given up half way
      both([&](DeviceWorld& w) {
        std::vector<std::uint32_t> counts;
        for (const Tokens& t : tokens) counts.push_back(static_cast<std::uint32_t>(t.size()));
        REQUIRE(w.contents->begin(ids, counts, nullptr));
        const auto most = *std::max_element(counts.begin(), counts.end());
        REQUIRE(w.contents->append(0, w.made(3, 0, kHeads, tokens, most, apart),
                                   w.made(4, 0, kHeads, tokens, most, apart)));
        REQUIRE(w.contents->abandon());
      });
    }
    const auto outs = a.run(ids, tokens, rule, apart);
    const auto others = b.run(ids, tokens, rule, apart);
    if (random.below(4) == 0 || turn + 1 == turns) {
      a.finish();
      b.finish();
    } else {
      continue;
    }
    for (std::uint32_t l = 0; l < kLayers; ++l)
      different += same_bits(outs[l], others[l], tokens) ? 0 : 1;
  }
  return different;
}

/// Sequences that take turns in two worlds: one or two of several are in each batch, the others
/// wait.
class Turns {
 public:
  Turns(DeviceWorld& a, DeviceWorld& b, std::uint64_t seed) : worlds_{&a, &b}, random_(seed) {}

  /// How many outputs differed, bit for bit.
  std::size_t take(std::uint32_t turns) {
    std::size_t different = 0;
    for (std::uint32_t turn = 0; turn < turns; ++turn) {
      const std::uint32_t what = random_.below(16);
      change(what);
      std::vector<std::uint32_t> batch = {any()};
      if (const std::uint32_t other = any(); other != batch[0]) batch.push_back(other);
      std::vector<Tokens> tokens;
      for (const std::uint32_t id : batch) tokens.push_back(next(id, what >= 12));
      different += run(batch, tokens);
    }
    return different;
  }

 private:
  /// Two sequences of kMost tokens, with what forks of them share, fit the home tier of the test.
  static constexpr std::size_t kPrompt = 80, kMost = 120;

  std::uint32_t any() { return ids_[random_.below(static_cast<std::uint32_t>(ids_.size()))]; }
  const Tokens& text(std::uint32_t id) const { return worlds_[0]->text.at(id); }
  template <class Act>
  void both(Act&& act) {
    for (DeviceWorld* const w : worlds_) act(*w);
  }

  void change(std::uint32_t what) {
    if (ids_.size() < 4 || (what == 0 && ids_.size() < 5)) {
      ids_.push_back(worlds_[0]->create());
      REQUIRE(worlds_[1]->create() == ids_.back());
      const std::vector<Tokens> prompt = {some_tokens(random_, kPrompt)};
      both([&](DeviceWorld& w) { (void)w.run({ids_.back()}, prompt, {}); });
    } else if (what == 1 && ids_.size() < 5) {
      const std::uint32_t parent = any();
      ids_.push_back(worlds_[0]->fork(parent));
      REQUIRE(worlds_[1]->fork(parent) == ids_.back());
    } else if (what == 2) {
      const std::uint32_t id = any();
      both([&](DeviceWorld& w) { w.suspend(id); });
      both([&](DeviceWorld& w) { w.resume(id); });
    } else if (what == 3) {
      const std::uint32_t id = any();
      const std::size_t keep = random_.below(static_cast<std::uint32_t>(text(id).size() + 1));
      both([&](DeviceWorld& w) { w.truncate(id, keep); });
    } else if (what == 4) {
      both([&](DeviceWorld& w) { w.release(ids_.back()); });
      ids_.pop_back();
    }
  }

  Tokens next(std::uint32_t id, bool chunk) {
    const bool short_enough = text(id).size() < kMost - 40;
    if (text(id).size() > kMost) both([&](DeviceWorld& w) { w.truncate(id, kMost / 2); });
    return some_tokens(random_, chunk && short_enough ? 1 + random_.below(40) : 1);
  }

  std::size_t run(const std::vector<std::uint32_t>& batch, const std::vector<Tokens>& tokens) {
    const bool alone =
        std::all_of(tokens.begin(), tokens.end(), [](const Tokens& t) { return t.size() == 1; });
    const ChoiceRule rule = alone && random_.below(2) == 0 ? half_of_the_pages() : ChoiceRule{};
    std::vector<std::vector<contents::Tensor>> outs;
    both([&](DeviceWorld& w) { outs.push_back(w.run(batch, tokens, rule)); });
    both([](DeviceWorld& w) { w.finish(); });
    std::size_t different = 0;
    for (std::uint32_t l = 0; l < kLayers; ++l)
      different += same_bits(outs[0][l], outs[1][l], tokens) ? 0 : 1;
    return different;
  }

  std::array<DeviceWorld*, 2> worlds_;
  Rng random_;
  std::vector<std::uint32_t> ids_;
};

}  // namespace lehr::test
