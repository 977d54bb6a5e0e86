// A pod with several GPUs. Method: the real broker on two simulated GPUs, started by hand or by a
// hand-made plugin, and hand-made clients.
#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "contract/registry/reader.h"
#include "platform/base/testing/code.h"
#include "sidecar/broker/testing/broker_process.h"
#include "sidecar/broker/testing/fake_plugin.h"
#include "sidecar/broker/testing/raw_client.h"

namespace gpushm::broker::testing {
namespace {

using protocol::Kind;
using protocol::LinkKind;
using ::testing::HasSubstr;

using gpushm::testing::CodeOf;
constexpr int As(Code code) { return static_cast<int>(code); }
constexpr uint64_t kMiB = uint64_t{1} << 20;
using Uuid = std::array<uint8_t, 16>;

// GPU-aaaaaaaa-0000-0000-0000-00000000000N with N from 1.
std::string UuidText(uint32_t gpu) {
  return Concat("GPU-aaaaaaaa-0000-0000-0000-00000000000", gpu + 1);
}
Uuid UuidOf(uint32_t gpu) {
  return {0xaa, 0xaa, 0xaa, 0xaa, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, static_cast<uint8_t>(gpu + 1)};
}

constexpr uint32_t OnGpu(uint32_t gpu) { return gpu << protocol::kFlagGpuShift; }

// Simulated GPUs, as many as a test wants.
class Machine {
 public:
  explicit Machine(uint32_t gpus) {
    std::ofstream cards(folder_.path() + "/cards.yaml");
    cards << "gpus:\n";
    for (uint32_t gpu = 0; gpu < gpus; ++gpu) {
      cards << "- {uuid: " << UuidText(gpu) << ", memory: 8Gi}\n";
    }
  }
  const std::string& folder() const { return folder_.path(); }
  // Replaces faults.yaml; empty for no faults.
  void SetFaults(const std::string& yaml) const {
    const std::string path = folder() + "/faults.yaml";
    std::ofstream(path + ".new") << yaml << '\n';
    std::filesystem::rename(path + ".new", path);
  }

 private:
  TempFolder folder_;
};

constexpr char kWeightsOnEach[] =
    "gpushm.io/gpus: '2'\n"
    "gpushm.io/pool-extra: 16Mi\n"
    "buffers.gpushm.io/weights: {size: 4Mi, gpu: each}\n"
    "buffers.gpushm.io/kv: {size: 2Mi, gpu: 1}\n";

BrokerSettings On(const Machine& machine, const std::string& buffers = kWeightsOnEach,
                  const std::vector<std::string>& more = {}) {
  BrokerSettings settings;
  settings.arguments = {"--container", "app", "--container", "other"};
  settings.arguments.insert(settings.arguments.end(), more.begin(), more.end());
  settings.buffers = buffers;
  settings.simulated_state = machine.folder();
  return settings;
}

Result<protocol::AttachReply> AttachOn(RawClient* client, const std::string& name, uint32_t gpu) {
  return client->Call<protocol::AttachReply>(
      Kind::kAttach, protocol::AttachRequest{.name = protocol::ToNameField(name),
                                             .access = 1,
                                             .peer_way = 0,
                                             .generation = 0,
                                             .gpu_uuid = UuidOf(gpu)});
}

Result<protocol::GpusReply> Gpus(RawClient* client) {
  return client->Call<protocol::GpusReply>(Kind::kGpus, protocol::GpusRequest{});
}

Result<protocol::MakeReply> MakePage(RawClient* client, const std::string& name) {
  return client->Call<protocol::MakeReply>(
      Kind::kMakePage, protocol::MakePageRequest{.name = protocol::ToNameField(name),
                                                 .size_bytes = 4096,
                                                 .flags = 0,
                                                 .reserved = 0,
                                                 .after_generation = 0});
}

class GpusTest : public ::testing::Test {
 protected:
  void Start(const std::string& buffers = kWeightsOnEach,
             const std::vector<std::string>& more = {}) {
    broker_.emplace(folder_.path(), On(machine_, buffers, more));
    ASSERT_TRUE(broker_->ready()) << broker_->log();
    client_.emplace(broker_->Socket("app"));
    ASSERT_TRUE(client_->Hello());
    registry_.emplace(*registry::RegistryReader::Open(std::move(client_->descriptors().at(0))));
  }
  registry::BufferRecord RecordOf(const std::string& name) const {
    const auto found = (*registry_)->Find(name);
    EXPECT_TRUE(found) << name;
    return found ? found->record : registry::BufferRecord();
  }

