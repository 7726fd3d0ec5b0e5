// SPDX-License-Identifier: Apache-2.0
#include "runtime/formats/zstd.hpp"

#include <string>

#include <catch2/catch.hpp>
#include <zstd.h>

#include "kernels/base/rng.hpp"
#include "tests/runtime/formats/trace_files.hpp"

namespace lehr::formats {
namespace {

using test::bytes_of;
using test::TempDir;

std::string compress(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

/// A frame that does not say how large its contents are.
std::string compress_unsized(const std::string& text) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return out;
}

std::string text_of(const Blob& blob) {
  return {reinterpret_cast<const char*>(blob.bytes().data()), blob.size()};
}

TEST_CASE("frames come back whole, sized or not, one or several") {
  std::string text;
  Rng rng(1);
  while (text.size() < 300000) text += std::to_string(rng.below(1000));
  for (const std::string& input :
       {compress(text), compress_unsized(text),
        compress(text.substr(0, 1000)) + compress_unsized(text.substr(1000))}) {
    const auto out = zstd_decompress(bytes_of(input), text.size(), "in");
    REQUIRE(out);
    CHECK(text_of(*out) == text);
  }
  const auto nothing = zstd_decompress(bytes_of(compress("")), 10, "in");
  REQUIRE(nothing);
  CHECK((*nothing).size() == 0);
}

TEST_CASE("contents past the limit are refused, at the limit they are not") {
  const std::string text(100000, 'x');
  for (const std::string& input : {compress(text), compress_unsized(text)}) {
    CHECK(zstd_decompress(bytes_of(input), 100000, "in"));
    const auto out = zstd_decompress(bytes_of(input), 99999, "in");
    REQUIRE_FALSE(out);
    CHECK(out.error().reason == Reason::kOverBudget);
  }
  // A bomb of two frames that are each within the limit.
  const auto both = zstd_decompress(bytes_of(compress(text) + compress(text)), 150000, "in");
  REQUIRE_FALSE(both);
  CHECK(both.error().reason == Reason::kOverBudget);
}

TEST_CASE("a truncated frame is refused at every length") {
  const std::string whole = compress(std::string(5000, 'x') + "tail");
  for (std::size_t length = 4; length < whole.size(); ++length) {
    CAPTURE(length);
    const auto out =
        zstd_decompress(bytes_of(std::string_view(whole).substr(0, length)), 1 << 20, "in");
    REQUIRE_FALSE(out);
    CHECK(out.error().code == Code::kCorrupt);
  }
}

TEST_CASE("a lying content size and trailing bytes are refused") {
  const std::string text(5000, 'x');
  std::string lying = compress(text);
  // Single-segment frame, 2-byte content size at offset 5, stored less 256.
  REQUIRE((static_cast<unsigned char>(lying[4]) >> 6) == 1);
  lying[6] = static_cast<char>(lying[6] + 1);
  CHECK_FALSE(zstd_decompress(bytes_of(lying), 1 << 20, "in"));
  CHECK_FALSE(zstd_decompress(bytes_of(compress(text) + "garbage"), 1 << 20, "in"));
}

TEST_CASE("an output file is compressed exactly when its name asks for it") {
  const TempDir dir;
  const std::string text(70000, 'y');
  for (const char* name : {"plain", "small.zst"}) {
    auto file = OutputFile::create(dir / name);
    REQUIRE(file);
    REQUIRE((*file).write(bytes_of(text)));
    REQUIRE((*file).commit());
  }
  CHECK(test::read_text(dir / "plain") == text);
  const std::string small = test::read_text(dir / "small.zst");
  CHECK(small.size() < 1000);
  REQUIRE(is_zstd(bytes_of(small)));
  const auto back = FileContents::open(dir / "small.zst", 1 << 20);
  REQUIRE(back);
  CHECK((*back).compressed());
  CHECK((*back).file_bytes() == small.size());
  CHECK((*back).bytes().size() == text.size());
}

}  // namespace
}  // namespace lehr::formats
