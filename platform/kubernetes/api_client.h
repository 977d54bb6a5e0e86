// Requests to Kubernetes' API server: JSON over HTTPS, one connection for each request.
//
// Limits: an answer of at most kMaxAnswerBytes, read before the deadline, and 256 objects or lists
// in one another. The token is read anew
// for each request, because the kubelet replaces it every hour, and so is the CA's certificate.
//
// Threads: any.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "platform/base/clock.h"
#include "platform/base/status.h"

namespace gpushm::kubernetes {

struct ApiAddress {
  std::string host;  // A name or an address, without brackets.
  int port = 443;
  // Has "token" and "ca.crt", as in every pod with a service account.
  std::string credentials_folder = "/var/run/secrets/kubernetes.io/serviceaccount";
};

// Where pods reach it: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, or `server` if it is
// not empty: "host:port". kInvalidArgument: neither says it.
Result<ApiAddress> FindApi(const std::string& server, const std::string& credentials_folder);

class ApiClient {
 public:
  static constexpr size_t kMaxAnswerBytes = size_t{8} << 20;

  explicit ApiClient(ApiAddress address) : address_(std::move(address)) {}

  // `method`: GET, POST, PUT or DELETE. `body`: of POST and PUT. Returns the answer's body.
  // kUnavailable and kTimeout: the server did not answer, or is too busy (429, 5xx); try again.
  // kNotFound: 404. kContended: 409, somebody else changed or made it. kDenied: 401 and 403; the
  // error names the missing right. kInvalidArgument: any other status. kSystem: the token or the
  // certificate cannot be read.
  Result<std::string> Call(const std::string& method, const std::string& path,
                           const std::string& body, const Deadline& deadline) const;

 private:
  const ApiAddress address_;
};

}  // namespace gpushm::kubernetes
