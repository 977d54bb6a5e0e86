// Goal: whatever bytes clients send, the broker survives, answers or disconnects, loses nothing of
// a bystander's, and leaks no descriptor. Every kind of message and every possible error is
// reached. Method: sessions of valid requests are recorded (every kind, also those that end in an
// error). Then their requests are sent again to the real process with bytes changed, some with
// descriptors. A bystander with a lease and its own buffer checks them after each thousand.
//
// Sends 100,000 mutated messages with a fixed seed. GPUSHM_MUTATIONS=1000000 is for the long run,
// GPUSHM_TEST_SEED for another seed. Prints what was reached.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "contract/limits.h"
#include "platform/base/clock.h"
#include "platform/base/sealed_memory.h"
#include "platform/base/testing.h"
#include "sidecar/broker/testing/broker_process.h"
#include "sidecar/broker/testing/raw_client.h"

namespace gpushm::broker::testing {
namespace {

using protocol::Kind;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

struct Recorded {
  std::vector<std::byte> bytes;
  bool with_descriptor = false;
};

constexpr std::string_view kDescriptionText = "what the bytes are";

// One request of each kind as a correct client would send it, and requests that must fail.
class Recorder {
 public:
  explicit Recorder(const std::array<uint8_t, 16>& gpu_uuid) : gpu_uuid_(gpu_uuid) {
    using namespace protocol;
    Add(Kind::kHello, HelloRequest{kMinVersion, kMaxVersion, 0, ToNameField("recorded"), 0, {}});
    Add(Kind::kHello, HelloRequest{kMinVersion, kMaxVersion + 1, 0, ToNameField("newer"), 0, {}});
    Add(Kind::kHello,
        HelloRequest{kMaxVersion + 1, kMaxVersion + 1, 0, ToNameField("too-new"), 0, {}});
    Add(Kind::kHello, HelloRequest{kMinVersion, kMaxVersion, 0, ToNameField("resuming"), 2, {7}});
    for (const char* name : {"weights", "listed", "ring", "file", "none", "made", "offered"}) {
      for (const uint32_t access : {1u, 2u}) {
        Add(Kind::kAttach, AttachRequest{ToNameField(name), access, 0, 0, gpu_uuid_});
      }
    }
    Add(Kind::kAttach, AttachRequest{ToNameField("weights"), 1, 0, 5, gpu_uuid_});  // Stale.
    Add(Kind::kAttach, AttachRequest{ToNameField("weights"), 1, 0, 0, {}});         // Sees no GPU.
    for (uint64_t lease = 1; lease < 12; ++lease) {
      Add(Kind::kDetach, DetachRequest{lease});
      Add(Kind::kPublish, PublishRequest{lease});
      Add(Kind::kContent, ContentRequest{lease, lease, lease % 2 == 0 ? 1u : 0u, 0});
    }
    for (const char* name : {"made", "more", "weights"}) {
      for (const uint32_t flags : {0u, 1u, 3u, 5u, 9u, 17u}) {
        Add(Kind::kCreate, CreateRequest{ToNameField(name), 1 << 20, flags, flags % 3});
        Add(Kind::kReplace, ReplaceRequest{ToNameField(name), 0, flags & 3, 0});
      }
      Add(Kind::kDelete, DeleteRequest{ToNameField(name)});
      Add(Kind::kHolders, HoldersRequest{ToNameField(name), 0});
    }
    for (const char* name : {"weights", "made"}) {
      Add(Kind::kReason, ReasonRequest{ToNameField(name), 2, 1, ToLineField("no file d.bin")});
    }
    Add(Kind::kCreate, CreateRequest{ToNameField("giant"), uint64_t{1} << 45, 0, 0});
    Add(Kind::kHolders, HoldersRequest{});
    Add(Kind::kDelete, DeleteRequest{ToNameField("offered")});
    Add(Kind::kBrokerInfo, BrokerInfoRequest{0});
    Add(Kind::kGpus, GpusRequest{0});
    OfferRequest offer{};
    offer.name = ToNameField("offered");
    offer.size_bytes = offer.mapped_bytes = 2 << 20;
    offer.gpu_uuid = gpu_uuid_;
    offer.transport = 1;
    Add(Kind::kOffer, offer, true);
    offer.transport = 4;
    offer.name = ToNameField("blocks");
    for (uint32_t i = 0; i < 4; ++i) {
      Add(Kind::kStageBlock, StageBlockRequest{2 << 20, i == 3 ? 1u : 0u, 0}, true);
      Add(Kind::kOffer, offer);
      Add(Kind::kAttach, AttachRequest{offer.name, 1, 0, 0, gpu_uuid_});
      Add(Kind::kBlock, BlockRequest{i + 1, i == 3 ? 1u : 0u, 0});
    }
    offer.name = ToNameField("offered");
    offer.transport = 2;
    offer.pid = 1;
    Add(Kind::kOffer, offer);
    offer.name = ToNameField("made");
    Add(Kind::kOffer, offer);
    Add(Kind::kAnnounceDescriptor, AnnounceDescriptorRequest{0});
    Add(Kind::kCounters, CountersRequest{0});
    Add(Kind::kPod, protocol::PodRequest{.pod = protocol::ToNameField("servers-1"),
                                         .container = protocol::ToNameField("server")});
    for (uint64_t lease = 1; lease < 4; ++lease) {
      Add(Kind::kDescribe, DescribeRequest{lease, kDescriptionText.size()}, true);
    }
    for (const char* name : {"weights", "made", "ready", "none"}) {
      Add(Kind::kDescription, DescriptionRequest{ToNameField(name), 0});
    }
    Add(Kind::kDescription, DescriptionRequest{ToNameField("weights"), 5});
    for (uint64_t lease = 0; lease < 4; ++lease) Add(Kind::kAlarm, AlarmRequest{lease});
    for (const char* name : {"made", "ready", "weights"}) {
      Add(Kind::kMakePage, MakePageRequest{ToNameField(name), 4096, 8, 0, 0});
      Add(Kind::kDelete, DeleteRequest{ToNameField(name)});
    }
  }
  const std::vector<Recorded>& requests() const { return requests_; }

