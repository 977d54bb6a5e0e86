// Goal: a pod whose name is as long as Kubernetes allows, 253 bytes without a dot, works as any
// other. Method: such a name in everything that carries one.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>
#include <sys/un.h>

#include <algorithm>
#include <string>

#include "contract/protocol/messages.h"
#include "contract/registry/host_list.h"
#include "platform/base/testing.h"
#include "platform/daemon/log.h"
#include "plugin/cdi/spec_store.h"
#include "plugin/metrics/collector.h"
#include "runtime/ctl/node_view.h"
#include "sidecar/injector/admit.h"
#include "sidecar/injector/testing/pods.h"

namespace gpushm {
namespace {

using gpushm::testing::TempFolder;
using injector::Json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kPod(253, 'p');
const std::string kLabel(63, 'n');  // A namespace, container or volume.
constexpr char kGpu[] = "GPU-aaaaaaaa-0000-0000-0000-000000000001";

plugin::binding::Binding LongBinding() {
  return {.resource = plugin::binding::Resource::kMemory,
          .ids = {"m0003"},
          .gpus = {kGpu},
          .owner = {.pod = {.name_space = kLabel, .name = kPod}, .container = kLabel}};
}

TEST(LongNames, ABindingIsKeptOverAStartOfThePlugin) {
  const TempFolder folder;
  auto store = plugin::cdi::SpecStore::Open(folder / "cdi");
  ASSERT_TRUE(store) << store.error().ToString();
  const auto written = store->Write(LongBinding(), {});
  ASSERT_TRUE(written) << written.error().ToString();
  const auto again = plugin::cdi::SpecStore::Open(folder / "cdi");
  ASSERT_TRUE(again);
  const auto contents = again->ReadAll();
  ASSERT_TRUE(contents);
  EXPECT_THAT(contents->bindings, ElementsAre(LongBinding()));
  EXPECT_THAT(contents->damaged, IsEmpty());
}

plugin::metrics::NodeView LongNode() {
  plugin::metrics::NodeFacts facts;
  facts.devices.push_back({.uuid = kGpu, .parent_uuid = {}, .name = "H200", .total_bytes = 80});
  facts.gpus.push_back({.uuid = kGpu, .units = 3, .tokens = 64});
  facts.unit_bytes = 1;
  facts.bindings = {LongBinding()};
  plugin::metrics::NodeViewBuilder builder(facts);
  plugin::keeper::LinkView link;
  link.name = "m0003";
  link.gpus = {{kGpu, {}}};
  link.allocated = link.open = link.connected = true;
  builder.Add(link);
  return builder.Finish();
}

TEST(LongNames, MetricsStatusAndTopHaveTheWholeName) {
  const plugin::metrics::NodeView node = LongNode();
  plugin::metrics::Exposition page;
  plugin::metrics::WritePools(node, &page);
  EXPECT_THAT(page.Finish(), HasSubstr("pod=\"" + kPod + "\""));
  const std::string json = plugin::metrics::StatusJson(node, {});
  EXPECT_EQ(Json::parse(json)["gpus"][0]["pools"][0]["pod"], kPod);
  const auto status = status::FromJson(json);
  ASSERT_TRUE(status) << status.error().ToString();
  EXPECT_THAT(ctl::NodeText(*status, {}), HasSubstr(kLabel + "/" + kPod));
}

TEST(LongNames, ALineOfTheLogHasTheWholeName) {
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    ConfigureLog({.level = LogLevel::kInfo, .format = format});
    ::testing::internal::CaptureStderr();
    LogInfo("bound", {{"gpu", kGpu}, {"pod", kLabel + "/" + kPod}, {"container", kLabel}});
    const std::string line = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(line, HasSubstr(kLabel + "/" + kPod));
    EXPECT_EQ(std::ranges::count(line, '\n'), 1);
  }
  ConfigureLog({});
}

// What the injector makes has no pod's name in it, so none can become too long by it.
TEST(LongNames, TheInjectorsPatchIsTheSame) {
  const Json annotations = {{"buffers.gpushm.io/weights", "8Gi"}, {"gpushm.io/host-ipc", "true"}};
  Json pod = injector::testing::PodWith({kLabel}, annotations);
  pod["spec"]["hostIPC"] = true;
  const auto admission = injector::testing::TestAdmission();
  const auto usual = admission.Mutate(pod);
  ASSERT_TRUE(usual.allowed) << usual.message;
  pod["metadata"]["name"] = kPod;
  EXPECT_EQ(admission.Mutate(pod).patch, usual.patch);
  // What a Job, a ReplicaSet or a DaemonSet sends has no name yet.
  pod["metadata"].erase("name");
  pod["metadata"]["generateName"] = std::string(247, 'p') + "-";
  EXPECT_EQ(admission.Mutate(pod).patch, usual.patch);
  const auto validated = admission.Validate(pod.patch(usual.patch));
  EXPECT_TRUE(validated.allowed) << validated.message;
}

// Sockets are named after containers and uids, never after pods.
TEST(LongNames, SocketsFit) {
  constexpr size_t kMost = sizeof(sockaddr_un::sun_path) - 1;
  EXPECT_LE(std::string("/run/gpushm/").size() + kLabel.size() + 1 +
                std::string(protocol::kSocketName).size(),
            kMost);
  EXPECT_LE(std::string("/dev/shm/").size() + registry::HostSocketFile(kLabel).size(), kMost);
}

}  // namespace
}  // namespace gpushm
