// LinkServer: what it sends, and what it shows.
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "platform/daemon/descriptor.h"
#include "plugin/keeper/link_server.h"

namespace gpushm::plugin {
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
      // What it said before it left is still to be read.
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
  connection->waits_for_room = true;  // Its turn comes again, after the others'.
  UpdateInterest(*connection);
}

Result<uint64_t> LinkServer::HandOver(const Deadline& deadline,
                                      const std::function<bool()>& goes_on) const {
  constexpr int kLookMs = 5;
  const KeptCounts counts = kept_.counts();
  if (!granted_ || counts == KeptCounts{}) return 0;
  Result<UniqueFd> socket = Fail(Code::kTimeout, "nobody listens at its path");
  for (;; poll(nullptr, 0, kLookMs)) {
    if (!IsOurs()) socket = protocol::Connect(path_);
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
                                  .program = protocol::ToNameField("the plugin before this one")};
  if (auto said = say(protocol::LinkKind::kHello, hello); !said) {
    return std::unexpected(said.error());
  }
  protocol::Message message;
  if (auto got = protocol::Receive(socket->get(), &message, deadline); !got) {
    return std::unexpected(got.error());
  }
  const auto welcome = protocol::ParseLink<protocol::LinkWelcome>(message.span());
  if (!welcome) return std::unexpected(welcome.error());
  Kept::Cursor cursor;
  Kept::Statement statement;
  while (kept_.Next(&cursor, welcome->version, &statement)) {
    const std::span<const int> descriptors(&statement.descriptor,
                                           statement.descriptor >= 0 ? 1 : 0);
    const Result<void> sent = protocol::Send(
        socket->get(), {statement.bytes.data(), statement.size_bytes}, descriptors, deadline);
    if (!sent) return std::unexpected(sent.error());
  }
  if (auto said = say(protocol::LinkKind::kEnd, protocol::LinkEnd{}); !said) {
    return std::unexpected(said.error());
  }
  return counts.generations;
}

void LinkServer::WaitForRoom(Connection& connection) {
  pollfd writable{.fd = connection.socket.get(), .events = POLLOUT, .revents = 0};
  if (poll(&writable, 1, 0) == 0) {
    connection.waits_for_room = true;
  } else {
    // ETOOMANYREFS: too many descriptors of this user are in flight, all over the node. No event
    // tells the end of it.
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
  if (connection.dump_due) {
    *after = connection.cursor;
    if (kept_.Next(after, connection.version, statement)) return true;
    return encode(protocol::LinkKind::kEnd, protocol::LinkEnd{});
  }
  if (!connection.device_due) return false;
  protocol::LinkDevice device{};
  device.lost = health_.lost ? 1 : 0;
  health_.reason.copy(device.reason.data(), device.reason.size() - 1);
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
    case protocol::LinkKind::kDevice:
      connection.device_due = false;
      return;
    default:
      connection.cursor = after;
  }
}

protocol::LinkWelcome LinkServer::Welcome(const Connection& connection) const {
  const KeptCounts counts = connection.wants_kept ? kept_.counts() : KeptCounts{};
  return {.version = connection.version,
          .reserved = 0,
          .device_lost = health_.lost ? 1u : 0u,
          .gpu_uuid = gpu_uuid_,
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
           .published = stated.publisher_client == 0,
           .created_unix_ns = stated.created_unix_ns});
    }
  }
}

LinkView LinkServer::Look() {
  LinkView view{.name = name_,
                .gpu = grant_.gpu,
                .pool_bytes = grant_.pool_bytes,
                .granted = granted_,
                .open = broker_.has_value(),
                .connected = broker_ && broker_->connection != 0,
                .program = broker_ ? broker_->program : "",
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
                .registry = registry_};
  std::map<uint64_t, uint32_t> places;  // Of clients in the view.
  view.clients.reserve(kept_.clients().size());
  for (const auto& [id, client] : kept_.clients()) {
    places[id] = static_cast<uint32_t>(view.clients.size());
    view.clients.push_back(
        {.container = std::string(protocol::FromNameField(client.stated.container)),
         .client_id = id,
         .alive = !HasEnded(client.pidfd)});
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

uint64_t LinkServer::kept_bytes() const {
  const KeptCounts counts = kept_.counts();
  return counts.pooled_bytes + counts.offered_bytes;
}

void LinkServer::Count(protocol::CounterValues* sum, protocol::CounterValues* ended) {
  TellReady();
  protocol::AddCounters(counters_.Sum(), sum);
  protocol::AddCounters(std::exchange(ended_counters_, {}), ended);
}

void LinkServer::AddProcesses(std::vector<ClientProcess>* out) const {
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
    std::string container(protocol::FromNameField(client.stated.container));
    const uint64_t offered_bytes = offered[container];
    out->push_back({.pid = static_cast<uint32_t>(pid),
                    .allocation = name_,
                    .container = std::move(container),
                    .offered_bytes = offered_bytes});
  }
}

}  // namespace gpushm::plugin
