#include "contract/annotations/annotations.h"

#include <gtest/gtest.h>

#include "contract/annotations/keys.h"
#include "contract/annotations/sizing.h"
#include "contract/limits.h"
#include "platform/base/testing/must.h"

namespace gpushm::annotations {
namespace {

using ::gpushm::testing::Must;

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr uint64_t kMiB = uint64_t{1} << 20;

const ParseOptions kPod{.containers = std::vector<std::string>{"decoder", "model", "sink"}};

TEST(AnnotationsTest, HowContainersShareTheTimeOfTheirGpu) {
  const auto mps = [](const Annotations& annotations) {
    const auto pod = ParseAnnotations(annotations, kPod);
    EXPECT_TRUE(pod) << pod.error().ToString();
    return pod ? pod->mps : MpsSpec{};
  };
  EXPECT_EQ(mps({}), MpsSpec{});
  EXPECT_EQ(mps({{"gpushm.io/mps", "true"},
                 {"gpushm.io/mps-uid", "1000"},
                 {"gpushm.io/enforce-private", "true"},
                 {"compute.gpushm.io/model", "50"}}),
            (MpsSpec{.wanted = true,
                     .uid = 1000,
                     .enforce_private = true,
                     .compute_percent = {{"model", 50}}}));
  EXPECT_EQ(mps({{"gpushm.io/mps", "false"}}), MpsSpec{.wanted = false});
  EXPECT_TRUE(mps({{"gpushm.io/mps-uid", "any"}}).any_uid);
  for (const auto& [key, value] : Annotations{{"gpushm.io/mps", "maybe"},
                                              {"gpushm.io/mps-uid", "nobody"},
                                              {"gpushm.io/enforce-private", "2Gi"},
                                              {"compute.gpushm.io/model", "101"},
                                              {"compute.gpushm.io/", "50"}}) {
    EXPECT_FALSE(ParseAnnotations({{key, value}}, kPod)) << key << ": " << value;
  }
}

TEST(AnnotationsTest, ReadsAWholePod) {
  const auto pod =
      ParseAnnotations({{"buffers.gpushm.io/weights", "8Gi"},
                        {"buffers.gpushm.io/frames",
                         "size: 512Mi\ngenerations: 2\naccess: one-writer\nwriters: [decoder]\n"
                         "containers: [model, decoder]\non-writer-exit: drop\n"},
                        {"buffers.gpushm.io/model",
                         R"({"size":"1Gi","access":"read-only","file":"models/a/b.bin"})"},
                        {"private.gpushm.io/decoder", "2Gi"},
                        {"gpushm.io/pool-extra", "1G"},
                        {"gpushm.io/host-ipc", "true"},
                        {"gpushm.io/cuda-ipc", "true"},
                        {"gpushm.io/inject", "false"},
                        {"gpushm.io/status", "{not looked at"},
                        {"sidecar.gpushm.io/cpu", "0.1"},
                        {"sidecar.gpushm.io/memory", "64Mi"},
                        {"loader.gpushm.io/cpu", "1"},
                        {"loader.gpushm.io/memory", "1Gi"},
                        {"example.com/buffers", "[not looked at"},
                        {"gpushm.io.example/x", "1"}},
                       kPod);
  ASSERT_TRUE(pod) << pod.error().ToString();
  ASSERT_EQ(pod->buffers.size(), 3U);
  const BufferSpec& frames = pod->buffers[0];
  EXPECT_EQ(frames, (BufferSpec{.name = "frames",
                                .size_bytes = 512 * kMiB,
                                .generations = 2,
                                .access = WriteRule::kOneWriter,
                                .containers = {"decoder", "model"},
                                .writers = {"decoder"},
                                .on_writer_exit = OnWriterExit::kDrop}));
  EXPECT_EQ(pod->buffers[1].file, "models/a/b.bin");
  EXPECT_EQ(pod->buffers[1].FileVolume(), "models");
  EXPECT_EQ(pod->buffers[1].FilePath(), "a/b.bin");
  const auto folder =
      Must(ParseAnnotations({{"buffers.gpushm.io/a", "{size: 1Gi, file: models/llama/}"},
                             {"buffers.gpushm.io/b", "{size: 1Gi, file: models/}"}}));
  EXPECT_EQ(folder.buffers[0].FilePath(), "llama/");
  EXPECT_EQ(folder.buffers[1].FilePath(), "./") << "the volume's root";
  EXPECT_TRUE(pod->buffers[1].StartsLoading());
  EXPECT_EQ(pod->Find("weights"), &pod->buffers[2]);
  EXPECT_EQ(pod->Find("nothing"), nullptr);
  EXPECT_EQ(pod->pool_extra_bytes, 1'000'000'000U);
  EXPECT_TRUE(pod->host_ipc);
  EXPECT_TRUE(pod->cuda_ipc);
  EXPECT_FALSE(pod->inject);
  EXPECT_EQ(pod->sidecar, (ContainerResources{100, 64 * kMiB}));
  EXPECT_EQ(pod->loader, (ContainerResources{1000, 1024 * kMiB}));
  EXPECT_EQ(pod->private_bytes, (std::map<std::string, uint64_t>{
                                    {"decoder", 2 * kGiB}, {"model", kGiB}, {"sink", kGiB}}));
}

TEST(AnnotationsTest, WhatTheFileMustHave) {
  const auto pod = ParseAnnotations(
      {{"buffers.gpushm.io/a",
        "{size: 1Gi, file: m/w, bytes: 1Mi, digest: g1:0123456789abcdef00000000DEADBEEF}"},
       {"buffers.gpushm.io/b", "{size: 1Gi, file: m/w}"}});
  ASSERT_TRUE(pod) << pod.error().ToString();
  EXPECT_EQ(pod->Find("a")->file_bytes, 1 << 20);
  EXPECT_EQ(pod->Find("a")->digest.ToString(), "g1:0123456789abcdef00000000deadbeef");
  EXPECT_EQ(pod->Find("b")->file_bytes, 0U);
  EXPECT_TRUE(pod->Find("b")->digest.empty());
}

TEST(AnnotationsTest, WhoMayAttachAndWrite) {
  const auto pod = Must(ParseAnnotations(
      {{"buffers.gpushm.io/all", "1Gi"},
       {"buffers.gpushm.io/some", "{size: 1Gi, containers: [sink, model], writers: [model]}"},
       {"buffers.gpushm.io/none", "{size: 1Gi, access: read-only, file: m/x}"}},
      kPod));
  EXPECT_TRUE(pod.Find("all")->MayAttach("late"));
  EXPECT_TRUE(pod.Find("all")->MayWrite("late"));
  EXPECT_TRUE(pod.Find("some")->MayAttach("sink"));
  EXPECT_FALSE(pod.Find("some")->MayWrite("sink"));
  EXPECT_TRUE(pod.Find("some")->MayWrite("model"));
  EXPECT_FALSE(pod.Find("some")->MayAttach("decoder"));
  EXPECT_TRUE(pod.Find("none")->MayAttach("sink"));
  EXPECT_FALSE(pod.Find("none")->MayWrite("sink"));
}

TEST(AnnotationsTest, ReadsSignals) {
  const auto pod = Must(ParseAnnotations(
      {{"buffers.gpushm.io/frames", "1Gi"},
       {"signals.gpushm.io/stop", ""},
       {"signals.gpushm.io/none", "# as if empty"},
       {"signals.gpushm.io/all", "{}"},
       {"signals.gpushm.io/frame", "{writers: [decoder], containers: [model, decoder]}"}},
      kPod));
  EXPECT_EQ(pod.signals,
            (std::vector<SignalSpec>{
                {.name = "all"},
                {.name = "frame", .containers = {"decoder", "model"}, .writers = {"decoder"}},
                {.name = "none"},
                {.name = "stop"}}));
  EXPECT_TRUE(pod.HasAccessLists());
  EXPECT_EQ(PoolBytes(pod), kGiB) << "they take no GPU memory";
}

// Goal: the loader of every buffer has a name that Kubernetes accepts, and no two have the same.
TEST(AnnotationsTest, EachBufferHasALoaderOfItsOwn) {
  EXPECT_EQ(LoaderOf("weights"), "gpushm-load-weights");
  const std::string longest(limits::kNameBytes - 12, 'a');
  EXPECT_EQ(LoaderOf(longest), "gpushm-load-" + longest);
  const std::string longer = LoaderOf(longest + "a");
  EXPECT_EQ(longer, "gpushm-load-" + std::string(34, 'a') + "-14592e3970b2f9c9");
  EXPECT_EQ(longer.size(), limits::kNameBytes);
  EXPECT_NE(LoaderOf(longest + "b"), longer);
}

TEST(AnnotationsTest, BuffersOnSeveralGpus) {
  const auto pod = Must(ParseAnnotations(
      {{"gpushm.io/gpus", "3"},
       {"gpushm.io/topology", "nvlink"},
       {"buffers.gpushm.io/first", "1Gi"},
       {"buffers.gpushm.io/last", "{size: 1Gi, gpu: 2}"},
       {"buffers.gpushm.io/weights",
        "size: 8Gi\naccess: read-only\ngpu: each\nfile: models/{gpu}/shard-{gpu}.bin\n"
        "containers: [model]\n"}},
      kPod));
  EXPECT_EQ(pod.gpus, 3U);
  EXPECT_TRUE(pod.nvlink);
  ASSERT_EQ(pod.buffers.size(), 5U);
  EXPECT_EQ(pod.Find("first")->gpu, 0U);
  EXPECT_EQ(pod.Find("last")->gpu, 2U);
  EXPECT_EQ(pod.Find("weights"), nullptr);
  for (uint32_t gpu = 0; gpu < 3; ++gpu) {
    const BufferSpec* const weights = pod.Find(Concat("weights-", gpu));
    ASSERT_NE(weights, nullptr);
    EXPECT_EQ(*weights, (BufferSpec{.name = Concat("weights-", gpu),
                                    .size_bytes = 8 * kGiB,
                                    .access = WriteRule::kReadOnly,
                                    .containers = {"model"},
                                    .file = Concat("models/", gpu, "/shard-", gpu, ".bin"),
                                    .gpu = gpu}));
  }
  EXPECT_EQ(pod.private_bytes.size(), 3U) << "of each GPU, so a container has one entry";
}

TEST(AnnotationsTest, GpusAtTheirLimits) {
  const auto one =
      ParseAnnotations({{"gpushm.io/gpus", "1"},
                        {"buffers.gpushm.io/a", "{size: 1Gi, gpu: 0}"},
                        {"buffers.gpushm.io/b", "{size: 1Gi, gpu: each, loads: true}"}});
  ASSERT_TRUE(one) << one.error().ToString();
  EXPECT_EQ(one->gpus, 1U);
  EXPECT_NE(one->Find("b-0"), nullptr);
  const std::string longest(limits::kNameBytes - 3, 'a');
  const auto most = Must(ParseAnnotations(
      {{"gpushm.io/gpus", "16"}, {"buffers.gpushm.io/" + longest, "{size: 1Gi, gpu: each}"}}));
  EXPECT_EQ(most.Find(longest + "-15")->gpu, 15U);
  EXPECT_EQ(PodSpec{}.gpus, 1U);
  EXPECT_FALSE(PodSpec{}.nvlink);
}

TEST(AnnotationsTest, HowThePodGetsItsMemory) {
  EXPECT_EQ(ParseAnnotations({})->allocation, std::nullopt);
  for (const Allocation each : {Allocation::kDevicePlugin, Allocation::kDra}) {
    const auto pod =
        ParseAnnotations({{"gpushm.io/allocation", std::string(AllocationName(each))}});
    ASSERT_TRUE(pod) << pod.error().ToString();
    EXPECT_EQ(pod->allocation, each);
  }
}

TEST(AnnotationsTest, PodsThatShareAClaim) {
  const auto user =
      Must(ParseAnnotations({{"gpushm.io/claim", "weights.v1"}, {"gpushm.io/gpus", "2"}}));
  EXPECT_EQ(user.claim, "weights.v1");
  EXPECT_TRUE(user.UsesOthers());
  EXPECT_FALSE(user.AsksForSidecar());
  const auto owner = Must(ParseAnnotations({{"gpushm.io/claim", "weights"},
                                            {"gpushm.io/role", "owner"},
                                            {"buffers.gpushm.io/model", "1Gi"}}));
  EXPECT_FALSE(owner.UsesOthers());
  EXPECT_TRUE(owner.AsksForSidecar());
  EXPECT_TRUE(ParseAnnotations({{"gpushm.io/claim", "weights"}, {"gpushm.io/role", "owner"}})
                  ->AsksForSidecar())
      << "it may make buffers at run time";
}

TEST(AnnotationsTest, WhatOnlyTheOwnerOfAClaimCanSay) {
  const auto reason = [](Annotations more, const std::string& key) -> std::string {
    more["gpushm.io/claim"] = "weights";
    const auto pod = ParseAnnotationsOrErrors(more);
    if (pod || pod.error().size() != 1) return Concat(pod ? 0 : pod.error().size(), " errors");
    EXPECT_EQ(pod.error()[0].annotation, key);
    return pod.error()[0].reason;
  };
  for (const auto& [key, value] : Annotations{{"buffers.gpushm.io/b", "1Gi"},
                                              {"signals.gpushm.io/s", ""},
                                              {"private.gpushm.io/a", "1Gi"},
                                              {"gpushm.io/pool-extra", "1Gi"},
                                              {"gpushm.io/enforce-private", "true"},
                                              {"gpushm.io/cuda-ipc", "true"},
                                              {"sidecar.gpushm.io/cpu", "1"}}) {
    EXPECT_EQ(reason({{key, value}}, key), "only the owner of the claim can say this") << key;
    EXPECT_EQ(reason({{key, value}, {"gpushm.io/role", "owner"}}, key), "0 errors") << key;
  }
  const Annotations owner = {{"gpushm.io/role", "owner"}};
  for (const auto& [key, value] :
       Annotations{{"gpushm.io/exclusive", "true"}, {"gpushm.io/allocation", "device-plugin"}}) {
    Annotations more = owner;
    more[key] = value;
    EXPECT_NE(reason(more, key), "0 errors") << key;
  }
}

// A container that only waits for a signal then runs kernels, so it gets the GPU too.
TEST(AnnotationsTest, WhoMayOpenASignalAttaches) {
  const auto pod =
      ParseAnnotations({{"signals.gpushm.io/frame", "{containers: [decoder, model]}"}}, kPod);
  ASSERT_TRUE(pod) << pod.error().ToString();
  EXPECT_TRUE(pod->AsksForSidecar());
  EXPECT_EQ(pod->private_bytes,
            (std::map<std::string, uint64_t>{{"decoder", kGiB}, {"model", kGiB}}));
}

TEST(AnnotationsTest, PrivateBytesOnlyForContainersThatAttach) {
  const auto pod =
      Must(ParseAnnotations({{"buffers.gpushm.io/a", "{size: 1Gi, containers: [decoder]}"},
                             {"buffers.gpushm.io/b", "{size: 1Gi, containers: [model]}"},
                             {"private.gpushm.io/model", "0"}},
                            kPod));
  EXPECT_EQ(pod.private_bytes, (std::map<std::string, uint64_t>{{"decoder", kGiB}, {"model", 0}}));
  EXPECT_TRUE(ParseAnnotations({}, kPod)->private_bytes.empty());
  EXPECT_FALSE(ParseAnnotations({}, kPod)->AsksForSidecar());
}

// Goal: the webhook, which reads the metadata, and the broker, which reads the environment, agree.
TEST(AnnotationsTest, EnvironmentAndMetadataAgree) {
  const auto metadata =
      ParseAnnotations({{"buffers.gpushm.io/w", "{size: 1.5Gi, writers: [model]}"},
                        {"buffers.gpushm.io/x", "{size: 1Gi, gpu: each, file: \"m/{gpu}.bin\"}"},
                        {"gpushm.io/gpus", "2"},
                        {"gpushm.io/inject", "true"},
                        {"signals.gpushm.io/a", ""},
                        {"signals.gpushm.io/b", "writers: [model]\n"}});
  const auto nested = ParseBuffersEnvironment(
      "buffers.gpushm.io/w: {size: 1.5Gi, writers: [model]}\n"
      "buffers.gpushm.io/x: {size: 1Gi, gpu: each, file: 'm/{gpu}.bin'}\n"
      "gpushm.io/gpus: 2\ngpushm.io/inject: true\n"
      "signals.gpushm.io/a:\nsignals.gpushm.io/b: {writers: [model]}\n");
  const auto quoted = ParseBuffersEnvironment(
      R"({"buffers.gpushm.io/w":"{size: 1.5Gi, writers: [model]}","gpushm.io/inject":"true",
          "buffers.gpushm.io/x":"size: 1Gi\ngpu: each\nfile: m/{gpu}.bin","gpushm.io/gpus":"2",
          "signals.gpushm.io/a":"","signals.gpushm.io/b":"{\"writers\": [\"model\"]}"})");
  ASSERT_TRUE(metadata && nested && quoted);
  EXPECT_EQ(*metadata, *nested);
  EXPECT_EQ(*metadata, *quoted);
  EXPECT_EQ(*ParseBuffersEnvironment(""), PodSpec{});
  EXPECT_EQ(*ParseBuffersEnvironment("# none\n"), PodSpec{});
  EXPECT_FALSE(ParseBuffersEnvironment("8Gi"));
}

TEST(AnnotationsTest, NamesAtTheirLimits) {
  const std::string longest(limits::kNameBytes, 'a');
  EXPECT_TRUE(ParseAnnotations({{"buffers.gpushm.io/" + longest, "1"}}));
  EXPECT_TRUE(ParseAnnotations({{"buffers.gpushm.io/0-9", "64Ti"}}));
  Annotations many;
  for (uint32_t i = 0; i < limits::kBuffers; ++i) {
    many[Concat("buffers.gpushm.io/b", i)] = "64Ti";
  }
  EXPECT_TRUE(ParseAnnotations(many));
  many["signals.gpushm.io/one-more"] = "";
  EXPECT_FALSE(ParseAnnotations(many));
  Annotations signals;
  for (size_t i = 0; i < kMostSignals; ++i) signals[Concat("signals.gpushm.io/s", i)] = "";
  EXPECT_TRUE(ParseAnnotations(signals));
  signals["signals.gpushm.io/one-more"] = "";
  const auto refused = ParseAnnotations(signals);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what().find("1025 signals are declared; a pod may have at most 1024"),
            std::string::npos)
      << refused.error().ToString();
}

TEST(SizingTest, SumsAsTheDesignSays) {
  const auto pod = Must(ParseAnnotations({{"buffers.gpushm.io/a", "{size: 3Mi, generations: 3}"},
                                          {"buffers.gpushm.io/b", "{size: 1, file: m/b}"},
                                          {"buffers.gpushm.io/c", "{size: 1, loads: true}"},
                                          {"gpushm.io/pool-extra", "5Mi"},
                                          {"private.gpushm.io/sink", "1Mi"}},
                                         kPod));
  EXPECT_EQ(PoolBytes(pod), (3 * 4 + 2 + 2 + 6) * kMiB);
  EXPECT_EQ(NodeBytes(pod), PoolBytes(pod) + 2 * kGiB + 2 * kMiB + kLoaderBytes);
  EXPECT_EQ(Units(0, kGiB), 0U);
  EXPECT_EQ(Units(1, kGiB), 1U);
  EXPECT_EQ(Units(kGiB, kGiB), 1U);
  EXPECT_EQ(Units(kGiB + 1, kGiB), 2U);
  EXPECT_EQ(Units(UINT64_MAX, 1), UINT64_MAX);
}

// Goal: each GPU reserves what the fullest one needs.
TEST(SizingTest, EachGpuReservesWhatTheFullestNeeds) {
  const auto pod = ParseAnnotations({{"gpushm.io/gpus", "3"},
                                     {"buffers.gpushm.io/a", "{size: 2Gi, gpu: each}"},
                                     {"buffers.gpushm.io/b", "{size: 1Gi, gpu: 1, file: m/b}"},
                                     {"buffers.gpushm.io/c", "1Mi"},
                                     {"gpushm.io/pool-extra", "3Gi"},
                                     {"private.gpushm.io/sink", "0"}},
                                    kPod);
  ASSERT_TRUE(pod) << pod.error().ToString();
  EXPECT_EQ(PoolBytes(*pod), 5 * kGiB + 2 * kMiB);
  EXPECT_EQ(PoolBytes(*pod, 1), 6 * kGiB);
  EXPECT_EQ(PoolBytes(*pod, 2), 5 * kGiB);
  EXPECT_EQ(FullestGpu(*pod), 1U);
  EXPECT_EQ(GpuBytes(*pod), (6 + 2) * kGiB + kLoaderBytes);
  // Each file has a loader of its own, whose context is on the buffer's GPU. It comes from what
  // the pod reserves beside its pool, which is the same on each GPU.
  const auto files = Must(ParseAnnotations({{"gpushm.io/gpus", "2"},
                                            {"buffers.gpushm.io/a", "{size: 1Gi, file: m/a}"},
                                            {"buffers.gpushm.io/b", "{size: 1Gi, file: m/b}"},
                                            {"buffers.gpushm.io/c", "{size: 3Gi, gpu: 1}"}}));
  EXPECT_EQ(GpuBytes(files), 3 * kGiB + 2 * kLoaderBytes);
  EXPECT_EQ(NodeBytes(*pod), 3 * GpuBytes(*pod));
  EXPECT_EQ(ContainerBytes(*pod, "model", 1), 7 * kGiB);
  EXPECT_EQ(ContainerBytes(*pod, "sink", 2), 5 * kGiB);
  // Rounded up for each GPU, so that each has whole units.
  EXPECT_EQ(PodUnits(*pod, kGiB), 27U);
  EXPECT_EQ(PodUnits(*pod, 5 * kGiB), 6U);
  EXPECT_EQ(PodUnits(*ParseAnnotations({{"gpushm.io/gpus", "4"}}), kGiB), 4U);
}

TEST(SizingTest, SaysWhatIsAskedOfEachGpuAndInAll) {
  const auto pod = Must(ParseAnnotations({{"gpushm.io/gpus", "2"},
                                          {"buffers.gpushm.io/a", "{size: 60Gi, gpu: each}"},
                                          {"buffers.gpushm.io/b", "{size: 20Gi, gpu: 1}"},
                                          {"gpushm.io/pool-extra", "2Gi"}},
                                         kPod));
  EXPECT_TRUE(CheckFits(pod, 85 * kGiB, "GPU 0"));
  const auto fits = CheckFits(pod, 79 * kGiB, "the card");
  ASSERT_FALSE(fits);
  EXPECT_EQ(fits.error().what(),
            "the pod requests 85Gi of each of its 2 GPUs, as GPU 1 needs (80Gi for buffers, 2Gi "
            "for pool-extra, 3Gi for its containers and loading), and 170Gi in all (160Gi for "
            "buffers, 4Gi for pool-extra, 6Gi for its containers and loading), but the card has "
            "79Gi");
}

TEST(SizingTest, SaturatesInsteadOfWrapping) {
  PodSpec pod;
  pod.buffers.resize(4, BufferSpec{.name = "a", .size_bytes = UINT64_MAX - 5, .generations = 16});
  EXPECT_EQ(PoolBytes(pod), UINT64_MAX);
  pod.private_bytes["x"] = UINT64_MAX;
  EXPECT_EQ(NodeBytes(pod), UINT64_MAX);
  EXPECT_FALSE(CheckFits(pod, UINT64_MAX - 1, "GPU 0"));
  EXPECT_EQ(RoundUp(UINT64_MAX, 2 * kMiB), UINT64_MAX);
}

TEST(SizingTest, SaysWhatIsAskedAndWhatIsThere) {
  const auto pod = ParseAnnotations({{"buffers.gpushm.io/a", "80Gi"}}, kPod);
  EXPECT_TRUE(CheckFits(*pod, 83 * kGiB, "GPU 0"));
  const auto fits = CheckFits(*pod, 79 * kGiB, "GPU 0");
  ASSERT_FALSE(fits);
  EXPECT_EQ(fits.error().code(), Code::kExhausted);
  EXPECT_NE(fits.error().what().find("requests 83Gi"), std::string::npos);
  EXPECT_NE(fits.error().what().find("GPU 0 has 79Gi"), std::string::npos);
}

TEST(KeysTest, OurKeys) {
  for (const char* key : {"gpushm.io/a", "x.gpushm.io/a", "a.b.GPUSHM.io/", "gpushm.io"}) {
    EXPECT_TRUE(IsOurKey(key)) << key;
  }
  for (const char* key : {"", "/", "gpushm.io.evil.com/a", "gpushm.iox/a", "a/gpushm.io"}) {
    EXPECT_FALSE(IsOurKey(key)) << key;
  }
}

}  // namespace
}  // namespace gpushm::annotations
