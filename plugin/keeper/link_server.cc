#include "plugin/keeper/link_server.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "contract/limits.h"
#include "platform/base/sealed_memory.h"
#include "platform/daemon/descriptor.h"
#include "platform/daemon/fuse.h"
#include "platform/daemon/log.h"

namespace gpushm::plugin {
namespace {

// The sidecar's user can be any user; the folder around the socket keeps others out.
constexpr unsigned kSocketMode = 0666;
// Connections of one link that were accepted but have not sent a greeting.
constexpr size_t kMaxGreeting = 8;
// Invariant 3.
constexpr int kReadsPerWake = 64;
// Messages that can be left in the socket of a process that has ended: its send buffer, wmem_max
// and more.
constexpr int kReadsAtEnd = 65'536;
// With more descriptors of one link waiting to be closed than this, it may not send more.
constexpr size_t kMaxClosing =
    2 * limits::kLinkGenerations + limits::kLinkClients + limits::kAllBlocks;
// With more sockets and foreign descriptors of one link waiting to be closed than this, nobody is
// accepted on it: each connection adds one.
constexpr size_t kMaxForeign = 64;
// How long a listener pauses when descriptors or memory run out, or while kMaxForeign holds.
constexpr int64_t kAcceptPauseMs = 100;

std::unexpected<Status> BrokenLink(std::string_view rule) {
  return Fail(Code::kCorrupt, Concat("the broker broke the protocol: ", rule));
}

// The 16 bytes of "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", or of a MIG instance ("MIG-...").
Result<std::array<uint8_t, 16>> UuidBytes(const std::string& uuid) {
  std::array<uint8_t, 16> bytes{};
  std::string digits;
  const bool prefixed = uuid.starts_with("GPU-") || uuid.starts_with("MIG-");
  std::copy_if(uuid.begin() + (prefixed ? 4 : 0), uuid.end(), std::back_inserter(digits),
               [](char c) { return c != '-'; });
  bool valid = prefixed && digits.size() == 2 * bytes.size();
  for (size_t i = 0; valid && i < bytes.size(); ++i) {
    const char* const end = digits.data() + 2 * i + 2;
    valid = std::from_chars(end - 2, end, bytes[i], 16).ptr == end;
  }
  if (valid) return bytes;
  return Fail(Code::kInvalidArgument, Concat("invalid GPU UUID: \"", uuid, "\""),
              "use a UUID as nvidia-smi -L prints it");
}

std::string Text(const protocol::NameField& field) {
  return {field.data(), strnlen(field.data(), field.size())};
}

// As ClientView::container.
std::string HolderOf(const protocol::LinkClient& stated) {
  if (stated.pod[0] == '\0') {
    return std::string(protocol::FromNameField(stated.container));
  }
  return Concat(protocol::FromNameField(stated.pod), '/',
                protocol::FromNameField(stated.pod_container));
}

// A registry of another version is not an error: there is nothing to read in it.
Result<std::shared_ptr<const registry::RegistryReader>> OpenRegistry(UniqueFd fd) {
  Result<std::unique_ptr<registry::RegistryReader>> reader =
      registry::RegistryReader::Open(std::move(fd));
  if (reader) return std::shared_ptr<const registry::RegistryReader>(std::move(*reader));
  if (reader.error().code() == Code::kIncompatible) {
    LogWarning("link-registry-unknown", {{"reason", reader.error().what()}});
    return nullptr;
  }
  return BrokenLink(reader.error().what());
}

}  // namespace

LinkServer::LinkServer(EventLoop* loop, const Settings& settings, std::string name,
                       std::string path, std::string others_path, StatementBudget* budget,
                       Callbacks callbacks)
    : loop_(loop),
      settings_(settings),
      name_(std::move(name)),
      path_(std::move(path)),
      others_path_(std::move(others_path)),
      callbacks_(std::move(callbacks)),
      budget_(budget) {}

LinkServer::~LinkServer() {
  StopListening();
  // The broker goes on to accept there until the next plugin gives it another one.
  if (others_.socket) closing_->CloseForeign(std::move(others_.socket));
  while (!connections_.empty()) Disconnect(connections_.begin()->first);
  loop_->Cancel(foreign_timer_);  // Disconnect may have set it.
  if (broker_) {
    if (broker_->pidfd) loop_->Unwatch(broker_->pidfd.get());
    loop_->Cancel(broker_->gone_timer);
  }
  ForgetKept();
}

// ---- calls of the plugin

Result<void> LinkServer::Open(const LinkGrant& grant, const SickGpus& sick) {
  if (grant.gpus.empty() || grant.gpus.size() > limits::kPodGpus) {
    return Fail(Code::kInvalidArgument, Concat("a grant of ", grant.gpus.size(), " GPUs"));
  }
  std::vector<GrantedGpu> gpus;
  for (const std::string& gpu : grant.gpus) {
    const Result<std::array<uint8_t, 16>> uuid = UuidBytes(gpu);
    if (!uuid) return std::unexpected(uuid.error());
    const auto found = sick.find(gpu);
    gpus.push_back({*uuid, found == sick.end() ? GpuHealth{} : found->second});
  }
  if (grant.pool_bytes > limits::kBufferBytes) {
    return Fail(Code::kInvalidArgument,
                Concat("pool size exceeds the limit: ", grant.pool_bytes, " bytes"));
  }
  if (granted_ && grant != grant_) Revoke();
  if (!granted_ && closing_->proven_pending() > 0) {
    return Fail(Code::kBusy,
                Concat(closing_->proven_pending(), " descriptors of the former holder of ", name_,
                       " are still being closed"),
                "the kubelet tries again; if it lasts, check whether the GPU is healthy");
  }
  if (auto listening = Listen(); !listening) return listening;
  granted_ = true;
  grant_ = grant;
  gpus_ = std::move(gpus);
  return broker_ && !others_.IsAt(others_path_) ? ListenForOthers() : Result<void>();
}

void LinkServer::Revoke() {
  const bool had = granted_ && (broker_ || kept_.counts() != KeptCounts{});
  granted_ = false;
  StopListening();
  StopOthers();
  if (broker_) broker_->revoked = true;
  while (!connections_.empty()) Disconnect(connections_.begin()->first);
  const KeptCounts counts = kept_.counts();
  ForgetKept();
  closing_->NewHolder();
  exhausted_ = 0;  // The next holder's pod has a whole share again.
  TellReady();
  protocol::AddCounters(counters_.Clear(), &ended_counters_);
  if (had) {
    LogInfo("link-revoked", {{"allocation", name_},
                             {"generations", counts.generations},
                             {"bytes", counts.pooled_bytes}});
  }
}

void LinkServer::Close() {
  Revoke();
  unlink(path_.c_str());
  unlink(others_path_.c_str());
}

void LinkServer::SetHealth(const std::string& gpu, const GpuHealth& health) {
  const auto found = std::ranges::find(grant_.gpus, gpu);
  if (!granted_ || found == grant_.gpus.end()) return;
  const auto number = static_cast<size_t>(found - grant_.gpus.begin());
  gpus_[number].health = health;
  Connection* const connection = broker_ ? Find(broker_->connection) : nullptr;
  if (connection == nullptr) return;
  connection->devices_due |= 1U << number;
  Flush(connection->id);
}

void LinkServer::CountKept() {
  budget_->used_bytes += kept_.bytes() - std::exchange(counted_bytes_, kept_.bytes());
}

void LinkServer::Evict(const Status& why) {
  ++exhausted_;
  ForgetKept();
  if (broker_ && broker_->connection != 0) return Break(broker_->connection, why);
  LogWarning("link-broken", {{"allocation", name_}, {"program", ""}, {"reason", why.what()}});
}

void LinkServer::ForgetKept() {
  kept_.Clear();
  CountKept();
  kept_epoch_ = 0;
  CloseRefuse();
}

// ---- connections

bool LinkServer::SocketFile::IsAt(const std::string& path) const {
  struct stat there{};
  return socket && lstat(path.c_str(), &there) == 0 &&
         std::pair(there.st_dev, there.st_ino) == file;
}

Result<void> LinkServer::MakeSocket(const std::string& path, SocketFile* mine) const {
  struct stat file{};
  Result<UniqueFd> socket = protocol::Listen(path, kSocketMode);
  if (!socket) return std::unexpected(socket.error().WithContext(Concat("link ", name_)));
  if (lstat(path.c_str(), &file) != 0) return FailSystem(errno, Concat("stat ", path));
  *mine = {.socket = std::move(*socket), .file = {file.st_dev, file.st_ino}};
  return {};
}

Result<void> LinkServer::Listen() {
  if (listener_.IsAt(path_)) return {};
  StopListening();
  if (auto made = MakeSocket(path_, &listener_); !made) return made;
  return loop_->Watch(listener_.socket.get(), EPOLLIN, [this](uint32_t) { OnAcceptable(); });
}

Result<void> LinkServer::ListenForOthers() {
  StopOthers();
  Connection* const connection = broker_ ? Find(broker_->connection) : nullptr;
  if (grant_.others == Others::kNone || connection == nullptr) return {};
  if (auto made = MakeSocket(others_path_, &others_); !made) return made;
  connection->others_due = true;
  Flush(connection->id);
  return {};
}

// The process that was the broker may still have it.
void LinkServer::StopOthers() {
  if (!others_.socket) return;
  shutdown(others_.socket.get(), SHUT_RDWR);
  if (others_.IsAt(others_path_)) unlink(others_path_.c_str());
  closing_->CloseForeign(std::move(others_.socket));
}

void LinkServer::StopListening() {
  if (!listener_.socket) return;
  loop_->Cancel(std::exchange(accept_timer_, 0));
  loop_->Unwatch(listener_.socket.get());
  shutdown(listener_.socket.get(),
           SHUT_RDWR);  // Nobody can connect from here on, whenever it is closed.
  // Processes that connected and were not accepted may have sent descriptors already.
  closing_->CloseForeign(std::move(listener_.socket));
}

void LinkServer::OnAcceptable() {
  if (closing_->foreign_pending() >= kMaxForeign) {
    return PauseAccepting("sockets that the pod sent are still being closed");
  }
  UniqueFd socket(accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket) {
    accept_paused_ = false;
    Admit(std::move(socket));
    return;
  }
  if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) return;
  PauseAccepting(std::strerror(errno));
}

