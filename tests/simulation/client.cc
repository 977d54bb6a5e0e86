#include "tests/simulation/client.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <utility>

#include "platform/base/sealed_memory.h"
#include "tests/simulation/driver.h"
#include "tests/simulation/pod.h"

namespace gpushm::simulation {

using client::Call;
using client::SessionLock;
using protocol::Kind;

namespace {

// Of virtual time. Whoever waits longer waits for ever.
constexpr int64_t kPatienceMs = 60'000;
constexpr uint64_t kUnit = 2 << 20;

}  // namespace

Client::Client(World* world, Pod* pod, std::string container)
    : world_(world), pod_(pod), container_(std::move(container)) {
  process_ = world_->Start(Concat("client ", pod_->NextClientNumber()), [this] { Main(); });
}

void Client::Main() {
  session_ = new client::Session({.socket_path = pod_->SocketOf(container_)}, this);
  while (!pod_->over()) {
    while (pod_->paused() && !pod_->over()) {
      waits_ = true;
      world_->Idle(kForever);
    }
    waits_ = false;
    if (pod_->over()) break;
    world_->Sleep(static_cast<int64_t>(world_->Pick(static_cast<uint64_t>(5 * kMs))));
    Do();
  }
  // A process that ends without a word. Half of them hang up first.
  if (world_->Chance(2)) delete session_;
}

void Client::Do() {
  switch (world_->Pick(22)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
      return Attach();
    case 5:
    case 6:
      return Create();
    case 7:
    case 8:
      return Replace();
    case 9:
    case 10:
      return Publish();
    case 11:
    case 12:
    case 13:
      return Detach();
    case 14:
      return Delete();
    case 15:
      return Offer();
    case 16:
      return MakePage();
    case 17:
      return Claim();
    case 18:
      return world_->Chance(4) ? SayReason() : SayContent();
    case 19:
      return Describe();
    case 20:
      return List();
    default: {
      const auto lock = session_->Lock(Deadline::AfterMs(kPatienceMs));
      if (lock && world_->Chance(3)) session_->Drop(*lock);
    }
  }
}

// ---- requests

template <typename Reply, typename Request>
Result<Reply> Client::Ask(Kind kind, const Request& request, std::vector<UniqueFd>* received,
                          bool repeatable, uint64_t serial, std::span<const int> descriptors) {
  const Deadline deadline = Deadline::AfterMs(kPatienceMs);
  auto lock = session_->Lock(deadline);
  if (!lock) return std::unexpected(lock.error());
  Call call;
  call.loss = repeatable ? Call::Loss::kRepeatable : Call::Loss::kOnce;
  call.serial = serial;
  call.received = received;
  call.descriptors = descriptors;
  call.grants_lease = received != nullptr && kind != Kind::kHello;
  Result<Reply> reply = session_->Ask<Reply>(*lock, kind, request, deadline, call);
  NotePeer(*lock);
  if (!reply) {
    pod_->CountFailure();
    Check(kind, reply.error());
  }
  return reply;
}

void Client::Check(Kind kind, const Status& status) {
  constexpr std::array kAllowed = {
      Code::kNotFound,  Code::kLoading,       Code::kDenied,          Code::kBusy,
      Code::kExhausted, Code::kAlreadyExists, Code::kInvalidArgument, Code::kUnavailable,
      Code::kContended, Code::kPeerDied,      Code::kDeviceLost,      Code::kUnsupported,
      Code::kStale};
  if (std::ranges::find(kAllowed, status.code()) != kAllowed.end()) return;
  // What the ledger says of a buffer whose loader is gone.
  if (status.code() == Code::kSystem && status.what().starts_with("loading ")) return;
  world_->Fail(Concat("(6) ", process_->name, ", request of kind ", static_cast<int>(kind), ": ",
                      status.ToString()));
}

void Client::Take(const std::string& name, uint64_t lease, uint64_t generation, uint32_t access,
                  std::vector<UniqueFd>* received, bool unpublished) {
  pod_->OnGeneration(generation, received->empty() ? -1 : received->front().get());
  if (lease == 0) return;
  pod_->CountGrant();
  Held held{.name = name,
            .generation = generation,
            .access = access,
            .epoch = epoch_,
            .unpublished = unpublished,
            .sure = !pod_->IsForgiven(epoch_)};
  if (!received->empty()) held.memory = received->front().Release();
  if (!held_.emplace(lease, held).second) {
    world_->Fail(Concat("(3) lease ", lease, " was granted twice to ", process_->name));
  }
}

std::string Client::PickName() {
  constexpr std::array kNames = {"weights", "frames", "ready", "n0", "n1", "n2", "n3", "p0", "p1"};
  return kNames[world_->Pick(kNames.size())];
}

uint64_t Client::PickLease(bool writes) {
  std::vector<uint64_t> leases;
  for (const auto& [id, held] : held_) {
    if (!held.leaving && (!writes || held.access == 2)) leases.push_back(id);
  }
  return leases.empty() ? 0 : leases[world_->Pick(leases.size())];
}

void Client::Forget(uint64_t lease) {
  const auto found = held_.find(lease);
  if (found == held_.end()) return;
  const UniqueFd closed(found->second.memory);
  held_.erase(found);
}

void Client::Attach() {
  protocol::AttachRequest request{};
  const std::string name = PickName();
  request.name = protocol::ToNameField(name);
  request.access = world_->Chance(2) ? 2 : 1;
  // While no broker runs, the library reads the registry of the last one.
  if (const uint64_t now = pod_->CurrentOf(name); now != 0) seen_[name] = now;
  request.generation = std::max<uint64_t>(seen_[name], 1);
  request.gpu_uuid = pod_->gpu_bytes();
  std::vector<UniqueFd> received;
  const auto reply = Ask<protocol::AttachReply>(Kind::kAttach, request, &received);
  if (!reply) return;
  Take(name, reply->lease_id, request.generation, request.access, &received, /*unpublished=*/false);
}

void Client::Create() {
  protocol::CreateRequest request{};
  const std::string name = Concat("n", world_->Pick(4));
  request.name = protocol::ToNameField(name);
  request.size_bytes = 1 + world_->Pick(2 * kUnit);
  const bool attach = !world_->Chance(3);
  const bool unpublished = attach && world_->Chance(2);
  request.flags = (attach ? protocol::kFlagAttach : 0) |
                  (unpublished ? protocol::kFlagUnpublished : 0) |
                  (world_->Chance(2) ? protocol::kFlagWritersAll : 0) |
                  (world_->Chance(2) ? protocol::kFlagOneWriter : 0) |
                  (attach && world_->Chance(3) ? protocol::kFlagUntilUnused : 0);
  request.on_writer_exit = static_cast<uint32_t>(world_->Pick(3));
  std::vector<UniqueFd> received;
  const auto reply = Ask<protocol::MakeReply>(Kind::kCreate, request, &received);
  if (reply) Take(name, reply->lease_id, reply->generation, 2, &received, unpublished);
}

void Client::Replace() {
  protocol::ReplaceRequest request{};
  const std::string name = world_->Chance(2) ? "weights" : Concat("n", world_->Pick(4));
  request.name = protocol::ToNameField(name);
  const bool attach = !world_->Chance(3);
  const bool unpublished = attach && world_->Chance(2);
  request.flags =
      (attach ? protocol::kFlagAttach : 0) | (unpublished ? protocol::kFlagUnpublished : 0);
  std::vector<UniqueFd> received;
  const auto reply = Ask<protocol::MakeReply>(Kind::kReplace, request, &received);
  if (reply) Take(name, reply->lease_id, reply->generation, 2, &received, unpublished);
}

void Client::Publish() {
  const auto found = std::ranges::find_if(
      held_, [](const auto& entry) { return entry.second.unpublished && !entry.second.leaving; });
  if (found == held_.end()) return;
  const uint64_t id = found->first;
  const auto reply = Ask<protocol::EmptyReply>(Kind::kPublish, protocol::PublishRequest{id},
                                               nullptr, false, serial_);
  const auto still = held_.find(id);  // A new connection may have ended it.
  if (reply && still != held_.end()) still->second.unpublished = false;
}

void Client::Detach() {
  uint64_t lease = PickLease();
  for (const auto& [id, held] : held_) lease = held.leaving ? id : lease;
  if (lease == 0) return;
  Held& held = held_.at(lease);
  held.leaving = true;
  if (held.cell != nullptr) {
    sync::EndCell(*held.cell, lease, sync::CellState::kLeft);
    held.cell = nullptr;
  }
  const auto reply = Ask<protocol::EmptyReply>(Kind::kDetach, protocol::DetachRequest{lease},
                                               nullptr, true, serial_);
  // Not found: the reply to the first attempt was lost.
  if (reply || reply.error().code() == Code::kNotFound) Forget(lease);
}

void Client::Delete() {
  (void)Ask<protocol::EmptyReply>(Kind::kDelete,
                                  protocol::DeleteRequest{protocol::ToNameField(PickName())});
}

void Client::Offer() {
  protocol::OfferRequest request{};
  request.name = protocol::ToNameField(Concat("n", world_->Pick(4)));
  request.size_bytes = request.mapped_bytes = kUnit;
  request.transport = static_cast<uint32_t>(protocol::Transport::kVmm);
  request.gpu_uuid = pod_->gpu_bytes();
  request.on_writer_exit = static_cast<uint32_t>(world_->Pick(3));
  const UniqueFd memory(MakeMemory(kUnit));
  const std::array descriptors = {memory.get()};
  const auto reply =
      Ask<protocol::OfferReply>(Kind::kOffer, request, nullptr, false, 0, descriptors);
  if (reply) pod_->OnGeneration(reply->generation, memory.get());
}

void Client::MakePage() {
  protocol::MakePageRequest request{};
  const std::string name = Concat("p", world_->Pick(2));
  request.name = protocol::ToNameField(name);
  request.size_bytes = sync::BytesFor(/*cells=*/2, 0);
  request.flags = protocol::kFlagWritersAll | (world_->Chance(2) ? protocol::kFlagUntilUnused : 0);
  request.after_generation = pod_->CurrentOf(name);
  std::vector<UniqueFd> received;
  const auto reply = Ask<protocol::MakeReply>(Kind::kMakePage, request, &received);
  if (!reply || received.empty()) return;
  void* const address = mmap(nullptr, reply->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                             received.front().get(), 0);
  Take(name, reply->lease_id, reply->generation, 2, &received, /*unpublished=*/true);
  const sync::Page page =
      sync::Page::Make(address, reply->mapped_bytes, sync::Kind::kSignal, 2, 0, {});
  const auto held = held_.find(reply->lease_id);
  if (held == held_.end() || !sync::Claim(page.cell(0), held->first, false)) return;
  held->second.cell = &page.cell(0);
  pod_->OnCell(this, held->first, &page.cell(0));
}

// Becomes the owner of a cell of a page that it has for writing.
void Client::Claim() {
  for (auto& [id, held] : held_) {
    if (held.access != 2 || held.cell != nullptr || held.leaving || held.memory < 0) continue;
    if (held.name != "ready" && !held.name.starts_with("p")) continue;
    struct stat file{};
    fstat(held.memory, &file);
    const auto bytes = static_cast<size_t>(file.st_size);
    void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, held.memory, 0);
    const auto page = sync::Page::Look(address, bytes);
    if (!page) return;  // Its maker was killed before it wrote the header.
    sync::Cell& cell = page->cell(page->cells() - 1);
    if (!sync::Claim(cell, id, /*again=*/true)) return;
    held.cell = &cell;
    cell.value.store(1 + world_->Pick(1000));
    pod_->OnCell(this, id, &cell);
    return;
  }
}

