// Goal: a model of several files is created, loaded by each method, listed and saved by gpushmctl,
// and each tensor's bytes are where the list says. Method: real processes; the raw bytes of the
// buffer are compared (integration_testing.h).
#include <cstring>

#include "runtime/ctl/integration_testing.h"

namespace gpushm::ctl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Piece {
  std::string name;
  std::string bytes;
};

std::string Bytes(size_t size, char seed) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(seed + static_cast<char>(i * 7));
  return bytes;
}

std::string Safetensors(const std::vector<Piece>& pieces) {
  std::string header = R"({"__metadata__":{"format":"pt"})";
  std::string data;
  for (const Piece& piece : pieces) {
    header +=
        Concat(",\"", piece.name, R"(":{"dtype":"U8","shape":[)", piece.bytes.size(),
               R"(],"data_offsets":[)", data.size(), ',', data.size() + piece.bytes.size(), "]}");
    data += piece.bytes;
  }
  header += "}";
  std::string file(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(file.data(), &size, sizeof size);
  return file + header + data;
}

class CtlTensorsTest : public CtlTest {
 protected:
  void SetUp() override {
    CtlTest::SetUp();
    std::filesystem::create_directory(model());
    std::ofstream(model() + "/model-1.safetensors", std::ios::binary) << Safetensors({b_, c_});
    std::ofstream(model() + "/model-2.safetensors", std::ios::binary) << Safetensors({a_});
    std::ofstream(model() + "/model.safetensors.index.json")
        << R"({"weight_map":{"a":"model-2.safetensors","b":"model-1.safetensors",)"
        << R"("c":"model-1.safetensors"}})";
    for (const char* const shard : {"/model-1.safetensors", "/model-2.safetensors"}) {
      gpushm::testing::Settle(model() + shard);
    }
  }
  std::string model() const { return (dir_ / "llama").string(); }
  // The pool, as soon as that many of its bytes are used.
  std::string EventuallyUsed(uint64_t bytes) {
    const std::string text = Concat("\"used_bytes\": ", bytes, ',');
    for (const Deadline deadline = Deadline::AfterMs(kRunMs);;) {
      const std::string found = Ctl({"stat", "-o", "json"}).out;
      if (found.find(text) != std::string::npos || deadline.Passed()) return found;
    }
  }

  const Piece a_{"a", Bytes(5000, 'a')};
  const Piece b_{"b", Bytes(3 << 20, 'b')};  // 12288 times 256: "c" follows at once.
  const Piece c_{"c", Bytes(77, 'c')};
  // Where they are in the buffer: b and c of the first file, a of the second.
  static constexpr uint64_t kC = 3 << 20;
  static constexpr uint64_t kA = kC + 256;
};

TEST_F(CtlTensorsTest, AModelIsLaidOutListedAndSavedAgain) {
  StartBroker();
  const Output created = Ctl({"create", "weights", "--from", model()});
  ASSERT_EQ(created.code, 0) << created.err;
  const Output loaded = Ctl({"load", model(), "weights"});
  ASSERT_EQ(loaded.code, 0) << loaded.err;
  const Output list = Ctl({"ls", "--tensors", "weights"});
  ASSERT_EQ(list.code, 0) << list.err;
  EXPECT_THAT(list.out, AllOf(HasSubstr("a       U8    [5000]     3145984"),
                              HasSubstr("c       U8    [77]       3145728")));
  const Output json = Ctl({"ls", "--tensors", "weights", "-o", "json"});
  EXPECT_TRUE(IsJson(json.out)) << json.out;
  EXPECT_THAT(json.out, HasSubstr("\"dtype\": \"U8\""));

  const std::string raw = (dir_ / "raw").string();
  ASSERT_EQ(Ctl({"save", "weights", raw, "--format", "raw"}).code, 0);
  const std::string bytes = Slurp(raw);
  ASSERT_EQ(bytes.size(), kA + a_.bytes.size()) << "the content ends with the last tensor";
  EXPECT_TRUE(bytes.substr(0, kC) == b_.bytes);
  EXPECT_EQ(bytes.substr(kC, c_.bytes.size()), c_.bytes);
  EXPECT_TRUE(bytes.substr(kA) == a_.bytes);

  const std::string saved = (dir_ / "saved.safetensors").string();
  const Output save = Ctl({"save", "weights", saved});
  ASSERT_EQ(save.code, 0) << save.err;
  const std::string file = Slurp(saved);
  const std::string all = b_.bytes + c_.bytes + a_.bytes;
  ASSERT_GT(file.size(), all.size());
  EXPECT_TRUE(file.ends_with(all)) << "without gaps";
  EXPECT_THAT(file.substr(0, file.size() - all.size()),
              AllOf(HasSubstr(R"("__metadata__":{"format":"pt"})"), HasSubstr(R"("shape":[77])")));
}

// Goal: the digest is that of the tensors, whatever the way in. Method: one file, an index and a
// folder with other shards, order and padding, and the next generation.
TEST_F(CtlTensorsTest, TheDigestIsThatOfTheTensors) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "8Mi"}).code, 0);
  const std::string one = (dir_ / "one.safetensors").string();
  std::ofstream(one, std::ios::binary) << Safetensors({a_, b_, c_});
  const std::string index = model() + "/model.safetensors.index.json";
  const auto digest = [&] {
    const std::string json = Ctl({"stat", "weights", "-o", "json"}).out;
    const size_t at = json.find("\"digest\": \"g1:");
    return at == std::string::npos ? "" : json.substr(at + 11, 35);
  };
  EXPECT_EQ(digest(), "") << "nobody loaded it";
  ASSERT_EQ(Ctl({"load", one, "weights"}).code, 0);
  const std::string first = digest();
  ASSERT_EQ(first.size(), 35U);
  EXPECT_THAT(Ctl({"stat", "weights"}).out, HasSubstr("digest:      " + first));
  for (const std::string& way : {index, model(), one}) {
    SCOPED_TRACE(way);
    const Output loaded = Ctl({"load", way, "weights", "--digest", first, "-o", "json"});
    ASSERT_EQ(loaded.code, 0) << loaded.err;
    EXPECT_THAT(loaded.out, HasSubstr("\"digest\": \"" + first + "\""));
    EXPECT_EQ(digest(), first);
    EXPECT_EQ(Ctl({"verify", "weights", way}).code, 0);
    ASSERT_EQ(Ctl({"load", way, "weights", "--next"}).code, 0);
    EXPECT_EQ(digest(), first) << "the next generation";
  }
  const Output verified = Ctl({"verify", "weights"});
  EXPECT_EQ(verified.code, 0) << verified.err;
  EXPECT_THAT(verified.out, HasSubstr(first + ", the same as of the load"));
  ASSERT_EQ(Ctl({"load", one, "weights", "--format", "raw", "--next"}).code, 0);
  EXPECT_NE(digest(), first) << "bytes are no tensors";
  EXPECT_EQ(Ctl({"verify", "weights", one}).code, 1);
  EXPECT_EQ(Ctl({"verify", "weights", one, "--format", "raw"}).code, 0);
}

