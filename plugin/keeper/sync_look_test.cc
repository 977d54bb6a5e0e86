// Goal: reading a sync page shows its kind and whether its writer lives, and trusts none of its
// bytes. Method: pages as brokers and processes make them, and invalid ones.
#include "plugin/keeper/sync_look.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "platform/base/sealed_memory.h"

namespace gpushm::plugin::keeper {
namespace {

WritableSegment Sealed() {
  auto made = MakeSealed("page", sync::kPageBytes, Writers::kAll);
  EXPECT_TRUE(made) << made.error().ToString();
  return std::move(*made);
}

sync::Page PageOf(const WritableSegment& made, sync::Kind kind, uint32_t cells) {
  return sync::Page::Make(made.mapping.address(), made.mapping.bytes(), kind, cells, 0, {});
}

TEST(SyncLook, TellsWhetherTheWriterLives) {
  const WritableSegment made = Sealed();
  EXPECT_FALSE(LookAtSyncPage(made.fd)) << "its header is not written yet";
  const sync::Page page = PageOf(made, sync::Kind::kSignal, 1);
  EXPECT_EQ(LookAtSyncPage(made.fd)->kind, sync::Kind::kSignal);
  EXPECT_EQ(LookAtSyncPage(made.fd)->state, SyncState::kUnused);
  ASSERT_TRUE(sync::Claim(page.cell(0), 7, /*again=*/false));
  EXPECT_EQ(LookAtSyncPage(made.fd)->state, SyncState::kLive);
  ASSERT_TRUE(sync::EndCell(page.cell(0), 7, sync::CellState::kDied));
  EXPECT_EQ(LookAtSyncPage(made.fd)->state, SyncState::kEnded);
}

TEST(SyncLook, OneWhoEndsBreaksABarrierButNoRing) {
  for (const auto& [kind, state] : {std::pair(sync::Kind::kBarrier, SyncState::kEnded),
                                    std::pair(sync::Kind::kRing, SyncState::kLive)}) {
    const WritableSegment made = Sealed();
    const sync::Page page = PageOf(made, kind, 3);
    ASSERT_TRUE(sync::Claim(page.cell(0), 7, /*again=*/false));
    ASSERT_TRUE(sync::Claim(page.cell(1), 8, /*again=*/false));
    ASSERT_TRUE(sync::EndCell(page.cell(1), 8, sync::CellState::kLeft));
    EXPECT_EQ(LookAtSyncPage(made.fd)->state, state) << sync::KindName(kind);
  }
}

TEST(SyncLook, RubbishIsNoPage) {
  EXPECT_FALSE(LookAtSyncPage(UniqueFd()));
  const WritableSegment made = Sealed();
  std::memset(made.mapping.address(), 0xff, made.mapping.bytes());
  EXPECT_FALSE(LookAtSyncPage(made.fd));
  // A page that its maker could shrink while it is read.
  const UniqueFd unsealed(memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), sync::kPageBytes), 0);
  EXPECT_FALSE(LookAtSyncPage(unsealed));
}

}  // namespace
}  // namespace gpushm::plugin::keeper