 private:
  template <typename Body>
  void Add(Kind kind, const Body& body, bool with_descriptor = false) {
    protocol::Buffer buffer;
    const size_t size = protocol::EncodeRequest(kind, 1, body, &buffer);
    requests_.push_back(
        {{buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(size)}, with_descriptor});
  }

  std::array<uint8_t, 16> gpu_uuid_;
  std::vector<Recorded> requests_;
};

// Plain numbers, so that they come out of a client's process in shared memory.
struct Coverage {
  using Counts = std::array<uint64_t, 64>;
  Counts requests{};  // By kind: sent with a valid header.
  Counts answered{};  // By kind: replies without an error.
  Counts errors{};    // By code: replies.
  uint64_t disconnected = 0;

  static auto Seen(const Counts& counts) {
    return std::ranges::count_if(counts, [](uint64_t count) { return count > 0; });
  }
  void Add(const Coverage& part) {
    for (const auto counts : {&Coverage::requests, &Coverage::answered, &Coverage::errors}) {
      for (size_t i = 0; i < requests.size(); ++i) (this->*counts)[i] += (part.*counts)[i];
    }
    disconnected += part.disconnected;
  }
  void Print() const {
    for (size_t i = 0; i < requests.size(); ++i) {
      if (requests[i] == 0) continue;
      std::printf("kind %2zu: %8lu sent, %8lu answered\n", i, requests[i], answered[i]);
    }
    for (size_t i = 0; i < errors.size(); ++i) {
      if (errors[i] == 0) continue;
      std::printf("%-18s %8lu replies\n", std::string(CodeName(static_cast<Code>(i))).c_str(),
                  errors[i]);
    }
    std::printf("disconnected       %8lu times\n", disconnected);
  }
};

class Mutator {
 public:
  Mutator(const BrokerProcess& broker, const Recorder& recorder, uint64_t seed)
      : broker_(broker),
        recorder_(recorder),
        random_(seed),
        file_(open("/dev/zero", O_RDWR)),
        regular_(memfd_create("file", MFD_CLOEXEC)),
        memory_(SimulatedMemory()) {
    if (ftruncate(regular_.get(), 1 << 16) != 0) std::abort();
    auto sealed = SealBytes("test", std::as_bytes(std::span(kDescriptionText)));
    if (!sealed) std::abort();
    sealed_ = std::move(*sealed);
  }

