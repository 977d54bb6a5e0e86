#include "sidecar/broker/broker.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <utility>

#include "contract/annotations/keys.h"
#include "contract/limits.h"
#include "contract/registry/host_list.h"
#include "platform/base/alarm.h"
#include "platform/base/clock.h"
#include "platform/base/sealed_memory.h"
#include "platform/daemon/log.h"
#include "platform/daemon/process.h"

namespace gpushm::broker {
namespace {

// Generation numbers of one start; the next start begins above them.
constexpr uint64_t kGenerationBlock = uint64_t{1} << 32;
// Changes within this time lead to a single write of the list for pods with hostIPC.
constexpr int64_t kHostListDelayMs = 20;
// Time between two attempts to take the name of the socket for pods with hostIPC.
constexpr int64_t kHostSocketRetryMs = 1000;
// Time between two reads of the clients' counters. Prometheus scrapes every 15 to 30 s.
constexpr int64_t kCountersPeriodMs = 1000;
// gpushm-mps writes its state as often.
constexpr int64_t kMpsPeriodMs = 2000;
// The container names for a pod whose containers the broker was not told, and for hostIPC peers.
constexpr char kOnlyContainer[] = "main";
constexpr char kHostIpcContainer[] = "host-ipc";
// Connecting requires write permission; the folder's mode restricts access.
constexpr unsigned kSocketMode = 0666;
constexpr unsigned kHostSocketMode = 0660;  // In /dev/shm the group restricts access.

Result<void> MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0755) == 0) return {};
  if (errno != EEXIST) {
    return FailSystem(errno, Concat("mkdir ", path), "mount a writable volume there");
  }
  return {};
}

}  // namespace

Broker::Broker(EventLoop* loop, BrokerOptions options) : loop_(loop), options_(std::move(options)) {
  AddDriver();
}

void Broker::AddDriver() {
  // The name appears in thread-hangs.
  const std::string name =
      drivers_.empty() ? "gpushm-driver" : Concat("gpushm-driver", drivers_.size());
  drivers_.push_back(std::make_unique<Worker>());
  drivers_.back()->Run([name] { prctl(PR_SET_NAME, name.c_str()); });
}

Broker::~Broker() {
  // A driver call, or closing memory, may hang. The process ends now anyway, and the kernel closes.
  for (const auto& driver : drivers_) driver->Abandon();
  if (counters_) counters_->Publish();
  link_.reset();
  server_.reset();
  if (registry_) registry_->Retire();
  // Closing what clients made may block, also at the end. The kernel does it faster.
  closer_.Abandon();
  if (ledger_) {
    for (Memory& memory : ledger_->LetGo()) {
      for (UniqueFd& descriptor : memory.TakeDescriptors()) {
        [[maybe_unused]] const int left_open = descriptor.Release();
      }
    }
  }
  if (!options_.config.pod_uid.empty() && options_.config.host_ipc) {
    [[maybe_unused]] const auto removed =
        registry::RemoveHostFiles(options_.host_dir, options_.config.pod_uid);
  }
}

// ---- start

// Runs a call during the start on the thread of a GPU's driver, like every call of libcuda. So a
// hanging GPU leads to an error and not to a broker that never answers.
template <typename Answer>
Answer Broker::OnDriver(uint32_t gpu, std::string_view what, std::function<Answer()> call) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Answer> answer;
  };
  const auto shared = std::make_shared<Shared>();
  ++driver_calls_;
  drivers_.at(gpu)->Run([shared, call = std::move(call)] {
    Answer answer = call();
    const std::lock_guard lock(shared->mutex);
    shared->answer.emplace(std::move(answer));
    shared->changed.notify_all();
  });
  std::unique_lock lock(shared->mutex);
  if (!shared->changed.wait_for(lock, std::chrono::milliseconds(options_.start_timeout_ms),
                                [&] { return shared->answer.has_value(); })) {
    return Fail(Code::kTimeout,
                Concat("the driver did not ", what,
                       gpus_.size() > 1 ? Concat(" on GPU ", gpu) : std::string(), " within ",
                       options_.start_timeout_ms, " ms"),
                "check nvidia-smi and the node's kernel log for a hanging GPU");
  }
  --driver_calls_;
  return std::move(*shared->answer);
}

