// Goal: for any pod, the patch changes only what it must; a second call has nothing to do;
// containers that others add in between stay without a GPU; the sidecar requests the same whole
// units of each GPU, as many as the fullest one needs; bytes that are not a review crash nothing.
// Method: generated pods, with fields that the injector does not know and lists that are absent,
// null or empty. Then reviews of them with values and bytes changed at random.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <regex>

#include "contract/annotations/annotations.h"
#include "platform/base/status.h"
#include "platform/base/testing.h"
#include "sidecar/injector/review.h"
#include "sidecar/injector/testing/pods.h"

namespace gpushm::injector {
namespace {

using testing::PodWith;
using testing::ReviewOf;
using testing::TestAdmission;
using testing::TestSettings;

#ifdef GPUSHM_SANITIZED
constexpr int kPods = 500;
constexpr int kMutations = 10'000;
#else
const int kPods = 3000 / gpushm::testing::Stride();
const int kMutations = 100'000 / gpushm::testing::Stride();
#endif

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(static_cast<unsigned>(seed)) {}

  size_t Below(size_t count) { return random_() % count; }
  bool Chance(size_t one_in) { return Below(one_in) == 0; }

  // A value of any type, some levels deep.
  Json Anything(int depth = 2) {
    switch (Below(depth > 0 ? 8 : 5)) {
      case 0:
        return nullptr;
      case 1:
        return Chance(2);
      case 2:
        return static_cast<int64_t>(random_()) - (int64_t{1} << 31);
      case 3:
        return static_cast<double>(random_()) / 3;
      case 4:
        return Concat("text \"", random_(), "\" \xC3\xA4\n");
      case 5: {
        Json list = Json::array();
        for (size_t i = Below(3); i > 0; --i) list.push_back(Anything(depth - 1));
        return list;
      }
      default: {
        Json object = Json::object();
        for (size_t i = Below(4); i > 0; --i) object[Concat("k/~", Below(9))] = Anything(depth - 1);
        return object;
      }
    }
  }

  Json Container(const std::string& name) {
    Json container = {{"name", name}, {"image", "app"}, {"x-unknown", Anything()}};
    if (Chance(2)) {
      container["resources"] = Chance(3) ? Json(nullptr) : Json::object();
      if (!container["resources"].is_null() && Chance(2)) {
        container["resources"]["limits"] =
            Chance(4) ? Json(nullptr) : Json{{"cpu", "1"}, {"example.com/thing", "2"}};
      }
    }
    if (Chance(2)) {
      container["volumeMounts"] = Json::array();
      if (Chance(2)) container["volumeMounts"].push_back({{"name", "v"}, {"mountPath", "/v"}});
    }
    if (Chance(3)) {
      container["env"] = Chance(3) ? Json(nullptr) : Json::array();
      if (!container["env"].is_null() && Chance(2)) {
        container["env"].push_back(
            {{"name", Chance(2) ? "CUDA_DEVICE_ORDER" : "X"}, {"value", "FASTEST_FIRST"}});
      }
    }
    return container;
  }

  Json Affinity() {
    Json terms = Json::array();
    for (size_t i = Below(3); i > 0; --i) {
      Json term = Json::object();
      for (const char* const list : {"matchExpressions", "matchFields"}) {
        if (Chance(3)) term[list] = Chance(3) ? Json(nullptr) : Json{{{"key", "k"}}};
      }
      terms.push_back(term);
    }
    Json affinity = {{"podAffinity", Anything()}};
    if (Chance(2)) affinity["nodeAffinity"] = Chance(3) ? Json(nullptr) : Json::object();
    if (Chance(2)) {
      affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
              ["nodeSelectorTerms"] = terms;
    }
    return affinity;
  }

