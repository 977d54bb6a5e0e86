// The kubelet of these tests is scripted: testing/scripted_kubelet.h.
#include "plugin/kubelet/registration.h"

#include <gmock/gmock-matchers.h>
#include <grpcpp/create_channel_posix.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "platform/daemon/unix_socket.h"
#include "plugin/kubelet/device_plugin.grpc.pb.h"
#include "plugin/kubelet/grpc_support.h"
#include "plugin/kubelet/plugin_server.h"
#include "plugin/kubelet/testing/fixture.h"

namespace gpushm::plugin::kubelet {
namespace {

namespace api = ::v1beta1;
using namespace testing;  // NOLINT: the folder's test support
using ::testing::HasSubstr;

using RegistrationTest = KubeletTest;

// A client of the plugin's socket that is not the kubelet.
class RawClient {
 public:
  explicit RawClient(const std::string& socket)
      : channel_(NewChannel(socket, 4 << 20)), stub_(api::DevicePlugin::NewStub(channel_)) {}

  grpc::Status Allocate(const std::vector<std::vector<std::string>>& containers,
                        api::AllocateResponse* response) {
    grpc::ClientContext context;
    SetDeadline(&context);
    api::AllocateRequest request;
    for (const auto& ids : containers) {
      auto* const container = request.add_container_requests();
      for (const std::string& id : ids) container->add_devices_ids(id);
    }
    return stub_->Allocate(&context, request, response);
  }
  grpc::Status PreStart(const std::vector<std::string>& ids) {
    grpc::ClientContext context;
    SetDeadline(&context);
    api::PreStartContainerRequest request;
    for (const std::string& id : ids) request.add_devices_ids(id);
    api::PreStartContainerResponse response;
    return stub_->PreStartContainer(&context, request, &response);
  }
  std::unique_ptr<grpc::ClientReader<api::ListAndWatchResponse>> Watch(
      grpc::ClientContext* context) {
    // Of the whole stream: an emulator takes half a minute to make hundreds of long lists.
    SetDeadline(context, 10 * kLongMs);
    return stub_->ListAndWatch(context, {});
  }

