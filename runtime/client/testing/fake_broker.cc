#include "runtime/client/testing/fake_broker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace gpushm::client {
namespace {

using protocol::Kind;

template <typename T>
T Must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "fake broker: %s\n", result.error().ToString().c_str());
    std::abort();
  }
  return std::move(*result);
}

template <typename Body>
void Fill(const FakeRequest& request, const Body& body, FakeReply* reply) {
  protocol::Header header;
  std::memcpy(&header, request.message->bytes.data(), sizeof header);
  protocol::Buffer buffer;
  const size_t size = protocol::EncodeReply(request.kind, header.request_id, body, &buffer);
  reply->bytes.assign(buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(size));
}

void Refuse(const FakeRequest& request, Code code, const std::string& what, FakeReply* reply) {
  Fill(request, protocol::EmptyReply{}, reply);
  reply->Set(Status(code, what));
}

}  // namespace

void FakeReply::Set(const Status& status) {
  protocol::Buffer buffer;
  const size_t size =
      protocol::EncodeError(static_cast<Kind>(header()->kind & ~protocol::kReplyBit),
                            header()->request_id, status, &buffer);
  bytes.assign(buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(size));
  descriptors.clear();
}

FakeBroker::FakeBroker(const std::string& folder, uint64_t epoch, const GpuUuid& gpu,
                       const std::map<uint64_t, FakeLease>& inherited)
    : epoch_(epoch),
      gpu_(gpu),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      leases_(inherited),
      keeps_clients_(!inherited.empty()) {
  for (const auto& [id, lease] : inherited) {
    next_lease_ = std::max(next_lease_, id + 1);
    resumable_.insert(lease.client_id);
  }
  registry_ =
      std::make_unique<registry::RegistryWriter>(Must(registry::RegistryWriter::Create(64)));
  listener_ = Must(protocol::Listen(folder + "/" + protocol::kSocketName, 0666));
  thread_ = std::thread([this] { Run(); });
}

FakeBroker::~FakeBroker() {
  stop_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t woken = write(wake_.get(), &one, sizeof one);
  thread_.join();
}

void FakeBroker::SetTwist(Twist twist) {
  const std::lock_guard lock(mutex_);
  twist_ = std::move(twist);
}

void FakeBroker::Insert(const std::string& name, Buffer buffer) {
  const auto old = buffers_.find(name);
  if (old != buffers_.end()) {
    buffer.slot = old->second.slot;
    (void)registry_->Update(buffer.slot, buffer.record);
  } else {
    buffer.slot = Must(registry_->Insert(buffer.record));
  }
  buffers_.insert_or_assign(name, std::move(buffer));
}

void FakeBroker::Add(const std::string& name, uint64_t generation, uint64_t size_bytes,
                     const CudaApi* api, BufferState state) {
  const std::lock_guard lock(mutex_);
  api_ = api;
  Buffer buffer;
  buffer.record.name = registry::Name(name);
  buffer.record.generation = generation;
  buffer.record.size_bytes = size_bytes;
  buffer.record.mapped_bytes = RoundUp(size_bytes, uint64_t{2} << 20);
  buffer.record.gpu = gpu_.bytes;
  buffer.record.state = state;
  if (api != nullptr) {
    buffer.descriptor =
        Must(Must(DeviceMemory::Create(*api, 0, buffer.record.mapped_bytes)).Export());
  } else {
    buffer.descriptor.Reset(eventfd(0, EFD_CLOEXEC));  // Any descriptor, only to send one.
  }
  Insert(name, std::move(buffer));
}

void FakeBroker::AddCuIpc(const std::string& name, uint64_t generation, int32_t offerer_pid) {
  const std::lock_guard lock(mutex_);
  Buffer buffer;
  buffer.record.name = registry::Name(name);
  buffer.record.generation = generation;
  buffer.record.size_bytes = 4096;
  buffer.record.mapped_bytes = uint64_t{2} << 20;
  buffer.record.gpu = gpu_.bytes;
  buffer.record.transport = Transport::kCuIpc;
  buffer.offerer_pid = offerer_pid;
  Insert(name, std::move(buffer));
}

void FakeBroker::SetState(const std::string& name, BufferState state, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  Buffer& buffer = buffers_.at(name);
  registry::BufferRecord record = buffer.record;
  record.state = buffer.record.state = state;
  if (!reason.empty()) {
    record.flags |= static_cast<uint32_t>(Code::kNotFound) << registry::kRecordReasonShift;
  }
  (void)registry_->Update(buffer.slot, record, reason);
}

void FakeBroker::SetGpus(uint32_t count, uint32_t lost) {
  const std::lock_guard lock(mutex_);
  gpus_ = count;
  lost_gpus_ = lost;
  registry_->SetGpus(count);
  registry_->SetLostGpus(lost);
}

void FakeBroker::SetGpuOf(const std::string& name, uint32_t number) {
  const std::lock_guard lock(mutex_);
  Buffer& buffer = buffers_.at(name);
  buffer.record.gpu_number = number;
  (void)registry_->Update(buffer.slot, buffer.record);
}

