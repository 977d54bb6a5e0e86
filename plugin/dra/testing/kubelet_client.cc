#include "plugin/dra/testing/kubelet_client.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "platform/base/clock.h"
#include "platform/daemon/unix_socket.h"
#include "plugin/dra/dra_health.grpc.pb.h"
#include "plugin/dra/dra_plugin.grpc.pb.h"
#include "plugin/dra/plugin_registration.grpc.pb.h"
#include "plugin/kubelet/grpc_support.h"

namespace gpushm::plugin::dra::testing {
namespace {

namespace api = ::k8s::io::kubelet::pkg::apis::dra::v1;
constexpr int kMaxBytes = 1 << 20;

void SetDeadline(grpc::ClientContext* context, int64_t timeout_ms) {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
}

api::Claim ToClaim(const std::string& name, const std::string& uid) {
  api::Claim claim;
  claim.set_namespace_("default");
  claim.set_name(name);
  claim.set_uid(uid);
  return claim;
}

std::unique_ptr<pluginregistration::Registration::Stub> Registry(const std::string& folder) {
  return pluginregistration::Registration::NewStub(
      kubelet::NewChannel(folder + "/gpushm.io-reg.sock", kMaxBytes));
}

HealthList ToList(const v1alpha1::NodeWatchResourcesResponse& response) {
  HealthList list;
  for (const v1alpha1::DeviceHealth& device : response.devices()) {
    list[device.device().pool_name() + "/" + device.device().device_name()] = {
        .healthy = device.health() == v1alpha1::HEALTHY, .message = device.message()};
  }
  return list;
}

}  // namespace

class HealthWatch::Stream {
 public:
  Stream(const std::string& endpoint, bool deaf)
      : deaf_(deaf),
        stub_(v1alpha1::DRAResourceHealth::NewStub(kubelet::NewChannel(endpoint, kMaxBytes))),
        reader_(stub_->NodeWatchResources(&context_, {})),
        thread_([this] { Read(); }) {}

  ~Stream() {
    context_.TryCancel();
    Hear();
    thread_.join();
  }

  void Hear() {
    const std::lock_guard lock(mutex_);
    deaf_ = false;
    changed_.notify_all();
  }

  template <typename Check>
  bool WaitFor(Check is_so, int64_t timeout_ms) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), is_so);
  }
  HealthList Last() const {
    const std::lock_guard lock(mutex_);
    return last_;
  }
  uint64_t lists() const {
    const std::lock_guard lock(mutex_);
    return lists_;
  }

  // These three need mutex_, as WaitFor's check has it.
  const HealthList& last() const { return last_; }
  bool Has(uint64_t count) const { return lists_ >= count; }
  bool EndedWell() const { return ended_ && ended_->ok(); }

 private:
  void Read() {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !deaf_; });
    }
    for (v1alpha1::NodeWatchResourcesResponse response; reader_->Read(&response);) {
      const std::lock_guard lock(mutex_);
      last_ = ToList(response);
      ++lists_;
      changed_.notify_all();
    }
    const grpc::Status status = reader_->Finish();
    const std::lock_guard lock(mutex_);
    ended_ = status;
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool deaf_;
  uint64_t lists_ = 0;
  HealthList last_;
  std::optional<grpc::Status> ended_;
  grpc::ClientContext context_;
  const std::unique_ptr<v1alpha1::DRAResourceHealth::Stub> stub_;
  const std::unique_ptr<grpc::ClientReader<v1alpha1::NodeWatchResourcesResponse>> reader_;
  std::thread thread_;
};

HealthWatch::HealthWatch(const std::string& endpoint, bool deaf)
    : stream_(std::make_unique<Stream>(endpoint, deaf)) {}
HealthWatch::~HealthWatch() = default;
void HealthWatch::Hear() { stream_->Hear(); }
HealthList HealthWatch::Last() const { return stream_->Last(); }
uint64_t HealthWatch::lists() const { return stream_->lists(); }
bool HealthWatch::WaitFor(const std::function<bool(const HealthList&)>& is_so,
                          int64_t timeout_ms) const {
  return stream_->WaitFor([&] { return is_so(stream_->last()); }, timeout_ms);
}
bool HealthWatch::WaitLists(uint64_t count, int64_t timeout_ms) const {
  return stream_->WaitFor([&] { return stream_->Has(count); }, timeout_ms);
}
bool HealthWatch::WaitEnd(int64_t timeout_ms) const {
  return stream_->WaitFor([&] { return stream_->EndedWell(); }, timeout_ms);
}