  const Machine machine_{2};
  const TempFolder folder_;
  std::optional<BrokerProcess> broker_;
  std::optional<RawClient> client_;
  std::optional<decltype(registry::RegistryReader::Open(UniqueFd()))::value_type> registry_;
};

TEST_F(GpusTest, EachBufferIsOnItsGpu) {
  Start();
  const auto gpus = Gpus(&*client_);
  ASSERT_TRUE(gpus) << gpus.error().ToString();
  ASSERT_EQ(gpus->count, 2U);
  // Each pool has what the fullest GPU needs.
  const uint64_t pool_bytes = (4 + 2 + 16) * kMiB;
  for (uint32_t gpu = 0; gpu < 2; ++gpu) {
    EXPECT_EQ(gpus->entries[gpu].gpu_uuid, UuidOf(gpu));
    EXPECT_EQ(gpus->entries[gpu].pool_bytes, pool_bytes);
    EXPECT_EQ(gpus->entries[gpu].used_bytes, (gpu == 0 ? 4 : 6) * kMiB);
    EXPECT_EQ(gpus->entries[gpu].lost, 0U);
  }
  const auto info = client_->Info();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->gpu_uuid, UuidOf(0));
  EXPECT_EQ(info->pool_bytes, 2 * pool_bytes);
  EXPECT_EQ(info->used_bytes, 10 * kMiB);

