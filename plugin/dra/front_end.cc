#include "plugin/dra/front_end.h"

#include <grpcpp/server_posix.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "platform/base/name.h"
#include "platform/base/quote.h"
#include "platform/base/unique_fd.h"
#include "platform/daemon/log.h"
#include "platform/daemon/unix_socket.h"
#include "plugin/cdi/spec_text.h"
#include "plugin/dra/claim.h"
#include "plugin/dra/dra_plugin.grpc.pb.h"
#include "plugin/dra/health_stream.h"
#include "plugin/dra/plugin_registration.grpc.pb.h"
#include "plugin/dra/slices.h"
#include "plugin/kubelet/grpc_support.h"

namespace gpushm::plugin::dra {
namespace {

namespace api = ::k8s::io::kubelet::pkg::apis::dra::v1;
namespace registration = ::pluginregistration;

constexpr char kService[] = "v1.DRAPlugin";
// In an update, two plugins serve for a moment. Each uses the names that are free.
constexpr const char* kInstances[] = {"", "-2"};
constexpr int64_t kMaxBackoffMs = 5000;
constexpr int kMaxForwardedBytes = 4 << 20;

std::string RegistrySocket(const std::string& folder, const std::string& instance) {
  return Concat(folder, "/", kDriverName, instance, "-reg.sock");
}

std::string CallsSocket(const std::string& folder, const std::string& instance) {
  return Concat(folder, "/", kDriverName, "/dra", instance, ".sock");
}

// The text of an event of the pod.
std::string ErrorText(const Status& status) {
  return status.remedy().empty() ? status.what() : Concat(status.what(), ": ", status.remedy());
}

// They become parts of paths.
Result<void> CheckRef(const ClaimRef& ref) {
  constexpr size_t kUidBytes = 36;
  if (ref.uid.size() == kUidBytes && IsDnsLabel(ref.uid) && IsDnsLabel(ref.name_space) &&
      IsDnsSubdomain(ref.name)) {
    return {};
  }
  return Fail(Code::kInvalidArgument,
              Concat("the kubelet names an invalid claim: namespace ", Quote(ref.name_space),
                     ", name ", Quote(ref.name), ", UID ", Quote(ref.uid)));
}

// A socket that listens again when its file was removed.
class Door {
 public:
  explicit Door(std::string path) : path_(std::move(path)) {}

  int fd() const { return socket_ ? socket_->fd() : -1; }
  const std::string& path() const { return path_; }
  UniqueFd Accept() const { return socket_ ? socket_->Accept() : UniqueFd(); }
  void Close() { socket_.reset(); }

  // Returns the error only when it is a new one, so that it is logged once.
  std::optional<Status> Keep() {
    if (socket_ && socket_->InPlace()) return std::nullopt;
    socket_.reset();
    Result<ListeningSocket> bound = ListeningSocket::Bind(path_);
    if (bound) {
      socket_.emplace(std::move(*bound));
      last_error_.clear();
      return std::nullopt;
    }
    if (std::exchange(last_error_, bound.error().what()) == bound.error().what()) {
      return std::nullopt;
    }
    return bound.error();
  }

 private:
  const std::string path_;
  std::optional<ListeningSocket> socket_;
  std::string last_error_;
};

}  // namespace

class FrontEnd::Running final : public api::DRAPlugin::Service {
 public:
  Running(Options options, const std::string& instance, const std::string& other, Handler* handler)
      : options_(std::move(options)),
        handler_(handler),
        client_(options_.api),
        slices_(options_.node,
                [this](const auto&... arguments) { return client_.Call(arguments...); }),
        calls_door_(CallsSocket(options_.plugins_folder, instance)),
        registry_door_(RegistrySocket(options_.registry_folder, instance)),
        other_calls_(CallsSocket(options_.plugins_folder, other)),
        registrar_(this),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    kubelet::RouteGrpcLog();
    grpc::ServerBuilder calls;
    calls.RegisterService(this);
    health_.emplace(options_.node, &calls);
    calls_server_ = calls.BuildAndStart();
    grpc::ServerBuilder registrations;
    registrations.RegisterService(&registrar_);
    registry_server_ = registrations.BuildAndStart();
    GPUSHM_ASSERT(calls_server_ != nullptr && registry_server_ != nullptr);  // They bind nothing.
    health_->Start();
    door_keeper_ = std::thread([this] { KeepDoors(); });
    publisher_ = std::thread([this] { KeepSlices(); });
  }