void LinkServer::PauseAccepting(std::string_view reason) {
  if (!std::exchange(accept_paused_, true)) {
    LogWarning("accept-paused", {{"allocation", name_}, {"pod", grant_.pod}, {"reason", reason}});
  }
  loop_->Change(listener_.socket.get(), 0);
  accept_timer_ = loop_->After(kAcceptPauseMs, [this] {
    accept_timer_ = 0;
    if (listener_.socket) loop_->Change(listener_.socket.get(), EPOLLIN);
  });
}

void LinkServer::Admit(UniqueFd socket) {
  const auto greeting = std::count_if(connections_.begin(), connections_.end(),
                                      [](const auto& item) { return !item.second->greeted; });
  const bool crowded = static_cast<size_t>(greeting) >= kMaxGreeting;
  if (crowded || closing_->HasForeignFile() || closing_->pending() > kMaxClosing) {
    LogWarning("link-refused", {{"allocation", name_},
                                {"pod", grant_.pod},
                                {"reason", crowded ? "too many connections without a greeting"
                                                   : "descriptors that the pod sent are still "
                                                     "being closed"}});
    shutdown(socket.get(), SHUT_RDWR);
    closing_->CloseForeign(std::move(socket));
    return;
  }
  const uint64_t id = next_connection_++;
  auto connection = std::make_unique<Connection>();
  connection->id = id;
  connection->socket = std::move(socket);
  if (settings_.peer_process) connection->pidfd = PeerProcess(connection->socket.get());
  const Result<void> watched = loop_->Watch(connection->socket.get(), EPOLLIN,
                                            [this, id](uint32_t events) { OnSocket(id, events); });
  if (!watched) {
    closing_->CloseForeign(std::move(connection->socket));
    return;
  }
  connection->greeting_timer = loop_->After(settings_.greeting_ms, [this, id] {
    Break(id, Status(Code::kTimeout, "connected, but sent no greeting in time"));
  });
  connections_.emplace(id, std::move(connection));
}

