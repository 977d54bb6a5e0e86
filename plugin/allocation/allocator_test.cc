#include "plugin/allocation/allocator.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <thread>

namespace gpushm::plugin::allocation {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kGiB = uint64_t{1} << 30;

binding::DeviceIds Ids(char kind, int first, int count) {
  binding::DeviceIds ids;
  for (int i = first; i < first + count; ++i) ids.insert(Concat(kind, 1000 + i));
  return ids;
}

// What would be on the node: the kubelet's list, and the existing specs.
class FakeNode : public Effects {
 public:
  Result<kubelet::PodList> ListPods(const Deadline&) override {
    ++lists;
    if (on_list) on_list();
    if (list_error) return std::unexpected(*list_error);
    return pods;
  }
  Result<void> LookAtOthers(const kubelet::PodList&, const Deadline&) override { return {}; }
  std::map<std::string, std::string> Taken() const override { return taken; }
  std::map<std::string, std::string> Drained() const override { return drained; }
  std::vector<std::string> CdiNames(binding::Resource resource,
                                    const std::string& name) const override {
    return {CdiName(resource, name)};
  }
  static std::string CdiName(binding::Resource resource, const std::string& name) {
    return Concat(resource == binding::Resource::kMemory ? "memory=" : "attach=", name);
  }
  Result<void> Publish(const binding::Binding& binding) override {
    if (on_publish) on_publish();
    if (publish_error) return std::unexpected(*publish_error);
    specs[CdiName(binding.resource, binding.name())] = binding.gpus.front();
    return {};
  }
  void RetractClaim(const std::string& uid) override { specs.erase("memory=" + uid); }
  Result<void> CheckClaimIsUnused(const std::string&) override {
    if (users == 0) return {};
    return Fail(Code::kBusy, "processes still hold memory");
  }
  void Retract(binding::Resource resource, const std::string& name) override {
    if (on_retract) on_retract();
    specs.erase(CdiName(resource, name));
  }

  void Run(const std::string& pod, const std::string& container, binding::Resource resource,
           const binding::DeviceIds& ids) {
    const binding::Owner owner{{"default", pod}, container};
    pods.snapshot.Add(owner, resource, ids);
    pods.pods.insert(owner.pod);
  }

  kubelet::PodList pods;
  std::map<std::string, std::string> specs;  // From CDI name to GPU.
  std::map<std::string, std::string> taken;
  std::map<std::string, std::string> drained;
  std::atomic<int> users = 0;  // Processes that hold memory of a claim.
  std::optional<Status> list_error;
  std::optional<Status> publish_error;
  std::function<void()> on_list;
  std::function<void()> on_publish;
  std::function<void()> on_retract;
  std::atomic<int> lists{0};
};

class AllocatorTest : public ::testing::Test {
 protected:
  AllocatorTest() { Reset({}); }
  void Reset(AllocatorOptions options) {
    options.unit_bytes = kGiB;
    options.settle_timeout_ms = 50;
    allocator_ = std::make_unique<Allocator>(options, &node_);
    allocator_->SetGpus(
        {{.uuid = "GPU-a", .units = 10, .tokens = 4}, {.uuid = "GPU-b", .units = 6, .tokens = 4}});
  }
  // As the kubelet does it: Allocate, then the list shows it, then PreStart.
  Result<void> Start(const std::string& pod, const std::string& container,
                     binding::Resource resource, const binding::DeviceIds& ids) {
    const auto grant = allocator_->Allocate(resource, ids);
    if (!grant) return std::unexpected(grant.error());
    node_.Run(pod, container, resource, ids);
    return allocator_->PreStart(resource, ids);
  }
  FakeNode node_;
  std::unique_ptr<Allocator> allocator_;
};

TEST_F(AllocatorTest, ContainersOfAPodGetOneGpuThroughTheirSpecs) {
  const auto grant = allocator_->Allocate(binding::Resource::kMemory, Ids('m', 0, 4));
  EXPECT_THAT(*grant, ElementsAre("memory=m1000"));
  EXPECT_THAT(node_.specs, IsEmpty()) << "the name has no spec until it is bound";
  ASSERT_TRUE(Start("pod", "gpushm", binding::Resource::kMemory, Ids('m', 0, 4)));
  ASSERT_TRUE(Start("pod", "one", binding::Resource::kAttach, Ids('a', 0, 1)));
  ASSERT_TRUE(Start("pod", "two", binding::Resource::kAttach, Ids('a', 1, 1)));
  EXPECT_THAT(node_.specs, ElementsAre(testing::Pair("attach=a1000", "GPU-b"),
                                       testing::Pair("attach=a1001", "GPU-b"),
                                       testing::Pair("memory=m1000", "GPU-b")));
}

// What the kubelet lists of gpushm.io/exclusive is all that the plugin needs of it.
TEST_F(AllocatorTest, AGpuOfItsOwnNeedsNoSpecOfItsOwn) {
  const auto grant = allocator_->Allocate(binding::Resource::kExclusive, Ids('x', 0, 1));
  ASSERT_TRUE(grant) << grant.error().ToString();
  EXPECT_THAT(*grant, IsEmpty());
  EXPECT_FALSE(allocator_->PreStart(binding::Resource::kExclusive, Ids('x', 0, 1)))
      << "not listed yet";
  node_.Run("pod", "gpushm", binding::Resource::kExclusive, Ids('x', 0, 1));
  ASSERT_TRUE(Start("pod", "gpushm", binding::Resource::kMemory, Ids('m', 0, 4)));
  EXPECT_TRUE(allocator_->PreStart(binding::Resource::kExclusive, Ids('x', 0, 1)));
  EXPECT_THAT(node_.specs, ElementsAre(testing::Pair("memory=m1000", "GPU-b")));
  EXPECT_EQ(allocator_->bindings().at(0).exclusive, Ids('x', 0, 1));
  const auto other = Start("other", "app", binding::Resource::kExclusive, Ids('x', 1, 1));
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code(), Code::kInvalidArgument);
}

