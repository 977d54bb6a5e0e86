// top --node: the plugin's document, its picture on a terminal, and the small HTTP client that
// fetches it.
#include <arpa/inet.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <functional>
#include <string>
#include <thread>

#include "platform/base/unique_fd.h"
#include "runtime/ctl/http.h"
#include "runtime/ctl/node_view.h"

namespace gpushm::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A GPU with 100 bytes: 30 shared, 20 held by one, 10 idle, 15 granted, 5 other, 20 free.
constexpr std::string_view kDocument = R"({
  "version": "1.2.3", "node": "node-a", "time_unix_ms": 1763724600000, "started_unix_ms": 0,
  "gpus": [{
    "uuid": "GPU-1", "index": 0, "model": "NVIDIA H200", "mig_profile": "", "healthy": true,
    "reason": "", "taken_by": "", "drained": "", "exclusive_to": "",
    "total_bytes": 100, "used_bytes": 65, "allocatable_bytes": 90,
    "bound_bytes": 78, "buffers_bytes": 60, "other_bytes": 5, "saved_bytes": 60, "kept_bytes": 0,
    "utilization": 0.93, "temperature_celsius": 61, "power_watts": null, "sampled_unix_ms": null,
    "pools": [{
      "allocation": "m0003", "namespace": "chat", "pod": "server-0", "gpu_number": 0,
      "pod_gpus": 1, "size_bytes": 78, "allocated_bytes": 60, "broker": "away",
      "buffers": [
        {"name": "kv", "state": "writer-died", "transport": "vmm", "creator": "", "size_bytes": 20,
         "allocated_bytes": 20, "generations": 1, "created_unix_ms": 0,
         "content_bytes": 0, "loaded_bytes": null, "reason": null, "reason_code": null,
         "attachments": [{"container": "engine", "access": "rw", "count": 1,
                          "mapped_bytes": 20, "proportional_bytes": 20}]},
        {"name": "weights", "state": "ready", "transport": "vmm", "creator": "", "size_bytes": 30,
         "allocated_bytes": 30, "generations": 1, "created_unix_ms": 0,
         "content_bytes": 0, "loaded_bytes": null, "reason": null, "reason_code": null,
         "attachments": [{"container": "engine", "access": "ro", "count": 2,
                          "mapped_bytes": 60, "proportional_bytes": 20},
                         {"container": "ranker\u001b[31m", "access": "ro", "count": 1,
                          "mapped_bytes": 30, "proportional_bytes": 10}]},
        {"name": "spare", "state": "loading", "transport": "vmm", "creator": "", "size_bytes": 10,
         "allocated_bytes": 10, "generations": 1, "created_unix_ms": 0,
         "content_bytes": 0, "loaded_bytes": 3, "reason": "no file a.bin", "reason_code": "NOT_FOUND",
         "attachments": []}],
      "containers": [
        {"name": "engine", "clients": 2, "mapped_bytes": 80, "proportional_bytes": 40,
         "private_bytes": 3, "private_limit_bytes": null},
        {"name": "gpushm", "clients": 0, "mapped_bytes": 0, "proportional_bytes": 10,
         "private_bytes": null, "private_limit_bytes": null}], "mps": null}]}],
  "resources": []
})";

std::string With(std::string from, std::string to) {
  std::string text(kDocument);
  text.replace(text.find(from), from.size(), to);
  return text;
}

std::string Shown(const std::string& json, NodeStyle style = {}) {
  const auto node = status::FromJson(json);
  EXPECT_TRUE(node) << node.error().ToString();
  return node ? NodeText(*node, style) : "";
}

TEST(NodeText, DrawsABarWhosePartsAddUp) {
  const std::string text = Shown(std::string(kDocument), {.style = {}, .columns = 102});
  EXPECT_THAT(text,
              HasSubstr("[" + std::string(30, '#') + std::string(20, '=') + std::string(10, '-') +
                        std::string(15, ':') + std::string(5, '%') + std::string(20, '.') + "]"));
  for (int columns = 1; columns < 200; columns += 7) {
    const std::string bar = Shown(std::string(kDocument), {.style = {}, .columns = columns});
    EXPECT_EQ(bar.find(']') - bar.find('[') - 1,
              static_cast<size_t>(std::clamp(columns - 2, 10, 100)));
  }
  EXPECT_THAT(Shown(std::string(kDocument), {.style = {}, .unicode = true}), HasSubstr("█"));
}

