// The server's certificate, from two PEM files that are renewed from outside (a mounted Secret).
// The files are read again when they change, and new connections use the new certificate. A pair
// that does not match is refused, and the previous one stays in use.
//
// Threads: any.
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "platform/base/status.h"

namespace gpushm::injector {

class Certificates {
 public:
  // `folder` holds tls.crt (with the server's certificate first) and tls.key. Call Load() first.
  explicit Certificates(std::string folder);
  ~Certificates();
  Certificates(const Certificates&) = delete;
  Certificates& operator=(const Certificates&) = delete;

  // Reads the files. Returns true if the certificate has changed. Fails with kInvalidArgument or
  // kSystem; the error names the file.
  Result<bool> Load();

  // When the certificate in use expires, in seconds since 1970; 0 if none is loaded.
  int64_t expires_s() const;

  // Makes each new connection of `context` use the certificate that is loaded at that time. This
  // object must outlive `context`.
  void ServeOn(SSL_CTX* context);

 private:
  struct Pair;
  static int Choose(SSL* connection, void* self);

  const std::string folder_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Pair> pair_;
};

}  // namespace gpushm::injector
