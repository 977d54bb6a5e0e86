#include "tests/simulation/pod.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "contract/protocol/link.h"
#include "platform/daemon/event_loop.h"
#include "sidecar/broker/testing/keeper_model.h"
#include "tests/simulation/driver.h"

namespace gpushm::simulation {

namespace {

constexpr char kConfig[] = R"(
annotations:
  buffers.gpushm.io/weights: {size: 4Mi, on-writer-exit: mark}
  buffers.gpushm.io/frames: {size: 2Mi, access: one-writer}
  signals.gpushm.io/ready: {}
containers: [a, b]
pool: 24Mi
)";
constexpr uint64_t kMostUnixNs = 3'000'000'000'000'000'000;  // In the year 2065.
constexpr char kAllocation[] = "m0000";
constexpr uint64_t kGrantedBytes = uint64_t{64} << 20;
constexpr char kMemoryFolder[] = "memory";
constexpr size_t kClients = 5;
// Within this virtual time everything that is due has happened: links are made again, requests are
// answered, held descriptors are reported.
constexpr int64_t kRestNs = 8'000 * kMs;
constexpr uint64_t kMostTurnsOfRest = 200'000;

// The descriptors of a process, by what they are.
struct Descriptors {
  size_t memory = 0;
  size_t pages = 0;
  size_t descriptions = 0;
  size_t sockets = 0;
  size_t pidfds = 0;
  size_t others = 0;
  std::string text;
};

Descriptors DescriptorsOf(const Process& process) {
  Descriptors found;
  const std::filesystem::path folder = Concat("/proc/", process.pid, "/fd");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::error_code error;
    const std::string link = std::filesystem::read_symlink(entry.path(), error);
    if (error) continue;  // That of this loop, in a process that looks at itself.
    const bool memfd = link.starts_with("/memfd:");
    size_t& kind = link.find("/memory/#") != std::string::npos              ? found.memory
                   : memfd && link.find("page") != std::string::npos        ? found.pages
                   : memfd && link.find("description") != std::string::npos ? found.descriptions
                   : link.starts_with("socket:")                            ? found.sockets
                   : link.find("pidfd") != std::string::npos                ? found.pidfds
                                                                            : found.others;
    ++kind;
    found.text += Concat(' ', link);
  }
  return found;
}

}  // namespace

Pod::Pod(World* world, uint64_t turns) : world_(world), turns_(turns) {
  world_->Watch(this);
  for (const char* folder : {"run", "link", "others", kMemoryFolder}) {
    std::filesystem::create_directory(folder);
  }
  setenv("GPUSHM_SIM_DIR", kMemoryFolder, 1);
  SetMemoryFolder(kMemoryFolder);
  const auto one_in = [this](uint64_t usual) {
    constexpr uint64_t kNever = 0;
    return world_->Chance(4) ? kNever : usual / 4 + world_->Pick(2 * usual);
  };
  mood_ = {.broker_dies_one_in = one_in(500),
           .plugin_dies_one_in = one_in(1200),
           .client_dies_one_in = one_in(400),
           .link_breaks_one_in = one_in(300),
           .message_is_last_one_in = one_in(150),
           .freezes_one_in = one_in(400),
           .gpu_changes_one_in = one_in(1000)};
  SetAllocationsFail(one_in(20));
}

std::string Pod::SocketOf(const std::string& container) const {
  return Concat("run/", container, "/", protocol::kSocketName);
}

