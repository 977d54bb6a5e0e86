// The memfd and its header: who can change it, what is refused, and layouts of other versions.
#include "contract/registry/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "contract/registry/reader.h"
#include "contract/registry/segment_writer.h"
#include "contract/registry/testing/registry.h"

namespace gpushm::registry {
namespace {

constexpr int kAllSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;

UniqueFd Duplicate(int fd) { return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

// Goal: no process that received the segment, root included, can write, resize or unseal it.
TEST(SealedSegment, CannotBeWrittenOrResizedByAnybody) {
  Result<RegistryWriter> writer = RegistryWriter::Create(4);
  ASSERT_TRUE(writer->Insert(SomeRecord("a", 1)));
  struct stat before{};
  ASSERT_EQ(fstat(writer->fd(), &before), 0);
  const auto size = static_cast<size_t>(before.st_size);

  const UniqueFd reopened(open(Concat("/proc/self/fd/", writer->fd()).c_str(), O_RDWR | O_CLOEXEC));
  for (const int fd : {writer->fd(), reopened.get()}) {
    if (fd < 0) continue;  // Refused already: not root, or not the owner.
    EXPECT_EQ(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    EXPECT_EQ(pwrite(fd, "x", 1, 0), -1);
    EXPECT_EQ(errno, EPERM);
    EXPECT_EQ(ftruncate(fd, 0), -1);
    EXPECT_EQ(ftruncate(fd, before.st_size * 2), -1);
    EXPECT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, before.st_size), -1);
    EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    void* view = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    ASSERT_NE(view, MAP_FAILED);
    const Mapping owner(view, size);
    EXPECT_EQ(mprotect(view, size, PROT_READ | PROT_WRITE), -1);
  }
  ASSERT_TRUE(writer->Insert(SomeRecord("b", 2)))
      << "the writer's own mapping must still be writable";
  EXPECT_TRUE(OpenReader(*writer)->Find("b"));
}

TEST(SealedSegment, EveryMissingSealIsRefused) {
  for (const int missing : {F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE}) {
    const HeaderConstants constants = *NewHeaderConstants(4, 0);
    const auto bytes = static_cast<off_t>(SegmentBytes(constants));
    UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(ftruncate(fd.get(), bytes), 0);
    ASSERT_EQ(fallocate(fd.get(), 0, 0, bytes), 0);
    ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, kAllSeals & ~missing), 0);
    EXPECT_EQ(RegistryReader::Open(std::move(fd)).error().code(), Code::kCorrupt) << missing;
  }
}

TEST(SealedSegment, WhatIsNoSegmentIsRefused) {
  EXPECT_FALSE(RegistryReader::Open(UniqueFd()));
  EXPECT_FALSE(RegistryReader::Open(UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC))));
  EXPECT_FALSE(RegistryReader::Open(UniqueFd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC))));

  const Result<WritableSegment> zeros = MakeSealedSegment(65536);
  EXPECT_EQ(RegistryReader::Open(Duplicate(zeros->fd.get())).error().code(), Code::kCorrupt);
  const Result<WritableSegment> tiny = MakeSealedSegment(100);
  EXPECT_EQ(RegistryReader::Open(Duplicate(tiny->fd.get())).error().code(), Code::kCorrupt);

  UniqueFd sparse(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(sparse.get(), 65536), 0);
  ASSERT_EQ(fcntl(sparse.get(), F_ADD_SEALS, kAllSeals), 0);
  EXPECT_EQ(RegistryReader::Open(std::move(sparse)).error().code(), Code::kCorrupt);
}

TEST(SealedSegment, ASizeThatIsNotTheHeadersIsRefused) {
  const HeaderConstants constants = *NewHeaderConstants(4, 0);
  for (const int64_t difference : {-64, 64, 4096}) {
    const Result<WritableSegment> segment =
        MakeSealedSegment(SegmentBytes(constants) + static_cast<uint64_t>(difference));
    const SegmentWriter writer(segment->mapping.address(), constants);
    EXPECT_EQ(RegistryReader::Open(Duplicate(segment->fd.get())).error().code(), Code::kCorrupt)
        << difference;
  }
}

Code OpenWithHeader(const HeaderConstants& constants) {
  const Result<WritableSegment> segment = MakeSealedSegment(256 * 1024);
  const SegmentWriter writer(segment->mapping.address(), constants);
  const auto reader = RegistryReader::Open(Duplicate(segment->fd.get()));
  return reader ? Code::kInternal : reader.error().code();
}