// Goal: a buffer is never READY with other content than --digest announces.
TEST_F(CtlTensorsTest, OtherContentThanAnnouncedIsRefused) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "8Mi"}).code, 0);
  ASSERT_EQ(Ctl({"load", model(), "weights"}).code, 0);
  const std::string other = "g1:0123456789abcdef0123456789abcdef";
  const Output next = Ctl({"load", model(), "weights", "--next", "--digest", other});
  EXPECT_EQ(next.code, 2);
  EXPECT_EQ(Ctl({"verify", "weights"}).code, 0) << "the former generation stays";
  const Output wrong = Ctl({"verify", "weights", "--digest", other, "-o", "json"});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.out,
              AllOf(HasSubstr("\"expected\": \"" + other), HasSubstr("\"equal\": false")));
  const Output refused = Ctl({"load", model(), "weights", "--digest", other});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("llama has the digest g1:"), HasSubstr(other)));
  EXPECT_THAT(Ctl({"stat", "weights"}).out, HasSubstr("failed"));
  EXPECT_EQ(Ctl({"load", model(), "weights", "--digest", "g1:5"}).code, 2);
  EXPECT_EQ(Ctl({"verify", "weights", model(), "--digest", other}).code, 2) << "one of the two";
}

TEST_F(CtlTensorsTest, TheFormatCanBeChosen) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "8Mi"}).code, 0);
  const std::string file = model() + "/model-1.safetensors";
  ASSERT_EQ(Ctl({"load", file, "weights", "--format", "raw"}).code, 0);
  const Output none = Ctl({"ls", "--tensors", "weights"});
  EXPECT_EQ(none.code, 3);
  EXPECT_THAT(none.err, AllOf(HasSubstr("has no description"), HasSubstr("gpushmctl load")));
  const std::string copy = (dir_ / "copy").string();
  ASSERT_EQ(Ctl({"save", "weights", copy}).code, 0);
  EXPECT_TRUE(Slurp(copy) == Slurp(file)) << "it was loaded as it is";
  EXPECT_NE(Ctl({"save", "weights", copy, "--format", "tensors"}).code, 0);

  ASSERT_EQ(Ctl({"load", file, "weights"}).code, 0);
  EXPECT_THAT(Ctl({"ls", "--tensors", "weights"}).out, HasSubstr("[77]"));
  ASSERT_EQ(Ctl({"load", file, "weights", "--format", "raw"}).code, 0);
  EXPECT_EQ(Ctl({"ls", "--tensors", "weights"}).code, 3) << "the former description is gone";
}

