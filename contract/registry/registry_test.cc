// Writer and reader together, with a real sealed segment.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <bit>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "contract/limits.h"
#include "contract/registry/name_map.h"
#include "contract/registry/reader.h"
#include "contract/registry/testing/registry.h"
#include "contract/registry/writer.h"
#include "platform/base/name.h"
#include "platform/base/testing/must.h"

namespace gpushm::registry {
namespace {

using ::gpushm::testing::Must;

TEST(Registry, InsertUpdateWithdraw) {
  RegistryWriter writer = Must(RegistryWriter::Create(8, 77));
  const auto reader = OpenReader(writer);
  EXPECT_EQ(reader->constants().generation_floor, 77u);
  EXPECT_EQ(reader->Find("weights").error().code(), Code::kNotFound);

  BufferRecord record = SomeRecord("weights", 100);
  const uint32_t slot = Must(writer.Insert(record));
  EXPECT_EQ(writer.Insert(record).error().code(), Code::kAlreadyExists);
  const Found first = Must(reader->Find("weights"));
  EXPECT_EQ(first.record, record);
  EXPECT_TRUE(reader->IsCurrent(first.ref));

  record.generation = 101;
  ASSERT_TRUE(writer.Update(slot, record));
  EXPECT_FALSE(reader->IsCurrent(first.ref));
  EXPECT_EQ(reader->Find("weights")->record, record);

  ASSERT_TRUE(writer.Withdraw(slot));
  EXPECT_EQ(reader->Find("weights").error().code(), Code::kNotFound);
  EXPECT_EQ(writer.Withdraw(slot).error().code(), Code::kNotFound);
  EXPECT_EQ(writer.Update(slot, record).error().code(), Code::kNotFound);
  EXPECT_THAT(*reader->List(), ::testing::IsEmpty());
}

TEST(Registry, ARecordHasItsReasonAndTheNextOneItsOwn) {
  Result<RegistryWriter> writer = RegistryWriter::Create(2);
  const auto reader = OpenReader(*writer);
  BufferRecord record = SomeRecord("weights", 1);
  record.state = BufferState::kLoading;
  EXPECT_EQ(writer->Insert(record, "no file d.bin").error().code(), Code::kInvalidArgument)
      << "without its code";
  record.flags = kRecordContent | 2 << kRecordReasonShift;
  for (const std::string& bad : {std::string(), std::string("a\nb"), std::string(256, 'x')}) {
    EXPECT_EQ(writer->Insert(record, bad).error().code(), Code::kInvalidArgument) << bad;
  }
  const uint32_t slot = *writer->Insert(record, "no file d.bin");
  const Found first = *reader->Find("weights");
  EXPECT_EQ(ReasonCode(first.record), 2u);
  EXPECT_EQ(reader->ReasonOf(first), "no file d.bin");
  ASSERT_TRUE(writer->Update(slot, record, "d.bin is short"));
  EXPECT_EQ(reader->ReasonOf(first), "") << "it was replaced";
  EXPECT_EQ(reader->ReasonOf(*reader->Find("weights")), "d.bin is short");
  record.flags = 0;
  ASSERT_TRUE(writer->Update(slot, record));
  EXPECT_EQ(reader->ReasonOf(*reader->Find("weights")), "");
  record.flags = 2 << kRecordReasonShift;
  ASSERT_TRUE(writer->Update(slot, record, std::string(255, 'x')));
  const Found last = *reader->Find("weights");
  EXPECT_EQ(reader->ReasonOf(last), std::string(255, 'x'));
  ASSERT_TRUE(writer->Withdraw(slot));
  EXPECT_EQ(reader->ReasonOf(last), "");
}

TEST(Registry, FullIsExhaustedAndAFreedSlotIsUsedAgain) {
  Result<RegistryWriter> writer = RegistryWriter::Create(2);
  const auto reader = OpenReader(*writer);
  ASSERT_TRUE(writer->Insert(SomeRecord("a", 1)));
  const Result<uint32_t> slot = writer->Insert(SomeRecord("b", 2));
  const Result<uint32_t> refused = writer->Insert(SomeRecord("c", 3));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kExhausted);
  EXPECT_THAT(refused.error().what(), ::testing::HasSubstr("kBuffers"));

