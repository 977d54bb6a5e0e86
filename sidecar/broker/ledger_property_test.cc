// Goal: the invariants of ledger.h hold whatever many clients do in whatever order. Method: random
// calls, allowed and forbidden, and a model that knows only what the ledger answered. After each
// call, used bytes are the sum of the live allocations, each piece of memory is freed once and only
// when nobody holds it, and the replayed changes give the records. The statements for the plugin,
// replayed into another ledger, give an equal one after each call. Wherever the statements of a
// call are cut off, a buffer that has content before and after the call also has it in that ledger.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/testing.h"
#include "sidecar/broker/ledger.h"
#include "sidecar/broker/testing/keeper_model.h"

namespace gpushm::broker {
namespace {

constexpr uint64_t kPage = 2 << 20;
constexpr uint64_t kPoolPages = 24;
constexpr uint64_t kClients = 8;
#ifdef GPUSHM_SANITIZED
constexpr uint64_t kSteps = 3'000;
#else
constexpr uint64_t kSteps = 10'000;
#endif
const LedgerLimits kLimits{
    .pool_bytes = kPoolPages * kPage, .granularity = kPage, .buffers = 6, .leases = 40};

GpuUuid UuidOf(uint32_t gpu) { return GpuUuid{{7, static_cast<uint8_t>(gpu)}}; }
std::vector<LedgerGpu> Gpus(uint32_t count) {
  std::vector<LedgerGpu> gpus;
  for (uint32_t gpu = 0; gpu < count; ++gpu) gpus.push_back({.uuid = UuidOf(gpu)});
  return gpus;
}

class Player {
 public:
  Player(uint64_t seed, uint32_t gpus)
      : random_(seed), gpus_(gpus), ledger_(kLimits, Gpus(gpus), 1000) {
    ledger_.KeepJournal(&journal_);
    for (uint64_t i = 0; i < kClients; ++i) clients_.push_back(NewClient());
  }

  void Step() {
    switch (Pick(12)) {
      case 0:
        return BeginCreate();
      case 1:
        return BeginReplace();
      case 2:
      case 3:
        return FinishTicket();
      case 4:
      case 5:
        return Attach();
      case 6:
        return Detach();
      case 7:
        if (const auto lease = PickLease()) {
          [[maybe_unused]] const auto r = ledger_.Publish(lease->second.client, lease->first);
        }
        return;
      case 8: {
        [[maybe_unused]] const auto r = ledger_.Delete(PickClient(), PickName());
        return;
      }
      case 9:
        return Offer();
      case 10:
        return Content();
      default:
        return EndClient();
    }
  }

  void Check() {
    for (const Change& change : ledger_.TakeChanges()) {
      if (change.record) {
        shown_[change.name] = *change.record;
        ASSERT_EQ(change.reason.empty(), registry::ReasonCode(*change.record) == 0);
        const bool there = change.record->state == BufferState::kReady ||
                           change.record->state == BufferState::kWriterDied;
        ASSERT_TRUE(!there || change.reason.empty()) << "it has its content";
      } else {
        ASSERT_EQ(shown_.erase(change.name), 1u) << change.name << " vanished twice";
      }
    }
    std::map<std::string, registry::BufferRecord> records;
    std::set<uint64_t> current;
    for (const auto& record : ledger_.Records()) {
      records[std::string(record.name.view())] = record;
      current.insert(record.generation);
      ASSERT_EQ(registry::RecordProblem(record), nullptr);
      ASSERT_EQ(record.gpu, UuidOf(record.gpu_number).bytes);
      ASSERT_EQ(ledger_.GpuOf(std::string(record.name.view())), record.gpu_number);
    }
    ASSERT_EQ(shown_, records);

    Replay();
    for (const Memory& memory : ledger_.TakeFreed()) {
      ASSERT_EQ(alive_.erase(TagOf(memory)), 1u) << "freed twice, or never given";
      freed_.insert(TagOf(memory));
    }
    ASSERT_EQ(ledger_.lease_count(), leases_.size());
    for (uint32_t gpu = 0; gpu < gpus_; ++gpu) {
      uint64_t used = ReservedBytes(gpu);
      for (const auto& [tag, memory] : alive_) used += memory.gpu == gpu ? memory.pool_bytes : 0;
      ASSERT_EQ(ledger_.used_bytes(gpu), used);
      ASSERT_LE(used, ledger_.pool_bytes());
    }
    for (const auto& [id, lease] : leases_) {
      ASSERT_FALSE(freed_.contains(lease.tag)) << "memory was freed under lease " << id;
    }
  }

