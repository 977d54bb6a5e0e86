// For tests: a hand-made plugin at the other end of a broker's link.
//
// Threads: `talk` runs on a thread of the object's.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "contract/protocol/channel.h"
#include "contract/protocol/link.h"
#include "platform/base/unique_fd.h"
#include "sidecar/broker/testing/broker_process.h"
#include "sidecar/broker/testing/raw_client.h"

namespace gpushm::broker::testing {

// The UUID of the simulated GPU 0, from a broker that has no plugin.
inline std::array<uint8_t, 16> SomeGpu() {
  const TempFolder folder;
  const BrokerProcess broker(folder.path(), TwoContainers());
  return RawClient(broker.Socket("app")).Hello()->gpu_uuid;
}

// Serves one connection after the other. The test decides what it sends after the greeting.
class Plugin {
 public:
  using Talk = std::function<void(int socket, int connection)>;
  Plugin(const std::string& folder, Talk talk)
      : listener_(*protocol::Listen(folder + "/" + protocol::kLinkSocketName, 0666)),
        thread_([this, talk = std::move(talk)] { Run(talk); }) {}
  ~Plugin() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }

  template <typename Body>
  static void Say(int socket, protocol::LinkKind kind, const Body& body,
                  std::span<const int> descriptors = {}) {
    protocol::Buffer bytes;
    const size_t size = protocol::EncodeLink(kind, body, &bytes);
    [[maybe_unused]] const auto sent =
        protocol::Send(socket, {bytes.data(), size}, descriptors, Deadline::AfterMs(kSoonMs));
  }
  static protocol::LinkWelcome Welcome(const std::array<uint8_t, 16>& gpu) {
    protocol::LinkWelcome welcome{};
    welcome.version = protocol::kLinkMaxVersion;
    welcome.gpu_uuid = gpu;
    welcome.pool_bytes = uint64_t{256} << 20;
    welcome.allocation = protocol::ToNameField("m0000");
    return welcome;
  }

 private:
  void Run(const Talk& talk) {
    for (int connection = 1;; ++connection) {
      pollfd poller{.fd = listener_.get(), .events = POLLIN, .revents = 0};
      poll(&poller, 1, -1);
      const UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!socket) return;
      protocol::Message hello;
      if (!protocol::Receive(socket.get(), &hello, Deadline::AfterMs(kSoonMs))) continue;
      talk(socket.get(), connection);
    }
  }
  UniqueFd listener_;
  std::thread thread_;
};

}  // namespace gpushm::broker::testing
