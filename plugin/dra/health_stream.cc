#include "plugin/dra/health_stream.h"

#include <ctime>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "platform/base/status.h"
#include "platform/base/utf8.h"
#include "plugin/dra/dra_health.grpc.pb.h"
#include "plugin/kubelet/broadcast.h"

namespace gpushm::plugin::dra {
namespace {

namespace health_api = ::v1alpha1;
using kubelet::Broadcast;

// Parts of the text come from the driver. The kubelet drops a stream with invalid UTF-8.
std::string ToMessage(std::string_view text) {
  constexpr std::string_view kCut = "...";
  std::string message;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const std::string_view next = length == 0 ? "?" : text.substr(0, length);
    if (message.size() + next.size() + kCut.size() > kMaxHealthMessageBytes) {
      return message.append(kCut);
    }
    message += next;
    text.remove_prefix(next.size());
  }
  return message;
}

}  // namespace

std::vector<DeviceState> StatesOf(const Offer& offer) {
  std::vector<DeviceState> states;
  for (const binding::Gpu& gpu : offer.gpus) {
    DeviceState state{.name = DeviceName(gpu.uuid), .problem = {}};
    if (!gpu.healthy) {
      const auto reason = offer.reasons.find(gpu.uuid);
      state.problem =
          ToMessage(Concat("GPU ", gpu.uuid, " is unhealthy",
                           reason == offer.reasons.end() ? "" : Concat(": ", reason->second)));
    }
    states.push_back(std::move(state));
  }
  return states;
}

class HealthStream::Service final
    : public health_api::DRAResourceHealth::WithRawMethod_NodeWatchResources<
          health_api::DRAResourceHealth::Service> {
 public:
  Service(std::string pool, grpc::ServerBuilder* builder)
      : pool_(std::move(pool)), queue_(builder->AddCompletionQueue()) {
    builder->RegisterService(this);
  }

  void Start() {
    const auto await = [this](grpc::ServerContext* call, grpc::ByteBuffer* request,
                              Broadcast::Writer* writer, grpc::ServerCompletionQueue* queue,
                              void* tag) {
      RequestNodeWatchResources(call, request, writer, queue, queue, tag);
    };
    lists_.emplace(std::move(queue_), await);
  }

  void Set(std::vector<DeviceState> states) {
    const std::lock_guard lock(mutex_);
    if (states_ == states) return;
    states_ = std::move(states);
    Send();
  }

  void Repeat() {
    const std::lock_guard lock(mutex_);
    if (states_) Send();
  }

  void Shutdown(grpc::Server* server, const Deadline& deadline) {
    lists_->Shutdown(server, deadline);
  }

 private:
  // Needs mutex_.
  void Send() {
    health_api::NodeWatchResourcesResponse list;
    for (const DeviceState& state : *states_) {
      health_api::DeviceHealth* const device = list.add_devices();
      device->mutable_device()->set_pool_name(pool_);
      device->mutable_device()->set_device_name(state.name);
      device->set_health(state.problem.empty() ? health_api::HEALTHY : health_api::UNHEALTHY);
      device->set_last_updated_time(time(nullptr));
      device->set_message(state.problem);
    }
    lists_->Send(list.SerializeAsString());
  }

  const std::string pool_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;  // Until Start.
  std::optional<Broadcast> lists_;

  std::mutex mutex_;
  std::optional<std::vector<DeviceState>> states_;
};

HealthStream::HealthStream(std::string pool, grpc::ServerBuilder* builder)
    : service_(std::make_unique<Service>(std::move(pool), builder)) {}

HealthStream::~HealthStream() = default;

void HealthStream::Start() { service_->Start(); }
void HealthStream::Set(const Offer& offer) { service_->Set(StatesOf(offer)); }
void HealthStream::Repeat() { service_->Repeat(); }
void HealthStream::Shutdown(grpc::Server* server, const Deadline& deadline) {
  service_->Shutdown(server, deadline);
}

}  // namespace gpushm::plugin::dra
