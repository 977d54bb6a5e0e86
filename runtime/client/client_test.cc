// Attachments, with the simulated driver and the fake broker of this folder.
#include <gmock/gmock-matchers.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "runtime/client/ipc_mapping.h"
#include "runtime/client/testing/client_fixture.h"
#include "runtime/include/gpushm/sync.h"

namespace gpushm::client {
namespace {

using protocol::Kind;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST_F(ClientTest, AttachesOncePerNameAndAccess) {
  broker_->Add("weights", 5, 3 * kMiB, api_);
  Open();
  gpushm_attachment* const first = Attach("weights");
  ASSERT_NE(first, nullptr) << gpushm_last_error()->text;
  EXPECT_NE(gpushm_attachment_address(first), 0u);
  EXPECT_EQ(gpushm_attachment_size(first), 3 * kMiB);
  EXPECT_EQ(gpushm_attachment_check(first), GPUSHM_OK);
  EXPECT_EQ(Attach("weights"), first);
  gpushm_attachment* const writer = Attach("weights", GPUSHM_ACCESS_READ_WRITE);
  ASSERT_NE(writer, nullptr);
  EXPECT_NE(writer, first);
  EXPECT_NE(gpushm_attachment_address(writer), gpushm_attachment_address(first));
  EXPECT_EQ(broker_->leases().size(), 2u);

  auto info = Sized<gpushm_attachment_info>();
  ASSERT_EQ(gpushm_attachment_get_info(first, &info), GPUSHM_OK);
  EXPECT_STREQ(info.name, "weights");
  EXPECT_EQ(info.count, 2u);
  EXPECT_EQ(info.generation, 5u);
  EXPECT_EQ(info.mapped_bytes, 4 * kMiB);
  EXPECT_EQ(info.state, GPUSHM_BUFFER_READY);
  EXPECT_EQ(info.status, GPUSHM_OK);

  CUcontext current = nullptr;
  api_->cuCtxGetCurrent(&current);
  EXPECT_EQ(current, nullptr) << "attaching makes no context";
  EXPECT_EQ(gpushm_attachment_detach(first, nullptr), GPUSHM_OK);
  EXPECT_EQ(broker_->leases().size(), 2u);
  EXPECT_EQ(gpushm_attachment_detach(first, nullptr), GPUSHM_OK);
  EXPECT_EQ(broker_->leases().size(), 1u);
  client_.reset();
  EXPECT_EQ(broker_->leases().size(), 0u) << "closing ends leases: the process lives on";
}

TEST_F(ClientTest, LeavesNoDescriptorsBehind) {
  broker_->Add("weights", 5, kMiB, api_);
  Open();
  ASSERT_EQ(gpushm_attachment_detach(Attach("weights"), nullptr), GPUSHM_OK);
  const size_t before = CountDescriptors();
  for (int i = 0; i < 20; ++i)
    ASSERT_EQ(gpushm_attachment_detach(Attach("weights"), nullptr), GPUSHM_OK);
  EXPECT_EQ(CountDescriptors(), before);
}

TEST_F(ClientTest, WaitsUntilThereIsContent) {
  Open();
  EXPECT_EQ(Attach("weights", GPUSHM_ACCESS_READ, GPUSHM_DONT_WAIT), nullptr);
  EXPECT_EQ(status_, GPUSHM_NOT_FOUND);
  broker_->Add("weights", 5, kMiB, api_, BufferState::kLoading);
  EXPECT_EQ(Attach("weights", GPUSHM_ACCESS_READ, GPUSHM_DONT_WAIT), nullptr);
  EXPECT_EQ(status_, GPUSHM_LOADING);
  EXPECT_EQ(Attach("weights", GPUSHM_ACCESS_READ, 20), nullptr);
  EXPECT_EQ(status_, GPUSHM_TIMEOUT);
  std::thread loader([&] { broker_->SetState("weights", BufferState::kReady); });
  EXPECT_NE(Attach("weights"), nullptr) << gpushm_last_error()->text;
  loader.join();
}

// Goal: whoever wants the content learns what its load waits for, or why it failed.
TEST_F(ClientTest, ErrorsSayWhyThereIsNoContent) {
  broker_->Add("weights", 5, kMiB, api_, BufferState::kLoading);
  Open();
  auto reason = Sized<gpushm_reason>();
  EXPECT_EQ(gpushm_lookup_reason(client_.get(), "none", &reason), GPUSHM_NOT_FOUND);
  ASSERT_EQ(gpushm_lookup_reason(client_.get(), "weights", &reason), GPUSHM_OK);
  EXPECT_EQ(reason.status, GPUSHM_OK);
  EXPECT_STREQ(reason.text, "");

  broker_->SetState("weights", BufferState::kLoading, "no file a.bin");
  ASSERT_EQ(gpushm_lookup_reason(client_.get(), "weights", &reason), GPUSHM_OK);
  EXPECT_EQ(reason.status, GPUSHM_NOT_FOUND);
  EXPECT_EQ(reason.state, GPUSHM_BUFFER_LOADING);
  EXPECT_EQ(reason.generation, 5u);
  EXPECT_STREQ(reason.text, "no file a.bin");
  EXPECT_EQ(Attach("weights", GPUSHM_ACCESS_READ, GPUSHM_DONT_WAIT), nullptr);
  EXPECT_EQ(status_, GPUSHM_LOADING);
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("no file a.bin"));
  EXPECT_EQ(Attach("weights", GPUSHM_ACCESS_READ, 20), nullptr);
  EXPECT_EQ(status_, GPUSHM_TIMEOUT);
  EXPECT_THAT(gpushm_last_error()->text,
              AllOf(HasSubstr("timed out waiting for buffer \"weights\": no file a.bin"),
                    Not(HasSubstr("longer timeout"))));
  auto options = Sized<gpushm_wait_options>();
  options.timeout_ms = 20;
  EXPECT_EQ(gpushm_wait(client_.get(), "weights", 0, &options, nullptr), GPUSHM_TIMEOUT);
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("no file a.bin"));