LinkServer::Connection* LinkServer::Find(uint64_t id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second.get();
}

void LinkServer::OnSocket(uint64_t id, uint32_t events) {
  Connection* const connection = Find(id);
  if (connection == nullptr) return;
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
    // Nobody reads the dump any more, but what the peer sent before it ended counts.
    connection->ended = true;
    connection->dump_due = false;
  }
  if ((events & EPOLLOUT) != 0) Flush(id);
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) Read(id, kReadsPerWake);
}

void LinkServer::Read(uint64_t id, int messages) {
  for (int i = 0; i < messages; ++i) {
    Connection* const connection = Find(id);
    if (connection == nullptr || connection->dump_due) return;
    protocol::Message message;
    const Result<bool> received = protocol::TryReceive(connection->socket.get(), &message);
    Result<void> handled;
    if (!received) {
      handled = std::unexpected(received.error());
    } else if (!*received) {
      return;
    } else {
      handled = OnMessage(*connection, message);
      const bool grew = kept_.bytes() > counted_bytes_;
      CountKept();
      if (handled && grew && budget_->used_bytes > budget_->limit_bytes) {
        handled = callbacks_.make_room();
      }
    }
    CloseLeftOver(id, std::move(message.descriptors));
    CloseRefuse();
    if (handled) continue;
    if (handled.error().code() == Code::kUnavailable) {
      Disconnect(id);
    } else {
      // (5) applies to what the broker states. If this process is out of descriptors, that is not
      // the broker's fault: it connects again and states everything.
      const bool exceeds = received && handled.error().code() == Code::kExhausted;
      if (exceeds && broker_ && broker_->connection == id) {
        ++exhausted_;
        ForgetKept();
      }
      Break(id, handled.error());
    }
    return;
  }
}

// Closes the socket; the broker's process may live on.
void LinkServer::Disconnect(uint64_t id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = *found->second;
  loop_->Cancel(connection.greeting_timer);
  loop_->Cancel(connection.retry_timer);
  loop_->Unwatch(connection.socket.get());
  // The other side sees the end now, even if ours is closed later: unread descriptors may be in it.
  shutdown(connection.socket.get(), SHUT_RDWR);
  closing_->CloseForeign(std::move(connection.socket));
  WatchClosing();
  connections_.erase(found);
  if (!broker_ || broker_->connection != id) return;
  broker_->connection = 0;
  if (!broker_->pidfd) {
    broker_->gone_timer = loop_->After(settings_.gone_ms, [this] { OnProcessEnded(); });
  }
}

void LinkServer::CloseLeftOver(uint64_t id, std::vector<UniqueFd> descriptors) {
  std::erase_if(descriptors, [](const UniqueFd& fd) { return !fd; });  // Those that were taken.
  if (descriptors.empty()) return;
  const bool foreign = std::ranges::any_of(
      descriptors, [](const UniqueFd& fd) { return MayHoldUpItsCloser(fd.get()); });
  closing_->CloseForeign(std::move(descriptors));
  if (!foreign) return;
  const bool is_broker = broker_ && broker_->connection == id;
  if (is_broker) broker_->revoked = true;
  LogWarning(
      "foreign-descriptor",
      {{"allocation", name_}, {"pod", grant_.pod}, {"program", is_broker ? broker_->program : ""}});
  if (callbacks_.on_foreign) callbacks_.on_foreign(ForeignStep::kRefused);
  WatchClosing();
}

void LinkServer::WatchClosing() {
  if (foreign_timer_ != 0) return;
  foreign_timer_ = loop_->After(settings_.foreign_ms, [this] { LookAtForeign(); });
}

void LinkServer::AbortHeldUp(int64_t held_ms, bool sockets) {
  for (const Closing::Held& one : closing_->HeldUp(held_ms)) {
    if (one.is_socket && !sockets) continue;
    const Result<void> aborted =
        one.is_socket ? Fail(Code::kUnsupported, "a lingering socket (SO_LINGER) cannot be aborted")
                      : AbortFuse(one.device);
    if (callbacks_.on_foreign) {
      callbacks_.on_foreign(aborted ? ForeignStep::kAborted : ForeignStep::kHeldUp);
    }
    if (!foreign_told_.insert(one.id).second) continue;
    LogError("close-held-up",
             {{"allocation", name_},
              {"pod", grant_.pod},
              {"thread", one.thread},
              {"file_system", one.Where()},
              {"aborted", aborted.has_value()},
              {"reason", aborted ? "its FUSE daemon did not answer" : aborted.error().ToString()}});
  }
}