  Json Pod() {
    Json annotations = {{"other.example/x", Concat(Below(100))}};
    const size_t gpus = Chance(2) ? 1 : 1 + Below(16);
    if (gpus > 1 || Chance(4)) annotations["gpushm.io/gpus"] = Concat(gpus);
    if (gpus > 1 && Chance(3)) annotations["gpushm.io/topology"] = "nvlink";
    if (Chance(4)) annotations["gpushm.io/exclusive"] = "true";
    for (size_t i = 1 + Below(4); i > 0; --i) {
      const std::string gpu = Chance(3) ? "each" : Concat(Below(gpus));
      annotations[Concat("buffers.gpushm.io/b", i)] =
          Chance(3)   ? Concat("{size: 3Mi, gpu: ", gpu, ", file: models/m}")
          : Chance(2) ? Concat("{size: ", 1 + Below(4000), "Mi, gpu: ", gpu, "}")
                      : Concat(1 + Below(4000), "Mi");
    }
    if (Chance(3)) annotations["signals.gpushm.io/s"] = Chance(2) ? "" : "{writers: [c0]}";
    if (Chance(3)) annotations["gpushm.io/pool-extra"] = "1Gi";
    if (Chance(3)) annotations["private.gpushm.io/c0"] = "0";
    Json pod = PodWith({}, annotations);
    pod["metadata"]["x"] = Anything();
    Json& spec = pod["spec"];
    spec["x"] = Anything();
    for (size_t i = 0, count = 1 + Below(6); i < count; ++i) {
      spec["containers"].push_back(Container(Concat("c", i)));
    }
    if (Chance(2)) {
      spec["initContainers"] = Chance(3) ? Json(nullptr) : Json::array();
      if (!spec["initContainers"].is_null()) {
        for (size_t i = 0, count = Below(4); i < count; ++i) {
          spec["initContainers"].push_back(Container(Concat("i", i)));
          if (Chance(2)) spec["initContainers"].back()["restartPolicy"] = "Always";
        }
      }
    }
    const bool files = annotations.dump().contains("models/");
    if (files) {
      spec["volumes"] = Json{{{"name", "models"}}};
    } else if (Chance(2)) {
      spec["volumes"] = Chance(4) ? Json(nullptr) : Json{{{"name", "v"}}};
    }
    if (Chance(3)) spec["hostNetwork"] = true;
    if (Chance(3)) spec["affinity"] = Affinity();
    if (Chance(2)) spec["tolerations"] = Chance(2) ? Json(nullptr) : Json{{{"key", "k"}}};
    if (Chance(2)) spec["imagePullSecrets"] = Chance(2) ? Json::array() : Json{{{"name", "ours"}}};
    if (Chance(2)) {
      spec["securityContext"] = Chance(2) ? Json(nullptr) : Json{{"fsGroup", Anything()}};
      if (!spec["securityContext"].is_null() && Chance(2)) {
        spec["securityContext"]["supplementalGroups"] = Chance(2) ? Json(nullptr) : Json{3000};
      }
    }
    if (Chance(3)) {
      pod["metadata"]["annotations"]["gpushm.io/host-ipc"] = "true";
      spec["hostIPC"] = true;
    }
    return pod;
  }

  // Changes values of a document at random places.
  void Mutate(Json* document) {
    for (size_t times = 1 + Below(3); times > 0; --times) {
      Json* at = document;
      while (at->is_structured() && !at->empty() && !Chance(9)) {
        auto child = at->begin();
        std::advance(child, Below(at->size()));
        at = &*child;
      }
      *at = Anything();
    }
  }

  std::string Garble(std::string text) {
    for (size_t times = 1 + Below(4); times > 0 && !text.empty(); --times) {
      const size_t at = Below(text.size());
      switch (Below(4)) {
        case 0:
          text[at] = static_cast<char>(random_());
          break;
        case 1:
          text.erase(at, 1 + Below(16));
          break;
        case 2:
          text.insert(at, text.substr(Below(text.size()), Below(32)));
          break;
        default:
          text.resize(Chance(4) ? at : text.size());
      }
    }
    return text;
  }

 private:
  std::mt19937 random_;
};

// By RFC 6902, `add` leaves existing values unchanged if it inserts into a list, or adds a value
// where there was none: absent or null, which is the same to the API server.
void ExpectOnlyAdditions(Json document, const Json& operations) {
  // All paths that the injector writes to.
  static const std::regex kPaths(
      "/spec/(containers|initContainers)/[0-9]+/resources(/limits(/gpushm[.]io~1attach)?)?|"
      "/spec/(containers|initContainers)/[0-9]+/(volumeMounts|env)(/-)?|"
      "/spec/affinity(/nodeAffinity(/requiredDuringSchedulingIgnoredDuringExecution"
      "(/nodeSelectorTerms(/-|/[0-9]+/matchExpressions(/-)?)?)?)?)?|"
      "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution(/-)?|"
      "/spec/(volumes|imagePullSecrets|tolerations)(/-)?|"
      "/spec/securityContext(/supplementalGroups(/-)?)?|"
      "/spec/initContainers(/[0-9]+)?|"
      "/metadata/annotations/gpushm[.]io~1status");
  for (const Json& operation : operations) {
    const auto path = operation["path"].get<std::string>();
    ASSERT_EQ(operation["op"], "add") << operation;
    ASSERT_TRUE(std::regex_match(path, kPaths)) << operation;
    const Pointer at(path);
    ASSERT_TRUE(document.at(at.parent_pointer()).is_array() || Find(document, at) == nullptr)
        << operation;
    document = document.patch(Json::array({operation}));
  }
}

uint64_t Number(const Json& resources, const char* resource) {
  const auto found = resources.find(resource);
  return found == resources.end() ? 0 : std::stoull(found->get<std::string>());
}

void ExpectTheSameOfEachGpu(const Json& pod) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  annotations::Annotations annotations;
  for (const auto& [key, value] : pod["metadata"]["annotations"].items()) {
    annotations[key] = value.get<std::string>();
  }
  annotations::ParseOptions options{.containers = std::vector<std::string>()};
  for (const Json& container : pod["spec"]["containers"]) {
    options.containers->push_back(container["name"]);
  }
  const auto spec = annotations::ParseAnnotations(annotations, options);
  ASSERT_TRUE(spec) << spec.error().ToString();
  const auto whole = [](uint64_t bytes) { return (bytes + (2 << 20) - 1) >> 21 << 21; };
  uint64_t fullest = 0;
  uint64_t loaders = 0;
  for (uint32_t gpu = 0; gpu < spec->gpus; ++gpu) {
    uint64_t bytes = 0;
    uint64_t files = 0;
    for (const annotations::BufferSpec& buffer : spec->buffers) {
      if (buffer.gpu != gpu) continue;
      bytes += whole(buffer.size_bytes);
      files += buffer.file.empty() ? 0 : 1;
    }
    fullest = std::max(fullest, bytes);
    loaders = std::max(loaders, files);
  }
  uint64_t bytes = fullest + spec->pool_extra_bytes + loaders * kGiB;
  for (const auto& [container, own] : spec->private_bytes) bytes += own;
  const Json sidecar = testing::ContainerOf(pod, "gpushm");
  for (const char* const list : {"limits", "requests"}) {
    const Json& resources = sidecar["resources"][list];
    EXPECT_EQ(Number(resources, "gpushm.io/memory"),
              spec->gpus * std::max<uint64_t>(1, (bytes + kGiB - 1) / kGiB));
    EXPECT_EQ(Number(resources, "gpushm.io/gpus"), spec->gpus > 1 ? spec->gpus : 0);
    EXPECT_EQ(Number(resources, "gpushm.io/exclusive"), spec->exclusive ? spec->gpus : 0);
    EXPECT_EQ(Number(resources, "gpushm.io/nvlink"), spec->nvlink ? 1U : 0U);
  }
}

