#include "plugin/kubelet/plugin_server.h"

#include <grpcpp/server_posix.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <utility>

#include "plugin/kubelet/broadcast.h"
#include "plugin/kubelet/device_plugin.grpc.pb.h"
#include "plugin/kubelet/grpc_support.h"

namespace gpushm::plugin::kubelet {
namespace {

namespace api = ::v1beta1;

// Limits for a successor's answers, its start included. The kubelet gives Allocate no deadline and
// admits no other pod meanwhile; PreStartContainer has 30 s.
constexpr std::chrono::seconds kForwarded{5};
constexpr std::chrono::seconds kForwardedStart{20};
constexpr int kMaxForwardedBytes = 4 << 20;

// Number of IDs that an error names; it counts the rest.
constexpr size_t kNamedIds = 8;

std::string Join(const std::vector<std::string>& ids) {
  std::string text;
  for (size_t i = 0; i < std::min(ids.size(), kNamedIds); ++i)
    text += Concat(i == 0 ? "" : ", ", ids[i].empty() ? "\"\"" : ids[i]);
  if (ids.size() > kNamedIds) text += Concat(" and ", ids.size() - kNamedIds, " more");
  return text;
}

template <typename Repeated>
binding::DeviceIds ToIds(const Repeated& ids) {
  return binding::DeviceIds(ids.begin(), ids.end());
}

}  // namespace

// Unary calls run on gRPC's threads, ListAndWatch is a Broadcast.
class PluginServer::Service final
    : public api::DevicePlugin::WithRawMethod_ListAndWatch<api::DevicePlugin::Service> {
 public:
  Service(Config config, Handler* handler) : config_(std::move(config)), handler_(handler) {
    RouteGrpcLog();
    grpc::ServerBuilder builder;
    builder.RegisterService(this);
    auto queue = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    GPUSHM_ASSERT(server_ != nullptr);  // Cannot fail: it opens and binds nothing.
    const auto await = [this](grpc::ServerContext* call, grpc::ByteBuffer* request,
                              Broadcast::Writer* writer, grpc::ServerCompletionQueue* events,
                              void* tag) {
      RequestListAndWatch(call, request, writer, events, events, tag);
    };
    lists_.emplace(std::move(queue), await, config_.on_streams);
  }

  void Serve(UniqueFd connection) {
    grpc::AddInsecureChannelFromFd(server_.get(), connection.Release());
  }

  void SetDevices(std::vector<Advertised> devices) {
    std::sort(devices.begin(), devices.end(),
              [](const Advertised& a, const Advertised& b) { return a.id < b.id; });
    api::ListAndWatchResponse list;
    binding::DeviceIds known;
    for (const Advertised& device : devices) {
      api::Device* const to = list.add_devices();
      to->set_id(device.id);
      to->set_health(device.healthy ? "Healthy" : "Unhealthy");
      known.insert(device.id);
    }
    std::string bytes = list.SerializeAsString();
    const std::lock_guard lock(mutex_);
    if (list_ == bytes) return;
    list_ = std::move(bytes);
    known_.swap(known);
    lists_->Send(*list_);
  }

  void ForwardTo(const std::string& path) {
    auto successor = api::DevicePlugin::NewStub(NewChannel(path, kMaxForwardedBytes));
    const std::lock_guard lock(mutex_);
    if (!successor_) successor_ = std::move(successor);
  }

  size_t calls() const { return calls_; }

  void EndStreams() { lists_->EndStreams(); }
  void CancelStreams() { lists_->CancelStreams(); }
  void Shutdown(const Deadline& deadline) { lists_->Shutdown(server_.get(), deadline); }

  grpc::Status GetDevicePluginOptions(grpc::ServerContext*, const api::Empty*,
                                      api::DevicePluginOptions* options) override {
    options->set_pre_start_required(true);
    return grpc::Status::OK;
  }

  grpc::Status Allocate(grpc::ServerContext* call, const api::AllocateRequest* request,
                        api::AllocateResponse* response) override {
    const auto forward = [&](api::DevicePlugin::Stub* successor, grpc::ClientContext* context) {
      response->Clear();
      return successor->Allocate(context, *request, response);
    };
    return Timed(CallRecord::Kind::kAllocate, call, forward, [&]() -> Result<void> {
      for (const api::ContainerAllocateRequest& container : request->container_requests()) {
        const Result<binding::DeviceIds> ids = Known(container.devices_ids());
        if (!ids) return std::unexpected(ids.error());
        const Result<std::vector<std::string>> names = handler_->Allocate(config_.resource, *ids);
        if (!names) return std::unexpected(names.error());
        auto* const to = response->add_container_responses();
        for (const std::string& name : *names) to->add_cdi_devices()->set_name(name);
      }
      return {};
    });
  }

  grpc::Status PreStartContainer(grpc::ServerContext* call,
                                 const api::PreStartContainerRequest* request,
                                 api::PreStartContainerResponse* response) override {
    const auto forward = [&](api::DevicePlugin::Stub* successor, grpc::ClientContext* context) {
      return successor->PreStartContainer(context, *request, response);
    };
    return Timed(CallRecord::Kind::kPreStart, call, forward, [&]() -> Result<void> {
      const Result<binding::DeviceIds> ids = Known(request->devices_ids());
      if (!ids) return std::unexpected(ids.error());
      return handler_->PreStart(config_.resource, *ids);
    });
  }

 private:
  // Returns `answer`, or if that is kUnavailable and there is a successor, `forward`.
  template <typename Forward, typename Answer>
  grpc::Status Timed(CallRecord::Kind kind, grpc::ServerContext* call, Forward forward,
                     Answer answer) {
    struct UnderWay {
      explicit UnderWay(std::atomic<size_t>* count) : calls(count) { ++*calls; }
      ~UnderWay() { --*calls; }
      std::atomic<size_t>* calls;
    };
    const UnderWay under_way(&calls_);
    const int64_t start_ns = MonotonicNs();
    Result<void> done = answer();
    if (!done && done.error().code() == Code::kUnavailable) {
      if (api::DevicePlugin::Stub* const successor = Successor()) {
        const auto context = grpc::ClientContext::FromServerContext(*call);
        context->set_wait_for_ready(true);
        context->set_deadline(std::chrono::system_clock::now() +
                              (kind == CallRecord::Kind::kPreStart ? kForwardedStart : kForwarded));
        const grpc::Status status = forward(successor, context.get());
        done = status.ok() ? Result<void>()
                           : std::unexpected(FromGrpc(status, "the plugin that is taking over"));
      }
    }
    if (config_.on_call) {
      config_.on_call({kind, config_.resource, MonotonicNs() - start_ns,
                       done ? std::nullopt : std::optional(done.error().code())});
    }
    return done ? grpc::Status::OK : ToGrpc(done.error());
  }

  // Once set, the successor stays.
  api::DevicePlugin::Stub* Successor() {
    const std::lock_guard lock(mutex_);
    return successor_.get();
  }

  template <typename Repeated>
  Result<binding::DeviceIds> Known(const Repeated& asked) {
    if (asked.empty())
      return Fail(Code::kInvalidArgument, "the kubelet's request has no device IDs");
    std::vector<std::string> unknown;
    {
      const std::lock_guard lock(mutex_);
      for (const std::string& id : asked) {
        if (!known_.contains(id)) unknown.push_back(id);
      }
    }
    if (unknown.empty()) return ToIds(asked);
    std::sort(unknown.begin(), unknown.end());
    return Fail(Code::kInvalidArgument,
                Concat("device IDs ", Join(unknown), " are not, or no longer, advertised"),
                "delete the pod; its successor gets IDs that this node has now");
  }

  const Config config_;
  Handler* const handler_;
  std::optional<Broadcast> lists_;
  std::unique_ptr<grpc::Server> server_;
  std::atomic<size_t> calls_ = 0;

  std::mutex mutex_;
  std::optional<std::string> list_;  // Serialised. Absent: SetDevices was not called yet.
  binding::DeviceIds known_;
  std::unique_ptr<api::DevicePlugin::Stub> successor_;
};

PluginServer::PluginServer(Config config, Handler* handler)
    : service_(std::make_unique<Service>(std::move(config), handler)) {}

PluginServer::~PluginServer() { Shutdown(Deadline::AfterMs(0)); }

void PluginServer::Serve(UniqueFd connection) { service_->Serve(std::move(connection)); }
void PluginServer::SetDevices(std::vector<Advertised> devices) {
  service_->SetDevices(std::move(devices));
}
void PluginServer::ForwardTo(const std::string& path) { service_->ForwardTo(path); }
size_t PluginServer::calls() const { return service_->calls(); }
void PluginServer::EndStreams() { service_->EndStreams(); }
void PluginServer::CancelStreams() { service_->CancelStreams(); }
void PluginServer::Shutdown(const Deadline& deadline) { service_->Shutdown(deadline); }

}  // namespace gpushm::plugin::kubelet
