// SPDX-License-Identifier: Apache-2.0
// Sequences, steps, and what moves. Attention is in device_attend.cpp.
#include "runtime/contents/device_contents.hpp"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <fmt/core.h>

namespace lehr::contents {

using kernels::PageEntry;
using kernels::PagePair;
using runtime::PageOp;
using runtime::PageTable;

struct DeviceContents::Tail {
  KvDevice* device = nullptr;
  std::vector<Block>* spare = nullptr;
  Block block;

  Tail(KvDevice& of, std::vector<Block>& keep, const Block& with)
      : device(&of), spare(&keep), block(with) {}
  Tail(const Tail&) = delete;
  Tail& operator=(const Tail&) = delete;
  ~Tail() {
    if (block.host != nullptr) {
      device->release(block);
    } else {
      spare->push_back(block);
    }
  }
};

/// Moves nothing itself.
class DeviceContents::Recorder final : public runtime::Machine {
 public:
  Recorder(std::shared_ptr<std::vector<PageOp>> ops, const FileBelow* below)
      : ops_(std::move(ops)), below_(below) {}
  runtime::MachineTraits traits() const override { return {.moves_bytes = true}; }
  Status set_up(std::span<const PageOp> ops) override {
    ops_->insert(ops_->end(), ops.begin(), ops.end());
    return {};
  }
  Status run_layer(Step, std::uint32_t, std::span<const PageOp> ops) override {
    return set_up(ops);
  }
  Status drain() override { return {}; }
  Seconds take_measured() override { return 0; }
  std::vector<std::string> notes() const override {
    return below_ == nullptr ? std::vector<std::string>{} : below_->notices();
  }

