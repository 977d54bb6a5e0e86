#include "sidecar/injector/read_limit.h"

#include <openssl/bio.h>

#include <cstdint>
#include <utility>

#include "platform/base/clock.h"
#include "platform/daemon/http_server.h"

namespace gpushm::injector {
namespace {

struct Limit {
  uint64_t bytes = kMaxHeadBytes;  // A position in the bytes that the connection ever sent.
  Deadline deadline = Deadline::AfterMs(kMaxReadS * 1000);
  bool told = false;
};

void MakeLimit(void* /*connection*/, void* /*none*/, CRYPTO_EX_DATA* data, int index, long /*argl*/,
               void* /*argp*/) {
  CRYPTO_set_ex_data(data, index, new Limit);
}

void FreeLimit(void* /*connection*/, void* limit, CRYPTO_EX_DATA* /*data*/, int /*index*/,
               long /*argl*/, void* /*argp*/) {
  delete static_cast<Limit*>(limit);
}

int Index() {
  static const int index = SSL_get_ex_new_index(0, nullptr, &MakeLimit, nullptr, &FreeLimit);
  return index;
}

Limit* LimitOf(const SSL* connection) {
  return static_cast<Limit*>(SSL_get_ex_data(connection, Index()));
}

// Called before each read from the socket. `answer` is what OpenSSL would return otherwise.
long BeforeRead(BIO* socket, int operation, const char* /*bytes*/, size_t /*size*/, int /*argi*/,
                long /*argl*/, int answer, size_t* /*processed*/) {
  if (operation != BIO_CB_READ) return answer;
  auto* const limit = reinterpret_cast<Limit*>(BIO_get_callback_arg(socket));
  const bool too_much = BIO_number_read(socket) >= limit->bytes;
  if (!too_much && !limit->deadline.Passed()) return answer;
  if (!std::exchange(limit->told, true)) {
    http::LogCutOff(static_cast<int>(BIO_get_fd(socket, nullptr)),
                    too_much ? "sends too much" : "is too slow");
  }
  BIO_clear_retry_flags(socket);  // So that the read is not repeated.
  return -1;
}

void WatchSocket(const SSL* connection, int event, int /*value*/) {
  if ((event & SSL_CB_HANDSHAKE_START) == 0) return;
  BIO* const socket = SSL_get_rbio(connection);
  BIO_set_callback_arg(socket, reinterpret_cast<char*>(LimitOf(connection)));
  BIO_set_callback_ex(socket, &BeforeRead);
}

}  // namespace

void LimitReads(SSL_CTX* context) {
  Index();  // Only connections that are made after their index exists get their data.
  SSL_CTX_set_info_callback(context, &WatchSocket);
}

void AllowReads(const SSL* connection, size_t bytes) {
  Limit* const limit = LimitOf(connection);
  limit->bytes = BIO_number_read(SSL_get_rbio(connection)) + bytes;
  limit->deadline = Deadline::AfterMs(kMaxReadS * 1000);
}

}  // namespace gpushm::injector
