// Goal: what starts and ends with the broker and with its clients. Method: the real process on the
// simulated driver; deaths are SIGKILLs.
#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "contract/protocol/link.h"
#include "contract/registry/host_list.h"
#include "contract/registry/reader.h"
#include "platform/base/clock.h"
#include "platform/base/testing/code.h"
#include "sidecar/broker/testing/broker_process.h"
#include "sidecar/broker/testing/raw_client.h"

namespace gpushm::broker::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

using gpushm::testing::CodeOf;
constexpr int As(Code code) { return static_cast<int>(code); }

BrokerSettings With(const std::string& buffers, std::vector<std::string> more = {}) {
  BrokerSettings settings = TwoContainers();
  settings.buffers = buffers;
  settings.arguments.insert(settings.arguments.end(), more.begin(), more.end());
  return settings;
}

// What the pod's status shows of an ended sidecar: the kubelet takes the last 2 KiB of its log.
std::string LastWords(const BrokerProcess& broker) {
  const std::string log = broker.log();
  return log.substr(log.size() - std::min<size_t>(log.size(), 2048));
}

// What the registry from Hello says about a buffer.
std::optional<registry::BufferRecord> RecordOf(const BrokerProcess& broker,
                                               const std::string& name) {
  RawClient client(broker.Socket("app"));
  if (!client.Hello() || client.descriptors().size() != 1) return std::nullopt;
  const auto reader = registry::RegistryReader::Open(std::move(client.descriptors()[0]));
  if (!reader) return std::nullopt;
  const auto found = (*reader)->Find(name);
  if (!found) return std::nullopt;
  return found->record;
}

std::optional<registry::BufferState> StateOf(const BrokerProcess& broker, const std::string& name) {
  const auto record = RecordOf(broker, name);
  return record ? std::optional(record->state) : std::nullopt;
}

