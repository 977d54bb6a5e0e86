// Goal: what a page says about its word in device memory can only reach that word's memory. Method:
// only the ledger.
#include <gtest/gtest.h>

#include "sidecar/broker/ledger.h"

namespace gpushm::broker {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
const Client kWriter{.id = 1, .container = "app"};
const Client kWaiter{.id = 2, .container = "other"};

class LedgerWordTest : public ::testing::Test {
 protected:
  // Memory of that name, with a lease.
  Grant Make(const std::string& name, const Client& client = kWriter) {
    Policy policy;
    policy.creator = client.container;
    policy.on_writer_exit = protocol::OnWriterExit::kDrop;
    const auto ticket = ledger_.BeginCreate(client, name, 8, policy, protocol::kFlagAttach);
    EXPECT_TRUE(ticket) << ticket.error().ToString();
    return *ledger_.Commit(*ticket, Memory(), true, 0);
  }

  Ledger ledger_{{.pool_bytes = 64 * kMiB}, {LedgerGpu{}}, 1000};
};

TEST_F(LedgerWordTest, OfItsNameAndGenerationWhileSomebodyHoldsIt) {
  const Grant made = Make("ready-signal");
  const uint64_t generation = made.generation;
  ASSERT_NE(ledger_.FindWord("ready", generation), nullptr);
  EXPECT_EQ(ledger_.FindWord("ready", generation)->mapped_bytes, 2 * kMiB);
  EXPECT_EQ(ledger_.FindWord("ready", generation + 1), nullptr);
  EXPECT_EQ(ledger_.FindWord("read", generation), nullptr);
  EXPECT_EQ(ledger_.FindWord("ready-signal", generation), nullptr);
  EXPECT_EQ(ledger_.FindWord("ready", 0), nullptr);
  const auto waits =
      ledger_.Attach(kWaiter, "ready-signal", Access::kRead, generation, GpuUuid{}, 0);
  ASSERT_TRUE(waits);
  ledger_.EndClient(kWriter.id);
  EXPECT_FALSE(ledger_.StateOf("ready-signal")) << "its name goes with the writer";
  EXPECT_NE(ledger_.FindWord("ready", generation), nullptr) << "its memory with who waits";
  ASSERT_TRUE(ledger_.Detach(kWaiter, waits->lease_id));
  EXPECT_EQ(ledger_.FindWord("ready", generation), nullptr);
  EXPECT_EQ(ledger_.used_bytes(0), 0U);
}

TEST_F(LedgerWordTest, NotWhatThePodDeclares) {
  config::BufferSpec spec;
  spec.name = "ready-signal";
  spec.size_bytes = 2 * kMiB;
  const auto ticket = ledger_.BeginDeclared(spec);
  ASSERT_TRUE(ticket);
  const uint64_t generation = ledger_.Commit(*ticket, Memory(), true, 0)->generation;
  ASSERT_TRUE(ledger_.Attach(kWaiter, "ready-signal", Access::kRead, 0, GpuUuid{}, 0));
  EXPECT_EQ(ledger_.FindWord("ready", generation), nullptr);
}

TEST_F(LedgerWordTest, NotWhatAnApplicationOffers) {
  Memory memory;
  memory.size_bytes = memory.mapped_bytes = 2 * kMiB;
  const auto offered = ledger_.Offer(kWriter, "ready-signal", Policy(), &memory, 0);
  ASSERT_TRUE(offered);
  ASSERT_TRUE(ledger_.Attach(kWaiter, "ready-signal", Access::kRead, 0, GpuUuid{}, 0));
  EXPECT_EQ(ledger_.FindWord("ready", *offered), nullptr);
}

}  // namespace
}  // namespace gpushm::broker
