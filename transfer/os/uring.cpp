// SPDX-License-Identifier: Apache-2.0
#include "transfer/os/uring.hpp"

#ifdef LEHR_HAVE_URING
#include <liburing.h>
#endif

#include <algorithm>
#include <cerrno>
#include <optional>
#include <vector>

#include "transfer/os/event_fd.hpp"

namespace lehr::transfer {

#ifdef LEHR_HAVE_URING
namespace {

constexpr Bytes kMaxRegisteredBuffer = kGiB;
/// O_DIRECT accepts only whole blocks, so the rest of a short request starts at a block.
constexpr std::uint32_t kBlock = 4096;
constexpr unsigned kMaxRetries = 64;

struct InFlight {
  RingRequest request;
  std::uint32_t done = 0;
  std::uint32_t asked = 0;
  unsigned retries = 0;
};

}  // namespace

struct Uring::State {
  io_uring ring{};
  std::vector<int> files;
  std::vector<std::span<std::byte>> buffers;
  std::optional<EventFd> event;
  std::vector<InFlight> requests;
  std::vector<unsigned> free_requests;
  std::vector<unsigned> resubmit;  ///< short or interrupted requests without an entry yet

  ~State() {
    drain();
    if (!buffers.empty()) io_uring_unregister_buffers(&ring);
    if (!files.empty()) io_uring_unregister_files(&ring);
    io_uring_queue_exit(&ring);
  }

  void drain() {
    // The kernel may still write into the callers' buffers: leave only after every completion.
    while (free_requests.size() + resubmit.size() < requests.size()) {
      io_uring_submit(&ring);
      io_uring_cqe* cqe = nullptr;
      const int rc = io_uring_wait_cqe(&ring, &cqe);
      if (rc == -EINTR || rc == -EAGAIN) continue;
      if (rc < 0) return;
      free_requests.push_back(static_cast<unsigned>(io_uring_cqe_get_data64(cqe)));
      io_uring_cqe_seen(&ring, cqe);
    }
  }

  int buffer_index(const std::byte* data, std::uint32_t bytes) const {
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const auto& b = buffers[i];
      if (data >= b.data() && data + bytes <= b.data() + b.size()) return static_cast<int>(i);
    }
    return -1;
  }

  int file_index(int fd) const {
    const auto found = std::find(files.begin(), files.end(), fd);
    return found == files.end() ? -1 : static_cast<int>(found - files.begin());
  }

  bool prepare(unsigned index) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring);
    if (sqe == nullptr) return false;
    InFlight& f = requests[index];
    const RingRequest& r = f.request;
    f.asked = r.bytes - f.done;
    if (r.first_bytes != 0 && f.done == 0) f.asked = std::min(f.asked, r.first_bytes);
    const int file = file_index(r.fd);
    const int target = file >= 0 ? file : r.fd;
    const int buffer = buffer_index(r.data, r.bytes);
    std::byte* data = r.data + f.done;
    const std::uint64_t offset = r.offset + f.done;
    if (buffer >= 0 && r.write) {
      io_uring_prep_write_fixed(sqe, target, data, f.asked, offset, buffer);
    } else if (buffer >= 0) {
      io_uring_prep_read_fixed(sqe, target, data, f.asked, offset, buffer);
    } else if (r.write) {
      io_uring_prep_write(sqe, target, data, f.asked, offset);
    } else {
      io_uring_prep_read(sqe, target, data, f.asked, offset);
    }
    if (file >= 0) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(sqe, index);
    return true;
  }

  void again(unsigned index) {
    if (!prepare(index)) resubmit.push_back(index);
  }

  /// Whether the request is over, with its completion in `out`.
  bool finish(unsigned index, int result, RingCompletion& out) {
    InFlight& f = requests[index];
    const std::uint32_t wanted = f.request.bytes;
    if (result == -EINTR || result == -EAGAIN) {
      if (++f.retries <= kMaxRetries) {
        again(index);
        return false;
      }
    }
    if (result < 0) {
      out = {f.request.tag, f.done, -result};
    } else {
      const std::uint32_t reached = f.done + static_cast<std::uint32_t>(result);
      if (reached < wanted && result > 0) {
        const std::uint32_t whole_blocks = reached / kBlock * kBlock;
        // Without a whole block more, the same request would come back for ever: the file ends
        // here.
        if (whole_blocks > f.done) {
          f.done = whole_blocks;
          again(index);
          return false;
        }
      }
      out = {f.request.tag, reached, 0};
    }
    free_requests.push_back(index);
    return true;
  }
};

