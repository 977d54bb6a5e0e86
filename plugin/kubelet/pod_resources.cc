#include "plugin/kubelet/pod_resources.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>
#include <utility>

#include "platform/daemon/unix_socket.h"
#include "plugin/kubelet/grpc_support.h"
#include "plugin/kubelet/pod_resources.grpc.pb.h"

namespace gpushm::plugin::kubelet {
namespace {

// GPUs, shares of them ("nvidia.com/gpu.shared") and MIG instances ("nvidia.com/mig-1g.10gb"), as
// NVIDIA's device plugin names them. Network devices have names under nvidia.com/ too.
bool IsOtherGpu(std::string_view resource) {
  return resource == "nvidia.com/gpu" || resource.starts_with("nvidia.com/gpu.") ||
         resource.starts_with("nvidia.com/mig-");
}

PodList ToPodList(const v1::ListPodResourcesResponse& response, const ResourceNames& names) {
  PodList list;
  for (const v1::PodResources& listed : response.pod_resources()) {
    const binding::Pod pod{listed.namespace_(), listed.name()};
    list.pods.insert(pod);
    for (const v1::ContainerResources& container : listed.containers()) {
      for (const v1::DynamicResource& claim : container.dynamic_resources()) {
        for (const v1::ClaimResource& device : claim.claim_resources()) {
          list.others[device.driver_name()].insert(device.device_name());
        }
      }
      for (const v1::ContainerDevices& devices : container.devices()) {
        if (devices.device_ids().empty()) continue;
        const std::optional<binding::Resource> resource = names.Parse(devices.resource_name());
        if (IsOtherGpu(devices.resource_name())) {
          list.snapshot.AddOtherGpu({pod, container.name()}, devices.resource_name());
        }
        if (!resource) {
          list.others[devices.resource_name()].insert(devices.device_ids().begin(),
                                                      devices.device_ids().end());
          continue;
        }
        list.snapshot.Add(
            {pod, container.name()}, *resource,
            binding::DeviceIds(devices.device_ids().begin(), devices.device_ids().end()));
      }
    }
  }
  return list;
}

// gRPC returns RESOURCE_EXHAUSTED in two cases; a retry helps only in the other one.
bool IsTooLarge(const grpc::Status& status) {
  return status.error_message().find("larger than max") != std::string::npos;
}

}  // namespace

struct PodResources::Connection {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::PodResourcesLister::Stub> stub;
};

PodResources::PodResources(Options options) : options_(std::move(options)) { RouteGrpcLog(); }
PodResources::~PodResources() = default;

std::shared_ptr<PodResources::Connection> PodResources::Connect() {
  const std::lock_guard lock(mutex_);
  if (!connection_) {
    connection_ = std::make_shared<Connection>();
    connection_->channel = NewChannel(options_.socket, options_.max_receive_bytes);
    connection_->stub = v1::PodResourcesLister::NewStub(connection_->channel);
  }
  return connection_;
}

void PodResources::Forget(const std::shared_ptr<Connection>& connection) {
  const std::lock_guard lock(mutex_);
  if (connection_ == connection) connection_.reset();
}

template <typename Call>
Result<void> PodResources::Ask(const char* asked, const Deadline& deadline, Call call) {
  for (bool fresh = false;;) {
    const std::shared_ptr<Connection> connection = Connect();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::nanoseconds(deadline.RemainingNs()));
    const grpc::Status status = call(connection->stub.get(), &context);
    if (status.ok()) return {};
    switch (status.error_code()) {
      case grpc::StatusCode::RESOURCE_EXHAUSTED:
        if (IsTooLarge(status) || deadline.RemainingNs() <= options_.retry_ms * 1'000'000)
          return std::unexpected(FromGrpc(status, asked));
        std::this_thread::sleep_for(std::chrono::milliseconds(options_.retry_ms));
        break;
      case grpc::StatusCode::UNAVAILABLE:
        // A connection to a kubelet that has ended fails only at the next call: try a new one.
        Forget(connection);
        if (!std::exchange(fresh, true) && SomeoneAccepts(options_.socket)) break;
        return Fail(
            Code::kUnavailable,
            Concat(asked, ": nobody answers at ", options_.socket, " (", status.error_message(),
                   ")"),
            "check that the kubelet is running and that its folder pod-resources is mounted");
      default:
        return std::unexpected(FromGrpc(status, asked));
    }
  }
}

Result<PodList> PodResources::List(const Deadline& deadline) {
  v1::ListPodResourcesResponse response;
  const Result<void> answered = Ask(
      "podresources List", deadline,
      [&](auto* stub, grpc::ClientContext* context) { return stub->List(context, {}, &response); });
  if (!answered) return std::unexpected(answered.error());
  return ToPodList(response, options_.names);
}

Result<NodeDevices> PodResources::Allocatable(const Deadline& deadline) {
  v1::AllocatableResourcesResponse response;
  const Result<void> answered = Ask("podresources GetAllocatableResources", deadline,
                                    [&](auto* stub, grpc::ClientContext* context) {
                                      return stub->GetAllocatableResources(context, {}, &response);
                                    });
  if (!answered) return std::unexpected(answered.error());
  NodeDevices node;
  for (const v1::ContainerDevices& devices : response.devices()) {
    const std::optional<binding::Resource> resource = options_.names.Parse(devices.resource_name());
    binding::DeviceIds& ids =
        resource ? node.ours[*resource] : node.others[devices.resource_name()];
    ids.insert(devices.device_ids().begin(), devices.device_ids().end());
  }
  return node;
}

}  // namespace gpushm::plugin::kubelet