void FakeBroker::SetGeneration(const std::string& name, uint64_t generation) {
  const std::lock_guard lock(mutex_);
  Buffer& buffer = buffers_.at(name);
  buffer.record.generation = generation;
  (void)registry_->Update(buffer.slot, buffer.record);
}

void FakeBroker::Remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  (void)registry_->Withdraw(buffers_.at(name).slot);
  buffers_.erase(name);
}

protocol::CounterValues FakeBroker::counted() const {
  const std::lock_guard lock(mutex_);
  protocol::CounterValues sum{};
  for (const auto& [client, page] : pages_) {
    protocol::CounterValues values{};
    protocol::ReadCounters(static_cast<protocol::CounterPage*>(page.mapping.address())->words,
                           &values);
    protocol::AddCounters(values, &sum);
  }
  return sum;
}

void FakeBroker::KeepClients() {
  const std::lock_guard lock(mutex_);
  keeps_clients_ = true;
}

std::map<uint64_t, FakeLease> FakeBroker::leases() const {
  const std::lock_guard lock(mutex_);
  return leases_;
}
size_t FakeBroker::requests(Kind kind) const {
  const std::lock_guard lock(mutex_);
  const auto found = requests_.find(kind);
  return found == requests_.end() ? 0 : found->second;
}
size_t FakeBroker::connections() const {
  const std::lock_guard lock(mutex_);
  return connections_;
}

void FakeBroker::Run() {
  std::vector<Connection> open;
  while (!stop_) {
    std::vector<pollfd> pollers;
    pollers.push_back({wake_.get(), POLLIN, 0});
    pollers.push_back({listener_.get(), POLLIN, 0});
    for (const Connection& c : open) pollers.push_back({c.socket.get(), POLLIN, 0});
    if (poll(pollers.data(), pollers.size(), -1) < 0) continue;
    for (size_t i = open.size(); i-- > 0;) {
      if (pollers[i + 2].revents == 0 || Serve(&open[i])) continue;
      const std::lock_guard lock(mutex_);
      if (keeps_clients_) {
        resumable_.insert(open[i].client_id);
      } else {
        std::erase_if(leases_,
                      [&](const auto& l) { return l.second.client_id == open[i].client_id; });
        pages_.erase(open[i].client_id);
      }
      open.erase(open.begin() + static_cast<ptrdiff_t>(i));
    }
    if ((pollers[1].revents & POLLIN) != 0) {
      UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) continue;
      const std::lock_guard lock(mutex_);
      open.push_back({std::move(socket), ++connections_, false, 0});
    }
  }
}

bool FakeBroker::Serve(Connection* connection) {
  protocol::Message message;
  const Result<bool> got = protocol::TryReceive(connection->socket.get(), &message);
  if (!got) return false;
  if (!*got) return true;
  const Result<protocol::Header> header = protocol::ParseHeader(message.span());
  if (!header) return false;
  const FakeRequest request{static_cast<Kind>(header->kind), &message, connection->number};
  FakeReply reply;
  const std::lock_guard lock(mutex_);
  ++requests_[request.kind];
  // A descriptor needs its announcement (messages.h, rule 4).
  if (!message.descriptors.empty() && !connection->announced && request.kind != Kind::kHello) {
    return false;
  }
  connection->announced = request.kind == Kind::kAnnounceDescriptor;
  Answer(request, connection, &reply);
  if (twist_) twist_(request, &reply);
  if (reply.hang_up) return false;
  if (reply.silent) return true;
  return protocol::Send(connection->socket.get(), reply.bytes, reply.descriptors,
                        Deadline::AfterMs(1000))
      .has_value();
}

void FakeBroker::Answer(const FakeRequest& request, Connection* connection, FakeReply* reply) {
  switch (request.kind) {
    case Kind::kHello:
      return AnswerHello(request, connection, reply);
    case Kind::kAttach:
      return AnswerAttach(request, connection, reply);
    case Kind::kCreate:
    case Kind::kReplace:
      return AnswerMake(request, connection, reply);
    case Kind::kDetach: {
      const auto body = protocol::Parse<protocol::DetachRequest>(request.message->span());
      if (!body || leases_.erase(body->lease_id) == 0) {
        return Refuse(request, Code::kNotFound, "no such lease", reply);
      }
      return Fill(request, protocol::EmptyReply{}, reply);
    }
    case Kind::kHolders: {
      const auto body = protocol::Parse<protocol::HoldersRequest>(request.message->span());
      protocol::HoldersReply holders{};
      for (auto l = leases_.upper_bound(body->after_lease_id);
           l != leases_.end() && holders.count < protocol::kHoldersPerReply; ++l) {
        protocol::HolderEntry& entry = holders.entries[holders.count++];
        entry.buffer = protocol::ToNameField(l->second.name);
        entry.container = protocol::ToNameField("decoder");
        entry.generation = l->second.generation;
        entry.client_id = l->second.client_id;
        entry.lease_id = l->first;
        entry.access = 1;
      }
      return Fill(request, holders, reply);
    }
    case Kind::kBrokerInfo: {
      protocol::BrokerInfoReply body{};
      body.container = protocol::ToNameField("decoder");
      body.epoch = epoch_;
      body.version = protocol::kMaxVersion;
      return Fill(request, body, reply);
    }
    case Kind::kGpus: {
      protocol::GpusReply body{};
      for (; body.count < gpus_; ++body.count) {
        body.entries[body.count].gpu_uuid = gpu_.bytes;
        body.entries[body.count].lost = lost_gpus_ >> body.count & 1;
      }
      return Fill(request, body, reply);
    }
    case Kind::kCounters:
      return AnswerCounters(request, connection, reply);
    case Kind::kOffer:
      offered_pid_ = protocol::Parse<protocol::OfferRequest>(request.message->span())->pid;
      return Fill(request, protocol::OfferReply{++next_generation_}, reply);
    default:
      return Fill(request, protocol::EmptyReply{}, reply);
  }
}