 private:
  std::shared_ptr<std::vector<PageOp>> ops_;
  const FileBelow* below_;
};

DeviceContents::DeviceContents(const DeviceContentsOptions& options,
                               std::unique_ptr<KvDevice> device)
    : options_(options),
      geometry_(options.contents.geometry),
      dtype_(options.contents.element == Element::kBf16 ? DType::kBf16 : DType::kF16),
      page_bytes_(kernels::stored_page_bytes(dtype_, geometry_.page_tokens, geometry_.head_dim)),
      device_(std::move(device)),
      staging_(*device_),
      ops_(std::make_shared<std::vector<PageOp>>()) {}

Result<std::unique_ptr<DeviceContents>> DeviceContents::create(const DeviceContentsOptions& options,
                                                               std::unique_ptr<KvDevice> device) {
  if (options.contents.element == Element::kF32) {
    return unsupported("geometry.dtype: \"f32\"; contents on a GPU are f16 or bf16");
  }
  if (options.contents.rounding != Rounding::kNone)
    return unsupported("step.rounding: only machine = \"host\" rounds pages");
  for (std::size_t t = 1; t < options.tier_pages.size(); ++t) {
    if (t != options.home && t != options.below && options.tier_pages[t] > 0) {
      return unsupported(
          "capacity: on a GPU contents live in HBM, on their home tier and in one file below it");
    }
  }
  std::unique_ptr<DeviceContents> made(new DeviceContents(options, std::move(device)));
  LEHR_TRY(kernels::check_shape(made->shape(1, 1)));
  if (options.sequences > 0 && options.tokens > 0) {
    const std::uint64_t pages =
        (options.tokens + made->geometry_.page_tokens - 1) / made->geometry_.page_tokens;
    if (pages > kernels::kMaxPages) {
      return unsupported(
          fmt::format("step.tokens: {} pages a sequence, at most {}", pages, kernels::kMaxPages));
    }
  }
  LEHR_TRY(made->make_memory());
  return made;
}

DeviceContents::~DeviceContents() {
  batch_.clear();
  sequences_.clear();
  for (const Block& b : spare_tails_) device_->release(b);
  for (const Block& b : kept_) device_->release(b);
  for (const auto& [sequences, b] : workspaces_) {
    if (b.bytes > 0) device_->release(b);
  }
  for (const Block* b :
       {&hbm_, &home_, &tables_, &lengths_, &reads_, &boxes_, &selection_, &counts_, &mass_, &peak_,
        &pairs_, &totals_, &k_, &v_, &q_, &out_, &told_, &answer_}) {
    if (b->bytes > 0) device_->release(*b);
  }
}

Status DeviceContents::make_memory() {
  LEHR_ASSIGN(hbm_, device_->memory(Bytes{options_.tier_pages[kHbm]} * page_bytes_));
  const std::uint32_t home_pages = options_.tier_pages[options_.home];
  const bool file = options_.below != 0 && options_.tier_pages[options_.below] > 0;
  home_stride_ = file ? FileBelow::stride(page_bytes_) : page_bytes_;
  LEHR_ASSIGN(home_, device_->pinned(home_pages * home_stride_));
  if (file) {
    FileBelowOptions below;
    below.below = options_.below;
    below.page_bytes = page_bytes_;
    below.home_pages = home_pages;
    below.pages = options_.tier_pages[options_.below];
    below.directory = options_.nvme_directory;
    below.faults = options_.faults;
    LEHR_ASSIGN(below_, FileBelow::create(below, {home_.host, home_.bytes}));
  }
  LEHR_ASSIGN(reads_, device_->memory(64));
  LEHR_ASSIGN(answer_, device_->pinned(64));
  return {};
}

std::unique_ptr<runtime::Machine> DeviceContents::make_machine() {
  return std::make_unique<Recorder>(ops_, below_.get());
}

void DeviceContents::attach(runtime::Runtime& runtime) {
  runtime_ = &runtime;
  DeviceRows::Layout layout;
  layout.geometry = geometry_;
  layout.dtype = dtype_;
  layout.page_bytes = page_bytes_;
  layout.home = options_.home;
  layout.hbm = hbm_.device;
  layout.home_base = home_.device;
  layout.home_stride = home_stride_;
  rows_.begin(layout, runtime, options_.tier_pages[kHbm]);
}

kernels::StepShape DeviceContents::shape(std::uint32_t sequences, std::uint32_t q_len) const {
  return {sequences,
          geometry_.q_heads,
          geometry_.kv_heads,
          geometry_.head_dim,
          geometry_.page_tokens,
          q_len,
          std::max(rows_.pages(), 1U),
          dtype_,
          {}};
}

// ---------------------------------------------------------------------- sequences

void DeviceContents::created(SequenceId id) {
  SequenceState& state = sequences_[id];
  state = {};
  state.stamp = ++stamps_;
  state.said.resize(geometry_.groups());
}

void DeviceContents::forked(SequenceId parent, SequenceId child) {
  created(child);
  sequences_.at(child).tail = sequences_.at(parent).tail;
}

void DeviceContents::released(SequenceId id) {
  rows_.forget(sequences_.at(id).stamp, 0);
  sequences_.erase(id);
}

Result<std::shared_ptr<DeviceContents::Tail>> DeviceContents::new_tail() {
  Block block;
  if (spare_tails_.empty()) {
    LEHR_ASSIGN(block, device_->memory(Bytes{page_bytes_} * geometry_.groups()));
  } else {
    block = spare_tails_.back();
    spare_tails_.pop_back();
  }
  return std::make_shared<Tail>(*device_, spare_tails_, block);
}

/// The sequence is about to write into its partial page. `keep`: what is there matters.
Status DeviceContents::own_tail(SequenceState& state, bool keep) {
  if (state.tail && state.tail.use_count() == 1) return {};
  LEHR_ASSIGN(auto fresh, new_tail());
  if (state.tail && keep) {
    LEHR_TRY(device_->copy(fresh->block.device, state.tail->block.device, state.tail->block.bytes,
                           Lane::kMain));
  }
  state.tail = std::move(fresh);
  return {};
}

/// A partial page leaves the device with its sequence; shared ones stay with the others.
Status DeviceContents::suspended(SequenceId id) {
  LEHR_TRY(move_below());
  SequenceState& state = sequences_.at(id);
  if (runtime_->tokens(id).value_or(0) % geometry_.page_tokens == 0) state.tail.reset();
  if (!state.tail || state.tail.use_count() > 1 || state.tail->block.host != nullptr) return {};
  LEHR_ASSIGN(const Block there, device_->pinned(state.tail->block.bytes));
  Block& block = state.tail->block;
  LEHR_TRY(device_->copy(there.device, block.device, block.bytes, Lane::kMain));
  LEHR_ASSIGN(const Mark copied, device_->mark(Lane::kMain));
  LEHR_TRY(device_->wait_host(copied));
  device_->release(block);
  block = there;
  rows_.forget(state.stamp, 0);
  return {};
}

Status DeviceContents::resumed(SequenceId id) {
  SequenceState& state = sequences_.at(id);
  if (!state.tail || state.tail->block.host == nullptr) return {};
  LEHR_ASSIGN(auto fresh, new_tail());
  LEHR_TRY(device_->copy(fresh->block.device, state.tail->block.device, state.tail->block.bytes,
                         Lane::kMain));
  state.tail = std::move(fresh);  // freeing the other waits for the copy
  return {};
}

// ---------------------------------------------------------------------- below the home tier

/// All pages of these sequences can be read from here on.
Status DeviceContents::keep_up(std::span<const SequenceId> sequences) {
  if (!below_) return {};
  LEHR_TRY(Status(below_failed_));
  Status kept = runtime_->keep_up(sequences);
  LEHR_TRY(move_below());
  return kept;
}

/// Carries out what the step loop wants moved to and from the file. That comes before everything
/// else that it wants: what goes down is no page of the batch, and nothing that was listed before
/// touches its place.
Status DeviceContents::move_below() {
  if (!below_) return {};
  std::vector<PageOp> moves;
  std::erase_if(*ops_, [&](const PageOp& op) {
    const bool passes = op.from == options_.below || op.to == options_.below;
    if (passes) moves.push_back(op);
    return passes;
  });
  if (moves.empty()) return {};
  LEHR_TRY(drain_lanes());
  for (const PageOp& op : moves) rows_.touch(op.page);
  moved_ += moves.size();
  Status moved = below_->run(moves);
  if (!moved) below_failed_ = moved;
  return moved;
}

/// Everything that was enqueued has run.
Status DeviceContents::drain_lanes() {
  for (const Lane lane : {Lane::kMain, Lane::kSide}) {
    LEHR_ASSIGN(const Mark here, device_->mark(lane));
    LEHR_TRY(device_->wait_host(here));
  }
  return {};
}

// ---------------------------------------------------------------------- beginning a step

/// Tables hold the batch, or are made larger where they may be.
Status DeviceContents::fit(std::span<const Member> batch) {
  std::uint64_t most = 1;
  for (const Member& m : batch) most = std::max(most, m.before + m.tokens);
  const std::uint64_t pages = (most + geometry_.page_tokens - 1) / geometry_.page_tokens;
  const auto rows = static_cast<std::uint32_t>(std::max<std::size_t>(batch.size(), 1));
  if (options_.sequences > 0 && options_.tokens > 0) {
    if (rows > options_.sequences || most > options_.tokens) {
      return refused(Reason::kOverBudget,
                     fmt::format("a batch of {} with {} tokens: step.sequences is {} and "
                                 "step.tokens {}",
                                 rows, most, options_.sequences, options_.tokens));
    }
    if (rows_.rows() > 0) return {};
    return make_tables(options_.sequences,
                       static_cast<std::uint32_t>((options_.tokens + geometry_.page_tokens - 1) /
                                                  geometry_.page_tokens));
  }
  if (pages > kernels::kMaxPages) {
    return refused(Reason::kOverBudget,
                   fmt::format("a sequence of {} pages, at most {}", pages, kernels::kMaxPages));
  }
  if (rows <= rows_.rows() && pages <= rows_.pages()) return {};
  std::uint32_t room = std::max(rows_.pages(), 64U);
  while (room < pages) room = std::min(room * 2, kernels::kMaxPages);
  return make_tables(std::max(rows, rows_.rows()), room);
}

Status DeviceContents::make_tables(std::uint32_t rows, std::uint32_t pages) {
  for (Block* b : {&tables_, &lengths_, &boxes_, &selection_, &counts_, &mass_, &peak_}) {
    if (b->bytes > 0) device_->release(*b);
    *b = {};
  }
  const Bytes words = Bytes{geometry_.layers} * rows * geometry_.kv_heads * pages;
  LEHR_ASSIGN(tables_, device_->memory(words * sizeof(PageEntry)));
  LEHR_ASSIGN(lengths_, device_->memory(Bytes{rows} * 4));
  rows_.resize(rows, pages);
  boxes_from_.assign(rows, 0);
  if (boxes_on_) {
    LEHR_ASSIGN(boxes_, device_->memory(words * 4 * geometry_.head_dim));
  }
  return {};
}

/// Copies of the step before have landed: the main lane has waited for them.
void DeviceContents::arrive() {
  for (const Install& a : arrivals_) {
    if (rows_.generation(a.slot) == a.generation) rows_.put(a.slot, a.page);
  }
  arrivals_.clear();
}

Status DeviceContents::begin_range(std::span<const RangeTokens>, void*) {
  return unsupported("contents on a device hold whole sequences, no ranges of tokens");
}

Status DeviceContents::begin(std::span<const SequenceId> batch,
                             std::span<const std::uint32_t> tokens, void* stream) {
  if (mode_ != Mode::kIdle) return invalid("a step is open already");
  LEHR_ASSIGN(const std::vector<std::uint64_t> before, tokens_before(*runtime_, batch));
  std::vector<Member> members;
  for (std::size_t i = 0; i < batch.size(); ++i)
    members.push_back({batch[i], tokens[i], before[i], nullptr});
  LEHR_TRY(device_->use(stream));
  LEHR_ASSIGN(const bool capturing, device_->capturing());
  if (capturing) {
    return unsupported(
        "a step's beginning cannot be captured: capture its appends and attends, and call begin "
        "and end around each launch of the graph");
  }
  const bool single =
      std::all_of(tokens.begin(), tokens.end(), [](std::uint32_t n) { return n == 1; });
  LEHR_TRY(fit(members));
  LEHR_TRY(staging_.turn());
  LEHR_ASSIGN(const Mark beside, device_->mark(Lane::kSide));
  LEHR_TRY(device_->wait(Lane::kMain, beside));
  arrive();
  LEHR_TRY(move_below());
  ops_->clear();
  batch_ = std::move(members);
  LEHR_TRY(take_feedback());
  Status ready = keep_up(batch);
  if (ready) ready = single ? runtime_->begin_step(batch) : grow();
  if (!ready) {
    batch_.clear();
    return ready;
  }
  mode_ = single ? Mode::kStep : Mode::kChunk;
  layers_.begin();
  captured_ = sparse_ = false;
  for (Member& m : batch_) {
    SequenceState& state = sequences_.at(m.id);
    if (!single) m.tail = state.tail;
    if (m.tokens > 0 && ready)
      ready = own_tail(state, single && m.before % geometry_.page_tokens != 0);
  }
  if (single && ready) ready = run_layers();
  if (Status below = move_below(); !below && ready) ready = below;
  note_ops(!single);
  if (ready) ready = send_tables();
  if (ready) ready = single ? send_moves() : send_chunk();
  if (ready) return {};
  // Other sequences' pages may have been told to move: so they do.
  LEHR_TRY(send_moves());
  LEHR_TRY(abandon());
  return ready;
}

/// Room for the chunk's tokens; all members or none.
Status DeviceContents::grow() {
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    Status grown = runtime_->append(batch_[i].id, batch_[i].tokens);
    if (grown) continue;
    for (std::size_t j = 0; j < i; ++j) {
      LEHR_TRY(runtime_->truncate(batch_[j].id, batch_[j].before));
      LEHR_TRY(roll_back(batch_[j]));
    }
    LEHR_TRY(move_below());
    ops_->clear();
    return grown;
  }
  return {};
}

