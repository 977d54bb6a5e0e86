// Uses the scripted kubelet of testing/, and a server with fixed answers.
#include "plugin/kubelet/pod_resources.h"

#include <gmock/gmock-more-matchers.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "platform/daemon/unix_socket.h"
#include "plugin/kubelet/pod_resources.grpc.pb.h"
#include "plugin/kubelet/testing/fixture.h"

namespace gpushm::plugin::kubelet {
namespace {

using namespace testing;  // NOLINT: the folder's test support
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Gives the same answer to every List.
class FixedLister final : public ::v1::PodResourcesLister::Service {
 public:
  explicit FixedLister(const std::string& socket) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(Concat("unix:", socket), grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FixedLister() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status List(grpc::ServerContext*, const ::v1::ListPodResourcesRequest*,
                    ::v1::ListPodResourcesResponse* response) override {
    *response = answer;
    return grpc::Status::OK;
  }

  ::v1::ListPodResourcesResponse answer;  // Set before the first List.

 private:
  std::unique_ptr<grpc::Server> server_;
};

void Add(::v1::ContainerResources* container, const std::string& resource,
         const std::vector<std::string>& ids) {
  ::v1::ContainerDevices* const devices = container->add_devices();
  devices->set_resource_name(resource);
  for (const std::string& id : ids) devices->add_device_ids(id);
}

class PodResourcesTest : public KubeletTest {
 protected:
  PodResourcesTest() : pods({.socket = folder / "pod-resources.sock"}) {}
  PodResources pods;
};

TEST_F(PodResourcesTest, JoinsWhatIsSplitAndLeavesOutWhatIsNotOurs) {
  FixedLister lister(folder / "pod-resources.sock");
  ::v1::PodResources* const pod = lister.answer.add_pod_resources();
  pod->set_name("train");
  pod->set_namespace_("ml");
  ::v1::ContainerResources* const container = pod->add_containers();
  container->set_name("gpushm");
  Add(container, kMemory, {"m0001"});
  Add(container, "nvidia.com/gpu", {"GPU-1"});
  Add(container, kMemory, {"m0007", "m0003"});
  Add(container, kAttach, {});
  lister.answer.add_pod_resources()->set_name("plain");

  const Result<PodList> list = pods.List(Soon());
  ASSERT_TRUE(list) << list.error().ToString();
  EXPECT_THAT(list->pods, ElementsAre(binding::Pod{"", "plain"}, binding::Pod{"ml", "train"}));
  const binding::Owner owner{{"ml", "train"}, "gpushm"};
  EXPECT_THAT(list->snapshot.IdsOf(owner, binding::Resource::kMemory),
              ElementsAre("m0001", "m0003", "m0007"));
  EXPECT_THAT(list->snapshot.IdsOf(owner, binding::Resource::kAttach), IsEmpty());
  EXPECT_THAT(list->snapshot.OwnersIn(owner.pod, binding::Resource::kAttach), IsEmpty());
}

// A call of podresources while an Allocate is in progress makes the kubelet forget what that
// Allocate reserved, and give it again (k/k PR #137534).
TEST_F(PodResourcesTest, AnIdOfTwoPodsHasTwoOwners) {
  FixedLister lister(folder / "pod-resources.sock");
  for (const char* const name : {"one", "two"}) {
    ::v1::PodResources* const pod = lister.answer.add_pod_resources();
    pod->set_name(name);
    Add(pod->add_containers(), kMemory, {"m0001"});
  }
  const Result<PodList> list = pods.List(Soon());
  ASSERT_TRUE(list) << list.error().ToString();
  EXPECT_THAT(list->snapshot.OwnersOf(binding::Resource::kMemory, {"m0001"}), SizeIs(2));
}

TEST_F(PodResourcesTest, OtherGpusAreGpusAlone) {
  FixedLister lister(folder / "pod-resources.sock");
  for (const char* const resource :
       {"nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/hostdev",
        "nvidia.com/rdma_shared_device_a"}) {
    ::v1::PodResources* const pod = lister.answer.add_pod_resources();
    pod->set_name(resource);
    ::v1::ContainerResources* const container = pod->add_containers();
    container->set_name("app");
    Add(container, resource, {"1"});
  }
  const Result<PodList> list = pods.List(Soon());
  ASSERT_TRUE(list) << list.error().ToString();
  for (const binding::Pod& pod : list->pods) {
    const bool network =
        pod.name == "nvidia.com/hostdev" || pod.name.find("rdma") != std::string::npos;
    EXPECT_EQ(list->snapshot.OtherGpuOf({pod, "app"}).empty(), network) << pod.name;
  }
}

// On a busy node a server can be late to answer a new connection, which has two seconds for it.
TEST_F(PodResourcesTest, AServerThatIsSlowToAcceptIsWaitedFor) {
  const std::string path = folder / "pod-resources.sock";
  ::v1::PodResourcesLister::Service service;  // Answers that List is not implemented.
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const Result<ListeningSocket> socket = ListeningSocket::Bind(path);
  ASSERT_TRUE(socket) << socket.error().ToString();
  std::thread accepts([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(700));  // sleep: the slowness itself
    while (UniqueFd connection = socket->Accept())
      grpc::AddInsecureChannelFromFd(server.get(), connection.Release());
  });
  const Result<PodList> list = pods.List(Soon());
  accepts.join();
  server->Shutdown(std::chrono::system_clock::now());
  ASSERT_FALSE(list);
  EXPECT_EQ(list.error().code(), Code::kUnsupported) << list.error().ToString();
}

TEST_F(PodResourcesTest, KnowsOtherNames) {
  FixedLister lister(folder / "pod-resources.sock");
  ::v1::ContainerResources* const container = lister.answer.add_pod_resources()->add_containers();
  Add(container, "example.com/bytes", {"m0001"});
  ResourceNames names;
  names.names[binding::Resource::kMemory] = "example.com/bytes";
  PodResources renamed({.socket = folder / "pod-resources.sock", .names = names});
  const Result<PodList> list = renamed.List(Soon());
  ASSERT_TRUE(list);
  EXPECT_THAT(list->snapshot.OwnersOf(binding::Resource::kMemory, {"m0001"}), SizeIs(1));
}

TEST_F(PodResourcesTest, TakesMoreThanFourMegabytesAndSaysWhenItIsTooMuch) {
  FixedLister lister(folder / "pod-resources.sock");
  ::v1::ContainerResources* const container = lister.answer.add_pod_resources()->add_containers();
  for (int i = 0; i < 8; ++i) Add(container, kMemory, {std::string(1 << 20, 'm')});
  EXPECT_TRUE(pods.List(Soon()));
  PodResources small(
      {.socket = folder / "pod-resources.sock", .names = {}, .max_receive_bytes = 4 << 20});
  const Deadline deadline = Soon();
  const Result<PodList> list = small.List(deadline);
  ASSERT_FALSE(list);
  EXPECT_EQ(list.error().code(), Code::kExhausted);
  EXPECT_FALSE(deadline.Passed());
}

TEST_F(PodResourcesTest, SaysWhatIsMissingWhenNobodyAnswers) {
  const Deadline deadline = Soon();
  const Result<PodList> list = pods.List(deadline);
  ASSERT_FALSE(list);
  EXPECT_EQ(list.error().code(), Code::kUnavailable);
  EXPECT_THAT(list.error().ToString(), HasSubstr("pod-resources"));
  EXPECT_FALSE(deadline.Passed());
}

TEST_F(PodResourcesTest, FindsTheKubeletAgainAfterEachRestart) {
  StartKubelet();
  for (int i = 0; i < 20; ++i) {
    const Result<PodList> list = pods.List(Soon());
    ASSERT_TRUE(list) << "restart " << i << ": " << list.error().ToString();
    kubelet->Stop(i % 2 == 0 ? ScriptedKubelet::Death::kKilled : ScriptedKubelet::Death::kStopped);
    EXPECT_EQ(pods.List(Soon()).error().code(), Code::kUnavailable);
    ASSERT_TRUE(kubelet->Start());
  }
}

TEST_F(PodResourcesTest, AsksAgainWhenAskedTooOften) {
  kubelet_options.list_qps = 200;
  kubelet_options.list_burst = 1;
  StartKubelet();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(pods.List(Soon()));
}

TEST_F(PodResourcesTest, GivesUpAskingAtTheDeadline) {
  kubelet_options.list_qps = 0;
  kubelet_options.list_burst = 1;
  StartKubelet();
  ASSERT_TRUE(pods.List(Soon()));
  const Result<PodList> list = pods.List(Deadline::AfterMs(100));
  ASSERT_FALSE(list);
  EXPECT_THAT(list.error().code(), ::testing::AnyOf(Code::kExhausted, Code::kTimeout));
}

TEST_F(PodResourcesTest, CanBeAskedFromManyThreads) {
  kubelet_options.list_qps = 1e6;
  kubelet_options.list_burst = 1e6;
  StartKubelet();
  std::atomic<int> answers{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) answers += pods.List(Soon()).has_value() ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answers, 200);
}

}  // namespace
}  // namespace gpushm::plugin::kubelet