Result<std::unique_ptr<Broker>> Broker::Start(EventLoop* loop, BrokerOptions options) {
  const int64_t started_ns = MonotonicNs();
  std::unique_ptr<Broker> broker(new Broker(loop, std::move(options)));
  const BrokerConfig& config = broker->options_.config;
  if (auto r = broker->LockFolder(); !r) return std::unexpected(r.error());
  if (auto r = broker->TakeGenerations(); !r) return std::unexpected(r.error());
  if (auto r = broker->MakeMpsFolder(); !r) return std::unexpected(r.error());
  if (auto r = broker->PutCudaIpc(); !r) return std::unexpected(r.error());
  Link::Greeting greeting;
  if (auto r = broker->MeetPlugin(&greeting); !r) return std::unexpected(r.error());
  if (auto r = broker->OpenGpus(); !r) return std::unexpected(r.error());
  broker->MakeLedger();
  auto registry = registry::RegistryWriter::Create(limits::kBuffers, broker->epoch_ - 1);
  if (!registry) return std::unexpected(registry.error());
  broker->registry_ = std::move(*registry);
  broker->registry_->SetGpus(broker->ledger_->gpu_count());
  broker->server_.emplace(loop, static_cast<Handler*>(broker.get()));
  std::set<std::string> settled;
  broker->Restore(std::move(greeting.kept), &settled);
  if (auto r = broker->MakeDeclared(settled); !r) return std::unexpected(r.error());
  if (auto r = broker->ListenAll(); !r) return std::unexpected(r.error());
  if (broker->serves_others_) broker->ServeOthers(std::move(greeting.others));
  if (auto r = broker->MakeCounters(); !r) return std::unexpected(r.error());
  broker->RestoreClients(std::move(greeting.clients));
  if (auto r = broker->RunLink(greeting.gpus); !r) return std::unexpected(r.error());
  const int64_t took_ns = MonotonicNs() - started_ns;
  broker->counters_->SetReady(took_ns);
  for (uint32_t number = 1; number < broker->gpus_.size(); ++number) {
    const DeviceInfo& info = broker->gpus_[number].gpu.info();
    LogInfo("ready-gpu", {{"number", number},
                          {"gpu", info.uuid.ToString()},
                          {"gpu_name", info.name},
                          {"pool_bytes", config.pool_bytes},
                          {"used_bytes", broker->ledger_->used_bytes(number)}});
  }
  const Gpu& first = broker->gpus_.front().gpu;
  LogInfo("ready", {{"pod", broker->options_.pod},
                    {"gpu", first.info().uuid.ToString()},
                    {"gpu_name", first.info().name},
                    {"simulated", first.simulated()},
                    {"buffers", broker->ledger_->buffer_count()},
                    {"pool_bytes", config.pool_bytes},
                    {"used_bytes", broker->ledger_->used_bytes(0)},
                    {"folder", config.folder},
                    {"took_ms", took_ns / 1'000'000}});
  return broker;
}

Result<void> Broker::OpenGpus() {
  const BrokerConfig& config = options_.config;
  // The plugin may give more than the pod says.
  const uint32_t count = std::max(config.pod.gpus, static_cast<uint32_t>(config.gpus.size()));
  Result<std::vector<Gpu>> gpus = OnDriver<Result<std::vector<Gpu>>>(
      0, "find its GPUs", [folder = options_.driver_folder, choices = config.gpus, count] {
        return Gpu::Open(folder, choices, count);
      });
  if (!gpus) return std::unexpected(gpus.error());
  for (Gpu& gpu : *gpus) {
    if (config.pool_bytes > gpu.info().total_bytes) {
      return Fail(Code::kExhausted,
                  Concat("the pool of ", config.pool_bytes, " bytes is more than the memory of ",
                         gpu.info().name, ": ", gpu.info().total_bytes),
                  "use a smaller pool, or choose a larger GPU");
    }
    if (!gpus_.empty()) AddDriver();
    gpus_.push_back({.gpu = std::move(gpu)});
  }
  return {};
}

void Broker::MakeLedger() {
  std::vector<LedgerGpu> gpus;
  uint64_t granularity = 1;
  for (const PodGpu& gpu : gpus_) {
    const DeviceInfo& info = gpu.gpu.info();
    gpus.push_back({.uuid = info.uuid, .total_bytes = info.total_bytes});
    granularity = std::max(granularity, info.granularity);
  }
  ledger_.emplace(LedgerLimits{.pool_bytes = options_.config.pool_bytes,
                               .granularity = granularity,
                               .containers = CountContainers(),
                               .one_socket = ServedContainers().empty()},
                  gpus, epoch_);
}