// The kubelet waits for Allocate without a deadline and admits no other pod meanwhile.
TEST_F(AllocatorTest, AllocateDoesNotWaitForADecisionThatHangs) {
  Reset({.allocate_timeout_ms = 50});
  ASSERT_TRUE(allocator_->Allocate(binding::Resource::kMemory, Ids('m', 0, 4)));
  node_.Run("hangs", "gpushm", binding::Resource::kMemory, Ids('m', 0, 4));
  std::promise<void> publishing;
  std::promise<void> go_on;
  node_.on_publish = [&] {
    publishing.set_value();
    go_on.get_future().wait();
  };
  std::thread hangs(
      [&] { EXPECT_TRUE(allocator_->PreStart(binding::Resource::kMemory, Ids('m', 0, 4))); });
  publishing.get_future().wait();
  const auto refused = allocator_->Allocate(binding::Resource::kMemory, Ids('m', 4, 1));
  EXPECT_EQ(refused.error().code(), Code::kTimeout);
  go_on.set_value();
  hangs.join();
  EXPECT_TRUE(allocator_->Allocate(binding::Resource::kMemory, Ids('m', 4, 1)));
}

TEST_F(AllocatorTest, AllocateDoesNotWaitForADiskThatHangs) {
  Reset({.allocate_timeout_ms = 50});
  std::promise<void> go_on;
  std::atomic<int> retracted = 0;
  node_.on_retract = [&, until = go_on.get_future().share()] {
    if (++retracted == 1) until.wait();
  };
  for (const int first : {0, 1}) {
    const auto refused = allocator_->Allocate(binding::Resource::kMemory, Ids('m', first, 1));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kTimeout);
    EXPECT_THAT(refused.error().ToString(), HasSubstr("disk"));
    EXPECT_THAT(refused.error().what(),
                HasSubstr(Concat("1 device IDs (m100", first, " to m100", first, ")")));
  }
  go_on.set_value();
  // A busy machine may need longer than these 50 ms.
  int asked = 0;
  const Deadline deadline = Deadline::AfterMs(30'000);
  while (!allocator_->Allocate(binding::Resource::kMemory, Ids('m', 2 + asked++, 1))) {
    ASSERT_FALSE(deadline.Passed());
  }
  EXPECT_LT(retracted, 2 + asked) << "the second one had not begun";
}

TEST_F(AllocatorTest, AllocateTakesAwayWhatStoodBehindItsIds) {
  ASSERT_TRUE(Start("old", "gpushm", binding::Resource::kMemory, Ids('m', 0, 4)));
  ASSERT_TRUE(Start("old", "app", binding::Resource::kAttach, Ids('a', 0, 1)));
  ASSERT_TRUE(allocator_->Allocate(binding::Resource::kMemory, Ids('m', 2, 1)));
  ASSERT_TRUE(allocator_->Allocate(binding::Resource::kAttach, Ids('a', 0, 1)));
  EXPECT_THAT(node_.specs, IsEmpty())
      << "a container started without PreStart must fail, not get the former pod's GPU";
}

TEST_F(AllocatorTest, AFormerHolderThatStillRunsIsWaitedFor) {
  ASSERT_TRUE(Start("old", "gpushm", binding::Resource::kMemory, Ids('m', 0, 4)));
  allocator_->NoteLink("m1000", true);
  node_.pods = {};
  const auto busy = Start("new", "gpushm", binding::Resource::kMemory, Ids('m', 0, 4));
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().code(), Code::kBusy);
  node_.on_list = [this] { allocator_->NoteLink("m1000", false); };  // It ends meanwhile.
  EXPECT_TRUE(allocator_->PreStart(binding::Resource::kMemory, Ids('m', 0, 4)));
}

