// Closes connections whose callers send more than a request may have, or send it too slowly.
// httplib limits each wait, but it does not limit a header line or a TLS record that arrives byte
// by byte.
//
// Threads: one at a time for each connection.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>

namespace gpushm::injector {

// For a request's head, and for the handshake before the first request.
inline constexpr size_t kMaxHeadBytes = 64 << 10;
// For the wait before a head, the handshake and the head together. The same limit holds for a body.
inline constexpr int kMaxReadS = 10;

// Connections of `context` may send kMaxHeadBytes within kMaxReadS. After that, every read is an
// error.
void LimitReads(SSL_CTX* context);

// From now on `connection` may send `bytes` more, within kMaxReadS.
void AllowReads(const SSL* connection, size_t bytes);

}  // namespace gpushm::injector
