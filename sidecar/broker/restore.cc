// The broker and the plugin: being a successor, and having one (Broker's members; see broker.h).
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "contract/annotations/sizing.h"
#include "platform/daemon/log.h"
#include "sidecar/broker/broker.h"

namespace gpushm::broker {
namespace {

// The client that a statement names, which must have been stated before; 0 for none.
uint64_t NamedClient(const Statement& statement) {
  if (const auto* lease = std::get_if<protocol::LinkLease>(&statement.body)) {
    return lease->client_id;
  }
  return 0;
}

// The clients that it mentions and that may be dead.
std::vector<uint64_t> MentionedClients(const Statement& statement) {
  if (const auto* g = std::get_if<protocol::LinkGeneration>(&statement.body)) {
    return {g->publisher_client, g->offerer_client};
  }
  return {NamedClient(statement)};
}

}  // namespace

// ---- being a successor

Result<void> Broker::MeetPlugin(Link::Greeting* greeting) {
  config::BrokerConfig& config = options_.config;
  const std::string& folder = options_.link_folder;
  if (folder.empty()) return {};
  // The folder is mounted before this process starts, or never.
  if (folder == protocol::kDefaultLinkFolder && access(folder.c_str(), F_OK) != 0) {
    return Fail(
        Code::kNotFound,
        Concat(
            "folder ", folder,
            " does not exist: "
            "the container runtime ignored the devices that gpushm's plugin gave this container"),
        "enable CDI in the container runtime, or update it, "
        "and check that the sidecar requests gpushm.io/memory");
  }
  link_.emplace(
      loop_, &closer_,
      Link::Settings{.folder = folder, .epoch = epoch_, .die_after = options_.link_die_after});
  Result<Link::Greeting> answered = link_->Greet(options_.start_timeout_ms);
  if (!answered) return std::unexpected(answered.error());
  *greeting = std::move(*answered);
  const protocol::LinkWelcome& welcome = greeting->welcome;
  const std::string uuid = GpuUuid{welcome.gpu_uuid}.ToString();
  if (config.gpu && !config.gpu->uuid.empty() && config.gpu->uuid.substr(4) != uuid.substr(4)) {
    return Fail(
        Code::kInvalidArgument,
        Concat("gpu: ", config.gpu->uuid, " is not the GPU that this pod was given, ", uuid),
        "remove gpu from the configuration, or leave --gpu out");
  }
  config.gpu = config::GpuChoice{.uuid = uuid, .index = 0};
  const uint64_t wanted = config.pool_given ? config.pool_bytes : config::PoolBytes(config.pod);
  if (wanted > welcome.pool_bytes) {
    return Fail(Code::kExhausted,
                Concat("the buffers and the pool need ", wanted, " bytes, but the pod was given ",
                       welcome.pool_bytes),
                "request more gpushm.io/memory, or use smaller buffers");
  }
  if (config.pool_given) return {};
  // What the pod reserved for its containers, for loading and for MPS is not the pool's, so no
  // buffer takes it. What rounding up to whole units left over is.
  const uint64_t reserved = config::GpuBytes(config.pod) - config::PoolBytes(config.pod);
  config.pool_bytes = std::max(wanted, welcome.pool_bytes - std::min(reserved, welcome.pool_bytes));
  return {};
}

void Broker::Restore(Ledger::Kept kept, std::set<std::string>* settled) {
  if (!link_) return;
  Ledger::Restored restored = ledger_->Restore(std::move(kept), options_.config.pod);
  for (const std::string& what : restored.dropped) LogWarning("not-restored", {{"reason", what}});
  if (restored.generations > 0) {
    LogInfo("restored", {{"buffers", restored.buffers},
                         {"generations", restored.generations},
                         {"leases", restored.leases}});
  }
  *settled = std::move(restored.settled);
  EndForgottenParticipants();
}

void Broker::RestoreClients(std::vector<Link::Greeting::Client> clients) {
  for (Link::Greeting::Client& kept : clients) {
    const Client client{kept.stated.client_id,
                        std::string(protocol::FromNameField(kept.stated.container))};
    const auto known = server_->Restore(client, kept.stated.token, std::move(kept.pidfd));
    if (known) continue;
    LogWarning("not-restored",
               {{"reason", Concat("client ", client.id, ": ", known.error().what())}});
    OnEnded(client);
  }
  server_->EndDead();
}

// ---- having a successor

Result<void> Broker::RunLink(bool device_lost) {
  if (!link_) return {};
  ledger_->KeepJournal();
  OnDevice(device_lost, "");
  return link_->Run(
      registry_->fd(), counters_->fd(),
      Link::Events{
          .on_start =
              [this] {
                announced_.clear();
                stated_ = {};
              },
          .next = [this] { return NextStatement(); },
          .on_stated = [this](const Statement& statement) { OnStated(statement); },
          .on_device = [this](bool lost, std::string_view reason) { OnDevice(lost, reason); }});
}

std::optional<Statement> Broker::ClientStatement(uint64_t client_id) const {
  const std::optional<Server::Identity> identity = server_->Identify(client_id);
  if (!identity) return std::nullopt;
  protocol::LinkClient stated{};
  stated.client_id = client_id;
  stated.token = identity->token;
  stated.container = protocol::ToNameField(identity->client.container);
  return Statement{stated, identity->pidfd};
}

bool Broker::Announce(uint64_t client_id) {
  if (announced_.contains(client_id)) return true;
  const std::optional<Statement> client = ClientStatement(client_id);
  if (!client) return false;
  announced_.insert(client_id);
  link_->State(*client);
  return true;
}

void Broker::StateChanges() {
  EndParticipants();
  for (const Statement& statement : ledger_->TakeStatements()) {
    if (link_->is_stating() && ledger_->IsAhead(stated_, statement)) continue;
    bool sayable = true;
    for (const uint64_t id : MentionedClients(statement)) {
      if (id != 0 && !Announce(id)) sayable = NamedClient(statement) == 0;
    }
    if (sayable) link_->State(statement);
  }
}

std::optional<Statement> Broker::NextStatement() {
  while (const std::optional<Statement> next = ledger_->Next(&stated_)) {
    for (const uint64_t id : MentionedClients(*next)) {
      if (id == 0 || announced_.contains(id)) continue;
      if (const auto client = ClientStatement(id)) return client;
    }
    const uint64_t named = NamedClient(*next);
    if (named == 0 || announced_.contains(named)) return next;
    Ledger::Advance(&stated_, *next);  // The lease of a client that is gone.
  }
  return std::nullopt;
}

void Broker::OnStated(const Statement& statement) {
  if (const auto* client = std::get_if<protocol::LinkClient>(&statement.body)) {
    announced_.insert(client->client_id);
  } else {
    Ledger::Advance(&stated_, statement);
  }
}

void Broker::OnDevice(bool lost, std::string_view reason) {
  if (lost == device_lost_) return;
  device_lost_ = lost;
  registry_->SetDeviceLost(lost);
  if (lost) {
    LogError("gpu-unhealthy", {{"gpu", gpu_->info().uuid.ToString()}, {"reason", reason}});
  } else {
    LogInfo("gpu-healthy", {{"gpu", gpu_->info().uuid.ToString()}});
  }
}

}  // namespace gpushm::broker
