// Goal: a pod at its documented limits does not make its sidecar use more than the 64 MiB that it
// is given, and no container takes what the others need. Method: the real broker, filled to its
// limits, and a hand-made plugin.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>

#include "contract/limits.h"
#include "contract/protocol/link.h"
#include "sidecar/broker/testing/broker_process.h"
#include "sidecar/broker/testing/fake_plugin.h"
#include "sidecar/broker/testing/raw_client.h"

namespace gpushm::broker::testing {
namespace {

using protocol::LinkKind;

#ifdef GPUSHM_SANITIZED
constexpr bool kSanitized = true;  // Its memory includes the sanitizer's.
#else
constexpr bool kSanitized = false;
#endif

template <typename T>
int CodeOf(const Result<T>& result) {
  return result ? 0 : static_cast<int>(result.error().code());
}
constexpr int As(Code code) { return static_cast<int>(code); }

// Reads and counts all that the broker states. A restart is a connection that ends. The broker also
// ends a connection whose statements are not read fast enough.
class CountingPlugin {
 public:
  CountingPlugin(const std::string& folder, const std::array<uint8_t, 16>& gpu)
      : plugin_(folder, [this, gpu](int socket, int connection) {
          connections_ = connection;
          Plugin::Say(socket, LinkKind::kWelcome, Plugin::Welcome(gpu));
          if (connection == 1) Plugin::Say(socket, LinkKind::kEnd, protocol::LinkEnd{});
          Count(socket, connection);
        }) {}
  ~CountingPlugin() { stop_ = true; }

  // Ends the connection. Returns true once a later connection was told everything.
  bool Restart(int wait_ms) {
    const int connection = connections_;
    restart_ = true;
    return Eventually([&] { return told_ > connection; }, wait_ms);
  }
  // Whether the last connection was told everything.
  bool is_told() const { return told_ > 0 && told_ == connections_; }
  // Stated to the last connection that was told everything.
  size_t leases() const { return leases_; }

 private:
  void Count(int socket, int connection) {
    protocol::Message message;
    std::set<uint64_t> leases;
    while (!stop_ && !restart_.exchange(false)) {
      const auto received = protocol::Receive(socket, &message, Deadline::AfterMs(5));
      if (!received && received.error().code() != Code::kTimeout) return;
      if (!received) continue;
      const auto kind = static_cast<LinkKind>(protocol::ParseLinkHeader(message.span())->kind);
      if (kind == LinkKind::kLease) {
        leases.insert(protocol::ParseLink<protocol::LinkLease>(message.span())->lease_id);
      }
      if (kind != LinkKind::kEnd) continue;
      leases_ = leases.size();
      told_ = connection;
    }
  }