  // Sends valid requests, which keep the session going, until a mutated one was sent.
  void SendMutated() {
    while (!SendOne()) {
    }
  }

  void Reconnect() {
    leases_.clear();
    blocks_lease_ = 0;
    client_.emplace(broker_.Socket("app"));
    if (Pick(16) != 0 && !client_->Hello()) ++coverage_.disconnected;
  }

  const Coverage& coverage() const { return coverage_; }

 private:
  // Returns true for a mutated request.
  bool SendOne() {
    if (!client_ || Pick(200) == 0) Reconnect();
    const Recorded& recorded = PickRecorded();
    std::vector<std::byte> bytes = recorded.bytes;
    // Few different lease numbers, so that some are the client's own.
    if (!leases_.empty() && Pick(4) != 0 && bytes.size() >= 32 && IsOfLease(bytes)) {
      const uint64_t lease = leases_[Pick(leases_.size())];
      std::memcpy(bytes.data() + sizeof(protocol::Header), &lease, sizeof lease);
    }
    if (blocks_lease_ != 0 && KindOf(bytes) == Kind::kBlock) {
      std::memcpy(bytes.data() + sizeof(protocol::Header), &blocks_lease_, sizeof blocks_lease_);
    }
    const bool mutated = Pick(2) == 0;
    if (mutated) Mutate(&bytes);
    const bool descriptor = recorded.with_descriptor ? Pick(8) != 0 : mutated && Pick(32) == 0;
    if (descriptor && Pick(16) != 0 && !client_->Announce()) {
      Lost();
      return mutated;
    }
    const bool describes = KindOf(recorded.bytes) == Kind::kDescribe;
    const bool stages = KindOf(recorded.bytes) == Kind::kStageBlock;
    const int fd = Pick(4) == 0 ? file_.get()
                   : describes  ? sealed_.get()
                   : stages     ? memory_.get()
                                : regular_.get();
    const int error =
        SendRaw(client_->socket(), bytes, descriptor ? std::span(&fd, 1) : std::span<const int>());
    if (error != 0) {
      if (error != EPERM) Lost();
      return mutated;
    }
    const auto header = protocol::ParseHeader(bytes);
    if (header) ++coverage_.requests.at(header->kind & 0x7fff);
    Read();
    return mutated;
  }

  uint64_t Pick(uint64_t below) { return random_() % below; }

