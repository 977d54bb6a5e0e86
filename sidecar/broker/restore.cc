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
  BrokerConfig& config = options_.config;
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
  std::string pod = options_.pod.substr(options_.pod.find('/') + 1);
  if (!IsDnsSubdomain(pod)) pod.clear();
  link_.emplace(loop_, &closer_,
                Link::Settings{.folder = folder, .pod = std::move(pod), .epoch = epoch_});
  Result<Link::Greeting> answered = link_->Greet(options_.start_timeout_ms);
  if (!answered) return std::unexpected(answered.error());
  *greeting = std::move(*answered);
  const protocol::LinkWelcome& welcome = greeting->welcome;
  serves_others_ = static_cast<bool>(greeting->others.socket);
  if (auto taken = TakeGpus(*greeting); !taken) return taken;
  const uint64_t needed = annotations::PoolBytes(config.pod, annotations::FullestGpu(config.pod));
  const uint64_t wanted = config.pool_given ? config.pool_bytes : needed;
  if (wanted > welcome.pool_bytes) {
    const bool several = config.gpus.size() > 1;
    return Fail(
        Code::kExhausted,
        Concat("the buffers and the pool need ", wanted, several ? " bytes of a GPU" : " bytes",
               ", but the pod was given ", welcome.pool_bytes, several ? " of each" : ""),
        "request more gpushm.io/memory, or use smaller buffers");
  }
  if (config.pool_given) return {};
  if (serves_others_) {
    // What is left is for contexts of pods that share the claim.
    config.pool_bytes = wanted;
    return {};
  }
  // What the pod reserved for its containers, for loading and for MPS is not the pool's, so no
  // buffer takes it. What rounding up to whole units left over is.
  const uint64_t reserved = annotations::GpuBytes(config.pod) - needed;
  config.pool_bytes = std::max(wanted, welcome.pool_bytes - std::min(reserved, welcome.pool_bytes));
  return {};
}

// The GPUs that the plugin names are the pod's.
Result<void> Broker::TakeGpus(const Link::Greeting& greeting) {
  BrokerConfig& config = options_.config;
  if (greeting.gpus.size() < config.pod.gpus) {
    return Fail(Code::kIncompatible,
                Concat("gpushm.io/gpus is ", config.pod.gpus, ", but the plugin gave this pod ",
                       greeting.gpus.size()),
                Concat("let the sidecar request gpushm.io/attach: ", config.pod.gpus));
  }
  std::vector<yaml::GpuChoice> given;
  for (const Link::Greeting::Gpu& gpu : greeting.gpus) {
    given.push_back({.uuid = GpuUuid{gpu.uuid}.ToString(), .index = 0});
  }
  for (size_t i = 0; i < config.gpus.size(); ++i) {
    const std::string& chosen = config.gpus[i].uuid;
    if (i < given.size() && (chosen.empty() || chosen.substr(4) == given[i].uuid.substr(4))) {
      continue;
    }
    return Fail(Code::kInvalidArgument,
                Concat("gpu: ", chosen.empty() ? std::to_string(config.gpus[i].index) : chosen,
                       " is not the GPU that this pod was given, ",
                       i < given.size() ? given[i].uuid : "as it has no more of them"),
                "remove gpu from the configuration, or leave --gpu out");
  }
  config.gpus = std::move(given);
  return {};
}

void Broker::Restore(Ledger::Kept kept, std::set<std::string>* settled) {
  if (!link_) return;
  Ledger::Restored restored = ledger_->Restore(std::move(kept), options_.config.pod);
  for (const std::string& what : restored.dropped) LogWarning("not-restored", {{"reason", what}});
  if (const size_t generations = ledger_->generations().all().size(); generations > 0) {
    LogInfo("restored", {{"buffers", ledger_->buffer_count()},
                         {"generations", generations},
                         {"leases", ledger_->lease_count()}});
  }
  *settled = std::move(restored.settled);
  EndForgottenParticipants();
}

