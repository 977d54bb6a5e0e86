// Goal: whatever a caller sends, the time that it takes grows no faster than its bytes, and the
// answer, which is also logged, stays short. Method: the largest bodies that the server accepts,
// each filled with one kind of thing.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "sidecar/injector/review.h"
#include "sidecar/injector/testing/pods.h"

namespace gpushm::injector {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::PodWith;
using testing::ReviewOf;
using testing::TestAdmission;

constexpr size_t kMany = 60'000;
const Json kWeights = {{"buffers.gpushm.io/weights", "8Gi"}};

std::vector<std::string> Names(const std::string& prefix, size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(Concat(prefix, i));
  return names;
}

Json Named(const std::string& prefix, size_t count) {
  Json list = Json::array();
  for (const std::string& name : Names(prefix, count)) list.push_back({{"name", name}});
  return list;
}

// As many annotations of buffers as fit, each a map with `fields`.
Json ManyBuffers(const std::string& fields, size_t count) {
  Json annotations = Json::object();
  for (size_t i = 0; i < count; ++i) {
    annotations[Concat("buffers.gpushm.io/b", i)] = Concat("{size: 1Mi, ", fields, "}");
  }
  return annotations;
}

struct Crowd {
  const char* what;
  Json pod;
  const char* denial;
};

std::vector<Crowd> Crowds() {
  Json many_init = PodWith({"model"}, {{"buffers.gpushm.io/w", "1Gi"}});
  many_init["spec"]["initContainers"] = Named("i", kMany);
  Json both = PodWith(Names("c", 600), kWeights);
  both["spec"]["initContainers"] = Named("i", 600);
  Json volumes = PodWith({"model"}, {{"buffers.gpushm.io/w", "{size: 1Gi, file: v/w}"}});
  volumes["spec"]["volumes"] = Named("v", kMany);
  return {
      {"containers", PodWith(Names("c", kMany), kWeights), "60000 containers; at most 1024"},
      {"init containers", many_init, "60001 containers; at most 1024"},
      {"both kinds of containers", both, "1200 containers; at most 1024"},
      {"volumes", volumes, "60000 volumes; at most 1024"},
  };
}

// Method: pods that are also wrong in other ways, which nothing reads.
TEST(Bounds, WhatIsTooManyIsFoundBeforeAnythingElse) {
  for (const auto& [what, pod, denial] : Crowds()) {
    Json wrong = pod;
    wrong["metadata"]["annotations"]["buffers.gpushm.io/x"] = "no size";
    wrong["spec"]["shareProcessNamespace"] = true;
    wrong["spec"]["containers"][0]["volumeMounts"] = {{{"name", "gpushm"}, {"mountPath", "/x"}}};
    for (const Verdict& verdict :
         {TestAdmission().Mutate(wrong), TestAdmission().Validate(wrong)}) {
      EXPECT_FALSE(verdict.allowed) << what;
      EXPECT_EQ(verdict.outcome, "pod") << what;
      EXPECT_THAT(verdict.message, AllOf(HasSubstr(denial), Not(HasSubstr(" | ")))) << what;
    }
  }
}

TEST(Bounds, ATooLongNameIsFoundBeforeAnythingElse) {
  const std::string name(1 << 20, 'a');
  Json volume = PodWith({"model"}, {{"buffers.gpushm.io/w", "{size: 1Gi, file: w/x}"}});
  volume["spec"]["volumes"] = {{{"name", name}}};
  Json init = PodWith({"model"}, kWeights);
  init["spec"]["initContainers"] = {{{"name", name}}};
  for (const auto& [pod, where] :
       {std::pair{PodWith({"model", name}, kWeights), "containers[1]"},
        std::pair{init, "initContainers[0]"}, std::pair{volume, "volumes[0]"}}) {
    const Verdict verdict = TestAdmission().Mutate(pod);
    EXPECT_FALSE(verdict.allowed);
    EXPECT_THAT(verdict.message, AllOf(HasSubstr(Concat("spec.", where)),
                                       HasSubstr("has 1048576 bytes; at most 63")));
  }
}

TEST(Bounds, OthersPodsMayHaveAsManyAsTheyLike) {
  for (auto& [what, pod, denial] : Crowds()) {
    pod["metadata"]["annotations"]["gpushm.io/inject"] = "false";
    EXPECT_EQ(TestAdmission().Mutate(pod).outcome, "opted-out") << what;
    pod["metadata"].erase("annotations");
    EXPECT_EQ(TestAdmission().Mutate(pod).outcome, "not-ours") << what;
  }
}

// Takes the fastest of three runs, because the others include other work of the machine.
double LeastCpuSeconds(const std::function<void()>& work) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  double least = std::numeric_limits<double>::max();
  for (int run = 0; run < 3; ++run) {
    const double start = now();
    work();
    least = std::min(least, now() - start);
  }
  return least;
}