  // Ends everything. Whatever remains was lost.
  void Finish() {
    while (!tickets_.empty()) {
      FinishTicket();
      Replay();
    }
    for (Client& client : clients_) End(client);
    for (const auto& record : std::vector(ledger_.Records())) {
      const Client owner{9999, std::string(record.creator.view())};
      ASSERT_TRUE(ledger_.Delete(owner, std::string(record.name.view())));
    }
    Check();
    ASSERT_EQ(ledger_.lease_count(), 0u);
    ASSERT_EQ(ledger_.buffer_count(), 0u);
    for (uint32_t gpu = 0; gpu < gpus_; ++gpu) ASSERT_EQ(ledger_.used_bytes(gpu), 0u);
    ASSERT_TRUE(alive_.empty());
  }

  uint64_t attached() const { return attached_; }

 private:
  struct HeldLease {
    Client client;
    uint64_t tag = 0;  // Of the memory.
  };
  struct AliveMemory {
    uint32_t gpu = 0;
    uint64_t pool_bytes = 0;  // 0 if it is not part of the pool.
  };

  uint64_t Pick(uint64_t below) { return random_() % below; }
  Client NewClient() {
    Client client{next_client_++, Pick(2) == 0 ? "a" : "b"};
    keeper_.AddClient(client.id, client.container);
    return client;
  }
  Client& PickClient() { return clients_[Pick(clients_.size())]; }
  std::string PickName() { return Concat("n", Pick(8)); }
  std::optional<std::pair<uint64_t, HeldLease>> PickLease() {
    if (leases_.empty()) return std::nullopt;
    auto lease = leases_.begin();
    std::advance(lease, static_cast<std::ptrdiff_t>(Pick(leases_.size())));
    return *lease;
  }
  // A unique piece of memory. The tag is in a field that nothing else reads.
  Memory NewMemory() {
    Memory memory;
    const uint64_t tag = next_tag_++;
    std::memcpy(memory.cuipc_handle.data(), &tag, sizeof tag);
    return memory;
  }
  static uint64_t TagOf(const Memory& memory) {
    uint64_t tag = 0;
    std::memcpy(&tag, memory.cuipc_handle.data(), sizeof tag);
    return tag;
  }

  // ---- what the plugin was told, and the result
  static std::map<std::string, uint64_t> Contents(const Ledger& ledger) {
    std::map<std::string, uint64_t> contents;
    for (const auto& record : ledger.Records()) {
      contents[std::string(record.name.view())] = record.generation;
    }
    return contents;
  }
  Ledger Successor() const {
    Ledger successor(kLimits, Gpus(gpus_), 1'000'000);
    [[maybe_unused]] const auto restored = successor.Restore(keeper_.Dump(), {});
    return successor;
  }
  // Of the allocations in progress.
  uint64_t ReservedBytes(uint32_t gpu) const {
    uint64_t bytes = 0;
    for (const Ledger::Ticket& ticket : tickets_) {
      bytes += ticket.how.gpu == gpu ? ticket.mapped_bytes : 0;
    }
    return bytes;
  }
  void Replay() {
    const std::map<std::string, uint64_t> after = Contents(ledger_);
    for (const Statement& statement : journal_.Take()) {
      keeper_.Apply(statement);
      Ledger cut = Successor();
      for (uint32_t gpu = 0; gpu < gpus_; ++gpu) {
        ASSERT_LE(cut.used_bytes(gpu), cut.pool_bytes());
      }
      const auto contents = Contents(cut);
      for (const auto& [name, generation] : before_) {
        const auto then = after.find(name);
        if (then == after.end()) continue;
        const auto now = contents.find(name);
        ASSERT_TRUE(now != contents.end()) << name << " lost its content";
        ASSERT_TRUE(now->second == generation || now->second == then->second) << name;
      }
      if (ending_ == 0) continue;
      // The successor finds that the process has ended, and reaches the same state as this ledger.
      cut.EndClient(ending_);
      // Which of several writers was loading is not stated, so the successor may mark content as
      // failed that another writer is still loading.
      ASSERT_EQ(testing::LinesDiffer(cut, ledger_, /*careful=*/true), "");
    }
    if (ending_ != 0) keeper_.DropClient(ending_);
    before_ = after;
    Ledger successor = Successor();
    ASSERT_EQ(testing::LinesDiffer(successor, ledger_), "");
    for (uint32_t gpu = 0; gpu < gpus_; ++gpu) {
      ASSERT_EQ(successor.used_bytes(gpu) + ReservedBytes(gpu), ledger_.used_bytes(gpu));
    }
    ASSERT_EQ(successor.lease_count(), ledger_.lease_count());
  }

