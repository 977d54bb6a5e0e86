#include "plugin/cdi/driver_files.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "platform/base/testing/stopping_files.h"
#include "plugin/cdi/container_paths.h"
#include "plugin/cdi/host_path.h"
#include "plugin/cdi/spec_text.h"

namespace gpushm::plugin::cdi {
namespace {

namespace fs = std::filesystem;
using gpushm::testing::TempFolder;
using gpushm::testing::WriteText;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kVersion[] = "580.65.06";
constexpr char kProgram[] = "\177ELF, and more";
const std::string kMultiarch = GPUSHM_MULTIARCH;

inventory::Device Gpu(uint32_t minor = 0) {
  return {.uuid = Concat("GPU-aaaaaaaa-0000-0000-0000-00000000000", minor),
          .parent_uuid = "",
          .name = "NVIDIA H200",
          .index = minor,
          .minor = minor,
          .total_bytes = uint64_t{141} << 30};
}

inventory::Device Instance() {
  inventory::Device device = Gpu();
  device.parent_uuid = device.uuid;
  device.uuid = "MIG-aaaaaaaa-0000-0000-0000-000000000009";
  device.gpu_instance = 3;
  device.compute_instance = 1;
  return device;
}

// The host path that is mounted there; empty if none.
std::string Mounted(const Edits& edits, const std::string& container_path) {
  for (const Mount& mount : edits.mounts) {
    if (mount.container_path == container_path) return mount.host_path;
  }
  return {};
}

std::string Node(const Edits& edits, const std::string& container_path) {
  for (const DeviceNode& node : edits.device_nodes) {
    if (node.container_path == container_path) return node.host_path;
  }
  return {};
}

// A host in a folder, as the plugin's container sees it.
class DriverFilesTest : public ::testing::Test {
 protected:
  std::string Host(const std::string& path) const { return host_.path() + path; }
  void Put(const std::string& path, const std::string& text = "x") const {
    WriteText(Host(path), text);
  }
  void Link(const std::string& path, const std::string& target) const {
    fs::create_directories(fs::path(Host(path)).parent_path());
    fs::create_symlink(target, Host(path));
  }
  void PutNodes(const std::string& dev = "/dev") const {
    for (const char* const name : {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0"}) {
      Put(dev + "/" + name);
    }
  }
  // As NVIDIA's installer leaves it.
  void PutLibraries(const std::string& folder, const std::string& version = kVersion) const {
    for (const auto& [base, number] : {std::pair{"libcuda.so", "1"},
                                       {"libnvidia-ml.so", "1"},
                                       {"libnvidia-ptxjitcompiler.so", "1"},
                                       {"libnvidia-nvvm.so", "4"}}) {
      Put(Concat(folder, "/", base, ".", version));
      fs::remove(Host(Concat(folder, "/", base, ".", number)));
      Link(Concat(folder, "/", base, ".", number), Concat(base, ".", version));
    }
    Put(Concat(folder, "/libnvidia-gpucomp.so.", version));
    Put("/sys/module/nvidia/version", version + "\n");
  }
  Result<DriverFiles> Find(const std::string& root = "auto") const {
    return FindDriver({.root = root, .host_root = host_.path(), .simulated_state = "/var/tmp/sim"});
  }
  DriverFiles Found(const std::string& root = "auto") const {
    Result<DriverFiles> driver = Find(root);
    EXPECT_TRUE(driver) << driver.error().ToString();
    return driver ? *driver : DriverFiles{};
  }
  Edits For(const DriverFiles& driver, const inventory::Device& device = Gpu(),
            ContainerRole role = ContainerRole::kApplication, const OwnFiles& own = {}) const {
    const Result<Edits> part = BindingEdits(driver, {device}, role, own);
    EXPECT_TRUE(part) << part.error().ToString();
    Edits edits = SharedEdits(driver, own);
    if (part) Merge(&edits, *part);
    return edits;
  }

  const TempFolder host_;
};

TEST_F(DriverFilesTest, LibrariesUnderTheirSonamesInBothFolders) {
  PutLibraries("/usr/lib/x86_64-linux-gnu");
  if (kMultiarch != "/usr/lib/x86_64-linux-gnu") PutLibraries(kMultiarch);
  PutNodes();
  for (const char* const name :
       {"nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}) {
    Put(Concat("/usr/bin/", name), kProgram);
  }
  const DriverFiles driver = Found();
  EXPECT_EQ(driver.kind, DriverKind::kInstalled);
  EXPECT_EQ(driver.root, "/");
  EXPECT_EQ(driver.version, kVersion);
  EXPECT_EQ(driver.library_folder, Host(kMultiarch)) << "as the plugin sees it";
  const Edits edits = For(driver);
  for (const std::string& folder : {kMultiarch, std::string("/usr/lib64")}) {
    EXPECT_EQ(Mounted(edits, folder + "/libcuda.so.1"), kMultiarch + "/libcuda.so.580.65.06");
    EXPECT_EQ(Mounted(edits, folder + "/libcuda.so"), kMultiarch + "/libcuda.so.580.65.06");
    EXPECT_NE(Mounted(edits, folder + "/libnvidia-ml.so.1"), "");
    EXPECT_NE(Mounted(edits, folder + "/libnvidia-ptxjitcompiler.so.1"), "");
    EXPECT_NE(Mounted(edits, folder + "/libnvidia-nvvm.so.4"), "");
    EXPECT_EQ(Mounted(edits, folder + "/libnvidia-gpucomp.so.580.65.06"),
              kMultiarch + "/libnvidia-gpucomp.so.580.65.06");
  }
  for (const std::string path : {"/usr/bin/nvidia-smi", "/usr/bin/nvidia-cuda-mps-control",
                                 "/usr/bin/nvidia-cuda-mps-server"}) {
    EXPECT_EQ(Mounted(edits, path), path);
  }
  EXPECT_THAT(edits.mounts, ::testing::Each(Field(&Mount::read_only, true)));
  EXPECT_EQ(edits.env.at("NVIDIA_VISIBLE_DEVICES"), "void");
  EXPECT_EQ(edits.env.at("TRITON_LIBCUDA_PATH"), "/usr/lib64");
}

TEST_F(DriverFilesTest, AProgramAndNotTheScriptThatStartsIt) {
  PutLibraries("/usr/lib64");
  PutNodes();
  Put("/usr/bin/nvidia-cuda-mps-control",
      "#!/bin/sh\nexec /usr/local/nvidia/bin/nvidia-cuda-mps-control\n");
  Put("/usr/bin/nvidia-smi", "#!/bin/sh\n");
  Put("/usr/local/nvidia/bin/nvidia-cuda-mps-control", kProgram);
  const Edits edits = For(Found());
  EXPECT_EQ(Mounted(edits, "/usr/bin/nvidia-cuda-mps-control"),
            "/usr/local/nvidia/bin/nvidia-cuda-mps-control");
  EXPECT_EQ(Mounted(edits, "/usr/bin/nvidia-smi"), "");
}

TEST_F(DriverFilesTest, NodesOfTheOneGpu) {
  PutLibraries("/usr/lib64");
  PutNodes();
  Put("/dev/nvidia1");
  const DriverFiles driver = Found();
  const Edits edits = For(driver, Gpu(1));
  EXPECT_EQ(Node(edits, "/dev/nvidia1"), "/dev/nvidia1");
  EXPECT_EQ(Node(edits, "/dev/nvidia0"), "");
  EXPECT_EQ(Node(edits, "/dev/nvidiactl"), "/dev/nvidiactl");
  EXPECT_EQ(Node(edits, "/dev/nvidia-uvm"), "/dev/nvidia-uvm");
  EXPECT_EQ(Node(edits, "/dev/nvidia-uvm-tools"), "/dev/nvidia-uvm-tools");
  const auto missing = BindingEdits(driver, {Gpu(7)}, ContainerRole::kApplication, {});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().remedy(), "create it with nvidia-modprobe -c 7");
}

TEST_F(DriverFilesTest, CapabilitiesOfAMigInstance) {
  PutLibraries("/usr/lib64");
  PutNodes();
  Put("/proc/driver/nvidia/capabilities/gpu0/mig/gi3/access",
      "DeviceFileMinor: 30\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
  Put("/proc/driver/nvidia/capabilities/gpu0/mig/gi3/ci1/access",
      "DeviceFileMinor: 32\nDeviceFileMode: 292\n");
  Put("/dev/nvidia-caps/nvidia-cap30");
  Put("/dev/nvidia-caps/nvidia-cap32");
  const DriverFiles driver = Found();
  const Edits edits = For(driver, Instance());
  EXPECT_EQ(Node(edits, "/dev/nvidia0"), "/dev/nvidia0") << "its GPU's";
  EXPECT_EQ(Node(edits, "/dev/nvidia-caps/nvidia-cap30"), "/dev/nvidia-caps/nvidia-cap30");
  EXPECT_EQ(Node(edits, "/dev/nvidia-caps/nvidia-cap32"), "/dev/nvidia-caps/nvidia-cap32");
  inventory::Device old = Instance();
  old.gpu_instance = inventory::kNoInstance;
  EXPECT_EQ(BindingEdits(driver, {old}, ContainerRole::kApplication, {}).error().code(),
            Code::kNotFound);
  fs::remove_all(Host("/proc/driver/nvidia"));
  EXPECT_FALSE(BindingEdits(driver, {Instance()}, ContainerRole::kApplication, {}));
  Put("/proc/driver/nvidia-caps/mig-minors",
      "config 1\nmonitor 2\ngpu0/gi3/access 30\ngpu0/gi3/ci1/access 32\ngpu0/gi33/access 300\n");
  EXPECT_EQ(For(driver, Instance()), edits) << "the same result from the list of all capabilities";
}

TEST_F(DriverFilesTest, OwnFilesByRole) {
  PutLibraries("/usr/lib64");
  PutNodes();
  const DriverFiles driver = Found();
  const OwnFiles own = {.library = "/var/lib/gpushm/lib/libgpushm.so.0",
                        .ctl = "/var/lib/gpushm/bin/gpushmctl",
                        .link_folder = "/var/lib/gpushm/links/m0003"};
  const Edits application = For(driver, Gpu(), ContainerRole::kApplication, own);
  EXPECT_EQ(Mounted(application, "/usr/lib64/libgpushm.so.0"), own.library);
  EXPECT_EQ(Mounted(application, kMultiarch + "/libgpushm.so.0"), own.library);
  EXPECT_EQ(Mounted(application, "/usr/bin/gpushmctl"), own.ctl);
  EXPECT_EQ(Mounted(application, "/run/gpushm-link"), "");
  const Edits sidecar = For(driver, Gpu(), ContainerRole::kSidecar, own);
  EXPECT_EQ(Mounted(sidecar, "/run/gpushm-link"), own.link_folder);
  EXPECT_EQ(sidecar.mounts.size(), application.mounts.size() + 1);
  EXPECT_EQ(Node(sidecar, "/dev/nvidia0"), "/dev/nvidia0");
  const binding::Binding binding = {
      .resource = binding::Resource::kMemory,
      .ids = {"m0003"},
      .gpus = {Gpu().uuid},
      .owner = {.pod = {.name_space = "a", .name = "b"}, .container = "c"}};
  EXPECT_TRUE(SpecText(binding, sidecar)) << "the edits can be written as a spec";
}

TEST_F(DriverFilesTest, APodOfSeveralGpusGetsTheNodesOfAll) {
  PutLibraries("/usr/lib64");
  PutNodes();
  Put("/dev/nvidia1");
  const DriverFiles driver = Found();
  const auto edits = BindingEdits(driver, {Gpu(0), Gpu(1)}, ContainerRole::kApplication, {});
  ASSERT_TRUE(edits) << edits.error().ToString();
  EXPECT_THAT(edits->device_nodes, ElementsAre(Field(&DeviceNode::host_path, "/dev/nvidia0"),
                                               Field(&DeviceNode::host_path, "/dev/nvidia1")));
}

// Goal: the part that differs between containers is small.
TEST_F(DriverFilesTest, SharedAndOwnPart) {
  PutLibraries("/usr/lib64");
  PutNodes();
  const DriverFiles driver = Found();
  const OwnFiles own = {.library = "/state/lib/libgpushm.so.0",
                        .ctl = "/state/bin/gpushmctl",
                        .link_folder = "/state/links/m0003"};
  const Edits part = *BindingEdits(driver, {Gpu()}, ContainerRole::kSidecar, own);
  EXPECT_THAT(part.env, IsEmpty());
  EXPECT_THAT(part.device_nodes, ElementsAre(Field(&DeviceNode::host_path, "/dev/nvidia0")));
  EXPECT_THAT(part.mounts, ElementsAre(Field(&Mount::container_path, "/run/gpushm-link")));
}

TEST_F(DriverFilesTest, TheRootOfADriverContainer) {
  const std::string root = "/run/nvidia/driver";
  PutLibraries(root + kMultiarch);
  // A link that is valid only inside the root.
  fs::remove(Host(root + kMultiarch + "/libnvidia-ml.so.580.65.06"));
  Put(root + "/opt/real/libnvidia-ml.so.580.65.06");
  Link(root + kMultiarch + "/libnvidia-ml.so.580.65.06", "/opt/real/libnvidia-ml.so.580.65.06");
  PutNodes(root + "/dev");
  const DriverFiles driver = Found();
  EXPECT_EQ(driver.root, root);
  EXPECT_EQ(driver.dev_folder, root + "/dev");
  const Edits edits = For(driver);
  EXPECT_EQ(Mounted(edits, "/usr/lib64/libcuda.so.1"), root + kMultiarch + "/libcuda.so.580.65.06");
  EXPECT_EQ(Mounted(edits, "/usr/lib64/libnvidia-ml.so.1"),
            root + "/opt/real/libnvidia-ml.so.580.65.06");
  EXPECT_EQ(Node(edits, "/dev/nvidia0"), root + "/dev/nvidia0");
  PutNodes();
  EXPECT_EQ(Node(For(Found()), "/dev/nvidia0"), "/dev/nvidia0")
      << "the host's own nodes have precedence";
}

TEST_F(DriverFilesTest, TheFolderOfAnInstallerSuchAsGkes) {
  const std::string root = "/usr/local/nvidia";
  PutLibraries(root + "/lib64");
  Put(root + "/bin/nvidia-smi", kProgram);
  PutNodes();
  const DriverFiles driver = Found();
  EXPECT_EQ(driver.root, root);
  EXPECT_EQ(Mounted(For(driver), "/usr/bin/nvidia-smi"), root + "/bin/nvidia-smi");
  EXPECT_EQ(Mounted(For(driver), "/usr/lib64/libcuda.so.1"), root + "/lib64/libcuda.so.580.65.06");
  EXPECT_EQ(Found(root).root, root) << "named";
}

TEST_F(DriverFilesTest, LibrariesThatDoNotFitTheKernelModuleArePassedOver) {
  PutLibraries("/usr/lib64", "535.10.01");
  PutNodes();
  PutLibraries("/run/nvidia/driver/usr/lib64");
  const DriverFiles driver = Found();
  EXPECT_EQ(driver.root, "/run/nvidia/driver");
  EXPECT_THAT(driver.passed_over, Contains(HasSubstr("535.10.01 does not match")));
  const auto named = Find("/");
  ASSERT_FALSE(named);
  EXPECT_EQ(named.error().remedy(), "reboot the node after a driver upgrade");
}

// Goal: after an upgrade in place, the file of the loaded version is used, not the one to which an
// old link points.
TEST_F(DriverFilesTest, TheLoadedVersionGoesBeforeTheLink) {
  PutLibraries("/usr/lib64", "580.65.06");
  PutLibraries("/usr/lib64", "590.10");
  Put("/sys/module/nvidia/version", "580.65.06\n");
  PutNodes();
  EXPECT_EQ(Mounted(For(Found()), "/usr/lib64/libcuda.so.1"), "/usr/lib64/libcuda.so.580.65.06");
}

TEST_F(DriverFilesTest, SaysWhatIsMissing) {
  const auto nothing = Find();
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().code(), Code::kNotFound);
  EXPECT_THAT(nothing.error().what(), HasSubstr("no GPU driver"));
  PutLibraries("/usr/lib64");
  if (!Exists("/dev/nvidiactl")) {
    EXPECT_THAT(Find().error().ToString(), HasSubstr("nvidia-modprobe -c 0"));
  }
  Put("/dev/nvidiactl");
  EXPECT_THAT(Find().error().ToString(), HasSubstr("nvidia-modprobe -u -c 0"));
  PutNodes();
  fs::remove(Host("/usr/lib64/libnvidia-ml.so.1"));
  fs::remove(Host("/usr/lib64/libnvidia-ml.so.580.65.06"));
  EXPECT_THAT(Find().error().ToString(), HasSubstr("libnvidia-ml.so.1"));
  EXPECT_EQ(Find("relative/path").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(Find("/nowhere").error().code(), Code::kNotFound);
}

TEST_F(DriverFilesTest, TheSimulatedDriver) {
  Put("/opt/sim/libcuda.so.1",
      std::string((size_t{1} << 20) - 7, 'x') + "gpushm_sim_version" + "more");
  Put("/opt/sim/libnvidia-ml.so.1");
  Put("/opt/sim/nvidia-cuda-mps-control", kProgram);
  const DriverFiles driver = Found("/opt/sim");
  EXPECT_EQ(driver.kind, DriverKind::kSimulated);
  EXPECT_EQ(driver.library_folder, Host("/opt/sim"));
  const Edits edits = For(driver, Instance());
  EXPECT_EQ(Mounted(edits, kMultiarch + "/libcuda.so.1"), "/opt/sim/libcuda.so.1");
  EXPECT_EQ(Mounted(edits, "/usr/lib64/libnvidia-ml.so.1"), "/opt/sim/libnvidia-ml.so.1");
  EXPECT_EQ(Mounted(edits, "/usr/bin/nvidia-cuda-mps-control"), "/opt/sim/nvidia-cuda-mps-control");
  EXPECT_THAT(edits.mounts, Contains(Mount{.host_path = "/var/tmp/sim",
                                           .container_path = "/var/tmp/sim",
                                           .read_only = false}));
  EXPECT_EQ(edits.env.at("GPUSHM_SIM_DIR"), "/var/tmp/sim");
  EXPECT_EQ(edits.env.at("GPUSHM_SIM_DEVICES"), Instance().uuid);
  EXPECT_EQ(BindingEdits(driver, {Gpu(0), Gpu(1)}, ContainerRole::kApplication, {})
                ->env.at("GPUSHM_SIM_DEVICES"),
            Concat(Gpu(0).uuid, ",", Gpu(1).uuid));
  EXPECT_THAT(edits.device_nodes, IsEmpty());
}

// Goal: the marker is present in what is built. Method: the build's own simulated driver.
TEST_F(DriverFilesTest, TheSimulatedDriverOfThisBuild) {
  const char* const folder = std::getenv("GPUSHM_DRIVER");
  ASSERT_NE(folder, nullptr) << "ctest must set it";
  const auto driver = FindDriver({.root = folder, .host_root = ""});
  ASSERT_TRUE(driver) << driver.error().ToString();
  EXPECT_EQ(driver->kind, DriverKind::kSimulated);
}

constexpr char kSpecText[] = R"(---
cdiVersion: 0.7.0
kind: nvidia.com/gpu
devices:
    - name: "0"
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
        additionalGids:
            - 44
    - name: MIG-aaaaaaaa-0000-0000-0000-000000000009
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
            - path: /dev/nvidia-caps/nvidia-cap30
containerEdits:
    env:
        - NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64
        - NVIDIA_VISIBLE_DEVICES=void
    deviceNodes:
        - path: /dev/nvidiactl
          hostPath: /dev/nvidiactl
          permissions: rw
    hooks:
        - hookName: createContainer
          path: /usr/bin/nvidia-cdi-hook
          args:
            - nvidia-cdi-hook
            - update-ldcache
            - --folder
            - /usr/lib64
          env:
            - NVIDIA_CTK_DEBUG=false
    mounts:
        - hostPath: /usr/lib64/libcuda.so.580.65.06
          containerPath: /usr/lib64/libcuda.so.580.65.06
          options:
            - ro
            - nosuid
            - nodev
            - rbind
            - rprivate
        - hostPath: /run/nvidia-persistenced/socket
          containerPath: /run/nvidia-persistenced/socket
          options:
            - nosuid
            - rbind
)";

TEST_F(DriverFilesTest, NvidiasOwnSpec) {
  PutLibraries("/usr/lib64");
  PutNodes();
  Put("/usr/bin/nvidia-cdi-hook");
  Put("/run/nvidia-persistenced/socket");
  Put("/etc/cdi/nvidia.yaml", kSpecText);
  const DriverFiles driver = Found();
  EXPECT_EQ(driver.kind, DriverKind::kNvidiaSpec);
  EXPECT_EQ(driver.version, kVersion);
  EXPECT_EQ(driver.library_folder, Host("/usr/lib64"));
  const Edits edits = For(driver);
  EXPECT_EQ(Node(edits, "/dev/nvidia0"), "/dev/nvidia0");
  EXPECT_EQ(Mounted(edits, "/usr/lib64/libcuda.so.580.65.06"), "/usr/lib64/libcuda.so.580.65.06");
  EXPECT_THAT(edits.mounts,
              Contains(AllOf(Field(&Mount::container_path, "/run/nvidia-persistenced/socket"),
                             Field(&Mount::read_only, false))));
  ASSERT_EQ(edits.hooks.size(), 1u);
  EXPECT_EQ(edits.hooks[0].name, "createContainer");
  EXPECT_EQ(edits.hooks[0].path, "/usr/bin/nvidia-cdi-hook");
  EXPECT_THAT(edits.hooks[0].args,
              ElementsAre("nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib64"));
  EXPECT_THAT(edits.additional_gids, ElementsAre(44));
  EXPECT_EQ(edits.env.at("NVIDIA_CTK_LIBCUDA_DIR"), "/usr/lib64");
  const Edits instance = For(driver, Instance());
  EXPECT_EQ(Node(instance, "/dev/nvidia-caps/nvidia-cap30"), "/dev/nvidia-caps/nvidia-cap30");
  Put("/dev/nvidia1");
  EXPECT_EQ(Node(For(driver, Gpu(1)), "/dev/nvidia1"), "/dev/nvidia1")
      << "a GPU that is not in the spec";
}

TEST_F(DriverFilesTest, ASpecThatIsLeftOverIsPassedOver) {
  PutLibraries("/usr/lib64");
  PutNodes();
  Put("/etc/cdi/nvidia.yaml", kSpecText);
  Put("/var/run/cdi/nvidia.json", R"({"cdiVersion":"0.5.0","kind":"vendor.com/other"})");
  Put("/var/run/cdi/nvidia.yaml", "kind: [");
  const DriverFiles driver = Found();
  EXPECT_EQ(driver.kind, DriverKind::kInstalled);
  EXPECT_THAT(driver.passed_over,
              ElementsAre(HasSubstr("/var/run/cdi/nvidia.yaml"), HasSubstr("vendor.com/other"),
                          HasSubstr("socket, which does not exist")));
}

TEST_F(DriverFilesTest, ASpecAsJson) {
  PutNodes();
  Put("/usr/lib64/libcuda.so.580.65.06");
  Put("/sys/module/nvidia/version", "580.65.06\n");
  Put("/opt/spec.json",
      R"({"cdiVersion":"0.7.0","kind":"nvidia.com/gpu","containerEdits":{"deviceNodes":
      [{"path":"/dev/nvidiactl"}],"mounts":[{"hostPath":"/usr/lib64/libcuda.so.580.65.06",
      "containerPath":"/usr/lib64/libcuda.so.1","options":["ro"]}]},"devices":[{"name":"gpu0",
      "containerEdits":{"additionalGids":[0,44],"deviceNodes":[{"path":"/dev/nvidia0"}]}}]})");
  const Edits edits = For(Found("/opt/spec.json"));
  EXPECT_EQ(Node(edits, "/dev/nvidia0"), "/dev/nvidia0");
  EXPECT_THAT(edits.additional_gids, ElementsAre(44));
  Put("/sys/module/nvidia/version", "590.10\n");
  EXPECT_THAT(Find("/opt/spec.json").error().what(), HasSubstr("590.10"));
  Put("/opt/spec.json",
      R"({"kind":"nvidia.com/gpu","containerEdits":{"deviceNodes":[{"path":""}]},"devices":[]})");
  EXPECT_EQ(Find("/opt/spec.json").error().code(), Code::kCorrupt);
  Put("/opt/spec.json",
      R"({"kind":"nvidia.com/gpu","containerEdits":{"mounts":[{"hostPath":"tmpfs",
      "containerPath":"/x","type":"tmpfs"}]},"devices":[]})");
  EXPECT_EQ(Find("/opt/spec.json").error().code(), Code::kUnsupported);
}