  broker_->SetState("weights", BufferState::kFailed, "a.bin is no safetensors file");
  EXPECT_EQ(gpushm_wait(client_.get(), "weights", 0, &options, nullptr), GPUSHM_SYSTEM);
  EXPECT_THAT(gpushm_last_error()->text,
              HasSubstr("loading \"weights\" failed: a.bin is no safetensors file"));
  broker_->SetState("weights", BufferState::kReady);
  EXPECT_EQ(gpushm_wait(client_.get(), "weights", 0, &options, nullptr), GPUSHM_OK);
}

TEST_F(ClientTest, NewGenerationMakesOldAttachmentsStale) {
  broker_->Add("weights", 5, kMiB, api_);
  Open();
  gpushm_attachment* const old = Attach("weights");
  ASSERT_NE(old, nullptr);
  broker_->SetState("weights", BufferState::kWriterDied);
  EXPECT_EQ(gpushm_attachment_check(old), GPUSHM_OK) << "another state is no other generation";
  EXPECT_EQ(Attach("weights"), old);
  broker_->Add("weights", 6, kMiB, api_);
  EXPECT_EQ(gpushm_attachment_check(old), GPUSHM_STALE);
  gpushm_attachment* const now = Attach("weights");
  ASSERT_NE(now, nullptr);
  EXPECT_NE(now, old);
  EXPECT_EQ(gpushm_attachment_check(now), GPUSHM_OK);
  auto options = Sized<gpushm_attach_options>();
  options.generation = 5;
  gpushm_attachment* exact = nullptr;
  EXPECT_EQ(gpushm_attach(client_.get(), "weights", &options, &exact), GPUSHM_STALE);
  broker_->Remove("weights");
  EXPECT_EQ(gpushm_attachment_check(now), GPUSHM_STALE);
}