void LinkServer::LookAtForeign() {
  foreign_timer_ = 0;
  AbortHeldUp(settings_.foreign_ms, /*sockets=*/true);
  if (closing_->HeldUp(0).empty()) {
    foreign_told_.clear();
    return;
  }
  WatchClosing();
}

void LinkServer::Break(uint64_t id, const Status& why) {
  const bool is_broker = broker_ && broker_->connection == id;
  // A broker of another version tries twice a second until the pod is replaced.
  if (is_broker || why.what() != said_broken_) {
    LogWarning("link-broken", {{"allocation", name_},
                               {"program", is_broker ? broker_->program : ""},
                               {"reason", why.what()}});
  }
  said_broken_ = is_broker ? "" : why.what();
  Disconnect(id);
}

// ---- the broker

Result<void> LinkServer::OnMessage(Connection& connection, protocol::Message& message) {
  const Result<protocol::LinkHeader> header = protocol::ParseLinkHeader(message.span());
  if (!header) return std::unexpected(header.error());
  const auto kind = static_cast<protocol::LinkKind>(header->kind);
  if ((kind == protocol::LinkKind::kHello) == connection.greeted) {
    return BrokenLink(Concat("link message out of order: kind ", header->kind,
                             connection.greeted ? " after" : " before", " the greeting"));
  }
  const bool may_have_descriptor =
      kind == protocol::LinkKind::kRegistry || kind == protocol::LinkKind::kCounters ||
      kind == protocol::LinkKind::kClient || kind == protocol::LinkKind::kGeneration ||
      kind == protocol::LinkKind::kDescription || kind == protocol::LinkKind::kBlock;
  if (message.descriptors.size() > (may_have_descriptor ? 1u : 0u)) {
    return BrokenLink(Concat("unexpected descriptor in a link message: kind ", header->kind,
                             " has ", message.descriptors.size()));
  }
  if (!message.descriptors.empty() && closing_->pending() > kMaxClosing) {
    return Fail(Code::kBusy,
                Concat("the broker sends descriptors faster than they can be closed: ",
                       closing_->pending(), " are waiting; the limit is ", kMaxClosing));
  }
  if (kind == protocol::LinkKind::kHello) return OnHello(connection, message);
  return OnStatement(connection, kind, message);
}

Result<void> LinkServer::OnHello(Connection& connection, protocol::Message& message) {
  const Result<protocol::LinkHello> hello =
      protocol::ParseLink<protocol::LinkHello>(message.span());
  if (!hello) return std::unexpected(hello.error());
  if (hello->min_version > protocol::kLinkMaxVersion ||
      hello->max_version < protocol::kLinkMinVersion) {
    // So that the broker can say why it is refused.
    protocol::Buffer bytes;
    const size_t size =
        protocol::EncodeLink(protocol::LinkKind::kWelcome, Welcome(connection), &bytes);
    (void)protocol::TrySend(connection.socket.get(), {bytes.data(), size}, {});
    return Fail(Code::kIncompatible,
                Concat(Text(hello->program), " supports link versions ", hello->min_version, " to ",
                       hello->max_version, ", but the plugin ", protocol::kLinkMinVersion, " to ",
                       protocol::kLinkMaxVersion),
                protocol::kOtherLinkVersion);
  }
  if (broker_ && broker_->pidfd && HasEnded(broker_->pidfd)) OnProcessEnded();
  if (broker_ && !IsBroker(connection, hello->epoch)) {
    return Fail(Code::kAlreadyExists,
                Concat(Text(hello->program), " is refused: the former broker process (",
                       broker_->program, ") has not ended"));
  }
  if (auto made = MakeBroker(connection, *hello); !made) return made;
  // What the broker does not state again before its End is forgotten. After a restart of the
  // broker, only what it requested counts: each run has its own client and lease numbers.
  if (hello->want_kept == 0 && hello->epoch != kept_epoch_) ForgetKept();
  kept_epoch_ = hello->epoch;
  kept_.BeginAll();
  connection.version = std::min(hello->max_version, protocol::kLinkMaxVersion);
  connection.welcome_due = true;
  connection.wants_kept = hello->want_kept != 0;
  connection.dump_due = connection.wants_kept;
  connection.gpu_due = gpus_.size() > 1 ? 1 : 0;
  if (auto listening = ListenForOthers(); !listening) return listening;
  for (size_t i = 0; i < gpus_.size(); ++i) {
    if (gpus_[i].health.lost) connection.devices_due |= 1U << i;
  }
  const KeptCounts counts = kept_.counts();
  LogInfo("link-connected", {{"allocation", name_},
                             {"program", broker_->program},
                             {"gives_back", connection.wants_kept},
                             {"generations", counts.generations},
                             {"leases", counts.leases},
                             {"bytes", counts.pooled_bytes}});
  Flush(connection.id);
  return {};
}

bool LinkServer::IsBroker(const Connection& connection, uint64_t epoch) const {
  if (broker_->revoked) return false;
  const Same same = broker_->pidfd && connection.pidfd
                        ? IsSameProcess(broker_->pidfd, connection.pidfd)
                        : Same::kUnknown;
  return same == Same::kYes || (same == Same::kUnknown && epoch == broker_->epoch);
}