// The flock keeps a second broker out, and is released with the process however it ends. The folder
// itself is never replaced, because containers have it mounted.
Result<void> Broker::LockFolder() {
  const std::string& folder = options_.config.folder;
  if (auto made = MakeFolder(folder); !made) return made;
  Result<UniqueFd> locked = LockFile(
      folder + "/.lock", Status(Code::kAlreadyExists, Concat("another broker serves ", folder),
                                "stop it first, or give this one another --folder"));
  if (!locked) return std::unexpected(locked.error());
  lock_ = std::move(*locked);
  return {};
}

// Makes the folder, and puts a copy of the file there that every uid can use. It is replaced by
// rename, because a container may be using the existing one.
Result<void> Broker::PutFile(const std::filesystem::path& from, const std::string& folder) {
  if (auto made = MakeFolder(folder); !made) return made;
  namespace fs = std::filesystem;
  const std::string to = Concat(folder, "/", from.filename().string());
  const std::string part = to + ".part";
  std::error_code error;
  fs::copy_file(from, part, fs::copy_options::overwrite_existing, error);
  if (!error) fs::permissions(part, fs::perms(0755), error);
  if (!error) fs::permissions(folder, fs::perms(0755), error);
  if (!error) fs::rename(part, to, error);
  if (error) {
    return FailSystem(error.value(), Concat("copy ", from.string(), " to ", folder),
                      "check that the volume of /run/gpushm is not full");
  }
  return {};
}

// The library for programs that use CUDA IPC, and the file that makes the dynamic linker load it.
Result<void> Broker::PutCudaIpc() const {
  const std::string& folder = options_.cuda_ipc_folder;
  if (folder.empty()) return {};
  const std::filesystem::path program(options_.program);
  const auto library = program.parent_path().parent_path() / "lib" / annotations::kCudaIpcLibrary;
  if (auto put = PutFile(library, folder); !put) return put;
  const std::string path = folder + "/ld.so.preload";
  const std::string line =
      Concat(annotations::kCudaIpcFolder, "/", annotations::kCudaIpcLibrary, "\n");
  const std::string part = path + ".part";
  const UniqueFd file(open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file || write(file.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()) ||
      fchmod(file.get(), 0644) != 0 || rename(part.c_str(), path.c_str()) != 0) {
    return FailSystem(errno, Concat("write ", path),
                      "check that the volume of /run/gpushm is not full");
  }
  return {};
}

// gpushm-mps runs as the uid of the pod's containers, and writes there. As in /tmp, nobody removes
// another uid's files. The folder of a claim's daemon is the plugin's, and read-only here; if the
// claim has none, the pod's container gpushm-mps says so.
Result<void> Broker::MakeMpsFolder() const {
  const std::string& folder = options_.mps_folder;
  if (folder.empty()) return {};
  if (mkdir(folder.c_str(), 0755) != 0 && errno == EROFS) return {};
  if (auto made = MakeFolder(folder); !made) return made;
  if (chmod(folder.c_str(), 01777) == 0 || errno == EROFS) return {};
  return FailSystem(errno, Concat("chmod ", folder));
}

// Generation numbers never repeat, even over restarts and after the clock was set back. Each start
// takes a block above the clock and above the last number, which is kept in the folder.
Result<void> Broker::TakeGenerations() {
  const std::string path = options_.config.folder + "/.generations";
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file) return FailSystem(errno, Concat("open ", path));
  char text[32] = {};
  uint64_t last = 0;
  if (const ssize_t length = pread(file.get(), text, sizeof text - 1, 0); length > 0) {
    const auto [end, error] = std::from_chars(text, text + length, last);
    if (error != std::errc() || end != text + length || last > kMaxNumber) {
      return Fail(Code::kCorrupt, Concat(path, " does not contain a valid generation number"),
                  "if no container of the pod is running, remove the file");
    }
  }
  epoch_ = std::max(last, static_cast<uint64_t>(UnixNs())) + 1;
  const std::string next = std::to_string(epoch_ + kGenerationBlock);
  if (pwrite(file.get(), next.data(), next.size(), 0) != static_cast<ssize_t>(next.size())) {
    return FailSystem(errno, Concat("write ", path));
  }
  return {};
}

