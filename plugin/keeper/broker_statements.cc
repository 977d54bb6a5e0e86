#include "plugin/keeper/broker_statements.h"

#include <algorithm>
#include <map>
#include <utility>

#include "platform/base/sealed_memory.h"
#include "platform/daemon/log.h"
#include "plugin/keeper/sync_look.h"

namespace gpushm::plugin::keeper {
namespace {

using protocol::FromNameField;
using protocol::LinkKind;

// As ClientView::container.
std::string HolderOf(const protocol::LinkClient& stated) {
  if (stated.pod[0] == '\0') return std::string(FromNameField(stated.container));
  return Concat(FromNameField(stated.pod), '/', FromNameField(stated.pod_container));
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
  return BrokeProtocol(reader.error().what());
}

}  // namespace

void BrokerStatements::Begin(const protocol::LinkHello& hello) {
  if (hello.want_kept == 0 && hello.epoch != epoch_) Forget();
  epoch_ = hello.epoch;
  kept_.BeginAll();
  broker_pod_.clear();  // It states its own.
  stated_registry_ = stated_counters_ = stated_end_ = false;
}

Result<void> BrokerStatements::Apply(LinkKind kind, protocol::Message& message, size_t gpus) {
  const int descriptor = message.descriptors.empty() ? -1 : message.descriptors[0].get();
  const auto take = [&] { return descriptor < 0 ? UniqueFd() : std::move(message.descriptors[0]); };
  switch (kind) {
    case LinkKind::kRegistry:
      return TakeRegistry(message);
    case LinkKind::kCounters:
      return TakeCounters(message);
    case LinkKind::kClient: {
      const auto body = protocol::ParseLink<protocol::LinkClient>(message.span());
      if (!body) return std::unexpected(body.error());
      if (descriptor < 0 || !IsPidfd(descriptor)) {
        return BrokeProtocol(Concat("client ", body->client_id, " without a pidfd"));
      }
      return kept_.Apply(*body, take());
    }
    case LinkKind::kBrokerPod: {
      const auto body = protocol::ParseLink<protocol::LinkBrokerPod>(message.span());
      if (!body) return std::unexpected(body.error());
      broker_pod_ = FromNameField(body->pod);
      return {};
    }
    case LinkKind::kBuffer: {
      const auto body = protocol::ParseLink<protocol::LinkBuffer>(message.span());
      return body ? kept_.Apply(*body) : std::unexpected(body.error());
    }
    case LinkKind::kGeneration: {
      const auto body = protocol::ParseLink<protocol::LinkGeneration>(message.span());
      if (!body) return std::unexpected(body.error());
      if (body->gpu >= gpus) {
        return BrokeProtocol(Concat("generation ", body->generation, " is on GPU number ",
                                    body->gpu, ", but the allocation has ", gpus));
      }
      if (descriptor >= 0) {
        if (auto known = CheckGeneration(*body, descriptor); !known) return known;
      }
      return kept_.Apply(*body, take());
    }
    case LinkKind::kBlock: {
      const auto body = protocol::ParseLink<protocol::LinkBlock>(message.span());
      if (!body) return std::unexpected(body.error());
      if (descriptor >= 0) {
        if (auto known = CheckMemory(descriptor, memory_); !known) {
          return std::unexpected(known.error().WithContext(
              Concat("block ", body->index, " of generation ", body->generation)));
        }
      }
      return kept_.Apply(*body, take());
    }
    case LinkKind::kContent: {
      const auto body = protocol::ParseLink<protocol::LinkContent>(message.span());
      return body ? kept_.Apply(*body) : std::unexpected(body.error());
    }
    case LinkKind::kDescription: {
      const auto body = protocol::ParseLink<protocol::LinkDescription>(message.span());
      if (!body) return std::unexpected(body.error());
      if (descriptor >= 0) {
        const auto sealed = CheckSealed(descriptor, "description", body->size_bytes,
                                        body->size_bytes, Writers::kNobody);
        if (!sealed) return std::unexpected(sealed.error());
      }
      return kept_.Apply(*body, take());
    }
    case LinkKind::kLease: {
      const auto body = protocol::ParseLink<protocol::LinkLease>(message.span());
      return body ? kept_.Apply(*body) : std::unexpected(body.error());
    }
    case LinkKind::kDrop: {
      const auto body = protocol::ParseLink<protocol::LinkDrop>(message.span());
      if (!body) return std::unexpected(body.error());
      kept_.Apply(*body);
      return {};
    }
    case LinkKind::kEnd: {
      const auto body = protocol::ParseLink<protocol::LinkEnd>(message.span());
      if (!body) return std::unexpected(body.error());
      if (std::exchange(stated_end_, true)) return BrokeProtocol("End sent twice");
      kept_.EndAll();
      return {};
    }
    default:
      return BrokeProtocol(
          Concat("message kind ", static_cast<uint16_t>(kind), ", which only the plugin may send"));
  }
}

Result<void> BrokerStatements::TakeRegistry(protocol::Message& message) {
  const auto body = protocol::ParseLink<protocol::LinkRegistry>(message.span());
  if (!body) return std::unexpected(body.error());
  if (message.descriptors.empty()) return BrokeProtocol("registry without its memfd");
  if (stated_registry_) return BrokeProtocol("registry sent twice");
  // Closing a descriptor that is not a memfd can block. RegistryReader checks the rest.
  if (!IsMemfd(message.descriptors[0].get())) return BrokeProtocol("registry is not a memfd");
  auto registry = OpenRegistry(std::move(message.descriptors[0]));
  if (!registry) return std::unexpected(registry.error());
  stated_registry_ = true;
  registry_ = std::move(*registry);
  return {};
}

Result<void> BrokerStatements::TakeCounters(const protocol::Message& message) {
  const auto body = protocol::ParseLink<protocol::LinkCounters>(message.span());
  if (!body) return std::unexpected(body.error());
  if (message.descriptors.empty()) return BrokeProtocol("counters without their memfd");
  if (std::exchange(stated_counters_, true)) return BrokeProtocol("counters sent twice");
  // This plugin cannot show counters of a later version.
  if (body->version != protocol::kCountersVersion) return {};
  return counters_.Take(message.descriptors[0]);
}

Result<void> BrokerStatements::CheckGeneration(const protocol::LinkGeneration& generation,
                                               int descriptor) const {
  Result<void> known;
  if (!IsSyncPage(generation)) {
    known = CheckMemory(descriptor, memory_);
  } else if (!IsMemfd(descriptor)) {
    known = BrokeProtocol("a sync page must be a memfd");
  }
  if (known) return known;
  return std::unexpected(known.error().WithContext(Concat(
      "generation ", generation.generation, " of buffer \"", FromNameField(generation.name), '"')));
}

void BrokerStatements::EndBroker() {
  registry_.reset();
  ready_told_ = false;
  counters_.EndSegment();
}

void BrokerStatements::Forget() {
  kept_.Clear();
  epoch_ = 0;
}

void BrokerStatements::NewHolder() { protocol::AddCounters(counters_.Clear(), &ended_counters_); }

Result<void> BrokerStatements::StateAllTo(int socket, const Deadline& deadline) const {
  Datagram datagram;
  const auto send = [&] {
    return protocol::Send(socket, datagram.span(), datagram.descriptors(), deadline);
  };
  datagram.Encode(LinkKind::kHello,
                  protocol::LinkHello{.min_version = protocol::kLinkMinVersion,
                                      .max_version = protocol::kLinkMaxVersion,
                                      .want_kept = 0,
                                      .epoch = epoch_,
                                      .program = protocol::ToNameField("the previous plugin")});
  if (auto sent = send(); !sent) return sent;
  protocol::Message message;
  if (auto got = protocol::Receive(socket, &message, deadline); !got) {
    return std::unexpected(got.error());
  }
  const auto welcome = protocol::ParseLink<protocol::LinkWelcome>(message.span());
  if (!welcome) return std::unexpected(welcome.error());
  if (auto agreed = protocol::Agree(*welcome); !agreed) return agreed;
  if (!broker_pod_.empty()) {
    datagram.Encode(LinkKind::kBrokerPod,
                    protocol::LinkBrokerPod{protocol::ToPodField(broker_pod_)});
    if (auto sent = send(); !sent) return sent;
  }
  KeptState::DumpPosition position;
  while (kept_.Next(&position, &datagram)) {
    if (auto sent = send(); !sent) return sent;
  }
  datagram.Encode(LinkKind::kEnd, protocol::LinkEnd{});
  if (auto sent = send(); !sent) return sent;
  // A socket that is closed with messages unread gives its peer an error in place of what was sent.
  for (auto more = protocol::TryReceive(socket, &message); more && *more;) {
    more = protocol::TryReceive(socket, &message);
  }
  return {};
}

std::optional<double> BrokerStatements::TakeReadySeconds() {
  const std::optional<double> seconds = counters_.ready_seconds();
  return seconds && !std::exchange(ready_told_, true) ? seconds : std::nullopt;
}

void BrokerStatements::Count(protocol::CounterValues* sum, protocol::CounterValues* ended) {
  protocol::AddCounters(counters_.Sum(), sum);
  protocol::AddCounters(std::exchange(ended_counters_, {}), ended);
}

size_t BrokerStatements::CountUsers() const {
  return static_cast<size_t>(std::ranges::count_if(kept_.clients(), [](const auto& entry) {
    const KeptState::Client& client = entry.second;
    return FromNameField(client.stated.container) == protocol::kOtherPods &&
           !HasEnded(client.pidfd);
  }));
}

void BrokerStatements::AddClients(const std::string& allocation, NodeProcesses* out) const {
  std::map<std::string, uint64_t> offered;  // By container.
  for (const auto& [number, generation] : kept_.generations()) {
    if (generation.stated.pooled != 0 || IsSyncPage(generation.stated)) continue;
    const std::string name(FromNameField(generation.stated.name));
    const protocol::LinkBuffer& buffer = kept_.buffers().at(name).stated;
    offered[std::string(FromNameField(buffer.creator))] += PhysicalBytes(generation.stated);
  }
  for (const auto& [id, client] : kept_.clients()) {
    const int pid = PidOf(client.pidfd.get());
    if (pid <= 0) continue;
    // What other pods offered is known for all of them together only, so it stays in the private
    // memory of those that say their pod.
    const bool named = client.stated.pod[0] != '\0';
    const uint64_t offered_bytes =
        named ? 0 : offered[std::string(FromNameField(client.stated.container))];
    out->clients.push_back({.pid = static_cast<uint32_t>(pid),
                            .allocation = allocation,
                            .container = HolderOf(client.stated),
                            .offered_bytes = offered_bytes});
  }
}

void BrokerStatements::Show(LinkView* view) {
  view->broker_pod = broker_pod_;
  view->kept = kept_.counts();
  view->kept_heap_bytes = kept_.bytes();
  view->counters = counters_.Read();
  if (view->open) view->broker_ready_seconds = counters_.ready_seconds();
  view->mps = counters_.mps();
  view->registry = registry_;
  std::map<uint64_t, uint32_t> places;  // Of clients in the view.
  view->clients.reserve(kept_.clients().size());
  for (const auto& [id, client] : kept_.clients()) {
    places[id] = static_cast<uint32_t>(view->clients.size());
    view->clients.push_back(
        {.container = HolderOf(client.stated), .client_id = id, .alive = !HasEnded(client.pidfd)});
  }
  ShowBuffers(view);
  view->leases.reserve(kept_.leases().size());
  for (const auto& [id, lease] : kept_.leases()) {
    const KeptState::Generation& generation = kept_.generations().at(lease.stated.generation);
    if (IsSyncPage(generation.stated)) continue;
    view->leases.push_back({.lease_id = id,
                            .generation = lease.stated.generation,
                            .client = places.at(lease.stated.client_id),
                            .access = Access{lease.stated.access}});
  }
}

void BrokerStatements::ShowBuffers(LinkView* view) const {
  view->buffers.reserve(kept_.buffers().size());
  for (const auto& [name, buffer] : kept_.buffers()) {
    const auto is_page = [this](uint64_t number) {
      return IsSyncPage(kept_.generations().at(number).stated);
    };
    if (std::ranges::any_of(buffer.generations, is_page)) {
      const auto current = kept_.generations().find(buffer.stated.current);
      if (current == kept_.generations().end() || view->syncs.size() == kMostSyncs) continue;
      if (const auto sync = LookAtSyncPage(current->second.memory)) view->syncs.push_back(*sync);
      continue;
    }
    view->buffers.push_back({.name = name,
                             .creator = std::string(FromNameField(buffer.stated.creator)),
                             .state = BufferState{buffer.stated.state},
                             .current = buffer.stated.current,
                             .loaded_bytes = buffer.stated.loaded_bytes,
                             .generations = {}});
    for (const uint64_t number : buffer.generations) {
      const KeptState::Generation& generation = kept_.generations().at(number);
      const protocol::LinkGeneration& stated = generation.stated;
      view->buffers.back().generations.push_back({.generation = number,
                                                  .size_bytes = stated.size_bytes,
                                                  .content_bytes = generation.content_bytes,
                                                  .mapped_bytes = PhysicalBytes(stated),
                                                  .transport = Transport{stated.transport},
                                                  .pooled = stated.pooled != 0,
                                                  .gpu = stated.gpu,
                                                  .published = stated.publisher_client == 0,
                                                  .created_unix_ns = stated.created_unix_ns});
    }
  }
}

}  // namespace gpushm::plugin::keeper