std::array<uint8_t, 16> Pod::gpu_bytes() const {
  return {0x67, 0x70, 0x75, 0x73, 0x68, 0x6d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
}

uint64_t Pod::CurrentOf(const std::string& name) const {
  if (!IsBrokerReady()) return 0;
  for (const registry::BufferRecord& record : broker_->ledger().Records()) {
    if (record.name.view() == name) return record.generation;
  }
  return 0;
}

// ---- the plugin

void Pod::StartPlugin() {
  plugin_ = nullptr;
  plugin_process_ = world_->Start(Concat("plugin ", ++plugins_), [this] { PluginMain(); });
}

void Pod::PluginMain() {
  Result<std::unique_ptr<EventLoop>> loop = EventLoop::Create();
  GPUSHM_ASSERT(loop.has_value());
  plugin::keeper::StatementBudget budget{.limit_bytes = uint64_t{64} << 20};
  plugin::keeper::LinkServer server(
      loop->get(), {.memory = MemoryKind::Of(kMemoryFolder)}, kAllocation,
      Concat("link/", protocol::kLinkSocketName), "others/plugin.sock", &budget,
      {.on_open = [](bool) {},
       .on_ready = {},
       .make_room = [] { return Result<void>(); },
       .on_foreign =
           [this](plugin::keeper::ForeignStep) {
             world_->Fail("(8) the plugin refused a descriptor that nobody sent");
           }});
  const auto opened =
      server.Open({.gpus = {kGpu}, .pool_bytes = kGrantedBytes, .pod = "default/simulated"}, {});
  if (!opened) return world_->Fail(Concat("the plugin: ", opened.error().ToString()));
  server.SetHealth(kGpu, {.lost = gpu_lost_, .reason = "as before"});
  plugin_ = &server;
  (*loop)->Run();
}

void Pod::KillPlugin() {
  ++tally_.plugins_killed;
  world_->Kill(plugin_process_);
  plugin_ = nullptr;
  plugin_is_first_ = false;
  link_is_up_ = false;
  checks_successor_ = false;
  if (!IsBrokerReady()) Forgive(/*all=*/true);
  plugin_due_ns_ = world_->now_ns() + static_cast<int64_t>(world_->Pick(400) * kMs);
}

// ---- the broker

void Pod::StartBroker() {
  broker_ = nullptr;
  plugin_is_first_ = true;
  link_is_up_ = true;
  if (world_->Chance(4)) world_->SetClock(static_cast<int64_t>(world_->Pick(kMostUnixNs)));
  broker_process_ = world_->Start(Concat("broker ", ++brokers_), [this] { BrokerMain(); });
}

void Pod::BrokerMain() {
  world_->running()->blocks_for_workers = true;
  auto config = broker::ParseBrokerConfig(kConfig, "broker.yaml");
  if (!config) return world_->Fail(config.error().ToString());
  broker::BrokerOptions options;
  options.config = std::move(*config);
  options.config.folder = "run";
  options.driver_folder = kDriverFolder;
  options.link_folder = "link";
  options.pod = "default/simulated";
  Result<std::unique_ptr<EventLoop>> loop = EventLoop::Create();
  GPUSHM_ASSERT(loop.has_value());
  auto broker = broker::Broker::Start(loop->get(), std::move(options));
  if (!broker) {
    // It is started again, as the kubelet does. But for this reason alone.
    if (broker.error().code() != Code::kExhausted) {
      world_->Fail(Concat("(6) the broker does not start: ", broker.error().ToString()));
    }
    return;
  }
  broker_ = broker->get();
  epoch_ = broker_->epoch();
  tally_.leases_restored += broker_->ledger().lease_count();
  CheckSuccessor();
  (*loop)->Run();
  world_->Fail("the broker stopped by itself");
}

void Pod::KillBroker() {
  former_ = nullptr;
  const bool knew_all = IsBrokerReady() && link_is_up_ && broker_->has_stated_all();
  if (alive(plugin_process_) && knew_all && broker_process_->at_rest) former_ = broker_;
  checks_successor_ = former_ != nullptr;
  const bool was_ready = IsBrokerReady();
  ++tally_.brokers_killed;
  tally_.killed_in_start += was_ready ? 0 : 1;
  tally_.killed_in_callback += was_ready && !broker_process_->at_rest ? 1 : 0;
  world_->Kill(broker_process_);
  broker_ = nullptr;
  broker_due_ns_ = world_->now_ns() + static_cast<int64_t>(world_->Pick(300) * kMs);
  if (alive(plugin_process_) && (knew_all || (!was_ready && plugin_is_first_))) return;
  Forgive(/*all=*/!alive(plugin_process_) || !plugin_is_first_);
}

void Pod::Forgive(bool all) {
  world_->Note(all ? "all leases may be lost" : "the latest leases may be lost");
  if (all) {
    forgiven_up_to_ = epoch_;
  } else {
    forgiven_.insert(epoch_);
  }
  for (OwnedCell& owned : cells_) owned.sure = false;
  for (const auto& client : clients_) {
    for (auto& [id, held] : client->held()) held.sure = held.sure && !IsForgiven(held.epoch);
  }
}

void Pod::OnLog(Process& process, std::string_view event) {
  if (&process != broker_process_) return;
  if (event == "link-lost") {
    link_is_up_ = false;
  } else if (event == "link-connected") {
    link_is_up_ = true;
  }
}

// ---- the clients

void Pod::AddClient() {
  clients_.push_back(std::make_unique<Client>(world_, this, world_->Chance(2) ? "a" : "b"));
}

void Pod::KillClient() {
  const auto& client = clients_[world_->Pick(clients_.size())];
  if (!client->alive()) return;
  world_->Kill(client->process());
  ++tally_.clients_killed;
}

void Pod::OnGeneration(uint64_t generation, int memory) {
  if (memory < 0) return;
  struct stat file{};
  fstat(memory, &file);
  const auto [known, fresh] = memory_of_.emplace(generation, file.st_ino);
  if (fresh || known->second == file.st_ino) return;
  world_->Fail(Concat("(3) generation ", generation, " is two pieces of memory"));
}

void Pod::OnCell(Client* client, uint64_t lease, sync::Cell* cell) {
  const Held& held = client->held().at(lease);
  cells_.push_back({.client = client,
                    .lease = lease,
                    .cell = cell,
                    .owners = cell->owners.load(),
                    .generation = held.generation,
                    .sure = held.sure});
}

// The connection between broker and plugin, of which both live on.
void Pod::BreakLink() {
  link_is_up_ = false;
  world_->Post(broker_process_, [] {
    for (int socket = 3; socket < 256; ++socket) {
      sockaddr_un peer{};
      socklen_t size = sizeof peer;
      if (getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
      if (std::string_view(peer.sun_path).starts_with("link/")) shutdown(socket, SHUT_RDWR);
    }
  });
}

// ---- a life

void Pod::KillDoomed() {
  if (alive(broker_process_) && broker_process_->doomed) KillBroker();
  if (alive(plugin_process_) && plugin_process_->doomed) KillPlugin();
  for (const auto& client : clients_) {
    if (!client->alive() || !client->process()->doomed) continue;
    world_->Kill(client->process());
    ++tally_.clients_killed;
  }
}

void Pod::BeRough() {
  if (world_->Chance(mood_.broker_dies_one_in) && alive(broker_process_)) KillBroker();
  if (world_->Chance(mood_.plugin_dies_one_in) && alive(plugin_process_)) KillPlugin();
  if (world_->Chance(mood_.client_dies_one_in)) KillClient();
  if (world_->Chance(mood_.link_breaks_one_in) && IsBrokerReady()) BreakLink();
  if (world_->Chance(mood_.freezes_one_in)) {
    Process* const process = world_->Chance(2)   ? plugin_process_
                             : world_->Chance(2) ? broker_process_
                                                 : clients_.back()->process();
    if (alive(process)) {
      world_->Note(Concat(process->name, " is stopped for a while"));
      world_->Freeze(process, static_cast<int64_t>(world_->Pick(3'000) * kMs));
    }
  }
  // It is lost for a short time only, because nothing can be attached meanwhile.
  if (world_->Chance(gpu_lost_ ? 20 : mood_.gpu_changes_one_in) && alive(plugin_process_) &&
      plugin_ != nullptr) {
    gpu_lost_ = !gpu_lost_;
    world_->Post(plugin_process_, [this, server = plugin_, lost = gpu_lost_] {
      server->SetHealth(kGpu, {.lost = lost, .reason = "the seed's choice"});
    });
  }
}

void Pod::Live() {
  StartPlugin();
  StartBroker();
  while (clients_.size() < kClients) AddClient();
  for (int half = 0; half < 2 && !world_->failed(); ++half) {
    world_->SetDoom(mood_.message_is_last_one_in);
    const uint64_t end = world_->turns() + turns_ / 2;
    while (world_->turns() < end && !world_->failed()) {
      KillDoomed();
      BeRough();
      if (!alive(plugin_process_) && world_->now_ns() >= plugin_due_ns_) StartPlugin();
      if (!alive(broker_process_) && world_->now_ns() >= broker_due_ns_) StartBroker();
      for (auto& client : clients_) {
        if (client->alive()) continue;
        former_ = nullptr;  // It may still have known that client.
        client = std::make_unique<Client>(world_, this, world_->Chance(2) ? "a" : "b");
      }
      int64_t until_ns = kForever;
      if (!alive(plugin_process_)) until_ns = std::min(until_ns, plugin_due_ns_);
      if (!alive(broker_process_)) until_ns = std::min(until_ns, broker_due_ns_);
      if (!world_->Step(until_ns) && until_ns == kForever) {
        world_->Fail("(6) nobody has anything to do, and nobody will");
      }
      CheckBroker();
    }
    if (!world_->failed()) Rest();
  }
  if (!world_->failed()) End();
}

void Pod::Rest() {
  paused_ = true;
  world_->SetDoom(0);
  KillDoomed();
  world_->Note("rest");
  world_->Thaw();
  if (!alive(plugin_process_)) StartPlugin();
  const int64_t until_ns = world_->now_ns() + kRestNs;
  const uint64_t most = world_->turns() + kMostTurnsOfRest;
  for (bool more = true; more && !world_->failed();) {
    if (!alive(broker_process_)) StartBroker();
    more = world_->Step(until_ns);
    CheckBroker();
    if (world_->turns() > most) world_->Fail("(6) the pod does not come to rest");
  }
  if (world_->failed()) return;
  CheckAtRest();
  paused_ = false;
  world_->Touch();
}

void Pod::End() {
  world_->Note("the end");
  over_ = true;
  world_->Touch();
  if (gpu_lost_) {
    gpu_lost_ = false;
    world_->Post(plugin_process_, [server = plugin_] { server->SetHealth(kGpu, {}); });
  }
  Rest();
  if (world_->failed()) return;
  for (const auto& client : clients_) {
    if (client->alive()) {
      return world_->Fail(Concat("(6) ", client->process()->name, " does not come to its end"));
    }
  }
  if (broker_->ledger().lease_count() != 0) {
    return world_->Fail(
        Concat("(8) ", broker_->ledger().lease_count(), " leases are left, and no client"));
  }
  if (!plugin_->kept().clients().empty()) {
    return world_->Fail(
        Concat("(8) the plugin keeps ", plugin_->kept().clients().size(), " clients, all dead"));
  }
  CheckDescriptors();
  Process* const last = world_->Start("last client", [this] {
    client::Session session({.socket_path = SocketOf("a")}, nullptr);
    for (const char* name : {"weights", "frames", "ready"}) {
      const Deadline deadline = Deadline::AfterMs(10'000);
      const auto lock = session.Lock(deadline);
      const protocol::AttachRequest request{.name = protocol::ToNameField(name),
                                            .access = 2,
                                            .peer_way = 0,
                                            .generation = 0,
                                            .gpu_uuid = gpu_bytes()};
      std::vector<UniqueFd> received;
      const auto reply = session.Ask<protocol::AttachReply>(*lock, protocol::Kind::kAttach, request,
                                                            deadline, {.received = &received});
      if (!reply) world_->Fail(Concat("(8) ", name, ": ", reply.error().ToString()));
    }
  });
  while (!world_->failed() && !last->ended && world_->Step(kForever)) {
  }
}

// ---- checks

void Pod::CheckBroker() {
  if (!IsBrokerReady() || world_->failed()) return;
  const broker::Ledger& ledger = broker_->ledger();
  if (ledger.used_bytes(0) > ledger.pool_bytes()) {
    return world_->Fail(Concat("(2) ", ledger.used_bytes(0), " bytes are in use of a pool of ",
                               ledger.pool_bytes()));
  }
  const auto leases = ledger.Holders("", 0, limits::kLeases);
  size_t writers = 0;
  for (const broker::Lease* lease : leases) {
    writers += lease->buffer == "frames" && lease->access == Access::kReadWrite ? 1 : 0;
  }
  if (writers > 1) return world_->Fail(Concat("(2) \"frames\" has ", writers, " writers"));
  for (const auto& client : clients_) {
    if (!client->alive()) continue;
    for (const auto& [id, held] : client->held()) {
      if (!held.sure || held.leaving) continue;
      const auto found = std::ranges::lower_bound(leases, id, {}, &broker::Lease::id);
      const bool same = found != leases.end() && (*found)->id == id &&
                        (*found)->client.id == client->id() &&
                        (*found)->generation == held.generation && (*found)->buffer == held.name &&
                        static_cast<uint32_t>((*found)->access) == held.access;
      if (same) continue;
      return world_->Fail(Concat("(1) the broker does not know lease ", id, " of ",
                                 client->process()->name, " (", client->id(), ") on generation ",
                                 held.generation, " of \"", held.name, '"'));
    }
  }
  CheckCells(/*at_rest=*/false);
}

// Called in the broker's process, before it takes a request.
void Pod::CheckSuccessor() {
  if (!std::exchange(checks_successor_, false) || former_ == nullptr) return;
  const broker::Ledger& former = former_->ledger();
  for (const broker::Lease* lease : former.Holders("", 0, limits::kLeases)) {
    if (!Lives(lease->client.id)) return;  // Its end is no secret of the predecessor's.
  }
  const std::string differs =
      broker::testing::LinesDiffer(broker_->ledger(), former, /*careful=*/true);
  ++tally_.successors_compared;
  if (!differs.empty()) world_->Fail(Concat("(4) the successor knows ", differs));
  former_ = nullptr;
}

bool Pod::Lives(uint64_t client) const {
  const bool forgave = forgiven_up_to_ > 0 || !forgiven_.empty();
  return std::ranges::any_of(clients_, [&](const auto& one) {
    return one->alive() && (one->id() == client || (forgave && one->WasOnce(client)));
  });
}

void Pod::CheckAtRest() {
  if (!IsBrokerReady()) return world_->Fail("(6) no broker serves the pod at rest");
  for (const auto& client : clients_) {
    if (client->alive()) world_->Note(Concat(client->process()->name, " is ", client->id()));
  }
  if (!broker_->has_stated_all()) return world_->Fail("(5) the link is not up at rest");
  for (const auto& client : clients_) {
    if (client->alive() && !over_ && !client->waits()) {
      return world_->Fail(Concat("(6) ", client->process()->name,
                                 " still waits for an answer: ", world_->Describe()));
    }
  }
  for (const broker::Lease* lease : broker_->ledger().Holders("", 0, limits::kLeases)) {
    if (Lives(lease->client.id)) continue;
    return world_->Fail(Concat("(8) lease ", lease->id, " on \"", lease->buffer, "\" of client ",
                               lease->client.id, " is left, who is none of the living"));
  }
  CheckKept();
  CheckCells(/*at_rest=*/true);
}

void Pod::CheckCells(bool at_rest) {
  std::set<uint64_t> pages;
  std::set<uint64_t> leases;
  if (at_rest) {
    for (const auto& [number, generation] : plugin_->kept().generations()) {
      if (plugin::keeper::IsSyncPage(generation.stated)) pages.insert(number);
    }
  }
  for (const broker::Lease* lease :
       broker_->ledger().Holders("", 0, at_rest ? limits::kLeases : 0)) {
    leases.insert(lease->id);
  }
  for (const OwnedCell& owned : cells_) {
    if (owned.cell->owners.load() != owned.owners) continue;  // Somebody else's since.
    const sync::CellState state = sync::StateOf(*owned.cell);
    if (at_rest && state == sync::CellState::kLive && pages.contains(owned.generation) &&
        !leases.contains(owned.lease)) {
      return world_->Fail(Concat("(7) the cell of lease ", owned.lease, " on generation ",
                                 owned.generation, " lives, but the broker has no such lease"));
    }
    if (!owned.sure) continue;
    const bool ended = state == sync::CellState::kDied || state == sync::CellState::kLeft;
    const bool poisoned = owned.cell->value.load() == sync::kPoison;
    const auto owner = std::ranges::find_if(
        clients_, [&](const auto& client) { return client.get() == owned.client; });
    const bool alive = owner != clients_.end() && (*owner)->alive();
    if (at_rest && !alive && !(ended && poisoned)) {
      return world_->Fail(Concat("(7) the cell of lease ", owned.lease, ", whose process is gone, ",
                                 ended ? "is not poisoned" : "has not ended"));
    }
    tally_.cells_ended += at_rest && !alive ? 1 : 0;
    if (!alive) continue;
    const auto held = (*owner)->held().find(owned.lease);
    const bool owns = held != (*owner)->held().end() && held->second.sure &&
                      !held->second.leaving && held->second.cell == owned.cell;
    if (owns && (ended || poisoned)) {
      return world_->Fail(Concat("(7) the cell of lease ", owned.lease, " of ",
                                 (*owner)->process()->name, " has ended, but its owner has not"));
    }
  }
}

void Pod::CheckKept() {
  using broker::testing::Line;
  using broker::testing::LineOf;
  const plugin::keeper::KeptState& kept = plugin_->kept();
  std::vector<Line> lines;
  for (const auto& [name, buffer] : kept.buffers()) lines.push_back(LineOf(buffer.stated));
  for (const auto& [number, generation] : kept.generations()) {
    protocol::LinkGeneration stated = generation.stated;
    // A name that was deleted takes the right to publish with it, which is not stated.
    const auto& buffer = kept.buffers().at(std::string(protocol::FromNameField(stated.name)));
    if (buffer.stated.pending != number) stated.publisher_client = 0;
    lines.push_back(LineOf(stated));
    if (generation.content_bytes) {
      lines.push_back(
          LineOf(protocol::LinkContent{number, *generation.content_bytes, generation.digest}));
    }
    if (generation.description) {
      lines.push_back(LineOf(protocol::LinkDescription{number, generation.description_bytes}));
    }
  }
  for (const auto& [id, lease] : kept.leases()) lines.push_back(LineOf(lease.stated));
  std::multiset<std::string> keeps;
  std::multiset<std::string> has;
  for (const Line& line : lines) keeps.insert(Concat(line.text, " state ", line.state));
  for (const Line& line : broker::testing::LinesOf(broker_->ledger())) {
    has.insert(Concat(line.text, " state ", line.state));
  }
  if (world_->keeps_trace()) {
    for (const std::string& line : has) world_->Note(Concat("the broker has ", line));
    for (const std::string& line : keeps) world_->Note(Concat("the plugin keeps ", line));
  }
  for (const std::string& line : has) {
    if (!keeps.contains(line)) return world_->Fail(Concat("(5) the plugin does not keep ", line));
  }
  for (const std::string& line : keeps) {
    if (!has.contains(line)) {
      return world_->Fail(Concat("(5) the plugin keeps what the broker has not: ", line));
    }
  }
  for (const auto& [id, client] : kept.clients()) {
    if (!Lives(id))
      return world_->Fail(Concat("(5) the plugin keeps client ", id, ", who is dead"));
  }
}

void Pod::CheckDescriptors() {
  size_t memory = 0;
  size_t pages = 0;
  size_t descriptions = 0;
  for (const auto& [number, generation] : plugin_->kept().generations()) {
    (plugin::keeper::IsSyncPage(generation.stated) ? pages : memory) += 1;
    descriptions += generation.description ? 1 : 0;
  }
  const auto check = [&](const Process& process, size_t sockets, size_t pidfds, size_t others) {
    const Descriptors has = DescriptorsOf(process);
    if (has.memory == memory && has.pages == pages && has.descriptions == descriptions &&
        has.sockets == sockets && has.pidfds == pidfds && has.others == others) {
      return;
    }
    world_->Fail(Concat("(8) ", process.name, " has open: ", has.memory, " of ", memory,
                        " memories, ", has.pages, " of ", pages, " pages, ", has.descriptions,
                        " of ", descriptions, " descriptions, ", has.sockets, " of ", sockets,
                        " sockets, ", has.pidfds, " of ", pidfds, " pidfds, ", has.others, " of ",
                        others, " others:", has.text));
  };
  // Standard descriptors, the world's, two of the event loop; of the broker also its lock, registry
  // and counters.
  check(*broker_process_, /*sockets=*/3, /*pidfds=*/0, /*others=*/9);
  check(*plugin_process_, /*sockets=*/2, /*pidfds=*/1, /*others=*/6);
}

}  // namespace gpushm::simulation