Result<void> Broker::MakeDeclared(const std::set<std::string>& settled) {
  for (const annotations::BufferSpec& spec : options_.config.pod.buffers) {
    if (settled.contains(spec.name)) continue;
    const Result<Ledger::Ticket> ticket = ledger_->BeginDeclared(spec);
    if (!ticket) return std::unexpected(ticket.error());
    Result<UniqueFd> descriptor =
        OnDriver<Result<UniqueFd>>(ticket->how.gpu, Concat("make \"", spec.name, '"'),
                                   [gpu = gpus_.at(ticket->how.gpu).gpu,
                                    bytes = ticket->mapped_bytes] { return gpu.Allocate(bytes); });
    if (!descriptor) {
      ledger_->Abort(*ticket);
      return std::unexpected(descriptor.error().WithContext(Concat("buffer \"", spec.name, '"')));
    }
    Memory memory;
    memory.descriptor = std::move(*descriptor);
    const auto granted = ledger_->Commit(*ticket, std::move(memory), true, UnixNs());
    GPUSHM_ASSERT(granted.has_value());
  }
  if (auto made = MakeDeclaredSignals(settled); !made) return made;
  Apply();
  return {};
}

Result<void> Broker::ListenAll() {
  const BrokerConfig& config = options_.config;
  const std::vector<std::string> served = ServedContainers();
  if (served.empty()) {
    const std::string path = Concat(config.folder, '/', protocol::kSocketName);
    if (auto r = server_->Listen(path, kSocketMode, kOnlyContainer); !r) return r;
  } else {
    for (const std::string& container : served) {
      if (auto r = ListenFor(container); !r) return r;
    }
  }
  if (!config.host_ipc) return {};
  if (config.pod_uid.empty()) {
    return Fail(Code::kInvalidArgument, "host-ipc needs the pod's UID", "set --pod-uid");
  }
  WriteHostListSoon();
  ListenForHostIpc();
  return {};
}

// If a user of the node has taken the name, the pod's processes on the host cannot reach the broker
// there. The pod's own containers are not affected.
void Broker::ListenForHostIpc(bool first) {
  if (draining_) return;
  const std::string path =
      Concat(options_.host_dir, '/', registry::HostSocketFile(options_.config.pod_uid));
  const auto listening = server_->Listen(path, kHostSocketMode, kHostIpcContainer);
  if (listening && !first) LogInfo("host-socket-served", {{"socket", path}});
  if (listening) return;
  if (first) {
    LogError("host-socket-failed", {{"socket", path}, {"reason", listening.error().ToString()}});
  }
  loop_->After(kHostSocketRetryMs, [this] { ListenForHostIpc(/*first=*/false); });
}

std::vector<std::string> Broker::ServedContainers() const {
  std::vector<std::string> served = options_.config.containers.value_or(std::vector<std::string>());
  if (served.empty()) return served;
  for (const annotations::BufferSpec& spec : options_.config.pod.buffers) {
    if (!spec.file.empty()) served.push_back(annotations::LoaderOf(spec.name));
  }
  return served;
}

uint32_t Broker::CountContainers() const {
  return static_cast<uint32_t>(std::max<size_t>(ServedContainers().size(), 1) +
                               (options_.config.host_ipc ? 1 : 0) + (serves_others_ ? 1 : 0));
}

void Broker::ServeOthers(Link::Greeting::Others others) {
  if (!serves_others_) {
    LogWarning("others-not-served",
               {{"reason",
                 "the plugin of this broker's start did not know pods that share a claim; "
                 "restart the sidecar"}});
    return;
  }
  if (draining_) return;
  others_may_write_ = others.may_write;
  const auto listening = server_->ListenAt(std::move(others.socket), protocol::kOtherPods);
  if (!listening) {
    LogWarning("others-not-served", {{"reason", listening.error().ToString()}});
    return;
  }
  LogInfo("others-served", {{"may_write", others_may_write_}});
}

Result<void> Broker::ListenFor(const std::string& container) {
  const std::string folder = Concat(options_.config.folder, '/', container);
  if (auto made = MakeFolder(folder); !made) return made;
  // Only the sidecar's user may write there; every user may list it and connect.
  if (chmod(folder.c_str(), 0755) != 0) return FailSystem(errno, Concat("chmod ", folder));
  return server_->Listen(Concat(folder, '/', protocol::kSocketName), kSocketMode, container);
}

Result<void> Broker::MakeCounters() {
  Result<CounterBook> counters = CounterBook::Create(server_->containers());
  if (!counters) return std::unexpected(counters.error());
  counters_.emplace(std::move(*counters));
  counters_->SetPrivate(options_.config.pod.private_bytes);
  if (!options_.mps_folder.empty()) LookAtMps();
  return {};
}