// The widest possible pods, with the longest lists that their annotations may have.
std::vector<std::pair<const char*, Json>> WidePods() {
  std::string named;
  for (size_t i = 0; i < 100; ++i) named += Concat(i > 0 ? "," : "", "c", 923 + i);
  const auto all = Names("c", 1023);
  Json files = PodWith({"model"}, ManyBuffers("file: wrong/x", 1800));
  files["spec"]["volumes"] = Named(std::string(58, 'v'), 1024);
  Json earlier = testing::Injected(TestAdmission(), PodWith({"c0"}, kWeights));
  Json status =
      Json::parse(earlier["metadata"]["annotations"]["gpushm.io/status"].get<std::string>());
  status["applications"] = Names("", 8000);
  earlier["metadata"]["annotations"]["gpushm.io/status"] = status.dump();
  earlier["spec"]["containers"] = Named("c", 1023);
  return {
      {"many lists", PodWith(all, ManyBuffers(Concat("containers: [", named, "]"), 200))},
      {"many buffers", PodWith(all, ManyBuffers("containers: [c0]", 2000))},
      {"names of nobody", PodWith(all, ManyBuffers("containers: [x,y,z]", 1500))},
      {"files in no volume", std::move(files)},
      {"a long status", std::move(earlier)},
  };
}

// Method: compares the thread's CPU time with the time needed only to read the longest body. Before
// there were limits, a pod of this test took hundreds of times as long.
TEST(Bounds, NoPodTakesMoreThanReadingTheLongestBodies) {
  const std::string longest = ReviewOf(PodWith(Names("c", kMany), kWeights)).dump();
  ASSERT_GT(longest.size(), size_t{2} << 20);
  const double reading_s = LeastCpuSeconds([&] { EXPECT_TRUE(Json::parse(longest).is_object()); });
  const Admission admission = TestAdmission();
  const auto check = [&](const char* what, const std::string& body) {
    const double taken_s =
        LeastCpuSeconds([&] { EXPECT_TRUE(Review(admission, {Endpoint::kMutate}, body)); });
    EXPECT_LT(taken_s, 10 * reading_s) << what;
  };
  for (const auto& [what, pod, denial] : Crowds()) check(what, ReviewOf(pod).dump());
  for (const auto& [what, pod] : WidePods()) check(what, ReviewOf(pod).dump());
}

struct Echo {
  const char* what;
  std::string body;
};

std::vector<Echo> BadBodies() {
  const std::string text(4 << 20, 'a');
  const Json pod = PodWith({"model"}, kWeights);
  Json long_uid = ReviewOf(pod);
  long_uid["request"]["uid"] = text;
  Json long_kind = ReviewOf(pod);
  long_kind["kind"] = text;
  return {
      {"no JSON", text},
      {"a text without an end", Concat("\"", text)},
      {"a long number", std::string(4 << 20, '1')},
      {"bytes", std::string(4 << 20, '\xFF')},
      {"a text with a bad byte behind", Concat("{\"", text, "\x01\"}")},
      {"a long key twice wrong", Concat("{\"", text, "\" 1}")},
      {"a long uid", long_uid.dump()},
      {"another kind", long_kind.dump()},
  };
}