TEST_F(DriverFilesTest, LinksOfTheHostAreFollowedInsideOfIt) {
  Put("/real/file");
  Link("/a", "/real");
  Link("/b", "a/../a/file");
  Link("/circle", "circle");
  Link("/out", "../../../../real/file");
  EXPECT_EQ(ResolveIn(host_.path(), "/a/file"), "/real/file");
  EXPECT_EQ(ResolveIn(host_.path(), "/b"), "/real/file");
  EXPECT_EQ(ResolveIn(host_.path(), "/out"), "/real/file");
  EXPECT_EQ(ResolveIn(host_.path(), "/./real//"), "/real");
  EXPECT_EQ(ResolveIn(host_.path(), "/"), "/");
  EXPECT_EQ(ResolveIn(host_.path(), "/circle"), std::nullopt);
  EXPECT_EQ(ResolveIn(host_.path(), "/none"), std::nullopt);
}

TEST(Edits, MergeTakesTheLaterOne) {
  Edits edits = {.env = {{"A", "1"}, {"B", "1"}},
                 .device_nodes = {{.host_path = "/dev/x", .container_path = "/dev/x"}},
                 .mounts = {{.host_path = "/old", .container_path = "/m"}},
                 .hooks = {},
                 .additional_gids = {44}};
  Merge(&edits, {.env = {{"B", "2"}},
                 .device_nodes = {},
                 .mounts = {{.host_path = "/new", .container_path = "/m"}},
                 .hooks = {{.name = "createContainer", .path = "/h", .args = {}, .env = {}}},
                 .additional_gids = {44, 45}});
  EXPECT_EQ(edits.env.at("A"), "1");
  EXPECT_EQ(edits.env.at("B"), "2");
  EXPECT_THAT(edits.mounts, ElementsAre(Mount{.host_path = "/new", .container_path = "/m"}));
  EXPECT_EQ(edits.hooks.size(), 1u);
  EXPECT_THAT(edits.additional_gids, ElementsAre(44, 45));
}

}  // namespace
}  // namespace gpushm::plugin::cdi
