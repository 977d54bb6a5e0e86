#include "plugin/daemon.h"

#include <sys/epoll.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <future>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "contract/status/drained.h"
#include "platform/base/clock.h"
#include "platform/base/memory_limit.h"
#include "platform/base/read_whole.h"
#include "platform/daemon/log.h"
#include "platform/daemon/process.h"

namespace gpushm::plugin {
namespace {

// Time between two checks of the kubelet's list: normally, and while a change is expected.
constexpr int64_t kReconcileMs = 10'000;
constexpr int64_t kProofLookMs = 2'100;  // Above Book::kSeenProofMs.
// After a broker has ended, its pod is about to leave the list.
constexpr int64_t kLinkEndedMs = 200;
// Longest time until the kubelet stops listing a pod whose broker has ended.
constexpr int64_t kPodEndsMs = 40'000;
constexpr int64_t kListTimeoutMs = 5000;
// At shutdown, for the standby plugin to take over. Part of the 10 s that this plugin's pod has to
// end.
constexpr int64_t kHandOverMs = 5000;
// Longest time for which a plugin that takes over keeps the previous one from ending.
constexpr int64_t kRegisteredMs = 3000;
constexpr int64_t kLookMs = 10;
// From the registration after a takeover to the first check of the kubelet's list.
constexpr int64_t kAfterTakeOverMs = 1000;
// At shutdown, how long an NVML call may take before NVML counts as hung.
constexpr std::chrono::milliseconds kNvmlEnds{2000};

// The part of the container's memory that brokers' statements may take. In addition the plugin
// needs 40 MiB for itself and, for the largest answers to /metrics, 100 of the chart's 256.
uint64_t StatementBytes(uint64_t memory_limit_bytes) {
  constexpr uint64_t kUnlimited = uint64_t{1} << 30;
  return std::min(kUnlimited, memory_limit_bytes / 16 * 5);
}

int64_t NowMs() { return MonotonicNs() / 1'000'000; }

std::vector<kubelet::Advertised> Listed(const binding::DeviceIds& ids,
                                        const binding::DeviceIds& unhealthy) {
  std::vector<kubelet::Advertised> devices;
  devices.reserve(ids.size());
  for (const std::string& id : ids) devices.push_back({id, !unhealthy.contains(id)});
  return devices;
}

void TellMissing(const inventory::Advertisement& advertisement) {
  for (const std::string& missing : advertisement.missing) {
    LogError("gpu-not-here",
             {{"gpu", missing},
              {"reason",
               "gpus in the configuration names this GPU, but the node does not have it: it was "
               "replaced, or it has fallen off the bus"}});
  }
}

Result<inventory::Advertisement> ReadGpus(const NvmlApi& nvml, const config::PluginConfig& config) {
  std::vector<std::string> unread;
  const Result<std::vector<inventory::Device>> devices = inventory::ReadDevices(nvml, &unread);
  if (!devices) return std::unexpected(devices.error());
  for (const std::string& reason : unread) LogError("gpu-not-read", {{"reason", reason}});
  Result<inventory::Advertisement> advertisement = inventory::Advertise(*devices, config.rules);
  // The kubelet is told of no extended resources then.
  if (advertisement && config.allocation == config::Allocation::kDra) advertisement->ids = {};
  return advertisement;
}

// Only the other front end can end a ResourceClaim that is prepared on this node: the kubelet calls
// nobody else, and the pods of the claim would neither end nor give their memory back.
Result<void> CheckNoClaims(const config::PluginConfig& config) {
  if (config.allocation == config::Allocation::kDra) return {};
  std::set<std::string> pods;
  // Another plugin may be writing there, so nothing is changed.
  const auto names = ListFolder(config.cdi_folder);
  for (const std::string& name : names.value_or(std::vector<std::string>())) {
    if (!cdi::IsSpecFileName(name)) continue;
    const auto text = ReadWhole(Concat(config.cdi_folder, "/", name), cdi::kMaxSpecBytes);
    const auto binding = text ? cdi::ParseSpec(name, *text) : std::unexpected(text.error());
    if (binding && binding->IsClaim()) pods.insert(binding->owner.pod.ToString());
  }
  if (pods.empty()) return {};
  return Fail(Code::kBusy,
              Concat("ResourceClaims of these pods are prepared on this node, and only a plugin "
                     "with allocation: dra can end them: ",
                     binding::CommaList(pods)),
              "drain the node first, or go back to allocation: dra until these pods have ended");
}

}  // namespace

Daemon::Daemon(EventLoop* loop, DaemonOptions options)
    : loop_(loop), options_(std::move(options)) {}

Daemon::~Daemon() {
  HandOver();
  if (const auto room = TakeRoom()) room->Remove();
  if (registration_) registration_->Stop();
  std::unique_ptr<dra::FrontEnd> front_end;
  std::unique_ptr<monitoring::Monitoring> monitoring;
  {
    // Health and the reconciler may still report devices; after this there is nothing to report
    // them to.
    const std::lock_guard lock(tell_mutex_);
    monitoring = std::move(monitoring_);
    front_end = std::move(dra_);
  }
  front_end.reset();  // Calls in progress use the allocator.
  if (loop_ != nullptr) {
    loop_->Cancel(reconcile_timer_);
    if (drained_watch_) loop_->Unwatch(drained_watch_->fd());
  }
  // NVML hangs with an unhealthy GPU, and these wait for its calls.
  std::promise<void> ended;
  std::thread ending([&] {
    monitoring.reset();
    health_.reset();
    ended.set_value();
  });
  if (ended.get_future().wait_for(kNvmlEnds) == std::future_status::ready) {
    ending.join();
    return;
  }
  LogWarning("ends-while-nvml-hangs", {{"waited_ms", kNvmlEnds.count()}});
  keeper_.reset();  // This also ends what a hostile pod holds up.
  std::_Exit(EXIT_SUCCESS);
}

// Hands over to the standby plugin, if there is one. That plugin starts as soon as it has the lock,
// and releases its own when the kubelet knows it. Until then the kubelet's calls come here and are
// forwarded.
void Daemon::HandOver() {
  // A plugin that took over and could not serve has no successor to hand over to.
  if (!allocator_ || !keeper_ || !locks_.serving || locks_.standby) return;
  const auto waits = [standby = options_.config.state_folder + kStandbyLock] {
    return IsLocked(standby);
  };
  if (!waits()) return;
  const Deadline deadline = Deadline::AfterMs(kHandOverMs);
  if (registration_) registration_->HandOver();
  if (dra_) dra_->HandOver();
  TakeRoom().reset();
  allocator_->Close();  // From here on the node's files belong to the other plugin.
  locks_.serving.Reset();
  keeper_->HandOver(deadline, waits);
  while ((registration_ || dra_) && waits() && !deadline.Passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(kLookMs));
  }
  if (registration_) registration_->Drain(deadline);
}