// A name that moves between the look-up and the request is looked up again.
TEST_F(ClientTest, FollowsANameThatMoves) {
  broker_->Add("weights", 5, kMiB, api_);
  Open();
  uint64_t generation = 5;
  broker_->SetTwist([&](const FakeRequest& request, FakeReply* reply) {
    if (request.kind != Kind::kAttach || generation == 8) return;
    reply->Set(Status(Code::kStale, "moved"));
    broker_->SetGeneration("weights", ++generation);
  });
  gpushm_attachment* const attachment = Attach("weights");
  ASSERT_NE(attachment, nullptr) << gpushm_last_error()->text;
  auto info = Sized<gpushm_attachment_info>();
  ASSERT_EQ(gpushm_attachment_get_info(attachment, &info), GPUSHM_OK);
  EXPECT_EQ(info.generation, 8u);
}

TEST_F(ClientTest, ReleasesWhatItCannotMap) {
  broker_->Add("weights", 5, kMiB, nullptr);  // Its descriptor is not GPU memory.
  Open();
  EXPECT_EQ(Attach("weights"), nullptr);
  EXPECT_EQ(broker_->leases().size(), 0u);
  EXPECT_EQ(broker_->connections(), 1u);
}

TEST_F(ClientTest, BelievesNoGrantThatDoesNotFitTheRegistry) {
  broker_->Add("weights", 5, kMiB, api_);
  Open();
  using Grant = protocol::AttachReply;
  struct Lie {
    std::function<void(FakeReply*)> tell;
    const char* shown;  // By the error's text.
  };
  const std::vector<Lie> lies = {
      {[](FakeReply* r) { r->body<Grant>()->lease_id = 0; }, "lease_id is 0"},
      {[](FakeReply* r) { r->body<Grant>()->offset = 1; }, "1048576 bytes at offset 1 of 2097152"},
      {[](FakeReply* r) { r->body<Grant>()->blocks = 2; }, "block: mapped_bytes is 0"},
      {[](FakeReply* r) { r->descriptors.clear(); }, "0 descriptors instead of 1"},
      {[](FakeReply* r) { r->descriptors.push_back(r->descriptors.front()); }, ""},
  };
  for (const auto& [lie, shown] : lies) {
    broker_->SetTwist([&](const FakeRequest& request, FakeReply* reply) {
      if (request.kind == Kind::kAttach) lie(reply);
    });
    EXPECT_EQ(Attach("weights"), nullptr);
    EXPECT_EQ(status_, GPUSHM_CORRUPT) << gpushm_last_error()->text;
    EXPECT_THAT(gpushm_last_error()->text, HasSubstr(shown));
  }
  broker_->SetTwist(nullptr);
  EXPECT_NE(Attach("weights"), nullptr) << gpushm_last_error()->text;
}

TEST_F(ClientTest, NamesTheGpuThatItDoesNotSee) {
  broker_.reset();
  broker_ = std::make_unique<FakeBroker>(folder_.path(), 1, SomeGpu());
  broker_->Add("weights", 5, kMiB, nullptr);
  Open();
  EXPECT_EQ(Attach("weights"), nullptr);
  EXPECT_EQ(status_, GPUSHM_NOT_FOUND);
  EXPECT_THAT(gpushm_last_error()->what, HasSubstr(SomeGpu().ToString()));
  EXPECT_THAT(gpushm_last_error()->what, HasSubstr(gpu_.ToString()));
  EXPECT_EQ(broker_->requests(Kind::kAttach), 0u);
}

TEST_F(ClientTest, RefusesEqualPidsWithoutTrying) {
  // What the driver takes for the PID counts: see offer_test.cc.
  broker_->AddCuIpc("tensor", 5, CudaPid());
  broker_->AddCuIpc("other", 6, getpid());
  Open();
  EXPECT_EQ(Attach("tensor"), nullptr);
  EXPECT_EQ(status_, GPUSHM_UNSUPPORTED);
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("PID"));
  EXPECT_EQ(broker_->leases().size(), 0u);
  EXPECT_EQ(Attach("other"), nullptr);
  EXPECT_EQ(status_, GPUSHM_UNSUPPORTED) << "no context is current";
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("context"));
}

