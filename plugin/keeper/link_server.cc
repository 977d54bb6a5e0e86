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
#include <utility>
#include <vector>

#include "contract/limits.h"
#include "platform/daemon/descriptor.h"
#include "platform/daemon/fuse.h"
#include "platform/daemon/log.h"

namespace gpushm::plugin::keeper {
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
      budget_(budget),
      statements_(settings.memory) {}

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

Result<void> LinkServer::Open(const LinkTerms& terms, const SickGpus& sick) {
  if (terms.gpus.empty() || terms.gpus.size() > limits::kPodGpus) {
    return Fail(Code::kInvalidArgument, Concat("an allocation of ", terms.gpus.size(), " GPUs"));
  }
  std::vector<LinkedGpu> gpus;
  for (const std::string& gpu : terms.gpus) {
    const Result<std::array<uint8_t, 16>> uuid = UuidBytes(gpu);
    if (!uuid) return std::unexpected(uuid.error());
    const auto found = sick.find(gpu);
    gpus.push_back({*uuid, found == sick.end() ? GpuHealth{} : found->second});
  }
  if (terms.pool_bytes > limits::kBufferBytes) {
    return Fail(Code::kInvalidArgument,
                Concat("pool size exceeds the limit: ", terms.pool_bytes, " bytes"));
  }
  if (allocated_ && terms != terms_) Revoke();
  if (!allocated_ && closing_->proven_pending() > 0) {
    return Fail(Code::kBusy,
                Concat(closing_->proven_pending(), " descriptors of the former holder of ", name_,
                       " are still being closed"),
                "the kubelet tries again; if it lasts, check whether the GPU is healthy");
  }
  if (auto listening = Listen(); !listening) return listening;
  allocated_ = true;
  terms_ = terms;
  gpus_ = std::move(gpus);
  return broker_ && !others_.IsAt(others_path_) ? ListenForOthers() : Result<void>();
}

void LinkServer::Revoke() {
  const bool had = allocated_ && (broker_ || kept().counts() != KeptCounts{});
  allocated_ = false;
  StopListening();
  StopOthers();
  if (broker_) broker_->revoked = true;
  while (!connections_.empty()) Disconnect(connections_.begin()->first);
  const KeptCounts counts = kept().counts();
  ForgetKept();
  closing_->NewHolder();
  exhausted_ = 0;  // The next holder's pod has a whole share again.
  TellReady();
  statements_.NewHolder();
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
  const auto found = std::ranges::find(terms_.gpus, gpu);
  if (!allocated_ || found == terms_.gpus.end()) return;
  const auto number = static_cast<size_t>(found - terms_.gpus.begin());
  gpus_[number].health = health;
  Connection* const connection = broker_ ? Find(broker_->connection) : nullptr;
  if (connection == nullptr) return;
  connection->sender.SayHealth(number);
  connection->sender.Flush();
}

void LinkServer::CountKept() {
  budget_->used_bytes += kept().bytes() - std::exchange(counted_bytes_, kept().bytes());
}

void LinkServer::Evict(const Status& why) {
  ++exhausted_;
  ForgetKept();
  if (broker_ && broker_->connection != 0) return Break(broker_->connection, why);
  LogWarning("link-broken", {{"allocation", name_}, {"program", ""}, {"reason", why.what()}});
}

void LinkServer::ForgetKept() {
  statements_.Forget();
  CountKept();
  CloseDiscarded();
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
  if (terms_.others == Others::kNone || connection == nullptr) return {};
  if (auto made = MakeSocket(others_path_, &others_); !made) return made;
  connection->sender.SayOthers();
  connection->sender.Flush();
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
    LogWarning("accept-paused", {{"allocation", name_}, {"pod", terms_.pod}, {"reason", reason}});
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
                                {"pod", terms_.pod},
                                {"reason", crowded ? "too many connections without a greeting"
                                                   : "descriptors that the pod sent are still "
                                                     "being closed"}});
    shutdown(socket.get(), SHUT_RDWR);
    closing_->CloseForeign(std::move(socket));
    return;
  }
  const uint64_t id = next_connection_++;
  auto connection = std::make_unique<Connection>(id, std::move(socket), loop_,
                                                 LinkSender::Source{.allocation = &name_,
                                                                    .terms = &terms_,
                                                                    .gpus = &gpus_,
                                                                    .kept = &statements_.kept(),
                                                                    .others = &others_.socket});
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
    connection->sender.End();
  }
  if ((events & EPOLLOUT) != 0) connection->sender.Flush();
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) Read(id, kReadsPerWake);
}