// Goal: every way takes the same files for tensors, and any one index of a folder decides. Method:
// the index of a variant, as transformers writes it, was loaded as text.
TEST_F(CtlTensorsTest, TheIndexOfAVariantIsAnIndex) {
  StartBroker();
  const std::string index = model() + "/model.safetensors.index.fp16.json";
  fs::rename(model() + "/model.safetensors.index.json", index);
  std::ofstream(model() + "/stale.safetensors", std::ios::binary) << Safetensors({a_});
  ASSERT_EQ(Ctl({"create", "weights", "--from", index}).code, 0);
  EXPECT_THAT(Ctl({"stat", "weights"}).out, HasSubstr(std::to_string(kA + a_.bytes.size())));
  for (const std::string& path : {index, model()}) {
    ASSERT_EQ(Ctl({"load", path, "weights"}).code, 0);
    EXPECT_THAT(Ctl({"ls", "--tensors", "weights"}).out, HasSubstr("[5000]"));
    ASSERT_EQ(Ctl({"load", "--next", path, "weights"}).code, 0);
    EXPECT_THAT(Ctl({"ls", "--tensors", "weights"}).out, HasSubstr("[5000]"));
  }
}

// Goal: a generation gets the size of the files that are there when it is loaded.
TEST_F(CtlTensorsTest, TheNextGenerationWaitsForItsFiles) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "2Mi"}).code, 0);
  ASSERT_EQ(Ctl({"load", WriteFile("plain", 1000), "weights"}).code, 0);
  const std::string shard = model() + "/model-2.safetensors";
  fs::rename(shard, shard + ".later");
  const Output missing = Ctl({"load", "--next", model(), "weights"});
  EXPECT_EQ(missing.code, 3) << missing.err;
  EXPECT_THAT(missing.err, HasSubstr("model-2.safetensors"));
  const pid_t loader = fork();
  if (loader == 0) {
    RedirectTo(STDERR_FILENO, "late.err");
    Exec({build_ + "/bin/gpushmctl", "load", "--next", model(), "weights", "--timeout", "25s"});
  }
  fs::rename(shard + ".later", shard);
  int status = -1;
  waitpid(loader, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << Slurp((dir_ / "late.err").string());
  EXPECT_THAT(Ctl({"ls", "--tensors", "weights"}).out, HasSubstr("[5000]"));
}