TEST(SegmentHeader, ContradictionsAndUnknownFeaturesAreRefused) {
  const HeaderConstants good = *NewHeaderConstants(4, 0);
  const auto spoilt = [&](auto spoil) {
    HeaderConstants header = good;
    spoil(header);
    return OpenWithHeader(header);
  };
  EXPECT_EQ(spoilt([](auto& h) { h.magic = 1; }), Code::kCorrupt);
  EXPECT_EQ(spoilt([](auto& h) { h.incompat_flags = 1u << 31; }), Code::kIncompatible);
  EXPECT_EQ(spoilt([](auto& h) { h.header_size = 64; }), Code::kCorrupt);
  EXPECT_EQ(spoilt([](auto& h) { h.header_size = 4100; }), Code::kCorrupt);
  EXPECT_EQ(spoilt([](auto& h) { h.slot_stride = 64; }), Code::kCorrupt);
  EXPECT_EQ(spoilt([](auto& h) { h.slot_stride = 577; }), Code::kCorrupt);
  EXPECT_EQ(spoilt([](auto& h) { h.record_words = 17; }), Code::kCorrupt);
  EXPECT_EQ(spoilt([](auto& h) { h.record_words = 0xffffffff; }), Code::kCorrupt);
  EXPECT_EQ(spoilt([](auto& h) { h.slot_count = 0; }), Code::kCorrupt);
  EXPECT_EQ(spoilt([](auto& h) { h.slot_count = 0xffffffff; }), Code::kCorrupt);
  EXPECT_EQ(spoilt([](auto& h) { h.change_log_entries = 3; }), Code::kCorrupt);
  EXPECT_EQ(spoilt([](auto& h) { h.change_log_entries = 1024; }), Code::kCorrupt);
}

struct Skew {
  uint32_t layout_version;
  uint32_t header_size;
  uint32_t record_words;
  uint32_t slot_stride;
  uint32_t change_log_entries;
};

class VersionSkewTest : public ::testing::TestWithParam<Skew> {};

// Goal: this reader understands segments of the previous version and of the next one.
// Method: write with their geometry. The previous version's records end with loaded_bytes. The next
// version has longer records and a longer header, gaps between slots, and flags that do not matter.
TEST_P(VersionSkewTest, AReaderTakesWhatItKnows) {
  const Skew& skew = GetParam();
  HeaderConstants constants = *NewHeaderConstants(8, 0);
  constants.layout_version = skew.layout_version;
  constants.incompat_flags = 0;
  constants.compat_flags = skew.layout_version - 1;
  constants.header_size = skew.header_size;
  constants.record_words = skew.record_words;
  constants.slot_stride = skew.slot_stride;
  constants.change_log_entries = skew.change_log_entries;
  const Result<WritableSegment> segment = MakeSealedSegment(SegmentBytes(constants));
  SegmentWriter writer(segment->mapping.address(), constants);
  const auto reader = RegistryReader::Open(Duplicate(segment->fd.get()));
  ASSERT_TRUE(reader) << reader.error().ToString();

  for (uint32_t slot = 0; slot < 8; ++slot) {
    BufferRecord record = SomeRecord(Concat("name-", slot), slot + 1);
    record.loaded_bytes = 17;
    record.flags = 2 << kRecordReasonShift;
    writer.Publish(slot, FrameOf(record, skew.record_words).data());
    const Result<Found> found = (*reader)->Find(record.name.view());
    ASSERT_TRUE(found) << found.error().ToString();
    if (skew.record_words - 1 < kKnownWords) record.creator = Name();
    EXPECT_EQ(found->record, record);
    EXPECT_EQ((*reader)->ReasonOf(*found), "") << "these segments have none";
    writer.Publish(slot, FrameOf(record, skew.record_words).data());
    EXPECT_FALSE((*reader)->IsCurrent(found->ref));
  }
  EXPECT_EQ((*reader)->List()->size(), 8u);
  writer.Withdraw(3);
  EXPECT_EQ((*reader)->Find("name-3").error().code(), Code::kNotFound);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, VersionSkewTest,
    ::testing::Values(Skew{1, kHeaderSize, kMinRecordWords, SlotStride(kMinRecordWords), 0},
                      Skew{1, kHeaderSize, kRecordWords, SlotStride(kRecordWords), 4},
                      Skew{2, 8192, 40, 1024, kChangeLogEntries},
                      Skew{2, 8192, kMaxRecordWords, SlotStride(kMaxRecordWords), 1024}));