/// What the last feedback said of a layer; `all`: pages of a dense step.
std::vector<runtime::GroupSelection> DeviceContents::told_groups(
    std::uint32_t layer, std::span<const std::uint32_t> all) {
  std::vector<runtime::GroupSelection> groups;
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    SequenceState& state = sequences_.at(batch_[i].id);
    const std::size_t pages = runtime_->blocks(batch_[i].id).size();
    for (std::uint32_t head = 0; head < geometry_.kv_heads; ++head) {
      Said& said = state.said[layer * geometry_.kv_heads + head];
      if (said.told != feedbacks_) continue;
      runtime::GroupSelection g;
      g.sequence = batch_[i].id;
      g.kv_head = head;
      g.pages =
          feedback_.sparse ? std::span<const std::uint32_t>(said.pages) : all.first(pages - 1);
      if (feedback_.sparse) {
        said.mass.resize(pages, kNoMass);
        said.peak.resize(pages, kNoMass);
        g.mass = said.mass.data();
        g.peak = said.peak.data();
      }
      if (!g.pages.empty()) groups.push_back(g);
    }
  }
  return groups;
}

/// Every layer's decisions, from what the step before selected.
Status DeviceContents::run_layers() {
  std::vector<std::uint32_t> all;
  if (!feedback_.sparse && !feedback_.parts.empty()) {
    std::size_t most = 0;
    for (const Member& m : batch_) most = std::max(most, runtime_->blocks(m.id).size());
    for (std::uint32_t p = 0; p < most; ++p) all.push_back(p);
  }
  Status ran;
  for (std::uint32_t layer = 0; layer < geometry_.layers && ran; ++layer) {
    ran = runtime_->run_layer(layer, told_groups(layer, all));
  }
  feedback_.parts.clear();
  return ran;
}

