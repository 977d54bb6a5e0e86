#include "plugin/kubelet/testing/plugin_client.h"

#include <chrono>
#include <utility>

#include "plugin/kubelet/device_plugin.grpc.pb.h"
#include "plugin/kubelet/grpc_support.h"

namespace gpushm::plugin::kubelet::testing {
namespace {

namespace api = ::v1beta1;

constexpr int kMaxReceiveBytes = 4 << 20;
// Allocate and GetDevicePluginOptions have no deadline in the kubelet; a test does.
constexpr int64_t kForeverMs = 60'000;

// Code names as Go's grpc prints them.
std::string GoName(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::INVALID_ARGUMENT:
      return "InvalidArgument";
    case grpc::StatusCode::NOT_FOUND:
      return "NotFound";
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return "ResourceExhausted";
    case grpc::StatusCode::FAILED_PRECONDITION:
      return "FailedPrecondition";
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return "DeadlineExceeded";
    case grpc::StatusCode::UNAVAILABLE:
      return "Unavailable";
    case grpc::StatusCode::CANCELLED:
      return "Canceled";
    default:
      return Concat("Code(", static_cast<int>(code), ")");
  }
}

std::unexpected<Status> FailAsGo(const grpc::Status& status) {
  return Fail(Code::kUnavailable, Concat("rpc error: code = ", GoName(status.error_code()),
                                         " desc = ", status.error_message()));
}

void SetDeadline(grpc::ClientContext* context, int64_t wait_ms) {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(wait_ms));
}

Answer ToAnswer(const api::ContainerAllocateResponse& response) {
  Answer answer;
  for (const api::CDIDevice& device : response.cdi_devices())
    answer.cdi_names.push_back(device.name());
  return answer;
}

}  // namespace

struct PluginClient::Grpc {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<api::DevicePlugin::Stub> stub;
  grpc::ClientContext stream;
};

PluginClient::PluginClient(std::string resource, std::string socket)
    : resource_(std::move(resource)), socket_(std::move(socket)), grpc_(std::make_shared<Grpc>()) {
  grpc_->channel = NewChannel(socket_, kMaxReceiveBytes);
  grpc_->stub = api::DevicePlugin::NewStub(grpc_->channel);
}
PluginClient::~PluginClient() = default;

Result<std::shared_ptr<PluginClient::Grpc>> PluginClient::Connection() const {
  const std::lock_guard lock(mutex_);
  if (!grpc_ || stopped_) return Fail(Code::kUnavailable, "endpoint has been stopped");
  return grpc_;
}

Result<void> PluginClient::Dial(int64_t wait_ms) {
  const auto link = Connection();
  if (!link) return std::unexpected(link.error());
  if ((*link)->channel->WaitForConnected(std::chrono::system_clock::now() +
                                         std::chrono::milliseconds(wait_ms)))
    return {};
  return Fail(Code::kTimeout, Concat("failed to dial device plugin: ", socket_));
}

Result<PluginClient::PluginOptions> PluginClient::GetOptions() {
  const auto link = Connection();
  if (!link) return std::unexpected(link.error());
  grpc::ClientContext context;
  SetDeadline(&context, kForeverMs);
  api::DevicePluginOptions options;
  const grpc::Status status = (*link)->stub->GetDevicePluginOptions(&context, {}, &options);
  if (!status.ok()) return FailAsGo(status);
  return PluginOptions{.pre_start = options.pre_start_required()};
}

void PluginClient::Run(
    const std::function<void(const std::map<std::string, bool>& healthy_by_id)>& on_list) {
  const auto link = Connection();
  if (!link) return;
  const auto reader = (*link)->stub->ListAndWatch(&(*link)->stream, {});
  api::ListAndWatchResponse response;
  while (reader->Read(&response)) {
    std::map<std::string, bool> healthy_by_id;
    for (const api::Device& device : response.devices())
      healthy_by_id[device.id()] = device.health() == "Healthy";
    {
      const std::lock_guard lock(mutex_);
      if (!grpc_) break;
    }
    on_list(healthy_by_id);
  }
  (*link)->stream.TryCancel();
  [[maybe_unused]] const grpc::Status status = reader->Finish();
}

void PluginClient::Close() {
  std::shared_ptr<Grpc> grpc;
  {
    const std::lock_guard lock(mutex_);
    grpc.swap(grpc_);
    stopped_ = true;
  }
  if (grpc) grpc->stream.TryCancel();
}

void PluginClient::MarkStopped() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
}

Result<Answer> PluginClient::Allocate(const std::vector<std::string>& ids) {
  const auto link = Connection();
  if (!link) return std::unexpected(link.error());
  grpc::ClientContext context;
  SetDeadline(&context, kForeverMs);
  api::AllocateRequest request;
  auto* const container = request.add_container_requests();  // Always one.
  for (const std::string& id : ids) container->add_devices_ids(id);
  api::AllocateResponse response;
  const grpc::Status status = (*link)->stub->Allocate(&context, request, &response);
  if (!status.ok()) return FailAsGo(status);
  if (response.container_responses().empty())
    return Fail(Code::kCorrupt, "no containers return in allocation response");
  return ToAnswer(response.container_responses(0));
}

Result<void> PluginClient::PreStart(const std::vector<std::string>& ids, int64_t wait_ms) {
  const auto link = Connection();
  if (!link) return std::unexpected(link.error());
  grpc::ClientContext context;
  SetDeadline(&context, wait_ms);
  api::PreStartContainerRequest request;
  for (const std::string& id : ids) request.add_devices_ids(id);
  api::PreStartContainerResponse response;
  const grpc::Status status = (*link)->stub->PreStartContainer(&context, request, &response);
  if (!status.ok()) return FailAsGo(status);
  return {};
}

}  // namespace gpushm::plugin::kubelet::testing
