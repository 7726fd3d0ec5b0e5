// SPDX-License-Identifier: Apache-2.0
// The placement level: tables of blocks.
#include <span>
#include <vector>

#include <fmt/format.h>

#include "runtime/capi/placement_args.hpp"

using namespace lehr;
using namespace lehr::capi;
using directory::BlockTable;
using directory::Service;

extern "C" {

lehr_status lehr_table_open(lehr_runtime runtime, const lehr_table_desc* desc, lehr_table* out,
                            void** entries) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_TRY(not_null(out, "out"));
    LEHR_TRY(not_null(entries, "entries"));
    LEHR_ASSIGN(const lehr_table_desc given, read_struct(desc, "desc"));
    if (given.form != LEHR_TABLE_INDEX && given.form != LEHR_TABLE_POINTER)
      return invalid(
          fmt::format("desc.form: {}, expected LEHR_TABLE_INDEX or _POINTER", given.form));
    BlockTable table;
    LEHR_ASSIGN(table.pool, handle_id(Kind::kPool, instance, given.pool.id));
    table.form = static_cast<BlockTable::Form>(given.form);
    table.rows = given.rows;
    table.columns = given.columns;
    LEHR_ASSIGN(const directory::TableId id, instance.placement->open_table(table));
    *entries = instance.placement->with([&](directory::Directory& d) { return d.table(id)->base; });
    out->id = make_handle(Kind::kTable, instance, id);
    return {};
  });
}

lehr_status lehr_table_close(lehr_runtime runtime, lehr_table table) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_ASSIGN(const std::uint64_t id, handle_id(Kind::kTable, instance, table.id));
    return instance.placement->close_table(id);
  });
}

lehr_status lehr_table_write(lehr_runtime runtime, lehr_table table,
                             const lehr_table_entry* entries, size_t count, void* stream) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_ASSIGN(const std::uint64_t id, handle_id(Kind::kTable, instance, table.id));
    LEHR_ASSIGN(const auto given,
                StructArray<const lehr_table_entry>::of(entries, count, "entries"));
    std::vector<Service::Entry> wanted;
    for (std::size_t i = 0; i < count; ++i) {
      LEHR_ASSIGN(const lehr_table_entry entry, given.read(i, "entries"));
      wanted.push_back({entry.row, entry.column, entry.block});
    }
    return instance.placement->write_table(id, wanted, stream);
  });
}

lehr_status lehr_table_ragged(lehr_runtime runtime, lehr_table table, const uint32_t* tokens,
                              size_t rows, const lehr_ragged* out, void* stream) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_ASSIGN(const std::uint64_t id, handle_id(Kind::kTable, instance, table.id));
    LEHR_ASSIGN(const lehr_ragged given, read_struct(out, "out"));
    LEHR_TRY(not_null(tokens, "tokens"));
    LEHR_TRY(not_null(given.indptr, "out.indptr"));
    LEHR_TRY(not_null(given.last_page_len, "out.last_page_len"));
    if (given.capacity > 0) LEHR_TRY(not_null(given.indices, "out.indices"));
    Service::Ragged ragged;
    ragged.tokens = {tokens, rows};
    ragged.block_tokens = given.block_tokens;
    ragged.begins = given.indptr;
    ragged.blocks = given.indices;
    ragged.last = given.last_page_len;
    ragged.capacity = given.capacity;
    return instance.placement->write_ragged(id, ragged, stream);
  });
}

}  // extern "C"
