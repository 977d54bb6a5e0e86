// The webhook's two servers (platform/daemon/http_server.h): HTTPS for the API server, plain HTTP
// for probes and Prometheus.
//
//   HTTPS  POST /mutate, /validate      AdmissionReview v1
//               and, for pods of namespaces that say how they get their GPU memory,
//               /mutate/dra, /validate/dra, /mutate/device-plugin, /validate/device-plugin
//   HTTP   GET  /healthz                200 while the process serves
//               /readyz                 200 when calls are welcome; 503 while draining, and when
//                                       the certificate has expired
//               /metrics                Prometheus' text format
//
// At most kLargeBodies larger bodies are read at once; one that gets no place within
// http::kReadMs is answered with 503.
//
// Threads: call Start, Drain and Stop from one thread.
#pragma once

#include <openssl/types.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <semaphore>
#include <string>
#include <string_view>

#include "platform/base/status.h"
#include "platform/daemon/http_server.h"
#include "sidecar/injector/admit.h"
#include "sidecar/injector/certificates.h"
#include "sidecar/injector/metrics.h"
#include "sidecar/injector/review.h"

namespace gpushm::injector {

// The API server accepts requests of at most 3 MiB and stores objects of at most 1.5 MiB; a review
// of an update holds two of these.
inline constexpr size_t kMaxBodyBytes = 4 << 20;
// Larger bodies are processed one at a time, because a parsed document takes tens of times its
// bytes. At most kLargeBodies of them are read at the same time.
inline constexpr size_t kLargeBodyBytes = 256 << 10;
inline constexpr size_t kLargeBodies = 8;
// An API server keeps 25 idle connections to a webhook (client-go), and a cluster has a few API
// servers.
inline constexpr size_t kConnections = 128;

class Server {
 public:
  struct Options {
    std::string address;  // Empty: all addresses, IPv6 and IPv4.
    int port = 8443;      // 0: any free port.
    int http_port = 8080;
  };
  // All of these must outlive the server. `make`: as for Review; called from any thread.
  Server(Options options, const Admission* admission, MakeTemplate make, Certificates* certificates,
         Metrics* metrics);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Starts to listen. Fails with kInvalidArgument if the address is not valid, or with kSystem,
  // naming the port.
  Result<void> Start();
  int port() const { return https_->port(); }
  int http_port() const { return http_->port(); }

  // From now on the server reports that it is not ready, and each connection is closed after its
  // answer. Calls are still answered.
  void Drain();
  // Finishes the calls in progress.
  void Stop();

 private:
  struct Free {
    void operator()(SSL_CTX* context) const;
  };
  // `path` is for the log.
  http::Answer ReadAndHandle(const Call& call, const std::string& path,
                             const http::Request& request);
  http::Answer Handle(const Call& call, const std::string& path, const http::Request& request,
                      std::string_view body);
  // Counts and logs a call that gets no review.
  http::Answer Refuse(const Call& call, const std::string& path, const http::Request& request,
                      int status, const std::string& why);
  http::Server::Paths Calls();
  http::Server::Paths Probes();

  const Options options_;
  const Admission* const admission_;
  const MakeTemplate make_;
  Certificates* const certificates_;
  Metrics* const metrics_;
  std::atomic<bool> draining_ = false;
  std::counting_semaphore<> large_bodies_{kLargeBodies};
  std::mutex large_;  // Held while a large body is processed.
  std::unique_ptr<SSL_CTX, Free> tls_;
  std::unique_ptr<http::Server> https_;
  std::unique_ptr<http::Server> http_;
};

}  // namespace gpushm::injector
