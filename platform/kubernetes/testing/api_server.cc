#include "platform/kubernetes/testing/api_server.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "platform/base/status.h"

namespace gpushm::kubernetes::testing {
namespace {

using Json = nlohmann::json;

// tls.crt and tls.key, self-signed for 127.0.0.1.
void WriteCertificate(const std::string& folder) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), X509_free);
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 86'400);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* const name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("api-server"), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), name);
  X509_EXTENSION* const names =
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1");
  X509_add_ext(certificate.get(), names, -1);
  X509_EXTENSION_free(names);
  X509_sign(certificate.get(), key.get(), EVP_sha256());
  const std::unique_ptr<FILE, decltype(&fclose)> crt(fopen((folder + "/tls.crt").c_str(), "w"),
                                                     fclose);
  PEM_write_X509(crt.get(), certificate.get());
  const std::unique_ptr<FILE, decltype(&fclose)> secret(fopen((folder + "/tls.key").c_str(), "w"),
                                                        fclose);
  PEM_write_PrivateKey(secret.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
}

void Answer(int status, const Json& json, httplib::Response& response) {
  response.status = status;
  response.set_content(json.dump(), "application/json");
}

void AnswerError(int status, const std::string& message, httplib::Response& response) {
  Answer(status, {{"kind", "Status"}, {"code", status}, {"message", message}}, response);
}

}  // namespace

ApiServer::ApiServer() {
  const std::string tls = folder_ / "tls";
  std::filesystem::create_directories(tls);
  std::filesystem::create_directories(credentials());
  WriteCertificate(tls);
  std::filesystem::copy_file(tls + "/tls.crt", credentials() + "/ca.crt");
  WriteToken("first");
  server_ =
      std::make_unique<httplib::SSLServer>((tls + "/tls.crt").c_str(), (tls + "/tls.key").c_str());
  Route();
  port_ = server_->bind_to_any_port("127.0.0.1");
  thread_ = std::thread([this] { server_->listen_after_bind(); });
  while (!server_->is_running()) std::this_thread::yield();
}

ApiServer::~ApiServer() {
  server_->stop();
  thread_.join();
}

ApiAddress ApiServer::Address() const {
  return {.host = "127.0.0.1", .port = port_, .credentials_folder = credentials()};
}

void ApiServer::WriteToken(const std::string& token) const {
  std::ofstream(credentials() + "/token") << token << "\n";
}

void ApiServer::FailNext(int status, int times) {
  const std::lock_guard lock(mutex_);
  fail_status_ = status;
  fail_times_ = times;
}

void ApiServer::AcceptOnlyToken(const std::string& token) {
  const std::lock_guard lock(mutex_);
  token_ = token;
}

void ApiServer::DropConsumableCapacity(bool drop) {
  const std::lock_guard lock(mutex_);
  drop_ = drop;
}

void ApiServer::PutClaim(const std::string& name, const std::string& uid, const std::string& node,
                         const std::string& device, const std::string& bytes) {
  const auto result = [&](const std::string& request, const std::string& memory) {
    return Json{{"request", request},
                {"driver", "gpushm.io"},
                {"pool", node},
                {"device", device},
                {"shareID", "share-" + request},
                {"consumedCapacity", {{"memory", memory}, {"attach", "1"}}}};
  };
  PutClaim(name,
           {{"metadata", {{"name", name}, {"namespace", "default"}, {"uid", uid}}},
            {"status",
             {{"reservedFor", Json::array({{{"resource", "pods"}, {"name", "pod-of-" + name}}})},
              {"allocation",
               {{"devices",
                 {{"results", Json::array({result("broker", bytes), result("app", "0")})}}}}}}}});
}

void ApiServer::PutClaim(const std::string& name, const Json& claim) {
  const std::lock_guard lock(mutex_);
  claims_[name] = claim;
}

std::map<std::string, Json> ApiServer::Templates() const {
  const std::lock_guard lock(mutex_);
  return templates_;
}

void ApiServer::PutTemplate(const std::string& where, const Json& object) {
  const std::lock_guard lock(mutex_);
  templates_[where] = object;
}

std::vector<Json> ApiServer::Slices() const {
  const std::lock_guard lock(mutex_);
  std::vector<Json> all;
  for (const auto& [name, slice] : slices_) all.push_back(slice);
  return all;
}

void ApiServer::DeleteSlices() {
  const std::lock_guard lock(mutex_);
  slices_.clear();
}

int ApiServer::writes() const {
  const std::lock_guard lock(mutex_);
  return writes_;
}

int ApiServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

bool ApiServer::Refused(const httplib::Request& request, httplib::Response& response) {
  ++requests_;
  if (fail_times_ > 0) {
    --fail_times_;
    AnswerError(fail_status_, "a failure for a test", response);
    return true;
  }
  if (!token_.empty() && request.get_header_value("Authorization") != "Bearer " + token_) {
    AnswerError(401, "Unauthorized", response);
    return true;
  }
  return false;
}

