// Goal: new content is loaded as the next generation of a name. Readers have the former one, whole,
// until the publish, and also if the load fails or its process is killed. Method: the C API and
// workers, with the real broker; what readers see is checked in the middle of the load, from its
// progress function.
#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "runtime/include/gpushm/tensors.h"
#include "tests/integration/fixture.h"

namespace gpushm::integration {
namespace {

using ::testing::HasSubstr;
using Options = gpushm_transfer_options;

constexpr uint64_t kTensorBytes = 3 << 20;  // A multiple of 256: no gaps between tensors.
constexpr uint64_t kModelBytes = 2 * kTensorBytes;

template <typename T>
T Sized() {
  T value;
  GPUSHM_INIT(&value);
  return value;
}

class NextGenerationTest : public LinkedTest {
 protected:
  // This process loads, and its driver knows one machine: all tests share one card.
  static void SetUpTestSuite() {
    std::string name = (std::filesystem::temp_directory_path() / "gpushm-one-XXXXXX").string();
    card_ = mkdtemp(name.data());
  }
  static void TearDownTestSuite() {
    std::error_code ignored;  // Processes that are ending remove files at the same time.
    std::filesystem::remove_all(card_, ignored);
  }
  void SetUp() override {
    std::filesystem::create_directory_symlink(card_, folder_ + "/sim");
    setenv("GPUSHM_SIM_DIR", card_.c_str(), 1);
    LinkedTest::SetUp();
  }
  ~NextGenerationTest() override { gpushm_close(client_); }

  void Connect() {
    auto options = Sized<gpushm_open_options>();
    const std::string folder = run();
    options.folder = folder.c_str();
    ASSERT_EQ(gpushm_open(&options, &client_), GPUSHM_OK) << gpushm_last_error()->text;
  }

  // Two shards with one tensor each, "a" and "b", whose bytes all have that value.
  std::string WriteModel(char value) const {
    const std::string model = folder_ + "/model-" + std::to_string(value);
    std::filesystem::create_directory(model);
    std::string map;
    for (const std::string name : {"a", "b"}) {
      const std::string header = R"({")" + name + R"(":{"dtype":"U8","shape":[)" +
                                 std::to_string(kTensorBytes) + R"(],"data_offsets":[0,)" +
                                 std::to_string(kTensorBytes) + "]}}";
      const uint64_t header_bytes = header.size();
      std::string file(sizeof header_bytes, '\0');
      std::memcpy(file.data(), &header_bytes, sizeof header_bytes);
      std::ofstream(model + "/" + name + ".safetensors", std::ios::binary)
          << file << header << std::string(kTensorBytes, value);
      map += (map.empty() ? "\"" : ",\"") + name + "\":\"" + name + ".safetensors\"";
    }
    std::ofstream(model + "/model.safetensors.index.json") << R"({"weight_map":{)" << map << "}}";
    return model;
  }
  std::string WriteFile(const std::string& name, size_t size_bytes, char value) const {
    std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << std::string(size_bytes, value);
    // A load waits until what nothing announces has not changed for some seconds.
    std::filesystem::last_write_time(
        path, std::filesystem::last_write_time(path) - std::chrono::hours(1));
    return path;
  }

