// The server's certificate, from two PEM files that somebody else renews (a mounted Secret): read
// again when they change, for connections that come after. A pair that does not fit together is
// refused, and the former one stays.
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
  // `folder` holds tls.crt (the server's certificate first) and tls.key. Load() comes first.
  explicit Certificates(std::string folder);
  ~Certificates();
  Certificates(const Certificates&) = delete;
  Certificates& operator=(const Certificates&) = delete;

  // Reads the files. True: there is another certificate now. Fails with kInvalidArgument or
  // kSystem, naming the file.
  Result<bool> Load();

  // Of the one in use, in seconds since 1970; 0: none yet.
  int64_t expires_s() const;

  // Makes connections of `context` use what is loaded when they begin. This outlives it.
  void ServeOn(SSL_CTX* context);

 private:
  struct Pair;
  static int Choose(SSL* connection, void* self);

  const std::string folder_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Pair> pair_;
};

}  // namespace gpushm::injector
