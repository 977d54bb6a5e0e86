// gpushmctl support-bundle as people run it: what is in the archive, and that no secret is.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <map>
#include <thread>

#include "platform/base/version.h"
#include "runtime/ctl/integration_testing.h"
#include "runtime/include/gpushm/sync.h"

namespace gpushm::ctl {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;

// Stands for every secret of the tests: no archive may have it.
constexpr std::string_view kSecret = "hunter2-hunter2";

constexpr std::string_view kStatus = R"({"version": "0.1.0", "node": "node-a",
  "time_unix_ms": 1, "started_unix_ms": 0, "gpus": [], "resources": [],
  "added_by_somebody": "hunter2-hunter2"})";
constexpr std::string_view kMetrics =
    "# TYPE gpushm_up gauge\ngpushm_up 1\napp_password{value=\"hunter2-hunter2\"} 1\n";

// A server on loopback that answers requests one after the other.
class Server {
 public:
  explicit Server(std::map<std::string, std::string> pages)
      : pages_(std::move(pages)), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_.get(), 8), 0);
    EXPECT_EQ(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    where_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    // Without pages it never answers, as a server that hangs.
    if (!pages_.empty()) thread_ = std::thread([this] { Serve(); });
  }
  ~Server() {
    shutdown(listener_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }
  const std::string& where() const { return where_; }

 private:
  void Serve() {
    for (;;) {
      const UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client) return;
      std::string request;
      char part[512];
      while (!request.ends_with("\r\n\r\n")) {
        const ssize_t size = recv(client.get(), part, sizeof part, 0);
        if (size <= 0) break;
        request.append(part, static_cast<size_t>(size));
      }
      const auto page = pages_.find(request.substr(4, request.find(' ', 4) - 4));
      const std::string answer = page == pages_.end() ? "HTTP/1.0 404 Not Found\r\n\r\n"
                                                      : "HTTP/1.0 200 OK\r\n\r\n" + page->second;
      send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  }

  std::map<std::string, std::string> pages_;
  UniqueFd listener_;
  std::string where_;
  std::thread thread_;
};

class SupportBundleTest : public CtlTest {
 protected:
  // {name: content} of the archive's files, as the system's tar unpacks it.
  std::map<std::string, std::string> Unpack(const std::string& archive) {
    const fs::path folder = dir_ / "unpacked";
    fs::remove_all(folder);
    fs::create_directory(folder);
    const Output done = Run({"/bin/tar", "-xf", archive, "-C", folder.string()});
    EXPECT_EQ(done.code, 0) << done.err;
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (!entry.is_regular_file()) continue;
      files[fs::relative(entry.path(), folder).string()] = Slurp(entry.path().string());
    }
    return files;
  }

  std::string Archive() { return (dir_ / "bundle.tar").string(); }

  // Runs the command with `words` and returns what is in its archive.
  std::map<std::string, std::string> Bundle(std::vector<std::string> words,
                                            const Setting& setting = {}) {
    fs::remove(Archive());
    words.insert(words.begin(), {"support-bundle", Archive()});
    said_ = Ctl(words, setting);
    EXPECT_EQ(said_.code, 0) << said_.err;
    const auto files = Unpack(Archive());
    for (const auto& [name, text] : files) {
      EXPECT_THAT(text, Not(HasSubstr(kSecret))) << name;
      if (name.ends_with(".json")) {
        EXPECT_TRUE(IsJson(text)) << name << ": " << text;
      }
    }
    EXPECT_THAT(files, Contains(Key("index.json")));
    return files;
  }

  Output said_;
};