TEST_F(AllocatorTest, AYoungListProvesNothing) {
  AllocatorOptions options;
  options.own_pod = binding::Pod{"gpushm-system", "plugin-x"};
  Reset(options);
  ASSERT_TRUE(Start("pod", "gpushm", binding::Resource::kMemory, Ids('m', 0, 4)));
  node_.pods = {};  // As just after the kubelet's start.
  for (int64_t now_ms = 0; now_ms <= 3 * binding::Book::kProofMs;
       now_ms += binding::Book::kProofMs) {
    EXPECT_THAT(*allocator_->Reconcile(now_ms), IsEmpty());
  }
  node_.pods.pods.insert({"gpushm-system", "plugin-x"});
  EXPECT_THAT(*allocator_->Reconcile(4 * binding::Book::kProofMs), IsEmpty());
  EXPECT_THAT(*allocator_->Reconcile(5 * binding::Book::kProofMs), SizeIs(1));
  EXPECT_THAT(node_.specs, IsEmpty());
}

TEST_F(AllocatorTest, WhatAnEarlierRunBoundIsTakenOver) {
  const binding::Binding bound{
      binding::Resource::kMemory, Ids('m', 0, 4), {"GPU-a"}, {{"default", "pod"}, "gpushm"}};
  allocator_->Restore({bound});
  node_.Run("pod", "gpushm", binding::Resource::kMemory, Ids('m', 0, 4));
  ASSERT_TRUE(Start("pod", "app", binding::Resource::kAttach, Ids('a', 0, 1)));
  EXPECT_EQ(node_.specs.at("attach=a1000"), "GPU-a") << "not on the GPU that fits best";
  EXPECT_EQ(allocator_->FreeUnits("GPU-a"), 6u);
}

TEST_F(AllocatorTest, AFailedPublishIsRepeatedOnTheSameGpu) {
  node_.publish_error = Status(Code::kSystem, "no space left on device");
  EXPECT_FALSE(Start("pod", "gpushm", binding::Resource::kMemory, Ids('m', 0, 6)));
  node_.publish_error.reset();
  EXPECT_TRUE(allocator_->PreStart(binding::Resource::kMemory, Ids('m', 0, 6)));
  EXPECT_THAT(allocator_->bindings(), SizeIs(1));
}

TEST_F(AllocatorTest, TellsWhenTheKubeletDoesNotAnswer) {
  node_.list_error = Status(Code::kUnavailable, "no podresources socket");
  const auto failed = Start("pod", "gpushm", binding::Resource::kMemory, Ids('m', 0, 1));
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), Code::kUnavailable);
}

