#include "runtime/client/c_api/hpp_17.h"

static_assert(__cplusplus < 202002L, "this file is compiled as C++17");

gpushm::Result<gpushm::Client> OpenNothingInCpp17() {
  gpushm::OpenOptions options;
  options.folder = "/nonexistent";
  options.timeout = gpushm::Timeout::DontWait();
  return gpushm::Client::Open(options);
}

gpushm_status StatusInCpp17(const gpushm::Result<gpushm::Client>& client) {
  return client ? GPUSHM_OK : client.error().status();
}
