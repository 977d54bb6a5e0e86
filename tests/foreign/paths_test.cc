// Goal: a path of a pod's means here what it means to Kubernetes and the kubelet. Method: paths
// that the API server accepts, and where the kubelet mounts them.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "contract/annotations/annotations.h"
#include "sidecar/injector/admit.h"
#include "sidecar/injector/testing/pods.h"

namespace gpushm {
namespace {

using injector::Json;
using injector::Verdict;
using ::testing::HasSubstr;

Verdict AdmissionOfMount(const Json& mount) {
  Json pod = injector::testing::PodWith({"model"}, {{"buffers.gpushm.io/weights", "8Gi"}});
  pod["spec"]["volumes"] = {{{"name", "data"}, {"emptyDir", Json::object()}}};
  pod["spec"]["containers"][0]["volumeMounts"] = Json::array({mount});
  return injector::testing::TestAdmission().Mutate(pod);
}

// pkg/apis/core/validation: a mountPath is not empty, and each is there once, compared as text. The
// kubelet puts "/" in front of one that does not begin with it, and cleans that.
TEST(ForeignPaths, WhereAVolumeIsMounted) {
  const std::vector<std::pair<std::string, bool>> places = {
      // At our socket's folder.
      {"/run/gpushm", true},
      {"/run/gpushm/", true},
      {"//run//gpushm", true},
      {"/run/./gpushm/.", true},
      {"/run/x/../gpushm", true},
      {"/../run/gpushm", true},
      {"run/gpushm", true},
      {"./run/gpushm", true},
      {"../run/gpushm/", true},
      // Elsewhere.
      {"/run", false},
      {"/run/gpushm2", false},
      {"/run/gpushm/..", false},
      {"/data/run/gpushm", false},
      {"/foo:bar", false},
      {"data", false},
      {"/", false},
  };
  for (const auto& [path, ours] : places) {
    const Verdict verdict = AdmissionOfMount({{"name", "data"}, {"mountPath", path}});
    EXPECT_EQ(verdict.allowed, !ours) << path << ": " << verdict.message;
    if (ours) {
      EXPECT_THAT(verdict.message, HasSubstr("/run/gpushm is reserved for gpushm's socket"))
          << path;
    }
  }
}

// A subPath is relative and has no "..". Of the volume with sockets a container gets its own alone,
// whatever else Kubernetes accepts.
TEST(ForeignPaths, OfTheSocketsVolume) {
  for (const char* const other :
       {"", ".", "model/", "./model", "other", "model/../other", "..data", "/model", "MODEL"}) {
    for (const char* const key : {"subPath", "subPathExpr"}) {
      const Verdict verdict = AdmissionOfMount(
          {{"name", "gpushm"}, {"mountPath", "/run/gpushm"}, {"readOnly", true}, {key, other}});
      EXPECT_FALSE(verdict.allowed) << key << " " << other;
    }
  }
  const Verdict own = AdmissionOfMount(
      {{"name", "gpushm"}, {"mountPath", "/run/gpushm"}, {"readOnly", true}, {"subPath", "model"}});
  EXPECT_TRUE(own.allowed) << own.message;
}

// `file: <volume>/<path>`: what follows the volume is a path within it, as a subPath. Ours refuses
// what a path that somebody meant does not have.
TEST(ForeignPaths, OfFiles) {
  struct PathCase {
    std::string path;
    bool kubernetes;  // As a subPath.
    bool ours;
  };
  const std::vector<PathCase> paths = {
      {"a", true, true},
      {"a/b/c", true, true},
      {"..data/weights", true, true},  // How a Secret and a ConfigMap are mounted.
      {"..2024_01_01/weights", true, true},
      {".hidden", true, true},
      {"a..b/...", true, true},
      {"a b", true, true},
      {"a\\\\b", true, true},  // In YAML: one backslash.
      {"a:b", true, true},
      {"\xC3\xA4/b", true, true},
      {std::string(1000, 'a'), true, true},
      {"", true, true},    // The volume's root: the model that it holds.
      {"a/", true, true},  // A folder.
      {".", true, false},
      {"./a", true, false},
      {"a//b", true, false},
      {"a//", true, false},
      {"a\\nb", true, false},
      {std::string(1024, 'a'), true, false},
      {"..", false, false},
      {"../a", false, false},
      {"a/..", false, false},
      {"a/../b", false, false},
      {"/a", false, false},
  };
  for (const PathCase& one : paths) {
    EXPECT_TRUE(one.kubernetes || !one.ours) << one.path;
    const auto read = annotations::ParseAnnotations(
        {{"buffers.gpushm.io/w", "{size: 1Gi, file: \"models/" + one.path + "\"}"}});
    EXPECT_EQ(read.has_value(), one.ours)
        << one.path << (read ? "" : ": " + read.error().ToString());
  }
}

}  // namespace
}  // namespace gpushm