TEST(NodeText, SaysWhoHoldsWhat) {
  const std::string text = Shown(std::string(kDocument));
  EXPECT_THAT(text, StartsWith("gpushm  2025-11-21T11:30:00Z  node node-a\nsaved by sharing 60\n"));
  EXPECT_THAT(text, HasSubstr("GPU 0  NVIDIA H200  healthy  93% busy  61 C\n"));
  EXPECT_THAT(text, HasSubstr("used 65 of 100, buffers 60, other 5, granted 78 of 90, saved 60\n"));
  const std::string table = text.substr(text.find("GPU  POD"));
  EXPECT_EQ(table,
            "GPU  POD                          BUFFER   STATE        SIZE  HOLDER       ACCESS  "
            "COUNT  MAPPED  SHARE\n"
            "0    chat/server-0 (broker away)  weights  ready          30  engine       ro         "
            " 2      60     20\n"
            "                                                              ranker?[31m  ro         "
            " 1      30     10\n"
            "                                  kv       writer-died    20  engine       rw         "
            " 1      20     20\n"
            "                                  spare    loading        10  -\n");
}

TEST(NodeText, KeepsToTheScreen) {
  const std::string text = Shown(std::string(kDocument), {.style = {}, .columns = 80, .rows = 10});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 9);
  EXPECT_THAT(text, HasSubstr("\n... and 6 more lines\n"));
}

TEST(NodeText, SaysWhatIsNotKnownAndWhatIsSick) {
  const std::string unknown = Shown(With("\"used_bytes\": 65", "\"used_bytes\": null"));
  EXPECT_THAT(unknown, HasSubstr("used unknown of 100"));
  const std::string sick = Shown(With("\"healthy\": true,\n    \"reason\": \"\"",
                                      "\"healthy\": false,\n    \"reason\": \"XID 79\\u001b]0;\""));
  EXPECT_THAT(sick, HasSubstr("unhealthy: XID 79?]0;"));
  EXPECT_THAT(sick, Not(HasSubstr("\033")));
  EXPECT_THAT(Shown(With("\"exclusive_to\": \"\"", "\"exclusive_to\": \"chat/server-0\"")),
              HasSubstr("healthy  only for chat/server-0"));
  EXPECT_THAT(Shown(With(std::string(kDocument.substr(kDocument.find("{\n    \"uuid"),
                                                      kDocument.find("],\n  \"resources") -
                                                          kDocument.find("{\n    \"uuid"))),
                         "")),
              HasSubstr("gpushm manages no GPU of"));
}

// A pod with the GPUs 0 and 1, and one that has GPU 1 only.
status::Node Pair() {
  status::Pool first{.allocation = "m0000", .name_space = "rl", .pod = "trainer", .pod_gpus = 2};
  first.broker = "connected";
  first.buffers = {{.name = "weights-0", .state = "ready"}};
  status::Pool second = first;
  first.containers = {{.name = "engine", .clients = 3}};
  second.gpu_number = 1;
  second.buffers[0].name = "weights-1";
  second.containers = {{.name = "engine"}};
  const status::Pool other{.allocation = "m0004", .name_space = "chat", .pod = "server"};
  status::Node node{.gpus = {{.uuid = "GPU-a", .index = 0}, {.uuid = "GPU-b", .index = 1}}};
  node.gpus[0].pools = {first};
  node.gpus[1].pools = {second, other};
  return node;
}

TEST(NodeText, NumbersTheGpusOfAPodWithSeveral) {
  const std::string text = NodeText(Pair(), {});
  EXPECT_THAT(text, HasSubstr("0    rl/trainer (number 0 of its 2 GPUs)"));
  EXPECT_THAT(text, HasSubstr("1    rl/trainer (number 1 of its 2 GPUs)"));
  EXPECT_THAT(text, Not(HasSubstr("server (number")));
}