void LinkServer::Read(uint64_t id, int messages) {
  for (int i = 0; i < messages; ++i) {
    Connection* const connection = Find(id);
    if (connection == nullptr || connection->sender.dumps()) return;
    protocol::Message message;
    const Result<bool> received = protocol::TryReceive(connection->socket.get(), &message);
    Result<void> handled;
    if (!received) {
      handled = std::unexpected(received.error());
    } else if (!*received) {
      return;
    } else {
      handled = OnMessage(*connection, message);
      const bool grew = kept().bytes() > counted_bytes_;
      CountKept();
      if (handled && grew && budget_->used_bytes > budget_->limit_bytes) {
        handled = callbacks_.make_room();
      }
    }
    CloseLeftOver(id, std::move(message.descriptors));
    CloseDiscarded();
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
      {{"allocation", name_}, {"pod", terms_.pod}, {"program", is_broker ? broker_->program : ""}});
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
              {"pod", terms_.pod},
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
    return BrokeProtocol(Concat("link message out of order: kind ", header->kind,
                                connection.greeted ? " after" : " before", " the greeting"));
  }
  const bool may_have_descriptor =
      kind == protocol::LinkKind::kRegistry || kind == protocol::LinkKind::kCounters ||
      kind == protocol::LinkKind::kClient || kind == protocol::LinkKind::kGeneration ||
      kind == protocol::LinkKind::kDescription || kind == protocol::LinkKind::kBlock;
  if (message.descriptors.size() > (may_have_descriptor ? 1u : 0u)) {
    return BrokeProtocol(Concat("unexpected descriptor in a link message: kind ", header->kind,
                                " has ", message.descriptors.size()));
  }
  if (!message.descriptors.empty() && closing_->pending() > kMaxClosing) {
    return Fail(Code::kBusy,
                Concat("the broker sends descriptors faster than they can be closed: ",
                       closing_->pending(), " are waiting; the limit is ", kMaxClosing));
  }
  if (kind == protocol::LinkKind::kHello) return OnHello(connection, message);
  return statements_.Apply(kind, message, gpus_.size());
}

Result<void> LinkServer::OnHello(Connection& connection, protocol::Message& message) {
  const Result<protocol::LinkHello> hello =
      protocol::ParseLink<protocol::LinkHello>(message.span());
  if (!hello) return std::unexpected(hello.error());
  if (hello->min_version > protocol::kLinkMaxVersion ||
      hello->max_version < protocol::kLinkMinVersion) {
    connection.sender.SayVersions();
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
  statements_.Begin(*hello);
  connection.sender.Greet(std::min(hello->max_version, protocol::kLinkMaxVersion),
                          hello->want_kept != 0);
  if (auto listening = ListenForOthers(); !listening) return listening;
  const KeptCounts counts = kept().counts();
  LogInfo("link-connected", {{"allocation", name_},
                             {"program", broker_->program},
                             {"gives_back", hello->want_kept != 0},
                             {"generations", counts.generations},
                             {"leases", counts.leases},
                             {"bytes", counts.pooled_bytes}});
  connection.sender.Flush();
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
    connection->sender.End();
    Read(id, kReadsAtEnd);  // (4)
    Disconnect(id);
  }
  if (broker_->pidfd) loop_->Unwatch(broker_->pidfd.get());
  loop_->Cancel(broker_->gone_timer);
  const KeptCounts counts = kept().counts();
  LogInfo("link-closed", {{"allocation", name_},
                          {"program", broker_->program},
                          {"generations", counts.generations},
                          {"leases", counts.leases},
                          {"bytes", counts.pooled_bytes}});
  broker_.reset();
  StopOthers();
  TellReady();
  statements_.EndBroker();
  callbacks_.on_open(false);
}

// ---- for the plugin

Result<uint64_t> LinkServer::HandOver(const Deadline& deadline,
                                      const std::function<bool()>& goes_on) const {
  constexpr int kLookMs = 5;
  const KeptCounts counts = kept().counts();
  if (!allocated_ || counts == KeptCounts{}) return 0;
  Result<UniqueFd> socket = Fail(Code::kTimeout, "nobody listens at the link's path");
  for (;; poll(nullptr, 0, kLookMs)) {
    if (!listener_.IsAt(path_)) socket = protocol::Connect(path_);
    if (socket) break;
    if (deadline.Passed() || !goes_on()) return std::unexpected(socket.error());
  }
  if (auto stated = statements_.StateAllTo(socket->get(), deadline); !stated) {
    return std::unexpected(stated.error());
  }
  return counts.generations;
}

LinkView LinkServer::Look() {
  LinkView view{.name = name_,
                .gpus = {},
                .pool_bytes = terms_.pool_bytes,
                .allocated = allocated_,
                .open = broker_.has_value(),
                .connected = broker_ && broker_->connection != 0,
                .program = broker_ ? broker_->program : "",
                .exhausted = exhausted_,
                .closing = closing_->pending()};
  for (size_t i = 0; i < terms_.gpus.size(); ++i) {
    view.gpus.push_back({terms_.gpus[i], kept().gpu_bytes(i)});
  }
  statements_.Show(&view);
  return view;
}

void LinkServer::TellReady() {
  const std::optional<double> seconds = statements_.TakeReadySeconds();
  if (seconds && callbacks_.on_ready) callbacks_.on_ready(*seconds);
}

uint64_t LinkServer::kept_bytes(size_t gpu) const {
  const GpuBytes& bytes = kept().gpu_bytes(gpu);
  return bytes.pooled + bytes.offered;
}

void LinkServer::Count(protocol::CounterValues* sum, protocol::CounterValues* ended) {
  TellReady();
  statements_.Count(sum, ended);
}

void LinkServer::AddProcesses(NodeProcesses* out) const {
  statements_.AddClients(name_, out);
  if (!broker_ || !broker_->pidfd || !statements_.has_mps()) return;
  const int pid = PidOf(broker_->pidfd.get());
  if (pid > 0) out->mps_pods.push_back({name_, static_cast<uint32_t>(pid)});
}

}  // namespace gpushm::plugin::keeper
