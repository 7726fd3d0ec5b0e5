// SPDX-License-Identifier: Apache-2.0
#include "runtime/formats/zstd.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include <fmt/format.h>
#include <zstd.h>

namespace lehr::formats {
namespace {

struct FreeDecoder {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};
struct FreeEncoder {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
};

/// Memory taken on a frame's word alone; beyond it the buffer doubles as bytes arrive.
constexpr Bytes kTrustedSize = 64 * kMiB;

Bytes first_capacity(std::span<const std::byte> input, Bytes limit) {
  const unsigned long long declared = ZSTD_getFrameContentSize(input.data(), input.size());
  const bool known =
      declared != ZSTD_CONTENTSIZE_UNKNOWN && declared != ZSTD_CONTENTSIZE_ERROR && declared != 0;
  const Bytes wanted = known ? Bytes{declared} : std::max<Bytes>(kMiB, input.size() * 4);
  return std::max<Bytes>(1, std::min({wanted, kTrustedSize, limit}));
}

Error too_large(std::string_view name, Bytes limit) {
  return refused(
      Reason::kOverBudget,
      fmt::format("{}: decompresses to more than {} bytes, the limit; decompress it with "
                  "zstd first (plain files are mapped, not loaded)",
                  name, limit));
}

}  // namespace

bool is_zstd(std::span<const std::byte> bytes) {
  static constexpr unsigned char kMagic[4] = {0x28, 0xB5, 0x2F, 0xFD};
  return bytes.size() >= 4 && std::memcmp(bytes.data(), kMagic, 4) == 0;
}

Result<Blob> zstd_decompress(std::span<const std::byte> input, Bytes limit, std::string_view name) {
  const std::unique_ptr<ZSTD_DCtx, FreeDecoder> context(ZSTD_createDCtx());
  if (context == nullptr) return refused(Reason::kNoSpace, "no memory for a zstd decoder");

  const unsigned long long declared = ZSTD_getFrameContentSize(input.data(), input.size());
  if (declared < ZSTD_CONTENTSIZE_ERROR && declared > limit) return too_large(name, limit);

  Blob out;
  LEHR_TRY(out.reserve(first_capacity(input, limit)));
  ZSTD_inBuffer in{input.data(), input.size(), 0};
  std::size_t produced = 0;
  std::size_t pending = 1;  // 0 exactly at the end of a frame
  while (true) {
    ZSTD_outBuffer dst{out.data(), out.capacity(), produced};
    const std::size_t consumed_before = in.pos;
    pending = ZSTD_decompressStream(context.get(), &dst, &in);
    if (ZSTD_isError(pending) != 0) {
      return corrupt(fmt::format("{}: compressed byte {}: damaged zstd data ({})", name, in.pos,
                                 ZSTD_getErrorName(pending)));
    }
    const bool progressed = dst.pos != produced || in.pos != consumed_before;
    produced = dst.pos;
    if (pending == 0 && in.pos == in.size) break;
    if (produced == out.capacity()) {
      if (out.capacity() >= limit) {
        // Full to the limit: fine if only the frame's end is left to read, too large if a byte
        // comes.
        std::byte extra{};
        ZSTD_outBuffer probe{&extra, 1, 0};
        pending = ZSTD_decompressStream(context.get(), &probe, &in);
        if (ZSTD_isError(pending) == 0 && probe.pos == 0 && pending == 0 && in.pos == in.size)
          break;
        return too_large(name, limit);
      }
      LEHR_TRY(out.reserve(std::min<Bytes>(limit, Bytes{out.capacity()} * 2)));
    } else if (!progressed || in.pos == in.size) {
      return corrupt(
          fmt::format("{}: compressed byte {}: the zstd frame is truncated", name, in.size),
          Reason::kTruncated);
    }
  }
  out.set_size(produced);
  return out;
}

struct OutputFile::Compressor {
  std::unique_ptr<ZSTD_CCtx, FreeEncoder> context;
  std::vector<std::byte> chunk;

  Status run(AtomicFile& file, std::span<const std::byte> bytes, ZSTD_EndDirective mode) {
    ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
    while (true) {
      ZSTD_outBuffer out{chunk.data(), chunk.size(), 0};
      const std::size_t left = ZSTD_compressStream2(context.get(), &out, &in, mode);
      if (ZSTD_isError(left) != 0) {
        return internal_error(fmt::format("zstd: {}", ZSTD_getErrorName(left)));
      }
      LEHR_TRY(file.write(std::span(chunk).first(out.pos)));
      const bool done = mode == ZSTD_e_end ? left == 0 : in.pos == in.size;
      if (done) return {};
    }
  }
};

OutputFile::OutputFile(AtomicFile file, std::unique_ptr<Compressor> compressor)
    : file_(std::move(file)), compressor_(std::move(compressor)) {}
OutputFile::OutputFile(OutputFile&&) noexcept = default;
OutputFile& OutputFile::operator=(OutputFile&&) noexcept = default;
OutputFile::~OutputFile() = default;

Result<OutputFile> OutputFile::create(const std::filesystem::path& path, int level) {
  LEHR_ASSIGN(AtomicFile file, AtomicFile::create(path));
  std::unique_ptr<Compressor> compressor;
  if (path.extension() == ".zst") {
    compressor = std::make_unique<Compressor>();
    compressor->context.reset(ZSTD_createCCtx());
    if (compressor->context == nullptr) {
      return refused(Reason::kNoSpace, "no memory for a zstd encoder");
    }
    compressor->chunk.resize(ZSTD_CStreamOutSize());
    static_cast<void>(
        ZSTD_CCtx_setParameter(compressor->context.get(), ZSTD_c_compressionLevel, level));
    static_cast<void>(ZSTD_CCtx_setParameter(compressor->context.get(), ZSTD_c_checksumFlag, 1));
  }
  return OutputFile(std::move(file), std::move(compressor));
}

Status OutputFile::write(std::span<const std::byte> bytes) {
  if (compressor_ == nullptr) return file_.write(bytes);
  return compressor_->run(file_, bytes, ZSTD_e_continue);
}

Status OutputFile::commit() {
  if (compressor_ != nullptr) LEHR_TRY(compressor_->run(file_, {}, ZSTD_e_end));
  return file_.commit();
}

Bytes OutputFile::written() const { return file_.written(); }

}  // namespace lehr::formats
