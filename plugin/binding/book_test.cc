#include "plugin/binding/book.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

namespace gpushm::plugin::binding {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kGiB = uint64_t{1} << 30;

Owner OwnerNamed(const std::string& pod, const std::string& container) {
  return {{"default", pod}, container};
}

DeviceIds Ids(char kind, int first, int count) {
  DeviceIds ids;
  for (int i = first; i < first + count; ++i) ids.insert(Concat(kind, 1000 + i));
  return ids;
}

class BookTest : public ::testing::Test {
 protected:
  BookTest() {
    book_.SetGpus(
        {{.uuid = "GPU-a", .units = 10, .tokens = 4}, {.uuid = "GPU-b", .units = 6, .tokens = 4}});
  }

  // A sidecar to which the kubelet has given `count` memory IDs from `first` on.
  Result<Binding> Start(const std::string& pod, int first, int count) {
    const DeviceIds ids = Ids('m', first, count);
    book_.Supersede(ids);
    now_.Add(OwnerNamed(pod, "gpushm"), Resource::kMemory, ids);
    return book_.Bind(Resource::kMemory, ids, now_);
  }
  Result<Binding> Attach(const std::string& pod, const std::string& container, int id) {
    now_.Add(OwnerNamed(pod, container), Resource::kAttach, Ids('a', id, 1));
    return book_.Bind(Resource::kAttach, Ids('a', id, 1), now_);
  }
  // From now on the kubelet's list is empty.
  void ForgetAll() { now_ = Snapshot(); }

  Book book_{kGiB};
  Snapshot now_;
};

TEST_F(BookTest, SidecarGetsTheFullestGpuThatFits) {
  EXPECT_EQ(Start("one", 0, 5)->gpus.front(), "GPU-b");
  EXPECT_EQ(Start("two", 10, 1)->gpus.front(), "GPU-b")
      << "1 unit is left there, 10 on the other GPU";
  EXPECT_EQ(Start("three", 20, 1)->gpus.front(), "GPU-a");
  EXPECT_EQ(book_.FreeUnits("GPU-a"), 9u);
  EXPECT_EQ(book_.FreeUnits("GPU-b"), 0u);
}

TEST_F(BookTest, NoRoomIsSaidAndPasses) {
  ASSERT_TRUE(Start("one", 0, 6));
  ASSERT_TRUE(Start("two", 10, 6));
  const Result<Binding> third = Start("three", 20, 5);
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code(), Code::kExhausted);
  EXPECT_EQ(third.error().what(),
            "default/three, container gpushm needs 5 GiB on one GPU, but the largest free block is "
            "4 GiB");
  EXPECT_EQ(third.error().remedy(), "the container starts when there is room");
  now_ = Snapshot();
  now_.Add(OwnerNamed("three", "gpushm"), Resource::kMemory, Ids('m', 20, 5));
  EXPECT_THAT(book_.Observe(now_, 1000), IsEmpty());
  EXPECT_THAT(book_.Observe(now_, 1000 + Book::kProofMs), SizeIs(2));
  EXPECT_TRUE(book_.Bind(Resource::kMemory, Ids('m', 20, 5), now_));
}

TEST_F(BookTest, MoreThanAnyGpuIsSaidAtOnce) {
  const Result<Binding> bound = Start("pod", 0, 11);
  ASSERT_FALSE(bound);
  EXPECT_EQ(bound.error().code(), Code::kUnsupported);
  EXPECT_THAT(bound.error().what(),
              HasSubstr("the largest GPU of this node has 10 GiB in all: it never starts here"));
}

TEST_F(BookTest, AnUnknownIdIsAskedForAgain) {
  const Result<Binding> bound = book_.Bind(Resource::kMemory, Ids('m', 0, 1), now_);
  EXPECT_EQ(bound.error().code(), Code::kNotFound);
}

// The kubelet can give an ID twice (k/k PR #137534).
TEST_F(BookTest, AnIdAtTwoContainersIsRefused) {
  ASSERT_TRUE(Start("one", 0, 2));
  const Result<Binding> second = Start("two", 1, 2);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), Code::kContended);
  EXPECT_THAT(second.error().what(), HasSubstr("default/one"));
}