void Client::SayContent() {
  const uint64_t lease = PickLease(/*writes=*/true);
  if (lease == 0) return;
  (void)Ask<protocol::EmptyReply>(Kind::kContent,
                                  protocol::ContentRequest{.lease_id = lease,
                                                           .loaded_bytes = world_->Pick(kUnit / 2),
                                                           .complete = world_->Chance(2) ? 1U : 0U,
                                                           .reserved = 0},
                                  nullptr, false, serial_);
}

void Client::SayReason() {
  (void)Ask<protocol::EmptyReply>(
      Kind::kReason,
      protocol::ReasonRequest{.name = protocol::ToNameField(PickName()),
                              .code = static_cast<uint32_t>(Code::kNotFound),
                              .failed = world_->Chance(2) ? 1U : 0U,
                              .text = protocol::ToLineField("no file d.bin")},
      nullptr, /*repeatable=*/true);
}

void Client::Describe() {
  const uint64_t lease = PickLease(/*writes=*/true);
  if (lease == 0) return;
  const std::string text = Concat("what ", process_->name, " says");
  const auto sealed = SealBytes("description", std::as_bytes(std::span(text.data(), text.size())));
  if (!sealed) return;
  const std::array descriptors = {sealed->get()};
  (void)Ask<protocol::EmptyReply>(Kind::kDescribe, protocol::DescribeRequest{lease, text.size()},
                                  nullptr, false, serial_, descriptors);
}