TEST_F(ClientTest, OrphansWhatASuccessorDoesNotHave) {
  broker_->Add("weights", 5, kMiB, api_);
  broker_->Add("kept", 6, kMiB, api_);
  Open();
  gpushm_attachment* const weights = Attach("weights");
  gpushm_attachment* const kept = Attach("kept");
  ASSERT_TRUE(weights != nullptr && kept != nullptr);
  broker_.reset();
  EXPECT_EQ(gpushm_attachment_check(weights), GPUSHM_OK) << "nobody has noticed yet";
  EXPECT_EQ(Attach("weights"), weights) << "a mapping needs no broker";
  EXPECT_EQ(gpushm_attachment_detach(weights, nullptr), GPUSHM_OK);
  Start(2);
  broker_->Add("weights", 50, kMiB, api_);
  broker_->Add("kept", 6, kMiB, api_);
  gpushm_attachment* const now = Attach("weights");
  ASSERT_NE(now, nullptr) << gpushm_last_error()->text;
  EXPECT_NE(now, weights);
  EXPECT_EQ(gpushm_attachment_check(weights), GPUSHM_ORPHANED);
  EXPECT_EQ(gpushm_attachment_check(kept), GPUSHM_OK);
  EXPECT_EQ(broker_->leases().size(), 2u) << "of `kept`, taken again silently, and of the new one";
  EXPECT_EQ(Attach("kept"), kept);
  EXPECT_EQ(gpushm_attachment_detach(weights, nullptr), GPUSHM_OK);
  EXPECT_EQ(gpushm_attachment_check(now), GPUSHM_OK);
}

// ---- resumed connections

// Goal: with a broker that inherited the last one's state, no lease is requested again: the leases
// and the generation stay the same, also the unpublished one, and a detach that was meant for the
// dead broker still arrives.
TEST_F(ClientTest, ResumesWithTheLeasesItHad) {
  broker_->Add("weights", 5, kMiB, api_);
  broker_->Add("given-up", 6, kMiB, api_);
  Open();
  gpushm_attachment* const weights = Attach("weights");
  gpushm_attachment* const given_up = Attach("given-up");
  ASSERT_TRUE(weights != nullptr && given_up != nullptr);
  const auto leases = broker_->leases();
  ASSERT_EQ(leases.size(), 2u);
  broker_.reset();
  EXPECT_EQ(gpushm_attachment_detach(given_up, nullptr), GPUSHM_OK);
  Start(2, leases);
  broker_->Add("weights", 5, kMiB, api_);
  broker_->Add("given-up", 6, kMiB, api_);
  EXPECT_EQ(Attach("weights"), weights);
  EXPECT_EQ(gpushm_attachment_check(weights), GPUSHM_OK);
  EXPECT_EQ(broker_->requests(Kind::kAttach), 0u);
  EXPECT_EQ(broker_->requests(Kind::kHolders), 0u);
  auto info = Sized<gpushm_attachment_info>();
  ASSERT_EQ(gpushm_attachment_get_info(weights, &info), GPUSHM_OK);
  EXPECT_TRUE(leases.contains(info.lease_id));
  size_t count = 0;
  ASSERT_EQ(gpushm_list_holders(client_.get(), "", nullptr, 0, &count), GPUSHM_OK);
  EXPECT_EQ(broker_->leases().size(), 1u) << "the detach came through in the end";
}

// Goal: broker and process find out which leases the other side does not know. Method: one lease
// that the broker lost, and one whose grant never reached the process.
TEST_F(ClientTest, AgreesOnLeasesWithABrokerThatLostSome) {
  broker_->Add("lost", 5, kMiB, api_);
  broker_->Add("kept", 6, kMiB, api_);
  Open();
  gpushm_attachment* const lost = Attach("lost");
  gpushm_attachment* const kept = Attach("kept");
  ASSERT_TRUE(lost != nullptr && kept != nullptr);
  auto leases = broker_->leases();
  const auto [first, lease] = *leases.begin();
  leases.erase(first);
  leases[99] = {"kept", 6, lease.client_id};
  Start(2, leases);
  broker_->Add("lost", 5, kMiB, api_);
  broker_->Add("kept", 6, kMiB, api_);
  EXPECT_EQ(Attach("kept"), kept);
  EXPECT_EQ(gpushm_attachment_check(lost), GPUSHM_OK);
  EXPECT_EQ(broker_->requests(Kind::kAttach), 1u) << "only what was lost";
  EXPECT_EQ(broker_->leases().size(), 2u);
  EXPECT_FALSE(broker_->leases().contains(99)) << "nobody would ever have ended it";
  EXPECT_EQ(gpushm_attachment_detach(lost, nullptr), GPUSHM_OK);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(gpushm_attachment_detach(kept, nullptr), GPUSHM_OK);
  EXPECT_EQ(broker_->leases().size(), 0u);
}