/// Where the batch's partial page of that page's block lies; 0: the block is full.
std::uint64_t DeviceContents::tail_of(PageId page) const {
  const std::uint32_t group = page % (geometry_.groups() * PageTable::kRun) / PageTable::kRun;
  const auto found = tail_blocks_.find(page - group * PageTable::kRun);
  if (found == tail_blocks_.end()) return 0;
  return sequences_.at(found->second).tail->block.device + std::uint64_t{group} * page_bytes_;
}

/// `chunk`: contents come with the layers, straight to their places.
void DeviceContents::note_fill(const PageOp& op, bool chunk) {
  if (op.to != kHbm) {
    rows_.touch(op.page);
    return;
  }
  rows_.take(op.to_slot);
  if (op.tokens != 0 && op.tokens != geometry_.page_tokens) return;
  if (chunk) {
    rows_.put(op.to_slot, op.page);
  } else {
    filled_.push_back({op.page, op.to_slot, rows_.generation(op.to_slot), tail_of(op.page)});
  }
}

void DeviceContents::note_arrival(const PageOp& op) {
  if (tail_of(op.page) != 0) return;  // a resumed sequence's: the tail itself came back
  rows_.take(op.to_slot);
  installs_.push_back(
      {op.page, op.to_slot, rows_.generation(op.to_slot), rows_.home(op.from_slot)});
}

