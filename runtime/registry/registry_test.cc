// Writer and reader together, over the real sealed segment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/registry/reader.h"
#include "runtime/registry/testing.h"
#include "runtime/registry/writer.h"

namespace gpushm::registry {
namespace {

TEST(Registry, InsertUpdateWithdraw) {
  Result<RegistryWriter> writer = RegistryWriter::Create(8, 77);
  ASSERT_TRUE(writer) << writer.error().ToString();
  const auto reader = OpenReader(*writer);
  EXPECT_EQ(reader->constants().generation_floor, 77u);
  EXPECT_EQ(reader->Find("weights").error().code(), Code::kNotFound);

  BufferRecord record = SomeRecord("weights", 100);
  const Result<uint32_t> slot = writer->Insert(record);
  ASSERT_TRUE(slot);
  EXPECT_EQ(writer->Insert(record).error().code(), Code::kAlreadyExists);
  const Result<Found> first = reader->Find("weights");
  ASSERT_TRUE(first) << first.error().ToString();
  EXPECT_EQ(first->record, record);
  EXPECT_TRUE(reader->IsCurrent(first->ref));

  record.generation = 101;
  ASSERT_TRUE(writer->Update(*slot, record));
  EXPECT_FALSE(reader->IsCurrent(first->ref));
  EXPECT_EQ(reader->Find("weights")->record, record);

  ASSERT_TRUE(writer->Withdraw(*slot));
  EXPECT_EQ(reader->Find("weights").error().code(), Code::kNotFound);
  EXPECT_EQ(writer->Withdraw(*slot).error().code(), Code::kNotFound);
  EXPECT_EQ(writer->Update(*slot, record).error().code(), Code::kNotFound);
  EXPECT_THAT(*reader->List(), testing::IsEmpty());
}

TEST(Registry, FullIsExhaustedAndAFreedSlotIsUsedAgain) {
  Result<RegistryWriter> writer = RegistryWriter::Create(2);
  const auto reader = OpenReader(*writer);
  ASSERT_TRUE(writer->Insert(SomeRecord("a", 1)));
  const Result<uint32_t> slot = writer->Insert(SomeRecord("b", 2));
  const Result<uint32_t> refused = writer->Insert(SomeRecord("c", 3));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kExhausted);
  EXPECT_THAT(refused.error().what(), testing::HasSubstr("kBuffers"));

  const Ref old = reader->Find("b")->ref;
  ASSERT_TRUE(writer->Withdraw(*slot));
  ASSERT_TRUE(writer->Insert(SomeRecord("c", 3)));
  EXPECT_FALSE(reader->IsCurrent(old)) << "the slot's version began anew";
  EXPECT_EQ(reader->Find("b").error().code(), Code::kNotFound);
  EXPECT_EQ(reader->Find("c")->record.generation, 3u);
}

TEST(Registry, RetiredAndDeviceLostAreSeenAndCountAsChanges) {
  Result<RegistryWriter> writer = RegistryWriter::Create(2);
  const auto reader = OpenReader(*writer);
  uint64_t seen = reader->table_version();
  EXPECT_FALSE(reader->device_lost());
  writer->SetDeviceLost(true);
  EXPECT_TRUE(reader->device_lost());
  EXPECT_TRUE(reader->WaitForChange(seen, Deadline::AfterMs(0)));
  writer->SetDeviceLost(false);
  EXPECT_FALSE(reader->device_lost());

  seen = reader->table_version();
  EXPECT_FALSE(reader->retired());
  writer->Retire();
  EXPECT_TRUE(reader->retired());
  EXPECT_TRUE(reader->WaitForChange(seen, Deadline::AfterMs(0)));
}

}  // namespace
}  // namespace gpushm::registry
