// Goal: a quantity means here what it means to Kubernetes, or is refused for a reason that is
// written down. Method: what the tests of Kubernetes' resource.Quantity accept, with its value.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "contract/annotations/keys.h"
#include "platform/yaml/quantity.h"
#include "runtime/ctl/parse.h"
#include "sidecar/injector/admit.h"
#include "sidecar/injector/testing/pods.h"
#include "tests/documents/documents.h"

namespace gpushm {
namespace {

using injector::Json;
using ::testing::HasSubstr;

constexpr uint64_t kKi = 1024;
constexpr uint64_t kGi = kKi * kKi * kKi;
constexpr std::optional<uint64_t> kRefused = std::nullopt;

// k8s.io/apimachinery, pkg/api/resource. `kubernetes` is its Value(), which rounds up.
struct ByteCase {
  const char* text;
  std::optional<uint64_t> kubernetes;
  const char* ours;  // Words of the refusal; empty: the same value.
  const char* ctl;   // The same of gpushmctl, which takes no sign, no exponent and no 0.
};

const std::vector<ByteCase> kCanonical = {
    {"1", 1, "", ""},
    {"1Ki", kKi, "", ""},
    {"8Ki", 8 * kKi, "", ""},
    {"7Mi", 7 * kKi* kKi, "", ""},
    {"6Gi", 6 * kGi, "", ""},
    {"5Ti", 5 * kKi* kGi, "", ""},
    {"10Ti", 10 * kKi* kGi, "", ""},
    {"8k", 8'000, "", ""},
    {"50k", 50'000, "", ""},
    {"7M", 7'000'000, "", ""},
    {"6G", 6'000'000'000, "", ""},
    {"5T", 5'000'000'000'000, "", ""},
    {"40T", 40'000'000'000'000, "", ""},
    {"0.05P", 50'000'000'000'000, "", ""},
    {"0.00001E", 10'000'000'000'000, "", ""},
    {"1e3", 1'000, "", "is not a size"},
    {"1E6", 1'000'000, "", "is not a size"},
    {"1e9", 1'000'000'000, "", "is not a size"},
    {"1E12", 1'000'000'000'000, "", "is not a size"},
    {"1e13", 10'000'000'000'000, "", "is not a size"},
    {"1.3E+6", 1'300'000, "", "is not a size"},
    {"2000E-3", 2, "", "is not a size"},
};

const std::vector<ByteCase> kOdd = {
    {"100.035k", 100'035, "", ""},
    {"10.035M", 10'035'000, "", ""},
    {"7.123456M", 7'123'456, "", ""},
    {"6.987654321G", 6'987'654'321, "", ""},
    {"0.5Mi", 512 * kKi, "", ""},
    {"1.5Gi", 1536 * kKi* kKi, "", ""},
    {"1.", 1, "", ""},
    {"5.", 5, "", ""},
    {"1.G", 1'000'000'000, "", ""},
    {"007", 7, "", ""},
    {"+1", 1, "", "is not a size"},
    {"+1.5Gi", 1536 * kKi* kKi, "", "is not a size"},
    {"0.00000000000000000000000001e26", 1, "", "is not a size"},
    {"1.00000000000000000000000000000Ki", kKi, "", ""},
    // Zero is for the caller to judge: a buffer of no bytes is refused, "0" private bytes are not.
    {"0", 0, "", "zero bytes"},
    {"0Ki", 0, "", "zero bytes"},
    {"0.0", 0, "", "zero bytes"},
    {"0e9999999999", 0, "", "is not a size"},
};

// Refused on purpose: a size that does not come out in whole bytes is a slip. Kubernetes rounds it
// up, also to the next billionth.
const std::vector<ByteCase> kFractions = {
    {"0.5", 1, "whole number of bytes", "whole number"},
    {".5", 1, "whole number of bytes", "whole number"},
    {"0.001", 1, "whole number of bytes", "whole number"},
    {"9.01", 10, "whole number of bytes", "whole number"},
    {"0.00050k", 1, "whole number of bytes", "whole number"},
    {"100.035Ki", 102'436, "whole number of bytes", "whole number"},
    {"0.05Gi", 53'687'092, "whole number of bytes", "whole number"},
    {"0.025Ti", 27'487'790'695, "whole number of bytes", "whole number"},
    {"0.5e-1", 1, "whole number of bytes", "is not a size"},
    {"1E-3", 1, "whole number of bytes", "is not a size"},
    {"0.0000000001", 1, "whole number of bytes", "whole number"},
    {"0.000000000001Ki", 1, "whole number of bytes", "whole number"},
    {"1.0000000000000000000000000000001", 2, "whole number of bytes", "whole number"},
    // 400m of memory is a well-known slip for 400Mi; whole values have a form without it.
    {"3m", 1, "fractions of a byte", "is not a size"},
    {"400m", 1, "fractions of a byte", "is not a size"},
    {"1000m", 1, "fractions of a byte", "is not a size"},
    {"4u", 1, "fractions of a byte", "is not a size"},
    {"5n", 1, "fractions of a byte", "is not a size"},
    {"3.001n", 1, "fractions of a byte", "is not a size"},
    {"0m", 0, "fractions of a byte", "is not a size"},
};

// Refused on purpose: more than a buffer may have. Kubernetes takes up to 2^63-1, and for that what
// is more where the suffix is binary.
const std::vector<ByteCase> kLarge = {
    {"64Ti", 64 * kKi* kGi, "", ""},
    {"65Ti", 65 * kKi* kGi, "too large", "more than"},
    {"100Ti", 100 * kKi* kGi, "too large", "more than"},
    {"300T", 300'000'000'000'000, "too large", "more than"},
    {"2P", 2'000'000'000'000'000, "too large", "more than"},
    {"1E", 1'000'000'000'000'000'000, "too large", "more than"},
    {"4Pi", 4 * kKi* kKi* kGi, "too large", "more than"},
    {"3Ei", 3 * kKi* kKi* kKi* kGi, "too large", "more than"},
    {"1E18", 1'000'000'000'000'000'000, "too large", "is not a size"},
    {"9Ei", INT64_MAX, "too large", "more than"},
    {"9223372036854775807Ki", INT64_MAX, "too large", "more than"},
};

// Kubernetes refuses them, negative ones where a container asks for them; or it reads them as 0
// though no digit is there (marked so).
const std::vector<ByteCase> kNone = {
    {"", kRefused, "is empty", "is not a size"},
    {"-1", kRefused, "is negative", "is not a size"},
    {"-0.5Gi", kRefused, "is negative", "is not a size"},
    {"-3.01i", kRefused, "is negative", "is not a size"},
    {"1.1.M", kRefused, "is not a quantity", "is not a size"},
    {"1+1.0M", kRefused, "is not a quantity", "is not a size"},
    {"0.1mi", kRefused, "is not a quantity", "is not a size"},
    {"0.1am", kRefused, "is not a quantity", "is not a size"},
    {"aoeu", kRefused, "is not a quantity", "is not a size"},
    {".5i", kRefused, "is not a quantity", "is not a size"},
    {"1i", kRefused, "is not a quantity", "is not a size"},
    {"1e", kRefused, "is not a quantity", "is not a size"},
    {"1E+", kRefused, "is not a quantity", "is not a size"},
    {"1e1.5", kRefused, "is not a quantity", "is not a size"},
    {"8GB", kRefused, "is not a quantity", "is not a size"},
    {"8gi", kRefused, "is not a quantity", "is not a size"},
    {"8K", kRefused, "is not a quantity", "is not a size"},
    {"1_000", kRefused, "is not a quantity", "is not a size"},
    {"1,5Gi", kRefused, "is not a quantity", "is not a size"},
    {"0x10", kRefused, "is not a quantity", "is not a size"},
    {"++1", kRefused, "is not a quantity", "is not a size"},
    {" 1", kRefused, "is not a quantity", "is not a size"},
    {"1 ", kRefused, "is not a quantity", "is not a size"},
    {"1 Gi", kRefused, "is not a quantity", "is not a size"},
    {".", 0, "is not a quantity", "is not a size"},
    {"+", 0, "is not a quantity", "is not a size"},
    {"Gi", 0, "is not a quantity", "is not a size"},
    {"e3", 0, "is not a quantity", "is not a size"},
};

TEST(ForeignQuantities, Bytes) {
  for (const auto* const table : {&kCanonical, &kOdd, &kFractions, &kLarge, &kNone}) {
    for (const ByteCase& one : *table) {
      const auto ours = yaml::ParseBytes(one.text);
      if (std::string(one.ours).empty()) {
        ASSERT_TRUE(ours) << one.text << ": " << ours.error();
        EXPECT_EQ(*ours, one.kubernetes) << one.text;
      } else {
        ASSERT_FALSE(ours) << one.text;
        EXPECT_THAT(ours.error(), HasSubstr(one.ours)) << one.text;
      }
      const auto ctl = ctl::ParseBytes(one.text);
      if (std::string(one.ctl).empty()) {
        ASSERT_TRUE(ctl) << one.text << ": " << ctl.error().ToString();
        EXPECT_EQ(*ctl, one.kubernetes) << one.text;
      } else {
        ASSERT_FALSE(ctl) << one.text;
        EXPECT_THAT(ctl.error().what(), HasSubstr(one.ctl)) << one.text;
      }
    }
  }
}

// Goal: docs/reference/annotations.schema.json refuses no quantity that the webhook takes, and
// takes none that is not one by its form. What comes of its value a pattern cannot say.
TEST(ForeignQuantities, ThePublishedSchemaSaysTheSame) {
  const Json schema = Json::parse(documents::AnnotationsSchema());
  const std::regex bytes(schema["$defs"]["quantity"]["pattern"].get<std::string>());
  for (const auto* const table : {&kCanonical, &kOdd, &kFractions, &kLarge, &kNone}) {
    for (const ByteCase& one : *table) {
      const std::string refusal = one.ours;
      const bool formed = refusal.empty() || refusal.contains("whole number of bytes") ||
                          refusal.contains("too large");
      EXPECT_EQ(std::regex_search(one.text, bytes), formed) << one.text;
    }
  }
}

// `kubernetes` is its MilliValue(), which rounds up; a thousandth is the finest that it schedules.
TEST(ForeignQuantities, Cpus) {
  struct CpuCase {
    const char* text;
    std::optional<uint64_t> kubernetes;
    const char* ours;
  };
  for (const CpuCase& one : std::vector<CpuCase>{{"0", 0, ""},
                                                 {"1", 1000, ""},
                                                 {"0.5", 500, ""},
                                                 {".5", 500, ""},
                                                 {"2.", 2000, ""},
                                                 {"+1", 1000, ""},
                                                 {"250m", 250, ""},
                                                 {"0.1", 100, ""},
                                                 {"1e-1", 100, ""},
                                                 {"1E3", 1'000'000, ""},
                                                 {"1k", 1'000'000, ""},
                                                 {"0.000001k", 1, ""},
                                                 {"1000u", 1, ""},
                                                 {"1000000n", 1, ""},
                                                 {"0.5Ki", 512'000, ""},
                                                 {"100u", 1, "thousandth"},
                                                 {"0.5m", 1, "thousandth"},
                                                 {"0.0001", 1, "thousandth"},
                                                 {"1n", 1, "thousandth"},
                                                 {"2k", 2'000'000, "too large"},
                                                 {"-1", kRefused, "is negative"},
                                                 {"1 ", kRefused, "is not a quantity"},
                                                 {"1cpu", kRefused, "is not a quantity"},
                                                 {"", kRefused, "is empty"}}) {
    const auto ours = yaml::ParseMilliCpus(one.text);
    if (std::string(one.ours).empty()) {
      ASSERT_TRUE(ours) << one.text << ": " << ours.error();
      EXPECT_EQ(*ours, one.kubernetes) << one.text;
    } else {
      ASSERT_FALSE(ours) << one.text;
      EXPECT_THAT(ours.error(), HasSubstr(one.ours)) << one.text;
    }
  }
}

// The CPU that a sidecar requests, in a pod whose container asks for this.
std::string SidecarCpuBeside(const Json& resources) {
  Json pod = injector::testing::PodWith({"model"}, {{"buffers.gpushm.io/weights", "8Gi"}});
  pod["spec"]["containers"][0]["resources"] = resources;
  const Json injected = injector::testing::Injected(injector::testing::TestAdmission(), pod);
  return injector::testing::ContainerOf(injected, "gpushm")["resources"]["requests"]["cpu"];
}

// Goal: a pod is taken for Guaranteed exactly where Kubernetes does: limits of CPU and memory above
// zero everywhere, and requests of the same value, however the two are written. Method: quantities
// that the API server leaves as they are.
TEST(ForeignQuantities, ClassesOfPods) {
  struct ClassCase {
    const char* cpu_limit;
    const char* cpu_request;
    const char* memory_limit;
    const char* memory_request;
    bool guaranteed;
  };
  for (const ClassCase& one :
       std::vector<ClassCase>{{"1", "1", "1Gi", "1Gi", true},
                              {"1", "1000m", "1Gi", "1073741824", true},
                              {"1", "999m", "1Gi", "1Gi", false},
                              {"1", "1", "1Gi", "1G", false},
                              {"1e3", "1k", "1e9", "1G", true},
                              // Finer or larger than we take from a pod's annotations.
                              {"100u", "1e-4", "1Gi", "1Gi", true},
                              {"100u", "101u", "1Gi", "1Gi", false},
                              {"2k", "2e3", "1Gi", "1Gi", true},
                              {"1", "1", "100Ti", "109951162777600", true},
                              {"1", "1", "100Ti", "109951162777601", false},
                              {"1", "1", "400m", "4e-1", true},
                              {"1", "1", "1500m", "1.5", true},
                              // Without a limit, as Kubernetes reads it.
                              {"0", "0", "1Gi", "1Gi", false},
                              {"1", "1", "0", "0", false}}) {
    const Json resources = {
        {"limits", {{"cpu", one.cpu_limit}, {"memory", one.memory_limit}}},
        {"requests", {{"cpu", one.cpu_request}, {"memory", one.memory_request}}}};
    EXPECT_EQ(SidecarCpuBeside(resources), one.guaranteed ? "500m" : "50m") << resources;
  }
}

}  // namespace
}  // namespace gpushm
