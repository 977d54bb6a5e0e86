// Goal: the plugin stays within the memory that the chart gives it, whatever pods state and however
// its metrics are read. Method: the real process with a limit of 256 MiB; brokers that state all
// that a link may have; scrapers, and readers that stop in the middle of an answer.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "contract/limits.h"
#include "platform/daemon/process.h"
#include "plugin/keeper/testing/statements.h"
#include "plugin/testing/plugin_process.h"
#include "plugin/testing/scrape.h"

namespace gpushm::plugin {
namespace {

using keeper::testing::BufferOf;
using keeper::testing::ClientOf;
using keeper::testing::FakeBroker;
using keeper::testing::GenerationOf;
using keeper::testing::LeaseOf;
using keeper::testing::PidfdOf;
using keeper::testing::SayOneOfEach;
using testing::PluginProcess;
using testing::Scrape;
using testing::TestNode;
using testing::WaitUntil;

constexpr int64_t kPatienceMs = 120'000;
constexpr uint64_t kMemoryLimitBytes = uint64_t{256} << 20;  // helm/gpushm/values.yaml
constexpr int kFullLinks = 14;
constexpr int kScrapers = 4;
// Each is a descriptor in the plugin, of which the number is limited.
constexpr uint64_t kClients = 512;

// The longest possible name, which needs heap memory in a string.
std::string LongName(const char* what, uint64_t number) {
  std::string name = Concat(what, "-", number, "-");
  name.resize(limits::kNameBytes, 'x');
  return name;
}

// States all that a link may have, until the plugin disconnects.
void StateAll(FakeBroker* broker) {
  const UniqueFd self = PidfdOf(getpid());
  for (uint64_t i = 1; i <= kClients; ++i) {
    if (!broker->Say(ClientOf(i, LongName("c", i).c_str()), self.get())) return;
  }
  for (uint64_t i = 1; i <= limits::kLinkGenerations; ++i) {
    const std::string name = LongName("b", i);
    protocol::LinkGeneration generation = GenerationOf(name, i);
    generation.transport = static_cast<uint32_t>(protocol::Transport::kCuIpc);
    generation.pooled = 0;
    generation.offerer_pid = getpid();
    generation.offerer_client = 1;
    if (!broker->Say(BufferOf(name, i)) || !broker->Say(generation)) return;
  }
  for (uint64_t i = limits::kLinkGenerations + 1; i <= limits::kLinkBuffers; ++i) {
    if (!broker->Say(BufferOf(LongName("b", i)))) return;
  }
  for (uint64_t i = 1; i <= limits::kLeases; ++i) {
    if (!broker->Say(LeaseOf(i, 1 + i % kClients, 1 + i % limits::kLinkGenerations))) return;
  }
  (void)broker->End();
}

uint64_t PeakBytes(pid_t pid) {
  std::ifstream status(Concat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) << 10;
  }
  return 0;
}

class MemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RaiseDescriptorLimit();
    std::string config =
        "kubelet: none\nmetrics: {address: '127.0.0.1:0'}\nstatus: {address: ''}\n"
        "probes: {address: '127.0.0.1:0'}\nallocations:\n";
    for (int i = 0; i < kFullLinks; ++i) config += Concat("- {name: full-", i, ", memory: 1Gi}\n");
    config += "- {name: small-0, memory: 1Gi}\n- {name: small-1, memory: 1Gi}\n";
    plugin_ = std::make_unique<PluginProcess>(node_, node_.WriteConfig(config), LimitMemory());
    ASSERT_TRUE(WaitUntil(kPatienceMs, [this] {
      port_ = testing::PortIn(node_ / "plugin.log", "metrics-served");
      probes_port_ = testing::PortIn(node_ / "plugin.log", "probes-served");
      return port_ != 0 && probes_port_ != 0;
    })) << plugin_->Log();
  }
  // Makes a cgroup with the limit, for testing/memory_limit.c; returns the environment for it.
  std::map<std::string, std::string> LimitMemory() {
    namespace fs = std::filesystem;
    for (const char* const folder : {"cgroup/proc/self", "cgroup/sys/fs/cgroup"}) {
      fs::create_directories(node_ / folder);
    }
    std::ofstream(node_ / "cgroup/proc/self/cgroup") << "0::/\n";
    std::ofstream(node_ / "cgroup/sys/fs/cgroup/memory.max") << kMemoryLimitBytes << "\n";
    const fs::path build = fs::read_symlink("/proc/self/exe").parent_path().parent_path();
    return {{"LD_PRELOAD", build / "tests/libgpushm_memory_limit.so"},
            {"GPUSHM_CGROUP_ROOT", node_ / "cgroup"}};
  }
  std::string Socket(const std::string& name) const {
    return Concat(node_ / "state", "/links/", name, "/", protocol::kLinkSocketName);
  }
  void ConnectSmall(const std::string& name) {
    FakeBroker& broker = brokers_.emplace_back(Socket(name));
    ASSERT_TRUE(broker.Greet(false) &&
                SayOneOfEach(&broker, keeper::testing::SimulatedMemory(node_ / "sim")) &&
                broker.End());
  }
  // Requests metrics and reads only the beginning.
  void AddSlowReader() {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int few = 4096;
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &few, sizeof few);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return;
    constexpr std::string_view kAsk = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
    (void)send(fd.get(), kAsk.data(), kAsk.size(), MSG_NOSIGNAL);
    slow_.push_back(std::move(fd));
  }

  TestNode node_;
  std::unique_ptr<PluginProcess> plugin_;
  std::list<FakeBroker> brokers_;
  std::vector<UniqueFd> slow_;
  int port_ = 0;
  int probes_port_ = 0;
};

