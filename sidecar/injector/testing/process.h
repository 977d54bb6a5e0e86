// The real gpushm-injector as a process, with certificates made for it.
//
// Threads: one.
#pragma once

#include <httplib.h>

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "platform/base/testing.h"

namespace gpushm::injector::testing {

inline constexpr int64_t kLongMs = 30'000;

// Writes tls.crt and tls.key into `folder`, self-signed for "localhost", and valid for that time.
void WriteCertificate(const std::string& folder, const std::string& common_name, int64_t valid_s);

// Checks every few milliseconds until `is_so` returns true; returns false at the deadline.
bool WaitUntil(const std::function<bool()>& is_so, int64_t timeout_ms = kLongMs);

class InjectorProcess {
 public:
  // On free ports, with the certificate of `tls`.
  explicit InjectorProcess(const std::string& tls, const std::vector<std::string>& more = {});
  ~InjectorProcess();
  InjectorProcess(const InjectorProcess&) = delete;
  InjectorProcess& operator=(const InjectorProcess&) = delete;

  // Whether it has logged that it is ready.
  bool ready() const { return port_ != 0; }
  void Signal(int signal) const;
  // The status from waitpid, or -1 if it still runs at the deadline.
  int WaitEnd(int64_t timeout_ms = kLongMs);
  std::string Log() const;
  uint64_t RssBytes() const;
  // The highest value so far.
  uint64_t PeakRssBytes() const;

  std::unique_ptr<httplib::SSLClient> Https() const;
  // Body and status of a GET on the plain port.
  std::pair<int, std::string> Get(const std::string& path) const;
  // Common name of the certificate that a new connection gets; empty for none.
  std::string ServedName() const;
  int port() const { return port_; }
  int http_port() const { return http_port_; }

 private:
  gpushm::testing::TempFolder folder_;
  std::string log_path_;
  pid_t pid_ = -1;
  int port_ = 0;
  int http_port_ = 0;
};

}  // namespace gpushm::injector::testing
