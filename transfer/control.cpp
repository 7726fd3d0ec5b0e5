// SPDX-License-Identifier: Apache-2.0
#include "transfer/control.hpp"

#include <cerrno>
#include <chrono>
#include <deque>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <unistd.h>

#include "transfer/os/fd.hpp"

namespace lehr::transfer {

namespace asio = boost::asio;

struct ControlLoop::State {
  explicit State(TransferEngine& e) : engine(e), timer(io) {}

  TransferEngine& engine;
  asio::io_context io{1};
  std::deque<asio::posix::stream_descriptor> descriptors;
  asio::steady_timer timer;
  std::chrono::nanoseconds tick{};
  std::jthread thread;

  void watch(asio::posix::stream_descriptor& descriptor) {
    descriptor.async_wait(asio::posix::descriptor_base::wait_read,
                          [this, &descriptor](const boost::system::error_code& error) {
                            if (error) return;
                            engine.poll({});
                            watch(descriptor);
                          });
  }

  void arm_timer() {
    timer.expires_after(tick);
    timer.async_wait([this](const boost::system::error_code& error) {
      if (error) return;
      engine.poll({});
      arm_timer();
    });
  }
};

ControlLoop::ControlLoop(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<ControlLoop>> ControlLoop::start(TransferEngine& engine,
                                                        std::int64_t tick_ns) {
  auto state = std::make_unique<State>(engine);
  state->tick = std::chrono::nanoseconds(tick_ns);
  for (const int fd : engine.event_fds()) {
    // A duplicate, because Asio closes what it is given.
    const int own = ::dup(fd);
    if (own < 0) return os_error("duplicating an event descriptor", errno);
    state->descriptors.emplace_back(state->io, own);
    state->watch(state->descriptors.back());
  }
  state->arm_timer();
  state->thread = std::jthread([s = state.get()] { s->io.run(); });
  engine.set_driven(true);
  return std::unique_ptr<ControlLoop>(new ControlLoop(std::move(state)));
}

ControlLoop::~ControlLoop() {
  state_->engine.set_driven(false);
  state_->io.stop();
  state_->thread.join();
}

}  // namespace lehr::transfer
