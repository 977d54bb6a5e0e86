#include "plugin/kubelet/testing/scripted_kubelet.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <sys/epoll.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "platform/daemon/event_loop.h"
#include "platform/daemon/unix_socket.h"
#include "plugin/kubelet/device_plugin.grpc.pb.h"
#include "plugin/kubelet/grpc_support.h"
#include "plugin/kubelet/pod_resources.grpc.pb.h"
#include "plugin/kubelet/testing/plugin_table.h"

namespace gpushm::plugin::kubelet::testing {
namespace {

constexpr char kCheckpoint[] = "kubelet_internal_checkpoint";

// Like golang.org/x/time/rate.
class RateLimit {
 public:
  RateLimit(double qps, double burst) : qps_(qps), burst_(burst), tokens_(burst) {}
  bool Allow() {
    const std::lock_guard lock(mutex_);
    const int64_t now_ns = MonotonicNs();
    tokens_ = std::min(burst_, tokens_ + static_cast<double>(now_ns - at_ns_) * 1e-9 * qps_);
    at_ns_ = now_ns;
    if (tokens_ < 1) return false;
    tokens_ -= 1;
    return true;
  }

 private:
  const double qps_;
  const double burst_;
  std::mutex mutex_;
  double tokens_;
  int64_t at_ns_ = MonotonicNs();
};

}  // namespace

class ScriptedKubelet::Impl final : public ::v1beta1::Registration::Service,
                                    public ::v1::PodResourcesLister::Service {
 public:
  explicit Impl(Options options)
      : options_(std::move(options)),
        limit_(options_.list_qps, options_.list_burst),
        manager_(options_.seed),
        table_({.known_by_resource_alone = options_.known_by_resource_alone,
                .notice_ms = options_.notice_ms,
                .dial_ms = options_.dial_ms},
               &manager_) {
    RouteGrpcLog();
  }
  ~Impl() override { Stop(Death::kStopped); }

  Result<void> Start() {
    std::error_code error;
    std::filesystem::create_directories(options_.folder, error);
    Wipe();
    manager_.Restart();
    table_.Restart();
    {
      const std::lock_guard lock(mutex_);
      active_.clear();
      sources_ready_ = pods_.empty();
    }
    grpc::ServerBuilder builder;
    builder.RegisterService(static_cast<::v1beta1::Registration::Service*>(this));
    builder.RegisterService(static_cast<::v1::PodResourcesLister::Service*>(this));
    // In gRPC, a server with neither a queue of its own nor ports does not need them.
    server_ = builder.BuildAndStart();
    return Serve();
  }

  Result<void> Serve() {
    Result<std::unique_ptr<EventLoop>> loop = EventLoop::Create();
    if (!loop) return std::unexpected(loop.error());
    loop_ = std::move(*loop);
    std::vector<std::string> paths = {Concat(options_.folder, "/", options_.kubelet_socket)};
    if (!options_.pod_resources_socket.empty()) paths.push_back(options_.pod_resources_socket);
    for (const std::string& path : paths) {
      Result<ListeningSocket> socket = ListeningSocket::Bind(path);
      if (!socket) return std::unexpected(socket.error());
      sockets_.push_back(std::make_unique<ListeningSocket>(std::move(*socket)));
      const Result<void> watched = loop_->Watch(
          sockets_.back()->fd(), EPOLLIN, [this, from = sockets_.back().get()](uint32_t) {
            for (UniqueFd connection = from->Accept(); connection; connection = from->Accept())
              grpc::AddInsecureChannelFromFd(server_.get(), connection.Release());
          });
      if (!watched) return watched;
    }
    thread_ = std::thread([this] { loop_->Run(); });
    return {};
  }

  void StopServing(Death death) {
    if (!loop_) return;
    loop_->Stop();
    if (thread_.joinable()) thread_.join();
    for (const auto& socket : sockets_) {
      if (death == Death::kKilled) socket->Abandon();
    }
    sockets_.clear();
    loop_.reset();
  }

  void Stop(Death death) {
    StopServing(death);
    table_.CloseAll();
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }

  Result<void> ListenAgain() {
    StopServing(Death::kStopped);
    return Serve();
  }

  void PowerOff() {
    Stop(Death::kKilled);
    const std::lock_guard lock(mutex_);
    for (auto& [uid, pod] : pods_) {
      for (auto& [name, container] : pod.status.containers)
        container.state = ContainerStatus::State::kWaiting;
    }
  }

  void Readmit() {
    std::vector<std::string> uids;
    {
      const std::lock_guard lock(mutex_);
      for (const std::string& uid : order_) {
        if (pods_.contains(uid) && !pods_.at(uid).status.failed) uids.push_back(uid);
      }
    }
    for (const std::string& uid : uids) Admit(uid);
    const std::lock_guard lock(mutex_);
    sources_ready_ = true;
  }

  std::string AddPod(const PodSpec& spec) {
    std::string uid;
    {
      const std::lock_guard lock(mutex_);
      uid = Concat("uid-", ++last_uid_);
      order_.push_back(uid);
      pods_[uid].spec = spec;
      for (const ContainerSpec& container : spec.containers)
        pods_[uid].status.containers[container.name] = {};
    }
    Admit(uid);
    return uid;
  }

  bool StartPod(const std::string& uid) {
    const std::optional<PodSpec> spec = SpecOf(uid);
    if (!spec || StatusOf(uid).failed) return false;
    bool all = true;
    for (const ContainerSpec& container : spec->containers) {
      if (StatusOf(uid).containers[container.name].state != ContainerStatus::State::kWaiting)
        continue;
      const bool started = StartContainer(uid, container).has_value();
      all = all && started;
      // What follows an init container waits for it.
      if (!started && container.role != Role::kApp) return false;
    }
    return all;
  }

  bool WaitRunning(const std::string& uid, const Deadline& deadline) {
    while (!StartPod(uid)) {
      if (StatusOf(uid).failed) return false;
      std::unique_lock lock(mutex_);
      const int64_t wait_ns = std::min(options_.retry_ms * 1'000'000, deadline.RemainingNs());
      if (wait_ns == 0) return false;
      pods_changed_.wait_for(lock, std::chrono::nanoseconds(wait_ns), [] { return false; });
    }
    return true;
  }

  Result<void> RestartContainer(const std::string& uid, const std::string& name) {
    const std::optional<PodSpec> spec = SpecOf(uid);
    if (!spec) return Fail(Code::kNotFound, "no such pod");
    for (const ContainerSpec& container : spec->containers) {
      if (container.name != name) continue;
      SetState(uid, name, ContainerStatus::State::kWaiting, "");
      for (const auto& [resource, ids] : manager_.AllOf({uid, name})) {
        if (!manager_.IsAnyUnhealthy(resource, ids)) continue;
        const std::string text = Concat(
            "previously allocated devices are no longer healthy; cannot allocate unhealthy "
            "devices ",
            resource);
        SetState(uid, name, ContainerStatus::State::kWaiting, text);
        return Fail(Code::kUnavailable, text);
      }
      return StartContainer(uid, container);
    }
    return Fail(Code::kNotFound, "no such container");
  }

  void DeletePod(const std::string& uid) {
    const std::lock_guard lock(mutex_);
    pods_.erase(uid);
    active_.erase(uid);
    std::erase(order_, uid);
  }

  PodStatus StatusOf(const std::string& uid) const {
    PodStatus status;
    {
      const std::lock_guard lock(mutex_);
      const auto found = pods_.find(uid);
      if (found == pods_.end()) return status;
      status = found->second.status;
    }
    for (auto& [name, container] : status.containers) {
      container.ids = manager_.AllOf({uid, name});
      container.answers = manager_.AnswersOf({uid, name});
    }
    return status;
  }

  // Registration
  grpc::Status Register(grpc::ServerContext*, const ::v1beta1::RegisterRequest* request,
                        ::v1beta1::Empty*) override {
    {
      const std::lock_guard lock(mutex_);
      if (refusals_ > 0) {
        --refusals_;
        return {grpc::StatusCode::UNKNOWN, "refused by the test"};
      }
    }
    if (request->version() != "v1beta1")
      return {grpc::StatusCode::UNKNOWN, "requested API version is not supported by kubelet"};
    const size_t slash = request->resource_name().find('/');
    if (slash == std::string::npos || slash == 0)
      return {grpc::StatusCode::UNKNOWN, "the ResourceName is invalid"};
    const Result<void> connected =
        table_.Connect(request->resource_name(), Concat(options_.folder, "/", request->endpoint()));
    if (!connected) return {grpc::StatusCode::UNKNOWN, connected.error().what()};
    return grpc::Status::OK;
  }

  // PodResourcesLister
  grpc::Status List(grpc::ServerContext*, const ::v1::ListPodResourcesRequest*,
                    ::v1::ListPodResourcesResponse* response) override {
    if (!limit_.Allow()) return {grpc::StatusCode::RESOURCE_EXHAUSTED, "rejected by rate limit"};
    UpdateAllocated();
    const std::lock_guard lock(mutex_);
    ++list_calls_;
    for (const std::string& uid : active_) {
      const Known& known = pods_.at(uid);
      ::v1::PodResources* const pod = response->add_pod_resources();
      pod->set_name(known.spec.pod.name);
      pod->set_namespace_(known.spec.pod.name_space);
      for (const ContainerSpec& container : known.spec.containers) {
        ::v1::ContainerResources* const to = pod->add_containers();
        to->set_name(container.name);
        for (const auto& [resource, ids] : manager_.AllOf({uid, container.name})) {
          for (const std::string& id : manager_.Shuffle(ids)) {
            ::v1::ContainerDevices* const devices = to->add_devices();
            devices->set_resource_name(resource);
            devices->add_device_ids(id);
          }
        }
      }
    }
    return grpc::Status::OK;
  }

  grpc::Status GetAllocatableResources(grpc::ServerContext*,
                                       const ::v1::AllocatableResourcesRequest*,
                                       ::v1::AllocatableResourcesResponse* response) override {
    for (const auto& [resource, ids] : manager_.Healthy()) {
      for (const std::string& id : manager_.Shuffle(ids)) {
        ::v1::ContainerDevices* const devices = response->add_devices();
        devices->set_resource_name(resource);
        devices->add_device_ids(id);
      }
    }
    return grpc::Status::OK;
  }

  uint64_t list_calls() const {
    const std::lock_guard lock(mutex_);
    return list_calls_;
  }
  void Refuse(int count) {
    const std::lock_guard lock(mutex_);
    refusals_ = count;
  }
  PluginTable& table() { return table_; }
  DeviceManager& manager() { return manager_; }

 private:
  struct Known {
    PodSpec spec;
    PodStatus status;
  };

  void Wipe() {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(options_.folder, error)) {
      if (entry.path().filename() == kCheckpoint || entry.is_directory(error)) continue;
      if (options_.wipes_all_files || entry.is_socket(error))
        std::filesystem::remove(entry.path(), error);
    }
  }