  std::atomic<bool> stop_ = false;
  std::atomic<bool> restart_ = false;
  std::atomic<int> connections_ = 0;
  std::atomic<int> told_ = 0;  // The last connection that was told everything.
  std::atomic<size_t> leases_ = 0;
  Plugin plugin_;
};

// VmRSS or VmHWM of a process, in KiB.
size_t MemoryKib(pid_t pid, const std::string& field) {
  std::ifstream status(Concat("/proc/", pid, "/status"));
  for (std::string word; status >> word;) {
    size_t kib = 0;
    if (word == field + ":" && status >> kib) return kib;
  }
  ADD_FAILURE() << "no " << field;
  return 0;
}

TEST(Limits, APluginsRestartCostsNoMemory) {
  constexpr uint32_t kOffers = 4000;
  constexpr size_t kMostKib = 48 << 10;
  const TempFolder folder;
  const TempFolder link;
  CountingPlugin plugin(link.path(), SomeGpu());
  BrokerSettings settings = TwoContainers();
  settings.arguments.insert(settings.arguments.end(), {"--link", link.path()});
  const BrokerProcess broker(folder.path(), settings);
  ASSERT_TRUE(broker.ready()) << broker.log();
  // Pages of 8 MiB, offers, and as many leases as are possible.
  RawClient client(broker.Socket("app"));
  const auto hello = client.Hello();
  ASSERT_TRUE(hello);
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(client.Call<protocol::MakeReply>(
        protocol::Kind::kMakePage,
        protocol::MakePageRequest{.name = protocol::ToNameField(Concat("page-", i)),
                                  .size_bytes = limits::kPageBytes,
                                  .flags = 0,
                                  .reserved = 0,
                                  .after_generation = 0}));
  }
  protocol::OfferRequest offer{};
  offer.size_bytes = offer.mapped_bytes = 1;
  offer.transport = static_cast<uint32_t>(protocol::Transport::kCuIpc);
  offer.pid = 1;
  offer.gpu_uuid = hello->gpu_uuid;
  for (uint32_t i = 0; i < kOffers; ++i) {
    offer.name = protocol::ToNameField(Concat("a-name-that-is-longer-than-most-of-them-are-", i));
    const auto offered = client.Call<protocol::OfferReply>(protocol::Kind::kOffer, offer);
    ASSERT_TRUE(offered) << i << ": " << offered.error().ToString();
  }
  RawClient other(broker.Socket("other"));
  ASSERT_TRUE(other.Hello());
  for (RawClient* const one : {&client, &other}) {
    while (one->Attach(Concat("a-name-that-is-longer-than-most-of-them-are-", 1))) {
    }
  }
  const size_t leases = client.Info()->leases;
  ASSERT_EQ(leases, limits::kLeases);
  ASSERT_TRUE(Eventually([&] { return plugin.is_told(); }, 30'000)) << broker.log();
  const size_t before_kib = MemoryKib(broker.pid(), "VmRSS");
  std::ofstream(Concat("/proc/", broker.pid(), "/clear_refs")) << "5";  // VmHWM = VmRSS.
  ASSERT_TRUE(plugin.Restart(60'000)) << broker.log();
  EXPECT_EQ(plugin.leases(), leases);
  const size_t peak_kib = MemoryKib(broker.pid(), "VmHWM");
  std::printf("%zu leases: %zu KiB resident, %zu KiB at most while they were stated again\n",
              leases, before_kib, peak_kib);
  if (kSanitized) return;
  EXPECT_LE(peak_kib, before_kib + 2048);
  EXPECT_LE(peak_kib + (limits::kAllPagesBytes >> 10), kMostKib) << "with the pages";
}

// Goal: replies that clients do not read take little of the broker's memory. Method: a client that
// reads nothing makes requests until it is disconnected, and then reads what it was sent.
TEST(Limits, AClientThatDoesNotReadHasFewReplies) {
  const TempFolder folder;
  const BrokerProcess broker(folder.path(), TwoContainers());
  RawClient client(broker.Socket("app"));
  ASSERT_TRUE(client.Hello());
  protocol::HoldersRequest holders{};
  int asked = 0;
  while (asked < 1000 && client.Post(protocol::Kind::kHolders, holders)) ++asked;
  size_t replies = 0;
  protocol::Message message;
  while (protocol::Receive(client.socket(), &message, Deadline::AfterMs(kSoonMs))) ++replies;
  EXPECT_TRUE(broker.WaitForLog("the client does not read its replies"));
  std::printf("%zu unread replies of %zu bytes\n", replies,
              sizeof(protocol::Header) + sizeof(protocol::HoldersReply));
  EXPECT_GE(replies, 1u);
  EXPECT_LE(replies, 5u) << "256 such clients would fill the sidecar's memory";
}

// Goal: a client that connects when no descriptor is free for its pidfd is told so. Method: the
// broker may have one more descriptor, which the connection itself takes.
TEST(Limits, AConnectionWithoutADescriptorForItsProcessIsTold) {
  const TempFolder folder;
  const BrokerProcess broker(folder.path(), TwoContainers());
  ASSERT_TRUE(broker.ready()) << broker.log();
  RawClient served(broker.Socket("app"));
  ASSERT_TRUE(served.Hello()) << "what the start alone needed is closed";
  rlim_t lowest_free = 0;
  while (std::filesystem::exists(
      std::filesystem::symlink_status(Concat("/proc/", broker.pid(), "/fd/", lowest_free)))) {
    ++lowest_free;
  }
  rlimit before{};
  ASSERT_EQ(prlimit(broker.pid(), RLIMIT_NOFILE, nullptr, &before), 0);
  const rlimit one_more{lowest_free + 1, before.rlim_max};
  ASSERT_EQ(prlimit(broker.pid(), RLIMIT_NOFILE, &one_more, nullptr), 0);
  RawClient refused(broker.Socket("app"));
  const auto hello = refused.Hello();
  EXPECT_EQ(CodeOf(hello), As(Code::kExhausted)) << (hello ? "" : hello.error().ToString());
  EXPECT_TRUE(broker.WaitForLog("descriptors-exhausted container=app"));
  ASSERT_EQ(prlimit(broker.pid(), RLIMIT_NOFILE, &before, nullptr), 0);
  EXPECT_TRUE(RawClient(broker.Socket("app")).Hello());
}

}  // namespace
}  // namespace gpushm::broker::testing