// Nothing is offered to it from then on.
std::unique_ptr<inventory::RoomFile> Daemon::TakeRoom() {
  const std::lock_guard lock(tell_mutex_);
  return std::move(room_);
}

Result<void> Daemon::CheckNode(const DaemonOptions& options) {
  if (auto free = CheckNoClaims(options.config); !free) return free;
  return Daemon(nullptr, options).ReadNode();
}

Result<std::unique_ptr<Daemon>> Daemon::Start(EventLoop* loop, DaemonOptions options,
                                              NodeLocks locks) {
  const int64_t started_ns = MonotonicNs();
  std::unique_ptr<Daemon> daemon(new Daemon(loop, std::move(options)));
  daemon->locks_ = std::move(locks);
  for (const auto step :
       {&Daemon::LockState, &Daemon::ReadNode, &Daemon::OpenFiles, &Daemon::TakeOver,
        &Daemon::StartHealth, &Daemon::StartMonitoring, &Daemon::WatchDrained, &Daemon::Serve}) {
    if (auto done = (daemon.get()->*step)(); !done) return std::unexpected(done.error());
  }
  if (daemon->locks_.standby && daemon->registration_) {
    daemon->registration_->WaitFor([](const kubelet::State& state) { return state.usable(); },
                                   Deadline::AfterMs(kRegisteredMs));
  }
  if (daemon->locks_.standby && daemon->dra_) {
    daemon->dra_->WaitRegistered(Deadline::AfterMs(kRegisteredMs));
  }
  // The previous plugin may end now, and the next one may stand by.
  daemon->locks_.standby.Reset();
  LogInfo("ready",
          {{"gpus", daemon->advertisement_.gpus.size()},
           {"memory_ids", daemon->advertisement_.ids[binding::Resource::kMemory].size()},
           {"attach_ids", daemon->advertisement_.ids[binding::Resource::kAttach].size()},
           {"exclusive_ids", daemon->advertisement_.ids[binding::Resource::kExclusive].size()},
           {"gpus_ids", daemon->advertisement_.ids[binding::Resource::kGpus].size()},
           {"nvlink_ids", daemon->advertisement_.ids[binding::Resource::kNvlink].size()},
           {"driver", daemon->driver_->version},
           {"driver_root", daemon->driver_->root},
           {"bindings", daemon->allocator_->bindings().size()},
           {"took_ms", (MonotonicNs() - started_ns) / 1'000'000}});
  return daemon;
}