TEST(AdmitProperty, APatchOnlyAddsAndIsDoneOnce) {
  Generator generate(gpushm::testing::TestSeed(20261121) +
                     static_cast<uint32_t>(gpushm::testing::Offset()));
  SCOPED_TRACE(gpushm::testing::StrideNote());
  Settings settings = TestSettings();
  settings.pull_secrets = {"ours"};
  settings.tolerations = {"nvidia.com/gpu"};
  settings.gpu_count_label = "nvidia.com/gpu.count";
  settings.largest_free = LargestFree::kPrefer;
  const Admission admission = TestAdmission(settings);
  for (int i = 0; i < kPods; ++i) {
    const Json pod = generate.Pod();
    const Verdict verdict = admission.Mutate(pod);
    ASSERT_TRUE(verdict.allowed) << verdict.message << pod;
    ASSERT_NO_FATAL_FAILURE(ExpectOnlyAdditions(pod, verdict.patch)) << pod;
    const std::string text = verdict.patch.dump();
    for (const char* const key :
         {"hostPath", "hostPID", "hostIPC", "hostNetwork", "shareProcessNamespace"}) {
      ASSERT_EQ(text.find(Concat("\"", key, "\"")), std::string::npos) << text;
    }
    Json after = pod.patch(verdict.patch);
    ExpectTheSameOfEachGpu(after);
    ASSERT_FALSE(HasFailure()) << after;
    ASSERT_TRUE(admission.Validate(after).allowed) << admission.Validate(after).message << after;
    ASSERT_EQ(admission.Mutate(after).outcome, "unchanged") << after;
    // Other webhooks run after this one.
    after["spec"]["containers"].push_back(generate.Container("late"));
    after["spec"]["initContainers"].push_back(generate.Container("late-init"));
    for (Json& container : after["spec"]["initContainers"]) {
      if (!container.contains("volumeMounts")) container["volumeMounts"] = Json::array();
      if (!container["volumeMounts"].is_array()) continue;
      container["volumeMounts"].push_back({{"name", "token"}, {"mountPath", "/var/run/secrets"}});
    }
    ASSERT_EQ(admission.Mutate(after).outcome, "unchanged") << after;
    ASSERT_TRUE(admission.Validate(after).allowed);
  }
}

TEST(AdmitProperty, MutatedReviewsAreAnsweredOrRefused) {
  Generator generate(gpushm::testing::TestSeed(7) +
                     static_cast<uint32_t>(gpushm::testing::Offset()));
  SCOPED_TRACE(gpushm::testing::StrideNote());
  const Admission admission = TestAdmission();
  int answered = 0;
  int refused = 0;
  for (int i = 0; i < kMutations; ++i) {
    Json review = ReviewOf(generate.Pod(), generate.Chance(5) ? "ephemeralcontainers" : "");
    if (generate.Chance(4)) {
      review["request"]["object"] = admission.Mutate(review["request"]["object"]).allowed
                                        ? testing::Injected(admission, review["request"]["object"])
                                        : review["request"]["object"];
    }
    generate.Mutate(generate.Chance(5) ? &review : &review["request"]["object"]);
    std::string body = review.dump();
    if (generate.Chance(3)) body = generate.Garble(std::move(body));
    const Endpoint endpoint = generate.Chance(2) ? Endpoint::kMutate : Endpoint::kValidate;
    const Result<Answer> answer = Review(admission, {endpoint}, body);
    answered += answer ? 1 : 0;
    refused += answer ? 0 : 1;
    if (answer) {
      ASSERT_TRUE(Json::parse(answer->body)["response"].contains("allowed")) << body;
    }
  }
  EXPECT_GT(answered, kMutations / 10);
  EXPECT_GT(refused, kMutations / 10);
}

}  // namespace
}  // namespace gpushm::injector