  ~Running() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    (void)eventfd_write(wake_.get(), 1);
    door_keeper_.join();
    const Deadline deadline = Deadline::AfterMs(options_.times.stop_ms);
    registry_server_->Shutdown(std::chrono::system_clock::now() +
                               std::chrono::milliseconds(options_.times.stop_ms));
    health_->Shutdown(calls_server_.get(), deadline);
    publisher_.join();
  }

  void SetOffer(const Offer& offer) {
    health_->Set(offer);
    const std::lock_guard lock(mutex_);
    // Also of a GPU that is gone: a claim that still has it is told so by the book.
    for (const inventory::Device& device : offer.devices) {
      order_[DeviceName(device.uuid)] = {device.index, device.uuid};
    }
    devices_ = DevicesOf(offer);
    soon_ = true;
    changed_.notify_all();
  }

  FrontEndState state() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }

  void HandOver() {
    const std::lock_guard lock(mutex_);
    handing_over_ = true;
  }

  bool WaitRegistered(const Deadline& deadline) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(deadline.RemainingNs()),
                             [this] { return state_.registrations > 0; });
  }

  grpc::Status NodePrepareResources(grpc::ServerContext* call,
                                    const api::NodePrepareResourcesRequest* request,
                                    api::NodePrepareResourcesResponse* response) override {
    const Deadline deadline = Deadline::AfterMs(options_.times.prepare_ms);
    for (const api::Claim& asked : request->claims()) {
      const ClaimRef ref{asked.namespace_(), asked.name(), asked.uid()};
      const int64_t started_ns = MonotonicNs();
      api::NodePrepareResourceResponse& answer = (*response->mutable_claims())[ref.uid];
      const auto given_up = [&] { return call->IsCancelled() || Stopping(); };
      const Result<void> prepared = Prepare(ref, deadline, given_up, &answer);
      const int64_t took_ms = (MonotonicNs() - started_ns) / 1'000'000;
      if (prepared) {
        LogInfo("claim-prepared",
                {{"claim", ref.ToString()}, {"allocation", ref.uid}, {"took_ms", took_ms}});
        continue;
      }
      LogWarning("claim-not-prepared", {{"claim", ref.ToString()},
                                        {"allocation", ref.uid},
                                        {"took_ms", took_ms},
                                        {"reason", prepared.error().ToString()}});
      answer.Clear();
      answer.set_error(ErrorText(prepared.error()));
      if (Forward(&api::DRAPlugin::Stub::NodePrepareResources, *request, deadline, response)) break;
    }
    return grpc::Status::OK;
  }

  grpc::Status NodeUnprepareResources(grpc::ServerContext*,
                                      const api::NodeUnprepareResourcesRequest* request,
                                      api::NodeUnprepareResourcesResponse* response) override {
    const Deadline deadline = Deadline::AfterMs(options_.times.unprepare_ms);
    for (const api::Claim& asked : request->claims()) {
      const ClaimRef ref{asked.namespace_(), asked.name(), asked.uid()};
      api::NodeUnprepareResourceResponse& answer = (*response->mutable_claims())[ref.uid];
      Result<void> done = CheckRef(ref);
      if (done) done = handler_->UnprepareClaim(ref.uid, deadline);
      if (done) {
        LogInfo("claim-unprepared", {{"claim", ref.ToString()}, {"allocation", ref.uid}});
        continue;
      }
      LogWarning("claim-not-unprepared", {{"claim", ref.ToString()},
                                          {"allocation", ref.uid},
                                          {"reason", done.error().ToString()}});
      answer.set_error(ErrorText(done.error()));
      if (Forward(&api::DRAPlugin::Stub::NodeUnprepareResources, *request, deadline, response)) {
        break;
      }
    }
    return grpc::Status::OK;
  }

 private:
  class Registrar final : public registration::Registration::Service {
   public:
    explicit Registrar(Running* running) : running_(running) {}

    grpc::Status GetInfo(grpc::ServerContext*, const registration::InfoRequest*,
                         registration::PluginInfo* info) override {
      info->set_type("DRAPlugin");
      info->set_name(kDriverName);
      info->set_endpoint(running_->calls_door_.path());
      info->add_supported_versions(kService);
      info->add_supported_versions(kHealthService);
      return grpc::Status::OK;
    }

    grpc::Status NotifyRegistrationStatus(grpc::ServerContext*,
                                          const registration::RegistrationStatus* status,
                                          registration::RegistrationStatusResponse*) override {
      running_->Registered(status->plugin_registered(), status->error());
      return grpc::Status::OK;
    }

   private:
    Running* const running_;
  };

  void Registered(bool registered, const std::string& error) {
    if (registered) {
      LogInfo("driver-registered", {{"socket", calls_door_.path()}});
    } else {
      LogError("driver-refused", {{"reason", Concat("the kubelet refused: ", Quote(error))}});
    }
    const std::lock_guard lock(mutex_);
    state_.registered = registered;
    if (!registered) return;
    ++state_.registrations;
    eager_until_ms_ = NowMs() + options_.times.eager_for_ms;
    soon_ = true;
    changed_.notify_all();
  }

  // Of a plugin that hands over: asks the next one instead, for all claims, because a repeated call
  // changes nothing. False: it hands over to nobody, or that one does not answer.
  template <typename Call, typename Request, typename Response>
  bool Forward(Call call, const Request& request, const Deadline& deadline, Response* response) {
    {
      const std::lock_guard lock(mutex_);
      if (!handing_over_) return false;
    }
    const auto next =
        api::DRAPlugin::NewStub(kubelet::NewChannel(other_calls_, kMaxForwardedBytes));
    grpc::ClientContext context;
    context.set_wait_for_ready(true);  // It may listen in a moment.
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::nanoseconds(deadline.RemainingNs()));
    Response answer;
    if (!((*next).*call)(&context, request, &answer).ok()) return false;
    response->Swap(&answer);
    return true;
  }

  bool Stopping() const {
    const std::lock_guard lock(mutex_);
    return stopping_;
  }

  static int64_t NowMs() { return MonotonicNs() / 1'000'000; }

  // Repeats the request while the API server does not answer.
  Result<std::string> ReadClaim(const ClaimRef& ref, const Deadline& deadline,
                                const std::function<bool()>& given_up) {
    const std::string path = Concat("/apis/resource.k8s.io/v1/namespaces/", ref.name_space,
                                    "/resourceclaims/", ref.name);
    int64_t wait_ms = options_.times.backoff_ms;
    for (;;) {
      const Deadline one =
          Deadline::AfterMs(std::min<int64_t>(options_.times.request_ms, deadline.RemainingMs()));
      Result<std::string> text = client_.Call("GET", path, "", one);
      if (text) return text;
      const Code code = text.error().code();
      const bool passes = code == Code::kUnavailable || code == Code::kTimeout ||
                          code == Code::kSystem || code == Code::kDenied;
      if (!passes || deadline.Passed() || given_up()) return text;
      std::unique_lock lock(mutex_);
      changed_.wait_for(
          lock, std::chrono::milliseconds(std::min<int64_t>(wait_ms, deadline.RemainingMs())),
          [this] { return stopping_; });
      wait_ms = std::min(2 * wait_ms, kMaxBackoffMs);
    }
  }

  Result<binding::ClaimedGpus> ToGpus(const AllocatedClaim& claim) const {
    binding::ClaimedGpus gpus{.uid = claim.ref.uid,
                              .pod = {claim.ref.name_space, claim.pod},
                              .gpus = {},
                              .bytes = claim.bytes,
                              .others = claim.others,
                              .mps = claim.mps};
    std::vector<std::pair<uint32_t, std::string>> chosen;
    const std::lock_guard lock(mutex_);
    for (const std::string& device : claim.gpus) {
      const auto found = order_.find(device);
      if (found == order_.end()) {
        return Fail(Code::kDeviceLost,
                    Concat("ResourceClaim ", claim.ref.ToString(), " has device ", device,
                           ", which this node does not have"),
                    "delete the pod to have it placed again");
      }
      chosen.push_back(found->second);
    }
    // As CUDA numbers them. All have the same memory, so any order does for the claim.
    std::ranges::sort(chosen);
    for (auto& [index, uuid] : chosen) gpus.gpus.push_back(std::move(uuid));
    return gpus;
  }

  Result<void> Prepare(const ClaimRef& ref, const Deadline& deadline,
                       const std::function<bool()>& given_up,
                       api::NodePrepareResourceResponse* answer) {
    if (auto valid = CheckRef(ref); !valid) return valid;
    const Result<std::string> text = ReadClaim(ref, deadline, given_up);
    if (!text) return std::unexpected(text.error());
    const Result<AllocatedClaim> claim = ParseClaim(*text, ref, options_.node);
    if (!claim) return std::unexpected(claim.error());
    {
      // A call can come before the first offer.
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::nanoseconds(deadline.RemainingNs()),
                        [this] { return stopping_ || !devices_.is_null(); });
    }
    const Result<binding::ClaimedGpus> gpus = ToGpus(*claim);
    if (!gpus) return std::unexpected(gpus.error());
    if (auto done = handler_->PrepareClaim(*gpus, deadline, given_up); !done) return done;
    for (const ClaimDevice& device : claim->devices) {
      api::Device* const to = answer->add_devices();
      to->add_request_names(device.request);
      to->set_pool_name(device.pool);
      to->set_device_name(device.device);
      to->add_cdi_device_ids(cdi::kSharedCdiName);
      to->add_cdi_device_ids(cdi::ClaimCdiName(ref.uid, device.part));
      if (!device.share_id.empty()) to->set_share_id(device.share_id);
    }
    return {};
  }

  // The calls' socket first: the kubelet connects to it as soon as it sees the other one.
  void KeepDoors() {
    const auto keep = [](Door& door) {
      if (const auto failed = door.Keep()) {
        LogError("driver-not-listening", {{"socket", door.path()}, {"reason", failed->ToString()}});
      }
    };
    int64_t repeat_ms = 0;
    while (!Stopping()) {
      if (NowMs() >= repeat_ms) {  // Invariant 5.
        health_->Repeat();
        repeat_ms = NowMs() + options_.times.health_ms;
      }
      // Below the kubelet's folder. If it fails, so does the socket, with the reason.
      mkdir(Concat(options_.plugins_folder, "/", kDriverName).c_str(), 0750);
      keep(calls_door_);
      if (calls_door_.fd() >= 0) keep(registry_door_);
      pollfd watched[] = {{wake_.get(), POLLIN, 0},
                          {calls_door_.fd(), POLLIN, 0},
                          {registry_door_.fd(), POLLIN, 0}};
      if (poll(watched, std::size(watched), static_cast<int>(options_.times.look_ms)) <= 0) {
        continue;
      }
      while (UniqueFd connection = calls_door_.Accept()) {
        grpc::AddInsecureChannelFromFd(calls_server_.get(), connection.Release());
      }
      while (UniqueFd connection = registry_door_.Accept()) {
        grpc::AddInsecureChannelFromFd(registry_server_.get(), connection.Release());
      }
    }
    registry_door_.Close();
    calls_door_.Close();
  }

  void KeepSlices() {
    std::string logged;
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      if (state_.registrations == 0 || devices_.is_null()) {  // Invariant 1.
        changed_.wait(lock);
        continue;
      }
      soon_ = false;
      const nlohmann::json devices = devices_;
      lock.unlock();
      const Result<bool> synced =
          slices_.Sync(devices, Deadline::AfterMs(options_.times.request_ms));
      const std::string problem = synced ? std::string() : synced.error().ToString();
      if (!synced && problem != logged) LogError("slices-not-published", {{"reason", problem}});
      logged = problem;
      lock.lock();
      state_.published = synced.has_value();
      state_.problem = problem;
      const bool unsupported = !synced && synced.error().code() == Code::kUnsupported;
      const int64_t wait_ms = unsupported                            ? options_.times.unsupported_ms
                              : !synced || NowMs() < eager_until_ms_ ? options_.times.eager_ms
                                                                     : options_.times.slices_ms;
      changed_.wait_for(lock, std::chrono::milliseconds(wait_ms),
                        [this] { return stopping_ || soon_; });
    }
  }

  const Options options_;
  Handler* const handler_;
  const kubernetes::ApiClient client_;
  Slices slices_;  // Of the publisher's thread.
  Door calls_door_;
  Door registry_door_;
  const std::string other_calls_;  // Of a plugin that serves beside this one.
  Registrar registrar_;
  UniqueFd wake_;
  std::optional<HealthStream> health_;  // A service of calls_server_.
  std::unique_ptr<grpc::Server> calls_server_;
  std::unique_ptr<grpc::Server> registry_server_;

  mutable std::mutex mutex_;  // Guards all that follows but the threads.
  mutable std::condition_variable changed_;
  bool stopping_ = false;
  bool handing_over_ = false;
  bool soon_ = false;
  int64_t eager_until_ms_ = 0;
  nlohmann::json devices_;  // As DevicesOf; null before the first SetOffer.
  std::map<std::string, std::pair<uint32_t, std::string>> order_;  // Index and UUID by device name.
  FrontEndState state_;
  std::thread door_keeper_;
  std::thread publisher_;
};