Result<void> Daemon::MakeStateFolder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0755) == 0 || errno == EEXIST) return {};
  return FailSystem(errno, Concat("mkdir ", folder),
                    "create its parent and make it writable, or set another state-folder, for "
                    "example /var/lib/gpushm");
}

Result<void> Daemon::LockState() {
  const std::string& folder = options_.config.state_folder;
  if (!locks_.serving) {
    if (auto made = MakeStateFolder(folder); !made) return made;
    Result<UniqueFd> locked =
        LockFile(folder + kServingLock,
                 Status(Code::kAlreadyExists, Concat("another plugin serves ", folder),
                        "run one plugin per node, or use --standby to wait for its end"));
    if (!locked) return std::unexpected(locked.error());
    locks_.serving = std::move(*locked);
  }
  // Also when taking over: a pod may have come while this plugin stood by.
  if (auto free = CheckNoClaims(options_.config); !free) return free;
  if (options_.config.kubelet == config::KubeletMode::kNone || locks_.standby) return {};
  // A plugin with another state folder: check before changing anything that both would share. It
  // may also have the other front end.
  if (auto alone = dra::FrontEnd::CheckAlone(options_.config.plugins_registry_folder); !alone) {
    return alone;
  }
  return kubelet::Registration::CheckAlone({.folder = options_.config.kubelet_folder});
}

Result<void> Daemon::ReadNode() {
  const config::PluginConfig& config = options_.config;
  Result<cdi::DriverFiles> driver =
      cdi::FindDriver({.root = config.driver_root.empty() ? "auto" : config.driver_root,
                       .host_root = config.host_root,
                       .simulated_state = options_.simulated_state});
  if (!driver) {
    // Without a kubelet nothing is mounted into containers: NVML is enough, wherever it is found.
    if (config.kubelet != config::KubeletMode::kNone) return std::unexpected(driver.error());
    LogWarning("no-driver-files", {{"reason", driver.error().ToString()}});
    driver.emplace();
  }
  for (const std::string& passed : driver->passed_over) {
    LogInfo("driver-passed-over", {{"reason", passed}});
  }
  driver_ = std::move(*driver);
  const Result<const NvmlApi*> nvml = NvmlApi::Load(
      options_.driver_folder.empty() ? driver_->library_folder : options_.driver_folder);
  if (!nvml) return std::unexpected(nvml.error());
  nvml_ = *nvml;
  Result<inventory::Advertisement> advertisement = ReadGpus(*nvml_, config);
  if (!advertisement) return std::unexpected(advertisement.error());
  advertisement_ = std::move(*advertisement);
  TellMissing(advertisement_);
  return {};
}