TEST_F(MemoryTest, FullLinksAndScrapersStayWithinTheLimit) {
  ConnectSmall("small-0");
  std::atomic<bool> ended = false;
  std::atomic<int> pages = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kScrapers; ++i) {
    threads.emplace_back([&] {
      while (!ended) {
        if (!Scrape::Get(port_, "/metrics").empty()) ++pages;
      }
    });
  }
  for (int i = 0; i < kFullLinks; ++i) {
    FakeBroker& broker = brokers_.emplace_back(Socket(Concat("full-", i)));
    ASSERT_TRUE(broker.Greet(false));
    StateAll(&broker);
    AddSlowReader();
    ASSERT_TRUE(plugin_->Running()) << plugin_->Log();
    EXPECT_EQ(testing::HttpGet(probes_port_, "/healthz").status, 200);
  }
  ConnectSmall("small-1");
  const int before = pages;
  EXPECT_TRUE(WaitUntil(kPatienceMs, [&] { return pages >= before + kScrapers; }));
  ended = true;
  for (std::thread& thread : threads) thread.join();
  slow_.clear();

  std::string text;
  EXPECT_TRUE(WaitUntil(kPatienceMs, [&] {
    text = Scrape::Get(port_, "/metrics");
    return Scrape(text).Sum("gpushm_buffer_attachments", {{"pod", "small-1"}}) == 1.0;
  }));
  const Scrape page(text);
  EXPECT_EQ(page.Sum("gpushm_buffer_attachments", {{"pod", "small-0"}}), 1.0);
  EXPECT_GE(page.Sum("gpushm_link_exhausted_total").value_or(0), 1.0);
  for (const char* const small : {"small-0", "small-1"}) {
    EXPECT_EQ(page.Sum("gpushm_link_exhausted_total", {{"pod", small}}), 0.0) << small;
  }
  EXPECT_GE(page.Sum("gpushm_link_memory_bytes").value_or(0), double{kMemoryLimitBytes} / 8)
      << "some full links must be kept, or this test shows nothing";
  RecordProperty("peak_bytes", std::to_string(PeakBytes(plugin_->pid())));
  RecordProperty("page_bytes", std::to_string(text.size()));
#ifndef GPUSHM_SANITIZED  // The sanitizer's memory would count.
  EXPECT_LT(PeakBytes(plugin_->pid()), kMemoryLimitBytes);
#endif
}

}  // namespace
}  // namespace gpushm::plugin