void DeviceContents::note_write_back(const PageOp& op) {
  const std::uint64_t tail = tail_of(op.page);
  const std::uint64_t to = rows_.home(op.to_slot);
  if (tail != 0) {
    late_write_backs_.push_back({tail, to});
  } else {
    write_backs_.push_back({rows_.hbm(op.from_slot), to});
  }
}

/// What the step loop wants moved.
void DeviceContents::note_ops(bool chunk) {
  tail_blocks_.clear();
  for (const Member& m : batch_) {
    const auto blocks = runtime_->blocks(m.id);
    if (m.tokens > 0 && !blocks.empty()) tail_blocks_[blocks.back()] = m.id;
  }
  for (const PageOp& op : *ops_) {
    if (op.kind == PageOp::Kind::kFill) {
      note_fill(op, chunk);
    } else if (op.kind != PageOp::Kind::kRead && op.to == kHbm) {
      note_arrival(op);
    } else if (op.kind == PageOp::Kind::kCopy && op.from == kHbm) {
      note_write_back(op);
    }
  }
  ops_->clear();
}

Status DeviceContents::send_tables() {
  std::vector<std::uint32_t> before(rows_.rows()), after(rows_.rows());
  for (std::uint32_t row = 0; row < batch_.size(); ++row) {
    const Member& m = batch_[row];
    const SequenceState& state = sequences_.at(m.id);
    const std::uint64_t tokens = m.before + m.tokens;
    before[row] = static_cast<std::uint32_t>(m.before);
    after[row] = static_cast<std::uint32_t>(tokens);
    const bool partial = mode_ == Mode::kStep || tokens % geometry_.page_tokens != 0;
    const auto tail_page = static_cast<std::uint32_t>((tokens - 1) / geometry_.page_tokens);
    const std::uint32_t changed =
        rows_.hold(row, state.stamp, runtime_->blocks(m.id),
                   partial && tokens > 0 ? state.tail->block.device : 0,
                   partial && tokens > 0 ? tail_page : DeviceRows::kNoTail);
    boxes_from_[row] = std::min(boxes_from_[row], changed);
  }
  const auto writes = rows_.take_writes();
  LEHR_ASSIGN(const std::uint64_t list, staging_.put(writes));
  kernels::WriteWordsParams words;
  // NOLINTBEGIN(performance-no-int-to-ptr): addresses of the device
  words.writes = reinterpret_cast<const kernels::WordWrite*>(list);
  words.words = reinterpret_cast<std::uint64_t*>(tables_.device);
  // NOLINTEND(performance-no-int-to-ptr)
  words.count = static_cast<std::uint32_t>(writes.size());
  LEHR_TRY(device_->write(words));
  LEHR_ASSIGN(const std::uint64_t lengths, staging_.put(std::span<const std::uint32_t>(after)));
  LEHR_TRY(device_->copy(lengths_.device, lengths, after.size() * 4, Lane::kMain));
  LEHR_ASSIGN(lengths_before_, staging_.put(std::span<const std::uint32_t>(before)));
  return boxes_on_ ? stale_boxes() : Status{};
}