void FakeBroker::AnswerCounters(const FakeRequest& request, Connection* connection,
                                FakeReply* reply) {
  const uint64_t client = connection->client_id;
  constexpr uint64_t kBytes = sizeof(protocol::CounterPage);
  if (!pages_.contains(client)) {
    pages_.emplace(client, Must(MakeSealed("counters", kBytes, Writers::kAll)));
  }
  Fill(request, protocol::CountersReply{protocol::kCountersVersion, kBytes}, reply);
  reply->descriptors.push_back(pages_.at(client).fd.get());
}

void FakeBroker::AnswerHello(const FakeRequest& request, Connection* connection, FakeReply* reply) {
  const auto asked = protocol::Parse<protocol::HelloRequest>(request.message->span());
  protocol::HelloReply body{};
  body.version = protocol::kMaxVersion;
  body.epoch = epoch_;
  body.gpu_uuid = gpu_.bytes;
  body.container = protocol::ToNameField("decoder");
  // Every client of every broker gets a different number.
  connection->client_id = 1000 * epoch_ + connection->number;
  if (asked && resumable_.erase(asked->resume_client_id) > 0) {
    body.resumed = 1;
    connection->client_id = asked->resume_client_id;
    for (const auto& [id, lease] : leases_) {
      if (lease.client_id != connection->client_id) continue;
      ++body.leases;
      body.lease_sum += id;
    }
  }
  body.client_id = connection->client_id;
  body.token = {7};
  Fill(request, body, reply);
  reply->descriptors.push_back(registry_->fd());
}

uint64_t FakeBroker::Lease(const Connection& connection, const std::string& name,
                           uint64_t generation) {
  leases_[next_lease_] = {name, generation, connection.client_id};
  return next_lease_++;
}

void FakeBroker::AnswerAttach(const FakeRequest& request, Connection* connection,
                              FakeReply* reply) {
  const auto body = protocol::Parse<protocol::AttachRequest>(request.message->span());
  const std::string name(protocol::FromNameField(body->name));
  const auto found = buffers_.find(name);
  if (found == buffers_.end()) return Refuse(request, Code::kNotFound, "no buffer", reply);
  const Buffer& buffer = found->second;
  if (body->generation != 0 && body->generation != buffer.record.generation) {
    return Refuse(request, Code::kStale, "another generation", reply);
  }
  protocol::AttachReply grant{};
  grant.lease_id = Lease(*connection, name, buffer.record.generation);
  grant.offerer_pid = buffer.offerer_pid;
  Fill(request, grant, reply);
  if (buffer.descriptor) reply->descriptors.push_back(buffer.descriptor.get());
}

void FakeBroker::AnswerMake(const FakeRequest& request, Connection* connection, FakeReply* reply) {
  // The fields name, size and flags have the same offsets in create and replace.
  protocol::CreateRequest body;
  std::memcpy(&body, request.message->bytes.data() + sizeof(protocol::Header), sizeof body);
  const std::string name(protocol::FromNameField(body.name));
  Buffer buffer;
  buffer.record.name = registry::Name(name);
  buffer.record.generation = ++next_generation_;
  buffer.record.size_bytes = body.size_bytes;
  buffer.record.mapped_bytes = RoundUp(body.size_bytes, uint64_t{2} << 20);
  buffer.record.gpu = gpu_.bytes;
  protocol::MakeReply grant{};
  grant.generation = buffer.record.generation;
  grant.size_bytes = buffer.record.size_bytes;
  grant.mapped_bytes = buffer.record.mapped_bytes;
  grant.gpu_uuid = gpu_.bytes;
  if (api_ != nullptr) {
    buffer.descriptor =
        Must(Must(DeviceMemory::Create(*api_, 0, buffer.record.mapped_bytes)).Export());
  } else {
    buffer.descriptor.Reset(eventfd(0, EFD_CLOEXEC));
  }
  const bool attach = (body.flags & protocol::kFlagAttach) != 0;
  if (attach) grant.lease_id = Lease(*connection, name, grant.generation);
  Insert(name, std::move(buffer));
  Fill(request, grant, reply);
  if (attach) reply->descriptors.push_back(buffers_.at(name).descriptor.get());
}

}  // namespace gpushm::client
