// The webhook's two listeners: HTTPS for the API server, plain HTTP for probes and Prometheus.
//
//   HTTPS  POST /mutate, /validate      AdmissionReview v1
//               and, for pods of namespaces that say how they get their GPU memory,
//               /mutate/dra, /validate/dra, /mutate/device-plugin, /validate/device-plugin
//   HTTP   GET  /healthz                200 while the process serves; 503: HTTPS ended by itself
//               /readyz                 200 when calls are welcome; 503 before and while draining
//               /metrics                Prometheus' text format
//
// Limits: a request has at most kMaxBodyBytes, must send its length first and must not be
// compressed. A caller may wait kSilentS until its first byte, and kReadTimeoutS for each further
// read, between two requests and for a whole body. kMaxHeadBytes and kMaxReadS limit what comes
// before a body (read_limit.h). There are at most kConnections at the same time; others that have
// sent something wait in the process. At most kLargeBodies larger bodies are read at once; one that
// gets no place is answered with 503. For plain HTTP, see platform/daemon/http_server.h.
//
// Threads: call Start, Drain and Stop from one thread.
#pragma once

#include <httplib.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

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
// bytes. At most kLargeBodies of them are read at the same time; others wait for at most
// kReadTimeoutS.
inline constexpr size_t kLargeBodyBytes = 256 << 10;
inline constexpr size_t kLargeBodies = 8;
inline constexpr int kReadTimeoutS = 5;
inline constexpr int kSilentS = 30;  // Enforced in the kernel.
// An API server keeps 25 idle connections to a webhook (client-go), and a cluster has a few API
// servers.
inline constexpr size_t kConnections = 128;

// A number of places, each of which one caller at a time may take.
class Places {
 public:
  explicit Places(size_t number) : free_(number) {}

  struct GiveBack {
    void operator()(Places* places) const;
  };
  using Place = std::unique_ptr<Places, GiveBack>;
  // Returns null if no place became free within the time.
  Place Take(int timeout_s);

 private:
  std::mutex mutex_;
  std::condition_variable freed_;
  size_t free_;  // Protected by mutex_.
};

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
  int port() const { return port_; }
  int http_port() const { return http_port_; }

  // From now on the server reports that it is not ready, and each connection is closed after its
  // answer. Calls are still answered.
  void Drain();
  // Finishes the calls in progress.
  void Stop();

 private:
  struct Listener;
  // Counts and logs a call that gets no answer.
  void Failed(Endpoint endpoint, const httplib::Request& request, const std::string& why);
  void ReadAndHandle(const Call& call, const httplib::Request& request,
                     const httplib::ContentReader& read, httplib::Response& response);
  void Handle(const Call& call, const httplib::Request& request, std::string_view body,
              httplib::Response& response);
  http::Server::Paths Probes();

  const Options options_;
  const Admission* const admission_;
  const MakeTemplate make_;
  Certificates* const certificates_;
  Metrics* const metrics_;
  std::atomic<bool> draining_ = false;
  Places large_bodies_{kLargeBodies};
  std::mutex large_;  // Held while a large body is processed.
  int port_ = 0;
  int http_port_ = 0;
  int https_socket_ = -1;  // The listening socket, owned by the listener.
  std::unique_ptr<Listener> https_;
  std::unique_ptr<http::Server> http_;
};

}  // namespace gpushm::injector
