// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/made_page.hpp"
#include "kernels/page_entry.hpp"
#include "kernels/shape.hpp"

/// What a captured decode step needs beside the kernels of attention: lists that the host writes
/// for every step into a buffer at a fixed address, so that residency, selection and lengths change
/// between replays without another capture; and stand-ins for the rest of a model.
namespace lehr::kernels {

/// Offsets are in bytes from the start of the step's buffer, multiples of 16.
struct LayerLists {
  std::uint32_t rows_at;   ///< u32 [groups + 1]: where each group's pages begin in `pages`
  std::uint32_t pages_at;  ///< u16: logical pages that attention reads, ascending in a group
  std::uint32_t tails_at;  ///< u32 [groups]: page that the new token is written to, kNoPage: none
  std::uint32_t names_at;  ///< u32: page of each of `pages`, for checks of every read; 0: left out
  std::uint32_t early_at;  ///< EarlyWork, before the new token is written
  std::uint32_t early;
  std::uint32_t entries_at;  ///< EntryWrite of the layer's page table
  std::uint32_t entries;
  std::uint32_t installs_at;  ///< EntryWrite of the installs table
  std::uint32_t installs;
  std::uint32_t moves_at;  ///< PageCopy: copies that run beside the layer
  std::uint32_t moves;
};
static_assert(sizeof(LayerLists) == 48);

/// Start of a step's buffer; LayerLists of each layer follow, then u32 lengths[sequences].
struct StepHeader {
  std::uint32_t step;
  std::uint32_t layers;
  std::uint32_t lengths_at;
  std::uint32_t bytes;  ///< of the whole buffer in use
};
static_assert(sizeof(StepHeader) == 16);

struct EntryWrite {
  std::uint64_t value;
  std::uint32_t index;
  std::uint32_t reserved;
};
static_assert(sizeof(EntryWrite) == 16);

/// From address to address.
struct PageCopy {
  std::uint64_t from;
  std::uint64_t to;
};
static_assert(sizeof(PageCopy) == 16);

/// A page copied, or made where `from` is 0.
struct EarlyWork {
  std::uint64_t from;
  std::uint64_t to;
  std::uint32_t page;
  std::uint32_t tokens;
};
static_assert(sizeof(EarlyWork) == 24);

/// `tokens` of `page` (see made_page.hpp) lie, or shall lie, at `address`.
struct PageContents {
  std::uint64_t address;
  std::uint32_t page;
  std::uint32_t tokens;
};
static_assert(sizeof(PageContents) == 16);

/// Of the device's global timer, in ns.
struct LayerStamps {
  std::uint64_t begin;        ///< its first kernel
  std::uint64_t weights_end;  ///< the reader's last CTA; 0: nothing was read
  std::uint64_t move_begin;   ///< the first CTA with something to move; all ones: nothing was moved
  std::uint64_t move_end;     ///< the last one; 0 likewise
};
static_assert(sizeof(LayerStamps) == 32);

struct StepBuffers {
  const unsigned char* lists = nullptr;
  PageEntry* table = nullptr;          ///< of this layer: [sequences][kv_heads][max_pages]
  std::uint64_t* installs = nullptr;   ///< as table; shared by the layers
  std::uint32_t* selection = nullptr;  ///< [sequences][kv_heads][max_pages]
  std::uint32_t* counts = nullptr;     ///< [sequences][kv_heads]
  std::uint16_t* q = nullptr;          ///< [sequences][q_heads][head_dim]
  std::uint16_t* k = nullptr;          ///< [sequences][kv_heads][head_dim]
  std::uint16_t* v = nullptr;
  LayerStamps* stamps = nullptr;  ///< of this layer
  PageSource source;
  std::uint32_t layer = 0;
};

/// Start of a layer: early work, entries, installs, the imposed selection, and made q, k and v of
/// the new token. fp16, q_len 1.
Status apply_lists_cuda(const StepShape& shape, const StepBuffers& buffers, void* stream);

/// Copies the layer's pages with `ctas` one-warp CTAs; how many there are is read on the device.
Status move_lists_cuda(const StepShape& shape, const StepBuffers& buffers, std::uint32_t page_bytes,
                       std::uint32_t ctas, void* stream);

/// Reads `bytes` (a multiple of 16) of HBM and does nothing with them: what a layer's weights cost.
/// `sink` is a word that nobody reads.
Status read_bytes_cuda(const void* from, std::uint64_t bytes, std::uint32_t* sink,
                       LayerStamps* stamps, void* stream);

/// Writes the time to `stamp`.
Status stamp_cuda(std::uint64_t* stamp, void* stream);

/// Makes pages anywhere the device can write.
Status make_pages_cuda(const StepShape& shape, const PageSource& source, const PageContents* pages,
                       std::uint32_t count, void* stream);

/// Adds to bad[0] the pages of the list that hold anything else; bad[1] is one of them, plus one.
Status check_pages_cuda(const StepShape& shape, const PageSource& source, const PageContents* pages,
                        std::uint32_t count, std::uint32_t* bad, void* stream);

/// The same for every page that the layer is about to read, through the table as attention does.
Status check_reads_cuda(const StepShape& shape, const StepBuffers& buffers, std::uint32_t* bad,
                        void* stream);

/// Adds a digest of the outputs of all layers ([outputs] words of 32 bits) to digests[header.step %
/// digest_count]: equal outputs give equal digests in any order of execution. Stamps `end`.
Status digest_cuda(const unsigned char* lists, const std::uint32_t* outputs, std::uint64_t words,
                   std::uint64_t* digests, std::uint32_t digest_count, LayerStamps* end,
                   void* stream);

}  // namespace lehr::kernels