Result<void> Daemon::OpenFiles() {
  const config::PluginConfig& config = options_.config;
  // Mounted at the host's own path, because what is mounted into containers is named by host paths.
  Result<cdi::HostFiles> files = cdi::HostFiles::Open(config.state_folder, config.state_folder);
  if (!files) return std::unexpected(files.error());
  files_ = std::move(*files);
  if (config.allocation == config::Allocation::kDra) files_->UseRunFolder(config.claims_folder);
  cdi::OwnFiles own;
  const bool kubelet = config.kubelet == config::KubeletMode::kAuto;
  if (options_.payload_folder.empty()) {
    if (kubelet)
      LogWarning(
          "no-payload",
          {{"reason", "no --payload: containers must bring their own libgpushm and gpushmctl"}});
  } else {
    const Result<bool> installed =
        files_->Install(Concat(options_.payload_folder, "/", cdi::kLibraryName),
                        Concat(options_.payload_folder, "/", cdi::kCtlName));
    if (!installed) return std::unexpected(installed.error());
    own = cdi::OwnFiles{.library = files_->library(), .ctl = files_->ctl(), .link_folder = {}};
  }
  if (kubelet) {
    Result<cdi::SpecStore> specs = cdi::SpecStore::Open(config.cdi_folder);
    if (!specs) return std::unexpected(specs.error());
    specs_ = std::move(*specs);
  }

  const auto on_link = [this](const std::string& name, bool open) {
    allocator_->NoteLink(name, open);
    if (open) return;
    loop_->Post([this] {
      look_often_until_ms_ = NowMs() + kPodEndsMs;
      ReconcileSoon(kLinkEndedMs);
    });
  };
  Result<std::unique_ptr<keeper::Keeper>> keeper = keeper::Keeper::Start(
      {.links_folder = config.state_folder + "/links",
       .others_folder = config.state_folder + "/others",
       .on_link = on_link,
       .on_ready = [this](double seconds) { counters_.BrokerReady(seconds); },
       .on_foreign = [this](keeper::ForeignStep step) { counters_.Foreign(step); },
       .settings = {.memory = MemoryKind::Of(options_.simulated_state)},
       .statement_bytes = StatementBytes(MemoryLimitBytes())});
  if (!keeper) return std::unexpected(keeper.error());
  keeper_ = std::move(*keeper);
  MakeNode(own);
  if (specs_) {
    // Not only with the first binding: a plugin that cannot write the shared spec must not
    // register.
    const Result<bool> shared = specs_->WriteShared(cdi::SharedEdits(*driver_, own));
    if (!shared) return std::unexpected(shared.error());
  }
  allocator_.emplace(allocation::AllocatorOptions{.unit_bytes = config.rules.unit_bytes,
                                                  .coexist = config.coexist,
                                                  .tenancy = config.tenancy,
                                                  .own_pod = options_.own_pod},
                     &*node_);
  allocator_->SetGpus(advertisement_.gpus);
  return {};
}

void Daemon::MakeNode(const cdi::OwnFiles& own) {
  const config::PluginConfig& config = options_.config;
  if (config.kubelet == config::KubeletMode::kAuto) {
    kubelet::PodResources::Options pods;
    pods.socket = config.pod_resources_socket;
    pods_.emplace(std::move(pods));
  }
  if (pods_ && !config.coexist) {
    taken_.emplace(config.state_folder + "/taken.json", config.not_gpus, NowMs());
  }
  node_.emplace(allocation::Node::Parts{.pods = pods_ ? &*pods_ : nullptr,
                                        .pod_resources_socket = config.pod_resources_socket,
                                        .specs = specs_ ? &*specs_ : nullptr,
                                        .files = &*files_,
                                        .keeper = keeper_.get(),
                                        .taken = taken_ ? &*taken_ : nullptr,
                                        .not_gpus = config.not_gpus,
                                        .plugins_registry_folder = config.plugins_registry_folder,
                                        .state_folder = config.state_folder},
                *driver_, own, config.rules.unit_bytes, advertisement_.on_node);
}

// Takes over what an earlier run of the plugin left, however that run ended.
Result<void> Daemon::TakeOver() {
  Result<cdi::SpecStore::Contents> contents = cdi::SpecStore::Contents();
  if (specs_) contents = specs_->ReadAll();
  if (!contents) return std::unexpected(contents.error());
  for (const cdi::SpecStore::Damaged& damaged : contents->damaged) {
    LogWarning("spec-damaged",
               {{"file", damaged.file_name}, {"reason", damaged.reason.ToString()}});
    if (auto removed = specs_->RemoveDamaged(damaged); !removed) return removed;
  }
  allocator_->Restore(contents->bindings);
  std::set<std::string> names;
  for (const binding::Binding& binding : contents->bindings) {
    if (binding.resource == binding::Resource::kMemory) names.insert(binding.name());
  }
  // Link folders of declared allocations stay: containers may have them mounted.
  for (const config::NodeAllocation& declared : options_.config.allocations)
    names.insert(declared.name);
  const Result<std::vector<std::string>> folders = files_->LinkFolders();
  if (!folders) return std::unexpected(folders.error());
  for (const std::string& folder : *folders) {
    if (names.contains(folder)) continue;
    if (const auto removed = files_->RemoveLinkFolder(folder); !removed) {
      LogError("not-removed", {{"allocation", folder}, {"reason", removed.error().ToString()}});
    }
  }
  return {};
}