TEST_F(BookTest, AttachWithoutSidecarIsThePodsMistake) {
  const Result<Binding> bound = Attach("pod", "app", 1);
  EXPECT_EQ(bound.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(bound.error().remedy(), HasSubstr("buffers.gpushm.io/<name>: <size>"));
}

TEST_F(BookTest, AttachBeforeItsSidecarWaits) {
  now_.Add(OwnerNamed("pod", "gpushm"), Resource::kMemory, Ids('m', 0, 2));
  EXPECT_EQ(Attach("pod", "app", 1).error().code(), Code::kUnavailable);
}

TEST_F(BookTest, TwoSidecarsAreThePodsMistake) {
  now_.Add(OwnerNamed("pod", "second"), Resource::kMemory, Ids('m', 30, 1));
  EXPECT_EQ(Start("pod", 0, 2).error().code(), Code::kInvalidArgument);
}

// A StatefulSet's successor has the same pod name, container and IDs ...
TEST_F(BookTest, ASuccessorInheritsNothing) {
  ASSERT_EQ(Start("set-0", 0, 6)->gpus.front(), "GPU-b");
  EXPECT_THAT(book_.Supersede(Ids('m', 0, 6)), ElementsAre("m1000"));
  EXPECT_THAT(book_.bindings(), IsEmpty());
  EXPECT_EQ(book_.FreeUnits("GPU-b"), 0u) << "taken until the end of the first pod is proven";
  EXPECT_TRUE(book_.Bind(Resource::kMemory, Ids('m', 0, 6), now_));
  EXPECT_THAT(book_.bindings(), SizeIs(1));
}

// ... and its application container has the same token, while the sidecar is now bound elsewhere.
TEST_F(BookTest, ASuccessorsContainersFollowItsOwnSidecar) {
  ASSERT_EQ(Start("set-0", 0, 6)->gpus.front(), "GPU-b");
  ASSERT_EQ(Attach("set-0", "app", 1)->gpus.front(), "GPU-b");
  ForgetAll();
  ASSERT_EQ(Start("set-0", 10, 8)->gpus.front(), "GPU-a");
  EXPECT_EQ(Attach("set-0", "app", 1)->gpus.front(), "GPU-a");
}

TEST_F(BookTest, AFormerBrokerThatRunsHoldsItsIds) {
  ASSERT_TRUE(Start("old", 0, 2));
  book_.NoteLink("m1000", true);
  ForgetAll();
  EXPECT_THAT(book_.Observe(now_, 0), IsEmpty());
  EXPECT_THAT(book_.Observe(now_, 2 * Book::kProofMs), IsEmpty()) << "the link is open";
  const Result<Binding> waits = Start("new", 1, 2);
  ASSERT_FALSE(waits);
  EXPECT_EQ(waits.error().code(), Code::kBusy);
  book_.NoteLink("m1000", false);
  EXPECT_TRUE(book_.Bind(Resource::kMemory, Ids('m', 1, 2), now_));
}

// A pod that a kubelet listed once and no longer lists has ended. A kubelet that has just started
// may not know the pod yet.
TEST_F(BookTest, TheKubeletThatListedAPodIsBelievedSooner) {
  now_.kubelet_run = 7;
  ASSERT_TRUE(Start("pod", 0, 2));
  Snapshot empty;
  empty.kubelet_run = 7;
  EXPECT_THAT(book_.Observe(empty, 1000), IsEmpty()) << "one listing proves nothing";
  EXPECT_TRUE(book_.WaitsForProof());
  empty.kubelet_run = 8;
  EXPECT_THAT(book_.Observe(empty, 1000 + Book::kSeenProofMs), IsEmpty()) << "a new kubelet";
  empty.kubelet_run = 7;
  EXPECT_THAT(book_.Observe(empty, 1000 + Book::kSeenProofMs), SizeIs(1));
  EXPECT_FALSE(book_.WaitsForProof());
}

// Only the run of the kubelet that had listed a pod can show that it is no longer listed.
TEST_F(BookTest, TheKubeletThatListedAPodTellsThatItIsUnlisted) {
  Snapshot empty;
  now_.kubelet_run = empty.kubelet_run = 7;
  ASSERT_TRUE(Start("pod", 0, 2));
  EXPECT_THAT(book_.Unlisted(), IsEmpty());
  book_.Observe(empty, 0);
  EXPECT_THAT(book_.Unlisted(), ElementsAre("m1000"));
  empty.kubelet_run = 8;
  book_.Observe(empty, 1);
  EXPECT_THAT(book_.Unlisted(), ElementsAre("m1000")) << "a new kubelet does not know it";
  book_.Observe(now_, 2);
  EXPECT_THAT(book_.Unlisted(), IsEmpty());
  book_.Observe(empty, 3);
  EXPECT_THAT(book_.Unlisted(), IsEmpty()) << "its list may be incomplete";
  now_.kubelet_run = 8;
  book_.Observe(now_, 4);
  book_.Observe(empty, 5);
  EXPECT_THAT(book_.Unlisted(), ElementsAre("m1000"));
  book_.Supersede(Ids('m', 0, 1));
  EXPECT_THAT(book_.Unlisted(), IsEmpty()) << "the name belongs to another pod";
}

TEST_F(BookTest, AShortGapInTheListReleasesNothing) {
  ASSERT_TRUE(Start("pod", 0, 2));
  EXPECT_THAT(book_.Observe(Snapshot(), 0), IsEmpty());
  EXPECT_THAT(book_.Observe(now_, Book::kProofMs - 1), IsEmpty());
  EXPECT_THAT(book_.Observe(Snapshot(), Book::kProofMs), IsEmpty()) << "the time starts again";
}

TEST_F(BookTest, SickGpuTakesNobodyAndSaysSo) {
  ASSERT_EQ(Start("pod", 0, 2)->gpus.front(), "GPU-b");
  book_.SetGpus({{.uuid = "GPU-a", .units = 10, .tokens = 4},
                 {.uuid = "GPU-b", .units = 6, .tokens = 4, .healthy = false}});
  EXPECT_EQ(Start("new", 10, 1)->gpus.front(), "GPU-a");
  const Result<Binding> again = book_.Bind(Resource::kMemory, Ids('m', 0, 2), now_);
  EXPECT_EQ(again.error().code(), Code::kDeviceLost);
  EXPECT_THAT(again.error().ToString(),
              HasSubstr("GPU GPU-b is unhealthy. Remedy: the container starts when the GPU is "
                        "healthy again; delete the pod to have it placed again"));
  EXPECT_EQ(Attach("pod", "app", 1).error().code(), Code::kDeviceLost);
}

TEST_F(BookTest, AsManyIdsAreSickAsTheGpuStandsFor) {
  ASSERT_EQ(Start("there", 3, 2)->gpus.front(), "GPU-b");
  ASSERT_EQ(Start("elsewhere", 8, 5)->gpus.front(), "GPU-a");
  ASSERT_TRUE(Attach("there", "app", 2));
  EXPECT_THAT(book_.Unhealthy(Resource::kMemory, Ids('m', 0, 16)), IsEmpty());
  book_.SetGpus({{.uuid = "GPU-a", .units = 10, .tokens = 4},
                 {.uuid = "GPU-b", .units = 6, .tokens = 4, .healthy = false}});
  const DeviceIds sick = book_.Unhealthy(Resource::kMemory, Ids('m', 0, 16));
  EXPECT_THAT(sick, SizeIs(6));
  EXPECT_TRUE(sick.contains("m1003") && sick.contains("m1004")) << "the IDs that are bound there";
  for (const std::string& id : Ids('m', 8, 5)) EXPECT_FALSE(sick.contains(id)) << id;
  EXPECT_THAT(book_.Unhealthy(Resource::kAttach, Ids('a', 0, 8)),
              ::testing::AllOf(SizeIs(4), ::testing::Contains("a1002")));
}

// Containers that are bound there stay and may restart; no new pod is bound.
TEST_F(BookTest, AGpuThatSomebodyElseHandsOutTakesNobodyNew) {
  ASSERT_EQ(Start("there", 3, 2)->gpus.front(), "GPU-b");
  book_.SetGpus({{.uuid = "GPU-a", .units = 10, .tokens = 4},
                 {.uuid = "GPU-b", .units = 6, .tokens = 4, .taken_by = "nvidia.com/gpu"}});
  EXPECT_EQ(Start("new", 10, 1)->gpus.front(), "GPU-a") << "best fit would choose the other GPU";
  EXPECT_TRUE(book_.Bind(Resource::kMemory, Ids('m', 3, 2), now_)) << "the container may restart";
  EXPECT_EQ(Attach("there", "app", 1)->gpus.front(), "GPU-b");
  // Its free units are reported unhealthy; those that are bound stay healthy.
  const DeviceIds unhealthy = book_.Unhealthy(Resource::kMemory, Ids('m', 0, 16));
  EXPECT_THAT(unhealthy, SizeIs(4));
  EXPECT_FALSE(unhealthy.contains("m1003") || unhealthy.contains("m1004") ||
               unhealthy.contains("m1010"));
  EXPECT_THAT(book_.Unhealthy(Resource::kAttach, Ids('a', 0, 8)), SizeIs(3));
  book_.SetGpus({{.uuid = "GPU-a", .units = 10, .tokens = 4, .taken_by = "nvidia.com/gpu"},
                 {.uuid = "GPU-b", .units = 6, .tokens = 4, .taken_by = "nvidia.com/gpu"}});
  const Result<Binding> none = Start("late", 20, 3);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), Code::kExhausted) << "the other plugin may end";
  EXPECT_THAT(none.error().what(), HasSubstr("is handed out by nvidia.com/gpu"));
}

