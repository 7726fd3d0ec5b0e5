// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/base/half.hpp"
#include "runtime/contents/device_contents.hpp"
#include "tests/runtime/contents/fake_kv_device.hpp"
#include "tests/support/tiny_platform.hpp"

namespace lehr::test {

inline constexpr std::uint32_t kLayers = 3, kHeads = 2, kQHeads = 4, kDim = 64, kPage = 16;

/// A model's K, V and Q: a function of the token and of where it is asked.
inline std::uint16_t model_value(std::uint32_t what, std::uint64_t token, std::uint32_t layer,
                                 std::uint32_t head, std::uint32_t channel) {
  const std::uint64_t x = Rng::mix(token * 0x9E3779B97F4A7C15ULL ^ (std::uint64_t{what} << 48) ^
                                   (std::uint64_t{layer} << 32) ^ (head << 16) ^ channel);
  return to_f16(static_cast<float>(static_cast<double>(x >> 11) * 0x1.0p-52 - 1.0));
}

struct WorldOptions {
  std::uint32_t hbm = 4096;
  std::uint32_t host = 4096;
  std::uint32_t nvme = 0;
  std::string policy = "lru";
  std::uint64_t seed = 1;
  std::uint32_t sequences = 0;
  std::uint64_t tokens = 0;
  std::uint64_t plan_pages = 0;
  bool ignore_waits = false;
  transfer::FaultPlan faults{};
};

/// A runtime with contents on the stand-in, and sequences whose tokens are known.
class DeviceWorld {
 public:
  explicit DeviceWorld(const WorldOptions& o) : DeviceWorld(o, nullptr) {}
  /// On a device of the caller's; null: the stand-in.
  DeviceWorld(const WorldOptions& o, std::unique_ptr<contents::KvDevice> real) {
    contents::DeviceContentsOptions options;
    options.contents.geometry = geometry();
    options.contents.element = contents::Element::kF16;
    options.tier_pages = {o.hbm, o.host};
    options.home = 1;
    if (o.nvme > 0) {
      options.tier_pages.push_back(o.nvme);
      options.below = 2;
      options.faults = o.faults;
    }
    options.sequences = o.sequences;
    options.tokens = o.tokens;
    options.plan_pages = o.plan_pages;
    if (!real) {
      auto fake = std::make_unique<FakeKvDevice>(o.seed);
      fake->ignore_waits = o.ignore_waits;
      device = fake.get();
      real = std::move(fake);
    }
    under = real.get();
    auto made = contents::DeviceContents::create(options, std::move(real));
    INFO((made ? std::string() : made.error().what));
    REQUIRE(made);
    contents = *std::move(made);
    runtime::RuntimeOptions r;
    r.platform = tiny_platform(o.nvme > 0);
    r.geometry = geometry();
    r.tier_pages = options.tier_pages;
    r.policy = o.policy;
    auto run = runtime::Runtime::create(r, contents->make_machine());
    REQUIRE(run);
    runtime = *std::move(run);
    contents->attach(*runtime);
  }
  ~DeviceWorld() { finish(); }

  /// All that was enqueued has run.
  void finish() {
    for (const contents::Lane lane : {contents::Lane::kMain, contents::Lane::kSide}) {
      const auto mark = under->mark(lane);
      REQUIRE(mark);
      REQUIRE(under->wait_host(*mark));
    }
  }

  static KvGeometry geometry() {
    KvGeometry g;
    g.layers = kLayers;
    g.kv_heads = kHeads;
    g.q_heads = kQHeads;
    g.head_dim = kDim;
    g.page_tokens = kPage;
    g.element_bytes = 2;
    return g;
  }

  std::uint32_t create() {
    auto ids = runtime->create_sequences(std::vector<runtime::SequenceInfo>(1));
    REQUIRE(ids);
    contents->created(ids->front());
    text[ids->front()].clear();
    return ids->front();
  }
  std::uint32_t fork(std::uint32_t parent) {
    auto child = runtime->fork(parent);
    REQUIRE(child);
    contents->forked(parent, *child);
    text[*child] = text.at(parent);
    return *child;
  }
  void release(std::uint32_t id) {
    REQUIRE(runtime->release(id));
    contents->released(id);
    text.erase(id);
  }
  void suspend(std::uint32_t id) {
    REQUIRE(runtime->suspend(id));
    REQUIRE(contents->suspended(id));
  }
  void resume(std::uint32_t id) {
    REQUIRE(runtime->resume(id));
    REQUIRE(contents->resumed(id));
  }
  void truncate(std::uint32_t id, std::size_t tokens) {
    REQUIRE(contents->truncate(id, tokens));
    text.at(id).resize(tokens);
  }
  void reorder(const std::vector<std::uint32_t>& ids, const std::vector<std::uint32_t>& parents) {
    REQUIRE(contents->reorder(ids, parents));
    std::vector<std::vector<std::uint64_t>> next;
    for (const std::uint32_t p : parents) next.push_back(text.at(ids[p]));
    for (std::size_t i = 0; i < ids.size(); ++i) text.at(ids[i]) = next[i];
  }