std::vector<Echo> BadPods() {
  const std::string text(1 << 20, 'a');
  std::vector<Echo> echoes;
  const auto add = [&](const char* what, const std::function<void(Json&)>& change) {
    Json pod = PodWith({"model"}, kWeights);
    change(pod);
    echoes.push_back({what, ReviewOf(pod).dump()});
  };
  const auto annotate = [&](const char* what, const std::string& key, const Json& value) {
    add(what, [&](Json& pod) { pod["metadata"]["annotations"][key] = value; });
  };
  annotate("a long value", "buffers.gpushm.io/x", text);
  annotate("a value of 100 KiB", "buffers.gpushm.io/x", text.substr(0, 100 << 10));
  annotate("a long key", "gpushm.io/" + text.substr(0, 100 << 10), "1");
  annotate("a long key without text", "gpushm.io/" + text, 1);
  annotate("a long status", "gpushm.io/status", text);
  annotate("a long file", "buffers.gpushm.io/x",
           "{size: 1Gi, file: x/" + text.substr(0, 4000) + "}");
  add("many bad buffers", [](Json& pod) {
    pod["metadata"]["annotations"] = ManyBuffers(std::string(100, 'x') + ": 1", 800);
  });
  add("many mounts", [&](Json& pod) {
    for (size_t i = 0; i < 20'000; ++i) {
      pod["spec"]["containers"][0]["volumeMounts"].push_back(
          {{"name", "gpushm"}, {"mountPath", Concat("/", i)}});
    }
  });
  add("many resources", [&](Json& pod) {
    for (size_t i = 0; i < 20'000; ++i) {
      pod["spec"]["containers"][0]["resources"]["limits"][Concat("nvidia.com/gpu.", i)] = 1;
    }
  });
  add("a long resource", [&](Json& pod) {
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu." + text] = 1;
  });
  add("a long name of nobody's volume", [&](Json& pod) {
    pod["spec"]["volumes"] = {{{"name", "gpushm"}, {"hostPath", {{"path", text}}}}};
  });
  add("a long system", [&](Json& pod) { pod["spec"]["os"]["name"] = text; });
  return echoes;
}

TEST(Bounds, NoAnswerRepeatsALongText) {
  std::vector<Echo> echoes = BadBodies();
  for (Echo& echo : BadPods()) echoes.push_back(std::move(echo));
  for (const Echo& echo : echoes) {
    for (const Endpoint endpoint : {Endpoint::kMutate, Endpoint::kValidate}) {
      const Result<Answer> answer = Review(TestAdmission(), {endpoint}, echo.body);
      const std::string told = answer ? answer->body : answer.error().ToString();
      EXPECT_LT(told.size(), kMostTold + 1024) << echo.what;
      EXPECT_EQ(told.find(std::string(4096, 'a')), std::string::npos) << echo.what;
    }
  }
}

// Control: the part that is cut off is not what the reader needs.
TEST(Bounds, ABadBodyIsToldByPlaceReasonAndBeginning) {
  const Result<Answer> answer = Review(TestAdmission(), {Endpoint::kMutate},
                                       Concat("{\"kind\":\n\"", std::string(4 << 20, 'a')));
  ASSERT_FALSE(answer);
  EXPECT_THAT(answer.error().what(),
              AllOf(HasSubstr("the body of 4194314 bytes cannot be read"),
                    HasSubstr("line 2, column 4194306"), HasSubstr("missing closing quote"),
                    HasSubstr("aaa...")));
  const Result<Answer> bytes = Review(TestAdmission(), {Endpoint::kMutate}, "{\"kind\": \xFF\n}");
  ASSERT_FALSE(bytes);
  EXPECT_THAT(bytes.error().what(), AllOf(HasSubstr("\\xff"), Not(HasSubstr("\xFF"))));
}

}  // namespace
}  // namespace gpushm::injector