TEST_F(BookTest, ADrainedGpuTakesNobodyNewAndKeepsItsPods) {
  ASSERT_EQ(Start("there", 3, 2)->gpus.front(), "GPU-b");
  const Gpu other{.uuid = "GPU-a", .units = 10, .tokens = 4};
  Gpu drained{.uuid = "GPU-b", .units = 6, .tokens = 4, .drained = "a fan is loud"};
  book_.SetGpus({other, drained});
  EXPECT_EQ(Start("new", 10, 1)->gpus.front(), "GPU-a") << "best fit would choose the other GPU";
  EXPECT_TRUE(book_.Bind(Resource::kMemory, Ids('m', 3, 2), now_)) << "the container may restart";
  EXPECT_EQ(Attach("there", "app", 1)->gpus.front(), "GPU-b");
  EXPECT_THAT(book_.Unhealthy(Resource::kMemory, Ids('m', 0, 16)), SizeIs(4));
  ASSERT_TRUE(Start("full", 20, 9));
  const Result<Binding> none = Start("late", 30, 3);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), Code::kExhausted);
  EXPECT_THAT(none.error().ToString(), HasSubstr("GPU GPU-b is drained: a fan is loud"));
  EXPECT_THAT(none.error().ToString(), HasSubstr("gpushmctl gpu undrain GPU-b"));
  drained.drained.clear();
  book_.SetGpus({other, drained});
  EXPECT_EQ(book_.Bind(Resource::kMemory, Ids('m', 30, 3), now_)->gpus.front(), "GPU-b");
}