FrontEnd::FrontEnd(std::unique_ptr<Running> running) : running_(std::move(running)) {}
FrontEnd::~FrontEnd() = default;

Result<void> FrontEnd::CheckAlone(const std::string& registry_folder) {
  for (const char* const instance : kInstances) {
    const std::string path = RegistrySocket(registry_folder, instance);
    if (!SomeoneAccepts(path)) continue;
    return Fail(Code::kAlreadyExists,
                Concat("a plugin with allocation: dra serves this node at ", path),
                "run one plugin per node; to change a node from one allocation to the other, stop "
                "its plugin first");
  }
  return {};
}

Result<std::unique_ptr<FrontEnd>> FrontEnd::Start(Options options, Handler* handler) {
  for (const char* const instance : kInstances) {
    const std::string registry = RegistrySocket(options.registry_folder, instance);
    const std::string calls = CallsSocket(options.plugins_folder, instance);
    for (const std::string& path : {registry, calls}) {
      if (auto fits = ListeningSocket::CheckPath(path); !fits) {
        return std::unexpected(fits.error());
      }
    }
    if (SomeoneAccepts(registry) || SomeoneAccepts(calls)) continue;
    const char* const other = kInstances[instance == kInstances[0] ? 1 : 0];
    return std::unique_ptr<FrontEnd>(
        new FrontEnd(std::make_unique<Running>(std::move(options), instance, other, handler)));
  }
  return Fail(Code::kAlreadyExists,
              Concat("two plugins with allocation: dra serve this node already, at ",
                     RegistrySocket(options.registry_folder, "")),
              "run one plugin per node");
}

void FrontEnd::HandOver() { running_->HandOver(); }
bool FrontEnd::WaitRegistered(const Deadline& deadline) const {
  return running_->WaitRegistered(deadline);
}
void FrontEnd::SetOffer(const Offer& offer) { running_->SetOffer(offer); }
FrontEndState FrontEnd::state() const { return running_->state(); }

}  // namespace gpushm::plugin::dra
