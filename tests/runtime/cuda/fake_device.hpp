// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <deque>
#include <map>
#include <set>

#include "kernels/base/rng.hpp"
#include "kernels/made_page.hpp"
#include "runtime/machines/cuda/device.hpp"
#include "runtime/machines/cuda/lists.hpp"
#include "runtime/machines/cuda/program.hpp"

namespace lehr::test {

namespace cuda = runtime::cuda;

/// When the side stream's copies happen, within what forks and joins allow.
enum class Pace { kEager, kLazy, kRandom };

/// A device of host memory that executes the program of a step one launch after another, with the
/// side stream as fast, as slow or as irregular as its order rules permit, and compares every page
/// that attention reads. With `late`, so many launches are on their way before the oldest one is
/// executed, as on a GPU that is behind.
class FakeDevice : public cuda::DecodeDevice {
 public:
  FakeDevice(std::span<const std::uint32_t> tier_pages, std::uint32_t page_bytes,
             cuda::ProgramOptions program, Pace pace, std::uint64_t seed, std::size_t late = 0)
      : page_bytes_(page_bytes),
        program_(cuda::step_program(program)),
        layers_(program.layers),
        pace_(pace),
        late_(late),
        rng_(seed) {
    for (const std::uint32_t n : tier_pages) {
      // Not a number anywhere: what was never written is never right.
      tiers_.emplace_back((std::size_t{n} * page_bytes + kBlock) / 4, 0xFFFFFFFFU);
    }
  }

  cuda::TierMemory memory(TierId tier) const override {
    // Addresses of the device, not of this process; any multiple of 128 will do.
    auto& own = const_cast<FakeDevice*>(this)->tiers_[tier];
    const std::span<std::byte> host(reinterpret_cast<std::byte*>(words_of(own)),
                                    own.size() * 4 - kBlock);
    return {address_of(tier, 0), kBlock, tier != kHbm, host};
  }
  static std::uint64_t address_of(TierId tier, std::uint32_t place) {
    return (std::uint64_t{tier} + 1) << 40 | std::uint64_t{place} * kBlock;
  }

  Status set_up(std::span<const kernels::PageContents> made,
                std::span<const kernels::PageCopy> copies) override {
    execute_all();
    for (const auto& m : made) make(m.address, m.page, m.tokens);
    for (const auto& c : copies) copy(c);
    return {};
  }

  Status prepare(const kernels::StepShape& shape) override {
    execute_all();
    shape_ = shape;
    unboxed_.clear();
    tables_.assign(layers_, std::vector<kernels::PageEntry>(shape.groups() * shape.max_pages, 0));
    installs_.assign(shape.groups() * shape.max_pages, 0);
    ++prepared;
    return {};
  }

  Status start_row(std::uint32_t row, std::uint32_t tokens,
                   std::span<const kernels::PageEntry> entries) override {
    execute_all();
    const std::size_t size = std::size_t{shape_.kv_heads} * shape_.max_pages;
    const std::size_t row_entries = layers_ * size;
    unboxed_.resize(std::max(unboxed_.size(), (row + 1) * row_entries), 0);
    for (std::uint32_t l = 0; l < layers_; ++l) {
      for (std::size_t i = 0; i < size; ++i) {
        const auto entry = entries[l * size + i];
        tables_[l][row * size + i] = entry;
        const std::uint32_t page = static_cast<std::uint32_t>(i % shape_.max_pages);
        if (page * shape_.page_tokens >= tokens) continue;
        // Its box is computed from what lies there now: a page may be shown and taken away again.
        std::uint8_t& state = unboxed_[row * row_entries + l * size + i];
        if (entry != kernels::kAbsentPage) state = 1;
        if (entry != kernels::kAbsentPage && memory(kernels::entry_address(entry))[0] == ~0U)
          ++empty_at_start;
      }
    }
    ++rows_started;
    return {};
  }
  /// Pages of a row's context whose boxes nobody could compute.
  std::uint64_t unknown_at_start(std::uint32_t row, std::uint32_t pages) const {
    const std::size_t size = std::size_t{shape_.kv_heads} * shape_.max_pages;
    std::uint64_t unknown = 0;
    for (std::size_t i = 0; i < layers_ * size; ++i) {
      if (i % shape_.max_pages < pages) unknown += unboxed_[row * layers_ * size + i] == 0 ? 1 : 0;
    }
    return unknown;
  }

  Status launch(std::span<const std::byte> lists, cuda::LayerRange layers) override {
    queue_.push_back({{lists.begin(), lists.end()}, layers});
    ++launches;
    while (queue_.size() > late_) execute_one();
    return {};
  }
  Status drain() override {
    execute_all();
    return {};
  }
  std::vector<cuda::StepTimes> take_times() override { return std::exchange(times_, {}); }