Result<void> Daemon::StartHealth() {
  health_.emplace(*nvml_, advertisement_.devices, options_.config.health,
                  [this](const inventory::HealthChange& change) { OnHealth(change); });
  return {};
}

Result<void> Daemon::StartMonitoring() {
  monitoring::Monitoring::Parts parts{
      .nvml = nvml_,
      .allocator = &*allocator_,
      .keeper = keeper_.get(),
      .health = &*health_,
      .counters = &counters_,
      .registration = {},
      .loops = {{"for signals, files and timers", [loop = loop_] { return loop->BusyMs(); }},
                {"for the plugin links", [keeper = keeper_.get()] { return keeper->BusyMs(); }}},
      .unit_bytes = options_.config.rules.unit_bytes,
      .node_name = options_.node_name};
  if (UsesDra()) {
    parts.not_ready = [this] { return DraNotReady(); };
  } else if (options_.config.kubelet != config::KubeletMode::kNone) {
    parts.registration = [this] {
      const kubelet::Registration* const registration = shown_registration_;
      if (registration != nullptr) return registration->state();
      kubelet::State none;
      none.withheld = Withheld();
      return none;
    };
  }
  auto monitoring =
      monitoring::Monitoring::Start(options_.config.monitoring, parts, advertisement_);
  if (!monitoring) return std::unexpected(monitoring.error());
  {
    const std::lock_guard lock(tell_mutex_);
    monitoring_ = std::move(*monitoring);
  }
  TellDevices();
  return {};
}

// One machine without Kubernetes: its allocations are those in the configuration.
Result<void> Daemon::OpenDeclared() {
  std::map<std::string, uint64_t> free;  // Bytes, keyed by UUID.
  for (const binding::Gpu& gpu : advertisement_.gpus) {
    free[gpu.uuid] = gpu.units * options_.config.rules.unit_bytes;
  }
  for (const config::NodeAllocation& allocation : options_.config.allocations) {
    const inventory::Device* chosen = nullptr;
    uint64_t largest = 0;
    for (const inventory::Device& device : advertisement_.devices) {
      const bool wanted = !allocation.gpu || device.uuid == allocation.gpu->uuid ||
                          (allocation.gpu->uuid.empty() && device.index == allocation.gpu->index);
      if (!wanted) continue;
      largest = std::max(largest, free[device.uuid]);
      if (free[device.uuid] < allocation.memory_bytes) continue;
      if (chosen == nullptr || free[device.uuid] < free[chosen->uuid]) chosen = &device;
    }
    if (chosen == nullptr) {
      return Fail(Code::kExhausted,
                  Concat("allocation \"", allocation.name, "\" needs ", allocation.memory_bytes,
                         " bytes on one GPU, but the largest free block is ", largest),
                  "make it smaller, or name another GPU");
    }
    free[chosen->uuid] -= allocation.memory_bytes;
    const Result<std::string> folder = files_->MakeLinkFolder(allocation.name);
    if (!folder) return std::unexpected(folder.error());
    if (auto opened = keeper_->Open(allocation.name, {{chosen->uuid}, allocation.memory_bytes});
        !opened) {
      return opened;
    }
    LogInfo("allocated", {{"allocation", allocation.name},
                          {"gpu", chosen->uuid},
                          {"bytes", allocation.memory_bytes},
                          {"folder", *folder}});
  }
  return {};
}

// Runs on the monitor's thread.
void Daemon::OnHealth(const inventory::HealthChange& change) {
  if (change.healthy) {
    LogInfo("gpu-healthy", {{"gpu", change.uuid}});
  } else {
    LogError("gpu-unhealthy", {{"gpu", change.uuid}, {"reason", change.reason}});
  }
  allocator_->SetHealth(change.uuid, change.healthy);
  keeper_->SetDevice(change.uuid, !change.healthy, change.reason);
  TellDevices();
}