  for (const auto& [name, gpu] :
       std::map<std::string, uint32_t>{{"weights-0", 0}, {"weights-1", 1}, {"kv", 1}}) {
    EXPECT_EQ(RecordOf(name).gpu, UuidOf(gpu)) << name;
    EXPECT_EQ(RecordOf(name).gpu_number, gpu) << name;
    EXPECT_TRUE(AttachOn(&*client_, name, gpu)) << name;
    const auto elsewhere = AttachOn(&*client_, name, 1 - gpu);
    EXPECT_EQ(CodeOf(elsewhere), As(Code::kDenied)) << name;
    EXPECT_THAT(elsewhere.error().what(), HasSubstr(UuidText(gpu))) << name;
  }
}

// Goal: a driver that hangs for one GPU holds up nobody who uses the other. Method: allocations
// hang; when the one for GPU 1 does, later ones no longer do.
TEST_F(GpusTest, AGpuThatHangsHoldsUpNoOther) {
  Start();
  machine_.SetFaults("hang: {cuMemCreate: 600000}");
  RawClient waits(broker_->Socket("app"));
  ASSERT_TRUE(waits.Hello());
  ASSERT_TRUE(
      waits.Post(Kind::kCreate, protocol::CreateRequest{.name = protocol::ToNameField("hangs"),
                                                        .size_bytes = 2 * kMiB,
                                                        .flags = OnGpu(1),
                                                        .on_writer_exit = 0}));
  // The thread sleeps in the driver, and not until it gets work.
  const auto sleeps = [this] {
    for (const auto& task :
         std::filesystem::directory_iterator(Concat("/proc/", broker_->pid(), "/task"))) {
      std::string name;
      std::ifstream(task.path() / "comm") >> name;
      std::string call;
      std::ifstream(task.path() / "syscall") >> call;
      if (name == "gpushm-driver1") return call == "230" || call == "35";  // clock_nanosleep
    }
    return false;
  };
  ASSERT_TRUE(Eventually(sleeps));
  machine_.SetFaults("");
  EXPECT_TRUE(client_->Create("goes-on", 2 * kMiB, OnGpu(0)));
  ASSERT_TRUE(client_->Delete("goes-on"));
  EXPECT_TRUE(AttachOn(&*client_, "weights-1", 1)) << "an attach needs no call of the driver";
  EXPECT_EQ(Gpus(&*client_)->entries[1].used_bytes, 8 * kMiB) << "the allocation is in progress";
  pollfd answer{.fd = waits.socket(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&answer, 1, 0), 0) << "it hangs";
}

// ---- a start by hand

TEST(GpusAtStart, WhatDoesNotFitIsAnError) {
  struct Case {
    uint32_t gpus;
    std::vector<std::string> arguments;
    std::string says;
  };
  for (const Case& c : std::vector<Case>{
           {1, {}, "gpushm.io/gpus is 2, but this process sees 1 GPU: 0 GPU-aaaaaaaa"},
           {3, {}, "gpushm.io/gpus is 2, but this process sees 3 GPUs: 0 GPU-aaaaaaaa"},
           {2, {"--gpu", "0"}, "gpu: 1 GPU is named, but gpushm.io/gpus is 2"},
           {2, {"--gpu", "0", "--gpu", UuidText(0)}, "is named twice"},
           {2, {"--gpu", "0", "--gpu", "2"}, "gpu: 2 is not one of 0 GPU-aaaaaaaa"},
           {2, {"--pool", "9Gi"}, "is more than the memory of"},
       }) {
    const Machine machine(c.gpus);
    const TempFolder folder;
    BrokerProcess broker(folder.path(), On(machine, kWeightsOnEach, c.arguments));
    EXPECT_GT(broker.WaitForEnd(), 0) << c.says;
    EXPECT_THAT(broker.log(), HasSubstr(c.says));
  }
}

TEST(GpusAtStart, TheOrderOfChoicesIsThatOfTheNumbers) {
  const Machine machine(3);
  const TempFolder folder;
  const BrokerProcess broker(folder.path(),
                             On(machine, kWeightsOnEach, {"--gpu", UuidText(2), "--gpu", "0"}));
  ASSERT_TRUE(broker.ready()) << broker.log();
  RawClient client(broker.Socket("app"));
  ASSERT_TRUE(client.Hello());
  const auto gpus = Gpus(&client);
  ASSERT_TRUE(gpus);
  EXPECT_EQ(gpus->entries[0].gpu_uuid, UuidOf(2));
  EXPECT_EQ(gpus->entries[1].gpu_uuid, UuidOf(0));
  EXPECT_TRUE(AttachOn(&client, "weights-1", 0));
}

// ---- a plugin

protocol::LinkWelcome WelcomeTo(uint16_t other_gpus) {
  protocol::LinkWelcome welcome = Plugin::Welcome(UuidOf(0));
  welcome.other_gpus = other_gpus;
  return welcome;
}

void SayGpu(int socket, uint32_t number, const Uuid& uuid, bool lost = false) {
  Plugin::Say(socket, LinkKind::kGpu,
              protocol::LinkGpu{.number = number, .lost = lost ? 1U : 0U, .gpu_uuid = uuid});
}

void SayHealth(int socket, uint32_t gpu, bool lost) {
  protocol::LinkDevice device{};
  device.gpu = gpu;
  device.lost = lost ? 1 : 0;
  device.reason[0] = 'X';
  Plugin::Say(socket, LinkKind::kDevice, device);
}

void ReadToTheEnd(int socket) {
  protocol::Message message;
  while (protocol::Receive(socket, &message, Deadline::AfterMs(kSoonMs))) {
  }
}

BrokerSettings LinkedTo(const TempFolder& link, const Machine& machine) {
  return On(machine, kWeightsOnEach, {"--link", link.path(), "--start-timeout-ms", "5000"});
}

TEST(GpusOfAPlugin, OneThatBreaksTheRulesIsAnError) {
  struct Case {
    std::function<void(int socket)> talk;
    std::string says;
  };
  for (const Case& c : std::vector<Case>{
           {[](int socket) {
              Plugin::Say(socket, LinkKind::kWelcome, WelcomeTo(1));
              SayGpu(socket, 2, UuidOf(1));
            },
            "GPU 2 instead of GPU 1"},
           {[](int socket) {
              Plugin::Say(socket, LinkKind::kWelcome, WelcomeTo(1));
              SayGpu(socket, 1, UuidOf(0));
            },
            "GPU 1 is one that it named before"},
           {[](int socket) {
              Plugin::Say(socket, LinkKind::kWelcome, WelcomeTo(1));
              Plugin::Say(socket, LinkKind::kEnd, protocol::LinkEnd{});
            },
            "link"},
           {[](int socket) {
              Plugin::Say(socket, LinkKind::kWelcome, WelcomeTo(1));
              SayGpu(socket, 1, UuidOf(1));
              Plugin::Say(socket, LinkKind::kOthers, protocol::LinkOthers{});
            },
            "socket for other pods"},
           {[](int socket) {
              Plugin::Say(socket, LinkKind::kWelcome, WelcomeTo(1));
              SayGpu(socket, 1, UuidOf(1));
              SayHealth(socket, 2, true);
            },
            "health of GPU 2, but the pod has 2"},
           {[](int socket) {
              Plugin::Say(socket, LinkKind::kWelcome, WelcomeTo(0));
              Plugin::Say(socket, LinkKind::kEnd, protocol::LinkEnd{});
            },
            "but the plugin gave this pod 1. Remedy: let the sidecar request gpushm.io/attach: 2"},
       }) {
    const Machine machine(2);
    const TempFolder folder;
    const TempFolder link;
    const Plugin plugin(link.path(), [&](int socket, int) {
      c.talk(socket);
      ReadToTheEnd(socket);
    });
    BrokerProcess broker(folder.path(), LinkedTo(link, machine));
    EXPECT_EQ(broker.WaitForEnd(), 1) << c.says;
    EXPECT_THAT(broker.log(), HasSubstr(c.says));
  }
}

TEST_F(GpusTest, TheOtherGpuGoesOnIfOneIsLost) {
  const TempFolder link;
  std::atomic<int> linked = -1;
  const Plugin plugin(link.path(), [&](int socket, int) {
    Plugin::Say(socket, LinkKind::kWelcome, WelcomeTo(1));
    SayGpu(socket, 1, UuidOf(1));
    Plugin::Say(socket, LinkKind::kEnd, protocol::LinkEnd{});
    linked = socket;
    ReadToTheEnd(socket);
  });
  Start(kWeightsOnEach, {"--link", link.path(), "--start-timeout-ms", "5000"});
  ASSERT_TRUE(Eventually([&] { return linked >= 0; }));
  SayHealth(linked, 1, true);
  ASSERT_TRUE(broker_->WaitForLog(Concat("gpu-unhealthy gpu=", UuidText(1)))) << broker_->log();
  EXPECT_EQ(Gpus(&*client_)->entries[0].lost, 0U);
  EXPECT_EQ(Gpus(&*client_)->entries[1].lost, 1U);
  const auto lost = AttachOn(&*client_, "weights-1", 1);
  EXPECT_EQ(CodeOf(lost), As(Code::kDeviceLost));
  EXPECT_THAT(lost.error().what(), HasSubstr(Concat("GPU 1, ", UuidText(1), ", is lost")));
  EXPECT_EQ(CodeOf(client_->Create("on-1", 2 * kMiB, OnGpu(1))), As(Code::kDeviceLost));
  EXPECT_EQ(Gpus(&*client_)->entries[1].used_bytes, 6 * kMiB) << "nothing stays reserved";

  EXPECT_TRUE(AttachOn(&*client_, "weights-0", 0));
  EXPECT_TRUE(client_->Create("on-0", 2 * kMiB, OnGpu(0)));
  EXPECT_TRUE(MakePage(&*client_, "page"));

  SayHealth(linked, 0, true);
  ASSERT_TRUE(broker_->WaitForLog(Concat("gpu-unhealthy gpu=", UuidText(0))));
  EXPECT_EQ(CodeOf(AttachOn(&*client_, "weights-0", 0)), As(Code::kDeviceLost));
  EXPECT_EQ(CodeOf(MakePage(&*client_, "page-2")), As(Code::kDeviceLost));
  SayHealth(linked, 1, false);
  ASSERT_TRUE(broker_->WaitForLog(Concat("gpu-healthy gpu=", UuidText(1))));
  EXPECT_TRUE(AttachOn(&*client_, "weights-1", 1));
  EXPECT_TRUE(MakePage(&*client_, "page-2"));
  broker_.reset();  // The plugin's thread waits for its end.
}

// Goal: a plugin that was restarted must name the same GPUs. Method: the second connection names
// others, the third one the same.
TEST(GpusOfAPlugin, LaterOnesAreComparedOneByOne) {
  const Machine machine(3);
  const TempFolder folder;
  const TempFolder link;
  const Plugin plugin(link.path(), [&](int socket, int connection) {
    Plugin::Say(socket, LinkKind::kWelcome, WelcomeTo(1));
    SayGpu(socket, 1, UuidOf(connection == 2 ? 2 : 1), /*lost=*/connection == 3);
    if (connection == 1) Plugin::Say(socket, LinkKind::kEnd, protocol::LinkEnd{});
    if (connection == 3) ReadToTheEnd(socket);
  });
  const BrokerProcess broker(folder.path(), LinkedTo(link, machine));
  ASSERT_TRUE(broker.ready()) << broker.log();
  EXPECT_TRUE(broker.WaitForLog(Concat("GPUs ", UuidText(0), " and ", UuidText(2))));
  EXPECT_TRUE(broker.WaitForLog(Concat("gpu-unhealthy gpu=", UuidText(1)))) << broker.log();
}

}  // namespace
}  // namespace gpushm::broker::testing