  Result<std::uint64_t> count_bad(std::span<const kernels::PageContents> pages) override {
    execute_all();
    std::uint64_t bad = 0;
    for (const auto& p : pages) bad += holds(p.address, p.page, p.tokens) ? 0 : 1;
    return bad;
  }
  Result<std::uint64_t> bad_reads() override { return bad_reads_; }
  Result<std::vector<std::uint16_t>> outputs() override { return std::vector<std::uint16_t>{}; }
  Result<cuda::StepTimes> repeat(std::uint32_t) override { return cuda::StepTimes{}; }
  Result<std::vector<std::uint64_t>> kernel_stamps() override {
    return std::vector<std::uint64_t>{};
  }
  std::vector<std::string> notes() const override { return {}; }

  std::uint64_t reads = 0, installs = 0, moves = 0, early = 0, entry_writes = 0, prepared = 0;
  std::uint64_t empty_at_start = 0, rows_started = 0, launches = 0;

 private:
  static constexpr std::size_t kBlock = 4096;
  struct Queued {
    std::vector<std::byte> lists;
    cuda::LayerRange layers;
  };

  void execute_all() {
    while (!queue_.empty()) execute_one();
  }
  void execute_one() {
    lists_ = std::move(queue_.front().lists);
    const cuda::LayerRange range = queue_.front().layers;
    queue_.pop_front();
    // As on a GPU: whole steps run what their kind needs, parts of steps everything.
    const bool whole = range.first == 0 && range.end == layers_;
    kind_ = whole ? cuda::kind_of(lists_) : cuda::StepKind{true, true};
    for (const cuda::Launch& launch : program_) {
      const bool last = launch.layer == layers_ && range.end == layers_;
      if ((launch.layer >= range.first && launch.layer < range.end) || last) execute(launch);
    }
    run_side(side_.size());
    cuda::StepTimes times;
    times.step = header().step;
    times.total = 1e-3;
    times.idle = 1e-4;
    times.layers.resize(layers_ + std::size_t{1});
    for (std::uint32_t l = range.first; l <= range.end; ++l)
      times.layers[l].begin = ++clock_ * 1000;
    times_.push_back(times);
  }

  static std::uint32_t* words_of(std::vector<std::uint32_t>& tier) {
    const auto at = reinterpret_cast<std::uintptr_t>(tier.data());
    return tier.data() + ((at + kBlock - 1) / kBlock * kBlock - at) / 4;
  }
  template <class T>
  const T* list(std::uint32_t at) const {
    return reinterpret_cast<const T*>(lists_.data() + at);
  }
  const kernels::StepHeader& header() const { return *list<kernels::StepHeader>(0); }
  const kernels::LayerLists& layer(std::uint32_t l) const {
    return list<kernels::LayerLists>(sizeof(kernels::StepHeader))[l];
  }

  std::uint32_t* memory(std::uint64_t address) {
    return words_of(tiers_[(address >> 40) - 1]) + (address & 0xFFFFFFFFFFULL) / 4;
  }
  std::uint32_t words() const { return shape_.page_tokens * shape_.head_dim / 2; }

  // Before the first step the shape is not known yet: whole pages are as good.
  void make(std::uint64_t address, PageId page, std::uint32_t tokens) {
    const std::uint32_t half = page_bytes_ / 8;
    const std::uint32_t filled = std::min(tokens * token_words(), half);
    for (const std::uint32_t base : {0U, half}) {
      for (std::uint32_t i = base; i < base + filled; ++i)
        memory(address)[i] = kernels::made_word(page, i);
    }
  }
  bool holds(std::uint64_t address, PageId page, std::uint32_t tokens) {
    const std::uint32_t half = page_bytes_ / 8;
    const std::uint32_t filled = std::min(tokens * token_words(), half);
    for (const std::uint32_t base : {0U, half}) {
      for (std::uint32_t i = base; i < base + filled; ++i) {
        if (memory(address)[i] != kernels::made_word(page, i)) return false;
      }
    }
    return true;
  }
  void copy(const kernels::PageCopy& pair) {
    std::memcpy(memory(pair.to), memory(pair.from), page_bytes_);
  }

  void run_side(std::size_t until_left) {
    for (std::size_t n = 0; n < until_left && !side_.empty(); ++n) {
      copy(side_.front().pair);
      ++moves;
      side_.pop_front();
    }
  }

  void execute(const cuda::Launch& launch) {
    using cuda::LaunchKind;
    if (pace_ == Pace::kEager) run_side(side_.size());
    if (pace_ == Pace::kRandom) run_side(rng_.below(4));
    switch (launch.kind) {
      case LaunchKind::kApply:
        return apply(launch.layer);
      case LaunchKind::kAppend:
        return append(launch.layer);
      case LaunchKind::kMove: {
        const auto& l = layer(launch.layer);
        if (!kind_.moves && l.moves > 0) ++bad_reads_;
        for (std::uint32_t i = 0; i < l.moves; ++i)
          side_.push_back({launch.layer, list<kernels::PageCopy>(l.moves_at)[i]});
        return;
      }
      case LaunchKind::kJoin:
        while (!side_.empty() && side_.front().layer <= launch.layer) run_side(1);
        return;
      case LaunchKind::kAttend:
        return attend(launch.layer);
      default:
        return;
    }
  }

