// Goal: other GPUs can use a buffer of one GPU: in place if they can access it, as a copy only on
// request, and everybody can see which. Method: broker and clients as processes on a simulated
// machine. Its third GPU is reached over PCIe, its fourth not at all. A process's driver knows one
// machine, so this is a separate program.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "tests/integration/fixture.h"

namespace gpushm::integration {
namespace {

constexpr char kMachine[] = R"(gpus:
- {uuid: GPU-aaaaaaaa-0000-0000-0000-000000000000, memory: 8Gi}
- {uuid: GPU-aaaaaaaa-0000-0000-0000-000000000001, memory: 8Gi}
- {uuid: GPU-aaaaaaaa-0000-0000-0000-000000000002, memory: 8Gi, link: pcie}
- {uuid: GPU-aaaaaaaa-0000-0000-0000-000000000003, memory: 8Gi, peers: []}
)";
constexpr char kMake[] = "create weights 41943040";

class PeersTest : public IntegrationTest {
 protected:
  PeersTest() {
    std::filesystem::create_directory(folder_ + "/sim");
    std::ofstream(folder_ + "/sim/cards.yaml") << kMachine;
    broker_.emplace(run(), "64Mi", std::vector<std::string>{"--gpu", "0"});
  }
  void SetUp() override {
    const auto api = CudaApi::Load(DriverFolderFromEnvironment());
    ASSERT_TRUE(api) << api.error().ToString();
    const auto devices = ListDevices(**api);
    ASSERT_TRUE(devices) << devices.error().ToString();
    simulated_ = (*api)->simulated();
    if (simulated_) {
      ASSERT_EQ(devices->size(), 4U) << "the driver must have read the cards.yaml of this test";
    } else if (devices->size() < 2) {
      GTEST_SKIP() << "this test needs two GPUs";
    }
    const Answer made = owner_.Do(kMake);
    ASSERT_EQ(made.status, GPUSHM_OK);
    ASSERT_EQ(owner_.Do("write 4711").status, 0);
  }

  // The latest holder's way, as gpushm_list_holders reports it.
  static int64_t WayOf(Worker& worker) { return worker.Do("holder-way weights").value; }

  bool simulated_ = false;
  std::optional<Broker> broker_;
  Worker owner_{run()};
  Worker user_{run()};
};

TEST_F(PeersTest, AGpuThatIsReachedUsesTheBytesInPlace) {
  ASSERT_EQ(user_.Do("attach weights r 0 2").status, GPUSHM_OK);
  EXPECT_EQ(user_.Do("peer-way").value, GPUSHM_PEER_NVLINK);
  EXPECT_EQ(user_.Do("read-on 1").value, 4711);
  EXPECT_EQ(user_.Do("read-on 0").value, 4711)
      << "the buffer's own GPU must be able to read it, too";
  EXPECT_NE(user_.Do("read-on 2").status, 0) << "a GPU that was not requested must have no access";
  ASSERT_EQ(owner_.Do("write 4712").status, 0);
  EXPECT_EQ(user_.Do("read-on 1").value, 4712)
      << "the other GPU must see the new value, not a copy of the old one";
  EXPECT_EQ(WayOf(owner_), GPUSHM_PEER_NVLINK);
}

TEST_F(PeersTest, TheSlowestWayIsSaid) {
  if (!simulated_) GTEST_SKIP() << "this test needs the simulated machine";
  ASSERT_EQ(user_.Do("attach weights r 0 6").status, GPUSHM_OK);
  EXPECT_EQ(user_.Do("peer-way").value, GPUSHM_PEER_PCIE);
  EXPECT_EQ(user_.Do("read-on 1").value, 4711);
  EXPECT_EQ(user_.Do("read-on 2").value, 4711);
}

TEST_F(PeersTest, AnAttachmentServesTheGpusThatItWasMadeFor) {
  ASSERT_EQ(user_.Do("attach weights r 0").status, GPUSHM_OK);
  EXPECT_EQ(user_.Do("peer-way").value, GPUSHM_PEER_NONE);
  ASSERT_EQ(user_.Do("attach weights r 0 1").status, GPUSHM_OK);
  EXPECT_EQ(user_.Do("peer-way").value, GPUSHM_PEER_NONE)
      << "the buffer's own GPU must not count as a peer";
  EXPECT_EQ(owner_.Do("holders weights").value, 2)
      << "expected the owner and one attachment of the user";
  ASSERT_EQ(user_.Do("attach weights r 0 2").status, GPUSHM_OK);
  EXPECT_EQ(user_.Do("read-on 1").value, 4711);
  EXPECT_EQ(owner_.Do("holders weights").value, 3);
  ASSERT_EQ(user_.Do("attach weights r 0").status, GPUSHM_OK);
  EXPECT_EQ(user_.Do("peer-way").value, GPUSHM_PEER_NVLINK)
      << "the attachment for more GPUs must be used again";
  EXPECT_EQ(owner_.Do("holders weights").value, 3);
}

TEST_F(PeersTest, WhereThereIsNoWayItIsRefused) {
  if (!simulated_) GTEST_SKIP() << "this test needs the simulated machine";
  EXPECT_EQ(user_.Do("attach weights r 0 8").status, GPUSHM_UNSUPPORTED);
  EXPECT_EQ(user_.Do("attach weights r 0 16").status, GPUSHM_INVALID_ARGUMENT)
      << "a GPU that does not exist must be refused";
  EXPECT_EQ(owner_.Do("holders weights").value, 1) << "a refused attach must leave no lease behind";
}

TEST_F(PeersTest, ACopyIsMadeWhereItWasAskedFor) {
  if (!simulated_) GTEST_SKIP() << "this test needs the simulated machine";
  ASSERT_EQ(user_.Do("attach weights r 0 8 1").status, GPUSHM_OK);
  EXPECT_EQ(user_.Do("peer-way").value, GPUSHM_PEER_STAGED);
  EXPECT_EQ(user_.Do("read-on 3").value, 4711);
  EXPECT_EQ(WayOf(owner_), GPUSHM_PEER_STAGED);
  ASSERT_EQ(owner_.Do("write 4712").status, 0);
  EXPECT_EQ(user_.Do("read-on 3").value, 4711) << "a copy must keep the value of when it was made";
  ASSERT_EQ(user_.Do("attach weights r 0 8 1").status, GPUSHM_OK);
  EXPECT_EQ(user_.Do("read-on 3").value, 4712) << "each attach with a copy must make a new copy";
  ASSERT_EQ(user_.Do("attach weights r 0").status, GPUSHM_OK);
  EXPECT_EQ(user_.Do("peer-way").value, GPUSHM_PEER_NONE)
      << "an attach that did not ask for a copy must not get one";
  EXPECT_EQ(user_.Do("attach weights w 0 8 1").status, GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(user_.Do("attach weights r 0 12 1").status, GPUSHM_INVALID_ARGUMENT)
      << "a copy for two GPUs must be refused";
}

TEST_F(PeersTest, StagingIsNotUsedWhereThereIsAWay) {
  ASSERT_EQ(user_.Do("attach weights r 0 2 1").status, GPUSHM_OK);
  EXPECT_EQ(user_.Do("peer-way").value, GPUSHM_PEER_NVLINK);
}

}  // namespace
}  // namespace gpushm::integration