// For gpushm-mps, which runs as another uid. The folder outlives the broker, with what is in it.
TEST(BrokerLife, MakesAFolderForTheMpsDaemon) {
  const TempFolder folder;
  const std::string mps = folder / ".mps";
  for (int run = 0; run < 2; ++run) {
    const BrokerProcess broker(folder.path(), With("", {"--mps-folder", mps}));
    ASSERT_TRUE(broker.ready()) << broker.log();
    struct stat info{};
    ASSERT_EQ(stat(mps.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777u, 01777u);
    if (run == 0) std::ofstream(mps + "/control_lock") << "kept";
  }
  EXPECT_TRUE(std::filesystem::exists(mps + "/control_lock"));
}

TEST(BrokerLife, PutsTheLibraryForCudaIpc) {
  const TempFolder folder;
  const std::string place = folder / ".cuda-ipc";
  for (int run = 0; run < 2; ++run) {
    const BrokerProcess broker(folder.path(), With("", {"--cuda-ipc", place}));
    ASSERT_TRUE(broker.ready()) << broker.log();
    std::ifstream file(place + "/ld.so.preload");
    std::string line;
    std::getline(file, line);
    EXPECT_EQ(line, "/run/gpushm-cuda-ipc/libgpushm-cudaipc.so");
    struct stat info{};
    ASSERT_EQ(stat((place + "/libgpushm-cudaipc.so").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777u, 0755u);
    const std::string program = Concat("LD_PRELOAD=", place, "/libgpushm-cudaipc.so /bin/true");
    EXPECT_EQ(std::system(program.c_str()), 0);
  }
}

// Goal: the loader of a file, which no list can name, has a socket of its own.
TEST(BrokerLife, TheLoaderOfAFileIsServedAndLoads) {
  const TempFolder folder;
  const BrokerProcess broker(
      folder.path(),
      {.arguments = {"--container", "app"},
       .buffers =
           "buffers.gpushm.io/w: {size: 2Mi, access: read-only, file: m/w, containers: [app]}"});
  ASSERT_TRUE(broker.ready()) << broker.log();
  EXPECT_EQ(StateOf(broker, "w"), registry::BufferState::kLoading);
  RawClient app(broker.Socket("app"));
  ASSERT_TRUE(app.Hello());
  EXPECT_EQ(CodeOf(app.Attach("w", 2)), As(Code::kDenied));
  RawClient loader(broker.Socket("gpushm-load-w"));
  ASSERT_TRUE(loader.Hello());
  const auto lease = loader.Attach("w", 2);
  ASSERT_TRUE(lease) << lease.error().ToString();
  ASSERT_TRUE(loader.Call<protocol::EmptyReply>(
      protocol::Kind::kContent, protocol::ContentRequest{lease->lease_id, 2 << 20, 1, 0}));
  EXPECT_EQ(StateOf(broker, "w"), registry::BufferState::kReady);
  EXPECT_TRUE(app.Attach("w"));
}

// Regression: the registry showed the digest until something else changed there.
TEST(BrokerLife, TheDigestIsGoneBeforeAWriterHasItsLease) {
  const TempFolder folder;
  const BrokerProcess broker(folder.path(), With("buffers.gpushm.io/weights: 2Mi"));
  ASSERT_TRUE(broker.ready()) << broker.log();
  RawClient app(broker.Socket("app"));
  ASSERT_TRUE(app.Hello());
  const auto lease = app.Attach("weights", 2);
  ASSERT_TRUE(lease) << lease.error().ToString();
  ASSERT_TRUE(app.Call<protocol::EmptyReply>(
      protocol::Kind::kContent,
      protocol::ContentRequest{lease->lease_id, 5, 1, 0, Digest{{1, 2}}}));
  ASSERT_TRUE(app.Detach(lease->lease_id));
  EXPECT_FALSE(RecordOf(broker, "weights")->digest.empty());
  ASSERT_TRUE(app.Attach("weights", 1));
  EXPECT_FALSE(RecordOf(broker, "weights")->digest.empty()) << "the control: a reader";
  ASSERT_TRUE(app.Attach("weights", 2));
  EXPECT_TRUE(RecordOf(broker, "weights")->digest.empty());
}

TEST(BrokerLife, SaysWhosePodItServes) {
  const TempFolder folder;
  setenv("GPUSHM_POD_NAMESPACE", "ml", 1);
  setenv("GPUSHM_POD_NAME", "decoder-0", 1);
  const BrokerProcess broker(folder.path(), TwoContainers());
  unsetenv("GPUSHM_POD_NAMESPACE");
  unsetenv("GPUSHM_POD_NAME");
  ASSERT_TRUE(broker.ready()) << broker.log();
  EXPECT_NE(broker.log().find("ml/decoder-0"), std::string::npos) << broker.log();
}

TEST(BrokerLife, ServesAHundredContainers) {
  const TempFolder folder;
  BrokerSettings settings{.arguments = {"--pool", "256Mi"},
                          .buffers = "buffers.gpushm.io/weights: 4Mi"};
  for (int i = 0; i < 100; ++i) {
    settings.arguments.insert(settings.arguments.end(), {"--container", Concat("c", i)});
  }
  const BrokerProcess broker(folder.path(), settings);
  ASSERT_TRUE(broker.ready()) << broker.log();
  std::vector<RawClient> clients;
  for (int i = 0; i < 100; ++i) {
    RawClient& client = clients.emplace_back(broker.Socket(Concat("c", i)));
    ASSERT_TRUE(client.Hello()) << i;
    const auto attached = client.Attach("weights");
    ASSERT_TRUE(attached) << i << ": " << attached.error().ToString();
    EXPECT_EQ(client.descriptors().size(), 1u);
  }
  EXPECT_EQ(clients.front().Info()->leases, 100u);
}

TEST(BrokerLife, ASecondBrokerOnAFolderRefusesToStart) {
  const TempFolder folder;
  const BrokerProcess first(folder.path(), TwoContainers());
  ASSERT_TRUE(first.ready());
  BrokerProcess second(folder.path(), TwoContainers());
  EXPECT_FALSE(second.ready());
  EXPECT_EQ(second.WaitForEnd(), 1);
  EXPECT_THAT(LastWords(second), HasSubstr("another broker serves " + folder.path()));
  EXPECT_TRUE(RawClient(first.Socket("app")).Hello()) << "the first one's sockets are untouched";
}

TEST(BrokerLife, TermWaitsForLeases) {
  const TempFolder folder;
  BrokerProcess broker(folder.path(), TwoContainers());
  RawClient client(broker.Socket("app"));
  ASSERT_TRUE(client.Hello());
  const auto lease = client.Attach("weights");
  ASSERT_TRUE(lease);
  broker.Signal(SIGTERM);
  ASSERT_TRUE(broker.WaitForLog("draining"));
  EXPECT_TRUE(Eventually([&] { return !RawClient(broker.Socket("other")).connected(); }))
      << "nobody new";
  EXPECT_EQ(CodeOf(client.Attach("weights")), As(Code::kUnavailable));
  EXPECT_EQ(broker.WaitForEnd(50), -1000);
  ASSERT_TRUE(client.Detach(lease->lease_id));
  EXPECT_EQ(broker.WaitForEnd(), 0);
}

TEST(BrokerLife, TermWaitsNoLongerThanItsDeadline) {
  const TempFolder folder;
  BrokerProcess broker(folder.path(),
                       With("buffers.gpushm.io/weights: 4Mi", {"--drain-timeout-ms", "200"}));
  RawClient client(broker.Socket("app"));
  ASSERT_TRUE(client.Hello());
  ASSERT_TRUE(client.Attach("weights"));
  broker.Signal(SIGTERM);
  EXPECT_EQ(broker.WaitForEnd(), 0);
  EXPECT_THAT(broker.log(), HasSubstr("drain-timeout"));
}

TEST(BrokerLife, AGenerationThatCannotBeReadIsRefused) {
  for (const char* text : {"seven", "18446744073709551615", "12 34", "-1"}) {
    const TempFolder folder;
    std::ofstream(folder.path() + "/.generations") << text;
    BrokerProcess broker(folder.path(), TwoContainers());
    EXPECT_FALSE(broker.ready()) << text;
    EXPECT_EQ(broker.WaitForEnd(), 1) << text;
    EXPECT_THAT(broker.log(), HasSubstr("does not contain a valid generation number")) << text;
  }
}

TEST(BrokerLife, WithoutThePluginNothingIsMade) {
  const TempFolder folder;
  const TempFolder link;
  BrokerProcess broker(folder.path(), With("buffers.gpushm.io/weights: 4Mi",
                                           {"--link", link.path(), "--start-timeout-ms", "300"}));
  EXPECT_FALSE(broker.ready());
  EXPECT_EQ(broker.WaitForEnd(), 1);
  EXPECT_THAT(broker.log(), HasSubstr("link-waiting"));
  EXPECT_THAT(LastWords(broker), HasSubstr("start-failed"));
  EXPECT_THAT(LastWords(broker), HasSubstr("the plugin did not answer at " + link.path()));
  EXPECT_THAT(LastWords(broker), HasSubstr("--link none"));
  EXPECT_EQ(simulated::UsedBytes(), 0u);
}

// Goal: a runtime that drops CDI devices silently is named at once, and not mistaken for a missing
// plugin.
TEST(BrokerLife, WithoutTheMountOfItsLinkItNamesTheRuntime) {
  if (access(protocol::kDefaultLinkFolder, F_OK) == 0) GTEST_SKIP() << "this is a sidecar";
  const TempFolder folder;
  BrokerProcess broker(folder.path(), With("buffers.gpushm.io/weights: 4Mi",
                                           {"--link", protocol::kDefaultLinkFolder}));
  EXPECT_EQ(broker.WaitForEnd(), 1);
  EXPECT_THAT(LastWords(broker),
              HasSubstr("start-failed reason=\"NOT_FOUND: folder /run/gpushm-link "
                        "does not exist: the container runtime ignored"));
  EXPECT_THAT(LastWords(broker), HasSubstr("enable CDI"));
}

TEST(BrokerLife, ADeadWriterIsSeenAsDeclared) {
  const TempFolder folder;
  const BrokerProcess broker(
      folder.path(), With("buffers.gpushm.io/marked: 2Mi\n"
                          "buffers.gpushm.io/kept: {size: 2Mi, on-writer-exit: keep}\n"
                          "buffers.gpushm.io/dropped: {size: 2Mi, on-writer-exit: drop}\n"));
  ASSERT_TRUE(broker.ready()) << broker.log();
  ClientProcess writer([&] {
    static RawClient raw(broker.Socket("app"));
    if (!raw.Hello()) return 1;
    for (const char* name : {"marked", "kept", "dropped"}) {
      if (!raw.Attach(name, 2)) return 2;
    }
    return 0;
  });
  ASSERT_EQ(writer.result(), 0);
  writer.Kill();
  EXPECT_TRUE(
      Eventually([&] { return StateOf(broker, "marked") == registry::BufferState::kWriterDied; }));
  RawClient reader(broker.Socket("other"));
  ASSERT_TRUE(reader.Hello());
  EXPECT_TRUE(reader.Attach("marked")) << "its bytes can still be read";
  EXPECT_EQ(reader.Info()->leases, 1u) << "the dead process has none";
  EXPECT_EQ(StateOf(broker, "kept"), registry::BufferState::kReady);
  EXPECT_EQ(StateOf(broker, "dropped"), std::nullopt);
  EXPECT_TRUE(broker.WaitForLog("writer-died buffer=marked container=app"));
  EXPECT_TRUE(broker.WaitForLog("buffer-dropped buffer=dropped"));
}

TEST(BrokerLife, AnOfferIsNoLargerThanItsGpu) {
  const TempFolder folder;
  const BrokerProcess broker(folder.path(), TwoContainers());
  ASSERT_TRUE(broker.ready()) << broker.log();
  RawClient client(broker.Socket("app"));
  const auto hello = client.Hello();
  ASSERT_TRUE(hello);
  protocol::OfferRequest body{};
  body.name = protocol::ToNameField("giant");
  body.size_bytes = body.mapped_bytes = uint64_t{1} << 46;
  body.transport = static_cast<uint32_t>(protocol::Transport::kCuIpc);
  body.pid = 1;
  body.gpu_uuid = hello->gpu_uuid;
  EXPECT_EQ(CodeOf(client.Call<protocol::OfferReply>(protocol::Kind::kOffer, body)),
            As(Code::kInvalidArgument));
  body.size_bytes = body.mapped_bytes = 50 * 1024 * kMiB;  // The simulated GPU has 80 GiB.
  EXPECT_TRUE(client.Call<protocol::OfferReply>(protocol::Kind::kOffer, body));
  body.name = protocol::ToNameField("second");
  EXPECT_EQ(CodeOf(client.Call<protocol::OfferReply>(protocol::Kind::kOffer, body)),
            As(Code::kExhausted));
}

// Regression: a sidecar at its limit of open files blamed its clients for a protocol error and
// disconnected them.
TEST(BrokerLife, SaysThatItHasNoDescriptorFree) {
  const TempFolder folder;
  const BrokerProcess broker(folder.path(), TwoContainers());
  ASSERT_TRUE(broker.ready()) << broker.log();
  RawClient client(broker.Socket("app"));
  ASSERT_TRUE(client.Hello());
  const UniqueFd memory = simulated::Memory();
  rlimit before{};
  ASSERT_EQ(prlimit(broker.pid(), RLIMIT_NOFILE, nullptr, &before), 0);
  // All numbers below are taken, and poll() needs this many.
  const rlimit none{3, before.rlim_max};
  ASSERT_EQ(prlimit(broker.pid(), RLIMIT_NOFILE, &none, nullptr), 0);
  const auto refused = client.Offer("offered", memory.get());
  ASSERT_EQ(CodeOf(refused), As(Code::kExhausted));
  EXPECT_THAT(refused.error().ToString(),
              HasSubstr("the sidecar: this process has no free descriptor"));
  EXPECT_TRUE(broker.WaitForLog("descriptors-exhausted container=app"));
  ASSERT_EQ(prlimit(broker.pid(), RLIMIT_NOFILE, &before, nullptr), 0);
  EXPECT_TRUE(client.Offer("offered", memory.get())) << "the connection goes on";
}

// Goal: a library of 1.0.0-rc.1, which speaks versions 1 to 8 of the protocol, is refused and told
// what to do; so is one that speaks only a later version. One that also speaks this version is
// served in it.
TEST(BrokerLife, VersionsAreAgreedOn) {
  const TempFolder folder;
  const BrokerProcess broker(folder.path(), TwoContainers());
  ASSERT_TRUE(broker.ready()) << broker.log();
  const auto greet = [](RawClient* client, int least, int most) {
    protocol::HelloRequest hello{};
    hello.min_version = static_cast<uint16_t>(least);
    hello.max_version = static_cast<uint16_t>(most);
    return client->Call<protocol::HelloReply>(protocol::Kind::kHello, hello);
  };
  constexpr uint16_t kNow = protocol::kMaxVersion;
  for (const auto& [least, most] : {std::pair{1, 8}, std::pair{kNow + 1, kNow + 2}}) {
    RawClient client(broker.Socket("app"));
    const auto refused = greet(&client, least, most);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kIncompatible);
    EXPECT_THAT(refused.error().ToString(),
                HasSubstr(Concat("the library supports protocol versions ", least, " to ", most,
                                 ", but the broker supports ", kNow, " to ", kNow,
                                 ". Remedy: make the pod again")));
    EXPECT_TRUE(greet(&client, kNow, kNow)) << "it may greet again";
  }
  RawClient later(broker.Socket("app"));
  const auto hello = greet(&later, kNow, kNow + 1);
  ASSERT_TRUE(hello) << hello.error().ToString();
  EXPECT_EQ(hello->version, kNow);
  EXPECT_EQ(later.Info()->version, kNow);
}

// ---- hostIPC

TEST(BrokerLife, ServesHostIpcPodsInTheHostsFolder) {
  const TempFolder folder;
  const TempFolder host;
  const std::string uid = "0b6f9a5e-0000-4000-8000-000000000001";
  const std::string list = host.path() + "/" + registry::HostListFile(uid);
  const std::string socket = host.path() + "/" + registry::HostSocketFile(uid);
  {
    BrokerProcess broker(folder.path(),
                         With("buffers.gpushm.io/weights: 4Mi",
                              {"--host-ipc", "--pod-uid", uid, "--host-dir", host.path()}));
    ASSERT_TRUE(broker.ready()) << broker.log();
    EXPECT_TRUE(Eventually([&] { return registry::ReadHostList(host.path(), uid).has_value(); }));
    EXPECT_EQ(registry::ReadHostList(host.path(), uid)->buffers.size(), 1u);
    struct stat info{};
    ASSERT_EQ(stat(list.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777u, 0640u);
    ASSERT_EQ(stat(socket.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777u, 0660u);
    RawClient client(socket);
    const auto hello = client.Hello();
    ASSERT_TRUE(hello);
    EXPECT_EQ(protocol::FromNameField(hello->container), "host-ipc");
    ASSERT_TRUE(client.Attach("weights"));
    ASSERT_TRUE(client.Create("more", 1));
    EXPECT_TRUE(
        Eventually([&] { return registry::ReadHostList(host.path(), uid)->buffers.size() == 2; }));
    broker.Signal(SIGKILL);
  }
  EXPECT_TRUE(std::filesystem::exists(socket)) << "the control: a killed broker leaves them";
  BrokerProcess next(folder.path(),
                     With("buffers.gpushm.io/weights: 4Mi",
                          {"--host-ipc", "--pod-uid", uid, "--host-dir", host.path()}));
  ASSERT_TRUE(next.ready()) << next.log();
  EXPECT_TRUE(RawClient(socket).Hello());
  next.Signal(SIGTERM);
  EXPECT_EQ(next.WaitForEnd(), 0);
  EXPECT_FALSE(std::filesystem::exists(socket));
  EXPECT_FALSE(std::filesystem::exists(list));
}

// Regression: if another process took the name in /dev/shm while a broker restarted, each next
// start failed, also for the pod's own containers.
TEST(BrokerLife, ATakenNameInTheHostsFolderCostsTheHostsPodsAlone) {
  if (getuid() != 0) GTEST_SKIP() << "needs root, to start a broker that is another user";
  constexpr uid_t kUser = 31'344;
  const TempFolder folder;
  const TempFolder host;  // Like /dev/shm: everybody may create files, and remove their own.
  ASSERT_EQ(chown(folder.path().c_str(), kUser, kUser), 0);
  ASSERT_EQ(chmod(host.path().c_str(), 01777), 0);
  const std::string uid = "0b6f9a5e-0000-4000-8000-000000000002";
  const std::string socket = host.path() + "/" + registry::HostSocketFile(uid);
  std::ofstream(socket) << "taken";
  BrokerSettings settings = With("buffers.gpushm.io/weights: 4Mi",
                                 {"--host-ipc", "--pod-uid", uid, "--host-dir", host.path()});
  settings.uid = kUser;
  const BrokerProcess broker(folder.path(), settings);
  ASSERT_TRUE(broker.ready()) << broker.log();
  EXPECT_TRUE(broker.WaitForLog("host-socket-failed socket=" + socket));
  EXPECT_THAT(broker.log(), HasSubstr("another user's file is at " + socket));
  RawClient app(broker.Socket("app"));
  EXPECT_TRUE(app.Hello());
  std::filesystem::remove(socket);
  EXPECT_TRUE(broker.WaitForLog("host-socket-served"));
  EXPECT_TRUE(RawClient(socket).Hello());
}

}  // namespace
}  // namespace gpushm::broker::testing
