// Ends connections whose callers send more than a request may be, or more slowly. httplib bounds
// each wait, but neither a line of a head nor a record of TLS that comes byte by byte.
//
// Threads: one at a time for a connection.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>

namespace gpushm::injector {

// Of a request's head, and of the handshake before the first.
inline constexpr size_t kMaxHeadBytes = 64 << 10;
// For a head, the wait before it and the handshake together; for a body likewise.
inline constexpr int kMaxReadS = 10;

// Connections of `context` may send kMaxHeadBytes within kMaxReadS; what comes after that is an
// error to who reads it.
void LimitReads(SSL_CTX* context);

// From now on `connection` may send `bytes` more, and has kMaxReadS for it.
void AllowReads(const SSL* connection, size_t bytes);

}  // namespace gpushm::injector