  std::optional<PodSpec> SpecOf(const std::string& uid) const {
    const std::lock_guard lock(mutex_);
    const auto found = pods_.find(uid);
    if (found == pods_.end()) return std::nullopt;
    return found->second.spec;
  }

  void UpdateAllocated() {
    std::set<std::string> active;
    {
      const std::lock_guard lock(mutex_);
      if (!sources_ready_) return;
      active = active_;
    }
    manager_.Update(active);
  }

  void SetState(const std::string& uid, const std::string& name, ContainerStatus::State state,
                const std::string& message) {
    const std::lock_guard lock(mutex_);
    const auto found = pods_.find(uid);
    if (found == pods_.end()) return;
    ContainerStatus& container = found->second.status.containers[name];
    container.state = state;
    container.message = message;
  }

  // One pod after the other, containers in order. A failure ends the pod.
  void Admit(const std::string& uid) {
    const std::lock_guard one_at_a_time(admission_);
    const std::optional<PodSpec> spec = SpecOf(uid);
    if (!spec) return;
    {
      const std::lock_guard lock(mutex_);
      active_.insert(uid);
    }
    for (const ContainerSpec& container : spec->containers) {
      const Result<void> done = Allocate(uid, container);
      if (done) continue;
      const std::lock_guard lock(mutex_);
      Known& known = pods_[uid];
      known.status.failed = true;
      known.status.message = Concat("UnexpectedAdmissionError: Allocate failed due to ",
                                    done.error().what(), ", which is unexpected");
      active_.erase(uid);
      return;
    }
  }

