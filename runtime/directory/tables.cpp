// SPDX-License-Identifier: Apache-2.0
// Tables of blocks, which the caller's kernels read.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "runtime/directory/service.hpp"

namespace lehr::directory {

namespace {

constexpr std::uint64_t kMostEntries = std::uint64_t{1} << 26;
constexpr std::size_t kMostWrites = std::size_t{1} << 16;

Error closed() { return {Code::kStale, Reason::kNone, "table: closed already"}; }

template <class T>
std::byte* bytes_of(T* p) {
  return reinterpret_cast<std::byte*>(p);
}

}  // namespace

Result<TableId> Service::open_table(BlockTable table) {
  if (table.rows == 0 || table.columns == 0 ||
      std::uint64_t{table.rows} * table.columns > kMostEntries) {
    return invalid(fmt::format("table: {} rows of {} columns, expected 1 to {} entries", table.rows,
                               table.columns, kMostEntries),
                   Reason::kOutOfRange);
  }
  bool on_device = false;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    const Pool* pool = directory_.pool(table.pool);
    if (pool == nullptr)
      return Error{Code::kStale, Reason::kNone, "table: the pool is not registered"};
    on_device = pool->desc.on_device;
  }
  const Bytes bytes = Bytes{table.rows} * table.columns * table.entry_bytes();
  std::shared_ptr<std::byte> memory;
  if (on_device) {
    LEHR_ASSIGN(memory, lanes_->device_memory(bytes, table.absent()));
  } else {
    const std::shared_ptr<std::byte[]> made(new std::byte[bytes]);
    std::fill_n(made.get(), bytes, table.absent());
    memory = std::shared_ptr<std::byte>(made, made.get());
  }
  table.base = memory.get();
  const std::lock_guard<std::mutex> hold(mutex_);
  LEHR_ASSIGN(const TableId id, directory_.open_table(table));
  table_memory_[id] = std::move(memory);
  return id;
}

Status Service::close_table(TableId table) {
  std::shared_ptr<std::byte> memory;  // freed without the lock
  const std::lock_guard<std::mutex> hold(mutex_);
  LEHR_TRY(directory_.close_table(table));
  memory = std::move(table_memory_[table]);
  table_memory_.erase(table);
  return {};
}

Status Service::put(bool on_device, std::span<const transfer::SmallWrite> writes,
                    std::span<const std::byte> values, std::span<const transfer::SmallCopy> copies,
                    void* stream) {
  if (on_device) return lanes_->put(writes, values, copies, stream);
  const std::byte* from = values.data();
  for (const transfer::SmallWrite& w : writes) {
    std::memcpy(w.to, from, w.bytes);
    from += w.bytes;
  }
  for (const transfer::SmallCopy& c : copies) std::memcpy(c.to, c.from, c.bytes);
  return {};
}

Status Service::write_table(TableId id, std::span<const Entry> entries, void* stream) {
  if (entries.size() > kMostWrites)
    return invalid(
        fmt::format("table: {} entries at once, at most {}", entries.size(), kMostWrites),
        Reason::kOutOfRange);
  LEHR_TRY(check_order({stream, true, {}}));
  std::vector<transfer::SmallWrite> writes;
  std::vector<std::byte> values;
  bool on_device = false;
  std::shared_ptr<std::byte> memory;  // stays while this writes
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    const BlockTable* table = directory_.table(id);
    if (table == nullptr) return closed();
    memory = table_memory_[id];
    on_device = directory_.pool(table->pool)->desc.on_device;
    for (const Entry& entry : entries) {
      LEHR_ASSIGN(std::byte* const to, directory_.table_entry(*table, entry.row, entry.column));
      LEHR_ASSIGN(const std::uint64_t value, directory_.table_value(*table, entry.block));
      const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
      values.insert(values.end(), bytes, bytes + table->entry_bytes());
      if (!writes.empty() && writes.back().to + writes.back().bytes == to) {
        writes.back().bytes += table->entry_bytes();
      } else {
        writes.push_back({to, table->entry_bytes(), {}});
      }
    }
  }
  return put(on_device, writes, values, {}, stream);
}

Status Service::write_ragged(TableId id, const Ragged& out, void* stream) {
  LEHR_TRY(check_order({stream, true, {}}));
  std::shared_ptr<std::byte> memory;
  BlockTable table;
  bool on_device = false;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    const BlockTable* found = directory_.table(id);
    if (found == nullptr) return closed();
    table = *found;
    memory = table_memory_[id];
    on_device = directory_.pool(table.pool)->desc.on_device;
  }
  if (table.form != BlockTable::Form::kIndex)
    return invalid("table: ragged rows are of a table of block numbers");
  if (out.tokens.empty() || out.tokens.size() > table.rows || out.block_tokens == 0) {
    return invalid(fmt::format("ragged: {} rows of a table of {}, blocks of {} tokens",
                               out.tokens.size(), table.rows, out.block_tokens),
                   Reason::kOutOfRange);
  }
  std::vector<std::int32_t> begins{0}, last;
  std::vector<transfer::SmallCopy> copies;
  for (std::size_t row = 0; row < out.tokens.size(); ++row) {
    const std::uint64_t tokens = out.tokens[row];
    const std::uint64_t blocks = (tokens + out.block_tokens - 1) / out.block_tokens;
    const auto begin = static_cast<std::uint64_t>(begins.back());
    if (blocks > table.columns || begin + blocks > out.capacity) {
      return invalid(
          fmt::format("ragged: row {} takes {} blocks, of {} columns and {} indices that "
                      "are left",
                      row, blocks, table.columns, out.capacity - begin),
          Reason::kOutOfRange);
    }
    if (blocks > 0) {
      copies.push_back({table.base + row * table.columns * table.entry_bytes(),
                        bytes_of(out.blocks + begin), blocks * table.entry_bytes()});
    }
    begins.push_back(static_cast<std::int32_t>(begin + blocks));
    last.push_back(
        static_cast<std::int32_t>(tokens == 0 ? 0 : tokens - (blocks - 1) * out.block_tokens));
  }
  const transfer::SmallWrite writes[] = {
      {bytes_of(out.begins), begins.size() * sizeof(std::int32_t), {}},
      {bytes_of(out.last), last.size() * sizeof(std::int32_t), {}}};
  begins.insert(begins.end(), last.begin(), last.end());
  return put(on_device, writes, std::as_bytes(std::span(begins)), copies, stream);
}

}  // namespace lehr::directory
