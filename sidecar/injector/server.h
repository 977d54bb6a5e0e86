// The webhook's two listeners: HTTPS for the API server, plain HTTP for probes and Prometheus.
//
//   HTTPS  POST /mutate, /validate      AdmissionReview v1
//   HTTP   GET  /healthz                200 while the process serves; 503: HTTPS ended by itself
//               /readyz                 200 when calls are welcome; 503 before and while draining
//               /metrics                Prometheus' text format
//
// Bounded: kMaxBodyBytes a request, which says its length first and is not compressed; kSilentS
// until a caller's first byte, kReadTimeoutS for each further wait, also between two requests, and
// for a whole body; kMaxHeadBytes and kMaxReadS for what comes before one (read_limit.h);
// kConnections at the same time, others that have said something wait in the process; kLargeBodies
// of the larger ones, 503 for one that gets no place. Plain HTTP: platform/daemon/http_server.h.
//
// Threads: Start, Drain and Stop from one thread.
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

// The API server takes requests of 3 MiB at most, and stores objects of 1.5 MiB; a review of an
// update holds two of these.
inline constexpr size_t kMaxBodyBytes = 4 << 20;
// Larger bodies are looked at one after the other: a document takes tens of times its bytes. So
// many of them are read at the same time; others wait, kReadTimeoutS at most.
inline constexpr size_t kLargeBodyBytes = 256 << 10;
inline constexpr size_t kLargeBodies = 8;
inline constexpr int kReadTimeoutS = 5;
inline constexpr int kSilentS = 30;  // In the kernel.
// An API server keeps 25 idle connections to a webhook (client-go), and there are up to a few.
inline constexpr size_t kConnections = 128;

// A number of places, each for one at a time.
class Places {
 public:
  explicit Places(size_t number) : free_(number) {}

  struct GiveBack {
    void operator()(Places* places) const;
  };
  using Place = std::unique_ptr<Places, GiveBack>;
  // Null: none became free in that time.
  Place Take(int timeout_s);

 private:
  std::mutex mutex_;
  std::condition_variable freed_;
  size_t free_;  // Under mutex_.
};

class Server {
 public:
  struct Options {
    std::string address;  // Empty: all, of IPv6 and IPv4.
    int port = 8443;      // 0: any free one.
    int http_port = 8080;
  };
  // All outlive the server.
  Server(Options options, const Admission* admission, Certificates* certificates, Metrics* metrics);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Listens. kInvalidArgument: the address is none. kSystem, naming the port.
  Result<void> Start();
  int port() const { return port_; }
  int http_port() const { return http_port_; }

  // Not ready from now on, and connections end with their answers; calls are answered all the same.
  void Drain();
  // What is under way is finished.
  void Stop();

 private:
  struct Listener;
  // Counts and logs a call that is not answered.
  void Failed(Endpoint endpoint, const httplib::Request& request, const std::string& why);
  void ReadAndHandle(Endpoint endpoint, const httplib::Request& request,
                     const httplib::ContentReader& read, httplib::Response& response);
  void Handle(Endpoint endpoint, const httplib::Request& request, std::string_view body,
              httplib::Response& response);
  http::Server::Paths Probes();

  const Options options_;
  const Admission* const admission_;
  Certificates* const certificates_;
  Metrics* const metrics_;
  std::atomic<bool> draining_ = false;
  Places large_bodies_{kLargeBodies};
  std::mutex large_;  // Held by who looks at a large body.
  int port_ = 0;
  int http_port_ = 0;
  int https_socket_ = -1;  // Which listens; the listener's own.
  std::unique_ptr<Listener> https_;
  std::unique_ptr<http::Server> http_;
};

}  // namespace gpushm::injector