void Daemon::TellDevices() {
  const std::lock_guard lock(tell_mutex_);
  std::map<binding::Resource, uint64_t> told;
  for (const binding::Resource resource : binding::kResources) {
    const binding::DeviceIds& ids = advertisement_.ids[resource];
    const binding::DeviceIds unhealthy = allocator_->Unhealthy(resource, ids);
    told[resource] = unhealthy.size();
    if (registration_) registration_->SetDevices(resource, Listed(ids, unhealthy));
  }
  if (dra_) {
    dra::Offer offer{.devices = advertisement_.devices, .gpus = allocator_->gpus(), .places = {}};
    for (const inventory::Device& device : offer.devices) {
      if (device.pci_address.empty()) continue;
      offer.places[device.pci_address] = dra::ReadPciPlace(device.pci_address);
    }
    for (const inventory::DeviceHealth& state : health_->Look()) {
      if (!state.healthy) offer.reasons[state.uuid] = state.reason;
    }
    dra_->SetOffer(offer);
  }
  if (room_) room_->Offer(allocator_->LargestFree());
  if (!monitoring_) return;
  monitoring_->SetOffer(allocator_->gpus(), told);
}

Result<void> Daemon::Serve() {
  const config::PluginConfig& config = options_.config;
  if (config.kubelet == config::KubeletMode::kNone) return OpenDeclared();
  // A first check, so that this plugin advertises nothing that another plugin hands out. Without a
  // kubelet yet, each PreStartContainer checks anyway. A plugin that takes over knows what the
  // previous one saw, and pods in the previous one's pending calls wait for it. So it does not
  // request the kubelet's list meanwhile (allocator.h, invariant 2).
  const bool takes_over = locks_.standby.valid();
  if (!takes_over) {
    if (const auto looked = allocator_->Reconcile(NowMs()); !looked) {
      LogWarning("not-listed", {{"reason", looked.error().ToString()}});
    }
  }
  if (auto registered = UsesDra() ? StartDra() : Register(); !registered) return registered;
  ReconcileSoon(takes_over ? kAfterTakeOverMs : 0);
  return {};
}

Result<void> Daemon::StartDra() {
  const config::PluginConfig& config = options_.config;
  if (options_.node_name.empty()) {
    return Fail(Code::kInvalidArgument,
                "allocation: dra needs the node's name, but NODE_NAME is not set",
                "set the environment variable NODE_NAME to the pod's spec.nodeName, as the chart "
                "does");
  }
  Result<kubernetes::ApiAddress> api =
      kubernetes::FindApi(config.api_server, config.api_credentials);
  if (!api) return std::unexpected(api.error());
  Result<std::unique_ptr<dra::FrontEnd>> front_end =
      dra::FrontEnd::Start({.node = options_.node_name,
                            .registry_folder = config.plugins_registry_folder,
                            .plugins_folder = config.plugins_folder,
                            .api = std::move(*api)},
                           &*allocator_);
  if (!front_end) return std::unexpected(front_end.error());
  {
    const std::lock_guard lock(tell_mutex_);
    dra_ = std::move(*front_end);
  }
  TellDevices();
  return {};
}

std::string Daemon::DraNotReady() {
  const std::lock_guard lock(tell_mutex_);
  const dra::FrontEndState state = dra_ ? dra_->state() : dra::FrontEndState{};
  if (state.registered) return state.problem;
  return "the kubelet has not registered the driver for dynamic resource allocation";
}

// Why this plugin deliberately does not register: somebody else hands out GPUs of this node, and
// the plugin cannot tell which. If pods are bound already it registers, because their containers
// could not restart otherwise; no new pod is bound then.
std::string Daemon::Withheld() const {
  const std::string by = node_->AllTakenBy();
  if (by.empty() || !allocator_->bindings().empty()) return {};
  return Concat(by, " hands out GPUs of this node, and the plugin cannot tell which");
}