TEST_F(BookTest, NamespacesDoNotShareAGpuUnlessTheyMay) {
  const auto start = [&](const std::string& name_space, int first, int count) {
    const DeviceIds ids = Ids('m', first, count);
    book_.Supersede(ids);
    now_.Add({{name_space, "pod"}, "gpushm"}, Resource::kMemory, ids);
    return book_.Bind(Resource::kMemory, ids, now_);
  };
  book_.SetTenancy(Tenancy::kNamespace);
  EXPECT_EQ(start("red", 0, 2)->gpus.front(), "GPU-b");
  EXPECT_EQ(start("blue", 10, 2)->gpus.front(), "GPU-a") << "best fit would choose the other GPU";
  const Result<Binding> third = start("green", 20, 2);
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code(), Code::kExhausted);
  EXPECT_THAT(third.error().ToString(),
              HasSubstr("GPU GPU-b has pods of namespace red (binding.tenancy: namespace)"));
  // What has ended counts until its end is proven.
  now_ = Snapshot();
  now_.Add({{"green", "pod"}, "gpushm"}, Resource::kMemory, Ids('m', 20, 2));
  EXPECT_FALSE(book_.Bind(Resource::kMemory, Ids('m', 20, 2), now_));
  book_.Observe(now_, 0);
  book_.Observe(now_, Book::kProofMs);
  EXPECT_TRUE(book_.Bind(Resource::kMemory, Ids('m', 20, 2), now_));
  book_.SetTenancy(Tenancy::kShared);
  EXPECT_EQ(start("yellow", 30, 4)->gpus.front(), "GPU-b") << "best fit, beside the pod of green";
}