void Broker::RestoreClients(std::vector<Link::Greeting::Client> clients) {
  for (Link::Greeting::Client& kept : clients) {
    const protocol::LinkClient& stated = kept.stated;
    const Client client{stated.client_id, std::string(protocol::FromNameField(stated.container))};
    const auto known = server_->Restore(client, stated.token, {stated.pod, stated.pod_container},
                                        std::move(kept.pidfd));
    if (known) continue;
    LogWarning("not-restored",
               {{"reason", Concat("client ", client.id, ": ", known.error().what())}});
    OnEnded(client);
  }
  server_->EndDead();
}

// ---- having a successor

Result<void> Broker::RunLink(const std::vector<Link::Greeting::Gpu>& gpus) {
  if (!link_) return {};
  journal_.emplace(&*ledger_);
  ledger_->KeepJournal(&*journal_);
  for (uint32_t gpu = 0; gpu < gpus.size(); ++gpu) OnDevice(gpu, gpus[gpu].lost, "");
  return link_->Run(
      registry_->fd(), counters_->fd(),
      Link::Events{
          .on_start =
              [this] {
                announced_.clear();
                journal_->BeginAll();
              },
          .next = [this] { return NextStatement(); },
          .on_stated = [this](const Statement& statement) { OnStated(statement); },
          .on_others = [this](Link::Greeting::Others others) { ServeOthers(std::move(others)); },
          .on_device = [this](uint32_t gpu, bool lost,
                              std::string_view reason) { OnDevice(gpu, lost, reason); }});
}

std::optional<Statement> Broker::ClientStatement(uint64_t client_id) const {
  const std::optional<Server::Identity> identity = server_->Identify(client_id);
  if (!identity) return std::nullopt;
  return Statement{
      protocol::LinkClient{.client_id = client_id,
                           .token = identity->token,
                           .container = protocol::ToNameField(identity->client.container),
                           .pod = identity->pod.pod,
                           .pod_container = identity->pod.container},
      identity->pidfd};
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
  for (const Statement& statement : journal_->Take()) {
    bool sayable = true;
    for (const uint64_t id : MentionedClients(statement)) {
      if (id != 0 && !Announce(id)) sayable = NamedClient(statement) == 0;
    }
    if (sayable) link_->State(statement);
  }
}

std::optional<Statement> Broker::NextStatement() {
  while (const std::optional<Statement> next = journal_->Next()) {
    for (const uint64_t id : MentionedClients(*next)) {
      if (id == 0 || announced_.contains(id)) continue;
      if (const auto client = ClientStatement(id)) return client;
    }
    const uint64_t named = NamedClient(*next);
    if (named == 0 || announced_.contains(named)) return next;
    journal_->OnStated(*next);  // The lease of a client that is gone.
  }
  return std::nullopt;
}

void Broker::OnStated(const Statement& statement) {
  if (const auto* stated = std::get_if<protocol::LinkClient>(&statement.body)) {
    announced_.insert(stated->client_id);
  } else {
    journal_->OnStated(statement);
  }
}

void Broker::OnDevice(uint32_t gpu, bool lost, std::string_view reason) {
  if (lost == gpus_.at(gpu).lost) return;
  gpus_.at(gpu).lost = lost;
  uint32_t lost_gpus = 0;
  for (uint32_t number = 0; number < gpus_.size(); ++number) {
    lost_gpus |= gpus_[number].lost ? uint32_t{1} << number : 0;
  }
  registry_->SetLostGpus(lost_gpus);
  const std::string uuid = gpus_.at(gpu).gpu.info().uuid.ToString();
  if (lost) {
    LogError("gpu-unhealthy", {{"gpu", uuid}, {"reason", reason}});
  } else {
    LogInfo("gpu-healthy", {{"gpu", uuid}});
  }
}

}  // namespace gpushm::broker
