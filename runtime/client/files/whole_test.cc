// Goal: what is not whole never becomes READY, and each refusal says what is missing. Method: loads
// through the C ABI, with files that are cut, missing, empty or being written.
#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "contract/tensors/testing.h"
#include "platform/base/clock.h"
#include "platform/base/testing.h"
#include "runtime/client/files/open_file.h"
#include "runtime/client/testing/client_fixture.h"

namespace gpushm::client {
namespace {

namespace fs = std::filesystem;
using gpushm::testing::Settle;
using protocol::Kind;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kRoomBytes = uint64_t{4} << 20;

// Each tensor's bytes.
using Tensors = std::vector<std::pair<std::string, std::string>>;

std::string SafetensorsOf(const Tensors& tensors) {
  return tensors::testing::FileOf(tensors, R"("__metadata__":null)");
}

// The bytes of the buffer, if the tensors lie in files in this order. What is between them is left
// as it was.
std::string BufferOf(const Tensors& tensors) {
  std::string buffer;
  for (const auto& [name, bytes] : tensors) {
    buffer.resize((buffer.size() + 255) / 256 * 256);
    buffer += bytes;
  }
  return buffer;
}

class WholeTest : public ClientTest {
 protected:
  void SetUp() override {
    ClientTest::SetUp();
    broker_->Add("weights", 5, kRoomBytes, api_);
    broker_->SetTwist([this](const FakeRequest& request, FakeReply*) {
      if (request.kind != Kind::kContent) return;
      const auto body = protocol::Parse<protocol::ContentRequest>(request.message->span());
      if (body && body->complete != 0) ++ready_;
    });
    Open();
  }
  std::string At(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(At(name), std::ios::binary) << bytes;
    return At(name);
  }
  // `path` empty: from options.descriptor.
  gpushm_status Load(const std::string& path, int64_t timeout_ms = GPUSHM_DONT_WAIT,
                     const std::function<void(gpushm_transfer_options*)>& set = {}) {
    auto options = Sized<gpushm_transfer_options>();
    options.timeout_ms = timeout_ms;
    options.chunk_bytes = 64 << 10;
    options.threads = GPUSHM_NO_THREADS;
    if (set) set(&options);
    return gpushm_load(client_.get(), "weights", path.empty() ? nullptr : path.c_str(), &options,
                       nullptr);
  }
  static std::string Error() {
    const gpushm_error* const error = gpushm_last_error();
    return Concat(error->text, " / ", error->remedy);
  }
  // The first bytes of the buffer.
  std::string Content(size_t bytes) {
    gpushm_attachment* const attachment = Attach("weights");
    EXPECT_NE(attachment, nullptr) << gpushm_last_error()->text;
    if (attachment == nullptr) return "";
    std::string content(bytes, '\0');
    const PrimaryContext context = MakeContext();
    EXPECT_EQ(api_->cuMemcpyDtoH(content.data(), gpushm_attachment_address(attachment), bytes),
              CUDA_SUCCESS);
    gpushm_attachment_detach(attachment, nullptr);
    return content;
  }

