#include "plugin/dra/testing/kubelet_client.h"

#include <chrono>
#include <thread>

#include "platform/base/clock.h"
#include "plugin/dra/dra_plugin.grpc.pb.h"
#include "plugin/dra/plugin_registration.grpc.pb.h"
#include "plugin/kubelet/grpc_support.h"
#include "plugin/kubelet/unix_socket.h"

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

}  // namespace

Result<PluginInfo> KubeletClient::GetInfo(int64_t timeout_ms) const {
  const Deadline deadline = Deadline::AfterMs(timeout_ms);
  const std::string path = registry_folder_ + "/gpushm.io-reg.sock";
  while (!kubelet::SomeoneAccepts(path)) {
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

}  // namespace gpushm::plugin::dra::testing