TEST(PodsText, NamesThePodsProcessesOnEachOfItsGpus) {
  const status::Node node = Pair();
  const std::string text = PodsText(node, node.gpus[1], false);
  EXPECT_THAT(text, ::testing::ContainsRegex("trainer .number 1 of its 2 GPUs. +0 +0 +engine\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("chat/server +0 +0 +-\n"));
}

TEST(ParseAddress, TakesNumbersOnly) {
  EXPECT_EQ(ParseAddress("127.0.0.1:9401").value().port, "9401");
  EXPECT_EQ(ParseAddress("localhost:1").value().host, "127.0.0.1");
  EXPECT_EQ(ParseAddress("[::1]:9401").value().host, "::1");
  for (const char* bad :
       {"", ":", "9401", "127.0.0.1", "127.0.0.1:", ":9401", "node-a:9401", "127.0.0.1:http"}) {
    const auto address = ParseAddress(bad);
    ASSERT_FALSE(address) << bad;
    EXPECT_EQ(address.error().code(), Code::kInvalidArgument);
  }
}

TEST(BodyOf, TakesWhatIsWhole) {
  EXPECT_EQ(BodyOf("HTTP/1.1 200 OK\r\n\r\nhello").value(), "hello");
  EXPECT_EQ(BodyOf("HTTP/1.0 200 OK\r\ncontent-length:  5\r\nX: y\r\n\r\nhello").value(), "hello");
  const auto cut_off = BodyOf("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello");
  EXPECT_EQ(cut_off.error().code(), Code::kCorrupt);
  EXPECT_THAT(cut_off.error().what(), testing::HasSubstr("5 of 6 bytes"));
  EXPECT_EQ(BodyOf("HTTP/1.1 503 Service Unavailable\r\n\r\n").error().code(), Code::kUnavailable);
  for (const char* bad : {"", "SSH-2.0-x\r\n\r\n", "HTTP/1.1", "HTTP/1.1 200 OK\r\nhello"}) {
    EXPECT_EQ(BodyOf(bad).error().code(), Code::kCorrupt) << bad;
  }
}

// A server on loopback that accepts one connection and passes it to `serve`.
class Server {
 public:
  explicit Server(std::function<void(int)> serve) : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_.get(), 1), 0);
    EXPECT_EQ(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, serve] {
      const UniqueFd client(accept(listener_.get(), nullptr, nullptr));
      if (client) serve(client.get());
    });
  }
  ~Server() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  Address address() const { return {"127.0.0.1", std::to_string(port_)}; }

 private:
  UniqueFd listener_;
  uint16_t port_ = 0;
  std::thread thread_;
};

std::string RequestOf(int fd) {
  std::string request;
  char part[256];
  while (!request.ends_with("\r\n\r\n")) {
    const ssize_t size = recv(fd, part, sizeof part, 0);
    if (size <= 0) break;
    request.append(part, static_cast<size_t>(size));
  }
  return request;
}

void Send(int fd, std::string_view text) { send(fd, text.data(), text.size(), MSG_NOSIGNAL); }

TEST(HttpGet, FetchesADocument) {
  std::string request;
  std::string body(1 << 20, 'x');
  {
    const Server server([&](int fd) {
      request = RequestOf(fd);
      Send(fd, Concat("HTTP/1.1 200 OK\r\nContent-Length: ", body.size(), "\r\n\r\n"));
      Send(fd, body);
    });
    const auto got = HttpGet(server.address(), "/status.json", Deadline::AfterMs(10'000));
    ASSERT_TRUE(got) << got.error().ToString();
    EXPECT_EQ(*got, body);
  }
  EXPECT_THAT(request, StartsWith("GET /status.json HTTP/1.0\r\nHost: 127.0.0.1:"));
}

TEST(HttpGet, NeverOutlivesItsDeadline) {
  const Server server([](int fd) {
    RequestOf(fd);
    Send(fd, "HTTP/1.1 200 OK\r\n");
    RequestOf(fd);  // Sends no answer, and waits until the client gives up.
  });
  const auto got = HttpGet(server.address(), "/", Deadline::AfterMs(50));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code(), Code::kTimeout);
}

TEST(HttpGet, SaysThatNobodyListens) {
  Address address;
  {
    const Server server([](int) {});
    address = server.address();
  }
  const auto got = HttpGet(address, "/", Deadline::AfterMs(10'000));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code(), Code::kUnavailable);
  EXPECT_THAT(got.error().remedy(), HasSubstr("--node"));
}

}  // namespace
}  // namespace gpushm::ctl