  bool RunsAlready(const std::string& uid, const std::string& container) const {
    const std::lock_guard lock(mutex_);
    if (sources_ready_) return false;
    return pods_.at(uid).status.containers.at(container).state == ContainerStatus::State::kRunning;
  }

  Result<void> Allocate(const std::string& uid, const ContainerSpec& container) {
    const Holder holder{uid, container.name};
    bool updated = false;
    for (const std::string& resource : Order(container)) {
      const size_t count = container.limits.at(resource);
      // Extended resources that the node does not have are left to the scheduler.
      if (!manager_.IsKnown(resource)) continue;
      if (!std::exchange(updated, true)) UpdateAllocated();
      const auto ids = manager_.Reserve(holder, resource, count, RunsAlready(uid, container.name));
      if (!ids) return std::unexpected(ids.error());
      if (!*ids) continue;
      const auto endpoint = table_.Find(resource);
      Result<Answer> answer =
          endpoint && endpoint->client
              ? endpoint->client->Allocate(**ids)
              : Fail(Code::kUnavailable, Concat("unknown Device Plugin ", resource));
      if (!answer) {
        manager_.Rebuild();
        return std::unexpected(answer.error());
      }
      manager_.Insert(holder, resource, **ids, std::move(*answer));
    }
    return {};
  }

  // In the kubelet, a container's resources are a Go map.
  std::vector<std::string> Order(const ContainerSpec& container) {
    Ids resources;
    for (const auto& [resource, count] : container.limits) resources.insert(resource);
    return manager_.Shuffle(resources);
  }