TEST_F(SupportBundleTest, HasAllPartsAndNoSecret) {
  // Of a container that works for somebody else, and must not appear: bytes of a buffer, variables,
  // comments and a key of the plugin's file, a variable of a CDI spec, pages of other servers.
  StartBroker("64Mi", "buffers.gpushm.io/weights: 8Mi");
  std::string model(1 << 20, 'x');
  for (size_t at = 0; at + 64 < model.size(); at += 4096)
    model.replace(at, kSecret.size(), kSecret);
  std::ofstream(dir_ / "model", std::ios::binary) << model;
  ASSERT_EQ(Ctl({"load", (dir_ / "model").string(), "weights"}).code, 0);
  std::ofstream(dir_ / "plugin.yaml")
      << "# " << kSecret << "\nunit: 1Gi  # " << kSecret << "\napi-token: " << kSecret << "\n";
  fs::create_symlink("plugin.yaml", dir_ / "linked.yaml");
  fs::create_directory(dir_ / "cdi");
  std::ofstream(dir_ / "cdi/gpushm.io-memory-m0000.json")
      << R"({"cdiVersion": "0.6.0", "kind": "gpushm.io/memory", "devices": [{"name": "m0000",)"
      << R"("containerEdits": {"env": ["KEY=)" << kSecret << R"("]}}]})";
  std::ofstream(dir_ / "cdi/other.json") << kSecret;
  const Server server(
      {{"/status.json", std::string(kStatus)}, {"/metrics", std::string(kMetrics)}});
  const auto files =
      Bundle({"--node", server.where(), "--metrics", server.where(), "--config",
              (dir_ / "linked.yaml").string(), "--cdi-folder", (dir_ / "cdi").string()},
             {.environment = {Concat("API_TOKEN=", kSecret), Concat("GPUSHM_TOKEN=", kSecret),
                              "NVIDIA_VISIBLE_DEVICES=all"}});
  std::vector<std::string> names;
  for (const auto& [name, text] : files) names.push_back(name);
  EXPECT_THAT(names,
              ::testing::ElementsAre("broker.json", "buffers.json", "doctor.json",
                                     "environment.json", "holders.json", "index.json",
                                     "plugin/cdi.json", "plugin/config.yaml", "plugin/metrics.txt",
                                     "plugin/status.json", "system.json", "versions.json"));
  EXPECT_THAT(files.at("index.json"), Not(HasSubstr("missing"))) << files.at("index.json");
  EXPECT_THAT(files.at("versions.json"), HasSubstr(Concat("\"gpushmctl\": \"", kVersion, "\"")));
  EXPECT_THAT(files.at("environment.json"), HasSubstr("\"NVIDIA_VISIBLE_DEVICES\": \"all\""));
  EXPECT_THAT(files.at("broker.json"), HasSubstr("\"container\": \"app\""));
  EXPECT_THAT(files.at("buffers.json"), HasSubstr("\"name\": \"weights\""));
  EXPECT_THAT(files.at("doctor.json"), HasSubstr("\"name\": \"attach\""));
  EXPECT_THAT(files.at("plugin/status.json"), HasSubstr("node-a"));
  EXPECT_EQ(files.at("plugin/metrics.txt"), "# TYPE gpushm_up gauge\ngpushm_up 1\n");
  EXPECT_EQ(files.at("plugin/config.yaml"), "\nunit: 1Gi  \napi-token: (removed)\n");
  EXPECT_THAT(files.at("plugin/cdi.json"), AllOf(HasSubstr("m0000"), HasSubstr("KEY=(left out)")));
  EXPECT_THAT(said_.out, AllOf(HasSubstr(": 11 parts\n"), HasSubstr("before you publish it")));
  EXPECT_EQ(fs::status(Archive()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(SupportBundleTest, SaysWhoHoldsWhat) {
  StartBroker("64Mi", "{signals.gpushm.io/frame: ''}");
  gpushm_client* client = nullptr;
  ASSERT_EQ(gpushm_open(nullptr, &client), GPUSHM_OK);
  gpushm_signal* frame = nullptr;
  ASSERT_EQ(gpushm_signal_open(client, "frame", nullptr, &frame), GPUSHM_OK);
  EXPECT_THAT(Bundle({}).at("holders.json"),
              AllOf(HasSubstr("\"buffer\": \"frame\""), HasSubstr("\"container\": \"app\""),
                    HasSubstr("\"lease_id\": \"")));
  EXPECT_EQ(gpushm_signal_close(frame), GPUSHM_OK);
  gpushm_close(client);
}

TEST_F(SupportBundleTest, GoesToStandardOutput) {
  StartBroker();
  const Output piped = Ctl({"support-bundle"});
  EXPECT_EQ(piped.code, 0) << piped.err;
  EXPECT_THAT(piped.err, HasSubstr("wrote the bundle to standard output"));
  std::ofstream(Archive(), std::ios::binary) << piped.out;
  EXPECT_THAT(Unpack(Archive()), Contains(Key("broker.json")));
  const Output json = Ctl({"support-bundle", "-", "-o", "json"});
  EXPECT_TRUE(IsJson(json.err)) << json.err;
  const Output terminal =
      Run({"/usr/bin/script", "-qec", build_ + "/bin/gpushmctl support-bundle", "/dev/null"});
  EXPECT_EQ(terminal.code, 2);
  EXPECT_THAT(terminal.out, HasSubstr("remedy: write it to a file"));
}

TEST_F(SupportBundleTest, InTheSidecarItUsesTheFirstContainersSocket) {
  StartBroker();
  const auto files = Bundle({"--folder", (dir_ / "run").string()});
  EXPECT_THAT(files.at("broker.json"), HasSubstr("\"container\": \"app\""));
}

TEST_F(SupportBundleTest, WithoutBrokerAndPluginItSaysSo) {
  const auto nobody = Bundle({});
  EXPECT_THAT(nobody, Not(Contains(Key("broker.json"))));
  EXPECT_THAT(nobody.at("doctor.json"), HasSubstr("\"level\": \"fail\""));
  EXPECT_THAT(said_.out, AllOf(HasSubstr("not in it: broker.json: "),
                               HasSubstr("not in it: plugin/status.json: no server listens at")));
  // A broker that was killed leaves its socket.
  StartBroker();
  StopBroker();
  ASSERT_TRUE(fs::exists(dir_ / "run/app/gpushm.sock"));
  EXPECT_THAT(Bundle({}).at("index.json"), HasSubstr("\"state\": \"missing\""));
}

// Goal: nothing that hangs makes the bundle hang. Method: a stopped broker, a server that accepts
// and does not answer, and a driver that sleeps a minute; the alarm of Run() ends a program that
// takes as long.
TEST_F(SupportBundleTest, NothingThatHangsHoldsItUp) {
  StartBroker();
  kill(broker_, SIGSTOP);
  const Server silent({});
  const auto files =
      Bundle({"--node", silent.where(), "--metrics", silent.where(), "--timeout", "500ms"},
             {.environment = {"GPUSHM_SIM_FAULT={hang: {cuInit: 60000}}"}});
  kill(broker_, SIGCONT);
  EXPECT_THAT(files, Not(Contains(Key("broker.json"))));
  EXPECT_THAT(files, Not(Contains(Key("plugin/status.json"))));
  EXPECT_THAT(files.at("index.json"), HasSubstr("did not answer in time"));
  EXPECT_THAT(files.at("doctor.json"), HasSubstr("no answer within 500 ms"));
}

TEST_F(SupportBundleTest, ManyBuffers) {
  StartBroker("2Gi");
  gpushm_client* client = nullptr;
  ASSERT_EQ(gpushm_open(nullptr, &client), GPUSHM_OK);
  constexpr int kCount = 500;
  for (int i = 0; i < kCount; ++i) {
    ASSERT_EQ(gpushm_create(client, Concat("b", i).c_str(), 2 << 20, nullptr, nullptr), GPUSHM_OK)
        << gpushm_last_error()->text;
  }
  const auto files = Bundle({});
  EXPECT_THAT(files.at("buffers.json"), HasSubstr("\"name\": \"b499\""));
  EXPECT_LT(fs::file_size(Archive()), size_t{2} << 20);
  gpushm_close(client);
}

TEST_F(SupportBundleTest, SaysWhyItCannotWrite) {
  const std::string program = build_ + "/bin/gpushmctl";
  const Output full = Run({"/bin/sh", "-c", program + " support-bundle >/dev/full"});
  EXPECT_EQ(full.code, 1);
  EXPECT_THAT(full.err, AllOf(HasSubstr("No space left on device"), HasSubstr("remedy: ")));
  // EFBIG in place of ENOSPC: nothing remains that looks like a bundle.
  const Output limit =
      Run({"/bin/sh", "-c",
           Concat("trap '' XFSZ; ulimit -f 2; exec ", program, " support-bundle ", Archive())});
  EXPECT_EQ(limit.code, 1);
  EXPECT_THAT(limit.err, HasSubstr("File too large"));
  EXPECT_FALSE(fs::exists(Archive()));
  std::ofstream(Archive()) << "mine";
  const Output exists = Ctl({"support-bundle", Archive()});
  EXPECT_EQ(exists.code, 10);
  EXPECT_EQ(Slurp(Archive()), "mine");
  EXPECT_EQ(Ctl({"support-bundle", "/nowhere/x.tar"}).code, 1);
}

TEST_F(SupportBundleTest, NeedsARightToWrite) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  fs::create_directory(dir_ / "closed");
  fs::permissions(dir_ / "closed", fs::perms::owner_all);
  const Output denied = Ctl({"support-bundle", (dir_ / "closed/x.tar").string()}, {.uid = kNobody});
  EXPECT_EQ(denied.code, 1);
  EXPECT_THAT(denied.err, AllOf(HasSubstr("Permission denied"), HasSubstr("support-bundle > ")));
}

}  // namespace
}  // namespace gpushm::ctl