Result<void> Daemon::Register() {
  if (const std::string why = Withheld(); !why.empty()) {
    LogError("not-registered", {{"reason", why}});
    return {};
  }
  kubelet::Registration::Options options;
  options.folder = options_.config.kubelet_folder;
  options.beside = locks_.standby.valid();
  options.on_call = [this](const kubelet::CallRecord& record) {
    counters_.Note(record);
    // A binding can close a GPU to others, or to pods that want it alone.
    const bool bound = record.kind == kubelet::CallRecord::Kind::kPreStart &&
                       record.resource == binding::Resource::kMemory && !record.error;
    if (bound) reconciler_.Run([this] { TellDevices(); });
  };
  Result<std::unique_ptr<kubelet::Registration>> registration =
      kubelet::Registration::Start(std::move(options), &*allocator_);
  if (!registration) return std::unexpected(registration.error());
  {
    const std::lock_guard lock(tell_mutex_);
    registration_ = std::move(*registration);
    shown_registration_ = registration_.get();
    const std::string& features = options_.config.features_folder;
    if (!features.empty()) room_ = std::make_unique<inventory::RoomFile>(features);
  }
  TellDevices();
  return {};
}

bool Daemon::HasHealthy(binding::Resource resource) {
  const std::lock_guard lock(tell_mutex_);
  const binding::DeviceIds& ids = advertisement_.ids[resource];
  return allocator_->Unhealthy(resource, ids).size() < ids.size();
}

// A kubelet can confuse two registrations: it reads the plugin's list but shows no device
// (Registration::Renew). Two checks in a row must show this, because a new list takes time to
// appear. Runs on the reconciler's thread.
void Daemon::CheckBelieved() {
  const auto node = pods_->Allocatable(Deadline::AfterMs(kListTimeoutMs));
  if (!node) return;
  for (const binding::Resource resource : binding::kResources) {
    const auto found = node->ours.find(resource);
    const bool believed = (found != node->ours.end() && !found->second.empty()) ||
                          !HasHealthy(resource) || !registration_->state().Of(resource).usable();
    int& doubts = doubts_[resource];
    doubts = believed ? 0 : doubts + 1;
    if (doubts < 2) continue;
    doubts = 0;
    LogWarning("not-believed",
               {{"resource", binding::ResourceName(resource)},
                {"reason",
                 "the kubelet reads the device list, but shows no healthy device of this resource; "
                 "registering again"}});
    registration_->Renew(resource);
  }
}

// Without inotify, Reconcile and each PreStart look anyway.
Result<void> Daemon::WatchDrained() {
  const std::string folder = Concat(options_.config.state_folder, "/", status::kDrainedFolder);
  if (auto made = MakeStateFolder(folder); !made) return made;
  drained_watch_.emplace(folder);
  drained_watch_->Refresh({});
  if (drained_watch_->fd() < 0) return {};
  return loop_->Watch(drained_watch_->fd(), EPOLLIN, [this](uint32_t) {
    drained_watch_->Drain();
    drained_watch_->Refresh({});
    reconciler_.Run([this] {
      allocator_->LookAtClosed();
      TellDevices();
    });
  });
}

void Daemon::ReconcileSoon(int64_t wait_ms) {
  if (!pods_) return;
  loop_->Cancel(reconcile_timer_);
  reconcile_timer_ = loop_->After(wait_ms, [this] {
    if (reconciling_) return;  // It schedules the next check when it is done.
    reconciling_ = true;
    reconciler_.Run([this] {
      const auto released = allocator_->Reconcile(NowMs());
      if (!released) {
        counters_.PodListFailed();
        LogWarning("not-listed", {{"reason", released.error().ToString()}});
      }
      // IDs that were bound to a GPU that is gone are advertised again; other plugins come and go.
      if (released) TellDevices();
      if (released && shown_registration_ != nullptr) CheckBelieved();
      loop_->Post([this] {
        reconciling_ = false;
        if (!UsesDra() && !registration_ && Withheld().empty()) {
          if (auto registered = Register(); !registered) {
            LogError("not-registered", {{"reason", registered.error().ToString()}});
          }
        }
        const bool often = allocator_->WaitsForProof() || NowMs() < look_often_until_ms_;
        ReconcileSoon(often ? kProofLookMs : kReconcileMs);
      });
    });
  });
}

}  // namespace gpushm::plugin