void ApiServer::Store(const std::string& name, Json slice, httplib::Response& response) {
  if (drop_) {
    for (Json& device : slice["spec"]["devices"]) {
      device.erase("allowMultipleAllocations");
      for (auto& [key, capacity] : device["capacity"].items()) capacity.erase("requestPolicy");
    }
  }
  for (Json& device : slice["spec"]["devices"]) {
    if (!device.contains("taints")) continue;
    for (Json& taint : device["taints"]) taint["timeAdded"] = "2026-01-01T00:00:00Z";
  }
  slice["metadata"]["resourceVersion"] = std::to_string(++version_);
  slices_[name] = slice;
  ++writes_;
  Answer(200, slice, response);
}

void ApiServer::Route() {
  static constexpr char kSlices[] = "/apis/resource.k8s.io/v1/resourceslices";
  using Request = httplib::Request;
  using Response = httplib::Response;
  server_->Get(kSlices, [this](const Request& request, Response& response) {
    const std::lock_guard lock(mutex_);
    if (Refused(request, response)) return;
    Json items = Json::array();
    for (const auto& [name, slice] : slices_) {
      const Json& spec = slice["spec"];
      const std::string selector = Concat("spec.driver=", spec["driver"].get<std::string>(),
                                          ",spec.nodeName=", spec["nodeName"].get<std::string>());
      if (request.get_param_value("fieldSelector") == selector) items.push_back(slice);
    }
    Answer(200, {{"items", items}}, response);
  });
  server_->Post(kSlices, [this](const Request& request, Response& response) {
    const std::lock_guard lock(mutex_);
    if (Refused(request, response)) return;
    const Json slice = Json::parse(request.body);
    const auto name = slice["metadata"]["name"].get<std::string>();
    if (slices_.contains(name)) return AnswerError(409, name + " already exists", response);
    Store(name, slice, response);
  });
  server_->Put(Concat(kSlices, "/(.+)"), [this](const Request& request, Response& response) {
    const std::lock_guard lock(mutex_);
    if (Refused(request, response)) return;
    const Json slice = Json::parse(request.body);
    const std::string name = request.matches[1];
    if (!slices_.contains(name)) return AnswerError(404, name + " not found", response);
    if (slices_[name]["metadata"]["resourceVersion"] != slice["metadata"]["resourceVersion"]) {
      return AnswerError(409, "the object has been modified", response);
    }
    Store(name, slice, response);
  });
  server_->Delete(Concat(kSlices, "/(.+)"), [this](const Request& request, Response& response) {
    const std::lock_guard lock(mutex_);
    if (Refused(request, response)) return;
    if (slices_.erase(request.matches[1]) == 0) return AnswerError(404, "not found", response);
    Answer(200, {{"kind", "Status"}}, response);
  });
  server_->Get("/api/v1/nodes/(.+)", [this](const Request& request, Response& response) {
    const std::lock_guard lock(mutex_);
    if (Refused(request, response)) return;
    Answer(200, {{"metadata", {{"name", request.matches[1].str()}, {"uid", "node-uid"}}}},
           response);
  });
  server_->Get("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/(.+)",
               [this](const Request& request, Response& response) {
                 const std::lock_guard lock(mutex_);
                 if (Refused(request, response)) return;
                 const auto found = claims_.find(request.matches[1]);
                 if (found == claims_.end()) {
                   return AnswerError(404, "resourceclaims not found", response);
                 }
                 Answer(200, found->second, response);
               });
  static constexpr char kTemplates[] =
      "/apis/resource.k8s.io/v1/namespaces/([^/]+)/resourceclaimtemplates";
  server_->Get(Concat(kTemplates, "/([^/]+)"), [this](const Request& request, Response& response) {
    const std::lock_guard lock(mutex_);
    if (Refused(request, response)) return;
    const auto found =
        templates_.find(Concat(request.matches[1].str(), "/", request.matches[2].str()));
    if (found == templates_.end()) return AnswerError(404, "not found", response);
    Answer(200, found->second, response);
  });
  server_->Post(kTemplates, [this](const Request& request, Response& response) {
    const std::lock_guard lock(mutex_);
    if (Refused(request, response)) return;
    Json object = Json::parse(request.body);
    for (Json& wanted : object["spec"]["spec"]["devices"]["requests"]) {
      wanted["exactly"]["allocationMode"] = "ExactCount";  // A default.
    }
    const auto [at, fresh] = templates_.emplace(
        Concat(request.matches[1].str(), "/", object["metadata"]["name"].get<std::string>()),
        object);
    if (!fresh) return AnswerError(409, "already exists", response);
    Answer(201, at->second, response);
  });
}

}  // namespace gpushm::kubernetes::testing
