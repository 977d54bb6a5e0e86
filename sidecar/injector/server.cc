#include "sidecar/injector/server.h"

#include <malloc.h>
#include <openssl/ssl.h>

#include <chrono>
#include <cstdint>
#include <ctime>
#include <utility>

#include "platform/base/clock.h"
#include "platform/daemon/log.h"

namespace gpushm::injector {

void Server::Free::operator()(SSL_CTX* context) const { SSL_CTX_free(context); }

Server::Server(Options options, const Admission* admission, MakeTemplate make,
               Certificates* certificates, Metrics* metrics)
    : options_(std::move(options)),
      admission_(admission),
      make_(std::move(make)),
      certificates_(certificates),
      metrics_(metrics),
      tls_(SSL_CTX_new(TLS_server_method())) {
  SSL_CTX_set_min_proto_version(tls_.get(), TLS1_2_VERSION);
  certificates_->ServeOn(tls_.get());
}

Server::~Server() { Stop(); }

Result<void> Server::Start() {
  auto https = http::Server::Start({.host = options_.address,
                                    .port = options_.port,
                                    .callers = kConnections,
                                    .max_body_bytes = kMaxBodyBytes,
                                    .tls = tls_.get()},
                                   Calls());
  if (!https) return std::unexpected(https.error());
  https_ = std::move(*https);
  auto plain =
      http::Server::Start({.host = options_.address, .port = options_.http_port}, Probes());
  if (!plain) return std::unexpected(plain.error());
  http_ = std::move(*plain);
  return {};
}

void Server::Drain() {
  draining_ = true;
  https_->Drain();
}

void Server::Stop() {
  https_.reset();
  http_.reset();
}

http::Answer Server::Refuse(const Call& call, const std::string& path, const http::Request& request,
                            int status, const std::string& why) {
  metrics_->Failed(call.endpoint);
  LogWarning("bad-request", {{"from", request.from}, {"path", path}, {"reason", why}});
  return {.status = status, .body = why + "\n", .headers = {}};
}

http::Answer Server::ReadAndHandle(const Call& call, const std::string& path,
                                   const http::Request& request) {
  constexpr auto kGiveBack = [](std::counting_semaphore<>* places) { places->release(); };
  std::unique_ptr<std::counting_semaphore<>, decltype(kGiveBack)> place;
  if (request.body_bytes > kLargeBodyBytes) {
    if (!large_bodies_.try_acquire_for(std::chrono::milliseconds(http::kReadMs))) {
      return Refuse(call, path, request, 503,
                    Concat(kLargeBodies, " requests of more than ", kLargeBodyBytes,
                           " bytes are being read, the most at the same time; try again"));
    }
    place.reset(&large_bodies_);
  }
  std::string body;
  if (!request.read_body(&body)) {
    return Refuse(call, path, request, 400, "the body is incomplete or too slow");
  }
  return Handle(call, path, request, body);
}

http::Answer Server::Handle(const Call& call, const std::string& path, const http::Request& request,
                            std::string_view body) {
  const int64_t start_ns = MonotonicNs();
  const bool large = body.size() > kLargeBodyBytes;
  std::unique_lock one_at_a_time(large_, std::defer_lock);
  if (large) one_at_a_time.lock();
  const Result<Answer> answer = Review(*admission_, call, body, make_);
  if (large) malloc_trim(0);
  if (!answer) return Refuse(call, path, request, 400, answer.error().ToString());
  metrics_->Answered(call.endpoint, *answer, static_cast<double>(MonotonicNs() - start_ns) * 1e-9);
  if (!answer->allowed) {
    LogInfo("pod-denied", {{"path", path},
                           {"pod", answer->pod},
                           {"owner", answer->owner},
                           {"outcome", answer->outcome},
                           {"reason", answer->reason}});
  }
  return {.content_type = "application/json", .body = answer->body, .headers = {}};
}

http::Server::Paths Server::Calls() {
  using annotations::Allocation;
  http::Server::Paths paths;
  const auto add = [&](const std::string& path, const Call& call) {
    paths[path] = [this, path, call](const http::Request& request) {
      return ReadAndHandle(call, path, request);
    };
  };
  for (const auto& [path, endpoint] :
       {std::pair{"/mutate", Endpoint::kMutate}, std::pair{"/validate", Endpoint::kValidate}}) {
    add(path, {endpoint});
    for (const Allocation each : {Allocation::kDevicePlugin, Allocation::kDra}) {
      add(Concat(path, "/", annotations::AllocationName(each)), {endpoint, each});
    }
  }
  return paths;
}

http::Server::Paths Server::Probes() {
  http::Server::Paths paths;
  paths["/healthz"] = [](const http::Request&) {
    return http::Answer{.body = "ok\n", .headers = {}};
  };
  paths["/readyz"] = [this](const http::Request&) {
    const char* const why_not = certificates_->expires_s() < std::time(nullptr)
                                    ? "the certificate has expired\n"
                                : draining_ ? "draining\n"
                                            : nullptr;
    return why_not != nullptr ? http::Answer{.status = 503, .body = why_not, .headers = {}}
                              : http::Answer{.body = "ok\n", .headers = {}};
  };
  paths["/metrics"] = [this](const http::Request&) {
    return http::Answer{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                        .body = metrics_->Text(),
                        .headers = {}};
  };
  return paths;
}

}  // namespace gpushm::injector