// Goal: a publish whose answer was lost still counts. Method: a broker that closes the connection
// instead of answering, before and after it has carried out the request.
TEST_F(ClientTest, PublishesOverALostConnection) {
  for (const bool done : {false, true}) {
    Start(done ? 3 : 2);
    broker_->Add("other", 5, kMiB, api_);
    Open();
    auto options = Sized<gpushm_create_options>();
    options.unpublished = 1;
    gpushm_attachment* made = nullptr;
    ASSERT_EQ(gpushm_create(client_.get(), "made", kMiB, &options, &made), GPUSHM_OK);
    broker_->KeepClients();
    int cut = 1;
    broker_->SetTwist([&](const FakeRequest& request, FakeReply* reply) {
      if (request.kind != Kind::kPublish || cut-- <= 0) return;
      reply->hang_up = true;
      if (!done) broker_->Remove("made");  // The fake broker lists it from the start.
    });
    EXPECT_EQ(gpushm_attachment_publish(made), GPUSHM_OK) << gpushm_last_error()->text;
    EXPECT_EQ(broker_->requests(Kind::kPublish), done ? 1u : 2u);
    broker_->SetTwist(nullptr);
    EXPECT_EQ(gpushm_attachment_detach(made, nullptr), GPUSHM_OK);
    client_.reset();
  }
}

// Goal: a process that closes while no broker answers leaves no leases behind.
TEST_F(ClientTest, ClosingWaitsForABrokerThatWasKilled) {
  broker_->Add("weights", 5, kMiB, api_);
  Open();
  ASSERT_NE(Attach("weights"), nullptr);
  const auto leases = broker_->leases();
  broker_.reset();
  std::thread closer([&] { client_.reset(); });
  Start(2, leases);
  closer.join();
  EXPECT_EQ(broker_->leases().size(), 0u);
}