void Client::List() {
  const Deadline deadline = Deadline::AfterMs(kPatienceMs);
  const auto lock = session_->Lock(deadline);
  if (!lock || !session_->connected(*lock)) return;
  const auto leases = AskLeases(*lock, deadline);
  if (!leases) return;
  for (const auto& [id, held] : held_) {
    if (!held.sure || held.leaving || leases->contains(id)) continue;
    world_->Fail(Concat("(1) ", process_->name, " does not find its lease ", id, " on ", held.name,
                        " among the holders"));
  }
}

// ---- connections

void Client::NotePeer(const SessionLock& lock) {
  const client::Peer& peer = session_->peer(lock);
  id_ = peer.client_id;
  ids_.insert(id_);
  epoch_ = peer.epoch;
  serial_ = peer.serial;
}

std::optional<std::set<uint64_t>> Client::AskLeases(const SessionLock& lock,
                                                    const Deadline& deadline) {
  std::set<uint64_t> leases;
  protocol::HoldersRequest request{};
  for (;;) {
    const auto reply =
        session_->AskHere<protocol::HoldersReply>(lock, Kind::kHolders, request, deadline);
    if (!reply) {
      Check(Kind::kHolders, reply.error());
      return std::nullopt;
    }
    for (uint32_t i = 0; i < reply->count; ++i) {
      request.after_lease_id = reply->entries[i].lease_id;
      if (reply->entries[i].client_id == session_->peer(lock).client_id) {
        leases.insert(request.after_lease_id);
      }
    }
    if (reply->count < protocol::kHoldersPerReply) return leases;
  }
}