TEST_F(CtlTensorsTest, WhatCannotBeLoadedLeavesTheBufferAsItIs) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "8Mi"}).code, 0);
  ASSERT_EQ(Ctl({"load", model(), "weights"}).code, 0);
  ASSERT_EQ(Ctl({"create", "small", "2Mi"}).code, 0);
  const Output small = Ctl({"load", model(), "small"});
  EXPECT_NE(small.code, 0);
  EXPECT_THAT(small.err,
              AllOf(HasSubstr("its tensors need 3150984 bytes"), HasSubstr("create --from")));
  std::ofstream(model() + "/model-2.safetensors", std::ios::binary) << "lies";
  const Output lies = Ctl({"load", model(), "weights"});
  EXPECT_NE(lies.code, 0);
  EXPECT_THAT(lies.err, HasSubstr("model-2.safetensors"));
  EXPECT_THAT(Ctl({"ls", "--tensors", "weights"}).out, HasSubstr("[5000]"));
  EXPECT_NE(Ctl({"create", "more", "--from", model()}).code, 0);
  EXPECT_NE(Ctl({"create", "more"}).code, 0) << "neither SIZE nor --from";
  EXPECT_NE(Ctl({"create", "more", "1Mi", "--from", model()}).code, 0) << "both";
}

// Goal: --next makes a generation of the size that the files need and shows it when it is whole; a
// program that holds the former one keeps it. Method: a client in this process is the reader.
TEST_F(CtlTensorsTest, TheNextGenerationComesWhole) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "2Mi"}).code, 0);
  const std::string plain = WriteFile("plain", 1 << 20);
  ASSERT_EQ(Ctl({"load", plain, "weights"}).code, 0);
  gpushm_open_options opening;
  GPUSHM_INIT(&opening);
  gpushm_client* client = nullptr;
  ASSERT_EQ(gpushm_open(&opening, &client), GPUSHM_OK) << gpushm_last_error()->text;
  gpushm_attachment* held = nullptr;
  ASSERT_EQ(gpushm_attach(client, "weights", nullptr, &held), GPUSHM_OK);
  const auto look = [&] {
    gpushm_info info;
    GPUSHM_INIT(&info);
    EXPECT_EQ(gpushm_lookup(client, "weights", &info), GPUSHM_OK) << gpushm_last_error()->text;
    return info;
  };
  const uint64_t first = look().generation;

  const Output loaded = Ctl({"load", "--next", model(), "weights"});
  ASSERT_EQ(loaded.code, 0) << loaded.err;
  const gpushm_info model_info = look();
  EXPECT_GT(model_info.generation, first);
  EXPECT_THAT(loaded.out, HasSubstr(Concat(", generation ", model_info.generation, "\n")));
  EXPECT_EQ(model_info.size_bytes, kA + a_.bytes.size());
  EXPECT_THAT(Ctl({"ls", "--tensors", "weights"}).out, HasSubstr("[5000]"));
  EXPECT_EQ(gpushm_attachment_check(held), GPUSHM_STALE);
  ASSERT_EQ(gpushm_attachment_detach(held, nullptr), GPUSHM_OK);

  // A plain file, a file of tensors as it is, and a stream, which gets the present size.
  const Output json = Ctl({"load", "--next", plain, "weights", "-o", "json"});
  ASSERT_EQ(json.code, 0) << json.err;
  EXPECT_TRUE(IsJson(json.out));
  EXPECT_THAT(json.out, HasSubstr(Concat("\"generation\": \"", look().generation, '"')));
  EXPECT_EQ(look().size_bytes, 1u << 20);
  EXPECT_EQ(look().description_bytes, 0u);
  const std::string copy = (dir_ / "copy").string();
  ASSERT_EQ(Ctl({"save", "weights", copy}).code, 0);
  EXPECT_TRUE(Slurp(copy) == Slurp(plain));
  const std::string shard = model() + "/model-1.safetensors";
  ASSERT_EQ(Ctl({"load", "--next", shard, "weights", "--format", "raw"}).code, 0);
  EXPECT_EQ(look().size_bytes, fs::file_size(shard));
  const Output piped =
      Run({"/bin/sh", "-c",
           "head -c 1000 " + shard + " | " + build_ + "/bin/gpushmctl load --next - weights"});
  ASSERT_EQ(piped.code, 0) << piped.err;
  EXPECT_EQ(look().size_bytes, fs::file_size(shard));
  EXPECT_EQ(look().content_bytes, 1000u);
  gpushm_close(client);
}