  const Ref old = reader->Find("b")->ref;
  ASSERT_TRUE(writer->Withdraw(*slot));
  ASSERT_TRUE(writer->Insert(SomeRecord("c", 3)));
  EXPECT_FALSE(reader->IsCurrent(old)) << "the slot's version started again";
  EXPECT_EQ(reader->Find("b").error().code(), Code::kNotFound);
  EXPECT_EQ(reader->Find("c")->record.generation, 3u);
}

TEST(Registry, RetiredAndDeviceLostAreSeenAndCountAsChanges) {
  Result<RegistryWriter> writer = RegistryWriter::Create(2);
  const auto reader = OpenReader(*writer);
  uint64_t seen = reader->table_version();
  EXPECT_FALSE(reader->device_lost(0));
  writer->SetLostGpus(1);
  EXPECT_TRUE(reader->device_lost(0));
  EXPECT_FALSE(reader->device_lost(1));
  EXPECT_TRUE(reader->all_devices_lost()) << "the pod has one GPU";
  EXPECT_TRUE(reader->WaitForChange(seen, Deadline::AfterMs(0)));
  writer->SetLostGpus(1U << 15);
  EXPECT_FALSE(reader->device_lost(0));
  EXPECT_TRUE(reader->device_lost(15));
  EXPECT_FALSE(reader->device_lost(32 + 15)) << "no pod has that many";
  EXPECT_FALSE(reader->all_devices_lost());
  writer->SetGpus(2);
  writer->SetLostGpus(1);
  EXPECT_FALSE(reader->all_devices_lost());
  writer->SetLostGpus(3);
  EXPECT_TRUE(reader->all_devices_lost());
  writer->SetLostGpus(0);
  EXPECT_FALSE(reader->device_lost(0));

  seen = reader->table_version();
  EXPECT_FALSE(reader->retired());
  writer->Retire();
  EXPECT_TRUE(reader->retired());
  EXPECT_TRUE(reader->WaitForChange(seen, Deadline::AfterMs(0)));
}

// Goal: a record says how many bytes are content.
TEST(Registry, ContentOfARecord) {
  BufferRecord record = SomeRecord("weights", 1);
  const auto content = [&](BufferState state, uint64_t loaded_bytes, uint32_t flags) {
    record.state = state;
    record.loaded_bytes = loaded_bytes;
    record.flags = flags;
    return ContentBytes(record);
  };
  EXPECT_EQ(content(BufferState::kReady, 0, 0), record.size_bytes) << "nobody gave a number";
  EXPECT_EQ(content(BufferState::kWriterDied, 0, 0), record.size_bytes);
  EXPECT_EQ(content(BufferState::kReady, 0, kRecordContent), 0u);
  EXPECT_EQ(content(BufferState::kReady, 3, kRecordContent), 3u);
  EXPECT_EQ(content(BufferState::kLoading, 0, 0), 0u) << "loaded so far";
  EXPECT_EQ(content(BufferState::kFailed, 3, kRecordContent), 3u);
  EXPECT_EQ(content(BufferState::kReady, record.size_bytes + 1, kRecordContent), record.size_bytes)
      << "the rounding is not content";
}

TEST(Registry, WhatIsNoRecordIsNotPublished) {
  Result<RegistryWriter> writer = RegistryWriter::Create(2);
  const auto refuse = [&](auto spoil) {
    BufferRecord record = SomeRecord("weights", 1);
    spoil(record);
    EXPECT_EQ(writer->Insert(record).error().code(), Code::kInvalidArgument);
  };
  refuse([](auto& r) { r.name = Name("No"); });
  refuse([](auto& r) { r.name = Name("-a"); });
  refuse([](auto& r) { r.name = Name(); });
  refuse([](auto& r) { r.generation = 0; });
  refuse([](auto& r) { r.size_bytes = 0; });
  refuse([](auto& r) { r.size_bytes = r.mapped_bytes + 1; });
  refuse([](auto& r) { r.mapped_bytes = limits::kBufferBytes + 1; });
  refuse([](auto& r) { r.loaded_bytes = r.mapped_bytes + 1; });
  refuse([](auto& r) { r.transport = static_cast<Transport>(3); });
  refuse([](auto& r) { r.state = static_cast<BufferState>(0); });
  refuse([](auto& r) { r.creator = Name("a b"); });
  EXPECT_EQ(writer->table_version(), 0u);

  const Result<uint32_t> slot = writer->Insert(SomeRecord("a", 1));
  EXPECT_EQ(writer->Update(*slot, SomeRecord("b", 2)).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(OpenReader(*writer)->Find("no name").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(OpenReader(*writer)->Find(std::string(64, 'a')).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(RegistryWriter::Create(0).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(RegistryWriter::Create(kMaxSlots + 1).error().code(), Code::kInvalidArgument);
}

TEST(Registry, ARefusalShowsTheNumbersOfTheRecord) {
  BufferRecord record = SomeRecord("weights", 1);
  record.transport = static_cast<Transport>(9);
  EXPECT_THAT(EncodeRecord(record).error().ToString(),
              ::testing::HasSubstr(
                  "its transport is neither 1 (vmm) nor 2 (cuipc) (generation 1, size 1001,"));
  const auto words = FrameOf(record, kRecordWords);
  EXPECT_THAT(DecodeRecord(words).error().ToString(), ::testing::HasSubstr("transport 9"));
  EXPECT_THAT(DecodeRecord(std::span(words).first(3)).error().ToString(),
              ::testing::HasSubstr("3 words"));
}

// Goal: readers agree with a std::map after every change: readers that read often (and follow the
// change log), readers that read seldom (and scan), and new ones.
TEST(Registry, BehavesLikeAMap) {
  constexpr uint32_t kSlots = 32;
  std::mt19937 random(20261121);
  Result<RegistryWriter> writer = RegistryWriter::Create(kSlots);
  const auto often = OpenReader(*writer);
  const auto seldom = OpenReader(*writer);
  std::map<std::string, std::pair<uint32_t, uint64_t>> model;  // Name: slot, generation.

  const auto check = [&](const RegistryReader& reader, const std::string& name) {
    const auto expected = model.find(name);
    const Result<Found> found = reader.Find(name);
    ASSERT_EQ(found.has_value(), expected != model.end()) << name;
    if (!found) return;
    ASSERT_EQ(found->ref.slot, expected->second.first);
    ASSERT_EQ(found->record, SomeRecord(name, expected->second.second));
    ASSERT_TRUE(reader.IsCurrent(found->ref));
  };
  for (uint64_t step = 1; step <= 30'000 && !HasFatalFailure(); ++step) {
    const std::string name = Concat("name-", random() % 48);
    const auto at = model.find(name);
    if (at == model.end()) {
      const Result<uint32_t> slot = writer->Insert(SomeRecord(name, step));
      ASSERT_EQ(slot.has_value(), model.size() < kSlots);
      if (slot) model[name] = {*slot, step};
    } else if (random() % 2 == 0) {
      ASSERT_TRUE(writer->Update(at->second.first, SomeRecord(name, step)));
      at->second.second = step;
    } else {
      ASSERT_TRUE(writer->Withdraw(at->second.first));
      model.erase(at);
    }
    check(*often, name);
    check(*often, Concat("name-", random() % 48));
    if (random() % 1000 == 0) {
      check(*seldom, name);
      check(*OpenReader(*writer), name);
      ASSERT_EQ(often->List()->size(), model.size());
    }
  }
  EXPECT_EQ(writer->live_count(), model.size());
}

// Goal: the check of eight characters at a time agrees with the rule for names.
// Method: a valid name of every length, with every one of its bytes replaced by each relevant
// character.
TEST(Name, IsLabelIsTheRuleForNames) {
  const auto expected = [](const std::array<char, Name::kBytes>& bytes) {
    const std::string_view all(bytes.data(), bytes.size());
    const std::string_view text = all.substr(0, all.find('\0'));
    return IsDnsLabel(text) && all.find_first_not_of('\0', text.size()) == all.npos;
  };
  const std::string_view characters("\0\x01,-./0129:;@AZ[`abyz{|\x7f\x80\xad\xe1\xff", 28);
  size_t labels = 0;
  for (size_t length = 0; length <= Name::kBytes; ++length) {
    std::array<char, Name::kBytes> bytes{};
    for (size_t i = 0; i < length; ++i)
      bytes[i] = i % 5 == 2 ? '-' : static_cast<char>('a' + i % 26);
    for (size_t at = 0; at < Name::kBytes; ++at) {
      const char was = bytes[at];
      for (const char c : characters) {
        bytes[at] = c;
        const auto name = std::bit_cast<Name>(bytes);
        ASSERT_EQ(name.IsLabel(), expected(bytes))
            << "length " << length << ", byte " << at << " is " << static_cast<int>(c);
        labels += name.IsLabel() ? 1 : 0;
      }
      bytes[at] = was;
    }
  }
  EXPECT_GT(labels, 10'000u);
}

TEST(NameMap, FindsAllOfARunOfEqualHashesAfterAnyRemoval) {
  NameMap map(8);
  for (uint32_t removed = 0; removed < 8; ++removed) {
    for (uint32_t slot = 0; slot < 8; ++slot) map.Set(slot, slot % 2 == 0 ? 17 : 18);
    map.Set(removed, 0);
    for (uint32_t slot = 0; slot < 8; ++slot) {
      const auto is_slot = [&](uint32_t candidate) { return candidate == slot; };
      EXPECT_EQ(map.Find(slot % 2 == 0 ? 17 : 18, map.capacity(), is_slot), slot != removed)
          << removed << " " << slot;
    }
  }
}

// Goal: no torn record, no lost name, no data race (preset tsan) with threads as readers.
// Method: the writer replaces two buffers that always exist and moves a third one. Readers look
// them up until the writer is done.
TEST(RegistryThreads, ReadersSeeWholeRecordsOfAWriterThatNeverStops) {
  Result<RegistryWriter> writer = RegistryWriter::Create(64);
  const Result<uint32_t> left = writer->Insert(SomeRecord("left", 1));
  const Result<uint32_t> right = writer->Insert(SomeRecord("right", 1));
  const auto reader = OpenReader(*writer);
  std::atomic<bool> done = false;
  const auto read = [&] {
    uint64_t last = 0;
    uint64_t reads = 0;
    while (!done || reads == 0) {
      for (const char* name : {"left", "right", "moving", "none"}) {
        const Result<Found> found = reader->Find(name);
        if (!found) {
          const bool may_lack = *name == 'm' || *name == 'n';
          ASSERT_TRUE(found.error().code() == Code::kContended ||
                      (may_lack && found.error().code() == Code::kNotFound))
              << found.error().ToString();
          continue;
        }
        ASSERT_EQ(found->record, SomeRecord(name, found->record.generation)) << "torn";
        if (*name == 'l') {
          ASSERT_GE(found->record.generation, last) << "the generation went back";
          last = found->record.generation;
        }
        static_cast<void>(reader->IsCurrent(found->ref));
      }
      static_cast<void>(reader->List());
      static_cast<void>(reader->WaitForChange(reader->table_version(), Deadline::AfterMs(1)));
      ++reads;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(read);
  for (uint64_t generation = 2; generation < 20'000; ++generation) {
    ASSERT_TRUE(writer->Update(*left, SomeRecord("left", generation)));
    ASSERT_TRUE(writer->Update(*right, SomeRecord("right", generation)));
    const uint32_t moving = Must(writer->Insert(SomeRecord("moving", generation)));
    ASSERT_TRUE(writer->Withdraw(moving));
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(reader->Find("left")->record.generation, 19'999u);
}

// Goal: no text is torn, or from another record than the one beside it.
TEST(RegistryThreads, ReadersSeeWholeReasonsOfAWriterThatNeverStops) {
  const auto reason_of = [](uint64_t generation) {
    return std::string(1 + generation % 255, static_cast<char>('a' + generation % 26));
  };
  const auto record_of = [](uint64_t generation) {
    BufferRecord record = SomeRecord("weights", generation);
    if (generation % 3 != 0) record.flags = 2 << kRecordReasonShift;
    return record;
  };
  Result<RegistryWriter> writer = RegistryWriter::Create(2);
  const uint32_t slot = *writer->Insert(record_of(1), reason_of(1));
  const auto reader = OpenReader(*writer);
  std::atomic<bool> done = false;
  std::atomic<uint64_t> reasons = 0;
  const auto read = [&] {
    while (!done) {
      const Result<Found> found = reader->Find("weights");
      if (!found) continue;
      const std::string reason = reader->ReasonOf(*found);
      if (reason.empty()) continue;
      ASSERT_NE(ReasonCode(found->record), 0u);
      ASSERT_EQ(reason, reason_of(found->record.generation)) << "torn";
      ++reasons;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(read);
  for (uint64_t generation = 2; generation < 20'000 || reasons == 0; ++generation) {
    const bool has_one = generation % 3 != 0;
    ASSERT_TRUE(writer->Update(slot, record_of(generation), has_one ? reason_of(generation) : ""));
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(RegistryThreads, AWaiterEndsByTheChangeByTheDeadlineOrByTheSlice) {
  Result<RegistryWriter> writer = RegistryWriter::Create(2);
  const auto reader = OpenReader(*writer);
  const uint64_t seen = reader->table_version();
  EXPECT_FALSE(reader->WaitForChange(seen, Deadline::AfterMs(1)));
  const Deadline patience = Deadline::AfterMs(60'000);
  EXPECT_FALSE(reader->WaitForChange(seen, patience));
  EXPECT_GT(patience.RemainingMs(), 30'000) << "it slept longer than the slice";

  std::thread waiter([&] {
    while (!patience.Passed() && !reader->WaitForChange(seen, patience)) {
    }
  });
  ASSERT_TRUE(writer->Insert(SomeRecord("a", 1)));
  waiter.join();
  EXPECT_FALSE(patience.Passed());
}

}  // namespace
}  // namespace gpushm::registry
