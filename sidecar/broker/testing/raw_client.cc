#include "sidecar/broker/testing/raw_client.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace gpushm::broker::testing {

using protocol::Kind;

RawClient::RawClient(const std::string& socket_path) {
  if (auto connected = protocol::Connect(socket_path)) socket_ = std::move(*connected);
}

Result<protocol::HelloReply> RawClient::Hello(uint64_t resume_client_id,
                                              const protocol::ResumeToken& token) {
  protocol::HelloRequest body{};
  body.min_version = protocol::kMinVersion;
  body.max_version = protocol::kMaxVersion;
  body.library = protocol::ToNameField("raw");
  body.resume_client_id = resume_client_id;
  body.resume_token = token;
  const auto reply = Call<protocol::HelloReply>(Kind::kHello, body);
  if (reply) gpu_uuid_ = reply->gpu_uuid;
  return reply;
}

Result<protocol::AttachReply> RawClient::Attach(const std::string& name, uint32_t access,
                                                uint64_t generation) {
  return Call<protocol::AttachReply>(Kind::kAttach,
                                     protocol::AttachRequest{.name = protocol::ToNameField(name),
                                                             .access = access,
                                                             .peer_way = 0,
                                                             .generation = generation,
                                                             .gpu_uuid = gpu_uuid_});
}

Result<protocol::MakeReply> RawClient::Create(const std::string& name, uint64_t size_bytes,
                                              uint32_t flags, uint32_t on_writer_exit) {
  if (auto posted = Post(Kind::kCreate, protocol::CreateRequest{.name = protocol::ToNameField(name),
                                                                .size_bytes = size_bytes,
                                                                .flags = flags,
                                                                .on_writer_exit = on_writer_exit});
      !posted) {
    return std::unexpected(posted.error());
  }
  return Await<protocol::MakeReply>();
}

Result<protocol::EmptyReply> RawClient::Detach(uint64_t lease_id) {
  return Call<protocol::EmptyReply>(Kind::kDetach, protocol::DetachRequest{lease_id});
}

Result<protocol::EmptyReply> RawClient::Delete(const std::string& name) {
  return Call<protocol::EmptyReply>(Kind::kDelete,
                                    protocol::DeleteRequest{protocol::ToNameField(name)});
}

Result<protocol::BrokerInfoReply> RawClient::Info() {
  return Call<protocol::BrokerInfoReply>(Kind::kBrokerInfo, protocol::BrokerInfoRequest{0});
}

Result<protocol::EmptyReply> RawClient::Announce() {
  return Call<protocol::EmptyReply>(Kind::kAnnounceDescriptor,
                                    protocol::AnnounceDescriptorRequest{0});
}

Result<protocol::OfferReply> RawClient::Offer(const std::string& name, int fd) {
  if (auto announced = Announce(); !announced) return std::unexpected(announced.error());
  protocol::OfferRequest body{};
  body.name = protocol::ToNameField(name);
  body.size_bytes = body.mapped_bytes = 2 << 20;
  body.transport = 1;
  body.gpu_uuid = gpu_uuid_;
  return Call<protocol::OfferReply>(Kind::kOffer, body, {&fd, 1});
}

bool RawClient::IsDisconnected(int64_t wait_ms) {
  const Deadline deadline = Deadline::AfterMs(wait_ms);
  protocol::Message message;
  for (;;) {
    const auto received = protocol::Receive(socket_.get(), &message, deadline);
    if (!received) return received.error().code() == Code::kUnavailable;
  }
}

int SendRaw(int socket, std::span<const std::byte> bytes, std::span<const int> fds) {
  std::vector<char> control(CMSG_SPACE(fds.size_bytes()));
  iovec vector{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* const ancillary = CMSG_FIRSTHDR(&header);
    ancillary->cmsg_level = SOL_SOCKET;
    ancillary->cmsg_type = SCM_RIGHTS;
    ancillary->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(ancillary), fds.data(), fds.size_bytes());
  }
  return sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
}

ClientProcess::ClientProcess(const std::function<int()>& work) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) std::abort();
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int result = work();
    [[maybe_unused]] const ssize_t written = write(writer.get(), &result, sizeof result);
    for (;;) pause();
  }
  writer.Reset();
  pollfd poller{.fd = reader.get(), .events = POLLIN, .revents = 0};
  if (poll(&poller, 1, static_cast<int>(kSoonMs)) > 0 &&
      read(reader.get(), &result_, sizeof result_) != sizeof result_) {
    result_ = -1;
  }
}

ClientProcess::~ClientProcess() { Kill(); }

void ClientProcess::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

void ClientProcess::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace gpushm::broker::testing
