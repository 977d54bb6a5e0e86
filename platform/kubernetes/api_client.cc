#include "platform/kubernetes/api_client.h"

#include <fcntl.h>
#include <httplib.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>

#include "platform/base/quote.h"
#include "platform/base/read_whole.h"
#include "platform/base/unique_fd.h"

namespace gpushm::kubernetes {
namespace {

constexpr size_t kMaxTokenBytes = size_t{64} << 10;
// Bounds a connection attempt and the wait for more of an answer; the deadline bounds all of it.
constexpr int64_t kMaxStepMs = 5000;
// Objects and lists in one another. Who copies or prints an answer goes as deep as it does.
constexpr size_t kMaxDepth = 256;

// Shuts a connection down at a deadline. httplib's own limits are for each step, and a peer that
// sends a byte now and then keeps every step within them.
class CutAtDeadline {
 public:
  explicit CutAtDeadline(const Deadline& deadline)
      : thread_([this, deadline] {
          std::unique_lock lock(mutex_);
          over_.wait_for(lock, std::chrono::milliseconds(deadline.RemainingMs()),
                         [this] { return done_; });
          done_ = true;
          if (connection_) shutdown(connection_.get(), SHUT_RDWR);
        }) {}
  ~CutAtDeadline() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    over_.notify_one();
    thread_.join();
  }
  CutAtDeadline(const CutAtDeadline&) = delete;
  CutAtDeadline& operator=(const CutAtDeadline&) = delete;

  void Watch(int connection) {
    const std::lock_guard lock(mutex_);
    // A descriptor of its own: httplib closes its one when it likes.
    connection_.Reset(fcntl(connection, F_DUPFD_CLOEXEC, 0));
    if (done_ && connection_) shutdown(connection_.get(), SHUT_RDWR);
  }

 private:
  std::mutex mutex_;  // Guards what follows.
  std::condition_variable over_;
  bool done_ = false;
  UniqueFd connection_;
  std::thread thread_;  // The last member: it uses the others.
};

bool NestsTooDeeply(std::string_view json) {
  size_t depth = 0;
  bool text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (text) {
      if (c == '\\') ++i;
      if (c == '"') text = false;
    } else if (c == '"') {
      text = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) return true;
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    }
  }
  return false;
}

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

Code CodeOf(int http_status) {
  switch (http_status) {
    case 401:
    case 403:
      return Code::kDenied;
    case 404:
      return Code::kNotFound;
    case 409:
      return Code::kContended;
    case 429:
      return Code::kUnavailable;
    default:
      return http_status >= 500 ? Code::kUnavailable : Code::kInvalidArgument;
  }
}

// The message of a Status object, or the text itself.
std::string Reason(const std::string& body) {
  const auto json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  constexpr size_t kMaxBytes = 1024;
  if (json.is_object() && json.contains("message") && json["message"].is_string()) {
    return json["message"].get<std::string>().substr(0, kMaxBytes);
  }
  return Quote(body);
}

std::string RemedyFor(int http_status) {
  switch (CodeOf(http_status)) {
    case Code::kDenied:
      return "give the pod's service account the right that the answer names; gpushm's chart gives "
             "all that are needed";
    case Code::kUnavailable:
      return "wait until the API server answers: the plugin tries again by itself, and so does the "
             "controller of a pod that was denied";
    default:
      return {};
  }
}

}  // namespace

Result<ApiAddress> FindApi(const std::string& server, const std::string& credentials_folder) {
  ApiAddress address;
  std::string port = "443";
  if (server.empty()) {
    address.host = Environment("KUBERNETES_SERVICE_HOST");
    if (const std::string given = Environment("KUBERNETES_SERVICE_PORT"); !given.empty()) {
      port = given;
    }
  } else {
    const size_t colon = server.rfind(':');
    address.host = server.substr(0, colon);
    if (colon != std::string::npos) port = server.substr(colon + 1);
    if (address.host.starts_with('[') && address.host.ends_with(']')) {
      address.host = address.host.substr(1, address.host.size() - 2);
    }
  }
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (address.host.empty() || error != std::errc() || end != port.data() + port.size() ||
      address.port < 1 || address.port > 65535) {
    return Fail(Code::kInvalidArgument,
                server.empty() ? "the environment variables KUBERNETES_SERVICE_HOST and "
                                 "KUBERNETES_SERVICE_PORT do not say where the API server is"
                               : Concat("invalid address of the API server: ", Quote(server)),
                "run in a pod, or give the address: dra.api-server: 10.96.0.1:443 in the plugin's "
                "configuration, or the injector's flag --api-server 10.96.0.1:443");
  }
  if (!credentials_folder.empty()) address.credentials_folder = credentials_folder;
  return address;
}