// Goal: a hostile writer changes a record without its version, after a look-up found it valid. The
// next look-up returns none of the change.
TEST(CorruptRecord, IsSeenAlsoAfterItWasValid) {
  const HeaderConstants constants = *NewHeaderConstants(1, 0);
  const Result<WritableSegment> segment = MakeSealedSegment(SegmentBytes(constants));
  SegmentWriter writer(segment->mapping.address(), constants);
  const auto reader = RegistryReader::Open(Duplicate(segment->fd.get()));
  ASSERT_TRUE(reader) << reader.error().ToString();
  const BufferRecord valid = SomeRecord("weights", 1);
  ASSERT_EQ(RecordProblem(valid), nullptr);
  writer.Publish(0, FrameOf(valid, kRecordWords).data());
  ASSERT_TRUE((*reader)->Find("weights"));

  auto* const version = static_cast<std::byte*>(segment->mapping.address()) + kHeaderSize;
  uint64_t number = 0;
  std::memcpy(&number, version, sizeof number);
  std::byte* const record = version + kSlotCopiesOffset + number / 2 % 2 * 8 * kRecordWords;
  ASSERT_EQ(std::memcmp(record, &valid, sizeof valid), 0);
  const auto expect_corrupt = [&](size_t offset, size_t bytes, int value) {
    std::memset(record + offset, value, bytes);
    const auto found = (*reader)->Find("weights");
    ASSERT_FALSE(found) << "offset " << offset;
    EXPECT_EQ(found.error().code(), Code::kCorrupt);
    std::memcpy(record, static_cast<const void*>(&valid), sizeof valid);
    ASSERT_TRUE((*reader)->Find("weights"));
  };
  expect_corrupt(offsetof(BufferRecord, creator), Name::kBytes, 'a');  // Without a NUL at the end.
  expect_corrupt(offsetof(BufferRecord, creator), 3, '\n');
  expect_corrupt(offsetof(BufferRecord, state), 4, 0x41);
  expect_corrupt(offsetof(BufferRecord, transport), 4, 0x41);
  expect_corrupt(offsetof(BufferRecord, size_bytes), 8, 0x41);
  expect_corrupt(offsetof(BufferRecord, mapped_bytes), 8, 0x41);
  expect_corrupt(offsetof(BufferRecord, loaded_bytes), 8, 0x41);
  expect_corrupt(offsetof(BufferRecord, generation), 8, 0);
}

// Goal: a hostile writer's text is one line, whatever its bytes are, or none.
TEST(CorruptRecord, AReasonThatIsNoLineIsNone) {
  const HeaderConstants constants = *NewHeaderConstants(1, 0);
  const Result<WritableSegment> segment = MakeSealedSegment(SegmentBytes(constants));
  SegmentWriter writer(segment->mapping.address(), constants);
  const auto reader = *RegistryReader::Open(Duplicate(segment->fd.get()));
  BufferRecord record = SomeRecord("weights", 1);
  record.flags = 0xff << kRecordReasonShift;
  const auto read = [&](std::string_view text) {
    ReasonWords words{};
    std::memcpy(words.data(), text.data(), text.size());
    writer.Publish(0, EncodeRecord(record)->data(), words.data());
    return reader->ReasonOf(*reader->Find("weights"));
  };
  EXPECT_EQ(read("no file d.bin"), "no file d.bin");
  EXPECT_EQ(read(""), "");
  EXPECT_EQ(read("two\nlines"), "");
  EXPECT_EQ(read("\x1b[31mred"), "");
  EXPECT_EQ(read("\xff"), "");
  EXPECT_EQ(read(std::string(255, 'x')), std::string(255, 'x'));
  EXPECT_EQ(read(std::string(256, 'x')), "") << "without a NUL at the end";
  Found beyond = *reader->Find("weights");
  beyond.ref.slot = 1;
  EXPECT_EQ(reader->ReasonOf(beyond), "");
}

// Goal: one broken record affects only itself and look-ups that it might match, not its neighbours.
TEST(CorruptRecord, IsSaidAndDoesNotSpread) {
  const HeaderConstants constants = *NewHeaderConstants(4, 0);
  const Result<WritableSegment> segment = MakeSealedSegment(SegmentBytes(constants));
  SegmentWriter writer(segment->mapping.address(), constants);
  const auto reader = *RegistryReader::Open(Duplicate(segment->fd.get()));
  writer.Publish(0, FrameOf(SomeRecord("good", 1), kRecordWords).data());
  writer.Publish(1, FrameOf(SomeRecord("bad", 1), kRecordWords).data());
  ASSERT_TRUE(reader->Find("bad"));
  std::vector<uint64_t> bad = FrameOf(SomeRecord("bad", 2), kRecordWords);
  bad[9] ^= 1;
  writer.Publish(1, bad.data());
  EXPECT_EQ(reader->Find("bad").error().code(), Code::kCorrupt);
  const Status refused = reader->Find("none").error();
  EXPECT_EQ(refused.code(), Code::kCorrupt) << "the broken record may be this one";
  EXPECT_NE(refused.what().find("slot 1: a record is broken: its checksum is wrong (name \"bad\""),
            std::string::npos)
      << refused.what();
  EXPECT_TRUE(reader->Find("good"));
  EXPECT_EQ(reader->List().error().code(), Code::kCorrupt);
  writer.Withdraw(1);
  EXPECT_EQ(reader->Find("none").error().code(), Code::kNotFound);
  EXPECT_EQ(reader->List()->size(), 1u);
}

}  // namespace
}  // namespace gpushm::registry