/// What storing the chunk's rows needs to know, for all layers.
Status DeviceContents::send_chunk() {
  std::vector<std::uint32_t> before, tokens;
  std::vector<std::uint64_t> carried;
  chunk_pages_ = 0;
  for (const Member& m : batch_) {
    before.push_back(static_cast<std::uint32_t>(m.before));
    tokens.push_back(m.tokens);
    carried.push_back(m.tail && m.before % geometry_.page_tokens != 0 ? m.tail->block.device : 0);
    if (m.tokens == 0) continue;
    const std::uint64_t first = m.before / geometry_.page_tokens;
    const std::uint64_t last = (m.before + m.tokens - 1) / geometry_.page_tokens;
    chunk_pages_ = std::max(chunk_pages_, static_cast<std::uint32_t>(last - first + 1));
  }
  LEHR_ASSIGN(chunk_before_, staging_.put(std::span<const std::uint32_t>(before)));
  LEHR_ASSIGN(chunk_tokens_, staging_.put(std::span<const std::uint32_t>(tokens)));
  LEHR_ASSIGN(chunk_carried_, staging_.put(std::span<const std::uint64_t>(carried)));
  std::vector<std::uint64_t> copies(std::size_t{geometry_.groups()} * batch_.size() * chunk_pages_);
  const std::uint32_t heads = geometry_.kv_heads;
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    const Member& m = batch_[i];
    const auto blocks = runtime_->blocks(m.id);
    const std::uint64_t first = m.before / geometry_.page_tokens;
    const std::uint64_t full = (m.before + m.tokens) / geometry_.page_tokens;
    for (std::uint32_t group = 0; group < geometry_.groups() && m.tokens > 0; ++group) {
      for (std::uint64_t page = first; page < full; ++page) {
        const PageId id = blocks[page] + group * PageTable::kRun;
        if (!rows_.in_hbm(id) || !rows_.at_home(id)) continue;
        copies[((group / heads * batch_.size() + i) * heads + group % heads) * chunk_pages_ + page -
               first] = rows_.home(runtime_->table().slot[options_.home][id]);
      }
    }
  }
  LEHR_ASSIGN(chunk_copies_, staging_.put(std::span<const std::uint64_t>(copies)));
  return {};
}

Status DeviceContents::move(std::span<const PagePair> pairs, Lane lane) {
  if (pairs.empty()) return {};
  LEHR_ASSIGN(const std::uint64_t list, staging_.put(pairs));
  return device_->move(list, static_cast<std::uint32_t>(pairs.size()), page_bytes_, lane);
}

/// Those whose slot nobody took after them: pages of one move go in any order.
std::vector<PagePair> DeviceContents::still_wanted(std::span<const Install> moves) const {
  std::vector<PagePair> pairs;
  for (const Install& i : moves) {
    if (rows_.generation(i.slot) == i.generation) pairs.push_back({i.from, rows_.hbm(i.slot)});
  }
  return pairs;
}

/// Beside the step: full pages go home, and after them, for they may take their slots, others come
/// to HBM. The tables no longer point to what is overwritten.
Status DeviceContents::send_moves() {
  if (installs_.empty() && write_backs_.empty()) return {};
  LEHR_ASSIGN(const Mark here, device_->mark(Lane::kMain));
  LEHR_TRY(device_->wait(Lane::kSide, here));
  LEHR_TRY(move(write_backs_, Lane::kSide));
  if (!write_backs_.empty()) {
    // Pages that had to wait for room at home: the step may read them there, and fill their slots.
    LEHR_ASSIGN(const Mark home, device_->mark(Lane::kSide));
    LEHR_TRY(device_->wait(Lane::kMain, home));
  }
  const std::vector<PagePair> pairs = still_wanted(installs_);
  LEHR_TRY(move(pairs, Lane::kSide));
  moved_ += write_backs_.size() + pairs.size();
  write_backs_.clear();
  arrivals_ = std::exchange(installs_, {});
  return {};
}

// ---------------------------------------------------------------------- layers

Status DeviceContents::append(std::uint32_t layer, const Tensor& k, const Tensor& v) {
  if (mode_ == Mode::kIdle) return invalid("no step is open");
  LEHR_TRY(layers_.check_append(layer, geometry_.layers));
  std::uint32_t most = 0;
  for (const Member& m : batch_) most = std::max(most, m.tokens);
  LEHR_TRY(check_kv(geometry_, options_.contents.element, batch_.size(), most, k, v));
  LEHR_ASSIGN(const bool capturing, device_->capturing());
  if (capturing) {
    if (options_.sequences == 0 || options_.tokens == 0)
      return unsupported(
          "captured steps need step.sequences and step.tokens: tables that never move");
    if (mode_ == Mode::kChunk) return unsupported("only steps of one token each can be captured");
    captured_ = true;
  } else if (captured_) {
    return unsupported("of a step, all appends and attends are captured or none");
  }
  LEHR_TRY(mode_ == Mode::kStep ? append_token(layer, k, v) : append_chunk(layer, k, v));
  layers_.append();
  return {};
}

// ---------------------------------------------------------------------- ending a step

Result<runtime::StepReport> DeviceContents::end() {
  if (mode_ == Mode::kIdle) return invalid("no step is open");
  const auto rows = static_cast<std::uint32_t>(batch_.size());
  const bool replayed =
      !layers_.started() && mode_ == Mode::kStep && rows > 0 && rows <= captured_rows_;
  if (!replayed) LEHR_TRY(layers_.check_end(geometry_.layers));
  if (captured_) {
    captured_rows_ = std::max(captured_rows_, rows);
    captured_sparse_ = sparse_;
    captured_rule_ = rule_;
  }
  if (replayed) {
    sparse_ = captured_sparse_;
    rule_ = captured_rule_;
  }
  const Mode was = mode_;
  LEHR_TRY(finish_moves());
  if (was == Mode::kStep) LEHR_TRY(send_feedback());
  mode_ = Mode::kIdle;
  batch_.clear();
  if (was == Mode::kStep) return runtime_->end_step();
  return runtime::StepReport{};
}