// As the library does it: what the broker has and this process does not know is given back.
void Client::Reconnected(const SessionLock& lock, const client::Return& how,
                         const Deadline& deadline) {
  NotePeer(lock);
  if (!how.resumed) {
    for (const auto& [id, held] : held_) {
      if (!held.sure || held.leaving) continue;
      world_->Fail(Concat("(1) ", process_->name, " was not resumed, and lost its lease ", id,
                          " on ", held.name));
    }
    while (!held_.empty()) Forget(held_.begin()->first);
    return;
  }
  uint32_t leases = 0;
  uint64_t sum = 0;
  for (const auto& [id, held] : held_) {
    ++leases;
    sum += id;
  }
  if (how.leases == leases && how.lease_sum == sum) return;
  const auto granted = AskLeases(lock, deadline);
  if (!granted) return session_->Drop(lock);
  std::vector<uint64_t> lost;
  for (const auto& [id, held] : held_) {
    if (granted->contains(id)) continue;
    lost.push_back(id);
    if (!held.sure || held.leaving) continue;
    world_->Fail(
        Concat("(1) ", process_->name, " was resumed without its lease ", id, " on ", held.name));
  }
  for (const uint64_t id : *granted) {
    if (held_.contains(id)) continue;
    const auto ended = session_->AskHere<protocol::EmptyReply>(
        lock, Kind::kDetach, protocol::DetachRequest{id}, deadline);
    if (!ended) Check(Kind::kDetach, ended.error());
  }
  for (const uint64_t id : lost) Forget(id);
}

}  // namespace gpushm::simulation