TEST_F(CtlTensorsTest, WithoutANextGenerationTheFormerOneStays) {
  StartBroker("16Mi");
  ASSERT_EQ(Ctl({"create", "weights", "--from", model()}).code, 0);
  ASSERT_EQ(Ctl({"load", model(), "weights"}).code, 0);
  const std::string generation = Ctl({"stat", "weights", "-o", "json"}).out;
  const auto expect_same = [&] {
    const std::string now = Ctl({"stat", "weights", "-o", "json"}).out;
    const auto of = [](const std::string& text) {
      const size_t at = text.find("\"generation\"");
      return text.substr(at, text.find('\n', at) - at);
    };
    EXPECT_EQ(of(now), of(generation));
    EXPECT_THAT(now, HasSubstr("\"state\": \"ready\""));
  };

  // Rights are those of a replace.
  const Output denied = Ctl({"load", "--next", model(), "weights"},
                            {.environment = {"GPUSHM_DIR=" + (dir_ / "run/other").string()}});
  EXPECT_EQ(denied.code, 4) << denied.err;
  EXPECT_THAT(denied.err, HasSubstr("may not write"));
  expect_same();
  const Output missing = Ctl({"load", "--next", model(), "weigths"});
  EXPECT_EQ(missing.code, 3) << missing.err;
  EXPECT_THAT(missing.err, HasSubstr("did you mean \"weights\"?"));
  const Output blind =
      Ctl({"load", "--next", model(), "weights"}, {.environment = {"CUDA_VISIBLE_DEVICES="}});
  EXPECT_NE(blind.code, 0);
  EXPECT_THAT(blind.err, HasSubstr("gpushm.io/attach"));
  EXPECT_EQ(Ctl({"load", "--next", (dir_ / "nowhere").string(), "weights"}).code, 3);
  const std::string large = WriteFile("large", 0);
  fs::resize_file(large, 32 << 20);
  gpushm::testing::Settle(large);
  EXPECT_EQ(Ctl({"load", "--next", large, "weights"}).code, 5) << "the pool is too small";
  expect_same();

  // A pipe that stalls, and a process that is killed.
  const std::string pipe = (dir_ / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const UniqueFd held(open(pipe.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(write(held.get(), "few", 3), 3);
  const Output late = Ctl({"load", "--next", pipe, "weights", "--timeout", "300ms"});
  EXPECT_EQ(late.code, 6) << late.err;
  expect_same();
  const pid_t loader = fork();
  if (loader == 0) {
    RedirectTo(STDERR_FILENO, "killed.err");
    Exec({build_ + "/bin/gpushmctl", "load", "--next", pipe, "weights"});
  }
  // Two generations of 4 MiB are there as long as it loads.
  EXPECT_THAT(EventuallyUsed(8 << 20), HasSubstr(Concat(8 << 20)));
  kill(loader, SIGKILL);
  waitpid(loader, nullptr, 0);
  EXPECT_THAT(EventuallyUsed(4 << 20), HasSubstr(Concat(4 << 20)));
  expect_same();
  EXPECT_EQ(Ctl({"load", "--next", model(), "weights"}).code, 0);
}

}  // namespace
}  // namespace gpushm::ctl