  static UniqueFd SimulatedMemory() {
    const char* const folder = std::getenv("GPUSHM_SIM_DIR");
    return UniqueFd(open(folder != nullptr ? folder : "/var/tmp/gpushm-sim",
                         O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  }

  // A descriptor takes two requests, so few of them are sent.
  // Often the one after the last, because some need what the former did: an offer its blocks.
  const Recorded& PickRecorded() {
    const size_t count = recorder_.requests().size();
    for (;;) {
      last_ = Pick(4) == 0 ? (last_ + 1) % count : Pick(count);
      const Recorded& recorded = recorder_.requests()[last_];
      if (!recorded.with_descriptor || Pick(5) == 0) return recorded;
    }
  }

  static Kind KindOf(const std::vector<std::byte>& bytes) {
    protocol::Header header{};
    std::memcpy(&header, bytes.data(), sizeof header);
    return static_cast<Kind>(header.kind);
  }
  static bool IsOfLease(const std::vector<std::byte>& bytes) {
    const Kind kind = KindOf(bytes);
    return kind == Kind::kDetach || kind == Kind::kPublish || kind == Kind::kContent ||
           kind == Kind::kDescribe;
  }

  void Mutate(std::vector<std::byte>* bytes) {
    const uint64_t way = 4 + Pick(6);
    if (way == 4) {
      bytes->resize(Pick(limits::kMessageBytes + 64));
    } else if (way == 5) {
      (*bytes)[Pick(std::min<size_t>(bytes->size(), sizeof(protocol::Header)))] =
          static_cast<std::byte>(Pick(256));
    } else {
      const uint64_t changes = 1 + Pick(way == 9 ? 16 : 2);
      for (uint64_t i = 0; i < changes; ++i) {
        std::byte& byte =
            (*bytes)[sizeof(protocol::Header) + Pick(bytes->size() - sizeof(protocol::Header))];
        byte = Pick(2) == 0 ? byte ^ static_cast<std::byte>(1u << Pick(8))
                            : static_cast<std::byte>(Pick(256));
      }
    }
  }

  void Read() {
    protocol::Message message;
    const auto received =
        protocol::Receive(client_->socket(), &message, Deadline::AfterMs(kSoonMs));
    if (!received) {
      EXPECT_NE(received.error().code(), Code::kTimeout) << "neither answered nor disconnected";
      return Lost();
    }
    const auto header = protocol::ParseHeader(message.span());
    ASSERT_TRUE(header) << "the broker speaks badly";
    if (header->status != 0) {
      ++coverage_.errors.at(header->status);
      return;
    }
    const uint16_t kind = header->kind & 0x7fff;
    ++coverage_.answered.at(kind);
    if (kind == static_cast<uint16_t>(Kind::kAttach)) {
      const auto reply = protocol::Parse<protocol::AttachReply>(message.span());
      ASSERT_TRUE(reply) << reply.error().ToString();
      leases_.push_back(reply->lease_id);
      if (reply->blocks != 0) blocks_lease_ = reply->lease_id;
    } else if (kind == static_cast<uint16_t>(Kind::kCreate) ||
               kind == static_cast<uint16_t>(Kind::kReplace) ||
               kind == static_cast<uint16_t>(Kind::kMakePage)) {
      const auto reply = protocol::Parse<protocol::MakeReply>(message.span());
      ASSERT_TRUE(reply) << reply.error().ToString();
      if (reply->lease_id != 0) leases_.push_back(reply->lease_id);
    }
    if (leases_.size() > 8) leases_.erase(leases_.begin());
  }

  void Lost() {
    ++coverage_.disconnected;
    client_.reset();
  }

  const BrokerProcess& broker_;
  const Recorder& recorder_;
  std::mt19937_64 random_;
  UniqueFd file_;
  UniqueFd regular_;
  UniqueFd memory_;
  UniqueFd sealed_;
  std::optional<RawClient> client_;
  std::vector<uint64_t> leases_;  // The client's own, some of which have ended.
  size_t last_ = 0;               // Number of the recorded request that was sent last.
  uint64_t blocks_lease_ = 0;     // The last one on an offer of blocks.
  Coverage coverage_;
};

// One process that sends `messages` mutated messages. What it holds is freed with it, so the pool
// is free again for the next process.
Result<Coverage> SendFromOneProcess(const BrokerProcess& broker, const Recorder& recorder,
                                    uint64_t seed, uint64_t messages) {
  const UniqueFd shared(memfd_create("coverage", MFD_CLOEXEC));
  ClientProcess turn([&] {
    Mutator mutator(broker, recorder, seed);
    for (uint64_t i = 0; i < messages; ++i) {
      mutator.SendMutated();
      if (::testing::Test::HasFailure()) return 1;
    }
    const Coverage& all = mutator.coverage();
    return pwrite(shared.get(), &all, sizeof all, 0) == static_cast<ssize_t>(sizeof all) ? 0 : 2;
  });
  if (turn.result() != 0) {
    return Fail(Code::kInternal, Concat("the client ended with ", turn.result()));
  }
  turn.Kill();
  Coverage coverage;
  if (pread(shared.get(), &coverage, sizeof coverage, 0) != static_cast<ssize_t>(sizeof coverage)) {
    return Fail(Code::kInternal, "the client counted nothing");
  }
  return coverage;
}

// Buffers made for all to keep would fill the pool permanently.
void CleanUp(const BrokerProcess& broker) {
  RawClient cleaner(broker.Socket("app"));
  ASSERT_TRUE(cleaner.Hello());
  for (const char* name : {"made", "more", "offered", "blocks"}) {
    Eventually([&] {
      const auto deleted = cleaner.Delete(name);
      return deleted || deleted.error().code() != Code::kBusy;
    });
  }
}

// What a single client that reads its replies can receive.
void ExpectCovered(const Coverage& all) {
  EXPECT_EQ(Coverage::Seen(all.requests), protocol::kMaxKind) << "a kind was never sent";
  EXPECT_EQ(Coverage::Seen(all.answered), protocol::kMaxKind) << "a kind never succeeded";
  for (const Code code : {Code::kInvalidArgument, Code::kNotFound, Code::kAlreadyExists,
                          Code::kDenied, Code::kExhausted, Code::kIncompatible, Code::kStale,
                          Code::kBusy, Code::kSystem, Code::kLoading}) {
    EXPECT_GT(all.errors.at(static_cast<uint32_t>(code)), 0u) << CodeName(code);
  }
}

BrokerSettings Pod() {
  BrokerSettings settings = TwoContainers();
  settings.buffers =
      "buffers.gpushm.io/weights: {size: 4Mi, writers: [other]}\n"
      "buffers.gpushm.io/listed: {size: 2Mi, containers: [other]}\n"
      "buffers.gpushm.io/ring: {size: 2Mi, access: one-writer}\n"
      "buffers.gpushm.io/file: {size: 2Mi, loads: true}\n";
  settings.arguments = {"--container", "app", "--container", "other", "--pool", "64Mi"};
  return settings;
}

TEST(BrokerMutation, NoBytesHurtAnybodyElse) {
  const uint64_t messages = FromEnvironment("GPUSHM_MUTATIONS", 100'000);
  const uint64_t seed = gpushm::testing::TestSeed(1);
  const TempFolder folder;
  BrokerProcess broker(folder.path(), Pod());
  ASSERT_TRUE(broker.ready()) << broker.log();
  RawClient bystander(broker.Socket("other"));
  const auto hello = bystander.Hello();
  ASSERT_TRUE(hello);
  const auto lease = bystander.Attach("listed", 2);
  ASSERT_TRUE(lease);
  const auto own = bystander.Create("bystander", 1, protocol::kFlagAttach);
  ASSERT_TRUE(own);
  ASSERT_TRUE(Eventually([&] { return bystander.Info()->clients == 1; }));
  const size_t descriptors = broker.Descriptors();

  const Recorder recorder(hello->gpu_uuid);
  constexpr uint64_t kTurn = 2'000;
  Coverage all;
  const int64_t begun_ns = MonotonicNs();
  for (uint64_t sent = 0; sent < messages; sent += kTurn) {
    const auto part = SendFromOneProcess(broker, recorder, seed * 1'000'003 + sent, kTurn);
    ASSERT_TRUE(part) << part.error().ToString() << ", seed " << seed << ", message " << sent;
    all.Add(*part);
    // The bystander still has what it had.
    ASSERT_TRUE(bystander.Info()) << "seed " << seed << ", message " << sent << broker.log();
    const auto again = bystander.Attach("bystander", 1, own->generation);
    ASSERT_TRUE(again) << again.error().ToString();
    ASSERT_TRUE(bystander.Detach(again->lease_id));
    CleanUp(broker);
  }
  all.Print();
  std::printf("%lu messages in %ld s\n", messages, (MonotonicNs() - begun_ns) / 1'000'000'000);
  ExpectCovered(all);
  EXPECT_TRUE(Eventually([&] { return bystander.Info()->leases == 2; }));
  EXPECT_TRUE(bystander.Detach(lease->lease_id));
  EXPECT_EQ(broker.WaitForEnd(0), -1000) << "it runs on";
  std::printf("descriptors: %zu before, %zu after; log: %zu bytes\n", descriptors,
              broker.Descriptors(), broker.log().size());
  // Buffers that mutated names made still exist, with one descriptor each; there are no other
  // descriptors.
  EXPECT_TRUE(Eventually([&] {
    const auto info = bystander.Info();
    return info && info->clients == 1 && broker.Descriptors() <= descriptors + 64;
  }));
}

}  // namespace
}  // namespace gpushm::broker::testing