Result<void> LinkServer::MakeBroker(Connection& connection, const protocol::LinkHello& hello) {
  const bool was_open = broker_.has_value();
  if (was_open) {
    Disconnect(broker_->connection);
    if (broker_->pidfd) loop_->Unwatch(broker_->pidfd.get());
    loop_->Cancel(broker_->gone_timer);
  }
  loop_->Cancel(std::exchange(connection.greeting_timer, 0));
  connection.greeted = true;
  broker_pod_.clear();  // It states its own.
  said_broken_.clear();
  broker_ = Broker{.pidfd = std::move(connection.pidfd),
                   .epoch = hello.epoch,
                   .program = Text(hello.program),
                   .connection = connection.id,
                   .revoked = false,
                   .gone_timer = 0};
  if (!was_open) callbacks_.on_open(true);
  if (!broker_->pidfd) return {};
  Result<void> watched =
      loop_->Watch(broker_->pidfd.get(), EPOLLIN, [this](uint32_t) { OnProcessEnded(); });
  if (!watched) broker_->pidfd.Reset();  // The end of its socket counts as its end.
  return watched;
}

void LinkServer::OnProcessEnded() {
  const uint64_t id = broker_->connection;
  if (Connection* const connection = Find(id)) {
    connection->ended = true;
    connection->dump_due = false;
    Read(id, kReadsAtEnd);  // (4)
    Disconnect(id);
  }
  if (broker_->pidfd) loop_->Unwatch(broker_->pidfd.get());
  loop_->Cancel(broker_->gone_timer);
  const KeptCounts counts = kept_.counts();
  LogInfo("link-closed", {{"allocation", name_},
                          {"program", broker_->program},
                          {"generations", counts.generations},
                          {"leases", counts.leases},
                          {"bytes", counts.pooled_bytes}});
  broker_.reset();
  StopOthers();
  registry_.reset();
  TellReady();
  ready_told_ = false;
  counters_.EndSegment();
  callbacks_.on_open(false);
}

Result<void> LinkServer::CheckGeneration(const protocol::LinkGeneration& generation,
                                         int descriptor) const {
  Result<void> known;
  if (!IsPage(generation)) {
    known = CheckMemory(descriptor, settings_.memory);
  } else if (!IsMemfd(descriptor)) {
    known = BrokenLink("a sync page must be a memfd");
  }
  if (known) return known;
  return std::unexpected(
      known.error().WithContext(Concat("generation ", generation.generation, " of buffer \"",
                                       protocol::FromNameField(generation.name), '"')));
}

Result<void> LinkServer::OnStatement(Connection& connection, protocol::LinkKind kind,
                                     protocol::Message& message) {
  const int descriptor = message.descriptors.empty() ? -1 : message.descriptors[0].get();
  // A descriptor that is not taken stays with the message, and is closed as refused ones are.
  const auto take = [&] { return descriptor < 0 ? UniqueFd() : std::move(message.descriptors[0]); };
  switch (kind) {
    case protocol::LinkKind::kRegistry:
      return OnRegistry(connection, message);
    case protocol::LinkKind::kCounters:
      return OnCounters(connection, message);
    case protocol::LinkKind::kClient: {
      const auto body = protocol::ParseLink<protocol::LinkClient>(message.span());
      if (!body) return std::unexpected(body.error());
      if (descriptor < 0 || !IsPidfd(descriptor)) {
        return BrokenLink(Concat("client ", body->client_id, " without a pidfd"));
      }
      return kept_.Apply(*body, take());
    }
    case protocol::LinkKind::kBrokerPod: {
      const auto body = protocol::ParseLink<protocol::LinkBrokerPod>(message.span());
      if (!body) return std::unexpected(body.error());
      broker_pod_ = protocol::FromNameField(body->pod);
      return {};
    }
    case protocol::LinkKind::kBuffer: {
      const auto body = protocol::ParseLink<protocol::LinkBuffer>(message.span());
      return body ? kept_.Apply(*body) : std::unexpected(body.error());
    }
    case protocol::LinkKind::kGeneration: {
      const auto body = protocol::ParseLink<protocol::LinkGeneration>(message.span());
      if (!body) return std::unexpected(body.error());
      if (body->gpu >= gpus_.size()) {
        return BrokenLink(Concat("generation ", body->generation, " is on GPU number ", body->gpu,
                                 ", but the allocation has ", gpus_.size()));
      }
      if (descriptor >= 0) {
        if (auto known = CheckGeneration(*body, descriptor); !known) return known;  // (7)
      }
      return kept_.Apply(*body, take());
    }
    case protocol::LinkKind::kBlock: {
      const auto body = protocol::ParseLink<protocol::LinkBlock>(message.span());
      if (!body) return std::unexpected(body.error());
      if (descriptor >= 0) {
        if (auto known = CheckMemory(descriptor, settings_.memory); !known) {
          return std::unexpected(known.error().WithContext(
              Concat("block ", body->index, " of generation ", body->generation)));
        }
      }
      return kept_.Apply(*body, take());
    }
    case protocol::LinkKind::kContent: {
      const auto body = protocol::ParseLink<protocol::LinkContent>(message.span());
      return body ? kept_.Apply(*body) : std::unexpected(body.error());
    }
    case protocol::LinkKind::kDescription: {
      const auto body = protocol::ParseLink<protocol::LinkDescription>(message.span());
      if (!body) return std::unexpected(body.error());
      if (descriptor >= 0) {
        const auto sealed = CheckSealed(descriptor, "description", body->size_bytes,
                                        body->size_bytes, Writers::kNobody);
        if (!sealed) return std::unexpected(sealed.error());
      }
      return kept_.Apply(*body, take());
    }
    case protocol::LinkKind::kLease: {
      const auto body = protocol::ParseLink<protocol::LinkLease>(message.span());
      if (!body) return std::unexpected(body.error());
      return kept_.Apply(*body);
    }
    case protocol::LinkKind::kDrop: {
      const auto body = protocol::ParseLink<protocol::LinkDrop>(message.span());
      if (!body) return std::unexpected(body.error());
      kept_.Apply(*body);
      return {};
    }
    case protocol::LinkKind::kEnd:
      return OnEnd(connection, message);
    default:
      return BrokenLink(
          Concat("message kind ", static_cast<uint16_t>(kind), ", which only the plugin may send"));
  }
}