TEST_F(ClientTest, MakesAndPublishes) {
  broker_->Add("weights", 5, kMiB, api_);
  Open();
  gpushm_attachment* made = nullptr;
  ASSERT_EQ(gpushm_create(client_.get(), "new", 3 * kMiB, nullptr, &made), GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_EQ(gpushm_attachment_size(made), 3 * kMiB);
  EXPECT_EQ(gpushm_attachment_check(made), GPUSHM_OK);
  EXPECT_EQ(Attach("new", GPUSHM_ACCESS_READ_WRITE), made);
  ASSERT_EQ(gpushm_create(client_.get(), "other", kMiB, nullptr, nullptr), GPUSHM_OK);
  EXPECT_EQ(gpushm_create(client_.get(), "zero", 0, nullptr, nullptr), GPUSHM_INVALID_ARGUMENT);
  auto options = Sized<gpushm_create_options>();
  options.unpublished = 1;
  EXPECT_EQ(gpushm_create(client_.get(), "x", kMiB, &options, nullptr), GPUSHM_INVALID_ARGUMENT);
  ASSERT_EQ(gpushm_create(client_.get(), "x", kMiB, &options, &made), GPUSHM_OK);
  EXPECT_EQ(gpushm_attachment_publish(made), GPUSHM_OK) << gpushm_last_error()->text;
  EXPECT_EQ(gpushm_attachment_publish(made), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(Attach("x", GPUSHM_ACCESS_READ_WRITE), made);
}

TEST_F(ClientTest, CreateReplacesWhatExists) {
  broker_->Add("weights", 5, kMiB, api_);
  Open();
  auto options = Sized<gpushm_create_options>();
  options.exist = GPUSHM_EXIST_REPLACE;
  gpushm_attachment* first = nullptr;
  gpushm_attachment* second = nullptr;
  ASSERT_EQ(gpushm_create(client_.get(), "new", kMiB, &options, &first), GPUSHM_OK);
  EXPECT_EQ(broker_->requests(protocol::Kind::kReplace), 0u) << "nothing to replace yet";
  // The real broker refuses a name that exists.
  std::atomic<int> refusals = 1;
  broker_->SetTwist([&](const FakeRequest& request, FakeReply* reply) {
    if (request.kind == protocol::Kind::kCreate) {
      reply->descriptors.clear();
      reply->Set(Status(Code::kAlreadyExists, "exists"));
    } else if (request.kind == protocol::Kind::kReplace && refusals-- > 0) {
      reply->descriptors.clear();
      reply->Set(Status(Code::kNotFound, "deleted since"));
    }
  });
  ASSERT_EQ(gpushm_create(client_.get(), "new", 2 * kMiB, &options, &second), GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_EQ(gpushm_attachment_size(second), 2 * kMiB);
  EXPECT_EQ(broker_->requests(protocol::Kind::kReplace), 2u) << "it was deleted in between once";

  refusals = 1'000'000;  // Somebody always deletes it first.
  options.timeout_ms = 50;
  EXPECT_EQ(gpushm_create(client_.get(), "new", kMiB, &options, &second), GPUSHM_TIMEOUT);
  options.exist = GPUSHM_EXIST_FAIL;
  EXPECT_EQ(gpushm_create(client_.get(), "new", kMiB, &options, &second), GPUSHM_ALREADY_EXISTS);
  broker_->SetTwist(nullptr);
}

// Goal: one unhealthy GPU of two costs what is on it. A name that does not exist is on none, and is
// waited for as long as one of them is healthy.
TEST_F(ClientTest, OnlyWhatIsOnTheLostGpuIsLost) {
  broker_->Add("first", 5, kMiB, api_);
  broker_->Add("second", 6, kMiB, api_);
  broker_->SetGpuOf("second", 1);
  broker_->SetGpus(2, /*lost=*/0);
  Open();
  gpushm_attachment* const first = Attach("first");
  gpushm_attachment* const second = Attach("second");
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  const auto status_of = [](const gpushm_attachment* attachment) {
    auto info = Sized<gpushm_attachment_info>();
    EXPECT_EQ(gpushm_attachment_get_info(attachment, &info), GPUSHM_OK);
    return info.status;
  };
  broker_->SetGpus(2, /*lost=*/2);
  EXPECT_EQ(status_of(first), GPUSHM_OK);
  EXPECT_EQ(status_of(second), GPUSHM_DEVICE_LOST);
  EXPECT_NE(Attach("first"), nullptr);
  EXPECT_EQ(Attach("second"), nullptr);
  EXPECT_EQ(status_, GPUSHM_DEVICE_LOST);
  Attach("third", GPUSHM_ACCESS_READ, 20);
  EXPECT_EQ(status_, GPUSHM_TIMEOUT);
  broker_->SetGpus(2, /*lost=*/3);
  EXPECT_EQ(status_of(first), GPUSHM_DEVICE_LOST);
  Attach("third");
  EXPECT_EQ(status_, GPUSHM_DEVICE_LOST);
  broker_->SetGpus(2, /*lost=*/0);
  EXPECT_EQ(status_of(second), GPUSHM_OK);
}

TEST_F(ClientTest, TellsThePodsGpus) {
  const auto list = [this] {
    std::vector<gpushm_gpu_info> gpus(16, Sized<gpushm_gpu_info>());
    size_t count = 0;
    EXPECT_EQ(gpushm_list_gpus(client_.get(), gpus.data(), gpus.size(), &count), GPUSHM_OK);
    gpus.resize(count);
    return gpus;
  };
  broker_->SetGpus(3, /*lost=*/2);
  Open();
  ASSERT_EQ(list().size(), 3U);
  EXPECT_EQ(list()[0].lost, 0U);
  EXPECT_EQ(list()[1].lost, 1U);
  EXPECT_EQ(list()[2].gpu, 2U);
  auto options = Sized<gpushm_create_options>();
  options.gpu = 3;
  EXPECT_EQ(gpushm_create(client_.get(), "new", kMiB, &options, nullptr), GPUSHM_INVALID_ARGUMENT);
  EXPECT_THAT(gpushm_last_error()->what, HasSubstr("gpu is 3, but the pod has 3 GPUs"));
  options.gpu = 2;
  EXPECT_EQ(gpushm_create(client_.get(), "new", kMiB, &options, nullptr), GPUSHM_OK);
}

// A pod that uses another pod's claim says which one it is, because the broker cannot see it.
TEST_F(ClientTest, TellsThePodThatTheInjectorNames) {
  const auto told = [&](const char* pod, const char* container) {
    setenv("GPUSHM_POD", pod, 1);
    setenv("GPUSHM_CONTAINER", container, 1);
    const size_t before = broker_->requests(Kind::kPod);
    Open();
    unsetenv("GPUSHM_POD");
    unsetenv("GPUSHM_CONTAINER");
    size_t count = 0;
    EXPECT_EQ(gpushm_list(client_.get(), nullptr, 0, &count), GPUSHM_OK);  // It connects.
    return broker_->requests(Kind::kPod) - before;
  };
  EXPECT_EQ(told("", ""), 0U);
  EXPECT_EQ(told("servers-1.a", "server"), 1U);
  EXPECT_EQ(told((std::string(62, 'a') + "-" + std::string(100, 'b')).c_str(), "server"), 1U)
      << "cut off where the message ends";
  EXPECT_EQ(told("Not a pod", "server"), 0U) << "the broker would end the connection";
  EXPECT_EQ(told("servers-1", ""), 0U);
}

TEST_F(ClientTest, RefusesWhatALaterVersionMaySupport) {
  Open();
  using Options = gpushm_create_options;
  const auto create = [this](const std::function<void(Options*)>& set) {
    auto options = Sized<Options>();
    set(&options);
    return gpushm_create(client_.get(), "new", kMiB, &options, nullptr);
  };
  EXPECT_EQ(create([](Options* o) { o->exist = 2; }), GPUSHM_UNSUPPORTED);
  EXPECT_EQ(create([](Options* o) { o->type[GPUSHM_TYPE_BYTES - 1] = 1; }), GPUSHM_UNSUPPORTED);
  auto offer = Sized<gpushm_offer_options>();
  offer.gpu = 1;
  EXPECT_EQ(gpushm_offer(client_.get(), "own", kMiB, kMiB, &offer, nullptr), GPUSHM_UNSUPPORTED);
  auto ring = Sized<gpushm_ring_options>();
  ring.type[0] = 1;
  gpushm_ring* opened = nullptr;
  EXPECT_EQ(gpushm_ring_open(client_.get(), "video", &ring, &opened), GPUSHM_UNSUPPORTED);
}

TEST_F(ClientTest, DetachKnowsPendingWork) {
  const PrimaryContext context = MakeContext();
  broker_->Add("weights", 5, kMiB, api_);
  Open();
  gpushm_attachment* const attachment = Attach("weights");
  ASSERT_NE(attachment, nullptr);
  const auto stream = Stream::Create(*api_);
  ASSERT_TRUE(stream);
  // A wait on a word of host memory keeps the stream busy until the word is written.
  const auto word = PinnedBuffer::Allocate(*api_, 4096);
  ASSERT_TRUE(word);
  const std::atomic_ref<uint32_t> flag(*reinterpret_cast<uint32_t*>(word->data()));
  flag.store(0);
  CUdeviceptr device_word = 0;
  ASSERT_EQ(api_->cuMemHostGetDevicePointer(&device_word, word->data(), 0), CUDA_SUCCESS);
  ASSERT_EQ(api_->cuStreamWaitValue32(stream->get(), device_word, 1, CU_STREAM_WAIT_VALUE_GEQ),
            CUDA_SUCCESS);
  void* const streams[] = {stream->get()};
  auto options = Sized<gpushm_detach_options>();
  options.streams = streams;
  options.stream_count = 1;
  EXPECT_EQ(gpushm_attachment_detach(attachment, &options), GPUSHM_BUSY);
  EXPECT_EQ(broker_->leases().size(), 1u);
  options.defer = 1;
  EXPECT_EQ(gpushm_attachment_detach(attachment, &options), GPUSHM_OK) << gpushm_last_error()->text;
  EXPECT_EQ(broker_->leases().size(), 1u) << "work is pending";
  flag.store(1);
  ASSERT_EQ(api_->cuStreamSynchronize(stream->get()), CUDA_SUCCESS);
  size_t count = 0;
  EXPECT_EQ(gpushm_list(client_.get(), nullptr, 0, &count), GPUSHM_OK);
  EXPECT_EQ(broker_->leases().size(), 0u) << "a later call undoes it";
}

TEST_F(ClientTest, OffersAndSaysWhyNot) {
  Open();
  EXPECT_EQ(gpushm_offer(client_.get(), "mine", 0x1234, 4096, nullptr, nullptr),
            GPUSHM_INVALID_ARGUMENT);
  EXPECT_THAT(gpushm_last_error()->what, HasSubstr("address 0x1234"));
  auto result = Sized<gpushm_offer_result>();
  {
    const PrimaryContext context = MakeContext();
    const auto memory = DeviceMemory::Create(*api_, 0, 2 * kMiB);
    ASSERT_TRUE(memory);
    const auto mapping = DeviceMapping::Map(*api_, *memory, 2 * kMiB, 0, Access::kReadWrite);
    ASSERT_TRUE(mapping);
    ASSERT_EQ(gpushm_offer(client_.get(), "vmm", mapping->address(), kMiB, nullptr, &result),
              GPUSHM_OK)
        << gpushm_last_error()->text;
    EXPECT_EQ(result.transport, GPUSHM_TRANSPORT_VMM);
    EXPECT_EQ(broker_->requests(Kind::kAnnounceDescriptor), 1u);
    EXPECT_EQ(
        gpushm_offer(client_.get(), "inside", mapping->address() + kMiB, kMiB, nullptr, nullptr),
        GPUSHM_OK)
        << gpushm_last_error()->text;
    EXPECT_EQ(broker_->requests(Kind::kStageBlock), 1u);
    CUdeviceptr plain = 0;
    ASSERT_EQ(api_->cuMemAlloc(&plain, 4 * kMiB), CUDA_SUCCESS);
    ASSERT_EQ(gpushm_offer(client_.get(), "plain", plain + 4096, kMiB, nullptr, &result), GPUSHM_OK)
        << gpushm_last_error()->text;
    EXPECT_EQ(result.transport, GPUSHM_TRANSPORT_CUIPC);
    EXPECT_EQ(gpushm_offer(client_.get(), "large", plain, 5 * kMiB, nullptr, nullptr),
              GPUSHM_INVALID_ARGUMENT);
    api_->cuMemFree(plain);
  }
}

// Goal: there is no data race, and the counts add up. Method: threads attach, look up and detach
// while the generation moves; ThreadSanitizer runs this test.
TEST_F(ClientTest, ManyThreads) {
  broker_->Add("weights", 5, kMiB, api_);
  broker_->Add("frames", 6, kMiB, api_);
  Open();
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 150; ++i) {
        auto info = Sized<gpushm_info>();
        if (gpushm_lookup(client_.get(), "weights", &info) != GPUSHM_OK) ++failures;
        gpushm_attachment* a = nullptr;
        const char* const name = (i + t) % 2 == 0 ? "weights" : "frames";
        if (gpushm_attach(client_.get(), name, nullptr, &a) != GPUSHM_OK) {
          ++failures;
          continue;
        }
        (void)gpushm_attachment_check(a);
        auto details = Sized<gpushm_attachment_info>();
        if (gpushm_attachment_get_info(a, &details) != GPUSHM_OK) ++failures;
        if (gpushm_attachment_detach(a, nullptr) != GPUSHM_OK) ++failures;
      }
    });
  }
  for (uint64_t generation = 10; generation < 20; ++generation) {
    broker_->Add("frames", generation, kMiB, api_);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(broker_->leases().size(), 0u);
}

}  // namespace
}  // namespace gpushm::client
