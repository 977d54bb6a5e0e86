// For tests: speaks the protocol by hand, correctly or not, without library and driver.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "contract/protocol/channel.h"
#include "contract/protocol/messages.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "sidecar/broker/testing/broker_process.h"

namespace gpushm::broker::testing {

class RawClient {
 public:
  // Connects, without a Hello. It is not connected if nobody listens.
  explicit RawClient(const std::string& socket_path);

  int socket() const { return socket_.get(); }
  bool connected() const { return socket_.valid(); }
  void Close() { socket_.Reset(); }

  // Sends a request and returns its reply. An error reply is returned as its Status.
  template <typename Reply, typename Body>
  Result<Reply> Call(protocol::Kind kind, const Body& body, std::span<const int> fds = {}) {
    // A refused client may find the connection closed, with the reason already in the socket.
    if (auto sent = Post(kind, body, fds);
        !sent && (sent.error().code() != Code::kUnavailable || !connected())) {
      return std::unexpected(sent.error());
    }
    return Await<Reply>();
  }
  // Sends only the request.
  template <typename Body>
  Result<void> Post(protocol::Kind kind, const Body& body, std::span<const int> fds = {}) {
    protocol::Buffer buffer;
    const size_t size = protocol::EncodeRequest(kind, ++request_, body, &buffer);
    return protocol::Send(socket_.get(), {buffer.data(), size}, fds, Deadline::AfterMs(kSoonMs));
  }
  // Returns the next reply, whatever it answers.
  template <typename Reply>
  Result<Reply> Await() {
    if (auto r = protocol::Receive(socket_.get(), &message_, Deadline::AfterMs(kSoonMs)); !r) {
      return std::unexpected(r.error());
    }
    const auto header = protocol::ParseHeader(message_.span());
    if (!header) return std::unexpected(header.error());
    if (header->status == 0) return protocol::Parse<Reply>(message_.span());
    const auto error = protocol::ParseError(message_.span());
    return std::unexpected(error ? *error : error.error());
  }
  // Descriptors from the last reply.
  std::vector<UniqueFd>& descriptors() { return message_.descriptors; }

  // As a new client, or as one that existed before.
  Result<protocol::HelloReply> Hello(uint64_t resume_client_id = 0,
                                     const protocol::ResumeToken& token = {});
  Result<protocol::AttachReply> Attach(const std::string& name, uint32_t access = 1,
                                       uint64_t generation = 0);
  Result<protocol::MakeReply> Create(const std::string& name, uint64_t size_bytes,
                                     uint32_t flags = 0, uint32_t on_writer_exit = 0);
  Result<protocol::EmptyReply> Detach(uint64_t lease_id);
  Result<protocol::EmptyReply> Delete(const std::string& name);
  Result<protocol::BrokerInfoReply> Info();
  Result<protocol::EmptyReply> Announce();
  // Announces a descriptor, then offers `fd` as VMM memory.
  Result<protocol::OfferReply> Offer(const std::string& name, int fd);
  // Whether the broker closes the connection before the deadline. Reads all replies until then.
  bool IsDisconnected(int64_t wait_ms = kSoonMs);

 private:
  UniqueFd socket_;
  protocol::Message message_;
  uint64_t request_ = 0;
  std::array<uint8_t, 16> gpu_uuid_{};
};

// Sends bytes with any number of descriptors, as no correct client does. Returns the errno, or 0.
int SendRaw(int socket, std::span<const std::byte> bytes, std::span<const int> fds);

// A process that does `work` with its own client and then waits to be killed. Made by fork().
class ClientProcess {
 public:
  // `work` returns 0 on success; the constructor waits for that.
  explicit ClientProcess(const std::function<int()>& work);
  ~ClientProcess();
  ClientProcess(ClientProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), result_(other.result_) {}
  ClientProcess& operator=(ClientProcess&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(result_, other.result_);
    return *this;
  }

  int result() const { return result_; }
  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  void Kill();  // Also reaps it.

 private:
  pid_t pid_ = -1;
  int result_ = -1;
};

}  // namespace gpushm::broker::testing