  // An unpublished generation of "weights": the first one or the next one.
  gpushm_attachment* Make(uint64_t size_bytes = kModelBytes) {
    auto options = Sized<gpushm_create_options>();
    options.unpublished = 1;
    options.exist = GPUSHM_EXIST_REPLACE;
    gpushm_attachment* made = nullptr;
    EXPECT_EQ(gpushm_create(client_, "weights", size_bytes, &options, &made), GPUSHM_OK)
        << gpushm_last_error()->text;
    return made;
  }
  // A published generation, which this process does not hold.
  void Serve(const std::string& path) {
    gpushm_attachment* const made = Make();
    ASSERT_EQ(Load(made, path), GPUSHM_OK) << gpushm_last_error()->text;
    ASSERT_EQ(gpushm_attachment_publish(made), GPUSHM_OK) << gpushm_last_error()->text;
    ASSERT_EQ(gpushm_attachment_detach(made, nullptr), GPUSHM_OK);
  }
  // `on_progress` may return false to stop the load.
  static gpushm_status Load(gpushm_attachment* attachment, const std::string& path,
                            std::function<bool(uint64_t done_bytes)> on_progress = {},
                            const std::function<void(Options*)>& set = {}) {
    auto options = Sized<Options>();
    options.chunk_bytes = 1 << 20;
    options.threads = GPUSHM_NO_THREADS;
    if (on_progress) {
      options.user = &on_progress;
      options.progress = [](void* user, uint64_t done_bytes, uint64_t) {
        return (*static_cast<std::function<bool(uint64_t)>*>(user))(done_bytes) ? 0 : 1;
      };
    }
    if (set) set(&options);
    return gpushm_attachment_load(attachment, path.c_str(), &options, nullptr);
  }

  gpushm_info Look() {
    auto info = Sized<gpushm_info>();
    EXPECT_EQ(gpushm_lookup(client_, "weights", &info), GPUSHM_OK) << gpushm_last_error()->text;
    return info;
  }
  uint64_t UsedBytes() {
    auto info = Sized<gpushm_broker_info>();
    EXPECT_EQ(gpushm_broker_get_info(client_, &info), GPUSHM_OK) << gpushm_last_error()->text;
    return info.used_bytes;
  }
  // The generation whose tensors a reader finds now, if it has both; otherwise 0.
  uint64_t GenerationOfTensors() {
    gpushm_tensors* tensors = nullptr;
    auto options = Sized<gpushm_description_options>();
    options.timeout_ms = GPUSHM_DONT_WAIT;
    if (gpushm_tensors_open(client_, "weights", &options, &tensors) != GPUSHM_OK) return 0;
    auto tensor = Sized<gpushm_tensor>();
    const bool whole = gpushm_tensors_find(tensors, "a", &tensor) == GPUSHM_OK &&
                       gpushm_tensors_find(tensors, "b", &tensor) == GPUSHM_OK &&
                       tensor.offset == kTensorBytes;
    const uint64_t generation = gpushm_tensors_generation(tensors);
    gpushm_tensors_close(tensors);
    return whole ? generation : 0;
  }
  static uint64_t GenerationOf(gpushm_attachment* attachment) {
    auto info = Sized<gpushm_attachment_info>();
    EXPECT_EQ(gpushm_attachment_get_info(attachment, &info), GPUSHM_OK);
    return info.generation;
  }
  // That a reader which held the buffer before, and one that attaches now, see generation `first`.
  void ExpectFormer(uint64_t first, Worker* held, Worker* fresh) {
    EXPECT_EQ(held->Do("current").status, GPUSHM_OK);
    EXPECT_EQ(held->Do("same").value, 1);
    const Answer attached = fresh->Do("attach weights r -1");
    EXPECT_EQ(attached.status, GPUSHM_OK);
    EXPECT_EQ(static_cast<uint64_t>(attached.value), first);
    EXPECT_EQ(fresh->Do("same").value, 1);
    EXPECT_EQ(fresh->Do("detach").status, GPUSHM_OK);
    const gpushm_info info = Look();
    EXPECT_EQ(info.generation, first);
    EXPECT_EQ(info.state, uint32_t{GPUSHM_BUFFER_READY});
    EXPECT_EQ(info.content_bytes, kModelBytes);
    EXPECT_EQ(GenerationOfTensors(), first);
  }