 private:
  static void SetDeadline(grpc::ClientContext* context, int64_t milliseconds = kLongMs) {
    context->set_deadline(std::chrono::system_clock::now() +
                          std::chrono::milliseconds(milliseconds));
  }
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<api::DevicePlugin::Stub> stub_;
};

class NoHandler final : public Handler {
 public:
  Result<std::vector<std::string>> Allocate(binding::Resource, const binding::DeviceIds&) override {
    return std::vector<std::string>();
  }
  Result<void> PreStart(binding::Resource, const binding::DeviceIds&) override { return {}; }
};

TEST_F(RegistrationTest, RegistersNothingThatWasNotAdvertised) {
  StartKubelet();
  plugin = *Registration::Start(options, &handler);
  plugin->SetDevices(binding::Resource::kAttach, Devices("a", 4));
  SetSidecarDevices(plugin.get());
  ASSERT_TRUE(kubelet->WaitAllocatable(kAttach, 4, Soon()));
  EXPECT_EQ(kubelet->registrations(kMemory), 0U);
  EXPECT_FALSE(plugin->state().Of(binding::Resource::kMemory).advertised);
}

TEST_F(RegistrationTest, WaitsForAFolderThatIsNotThereYet) {
  StartPlugin();
  EXPECT_TRUE(plugin->WaitFor(
      [](const State& state) {
        return std::ranges::all_of(state.resources,
                                   [](const ResourceState& one) { return one.failures > 0; });
      },
      Soon()));
  StartKubelet();
  EXPECT_TRUE(Usable());
}

TEST_F(RegistrationTest, FindsAFolderThatWasMadeAgain) {
  StartKubelet();
  StartPlugin();
  ASSERT_TRUE(Usable());
  const State before = plugin->state();
  kubelet->Stop();
  // In one step, because the plugin creates sockets in any folder that it finds.
  std::filesystem::rename(options.folder, folder / "removed");
  ASSERT_TRUE(kubelet->Start());
  EXPECT_TRUE(UsableAgain(before));
}

// Goal: a deleted socket of the plugin is created again, and no pod fails meanwhile.
TEST_F(RegistrationTest, ListensAgainWhenItsSocketIsRemoved) {
  StartKubelet();
  StartPlugin();
  ASSERT_TRUE(Usable());
  const std::string path = folder / "device-plugins/gpushm-memory.sock";
  for (int i = 0; i < 20; ++i) {
    const std::optional<FileId> before = Identify(path);
    std::filesystem::remove(path);
    const Deadline deadline = Soon();
    while ((!Identify(path) || Identify(path) == before) && !deadline.Passed())
      std::this_thread::yield();
    ASSERT_TRUE(SomeoneAccepts(path));
    ASSERT_EQ(kubelet->Allocatable(kMemory), 8U);
  }
  EXPECT_FALSE(kubelet->StatusOf(kubelet->AddPod(SharingPod("after"))).failed);
  EXPECT_EQ(plugin->state().Of(binding::Resource::kMemory).registrations, 1U);
  // The new socket works as well as the first.
  const State before = plugin->state();
  ASSERT_TRUE(kubelet->Restart());
  EXPECT_TRUE(UsableAgain(before));
}

TEST_F(RegistrationTest, RegistersAgainWhenTheStreamEnds) {
  StartKubelet();
  StartPlugin();
  ASSERT_TRUE(Usable());
  kubelet->DropStream(kMemory);
  EXPECT_TRUE(plugin->WaitFor(
      [](const State& state) { return state.Of(binding::Resource::kMemory).registrations == 2; },
      Soon()));
  EXPECT_TRUE(Usable());
  EXPECT_EQ(plugin->state().Of(binding::Resource::kAttach).registrations, 1U);
}

TEST_F(RegistrationTest, RegistersAgainWhenNoStreamOpens) {
  options.times.open_ms = 50;
  StartKubelet();
  kubelet->LoseStreams(3);
  StartPlugin();
  ASSERT_TRUE(Usable());
  uint64_t registrations = 0;
  for (const binding::Resource resource : binding::kResources) {
    registrations += kubelet->registrations(binding::ResourceName(resource));
  }
  EXPECT_EQ(registrations, binding::kResources.size() + 3);
}

TEST_F(RegistrationTest, KeepsTryingWhileRefused) {
  StartKubelet();
  kubelet->RefuseRegistrations(9);
  StartPlugin();
  ASSERT_TRUE(Usable());
  uint64_t failures = 0;
  for (const ResourceState& resource : plugin->state().resources) failures += resource.failures;
  EXPECT_EQ(failures, 9U);
}

TEST_F(RegistrationTest, SeesEverythingWithoutInotify) {
  options.inotify = false;
  StartPlugin();
  StartKubelet();
  ASSERT_TRUE(Usable());
  for (int i = 0; i < 5; ++i) {
    const State before = plugin->state();
    ASSERT_TRUE(kubelet->Restart(ScriptedKubelet::Death::kKilled));
    ASSERT_TRUE(UsableAgain(before));
  }
}

TEST_F(RegistrationTest, EndsABackOffWhenTheKubeletAppears) {
  options.times.backoff_first_ms = options.times.backoff_max_ms = 10 * kLongMs;
  std::filesystem::create_directories(options.folder);
  // A socket that a dead kubelet left: connections are refused, and then comes the long back-off.
  Result<ListeningSocket> dead = ListeningSocket::Bind(folder / "device-plugins/kubelet.sock");
  ASSERT_TRUE(dead);
  dead->Abandon();
  {
    const ListeningSocket gone = std::move(*dead);
  }
  StartPlugin();
  ASSERT_TRUE(plugin->WaitFor(
      [](const State& state) {
        return std::ranges::all_of(state.resources,
                                   [](const ResourceState& one) { return one.failures > 0; });
      },
      Soon()));
  EXPECT_THAT(plugin->state().Of(binding::Resource::kMemory).last_error,
              HasSubstr("gpushm.io/memory"));
  options.times.backoff_first_ms = 5;
  StartKubelet();
  EXPECT_TRUE(Usable());
}

TEST_F(RegistrationTest, RefusesToStartBesideATwin) {
  StartKubelet();
  StartPlugin();
  ASSERT_TRUE(Usable());
  const auto twin = Registration::Start(options, &handler);
  ASSERT_FALSE(twin);
  EXPECT_EQ(twin.error().code(), Code::kAlreadyExists);
  EXPECT_TRUE(plugin->state().usable());
}

TEST_F(RegistrationTest, NeverPushesATwinAside) {
  StartKubelet();
  StartPlugin();
  ASSERT_TRUE(Usable());
  const std::string path = folder / "device-plugins/gpushm-memory.sock";
  Result<ListeningSocket> twin = ListeningSocket::Bind(path);
  ASSERT_TRUE(twin);
  ASSERT_TRUE(plugin->WaitFor(
      [](const State& state) {
        return state.Of(binding::Resource::kMemory).last_error.find("another process") !=
               std::string::npos;
      },
      Soon()));
  EXPECT_TRUE(twin->InPlace());
  plugin.reset();
  EXPECT_TRUE(twin->InPlace());
}

TEST_F(RegistrationTest, RefusesAPathThatNoSocketCanHave) {
  options.folder = folder / std::string(100, 'x');
  const auto started = Registration::Start(options, &handler);
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code(), Code::kInvalidArgument);
}

TEST_F(RegistrationTest, LeavesNothingBehindWhenStopped) {
  StartKubelet();
  StartPlugin();
  ASSERT_TRUE(Usable());
  struct stat file{};
  ASSERT_EQ(stat((folder / "device-plugins/gpushm-memory.sock").c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777U, 0600U);
  plugin->Stop();
  EXPECT_FALSE(std::filesystem::exists(folder / "device-plugins/gpushm-memory.sock"));
  EXPECT_FALSE(std::filesystem::exists(folder / "device-plugins/gpushm-attach.sock"));
  EXPECT_TRUE(kubelet->WaitAllocatable(kMemory, 0, Soon()));
}

// Goal: stopping does not wait for a kubelet that hangs in Register. Method: its socket listens,
// but nobody answers.
TEST_F(RegistrationTest, StopsWhileTheKubeletHangs) {
  options.times.register_ms = 10 * kLongMs;
  std::filesystem::create_directories(options.folder);
  Result<ListeningSocket> mute = ListeningSocket::Bind(folder / "device-plugins/kubelet.sock");
  ASSERT_TRUE(mute);
  StartPlugin();
  const Deadline deadline = Soon();
  UniqueFd connection;
  while (!connection && !deadline.Passed()) {
    connection = mute->Accept();
    std::this_thread::yield();
  }
  ASSERT_TRUE(connection);
  plugin->Stop();
  EXPECT_FALSE(deadline.Passed());
}

// Goal: a slow reader misses only outdated lists. Method: a client reads nothing while far more
// than HTTP/2's window is sent; then it reads to the end.
TEST_F(RegistrationTest, NeverWaitsForASlowStream) {
  StartKubelet();
  StartPlugin(4096, 4);
  ASSERT_TRUE(Usable(4096, 4));
  RawClient slow(folder / "device-plugins/gpushm-memory.sock");
  grpc::ClientContext context;
  const auto reader = slow.Watch(&context);
  api::ListAndWatchResponse list;
  ASSERT_TRUE(reader->Read(&list));
  EXPECT_EQ(list.devices_size(), 4096);
  constexpr size_t kChanges = 200;
  for (size_t i = 0; i <= kChanges; ++i)
    plugin->SetDevices(binding::Resource::kMemory, Devices("m", 4096, i));
  ASSERT_TRUE(kubelet->WaitAllocatable(kMemory, 4096 - kChanges, Soon()));
  size_t messages = 0;
  size_t unhealthy = 0;
  while (unhealthy != kChanges && reader->Read(&list)) {
    ++messages;
    unhealthy = static_cast<size_t>(
        std::count_if(list.devices().begin(), list.devices().end(),
                      [](const api::Device& device) { return device.health() == "Unhealthy"; }));
  }
  EXPECT_EQ(unhealthy, kChanges);
  EXPECT_LT(messages, kChanges);
  EXPECT_TRUE(std::is_sorted(list.devices().begin(), list.devices().end(),
                             [](const auto& a, const auto& b) { return a.id() < b.id(); }));
  context.TryCancel();
}

TEST_F(RegistrationTest, AllocatesForSeveralContainersAtOnce) {
  StartKubelet();
  StartPlugin();
  ASSERT_TRUE(Usable());
  RawClient client(folder / "device-plugins/gpushm-memory.sock");
  api::AllocateResponse response;
  ASSERT_TRUE(client.Allocate({{"m0003", "m0001"}, {"m0002"}}, &response).ok());
  ASSERT_EQ(response.container_responses_size(), 2);
  EXPECT_EQ(response.container_responses(0).cdi_devices(0).name(), "gpushm.io/memory=m0001");
  EXPECT_EQ(response.container_responses(1).cdi_devices(0).name(), "gpushm.io/memory=m0002");
}

TEST_F(RegistrationTest, NamesIdsThatItDoesNotHave) {
  StartKubelet();
  StartPlugin();
  ASSERT_TRUE(Usable());
  RawClient client(folder / "device-plugins/gpushm-memory.sock");
  api::AllocateResponse response;
  const grpc::Status unknown = client.Allocate({{"m0001", "m9999", ""}}, &response);
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(unknown.error_message(),
              HasSubstr("device IDs \"\", m9999 are not, or no longer, advertised"));
  EXPECT_EQ(client.Allocate({{}}, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(client.PreStart({}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(client.PreStart({"a0000"}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(handler.calls().empty());
}

TEST_F(RegistrationTest, ShowsTheRemedyInThePodsEvents) {
  std::atomic<bool> room{false};
  handler.on_pre_start = [&](binding::Resource resource,
                             const binding::DeviceIds&) -> Result<void> {
    if (room || resource == binding::Resource::kAttach) return {};
    return Fail(Code::kExhausted, "needs 2 GiB on one GPU, but the largest free block is 1 GiB",
                "the container starts when there is room");
  };
  StartKubelet();
  StartPlugin();
  ASSERT_TRUE(Usable());
  const std::string uid = kubelet->AddPod(SharingPod("pod"));
  EXPECT_FALSE(kubelet->StartPod(uid));
  EXPECT_EQ(kubelet->StatusOf(uid).containers["gpushm"].message,
            "CreateContainerConfigError: device plugin PreStartContainer rpc failed with err: rpc "
            "error: code = ResourceExhausted desc = needs 2 GiB on one GPU, but the largest "
            "free block is 1 GiB: the container starts when there is room");
  room = true;
  EXPECT_TRUE(kubelet->WaitRunning(uid, Soon()));
}

TEST_F(RegistrationTest, TimesEveryCall) {
  std::mutex mutex;
  std::vector<CallRecord> records;
  options.on_call = [&](const CallRecord& record) {
    const std::lock_guard lock(mutex);
    records.push_back(record);
  };
  handler.on_pre_start = [](binding::Resource resource, const binding::DeviceIds&) -> Result<void> {
    if (resource == binding::Resource::kAttach) return Fail(Code::kUnavailable, "not yet");
    return {};
  };
  StartKubelet();
  StartPlugin();
  ASSERT_TRUE(Usable());
  kubelet->StartPod(kubelet->AddPod(SharingPod("pod")));
  const std::lock_guard lock(mutex);
  ASSERT_EQ(records.size(), 4U);
  for (const CallRecord& record : records) {
    EXPECT_GT(record.ns, 0);
    EXPECT_EQ(!record.error, record.kind != CallRecord::Kind::kPreStart ||
                                 record.resource != binding::Resource::kAttach);
  }
}

// A kubelet opens its stream at the moment at which the plugin ends. On a busy machine, one round
// in 9,000 aborted the process by writing to a queue that was shut down.
TEST(PluginServer, EndsStreamsAtAnyMomentOfTheirOpening) {
  NoHandler handler;
  for (int round = 0; round < 300; ++round) {
    PluginServer server({.on_call = {}, .on_streams = [](size_t) {}}, &handler);
    server.SetDevices({{.id = "m0000"}});
    std::array<int, 2> pair{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair.data()), 0);
    server.Serve(UniqueFd(pair[0]));
    const auto channel = grpc::CreateInsecureChannelFromFd("kubelet", pair[1]);
    const auto stub = api::DevicePlugin::NewStub(channel);
    std::array<grpc::ClientContext, 8> contexts;
    std::vector<std::unique_ptr<grpc::ClientReader<api::ListAndWatchResponse>>> streams;
    for (grpc::ClientContext& context : contexts)
      streams.push_back(stub->ListAndWatch(&context, {}));
    const int64_t until_ns = MonotonicNs() + round * 10'000;
    while (MonotonicNs() < until_ns) {
    }
    server.Shutdown(Deadline::AfterMs(round % 3));
    for (const auto& stream : streams) {
      for (api::ListAndWatchResponse list; stream->Read(&list);) {
      }
      stream->Finish();
    }
  }
}

TEST(ToGrpc, CutsWhatNoHeaderCanCarry) {
  const grpc::Status status = ToGrpc(Status(Code::kInternal, std::string(100'000, 'x'), "remedy"));
  EXPECT_EQ(status.error_message().size(), kMaxErrorBytes);
  EXPECT_EQ(ToGrpc(Status(Code::kDenied, "no")).error_message(), "no");
}

}  // namespace
}  // namespace gpushm::plugin::kubelet