  /// Memory that host and device see at the same address, until the world ends.
  std::uint16_t* room(std::size_t count) {
    const std::size_t bytes = (count * 2 + 127) / 128 * 128;
    if (rooms_.empty() || used_ + bytes > rooms_.back().bytes) {
      auto made = under->pinned(std::max<std::size_t>(bytes, 1 << 20));
      REQUIRE(made);
      REQUIRE(made->device == reinterpret_cast<std::uint64_t>(made->host));
      rooms_.push_back(*made);
      used_ = 0;
    }
    auto* at = reinterpret_cast<std::uint16_t*>(rooms_.back().host + used_);
    used_ += bytes;
    return at;
  }
  /// [batch, heads, tokens, dim], laid out as [batch][tokens][heads][dim] or, `apart`, heads first.
  static contents::Tensor tensor(std::uint16_t* data, std::size_t batch, std::uint32_t heads,
                                 std::uint32_t tokens, bool apart) {
    contents::Tensor t;
    t.data = reinterpret_cast<std::byte*>(data);
    t.element = contents::Element::kF16;
    t.shape = {static_cast<std::int64_t>(batch), heads, tokens, kDim};
    const std::int64_t h = heads, n = tokens, d = kDim;
    t.stride = apart ? std::array<std::int64_t, 4>{h * n * d, n * d, d, 1}
                     : std::array<std::int64_t, 4>{h * n * d, d, h * d, 1};
    return t;
  }
  contents::Tensor made(std::uint32_t what, std::uint32_t layer, std::uint32_t heads,
                        const std::vector<std::vector<std::uint64_t>>& tokens, std::uint32_t most,
                        bool apart) {
    const contents::Tensor t =
        tensor(room(tokens.size() * heads * most * kDim), tokens.size(), heads, most, apart);
    for (std::size_t b = 0; b < tokens.size(); ++b) {
      for (std::uint32_t h = 0; h < heads; ++h) {
        for (std::size_t j = 0; j < tokens[b].size(); ++j) {
          auto* row = reinterpret_cast<std::uint16_t*>(t.row(b, h, j));
          for (std::uint32_t c = 0; c < kDim; ++c)
            row[c] = model_value(what, tokens[b][j], layer, h, c);
        }
      }
    }
    return t;
  }

  /// A step or a chunk of these tokens, to its end. Outputs by layer; read them after finish().
  std::vector<contents::Tensor> run(const std::vector<std::uint32_t>& batch,
                                    const std::vector<std::vector<std::uint64_t>>& tokens,
                                    const contents::ChoiceRule& choice, bool apart = false) {
    begin(batch, tokens);
    std::vector<contents::Tensor> outs = layers(tokens, choice, apart);
    auto report = contents->end();
    INFO((report ? std::string() : report.error().what));
    REQUIRE(report);
    return outs;
  }
  void begin(const std::vector<std::uint32_t>& batch,
             const std::vector<std::vector<std::uint64_t>>& tokens) {
    std::vector<std::uint32_t> counts;
    for (const auto& t : tokens) counts.push_back(static_cast<std::uint32_t>(t.size()));
    const Status begun = contents->begin(batch, counts, nullptr);
    INFO((begun ? std::string() : begun.error().what));
    REQUIRE(begun);
    for (std::size_t i = 0; i < batch.size(); ++i)
      text.at(batch[i]).insert(text.at(batch[i]).end(), tokens[i].begin(), tokens[i].end());
  }
  std::vector<contents::Tensor> layers(const std::vector<std::vector<std::uint64_t>>& tokens,
                                       const contents::ChoiceRule& choice, bool apart) {
    std::size_t most = 0;
    for (const auto& t : tokens) most = std::max(most, t.size());
    const auto n = static_cast<std::uint32_t>(most);
    std::vector<contents::Tensor> outs;
    for (std::uint32_t l = 0; l < kLayers; ++l) {
      REQUIRE(contents->append(l, made(0, l, kHeads, tokens, n, apart),
                               made(1, l, kHeads, tokens, n, apart)));
      contents::AttendCall call;
      call.q = made(2, l, kQHeads, tokens, n, apart);
      call.out = tensor(room(tokens.size() * kQHeads * n * kDim), tokens.size(), kQHeads, n, apart);
      call.choice = choice;
      const Status attended = contents->attend(l, call);
      INFO((attended ? std::string() : attended.error().what));
      REQUIRE(attended);
      outs.push_back(call.out);
    }
    return outs;
  }

  /// Every token of every sequence is what it was when it came.
  std::size_t wrong_rows() {
    std::size_t wrong = 0;
    for (const auto& [id, tokens] : text) {
      if (tokens.empty()) continue;
      const auto n = static_cast<std::uint32_t>(tokens.size() + 3);
      for (std::uint32_t l = 0; l < kLayers; ++l) {
        const contents::Tensor k = tensor(room(kHeads * n * kDim), 1, kHeads, n, true);
        const contents::Tensor v = tensor(room(kHeads * n * kDim), 1, kHeads, n, false);
        REQUIRE(contents->gather(l, std::vector<runtime::SequenceId>{id}, k, v));
        finish();
        for (std::uint32_t h = 0; h < kHeads; ++h) {
          for (std::uint32_t j = 0; j < n; ++j) {
            for (std::uint32_t c = 0; c < kDim; ++c) {
              const auto* key = reinterpret_cast<const std::uint16_t*>(k.row(0, h, j));
              const auto* value = reinterpret_cast<const std::uint16_t*>(v.row(0, h, j));
              const bool there = j < tokens.size();
              wrong += key[c] != (there ? model_value(0, tokens[j], l, h, c) : 0) ? 1 : 0;
              wrong += value[c] != (there ? model_value(1, tokens[j], l, h, c) : 0) ? 1 : 0;
            }
          }
        }
      }
    }
    return wrong;
  }

  FakeKvDevice* device = nullptr;  ///< null on a real one
  contents::KvDevice* under = nullptr;
  std::unique_ptr<contents::DeviceContents> contents;
  std::unique_ptr<runtime::Runtime> runtime;
  std::map<std::uint32_t, std::vector<std::uint64_t>> text;  ///< tokens of each sequence

 private:
  std::vector<contents::Block> rooms_;
  std::size_t used_ = 0;
};

}  // namespace lehr::test