  std::atomic<size_t> ready_ = 0;  // How often the broker was told that the content is complete.
};

// ---- nothing that says that it is all

TEST_F(WholeTest, AnEmptyFileIsNotThereYet) {
  EXPECT_EQ(Load(Write("weights.bin", "")), GPUSHM_BUSY);
  EXPECT_THAT(Error(), HasSubstr("weights.bin is empty"));
  EXPECT_EQ(Load(Write("m.safetensors", "")), GPUSHM_BUSY);
  EXPECT_EQ(ready_, 0u);
}

TEST_F(WholeTest, AStreamWithNothingIsRefused) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  close(ends[1]);
  EXPECT_EQ(Load("", 0, [&](auto* options) { options->descriptor = reader.get(); }),
            GPUSHM_INVALID_ARGUMENT);
  EXPECT_THAT(Error(), AllOf(HasSubstr("the stream had nothing"), HasSubstr("the pipe")));
  EXPECT_EQ(ready_, 0u);
}

// Goal: an announced number of bytes must come, from a stream and from a file.
TEST_F(WholeTest, AsManyBytesAsWereAnnounced) {
  const auto pipe_with = [&](const std::string& text, uint64_t bytes) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd reader(ends[0]);
    EXPECT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
    close(ends[1]);
    return Load("", 0, [&](auto* options) {
      options->descriptor = reader.get();
      options->bytes = bytes;
    });
  };
  EXPECT_EQ(pipe_with("three", 6), GPUSHM_INVALID_ARGUMENT);
  EXPECT_THAT(Error(), HasSubstr("the stream had 5 of the 6 bytes that were announced"));
  EXPECT_EQ(pipe_with("three", 4), GPUSHM_INVALID_ARGUMENT);
  EXPECT_THAT(Error(), HasSubstr("more than the 4 bytes"));
  EXPECT_EQ(pipe_with("three", kRoomBytes + 1), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(ready_, 0u);
  EXPECT_EQ(pipe_with("three", 5), GPUSHM_OK) << Error();
  EXPECT_EQ(ready_, 1u);

  const auto bytes = [](uint64_t count) {
    return [=](gpushm_transfer_options* options) { options->bytes = count; };
  };
  const std::string path = Write("weights.bin", "12345");
  EXPECT_EQ(Load(path, GPUSHM_DONT_WAIT, bytes(6)), GPUSHM_BUSY);
  EXPECT_THAT(Error(), HasSubstr("weights.bin has 5 of the 6 bytes that were announced"));
  EXPECT_EQ(Load(path, GPUSHM_DONT_WAIT, bytes(4)), GPUSHM_INVALID_ARGUMENT);
  EXPECT_THAT(Error(), HasSubstr("weights.bin has 5 bytes, and 4 were announced"));
  const int64_t start_ns = MonotonicNs();
  EXPECT_EQ(Load(path, GPUSHM_DONT_WAIT, bytes(5)), GPUSHM_OK) << Error();
  EXPECT_LT(MonotonicNs() - start_ns, kSettleMs * 1'000'000 / 2) << "nothing is left to wait for";
  const std::string model = SafetensorsOf({{"a", "12"}});
  EXPECT_EQ(Load(Write("m.safetensors", model), GPUSHM_DONT_WAIT, bytes(2)),
            GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(Load(At("m.safetensors"), GPUSHM_DONT_WAIT, bytes(model.size())), GPUSHM_OK);
}

// Goal: a file that nothing announces has not changed for some seconds when it becomes READY.
TEST_F(WholeTest, AFileThatNothingAnnouncesSettles) {
  const std::string path = Write("weights.bin", "12345");
  const int64_t written_ns = MonotonicNs();
  ASSERT_EQ(Load(path), GPUSHM_OK) << Error();
  EXPECT_GT(MonotonicNs() - written_ns, (kSettleMs - 500) * 1'000'000);
  Settle(path);
  const int64_t start_ns = MonotonicNs();
  ASSERT_EQ(Load(path), GPUSHM_OK) << Error();
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(Load("", 0, [&](auto* options) { options->descriptor = file.get(); }), GPUSHM_OK);
  EXPECT_LT(MonotonicNs() - start_ns, kSettleMs * 1'000'000 / 2);
  EXPECT_EQ(ready_, 3u);
  Write("weights.bin", "123456");
  EXPECT_EQ(Load(path, 200), GPUSHM_TIMEOUT);
  EXPECT_THAT(Error(), AllOf(HasSubstr("the deadline passed, and "), HasSubstr("ms ago")));
  EXPECT_EQ(ready_, 3u);
}

// Goal: a load that waits tells the broker why once for each reason, not at each look.
TEST_F(WholeTest, AReasonIsStatedOnce) {
  broker_->SetState("weights", registry::BufferState::kLoading);
  broker_->SetTwist([this](const FakeRequest& request, FakeReply*) {
    if (request.kind != Kind::kReason) return;
    const auto body = protocol::Parse<protocol::ReasonRequest>(request.message->span());
    if (!body) return;
    broker_->SetState("weights", registry::BufferState::kLoading,
                      std::string(protocol::FromLineField(body->text)));
  });
  EXPECT_EQ(Load(At("weights.bin"), 3 * kLookMs + kLookMs / 2), GPUSHM_TIMEOUT);
  EXPECT_THAT(Error(), HasSubstr("no such file"));
  EXPECT_EQ(broker_->requests(Kind::kReason), 2u) << "the wait, and its end";
}

TEST_F(WholeTest, AShardIsNotAModel) {
  fs::create_directory(At("m"));
  const std::string shard =
      Write("m/model-00001-of-00003.safetensors", SafetensorsOf({{"a", "1"}}));
  EXPECT_EQ(Load(At("m")), GPUSHM_NOT_FOUND);
  EXPECT_THAT(Error(), HasSubstr("1 of the 3 shards"));
  EXPECT_EQ(Load(shard), GPUSHM_INVALID_ARGUMENT);
  EXPECT_THAT(Error(), AllOf(HasSubstr("shard 1 of 3"), HasSubstr("name its folder")));
  EXPECT_EQ(ready_, 0u);
  Settle(shard);
  EXPECT_EQ(Load(shard, 0, [](auto* options) { options->format = GPUSHM_FORMAT_RAW; }), GPUSHM_OK);
}

// ---- a file that is wrong is not a broken protocol

TEST_F(WholeTest, ABadFileIsAnInvalidArgument) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";
  for (const char* const name : {"m.safetensors", "weights.bin", "m.safetensors.index.json"}) {
    EXPECT_EQ(Load(Write(name, pointer)), GPUSHM_INVALID_ARGUMENT) << name;
    EXPECT_THAT(Error(), AllOf(HasSubstr(name), HasSubstr("git lfs pull")));
  }
  EXPECT_EQ(Load(Write("m.safetensors", "<html>not found</html>")), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(Load(Write("m.safetensors", SafetensorsOf({{"a", "1"}}) + "x")),
            GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(Load(folder_.path(), GPUSHM_DONT_WAIT,
                 [](auto* options) { options->format = GPUSHM_FORMAT_RAW; }),
            GPUSHM_INVALID_ARGUMENT);
  EXPECT_THAT(Error(), HasSubstr("is a folder"));
  EXPECT_EQ(ready_, 0u);
}

TEST_F(WholeTest, ALinkThatLeadsNowhereIsNamed) {
  fs::create_symlink("/blobs/abc", At("m.safetensors"));
  fs::create_symlink("v3", At("current"));
  EXPECT_EQ(Load(At("m.safetensors")), GPUSHM_NOT_FOUND);
  EXPECT_THAT(Error(), HasSubstr("m.safetensors is a link to /blobs/abc, which is not there"));
  EXPECT_EQ(Load(At("current/m.safetensors")), GPUSHM_NOT_FOUND);
  EXPECT_THAT(Error(), HasSubstr("current is a link to v3, which is not there"));
  EXPECT_EQ(Load(At("none/m.safetensors")), GPUSHM_NOT_FOUND);
  EXPECT_THAT(Error(), HasSubstr("no such file: "));
  fs::remove(At("m.safetensors"));
  Write("m.safetensors", "");
  EXPECT_EQ(Load(At("m.safetensors/x")), GPUSHM_NOT_FOUND) << "a file where a folder is named";
}

// ---- what passes

// Goal: the first failure is not the last word: a call that may wait looks again, also at a mode.
TEST_F(WholeTest, WhatMayComeIsWaitedFor) {
  const Tensors tensors = {{"a", std::string(300'000, 'a')}, {"b", "12"}};
  const std::string model = SafetensorsOf(tensors);
  const std::string path = At("m.safetensors");
  EXPECT_EQ(Load(path, 50), GPUSHM_TIMEOUT);
  EXPECT_THAT(Error(), HasSubstr("timed out waiting for the file: no such file"));
  const std::vector<std::function<void()>> steps = {
      [&] { Write("m.safetensors", ""); },
      [&] { Write("m.safetensors", model.substr(0, 100)); },
      [&] { Write("m.safetensors", model.substr(0, model.size() - 1)); },
      [&] { Write("m.safetensors", model); },
  };
  std::thread writer([&] {
    for (const auto& step : steps) {
      const Deadline pause = Deadline::AfterMs(150);
      while (!pause.Passed()) std::this_thread::yield();
      step();
    }
  });
  EXPECT_EQ(Load(path, kPatienceMs), GPUSHM_OK) << Error();
  writer.join();
  EXPECT_EQ(Content(BufferOf(tensors).size()), BufferOf(tensors));
  EXPECT_EQ(ready_, 1u);
}

// Goal: a file that changes during the load is loaded again, under the same attachment; without
// time to wait, the load fails.
TEST_F(WholeTest, WhatChangesMeanwhileIsLoadedAgain) {
  const Tensors first = {{"a", std::string(1 << 20, '1')}};
  const Tensors second = {{"a", std::string(1 << 20, '2')}, {"b", "34"}};
  Write("m.safetensors", SafetensorsOf(first));
  Write("other", SafetensorsOf(second));
  struct Change {
    std::function<void()> now;
    int calls = 0;
  } change{[&] { fs::rename(At("other"), At("m.safetensors")); }};
  const auto set = [&](gpushm_transfer_options* options) {
    options->user = &change;
    options->progress = [](void* user, uint64_t, uint64_t) {
      auto* const it = static_cast<Change*>(user);
      if (++it->calls == 3) it->now();
      return 0;
    };
  };
  ASSERT_EQ(Load(At("m.safetensors"), kPatienceMs, set), GPUSHM_OK) << Error();
  EXPECT_EQ(Content(BufferOf(second).size()), BufferOf(second));
  EXPECT_EQ(ready_, 1u);
  EXPECT_EQ(broker_->requests(Kind::kAttach), 2u) << "one of it is Content()'s";

  // Cut in the middle: without time it fails, and with time it waits for the rest.
  change = {[&] { fs::resize_file(At("m.safetensors"), 1000); }};
  EXPECT_EQ(Load(At("m.safetensors"), GPUSHM_DONT_WAIT, set), GPUSHM_BUSY);
  EXPECT_THAT(Error(), HasSubstr("m.safetensors"));
  Write("m.safetensors", SafetensorsOf(second));
  change = {[&] { fs::resize_file(At("m.safetensors"), 1000); }};
  EXPECT_EQ(Load(At("m.safetensors"), 700, set), GPUSHM_TIMEOUT);
  EXPECT_THAT(Error(), AllOf(HasSubstr("attempt 2, because "), HasSubstr("it has 1000 ")));
  // Another model that the buffer has no room for.
  Write("m.safetensors", SafetensorsOf(second));
  change = {
      [&] { Write("m.safetensors", SafetensorsOf({{"a", std::string(kRoomBytes + 1, 'x')}})); }};
  EXPECT_EQ(Load(At("m.safetensors"), kPatienceMs, set), GPUSHM_INVALID_ARGUMENT);
  EXPECT_THAT(Error(), AllOf(HasSubstr("changed while it was loaded"), HasSubstr("need")));
  EXPECT_EQ(ready_, 1u);
}

// ---- any order

// The writers of a model: what they do to its files, in random order. `versions` are all contents
// that were whole at any time.
class Writers {
 public:
  Writers(std::string folder, uint32_t seed) : folder_(std::move(folder)), random_(seed) {
    fs::create_directory(folder_ + "/one");
    versions_.push_back(other_);
    NewVersion();
    Put("one/model.safetensors", SafetensorsOf(tensors_));
    NewSet();
  }

  bool IsVersion(const std::string& buffer) {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(versions_, [&](const Tensors& version) {
      size_t end = 0;
      for (const auto& [name, bytes] : version) {
        const size_t at = (end + 255) / 256 * 256;
        end = at + bytes.size();
        if (end > buffer.size() || buffer.compare(at, bytes.size(), bytes) != 0) return false;
      }
      return end == buffer.size();
    });
  }

  // So that a load finds something whole now and then.
  int RestMs() { return static_cast<int>(random_() % 120); }

  void Step() {
    const std::string path = folder_ + "/one/model.safetensors";
    switch (random_() % 14) {
      case 0:  // Elsewhere, then renamed.
        NewVersion();
        Put("one/model.safetensors.tmp", SafetensorsOf(tensors_));
        fs::rename(path + ".tmp", path);
        break;
      case 1:  // In place, in pieces, as cp and curl do.
        NewVersion();
        WriteInPieces(path, /*to_end=*/true);
        break;
      case 2:  // The same, killed in the middle.
        NewVersion();
        WriteInPieces(path, /*to_end=*/false);
        break;
      case 3:
        Cut(path);
        break;
      case 4:  // As it was.
        Put("one/model.safetensors", SafetensorsOf(tensors_));
        break;
      case 5:  // With its size from the start, in parts of any order.
        NewVersion();
        WriteInParts(path);
        break;
      case 6:
        fs::remove(path);
        break;
      case 7:  // Another model beside it, and a hidden file.
        Put("one/other.safetensors", SafetensorsOf(other_));
        Put("one/._model.safetensors", "hidden");
        break;
      case 8:
        fs::remove(folder_ + "/one/other.safetensors");
        break;
      case 9:  // A folder in place of another one.
        NewSet();
        break;
      case 10:  // A set of shards, which comes one by one.
        NewSetInPlace();
        break;
      default:  // In place, so quickly that a load sees no end of the file.
        NewVersion();
        Put("one/model.safetensors", SafetensorsOf(tensors_));
        break;
    }
  }

 private:
  // Of the other model, which is the only one where the first one is removed.
  const Tensors other_ = {{"x", "y"}};

  std::string Bytes(size_t bytes) {
    std::string text(bytes, '\0');
    for (char& byte : text) byte = static_cast<char>(random_());
    return text;
  }
  // In use from its first byte on: a load may be quicker than what follows.
  void NewVersion() {
    tensors_ = {{"a", Bytes(300'000 + random_() % 3 * 4096)}, {"b", Bytes(random_() % 9000 + 1)}};
    const std::lock_guard lock(mutex_);
    versions_.push_back(tensors_);
  }
  void Put(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << bytes;
  }
  void Pause() {
    const Deadline pause = Deadline::After(std::chrono::microseconds(random_() % 3000));
    while (!pause.Passed()) std::this_thread::yield();
  }
  void WriteInPieces(const std::string& path, bool to_end) {
    const std::string file = SafetensorsOf(tensors_);
    const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    const size_t end = to_end ? file.size() : random_() % file.size();
    for (size_t at = 0; at < end;) {
      const size_t piece = std::min<size_t>(random_() % 120'000 + 1, end - at);
      if (write(fd.get(), file.data() + at, piece) < 0) return;
      at += piece;
      Pause();
    }
  }
  void WriteInParts(const std::string& path) {
    constexpr size_t kPart = 81'920;  // Of whole pages: a hole has no other size.
    const std::string file = SafetensorsOf(tensors_);
    const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (ftruncate(fd.get(), static_cast<off_t>(file.size())) != 0) return;
    std::vector<size_t> parts;
    for (size_t at = 0; at < file.size(); at += kPart) parts.push_back(at);
    std::ranges::shuffle(parts, random_);
    for (const size_t at : parts) {
      const size_t bytes = std::min(kPart, file.size() - at);
      if (pwrite(fd.get(), file.data() + at, bytes, static_cast<off_t>(at)) < 0) return;
      Pause();
    }
  }
  void Cut(const std::string& path) {
    std::error_code gone;
    const uint64_t bytes = fs::file_size(path, gone);
    if (!gone && bytes > 0) fs::resize_file(path, random_() % bytes, gone);
  }
  Tensors SetTensors() {
    Tensors tensors = {{"a", Bytes(random_() % 200'000 + 1)},
                       {"b", Bytes(random_() % 200'000 + 1)}};
    const std::lock_guard lock(mutex_);
    versions_.push_back(tensors);
    return tensors;
  }
  void NewSet() {
    const Tensors tensors = SetTensors();
    const std::string name = Concat("set-", ++sets_);
    fs::create_directory(folder_ + "/" + name);
    Put(name + "/m-1.safetensors", SafetensorsOf({tensors[0]}));
    Put(name + "/m-2.safetensors", SafetensorsOf({tensors[1]}));
    Put(name + "/m.safetensors.index.json",
        R"({"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");
    fs::create_symlink(name, folder_ + "/next");
    fs::rename(folder_ + "/next", folder_ + "/set");
  }
  void NewSetInPlace() {
    const Tensors tensors = SetTensors();
    const std::string name = folder_ + "/parts";
    std::error_code gone;
    fs::remove_all(name, gone);
    fs::create_directory(name, gone);
    for (size_t i = 0; i < 2; ++i) {
      Pause();
      Put(Concat("parts/m-0000", i + 1, "-of-00002.safetensors"), SafetensorsOf({tensors[i]}));
    }
  }

  const std::string folder_;
  std::mt19937 random_;
  Tensors tensors_;  // Of the file's newest version.
  int sets_ = 0;
  std::mutex mutex_;
  std::vector<Tensors> versions_;
};

// Goal: whatever writers do, a load that says OK has the bytes of one version that was whole.
// Writers that overwrite bytes in place, without cutting the file first, are left out: only a
// digest tells what they leave.
TEST_F(WholeTest, WhateverWritersDoTheContentIsOneVersion) {
  std::map<std::string, int> loaded;
  std::map<gpushm_status, int> refused;
  for (uint32_t seed = gpushm::testing::TestSeed(1), last = seed + 4; seed < last; ++seed) {
    SCOPED_TRACE(Concat("GPUSHM_TEST_SEED=", seed));
    const std::string folder = At(Concat("seed-", seed));
    fs::create_directory(folder);
    Writers writers(folder, seed);
    std::atomic<bool> stop = false;
    std::thread thread([&] {
      while (!stop) {
        writers.Step();
        poll(nullptr, 0, writers.RestMs());  // sleep: writers rest between two things that they do
      }
    });
    std::mt19937 random(seed);
    for (const Deadline end = Deadline::AfterMs(1500); !end.Passed();) {
      const std::string name =
          std::vector<std::string>{"one/model.safetensors", "one/", "set/",
                                   "set/m.safetensors.index.json", "parts"}[random() % 5];
      auto options = Sized<gpushm_transfer_options>();
      options.timeout_ms = random() % 3 == 0 ? 100 : GPUSHM_DONT_WAIT;
      options.threads = GPUSHM_NO_THREADS;
      options.chunk_bytes = 64 << 10;
      options.progress = [](void*, uint64_t,
                            uint64_t) {  // A slow disk: writers change it meanwhile.
        poll(nullptr, 0, 4);             // sleep: see above
        return 0;
      };
      auto result = Sized<gpushm_transfer_result>();
      const size_t ready = ready_;
      const gpushm_status status = gpushm_load(
          client_.get(), "weights", Concat(folder, "/", name).c_str(), &options, &result);
      // With no time left, its caller may not hear that the broker took it.
      if (status != GPUSHM_TIMEOUT) {
        EXPECT_EQ(ready_ - ready, status == GPUSHM_OK ? 1u : 0u) << gpushm_last_error()->text;
      }
      if (status == GPUSHM_OK) {
        ++loaded[name];
        EXPECT_TRUE(writers.IsVersion(Content(result.bytes))) << name;
      } else {
        ++refused[status];
        if (status != GPUSHM_TIMEOUT) {
          EXPECT_THAT(gpushm_last_error()->what, HasSubstr(folder)) << status;
        }
      }
      if (HasFailure()) break;
    }
    stop = true;
    thread.join();
    if (HasFailure()) return;
  }
  EXPECT_EQ(loaded.size(), 5u) << "each way was whole at times";
  EXPECT_GT(refused[GPUSHM_BUSY], 0);
  EXPECT_GT(refused[GPUSHM_NOT_FOUND], 0);
  EXPECT_GT(refused[GPUSHM_INVALID_ARGUMENT], 0);
}

}  // namespace
}  // namespace gpushm::client
