// A small API server over HTTPS: ResourceSlices, ResourceClaims, their templates and Nodes in
// memory, with the rules of the real one that the plugin depends on (resource versions, 404, 409,
// fields that are left out while their gate is off).
//
// Threads: any.
#pragma once

#include <httplib.h>

#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "platform/base/testing.h"
#include "platform/kubernetes/api_client.h"

namespace gpushm::kubernetes::testing {

class ApiServer {
 public:
  ApiServer();
  ~ApiServer();
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  ApiAddress Address() const;
  int port() const { return port_; }
  // Of the service account: token and ca.crt.
  std::string credentials() const { return folder_ / "credentials"; }
  // The server's own.
  std::string certificate() const { return folder_ / "tls/tls.crt"; }
  std::string key() const { return folder_ / "tls/tls.key"; }
  void WriteToken(const std::string& token) const;

  // What is asked for is answered with that status instead, as often as said.
  void FailNext(int status, int times);
  void AcceptOnlyToken(const std::string& token);
  // As with the gate DRAConsumableCapacity off.
  void DropConsumableCapacity(bool drop);

  // A claim with one broker of `bytes` (a quantity) and one app on that device.
  void PutClaim(const std::string& name, const std::string& uid, const std::string& node,
                const std::string& device, const std::string& bytes);
  void PutClaim(const std::string& name, const nlohmann::json& claim);

  // ResourceClaimTemplates by "namespace/name".
  std::map<std::string, nlohmann::json> Templates() const;
  void PutTemplate(const std::string& where, const nlohmann::json& object);

  std::vector<nlohmann::json> Slices() const;
  void DeleteSlices();
  int writes() const;    // Of slices, successful ones.
  int requests() const;  // All.

 private:
  void Route();
  // Answers the failures that tests asked for; true: it did.
  bool Refused(const httplib::Request& request, httplib::Response& response);
  void Store(const std::string& name, nlohmann::json slice, httplib::Response& response);

  gpushm::testing::TempFolder folder_;
  std::unique_ptr<httplib::SSLServer> server_;
  int port_ = 0;
  std::thread thread_;

  mutable std::mutex mutex_;  // Guards what follows.
  std::map<std::string, nlohmann::json> slices_;
  std::map<std::string, nlohmann::json> claims_;  // By name; the namespace is "default".
  std::map<std::string, nlohmann::json> templates_;
  std::string token_;
  int fail_status_ = 0;
  int fail_times_ = 0;
  bool drop_ = false;
  int version_ = 0;
  int writes_ = 0;
  int requests_ = 0;
};

}  // namespace gpushm::kubernetes::testing