Result<Uring> Uring::create(unsigned depth) {
  if (depth == 0 || depth > 4096) return invalid("io_uring depth must be 1 to 4096");
  auto ring = std::make_unique<io_uring>();
  const int rc = io_uring_queue_init(depth, ring.get(), 0);
  if (rc < 0) {
    return unsupported("io_uring is refused here: " + std::generic_category().message(-rc));
  }
  auto state = std::make_unique<State>();
  state->ring = *ring;
  state->requests.resize(depth);
  for (unsigned i = depth; i-- > 0;) state->free_requests.push_back(i);
  LEHR_ASSIGN(state->event, EventFd::create());
  const int registered = io_uring_register_eventfd(&state->ring, state->event->get());
  if (registered < 0) return os_error("registering an eventfd with io_uring", -registered);
  return Uring(std::move(state));
}

Status Uring::register_files(std::span<const int> fds) {
  const int rc =
      io_uring_register_files(&state_->ring, fds.data(), static_cast<unsigned>(fds.size()));
  if (rc < 0) return os_error("registering files with io_uring", -rc);
  state_->files.assign(fds.begin(), fds.end());
  return {};
}

Status Uring::register_buffers(std::span<const std::span<std::byte>> regions) {
  std::vector<std::span<std::byte>> pieces;
  std::vector<iovec> vectors;
  for (auto region : regions) {
    while (!region.empty()) {
      const auto piece = region.first(std::min<std::size_t>(region.size(), kMaxRegisteredBuffer));
      region = region.subspan(piece.size());
      pieces.push_back(piece);
      vectors.push_back({piece.data(), piece.size()});
    }
  }
  const int rc = io_uring_register_buffers(&state_->ring, vectors.data(),
                                           static_cast<unsigned>(vectors.size()));
  if (rc < 0) return os_error("registering buffers with io_uring", -rc);
  state_->buffers = std::move(pieces);
  return {};
}

int Uring::event_fd() const { return state_->event->get(); }

bool Uring::start(const RingRequest& request) {
  State& s = *state_;
  if (s.free_requests.empty()) return false;
  const unsigned index = s.free_requests.back();
  s.requests[index] = {request, 0, 0, 0};
  if (!s.prepare(index)) return false;
  s.free_requests.pop_back();
  return true;
}

Status Uring::submit() {
  State& s = *state_;
  while (!s.resubmit.empty() && s.prepare(s.resubmit.back())) s.resubmit.pop_back();
  if (io_uring_sq_ready(&s.ring) == 0) return {};
  const int rc = io_uring_submit(&s.ring);
  // Busy means that completions must be reaped first; the entries stay queued for the next call.
  if (rc < 0 && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY) {
    return os_error("submitting to io_uring", -rc);
  }
  return {};
}

std::size_t Uring::reap(std::span<RingCompletion> out) {
  State& s = *state_;
  s.event->clear();
  std::size_t count = 0;
  io_uring_cqe* cqe = nullptr;
  while (count < out.size() && io_uring_peek_cqe(&s.ring, &cqe) == 0) {
    const auto index = static_cast<unsigned>(io_uring_cqe_get_data64(cqe));
    const int result = cqe->res;
    io_uring_cqe_seen(&s.ring, cqe);
    if (s.finish(index, result, out[count])) ++count;
  }
  // Entries that did not fit into `out` must wake the next waiter too.
  if (io_uring_cq_ready(&s.ring) != 0) s.event->signal();
  return count;
}

unsigned Uring::in_flight() const {
  return static_cast<unsigned>(state_->requests.size() - state_->free_requests.size());
}

#else

struct Uring::State {};

Result<Uring> Uring::create(unsigned) { return unsupported("this build has no liburing"); }
Status Uring::register_files(std::span<const int>) { return unsupported("no liburing"); }
Status Uring::register_buffers(std::span<const std::span<std::byte>>) {
  return unsupported("no liburing");
}
int Uring::event_fd() const { return -1; }
bool Uring::start(const RingRequest&) { return false; }
Status Uring::submit() { return unsupported("no liburing"); }
std::size_t Uring::reap(std::span<RingCompletion>) { return 0; }
unsigned Uring::in_flight() const { return 0; }

#endif

Uring::Uring(std::unique_ptr<State> state) : state_(std::move(state)) {}
Uring::Uring(Uring&&) noexcept = default;
Uring& Uring::operator=(Uring&&) noexcept = default;
Uring::~Uring() = default;

}  // namespace lehr::transfer