Result<void> LinkServer::OnRegistry(Connection& connection, protocol::Message& message) {
  const auto body = protocol::ParseLink<protocol::LinkRegistry>(message.span());
  if (!body) return std::unexpected(body.error());
  if (message.descriptors.empty()) return BrokenLink("registry without its memfd");
  if (connection.said_registry) return BrokenLink("registry sent twice");
  // Closing a descriptor that is not a memfd can block. RegistryReader checks the rest.
  if (!IsMemfd(message.descriptors[0].get())) return BrokenLink("registry is not a memfd");
  auto registry = OpenRegistry(std::move(message.descriptors[0]));
  if (!registry) return std::unexpected(registry.error());
  connection.said_registry = true;
  registry_ = std::move(*registry);
  return {};
}

Result<void> LinkServer::OnCounters(Connection& connection, protocol::Message& message) {
  const auto body = protocol::ParseLink<protocol::LinkCounters>(message.span());
  if (!body) return std::unexpected(body.error());
  if (message.descriptors.empty()) return BrokenLink("counters without their memfd");
  if (connection.said_counters) return BrokenLink("counters sent twice");
  connection.said_counters = true;
  // This plugin cannot show counters of a later version.
  if (body->version != protocol::kCountersVersion) return {};
  return counters_.Take(message.descriptors[0]);
}

Result<void> LinkServer::OnEnd(Connection& connection, protocol::Message& message) {
  const auto body = protocol::ParseLink<protocol::LinkEnd>(message.span());
  if (!body) return std::unexpected(body.error());
  if (connection.said_end) return BrokenLink("End sent twice");
  connection.said_end = true;
  kept_.EndAll();
  return {};
}

// LinkServer: sending, and the view.

namespace {

constexpr int kSendsPerWake = 64;
constexpr int64_t kRetryMs = 5;

}  // namespace

void LinkServer::Flush(uint64_t id) {
  Connection* const connection = Find(id);
  if (connection == nullptr || connection->ended || connection->retry_timer != 0) return;
  connection->waits_for_room = false;
  for (int i = 0; i < kSendsPerWake; ++i) {
    Kept::Statement statement;
    Kept::Cursor after;
    if (!NextDue(*connection, &statement, &after)) {
      UpdateInterest(*connection);
      return;
    }
    const std::span<const int> descriptors(&statement.descriptor,
                                           statement.descriptor >= 0 ? 1 : 0);
    const Result<bool> sent = protocol::TrySend(
        connection->socket.get(), {statement.bytes.data(), statement.size_bytes}, descriptors);
    if (!sent) {
      // What it sent before it ended is still to be read.
      connection->ended = true;
      connection->dump_due = false;
      UpdateInterest(*connection);
      return;
    }
    if (!*sent) {
      WaitForRoom(*connection);
      return;
    }
    Sent(*connection, statement, after);
  }
  connection->waits_for_room = true;  // Its turn comes again after the other connections'.
  UpdateInterest(*connection);
}

Result<uint64_t> LinkServer::HandOver(const Deadline& deadline,
                                      const std::function<bool()>& goes_on) const {
  constexpr int kLookMs = 5;
  const KeptCounts counts = kept_.counts();
  if (!granted_ || counts == KeptCounts{}) return 0;
  Result<UniqueFd> socket = Fail(Code::kTimeout, "nobody listens at the link's path");
  for (;; poll(nullptr, 0, kLookMs)) {
    if (!listener_.IsAt(path_)) socket = protocol::Connect(path_);
    if (socket) break;
    if (deadline.Passed() || !goes_on()) return std::unexpected(socket.error());
  }
  const auto say = [&](protocol::LinkKind kind, const auto& body) {
    protocol::Buffer bytes;
    const size_t size = protocol::EncodeLink(kind, body, &bytes);
    return protocol::Send(socket->get(), {bytes.data(), size}, {}, deadline);
  };
  const protocol::LinkHello hello{.min_version = protocol::kLinkMinVersion,
                                  .max_version = protocol::kLinkMaxVersion,
                                  .want_kept = 0,
                                  .epoch = kept_epoch_,
                                  .program = protocol::ToNameField("the previous plugin")};
  if (auto said = say(protocol::LinkKind::kHello, hello); !said) {
    return std::unexpected(said.error());
  }
  protocol::Message message;
  if (auto got = protocol::Receive(socket->get(), &message, deadline); !got) {
    return std::unexpected(got.error());
  }
  const auto welcome = protocol::ParseLink<protocol::LinkWelcome>(message.span());
  if (!welcome) return std::unexpected(welcome.error());
  if (auto agreed = protocol::Agree(*welcome); !agreed) return std::unexpected(agreed.error());
  if (!broker_pod_.empty()) {
    const protocol::LinkBrokerPod pod{protocol::ToPodField(broker_pod_)};
    if (auto said = say(protocol::LinkKind::kBrokerPod, pod); !said) {
      return std::unexpected(said.error());
    }
  }
  Kept::Cursor cursor;
  Kept::Statement statement;
  while (kept_.Next(&cursor, &statement)) {
    const std::span<const int> descriptors(&statement.descriptor,
                                           statement.descriptor >= 0 ? 1 : 0);
    const Result<void> sent = protocol::Send(
        socket->get(), {statement.bytes.data(), statement.size_bytes}, descriptors, deadline);
    if (!sent) return std::unexpected(sent.error());
  }
  if (auto said = say(protocol::LinkKind::kEnd, protocol::LinkEnd{}); !said) {
    return std::unexpected(said.error());
  }
  // A socket that is closed with messages unread gives its peer an error in place of what was sent.
  for (auto more = protocol::TryReceive(socket->get(), &message); more && *more;) {
    more = protocol::TryReceive(socket->get(), &message);
  }
  return counts.generations;
}