/// Pages that the step filled go to their slots, and home.
Status DeviceContents::finish_moves() {
  LEHR_TRY(move(still_wanted(filled_), Lane::kMain));
  for (const Install& f : filled_) {
    if (rows_.generation(f.slot) == f.generation) rows_.put(f.slot, f.page);
  }
  filled_.clear();
  if (late_write_backs_.empty()) return {};
  LEHR_ASSIGN(const Mark here, device_->mark(Lane::kMain));
  LEHR_TRY(device_->wait(Lane::kSide, here));
  moved_ += late_write_backs_.size();
  LEHR_TRY(move(late_write_backs_, Lane::kSide));
  late_write_backs_.clear();
  return {};
}

Status DeviceContents::roll_back(const Member& m) {
  SequenceState& state = sequences_.at(m.id);
  if (m.tail) state.tail = m.tail;
  for (Said& said : state.said) said = {};
  rows_.forget(state.stamp, m.before / geometry_.page_tokens);
  return {};
}

Status DeviceContents::abandon() {
  if (mode_ == Mode::kIdle) return invalid("no step is open");
  const Mode was = std::exchange(mode_, Mode::kIdle);
  LEHR_TRY(finish_moves());  // others' pages may be among them
  if (was == Mode::kStep) runtime_->abandon_step();
  for (const Member& m : batch_) {
    LEHR_TRY(runtime_->truncate(m.id, m.before));
    LEHR_TRY(roll_back(m));
  }
  ops_->clear();
  batch_.clear();
  return {};
}

// ---------------------------------------------------------------------- between steps

/// Where a page of a sequence is read now.
std::uint64_t DeviceContents::address_of_read(SequenceId id, PageId page, std::size_t place) const {
  const std::uint64_t tokens = runtime_->tokens(id).value_or(0);
  const std::uint64_t tail =
      tokens % geometry_.page_tokens != 0 ? tokens / geometry_.page_tokens : ~std::uint64_t{0};
  if (place != tail) return rows_.entry_of(page);
  const std::uint32_t group = page % (geometry_.groups() * PageTable::kRun) / PageTable::kRun;
  const Block& block = sequences_.at(id).tail->block;
  return kernels::make_entry(block.device + std::uint64_t{group} * page_bytes_,
                             block.host != nullptr, dtype_);
}

Status DeviceContents::truncate(SequenceId id, std::uint64_t tokens) {
  if (mode_ != Mode::kIdle) return invalid("a sequence cannot be truncated inside a step");
  const auto now = runtime_->tokens(id);
  if (!now) return not_found(fmt::format("no sequence {}", id));
  const std::uint64_t page = tokens / geometry_.page_tokens;
  const bool in_tail = *now % geometry_.page_tokens != 0 && page == *now / geometry_.page_tokens;
  std::shared_ptr<Tail> tail;
  if (tokens < *now && tokens % geometry_.page_tokens != 0 && !in_tail) {
    LEHR_TRY(staging_.turn());
    LEHR_ASSIGN(const Mark beside, device_->mark(Lane::kSide));
    LEHR_TRY(device_->wait(Lane::kMain, beside));
    arrive();
    LEHR_TRY(keep_up({&id, 1}));
    // The page that is partial from now on comes back to where it can be written.
    LEHR_ASSIGN(tail, new_tail());
    std::vector<PagePair> pairs;
    for (std::uint32_t group = 0; group < geometry_.groups(); ++group) {
      const PageEntry from = rows_.entry_of(runtime_->blocks(id)[page] + group * PageTable::kRun);
      if (from == kernels::kAbsentPage) return internal_error("a full page has no copy anywhere");
      pairs.push_back(
          {kernels::entry_address(from), tail->block.device + std::uint64_t{group} * page_bytes_});
    }
    LEHR_TRY(move(pairs, Lane::kMain));
  }
  LEHR_TRY(runtime_->truncate(id, tokens));
  return roll_back({id, 0, tokens, tail});
}

Status DeviceContents::reorder(std::span<const SequenceId> ids,
                               std::span<const std::uint32_t> parents) {
  if (mode_ != Mode::kIdle) return invalid("sequences cannot be reordered inside a step");
  LEHR_TRY(runtime_->reorder(ids, parents));
  std::vector<std::shared_ptr<Tail>> tails;
  for (const std::uint32_t parent : parents) tails.push_back(sequences_.at(ids[parent]).tail);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (parents[i] == i) continue;
    SequenceState& state = sequences_.at(ids[i]);
    state.tail = std::move(tails[i]);
    for (Said& said : state.said) said = {};
    rows_.forget_other(state.stamp, runtime_->blocks(ids[i]));
  }
  return {};
}