Result<PluginInfo> KubeletClient::GetInfo(int64_t timeout_ms) const {
  const Deadline deadline = Deadline::AfterMs(timeout_ms);
  const std::string path = registry_folder_ + "/gpushm.io-reg.sock";
  while (!SomeoneAccepts(path)) {
    if (deadline.Passed()) return Fail(Code::kTimeout, Concat("nobody accepts at ", path));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  grpc::ClientContext context;
  SetDeadline(&context, timeout_ms);
  pluginregistration::PluginInfo info;
  const grpc::Status status = Registry(registry_folder_)->GetInfo(&context, {}, &info);
  if (!status.ok()) return std::unexpected(kubelet::FromGrpc(status, "GetInfo"));
  return PluginInfo{
      .type = info.type(),
      .name = info.name(),
      .endpoint = info.endpoint(),
      .versions = {info.supported_versions().begin(), info.supported_versions().end()}};
}

Result<void> KubeletClient::Notify(bool registered) const {
  grpc::ClientContext context;
  SetDeadline(&context, 20'000);
  pluginregistration::RegistrationStatus told;
  told.set_plugin_registered(registered);
  if (!registered) told.set_error("no supported version");
  pluginregistration::RegistrationStatusResponse response;
  const grpc::Status status =
      Registry(registry_folder_)->NotifyRegistrationStatus(&context, told, &response);
  if (!status.ok()) return std::unexpected(kubelet::FromGrpc(status, "Notify"));
  return {};
}

std::string KubeletClient::Calls() const {
  const Result<PluginInfo> info = GetInfo();
  return info ? info->endpoint : std::string("/nonexistent");
}

Result<std::vector<PreparedDevice>> KubeletClient::Prepare(const std::string& name,
                                                           const std::string& uid,
                                                           int64_t timeout_ms) const {
  const auto stub = api::DRAPlugin::NewStub(kubelet::NewChannel(Calls(), kMaxBytes));
  grpc::ClientContext context;
  SetDeadline(&context, timeout_ms);
  api::NodePrepareResourcesRequest request;
  *request.add_claims() = ToClaim(name, uid);
  api::NodePrepareResourcesResponse response;
  const grpc::Status status = stub->NodePrepareResources(&context, request, &response);
  if (!status.ok()) return std::unexpected(kubelet::FromGrpc(status, "NodePrepareResources"));
  const auto found = response.claims().find(uid);
  if (found == response.claims().end()) return Fail(Code::kInternal, "no answer for the claim");
  if (!found->second.error().empty()) return Fail(Code::kInternal, found->second.error());
  std::vector<PreparedDevice> devices;
  for (const api::Device& device : found->second.devices()) {
    devices.push_back(
        {.requests = {device.request_names().begin(), device.request_names().end()},
         .pool = device.pool_name(),
         .device = device.device_name(),
         .cdi_names = {device.cdi_device_ids().begin(), device.cdi_device_ids().end()},
         .share_id = device.share_id()});
  }
  return devices;
}

Result<void> KubeletClient::Unprepare(const std::string& name, const std::string& uid,
                                      int64_t timeout_ms) const {
  const auto stub = api::DRAPlugin::NewStub(kubelet::NewChannel(Calls(), kMaxBytes));
  grpc::ClientContext context;
  SetDeadline(&context, timeout_ms);
  api::NodeUnprepareResourcesRequest request;
  *request.add_claims() = ToClaim(name, uid);
  api::NodeUnprepareResourcesResponse response;
  const grpc::Status status = stub->NodeUnprepareResources(&context, request, &response);
  if (!status.ok()) return std::unexpected(kubelet::FromGrpc(status, "NodeUnprepareResources"));
  const auto found = response.claims().find(uid);
  if (found == response.claims().end()) return Fail(Code::kInternal, "no answer for the claim");
  if (!found->second.error().empty()) return Fail(Code::kInternal, found->second.error());
  return {};
}

std::unique_ptr<HealthWatch> KubeletClient::WatchHealth(bool deaf) const {
  return std::make_unique<HealthWatch>(Calls(), deaf);
}

}  // namespace gpushm::plugin::dra::testing