void LinkServer::WaitForRoom(Connection& connection) {
  pollfd writable{.fd = connection.socket.get(), .events = POLLOUT, .revents = 0};
  if (poll(&writable, 1, 0) == 0) {
    connection.waits_for_room = true;
  } else {
    // ETOOMANYREFS: too many descriptors of this user are in flight, on the whole node. No event
    // reports when that is over.
    connection.retry_timer = loop_->After(kRetryMs, [this, id = connection.id] {
      if (Connection* const still = Find(id)) still->retry_timer = 0;
      Flush(id);
    });
  }
  UpdateInterest(connection);
}

void LinkServer::UpdateInterest(const Connection& connection) {
  const uint32_t reads = connection.dump_due ? 0u : uint32_t{EPOLLIN};
  const uint32_t writes = connection.waits_for_room && !connection.ended ? uint32_t{EPOLLOUT} : 0u;
  loop_->Change(connection.socket.get(), reads | writes);
}

bool LinkServer::NextDue(const Connection& connection, Kept::Statement* statement,
                         Kept::Cursor* after) const {
  const auto encode = [statement](protocol::LinkKind kind, const auto& body) {
    statement->kind = kind;
    statement->size_bytes = protocol::EncodeLink(kind, body, &statement->bytes);
    return true;
  };
  if (connection.welcome_due) return encode(protocol::LinkKind::kWelcome, Welcome(connection));
  if (const uint32_t number = connection.gpu_due; number != 0) {
    const GrantedGpu& gpu = gpus_[number];
    return encode(protocol::LinkKind::kGpu,
                  protocol::LinkGpu{
                      .number = number, .lost = gpu.health.lost ? 1U : 0U, .gpu_uuid = gpu.uuid});
  }
  if (connection.others_due) {
    statement->descriptor = others_.socket.get();
    return encode(protocol::LinkKind::kOthers,
                  protocol::LinkOthers{.may_write = grant_.others == Others::kWrite ? 1U : 0U,
                                       .reserved = 0});
  }
  if (connection.dump_due) {
    *after = connection.cursor;
    if (kept_.Next(after, statement)) return true;
    return encode(protocol::LinkKind::kEnd, protocol::LinkEnd{});
  }
  if (connection.devices_due == 0) return false;
  protocol::LinkDevice device{};
  device.gpu = static_cast<uint32_t>(std::countr_zero(connection.devices_due));
  const GpuHealth& health = gpus_[device.gpu].health;
  device.lost = health.lost ? 1 : 0;
  health.reason.copy(device.reason.data(), device.reason.size() - 1);
  return encode(protocol::LinkKind::kDevice, device);
}

void LinkServer::Sent(Connection& connection, const Kept::Statement& statement,
                      const Kept::Cursor& after) {
  switch (statement.kind) {
    case protocol::LinkKind::kWelcome:
      connection.welcome_due = false;
      return;
    case protocol::LinkKind::kEnd:
      connection.dump_due = false;
      return;
    case protocol::LinkKind::kGpu:
      connection.gpu_due = connection.gpu_due + 1 < gpus_.size() ? connection.gpu_due + 1 : 0;
      return;
    case protocol::LinkKind::kOthers:
      connection.others_due = false;
      return;
    case protocol::LinkKind::kDevice:  // The lowest bit, see NextDue.
      connection.devices_due &= connection.devices_due - 1;
      return;
    default:
      connection.cursor = after;
  }
}

protocol::LinkWelcome LinkServer::Welcome(const Connection& connection) const {
  const KeptCounts counts = connection.wants_kept ? kept_.counts() : KeptCounts{};
  return {.version = connection.version,
          .other_gpus = static_cast<uint16_t>(gpus_.size() - 1),
          .device_lost = gpus_.front().health.lost ? 1u : 0u,
          .gpu_uuid = gpus_.front().uuid,
          .pool_bytes = grant_.pool_bytes,
          .allocation = protocol::ToNameField(name_),
          .clients = counts.clients,
          .buffers = counts.buffers,
          .generations = counts.generations,
          .leases = counts.leases};
}