// A pod that wants its GPU alone gets an empty one, and nobody joins it there.
TEST_F(BookTest, APodCanHaveItsGpuAlone) {
  const auto start = [&](const std::string& pod, int first, int count, int exclusive) {
    const Owner owner = OwnerNamed(pod, "gpushm");
    book_.Supersede(Ids('m', first, count));
    now_.Add(owner, Resource::kMemory, Ids('m', first, count));
    now_.Add(owner, Resource::kExclusive, Ids('x', exclusive, 1));
    EXPECT_TRUE(book_.CheckSidecar(Resource::kExclusive, Ids('x', exclusive, 1), now_));
    return book_.Bind(Resource::kMemory, Ids('m', first, count), now_);
  };
  const DeviceIds all = Ids('x', 0, 2);
  EXPECT_THAT(book_.Unhealthy(Resource::kExclusive, all), IsEmpty());
  ASSERT_EQ(Start("shares", 0, 2)->gpus.front(), "GPU-b");
  EXPECT_THAT(book_.Unhealthy(Resource::kExclusive, all), SizeIs(1)) << "GPU-b has a pod";
  const Result<Binding> alone = start("alone", 10, 1, 0);
  ASSERT_TRUE(alone) << alone.error().ToString();
  EXPECT_EQ(alone->gpus.front(), "GPU-a") << "best fit would choose the other GPU";
  EXPECT_EQ(alone->exclusive, Ids('x', 0, 1));
  EXPECT_EQ(book_.Unhealthy(Resource::kExclusive, all), Ids('x', 1, 1)) << "the other is in use";
  // What is free on its GPU is nobody's: 9 of 10 units.
  EXPECT_THAT(book_.Unhealthy(Resource::kMemory, Ids('m', 0, 16)), SizeIs(9));
  EXPECT_EQ(start("alone", 10, 1, 0)->gpus.front(), "GPU-a") << "the container may restart";
  EXPECT_EQ(Attach("alone", "app", 1)->gpus.front(), "GPU-a");

  const Result<Binding> joins = Start("joins", 20, 5);
  ASSERT_FALSE(joins);
  EXPECT_EQ(joins.error().code(), Code::kExhausted);
  EXPECT_THAT(joins.error().ToString(),
              HasSubstr("pod default/alone has GPU GPU-a alone (gpushm.io/exclusive)"));
  const Result<Binding> second = start("second", 30, 1, 1);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), Code::kExhausted);
  EXPECT_THAT(second.error().ToString(), HasSubstr("pod default/shares is on GPU GPU-b"));

  // It stays its own over a restart of the plugin, and until its end is proven.
  Book later(kGiB);
  later.SetGpus({{.uuid = "GPU-a", .units = 10, .tokens = 4}});
  for (const Binding& binding : book_.bindings()) later.Restore(binding);
  EXPECT_FALSE(later.Bind(Resource::kMemory, Ids('m', 20, 5), now_));
  ForgetAll();
  now_.Add(OwnerNamed("joins", "gpushm"), Resource::kMemory, Ids('m', 20, 5));
  EXPECT_FALSE(later.Bind(Resource::kMemory, Ids('m', 20, 5), now_));
  later.Observe(now_, 0);
  later.Observe(now_, Book::kProofMs);
  EXPECT_TRUE(later.Bind(Resource::kMemory, Ids('m', 20, 5), now_));
}

TEST_F(BookTest, OnlyASidecarCanAskForAGpuOfItsOwn) {
  now_.Add(OwnerNamed("pod", "app"), Resource::kExclusive, Ids('x', 0, 1));
  const auto refused = book_.CheckSidecar(Resource::kExclusive, Ids('x', 0, 1), now_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.error().what(),
              HasSubstr("container app requests gpushm.io/exclusive without gpushm.io/memory"));
  EXPECT_EQ(book_.CheckSidecar(Resource::kExclusive, Ids('x', 5, 1), now_).error().code(),
            Code::kNotFound);
}

// A sick or drained GPU is no pod's own. The IDs of a pod that has one are sick with it.
TEST_F(BookTest, SickAndDrainedGpusAreNobodysOwn) {
  book_.SetGpus({{.uuid = "GPU-a", .units = 10, .tokens = 4},
                 {.uuid = "GPU-b", .units = 6, .tokens = 4, .drained = "a fan is loud"}});
  EXPECT_THAT(book_.Unhealthy(Resource::kExclusive, Ids('x', 0, 2)), SizeIs(1));
  now_.Add(OwnerNamed("alone", "gpushm"), Resource::kExclusive, Ids('x', 1, 1));
  ASSERT_EQ(Start("alone", 0, 2)->gpus.front(), "GPU-a");
  EXPECT_EQ(book_.Unhealthy(Resource::kExclusive, Ids('x', 0, 2)), Ids('x', 0, 1));
  book_.SetGpus({{.uuid = "GPU-a", .units = 10, .tokens = 4, .healthy = false},
                 {.uuid = "GPU-b", .units = 6, .tokens = 4}});
  EXPECT_EQ(book_.Unhealthy(Resource::kExclusive, Ids('x', 0, 2)), Ids('x', 1, 1));
}

// It would see two GPUs, and its pod's buffers are on only one of them.
TEST_F(BookTest, AContainerWithAnotherPluginsGpuIsRefusedUnlessToldToCoexist) {
  now_.AddOtherGpu(OwnerNamed("pod", "app"), "nvidia.com/gpu");
  ASSERT_TRUE(Start("pod", 0, 2));
  const auto refused = Attach("pod", "app", 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.error().what(),
              HasSubstr("container app requests both nvidia.com/gpu and gpushm.io/attach"));
  book_.SetCoexist(true);
  EXPECT_TRUE(Attach("pod", "app", 1));
}

}  // namespace
}  // namespace gpushm::plugin::binding