  Ledger::Making PickMaking(uint32_t gpu = 0) {
    const uint64_t choice = Pick(3);
    return {.attach = choice > 0, .unpublished = choice == 2, .gpu = gpu};
  }
  Policy PickPolicy(const Client& client) {
    Policy policy;
    policy.creator = client.container;
    policy.writers_all = Pick(2) == 0;
    policy.one_writer = Pick(2) == 0;
    policy.on_writer_exit = static_cast<protocol::OnWriterExit>(Pick(3));
    return policy;
  }

  void BeginCreate() {
    const Client& client = PickClient();
    // One more than there are.
    const auto gpu = static_cast<uint32_t>(Pick(gpus_ + 1));
    auto ticket = ledger_.BeginCreate(client, PickName(), 1 + Pick(3 * kPage), PickPolicy(client),
                                      PickMaking(gpu));
    if (!ticket) return;
    ASSERT_EQ(ticket->how.gpu, gpu);
    ASSERT_LT(gpu, gpus_);
    tickets_.push_back(*ticket);
  }
  void BeginReplace() {
    const std::string name = PickName();
    const std::optional<uint32_t> gpu = ledger_.GpuOf(name);
    auto ticket = ledger_.BeginReplace(PickClient(), name, Pick(2) * kPage, PickMaking());
    if (!ticket) return;
    ASSERT_EQ(ticket->how.gpu, gpu);
    tickets_.push_back(*ticket);
  }
  void FinishTicket() {
    if (tickets_.empty()) return;
    const size_t at = Pick(tickets_.size());
    const Ledger::Ticket ticket = tickets_[at];
    tickets_.erase(tickets_.begin() + static_cast<std::ptrdiff_t>(at));
    if (Pick(4) == 0) return ledger_.Abort(ticket);
    bool alive = false;
    for (const Client& client : clients_) alive = alive || client.id == ticket.client.id;
    Memory memory = NewMemory();
    const uint64_t tag = TagOf(memory);
    alive_[tag] = {.gpu = ticket.how.gpu, .pool_bytes = ticket.mapped_bytes};
    const auto grant = ledger_.Commit(ticket, std::move(memory), alive, 1);
    if (!grant) return;
    ASSERT_TRUE(generations_.insert(grant->generation).second) << "a generation came twice";
    ASSERT_GE(grant->generation, 1000u);
    if (grant->lease_id != 0) Remember(ticket.client, *grant);
  }
  void Remember(const Client& client, const Grant& grant) {
    ASSERT_TRUE(leases_.emplace(grant.lease_id, HeldLease{client, TagOf(*grant.memory)}).second);
  }
  void Attach() {
    const Client& client = PickClient();
    const std::string name = PickName();
    const auto sees = static_cast<uint32_t>(Pick(4 * gpus_)) / 4;
    const auto grant = ledger_.Attach(
        client, name, Pick(2) == 0 ? Access::kRead : Access::kReadWrite, 0, UuidOf(sees), 1);
    if (!grant) return;
    ASSERT_EQ(grant->memory->gpu, sees) << name;
    ++attached_;
    Remember(client, *grant);
  }
  void Detach() {
    const auto lease = PickLease();
    if (!lease) return;
    const Client& client = PickClient();  // Usually not the holder.
    const bool own = client.id == lease->second.client.id;
    const bool done = ledger_.Detach(client, lease->first).has_value();
    ASSERT_EQ(done, own);
    if (done) leases_.erase(lease->first);
  }
  void Offer() {
    const Client& client = PickClient();
    Memory memory = NewMemory();
    memory.transport = Pick(2) == 0 ? protocol::Transport::kVmm : protocol::Transport::kCuIpc;
    memory.size_bytes = memory.mapped_bytes = kPage;
    if (Pick(3) == 0) {
      memory.transport = protocol::Transport::kBlocks;
      memory.mapped_bytes = 3 * kPage;
      memory.offset = 17;
      for (int i = 0; i < 3; ++i) memory.blocks.push_back({std::move(memory.descriptor), kPage});
    }
    memory.offerer_pid = 1;
    memory.gpu = static_cast<uint32_t>(Pick(gpus_));
    const uint32_t gpu = memory.gpu;
    const uint64_t tag = TagOf(memory);
    if (!ledger_.Offer(client, PickName(), PickPolicy(client), &memory, 1)) return;
    alive_[tag] = {.gpu = gpu};
  }
  void Content() {
    if (Pick(4) == 0) {
      [[maybe_unused]] const auto r = ledger_.StateReason(
          PickClient(), PickName(),
          {.code = Code::kNotFound, .text = Concat("no file ", Pick(9)), .passes = Pick(2) == 0});
      return;
    }
    if (Pick(4) == 0) {
      const auto lease = PickLease();
      if (!lease) return;
      UniqueFd memory(open("/dev/null", O_RDONLY | O_CLOEXEC));
      [[maybe_unused]] const auto r =
          ledger_.SetDescription(lease->second.client, lease->first, &memory, 1 + Pick(1000));
      return;
    }
    if (const auto lease = PickLease()) {
      const bool complete = Pick(2) == 0;
      [[maybe_unused]] const auto r =
          ledger_.SetContent(lease->second.client, lease->first, Pick(kPage), complete,
                             complete ? Digest{{Pick(3), 0}} : Digest());
    }
  }
  void EndClient() {
    Client& client = PickClient();
    End(client);
    client = NewClient();
  }
  void End(const Client& client) {
    size_t held = 0;
    for (auto lease = leases_.begin(); lease != leases_.end();) {
      const bool own = lease->second.client.id == client.id;
      held += own ? 1 : 0;
      lease = own ? leases_.erase(lease) : std::next(lease);
    }
    ASSERT_EQ(ledger_.EndClient(client.id).leases, held);
    ending_ = client.id;
    Replay();
    ending_ = 0;
    ASSERT_FALSE(ledger_.HasLeases(client.id) && leases_.empty());
  }

