// Goal: for any pod, the patch changes what it is for and nothing else; a second call has nothing
// to do; whatever others add in between stays without a GPU; bytes that are no review crash
// nothing. Method: generated pods, with fields that the injector does not know, lists that are
// absent, null or empty; then reviews of them with values and bytes changed at random.
#include <gtest/gtest.h>

#include <random>

#include "runtime/base/status.h"
#include "runtime/base/testing.h"
#include "sidecar/injector/review.h"
#include "sidecar/injector/testing/pods.h"

namespace gpushm::injector {
namespace {

using testing::PodWith;
using testing::ReviewOf;
using testing::TestAdmission;

#ifdef GPUSHM_SANITIZED
constexpr int kPods = 500;
constexpr int kMutations = 10'000;
#else
constexpr int kPods = 3000;
constexpr int kMutations = 100'000;
#endif

class Generator {
 public:
  explicit Generator(unsigned seed) : random_(seed) {}

  size_t Below(size_t count) { return random_() % count; }
  bool Chance(size_t one_in) { return Below(one_in) == 0; }

  // Of any type, some levels deep.
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
    return container;
  }

  Json Pod() {
    Json annotations = {{"other.example/x", Concat(Below(100))}};
    for (size_t i = 1 + Below(4); i > 0; --i) {
      annotations[Concat("buffers.gpushm.io/b", i)] =
          Chance(3) ? "{size: 3Mi, loads: true}" : Concat(1 + Below(4000), "Mi");
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
    if (Chance(2)) spec["volumes"] = Chance(4) ? Json(nullptr) : Json{{{"name", "v"}}};
    if (Chance(3)) spec["hostNetwork"] = true;
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

// Whether all of `before` is in `after`, where it was; `shifted` is the list that got a new head.
bool Keeps(const Json& before, const Json& after, bool shifted = false) {
  if (before.is_null()) return true;  // As good as absent.
  if (before.is_object()) {
    if (!after.is_object()) return false;
    for (const auto& [key, value] : before.items()) {
      if (value.is_null()) continue;
      if (!after.contains(key) || !Keeps(value, after[key], key == "initContainers")) return false;
    }
    return true;
  }
  if (before.is_array() && after.is_array()) {
    const size_t from = shifted ? 1 : 0;
    if (after.size() < before.size() + from) return false;
    for (size_t i = 0; i < before.size(); ++i) {
      if (!Keeps(before[i], after[i + from])) return false;
    }
    return true;
  }
  return before == after;
}

TEST(AdmitProperty, APatchKeepsAllThatWasThereAndIsDoneOnce) {
  Generator generate(gpushm::testing::TestSeed(20261121));
  for (int i = 0; i < kPods; ++i) {
    const Json pod = generate.Pod();
    const Admission admission = TestAdmission();
    const Verdict verdict = admission.Mutate(pod);
    ASSERT_TRUE(verdict.allowed) << verdict.message << pod;
    Json after = pod.patch(verdict.patch);
    ASSERT_TRUE(Keeps(pod, after)) << pod << after;
    ASSERT_TRUE(admission.Validate(after).allowed) << admission.Validate(after).message << after;
    ASSERT_EQ(admission.Mutate(after).outcome, "unchanged") << after;
    // Others come after us.
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
  Generator generate(gpushm::testing::TestSeed(7));
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
    const Result<Answer> answer = Review(admission, endpoint, body);
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