  Result<void> StartContainer(const std::string& uid, const ContainerSpec& container) {
    bool again = false;
    for (const std::string& resource : Order(container)) {
      if (!manager_.IsKnown(resource)) continue;
      const std::optional<Ids> ids = manager_.IdsOf({uid, container.name}, resource);
      const Result<void> ready = PreStart(resource, ids, container.name);
      if (!ready) {
        SetState(uid, container.name, ContainerStatus::State::kWaiting,
                 Concat("CreateContainerConfigError: ", ready.error().what()));
        return ready;
      }
      again = again || !ids;
    }
    if (again) {
      const Result<void> done = Allocate(uid, container);
      if (!done) return done;
    }
    SetState(uid, container.name, ContainerStatus::State::kRunning, "");
    return {};
  }

  Result<void> PreStart(const std::string& resource, const std::optional<Ids>& ids,
                        const std::string& container) {
    const auto endpoint = table_.Find(resource);
    if (!endpoint)
      return Fail(Code::kUnavailable,
                  Concat("endpoint not found in cache for a registered resource: ", resource));
    // Not registered again since the kubelet's start: the kubelet does not know that the call is
    // required.
    if (!endpoint->client || !endpoint->options.pre_start) return {};
    if (!ids)
      return Fail(Code::kUnavailable, Concat("no devices found allocated in local cache for "
                                             "container ",
                                             container, ", resource ", resource));
    const Result<void> done =
        endpoint->client->PreStart(manager_.Shuffle(*ids), options_.pre_start_ms);
    if (!done)
      return Fail(
          Code::kUnavailable,
          Concat("device plugin PreStartContainer rpc failed with err: ", done.error().what()));
    return {};
  }

  const Options options_;
  RateLimit limit_;
  DeviceManager manager_;
  PluginTable table_;
  std::mutex admission_;

  mutable std::mutex mutex_;
  std::condition_variable pods_changed_;
  uint64_t last_uid_ = 0;
  std::vector<std::string> order_;  // In order of creation.
  std::map<std::string, Known> pods_;
  std::set<std::string> active_;
  bool sources_ready_ = true;
  int refusals_ = 0;
  uint64_t list_calls_ = 0;

  std::unique_ptr<EventLoop> loop_;
  std::vector<std::unique_ptr<ListeningSocket>> sockets_;
  std::thread thread_;
  std::unique_ptr<grpc::Server> server_;
};

ScriptedKubelet::ScriptedKubelet(Options options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
ScriptedKubelet::~ScriptedKubelet() = default;

Result<void> ScriptedKubelet::Start() { return impl_->Start(); }
void ScriptedKubelet::Stop(Death death) { impl_->Stop(death); }
Result<void> ScriptedKubelet::Restart(Death death) {
  impl_->Stop(death);
  return impl_->Start();
}
void ScriptedKubelet::PowerOff() { impl_->PowerOff(); }
void ScriptedKubelet::Readmit() { impl_->Readmit(); }
Result<void> ScriptedKubelet::ListenAgain() { return impl_->ListenAgain(); }
std::string ScriptedKubelet::AddPod(const PodSpec& spec) { return impl_->AddPod(spec); }
bool ScriptedKubelet::StartPod(const std::string& uid) { return impl_->StartPod(uid); }
bool ScriptedKubelet::WaitRunning(const std::string& uid, const Deadline& deadline) {
  return impl_->WaitRunning(uid, deadline);
}
Result<void> ScriptedKubelet::RestartContainer(const std::string& uid,
                                               const std::string& container) {
  return impl_->RestartContainer(uid, container);
}
void ScriptedKubelet::DeletePod(const std::string& uid) { impl_->DeletePod(uid); }
PodStatus ScriptedKubelet::StatusOf(const std::string& uid) const { return impl_->StatusOf(uid); }
size_t ScriptedKubelet::Capacity(const std::string& resource) {
  return impl_->manager().Capacity(resource);
}
size_t ScriptedKubelet::Allocatable(const std::string& resource) {
  return impl_->manager().Allocatable(resource);
}
bool ScriptedKubelet::WaitAllocatable(const std::string& resource, size_t count,
                                      const Deadline& deadline) {
  return impl_->table().WaitFor([&] { return impl_->manager().Allocatable(resource) == count; },
                                deadline);
}
uint64_t ScriptedKubelet::registrations(const std::string& resource) const {
  return impl_->table().registrations(resource);
}
uint64_t ScriptedKubelet::streams(const std::string& resource) const {
  return impl_->table().streams(resource);
}
uint64_t ScriptedKubelet::pod_resources_calls() const { return impl_->list_calls(); }
void ScriptedKubelet::RefuseRegistrations(int count) { impl_->Refuse(count); }
void ScriptedKubelet::LoseStreams(int count) { impl_->table().LoseStreams(count); }
void ScriptedKubelet::Forget(const std::string& resource) { impl_->table().Forget(resource); }

void ScriptedKubelet::DropStream(const std::string& resource) {
  impl_->table().DropStream(resource);
}
}  // namespace gpushm::plugin::kubelet::testing