Result<std::string> ApiClient::Call(const std::string& method, const std::string& path,
                                    const std::string& body, const Deadline& deadline) const {
  const std::string what =
      Concat(method, " ", path, " at the API server ", address_.host, ":", address_.port);
  // The kubelet writes it there, and makes `token` a link to it.
  Result<std::string> token =
      ReadWhole(address_.credentials_folder + "/..data/token", kMaxTokenBytes);
  if (!token) token = ReadWhole(address_.credentials_folder + "/token", kMaxTokenBytes);
  if (!token) return std::unexpected(token.error().WithContext(what));
  while (token->ends_with('\n') || token->ends_with('\r')) token->pop_back();
  if (std::ranges::any_of(*token, [](char c) { return c <= ' ' || c > '~'; })) {
    return Fail(Code::kSystem,
                Concat(what, ": the token in ", address_.credentials_folder,
                       "/token has a space or a control character"),
                "a token is one line that the kubelet writes; mount the service account's");
  }
  // OpenSSL opens the file by its name, and waits for the writer of a pipe.
  const std::string certificate = address_.credentials_folder + "/ca.crt";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(certificate, ignored)) {
    return Fail(Code::kSystem, Concat(what, ": ", certificate, " is not a regular file"),
                "mount the service account's certificate there, as the kubelet does");
  }
  if (deadline.Passed()) return Fail(Code::kTimeout, Concat(what, ": no time left"));

  CutAtDeadline cut(deadline);
  httplib::SSLClient client(address_.host, address_.port);
  client.set_socket_options([&cut](int socket) { cut.Watch(socket); });
  client.set_ca_cert_path(certificate.c_str());
  client.enable_server_certificate_verification(true);
  client.set_follow_location(false);
  const int64_t step_ms = std::min<int64_t>(deadline.RemainingMs(), kMaxStepMs);
  const std::chrono::milliseconds step{std::max<int64_t>(step_ms, 1)};
  client.set_connection_timeout(step);
  client.set_read_timeout(step);
  client.set_write_timeout(step);

  httplib::Request request;
  request.method = method;
  request.path = path;
  request.headers = {{"Authorization", "Bearer " + *token}, {"Accept", "application/json"}};
  if (!body.empty()) {
    request.body = body;
    request.headers.emplace("Content-Type", "application/json");
  }
  std::string answer;
  bool too_long = false;
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    too_long = answer.size() + size > kMaxAnswerBytes;
    if (too_long || deadline.Passed()) return false;
    answer.append(data, size);
    return true;
  };
  const httplib::Result result = client.send(request);
  if (too_long) {
    return Fail(Code::kUnavailable,
                Concat(what, ": the answer has more than ", kMaxAnswerBytes, " bytes"));
  }
  if (!result) {
    const bool late = deadline.Passed();
    return Fail(late ? Code::kTimeout : Code::kUnavailable,
                Concat(what, " failed: ", httplib::to_string(result.error()),
                       result.error() == httplib::Error::SSLServerVerification
                           ? Concat(": its certificate is not signed by ",
                                    address_.credentials_folder, "/ca.crt, or names another host")
                           : ""),
                "check that this pod reaches the API server, for example that no NetworkPolicy "
                "forbids it");
  }
  if (NestsTooDeeply(answer)) {
    return Fail(Code::kUnavailable, Concat(what, ": the answer has more than ", kMaxDepth,
                                           " objects or lists in one another"));
  }
  if (result->status >= 200 && result->status < 300) return answer;
  return Fail(CodeOf(result->status),
              Concat(what, " answered ", result->status, ": ", Reason(answer)),
              RemedyFor(result->status));
}

}  // namespace gpushm::kubernetes