// Goal: invariant (2). Method: an Allocate is held inside its effects; a listing that was requested
// meanwhile begins only after it.
TEST_F(AllocatorTest, NoListingBeginsWhileAnAllocateIsOpen) {
  class Slow : public FakeNode {
   public:
    void Retract(binding::Resource, const std::string&) override {
      entered.set_value();
      EXPECT_EQ(go_on.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
      EXPECT_EQ(lists, 0);
    }
    std::promise<void> entered;
    std::promise<void> go_on;
  } node;
  Allocator allocator({}, &node);
  std::thread allocate(
      [&] { EXPECT_TRUE(allocator.Allocate(binding::Resource::kAttach, Ids('a', 0, 1))); });
  node.entered.get_future().wait();
  std::promise<void> asking;
  std::thread list([&] {
    asking.set_value();
    EXPECT_TRUE(allocator.Reconcile(0));
  });
  asking.get_future().wait();
  node.go_on.set_value();
  allocate.join();
  list.join();
  EXPECT_EQ(node.lists, 1);
}

// ---- dynamic resource allocation

binding::ClaimedGpus ClaimOf(const std::string& uid, uint64_t units) {
  return {.uid = uid, .pod = {"default", "pod"}, .gpus = {"GPU-a"}, .bytes = units * kGiB};
}

bool Never() { return false; }

// Starts a Prepare in a thread of its own, and returns when it has tried once.
std::future<Result<void>> StartPrepare(Allocator* allocator, const std::string& uid) {
  const auto tried = std::make_shared<std::promise<void>>();
  auto prepared = std::async(std::launch::async, [allocator, uid, tried] {
    return allocator->PrepareClaim(ClaimOf(uid, 6), Deadline::AfterMs(20'000),
                                   [tried, told = false]() mutable {
                                     if (!std::exchange(told, true)) tried->set_value();
                                     return false;
                                   });
  });
  tried->get_future().wait();
  return prepared;
}

TEST_F(AllocatorTest, AClaimIsPreparedOnceHoweverOften) {
  std::vector<std::future<Result<void>>> calls;
  for (int i = 0; i < 4; ++i) {
    calls.push_back(std::async(std::launch::async, [&] {
      return allocator_->PrepareClaim(ClaimOf("one", 6), Deadline::AfterMs(20'000), Never);
    }));
  }
  for (auto& call : calls) EXPECT_TRUE(call.get());
  EXPECT_THAT(node_.specs, ElementsAre(testing::Pair("memory=one", "GPU-a")));
  EXPECT_EQ(allocator_->FreeUnits("GPU-a"), 4U);
  EXPECT_TRUE(allocator_->UnprepareClaim("one", Deadline::AfterMs(0)));
  EXPECT_THAT(node_.specs, IsEmpty());
  EXPECT_TRUE(allocator_->UnprepareClaim("one", Deadline::AfterMs(0))) << "unknown is a success";
}

// The memory of a pod that was deleted by force is still in use.
TEST_F(AllocatorTest, APrepareWaitsForTheFormerPod) {
  ASSERT_TRUE(allocator_->PrepareClaim(ClaimOf("one", 6), Deadline::AfterMs(0), Never));
  EXPECT_EQ(allocator_->PrepareClaim(ClaimOf("two", 6), Deadline::AfterMs(0), Never).error().code(),
            Code::kExhausted);
  auto second = StartPrepare(allocator_.get(), "two");
  ASSERT_TRUE(allocator_->UnprepareClaim("one", Deadline::AfterMs(0)));
  EXPECT_TRUE(second.get());
}

// Goal: a Prepare that still waits when its pod is gone leaves nothing, because no other Unprepare
// comes.
TEST_F(AllocatorTest, AnUnprepareEndsAPrepareThatWaits) {
  ASSERT_TRUE(allocator_->PrepareClaim(ClaimOf("one", 6), Deadline::AfterMs(0), Never));
  auto second = StartPrepare(allocator_.get(), "two");
  ASSERT_TRUE(allocator_->UnprepareClaim("two", Deadline::AfterMs(0)));
  const auto ended = second.get();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code(), Code::kEnded);
  ASSERT_TRUE(allocator_->UnprepareClaim("one", Deadline::AfterMs(0)));
  EXPECT_THAT(allocator_->bindings(), IsEmpty());
}

TEST_F(AllocatorTest, AnUnprepareWaitsForTheBroker) {
  ASSERT_TRUE(allocator_->PrepareClaim(ClaimOf("one", 6), Deadline::AfterMs(0), Never));
  allocator_->NoteLink("one", true);
  EXPECT_EQ(allocator_->UnprepareClaim("one", Deadline::AfterMs(0)).error().code(), Code::kBusy);
  EXPECT_THAT(node_.specs, ElementsAre(testing::Pair("memory=one", "GPU-a")));
  auto released = std::async(std::launch::async, [&] {
    return allocator_->UnprepareClaim("one", Deadline::AfterMs(20'000));
  });
  allocator_->NoteLink("one", false);
  EXPECT_TRUE(released.get());
}

// Goal: memory that a pod of a shared claim still holds is not given away. Method: Unprepare comes
// while one of its processes lives, as from a kubelet before 1.37.
TEST_F(AllocatorTest, AnUnprepareWaitsForTheProcessesOfOtherPods) {
  ASSERT_TRUE(allocator_->PrepareClaim(ClaimOf("one", 6), Deadline::AfterMs(0), Never));
  node_.users = 1;
  EXPECT_EQ(allocator_->UnprepareClaim("one", Deadline::AfterMs(0)).error().code(), Code::kBusy);
  EXPECT_EQ(allocator_->bindings().size(), 1U);
  auto released = std::async(std::launch::async, [&] {
    return allocator_->UnprepareClaim("one", Deadline::AfterMs(20'000));
  });
  node_.users = 0;
  EXPECT_TRUE(released.get());
  EXPECT_THAT(allocator_->bindings(), IsEmpty());
}

TEST_F(AllocatorTest, AClaimThatCannotBePublishedStaysCounted) {
  node_.publish_error.emplace(Code::kSystem, "the disk is full");
  EXPECT_FALSE(allocator_->PrepareClaim(ClaimOf("one", 6), Deadline::AfterMs(0), Never));
  EXPECT_EQ(allocator_->FreeUnits("GPU-a"), 4U);
  node_.publish_error.reset();
  EXPECT_TRUE(allocator_->PrepareClaim(ClaimOf("one", 6), Deadline::AfterMs(0), Never));
}

}  // namespace
}  // namespace gpushm::plugin::allocation