void Broker::LookAtMps() {
  if (const auto state = status::ReadMpsState(options_.mps_folder)) {
    mps_state_ = *state;
    mps_error_ = Code::kNotFound;
  } else if (mps_error_ != state.error().code()) {
    mps_error_ = state.error().code();
    if (mps_error_ != Code::kNotFound) {
      LogWarning("mps-state-not-read", {{"reason", state.error().ToString()}});
    }
  }
  counters_->SetMps(mps_state_);
  loop_->After(kMpsPeriodMs, [this] { LookAtMps(); });
}

// ---- carrying out the ledger's changes

void Broker::Apply() {
  EndParticipants();
  if (journal_) StateChanges();
  const std::vector<Change> changes = ledger_->TakeChanges();
  for (const Change& change : changes) ShowChange(change);
  if (!changes.empty()) {
    for (const auto& [container, alarm] : name_alarms_) RingAlarm(alarm.get());
  }
  for (Memory& memory : ledger_->TakeFreed()) {
    // Pooled memory is GPU memory that others wait for, so it must not queue behind what clients
    // made.
    for (UniqueFd& descriptor : memory.TakeDescriptors()) {
      (memory.pooled ? *drivers_.at(memory.gpu) : closer_).Close(std::move(descriptor));
    }
  }
  if (!changes.empty() && options_.config.host_ipc) WriteHostListSoon();
  if (draining_ && Drained()) loop_->Stop();
}

void Broker::ShowChange(const Change& change) {
  const auto slot = slots_.find(change.name);
  if (!change.record) {
    if (slot == slots_.end()) return;
    const auto withdrawn = registry_->Withdraw(slot->second);
    GPUSHM_ASSERT(withdrawn.has_value());
    slots_.erase(slot);
    return;
  }
  if (slot != slots_.end()) {
    const auto updated = registry_->Update(slot->second, *change.record, change.reason);
    GPUSHM_ASSERT(updated.has_value());
    return;
  }
  const Result<uint32_t> inserted = registry_->Insert(*change.record, change.reason);
  GPUSHM_ASSERT(inserted.has_value());  // The ledger has the same limits as the registry.
  slots_.emplace(change.name, *inserted);
}

void Broker::WriteHostListSoon() {
  if (host_list_due_) return;
  host_list_due_ = true;
  loop_->After(kHostListDelayMs, [this] {
    host_list_due_ = false;
    registry::HostList list;
    list.table_version = registry_->table_version();
    list.written_unix_ns = static_cast<uint64_t>(UnixNs());
    list.buffers = ledger_->Records();
    const auto written = registry::WriteHostList(options_.host_dir, options_.config.pod_uid, list);
    if (!written) LogError("host-list-failed", {{"reason", written.error().ToString()}});
  });
}

void Broker::PublishCountersSoon() {
  if (counters_due_) return;
  counters_due_ = true;
  loop_->After(kCountersPeriodMs, [this] {
    counters_due_ = false;
    counters_->Publish();
    if (counters_->has_pages()) PublishCountersSoon();
  });
}

void Broker::OnEnded(const Client& client) {
  DropStaged(client.id);
  const Ledger::Ended ended = ledger_->EndClient(client.id);
  for (const std::string& name : ended.marked) {
    LogWarning("writer-died", {{"buffer", name}, {"container", client.container}});
  }
  for (const std::string& name : ended.dropped) {
    LogInfo("buffer-dropped", {{"buffer", name}, {"container", client.container}});
  }
  Apply();
  counters_->End(client.id);
  if (announced_.erase(client.id) == 0) return;
  link_->State({protocol::LinkDrop{.what = static_cast<uint32_t>(protocol::LinkDropped::kClient),
                                   .reserved = 0,
                                   .id = client.id,
                                   .name = {}}});
}

// ---- end

bool Broker::Drained() const {
  // What other pods hold outlives this broker: the next owner of the claim takes it over.
  size_t of_others = 0;
  if (serves_others_) {
    for (const uint64_t client : server_->ClientsOf(protocol::kOtherPods)) {
      of_others += ledger_->HeldBy(client).leases.size();
    }
  }
  return ledger_->lease_count() <= of_others && driver_calls_ == 0;
}

void Broker::Drain() {
  if (draining_) return;
  draining_ = true;
  LogInfo("draining", {{"leases", ledger_->lease_count()}, {"clients", server_->connected()}});
  server_->StopListening();
  // They find the next owner's broker, as if this one had ended already.
  if (serves_others_) server_->Disconnect(protocol::kOtherPods);
  loop_->After(options_.drain_timeout_ms, [this] {
    LogWarning("drain-timeout", {{"leases", ledger_->lease_count()}});
    loop_->Stop();
  });
  if (Drained()) loop_->Stop();
}

}  // namespace gpushm::broker