void LinkServer::LookAtBuffers(LinkView* view) const {
  view->buffers.reserve(kept_.buffers().size());
  for (const auto& [name, buffer] : kept_.buffers()) {
    const auto is_page = [this](uint64_t number) {
      return IsPage(kept_.generations().at(number).stated);
    };
    if (std::any_of(buffer.generations.begin(), buffer.generations.end(), is_page)) {
      const auto current = kept_.generations().find(buffer.stated.current);
      if (current == kept_.generations().end() || view->syncs.size() == kMostSyncs) continue;
      if (const auto sync = LookAtPage(current->second.memory)) view->syncs.push_back(*sync);
      continue;
    }
    view->buffers.push_back({.name = name,
                             .creator = std::string(protocol::FromNameField(buffer.stated.creator)),
                             .state = static_cast<registry::BufferState>(buffer.stated.state),
                             .current = buffer.stated.current,
                             .loaded_bytes = buffer.stated.loaded_bytes,
                             .generations = {}});
    for (const uint64_t number : buffer.generations) {
      const Kept::Generation& generation = kept_.generations().at(number);
      const protocol::LinkGeneration& stated = generation.stated;
      view->buffers.back().generations.push_back(
          {.generation = number,
           .size_bytes = stated.size_bytes,
           .content_bytes = generation.content_bytes,
           .mapped_bytes = PhysicalBytes(stated),
           .transport = static_cast<protocol::Transport>(stated.transport),
           .pooled = stated.pooled != 0,
           .gpu = stated.gpu,
           .published = stated.publisher_client == 0,
           .created_unix_ns = stated.created_unix_ns});
    }
  }
}

LinkView LinkServer::Look() {
  LinkView view{.name = name_,
                .gpus = {},
                .pool_bytes = grant_.pool_bytes,
                .granted = granted_,
                .open = broker_.has_value(),
                .connected = broker_ && broker_->connection != 0,
                .program = broker_ ? broker_->program : "",
                .broker_pod = broker_pod_,
                .kept = kept_.counts(),
                .kept_heap_bytes = kept_.bytes(),
                .exhausted = exhausted_,
                .closing = closing_->pending(),
                .clients = {},
                .buffers = {},
                .leases = {},
                .syncs = {},
                .counters = counters_.Read(),
                .broker_ready_seconds = broker_ ? counters_.ready_seconds() : std::nullopt,
                .mps = counters_.mps(),
                .registry = registry_};
  for (size_t i = 0; i < grant_.gpus.size(); ++i) {
    view.gpus.push_back({grant_.gpus[i], kept_.gpu_bytes(i)});
  }
  std::map<uint64_t, uint32_t> places;  // Of clients in the view.
  view.clients.reserve(kept_.clients().size());
  for (const auto& [id, client] : kept_.clients()) {
    places[id] = static_cast<uint32_t>(view.clients.size());
    view.clients.push_back(
        {.container = HolderOf(client.stated), .client_id = id, .alive = !HasEnded(client.pidfd)});
  }
  LookAtBuffers(&view);
  view.leases.reserve(kept_.leases().size());
  for (const auto& [id, lease] : kept_.leases()) {
    const Kept::Generation& generation = kept_.generations().at(lease.stated.generation);
    if (IsPage(generation.stated)) continue;
    view.leases.push_back({.lease_id = id,
                           .generation = lease.stated.generation,
                           .client = places.at(lease.stated.client_id),
                           .access = static_cast<protocol::WireAccess>(lease.stated.access)});
  }
  return view;
}

void LinkServer::TellReady() {
  const std::optional<double> seconds = counters_.ready_seconds();
  if (!seconds || std::exchange(ready_told_, true)) return;
  if (callbacks_.on_ready) callbacks_.on_ready(*seconds);
}

uint64_t LinkServer::kept_bytes(size_t gpu) const {
  const GpuBytes& bytes = kept_.gpu_bytes(gpu);
  return bytes.pooled + bytes.offered;
}

size_t LinkServer::CountUsers() const {
  return static_cast<size_t>(std::ranges::count_if(kept_.clients(), [](const auto& entry) {
    const Kept::Client& client = entry.second;
    return protocol::FromNameField(client.stated.container) == protocol::kOtherPods &&
           !HasEnded(client.pidfd);
  }));
}

void LinkServer::Count(protocol::CounterValues* sum, protocol::CounterValues* ended) {
  TellReady();
  protocol::AddCounters(counters_.Sum(), sum);
  protocol::AddCounters(std::exchange(ended_counters_, {}), ended);
}

void LinkServer::AddProcesses(NodeProcesses* out) const {
  std::map<std::string, uint64_t> offered;  // By container.
  for (const auto& [number, generation] : kept_.generations()) {
    if (generation.stated.pooled != 0 || IsPage(generation.stated)) continue;
    const std::string name(protocol::FromNameField(generation.stated.name));
    const protocol::LinkBuffer& buffer = kept_.buffers().at(name).stated;
    offered[std::string(protocol::FromNameField(buffer.creator))] +=
        PhysicalBytes(generation.stated);
  }
  for (const auto& [id, client] : kept_.clients()) {
    const int pid = PidOf(client.pidfd.get());
    if (pid <= 0) continue;
    // What other pods offered is known for all of them together only, so it stays in the private
    // memory of those that say their pod.
    const bool named = client.stated.pod[0] != '\0';
    const uint64_t offered_bytes =
        named ? 0 : offered[std::string(protocol::FromNameField(client.stated.container))];
    out->clients.push_back({.pid = static_cast<uint32_t>(pid),
                            .allocation = name_,
                            .container = HolderOf(client.stated),
                            .offered_bytes = offered_bytes});
  }
  if (!broker_ || !broker_->pidfd || !counters_.mps()) return;
  const int pid = PidOf(broker_->pidfd.get());
  if (pid > 0) out->mps_pods.push_back({name_, static_cast<uint32_t>(pid)});
}

}  // namespace gpushm::plugin