  static inline std::string card_;
  gpushm_client* client_ = nullptr;
};

TEST_F(NextGenerationTest, ReadersHaveTheFormerOneUntilThePublish) {
  Broker broker(run(), "64Mi");
  Connect();
  Serve(WriteModel(1));
  const uint64_t first = Look().generation;
  Worker held(run());
  Worker fresh(run());
  ASSERT_EQ(held.Do("attach weights r 0").status, GPUSHM_OK);
  gpushm_attachment* old = nullptr;
  ASSERT_EQ(gpushm_attach(client_, "weights", nullptr, &old), GPUSHM_OK);

  gpushm_attachment* const next = Make();
  int looks = 0;
  ASSERT_EQ(Load(next, WriteModel(2),
                 [&](uint64_t) {
                   ExpectFormer(first, &held, &fresh);
                   ++looks;
                   return !HasFailure();
                 }),
            GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_GE(looks, 4) << "readers must be checked several times during the load";
  ExpectFormer(first, &held, &fresh);
  auto loaded = Sized<gpushm_attachment_info>();
  ASSERT_EQ(gpushm_attachment_get_info(next, &loaded), GPUSHM_OK);
  EXPECT_EQ(loaded.content_bytes, kModelBytes);

  // Each generation can be saved while both exist.
  const std::string copy = folder_ + "/copy.safetensors";
  for (gpushm_attachment* const each : {old, next}) {
    ASSERT_EQ(gpushm_attachment_save(each, copy.c_str(), nullptr, nullptr), GPUSHM_OK)
        << gpushm_last_error()->text;
    std::ifstream in(copy, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), {});
    EXPECT_TRUE(bytes.ends_with(std::string(kModelBytes, each == old ? 1 : 2)));
    EXPECT_THAT(bytes.substr(0, bytes.size() - kModelBytes), HasSubstr("data_offsets"));
  }

  ASSERT_EQ(gpushm_attachment_publish(next), GPUSHM_OK) << gpushm_last_error()->text;
  const Answer waited = fresh.Do(Concat("wait weights ", first + 1));
  EXPECT_EQ(waited.status, GPUSHM_OK);
  EXPECT_EQ(held.Do("current").status, GPUSHM_STALE);
  EXPECT_EQ(held.Do("same").value, 1) << "the bytes of a held generation must not change";
  EXPECT_EQ(GenerationOfTensors(), static_cast<uint64_t>(waited.value));
  EXPECT_EQ(held.Do("advance 0 -1 0").value, waited.value);
  EXPECT_EQ(held.Do("same").value, 2);
  ASSERT_EQ(gpushm_attachment_save(old, copy.c_str(), nullptr, nullptr), GPUSHM_OK)
      << "an older generation that is held must be saved: " << gpushm_last_error()->text;
}

TEST_F(NextGenerationTest, AFailedLoadLeavesTheFormerOne) {
  Broker broker(run(), "64Mi");
  Connect();
  Serve(WriteModel(1));
  const uint64_t first = Look().generation;
  const uint64_t used_bytes = UsedBytes();
  Worker held(run());
  Worker fresh(run());
  ASSERT_EQ(held.Do("attach weights r 0").status, GPUSHM_OK);

  gpushm_attachment* next = Make();
  const std::string model = WriteModel(2);
  const auto shorten = [&](uint64_t done_bytes) {
    if (done_bytes != 0) std::filesystem::resize_file(model + "/b.safetensors", kTensorBytes / 2);
    return true;
  };
  const auto at_once = [](Options* options) { options->timeout_ms = GPUSHM_DONT_WAIT; };
  EXPECT_EQ(Load(next, model, shorten, at_once), GPUSHM_BUSY);
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("load \"weights\""));
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("b.safetensors"));
  ExpectFormer(first, &held, &fresh);
  EXPECT_EQ(gpushm_attachment_publish(next), GPUSHM_INVALID_ARGUMENT);
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("failed, so its content is not complete"));
  EXPECT_EQ(gpushm_attachment_save(next, (folder_ + "/copy").c_str(), nullptr, nullptr),
            GPUSHM_SYSTEM);
  EXPECT_GT(UsedBytes(), used_bytes);
  ASSERT_EQ(gpushm_attachment_detach(next, nullptr), GPUSHM_OK);
  EXPECT_EQ(UsedBytes(), used_bytes) << "the detach must free the memory of the failed generation";
  ExpectFormer(first, &held, &fresh);

  // It can be loaded again, too.
  next = Make();
  EXPECT_EQ(Load(next, folder_ + "/nowhere", {}, at_once), GPUSHM_NOT_FOUND);
  EXPECT_EQ(gpushm_attachment_publish(next), GPUSHM_INVALID_ARGUMENT);
  const auto stop = [](uint64_t done_bytes) { return done_bytes == 0; };
  EXPECT_EQ(Load(next, WriteModel(2), stop), GPUSHM_BUSY);
  EXPECT_EQ(gpushm_attachment_publish(next), GPUSHM_INVALID_ARGUMENT);
  ASSERT_EQ(Load(next, model), GPUSHM_OK) << gpushm_last_error()->text;
  ASSERT_EQ(gpushm_attachment_publish(next), GPUSHM_OK) << gpushm_last_error()->text;
  EXPECT_EQ(held.Do("advance 0 -1 0").status, GPUSHM_OK);
  EXPECT_EQ(held.Do("same").value, 2);
}