  void apply(std::uint32_t at) {
    const auto& l = layer(at);
    for (std::uint32_t i = 0; i < l.early; ++i) {
      const auto& w = list<kernels::EarlyWork>(l.early_at)[i];
      if (w.from == 0) {
        make(w.to, w.page, w.tokens);
      } else {
        copy({w.from, w.to});
      }
      ++early;
    }
    std::set<std::uint32_t> seen;
    for (std::uint32_t i = 0; i < l.entries; ++i) {
      const auto& w = list<kernels::EntryWrite>(l.entries_at)[i];
      if (!seen.insert(w.index).second) ++bad_reads_;  // two threads write one entry
      tables_[at][w.index] = w.value;
      ++entry_writes;
    }
    seen.clear();
    for (std::uint32_t i = 0; i < l.installs; ++i) {
      const auto& w = list<kernels::EntryWrite>(l.installs_at)[i];
      if (!seen.insert(w.index).second) ++bad_reads_;
      installs_[w.index] = w.value;
    }
  }

  void append(std::uint32_t at) {
    const auto& l = layer(at);
    const auto* lengths = list<std::uint32_t>(header().lengths_at);
    for (std::uint32_t g = 0; g < shape_.groups(); ++g) {
      const std::uint32_t length = lengths[g / shape_.kv_heads];
      if (length == 0) continue;
      const PageId page = list<std::uint32_t>(l.tails_at)[g];
      const auto entry =
          tables_[at][g * std::size_t{shape_.max_pages} + (length - 1) / shape_.page_tokens];
      const std::uint32_t token = (length - 1) % shape_.page_tokens, n = token_words();
      std::uint32_t* to = memory(kernels::entry_address(entry));
      for (const std::uint32_t base : {0U, words()}) {
        for (std::uint32_t i = 0; i < n; ++i)
          to[base + token * n + i] = kernels::made_word(page, base + token * n + i);
      }
    }
  }

  void attend(std::uint32_t at) {
    const auto& l = layer(at);
    const auto* lengths = list<std::uint32_t>(header().lengths_at);
    const auto* rows = list<std::uint32_t>(l.rows_at);
    std::set<std::uint64_t> written;
    for (std::uint32_t g = 0; g < shape_.groups(); ++g) {
      const std::uint32_t length = lengths[g / shape_.kv_heads];
      std::uint32_t last = ~0U;
      for (std::uint32_t i = rows[g]; i < rows[g + 1]; ++i) {
        const std::uint32_t page = list<std::uint16_t>(l.pages_at)[i];
        if (last != ~0U && page <= last) ++bad_reads_;
        last = page;
        const std::size_t index = g * std::size_t{shape_.max_pages} + page;
        const auto entry = tables_[at][index];
        const std::uint32_t tokens =
            std::min(length - page * shape_.page_tokens, shape_.page_tokens);
        const PageId named = list<std::uint32_t>(l.names_at)[i];
        const std::uint64_t from = kernels::entry_address(entry);
        if (entry == 0 || !holds(from, named, tokens)) ++bad_reads_;
        ++reads;
        if (installs_[index] == 0) continue;
        if (!kind_.installs) ++bad_reads_;  // attention looks for none in such a step
        if (!kernels::entry_over_link(entry)) ++bad_reads_;  // an install that was not cleared
        copy({from, installs_[index]});
        ++installs;
      }
    }
  }

  std::uint32_t token_words() const { return page_bytes_ / 8 / kPageTokens; }

  struct Side {
    std::uint32_t layer;
    kernels::PageCopy pair;
  };

 public:
  static constexpr std::uint32_t kPageTokens = 16;

 private:
  std::uint32_t page_bytes_;
  std::vector<cuda::Launch> program_;
  std::uint32_t layers_;
  Pace pace_;
  std::size_t late_;
  Rng rng_;
  std::deque<Queued> queue_;
  std::vector<std::uint8_t> unboxed_;  ///< by row, layer and entry: 1 once its box was computed
  std::uint64_t clock_ = 0;
  kernels::StepShape shape_{};
  std::vector<std::vector<std::uint32_t>> tiers_;
  std::vector<std::vector<kernels::PageEntry>> tables_;
  std::vector<std::uint64_t> installs_;
  std::vector<std::byte> lists_;
  cuda::StepKind kind_;
  std::deque<Side> side_;
  std::vector<cuda::StepTimes> times_;
  std::uint64_t bad_reads_ = 0;
};

}  // namespace lehr::test
