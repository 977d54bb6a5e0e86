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
  }
  std::string model() const { return (dir_ / "llama").string(); }

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
  for (const std::string method : {"here", "broker"}) {
    SCOPED_TRACE(method);
    const Output loaded = Ctl({"load", model(), "weights", "--method", method});
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
    const Output save = Ctl({"save", "weights", saved, "--method", method});
    ASSERT_EQ(save.code, 0) << save.err;
    const std::string file = Slurp(saved);
    const std::string all = b_.bytes + c_.bytes + a_.bytes;
    ASSERT_GT(file.size(), all.size());
    EXPECT_TRUE(file.ends_with(all)) << "without gaps";
    EXPECT_THAT(
        file.substr(0, file.size() - all.size()),
        AllOf(HasSubstr(R"("__metadata__":{"format":"pt"})"), HasSubstr(R"("shape":[77])")));
  }
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

TEST_F(CtlTensorsTest, WhatCannotBeLoadedLeavesTheBufferAsItIs) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "8Mi"}).code, 0);
  ASSERT_EQ(Ctl({"load", model(), "weights"}).code, 0);
  ASSERT_EQ(Ctl({"create", "small", "2Mi"}).code, 0);
  for (const std::string method : {"here", "broker"}) {
    const Output small = Ctl({"load", model(), "small", "--method", method});
    EXPECT_NE(small.code, 0);
    EXPECT_THAT(small.err,
                AllOf(HasSubstr("its tensors need 3150984 bytes"), HasSubstr("create --from")));
  }
  std::ofstream(model() + "/model-2.safetensors", std::ios::binary) << "lies";
  const Output lies = Ctl({"load", model(), "weights"});
  EXPECT_NE(lies.code, 0);
  EXPECT_THAT(lies.err, HasSubstr("model-2.safetensors"));
  EXPECT_THAT(Ctl({"ls", "--tensors", "weights"}).out, HasSubstr("[5000]"));
  EXPECT_NE(Ctl({"create", "more", "--from", model()}).code, 0);
  EXPECT_NE(Ctl({"create", "more"}).code, 0) << "neither SIZE nor --from";
  EXPECT_NE(Ctl({"create", "more", "1Mi", "--from", model()}).code, 0) << "both";
}

}  // namespace
}  // namespace gpushm::ctl