Status DeviceContents::gather(std::uint32_t layer, std::span<const SequenceId> ids, const Tensor& k,
                              const Tensor& v) {
  if (mode_ == Mode::kStep || (mode_ == Mode::kChunk && !layers_.open(layer)))
    return invalid("inside a step only a chunk's own layer can be gathered, before its attention");
  LEHR_ASSIGN(const std::vector<std::uint32_t> lengths,
              gathered_lengths(geometry_, options_.contents.element, *runtime_, layer, ids, k, v));
  LEHR_ASSIGN(const bool capturing, device_->capturing());
  if (capturing) return unsupported("a gather cannot be captured");
  if (mode_ == Mode::kIdle) {
    LEHR_TRY(staging_.turn());
    LEHR_ASSIGN(const Mark beside, device_->mark(Lane::kSide));
    LEHR_TRY(device_->wait(Lane::kMain, beside));
    arrive();
  }
  if (below_) {
    std::vector<SequenceId> read(ids.begin(), ids.end());
    for (const Member& m : batch_) read.push_back(m.id);  // of an open chunk
    LEHR_TRY(keep_up(read));
  }
  kernels::StepShape s = shape(static_cast<std::uint32_t>(ids.size()), 1);
  const std::uint32_t heads = geometry_.kv_heads;
  s.max_pages = std::max(
      1U,
      geometry_.pages_for(lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end())));
  std::vector<PageEntry> entries(s.groups() * s.max_pages, kernels::kAbsentPage);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto blocks = runtime_->blocks(ids[i]);
    for (std::uint32_t head = 0; head < heads; ++head) {
      const PageId offset = runtime_->table().group_offset(layer, head);
      for (std::size_t p = 0; p < blocks.size(); ++p)
        entries[(i * heads + head) * s.max_pages + p] =
            address_of_read(ids[i], blocks[p] + offset, p);
    }
  }
  LEHR_ASSIGN(const std::uint64_t table, staging_.put(std::span<const PageEntry>(entries)));
  LEHR_ASSIGN(const std::uint64_t list, staging_.put(std::span<const std::uint32_t>(lengths)));
  kernels::LoadParams p;
  // NOLINTBEGIN(performance-no-int-to-ptr): addresses of the device
  p.table = reinterpret_cast<const PageEntry*>(table);
  p.lengths = reinterpret_cast<const std::uint32_t*>(list);
  // NOLINTEND(performance-no-int-to-ptr)
  p.k = k.data;
  p.v = v.data;
  p.k_strides = {k.stride[0], k.stride[1], k.stride[2]};
  p.v_strides = {v.stride[0], v.stride[1], v.stride[2]};
  p.tokens = static_cast<std::uint32_t>(k.shape[2]);
  if (v.shape[2] != k.shape[2])
    return invalid("k and v have different numbers of tokens", Reason::kLayoutMismatch);
  return device_->launch(s, p);
}

Result<ContentsStats> DeviceContents::stats() {
  LEHR_ASSIGN(const bool capturing, device_->capturing());
  if (capturing) return unsupported("figures cannot be read inside a capture");
  LEHR_TRY(device_->copy(answer_.device, reads_.device, 64, Lane::kMain));
  LEHR_ASSIGN(const Mark copied, device_->mark(Lane::kMain));
  LEHR_TRY(device_->wait_host(copied));
  const auto* reads = reinterpret_cast<const std::uint64_t*>(answer_.host);
  if (reads[2] != 0) {
    return corrupt(fmt::format("attention met {} pages that were nowhere", reads[2]),
                   Reason::kNone);
  }
  ContentsStats out = stats_;
  out.read_in_hbm += reads[0];
  out.read_in_place += reads[1];
  out.moved_pages = moved_;
  out.moved_bytes = moved_ * page_bytes_;
  return out;
}

Result<std::shared_ptr<std::byte>> DeviceContents::shared_memory(Bytes bytes) {
  LEHR_ASSIGN(const Block block, device_->pinned(std::max<Bytes>(bytes, 1)));
  if (block.device != reinterpret_cast<std::uint64_t>(block.host)) {
    device_->release(block);
    return unsupported("this device sees host memory at other addresses than the host");
  }
  return std::shared_ptr<std::byte>(
      block.host, [device = device_.get(), block](std::byte*) { device->release(block); });
}

}  // namespace lehr::contents