TEST_F(NextGenerationTest, AKilledLoaderLeavesTheFormerOne) {
  Broker broker(run(), "64Mi");
  Connect();
  Serve(WriteModel(1));
  const uint64_t first = Look().generation;
  const uint64_t used_bytes = UsedBytes();
  Worker held(run());
  Worker fresh(run());
  ASSERT_EQ(held.Do("attach weights r 0").status, GPUSHM_OK);

  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const UniqueFd writer(open(pipe.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  Worker loader(run());
  ASSERT_EQ(loader.Do("replace-unpublished weights 0").status, GPUSHM_OK);
  ASSERT_TRUE(loader.Begin("load-attached " + pipe));
  // More than a pipe holds, so the loader has taken some of it.
  const std::string half(kModelBytes / 2, 2);
  size_t written = 0;
  ASSERT_TRUE(Eventually([&] {
    const ssize_t done = write(writer.get(), half.data() + written, half.size() - written);
    if (done > 0) written += static_cast<size_t>(done);
    return written == half.size();
  }));
  ExpectFormer(first, &held, &fresh);
  EXPECT_GT(UsedBytes(), used_bytes);
  loader.Kill();
  EXPECT_TRUE(Eventually([&] { return UsedBytes() == used_bytes; }));
  ExpectFormer(first, &held, &fresh);
  Serve(WriteModel(2));
  EXPECT_EQ(held.Do("advance 0 -1 0").status, GPUSHM_OK);
  EXPECT_EQ(held.Do("same").value, 2);
}

// The plugin gives the unpublished generation and its lease back to the next broker.
TEST_F(NextGenerationTest, ABrokerThatRestartsInTheMiddleLosesNothing) {
  StartKeeper();
  Broker broker(run(), "64Mi", Linked());
  Connect();
  Serve(WriteModel(1));
  const uint64_t first = Look().generation;
  gpushm_attachment* const next = Make();
  ASSERT_TRUE(Eventually([&] { return keeper_->Look().front().kept.generations == 2; }));
  bool restarted = false;
  ASSERT_EQ(Load(next, WriteModel(2),
                 [&](uint64_t done_bytes) {
                   if (done_bytes == 0 || std::exchange(restarted, true)) return true;
                   broker.Kill();
                   broker.Start();
                   return true;
                 }),
            GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_TRUE(restarted);
  EXPECT_EQ(Look().generation, first);
  ASSERT_EQ(gpushm_attachment_publish(next), GPUSHM_OK) << gpushm_last_error()->text;
  EXPECT_EQ(Look().content_bytes, kModelBytes);
  EXPECT_EQ(GenerationOfTensors(), GenerationOf(next));
  Worker reader(run());
  ASSERT_EQ(reader.Do("attach weights r 0").status, GPUSHM_OK);
  EXPECT_EQ(reader.Do("same").value, 2);
}

TEST_F(NextGenerationTest, TheLastLoadCounts) {
  Broker broker(run(), "64Mi");
  Connect();
  gpushm_attachment* const next = Make();
  const std::string plain = WriteFile("plain", 1000, 3);
  ASSERT_EQ(Load(next, WriteModel(1)), GPUSHM_OK) << gpushm_last_error()->text;
  ASSERT_EQ(Load(next, plain), GPUSHM_OK) << gpushm_last_error()->text;
  ASSERT_EQ(gpushm_attachment_publish(next), GPUSHM_OK) << gpushm_last_error()->text;
  const gpushm_info info = Look();
  EXPECT_EQ(info.content_bytes, 1000u);
  EXPECT_EQ(info.description_bytes, 0u) << "the second load must remove the model's tensors";
  const std::string copy = folder_ + "/copy";
  auto saved = Sized<gpushm_transfer_result>();
  ASSERT_EQ(gpushm_attachment_save(next, copy.c_str(), nullptr, &saved), GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_EQ(saved.bytes, 1000u);

  // The maker may also say that bytes are valid which a failed load has left.
  gpushm_attachment* const other = Make();
  EXPECT_EQ(
      Load(other, folder_ + "/nowhere", {}, [](Options* o) { o->timeout_ms = GPUSHM_DONT_WAIT; }),
      GPUSHM_NOT_FOUND);
  ASSERT_EQ(gpushm_attachment_set_content(other, 7), GPUSHM_OK) << gpushm_last_error()->text;
  ASSERT_EQ(gpushm_attachment_publish(other), GPUSHM_OK) << gpushm_last_error()->text;
  EXPECT_EQ(Look().content_bytes, 7u);
}

// A published generation is filled as by its name: what readers see says so, and the attachment
// stays usable after a failure.
TEST_F(NextGenerationTest, APublishedGenerationIsFilledInPlace) {
  Broker broker(run(), "64Mi");
  Connect();
  Serve(WriteModel(1));
  const uint64_t first = Look().generation;
  auto writing = Sized<gpushm_attach_options>();
  writing.access = GPUSHM_ACCESS_READ_WRITE;
  gpushm_attachment* held = nullptr;
  ASSERT_EQ(gpushm_attach(client_, "weights", &writing, &held), GPUSHM_OK);
  const auto stop = [&](uint64_t done_bytes) {
    if (done_bytes == 0) return true;
    EXPECT_EQ(Look().state, uint32_t{GPUSHM_BUFFER_LOADING});
    EXPECT_EQ(gpushm_attachment_save(held, (folder_ + "/copy").c_str(), nullptr, nullptr),
              GPUSHM_BUSY);
    return false;
  };
  EXPECT_EQ(Load(held, WriteModel(2), stop), GPUSHM_BUSY);
  EXPECT_EQ(Look().state, uint32_t{GPUSHM_BUFFER_FAILED});
  EXPECT_EQ(gpushm_attachment_save(held, (folder_ + "/copy").c_str(), nullptr, nullptr),
            GPUSHM_SYSTEM);
  ASSERT_EQ(Load(held, WriteModel(2)), GPUSHM_OK) << gpushm_last_error()->text;
  const gpushm_info info = Look();
  EXPECT_EQ(info.state, uint32_t{GPUSHM_BUFFER_READY});
  EXPECT_EQ(info.generation, first);
  EXPECT_EQ(GenerationOfTensors(), first);
  EXPECT_EQ(gpushm_attachment_check(held), GPUSHM_OK);
}

TEST_F(NextGenerationTest, WrongCallsSayWhy) {
  Broker broker(run(), "64Mi");
  Connect();
  const std::string model = WriteModel(1);
  Serve(model);
  gpushm_attachment* reading = nullptr;
  ASSERT_EQ(gpushm_attach(client_, "weights", nullptr, &reading), GPUSHM_OK);
  EXPECT_EQ(Load(reading, model), GPUSHM_DENIED);
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("attached for reading"));

  EXPECT_EQ(Load(nullptr, model), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(Load(reinterpret_cast<gpushm_attachment*>(client_), model), GPUSHM_INVALID_ARGUMENT);
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("attachment"));

  gpushm_attachment* const small = Make(4096);
  EXPECT_EQ(Load(small, model), GPUSHM_INVALID_ARGUMENT);
  EXPECT_THAT(gpushm_last_error()->text,
              HasSubstr("its tensors need 6291456 bytes, but the buffer has 4096"));
  EXPECT_EQ(Load(small, model, {}, [](Options* o) { o->format = 3; }), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_attachment_load(small, nullptr, nullptr, nullptr), GPUSHM_INVALID_ARGUMENT);
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("path is NULL"));
  auto cut = Sized<gpushm_transfer_result>();
  cut.struct_size = 1;
  EXPECT_EQ(gpushm_attachment_load(small, model.c_str(), nullptr, &cut), GPUSHM_INVALID_ARGUMENT);
  ASSERT_EQ(gpushm_attachment_detach(small, nullptr), GPUSHM_OK);
  EXPECT_EQ(Load(small, model), GPUSHM_INVALID_ARGUMENT)
      << "a load into a detached attachment must be refused";

  gpushm_attachment* const next = Make();
  const auto meanwhile = [&](uint64_t) {
    EXPECT_EQ(gpushm_attachment_publish(next), GPUSHM_BUSY);
    EXPECT_EQ(Load(next, model), GPUSHM_BUSY);
    EXPECT_THAT(gpushm_last_error()->text, HasSubstr("a load into this attachment is running"));
    return true;
  };
  ASSERT_EQ(Load(next, model, meanwhile), GPUSHM_OK) << gpushm_last_error()->text;
  ASSERT_EQ(gpushm_attachment_publish(next), GPUSHM_OK);
  gpushm_attachment* const later = Make();
  ASSERT_EQ(gpushm_attachment_publish(later), GPUSHM_OK);
  EXPECT_EQ(Load(next, model), GPUSHM_STALE);
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("no longer the current one"));
  auto tensors = Sized<Options>();
  tensors.format = GPUSHM_FORMAT_TENSORS;
  EXPECT_EQ(gpushm_attachment_save(later, (folder_ + "/copy").c_str(), &tensors, nullptr),
            GPUSHM_NOT_FOUND)
      << "a generation without tensors must not be saved as tensors";
  gpushm_close(client_);
  client_ = nullptr;
  EXPECT_EQ(Load(later, model), GPUSHM_INVALID_ARGUMENT)
      << "a load must be refused after its client is closed";
}

TEST_F(NextGenerationTest, ABrokerWithoutTheGenerationIsNoticed) {
  Broker broker(run(), "64Mi");
  Connect();
  const std::string model = WriteModel(1);
  Serve(model);
  gpushm_attachment* held = nullptr;
  ASSERT_EQ(gpushm_attach(client_, "weights", nullptr, &held), GPUSHM_OK);
  gpushm_attachment* const next = Make();
  broker.Kill();
  broker.Start();
  EXPECT_EQ(Load(next, model), GPUSHM_ORPHANED);
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("the broker restarted without generation"));
  // The mapping has the bytes still, but nobody knows their tensors any more.
  const std::string copy = folder_ + "/copy";
  EXPECT_EQ(gpushm_attachment_save(held, copy.c_str(), nullptr, nullptr), GPUSHM_ORPHANED);
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("GPUSHM_FORMAT_RAW"));
  auto raw = Sized<Options>();
  raw.format = GPUSHM_FORMAT_RAW;
  ASSERT_EQ(gpushm_attachment_save(held, copy.c_str(), &raw, nullptr), GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_EQ(std::filesystem::file_size(copy), kModelBytes);
}

}  // namespace
}  // namespace gpushm::integration