  std::mt19937_64 random_;
  const uint32_t gpus_;
  Ledger ledger_;
  Journal journal_{&ledger_};
  std::vector<Client> clients_;
  std::vector<Ledger::Ticket> tickets_;
  std::map<uint64_t, HeldLease> leases_;
  std::map<std::string, registry::BufferRecord> shown_;
  std::map<uint64_t, AliveMemory> alive_;  // By tag.
  std::set<uint64_t> freed_;
  std::set<uint64_t> generations_;
  testing::KeeperModel keeper_;
  std::map<std::string, uint64_t> before_;  // Generations that had content at the last check.
  uint64_t ending_ = 0;                     // The client whose end is being stated.
  uint64_t next_client_ = 1;
  uint64_t next_tag_ = 1;
  uint64_t attached_ = 0;
};

class LedgerPropertyTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(LedgerPropertyTest, InvariantsHoldAfterEveryStep) {
  const auto gpus = static_cast<uint32_t>(1 + GetParam() % 3);
  Player player(GetParam(), gpus);
  for (uint64_t step = 0; step < kSteps; ++step) {
    player.Step();
    player.Check();
    ASSERT_FALSE(HasFatalFailure())
        << "seed " << GetParam() << ", step " << step << ", " << gpus << " GPUs";
  }
  player.Finish();
  EXPECT_GT(player.attached(), kSteps / (50 * gpus)) << "the steps are too tame";
}

const uint64_t kFirst = gpushm::testing::TestSeed(1);
INSTANTIATE_TEST_SUITE_P(Seeds, LedgerPropertyTest,
                         ::testing::Range(kFirst + static_cast<uint64_t>(gpushm::testing::Offset()),
                                          kFirst + 10,
                                          static_cast<uint64_t>(gpushm::testing::Stride())));

}  // namespace
}  // namespace gpushm::broker
