#include "sidecar/injector/testing/process.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>

#include "platform/base/clock.h"
#include "platform/base/status.h"

namespace gpushm::injector::testing {
namespace {

namespace fs = std::filesystem;

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The number after `key` in the line of the event ready; 0 if it is not there yet.
int PortIn(const std::string& log, const std::string& key) {
  const size_t line = log.find(" ready ");
  if (line == std::string::npos) return 0;
  const size_t at = log.find(" " + key + "=", line);
  return at == std::string::npos ? 0 : std::atoi(log.c_str() + at + key.size() + 2);
}

}  // namespace

void WriteCertificate(const std::string& folder, const std::string& common_name, int64_t valid_s) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), X509_free);
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), valid_s);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* const name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1,
                             0);
  X509_set_issuer_name(certificate.get(), name);
  X509_sign(certificate.get(), key.get(), EVP_sha256());
  const std::unique_ptr<FILE, decltype(&fclose)> crt(fopen((folder + "/tls.crt").c_str(), "w"),
                                                     fclose);
  PEM_write_X509(crt.get(), certificate.get());
  const std::unique_ptr<FILE, decltype(&fclose)> pem(fopen((folder + "/tls.key").c_str(), "w"),
                                                     fclose);
  PEM_write_PrivateKey(pem.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
}

bool WaitUntil(const std::function<bool()>& is_so, int64_t timeout_ms) {
  const Deadline deadline = Deadline::AfterMs(timeout_ms);
  while (!is_so()) {
    if (deadline.Passed()) return false;
    poll(nullptr, 0, 5);
  }
  return true;
}

InjectorProcess::InjectorProcess(const std::string& tls, const std::vector<std::string>& more)
    : log_path_(folder_ / "log") {
  const std::string program =
      fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "bin/gpushm-injector";
  std::vector<std::string> words = {program, "--port",          "0",         "--http-port",
                                    "0",     "--address",       "127.0.0.1", "--certificates",
                                    tls,     "--sidecar-image", "sidecar"};
  words.insert(words.end(), more.begin(), more.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int log = open(log_path_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(log, STDERR_FILENO);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  WaitUntil([this] {
    port_ = PortIn(Log(), "port");
    http_port_ = PortIn(Log(), "http_port");
    return (port_ != 0 && http_port_ != 0) || kill(pid_, 0) != 0 ||
           Log().find("start-failed") != std::string::npos;
  });
}

InjectorProcess::~InjectorProcess() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void InjectorProcess::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

int InjectorProcess::WaitEnd(int64_t timeout_ms) {
  int status = -1;
  if (!WaitUntil([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, timeout_ms)) return -1;
  pid_ = -1;
  return status;
}

std::string InjectorProcess::Log() const { return ReadAll(log_path_); }

uint64_t InjectorProcess::RssBytes() const {
  std::ifstream in(Concat("/proc/", pid_, "/statm"));
  uint64_t size = 0;
  uint64_t resident = 0;
  in >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t InjectorProcess::PeakRssBytes() const {
  const std::string status = ReadAll(Concat("/proc/", pid_, "/status"));
  const size_t at = status.find("VmHWM:");
  return at == std::string::npos ? 0 : std::strtoull(status.c_str() + at + 6, nullptr, 10) << 10;
}

std::unique_ptr<httplib::SSLClient> InjectorProcess::Https() const {
  // A server that refuses a body closes the connection while the body is still being written.
  signal(SIGPIPE, SIG_IGN);
  auto client = std::make_unique<httplib::SSLClient>("127.0.0.1", port_);
  client->enable_server_certificate_verification(false);
  client->set_keep_alive(true);
  client->set_tcp_nodelay(true);
  client->set_read_timeout(30);
  return client;
}

std::pair<int, std::string> InjectorProcess::Get(const std::string& path) const {
  httplib::Client client("127.0.0.1", http_port_);
  const auto answer = client.Get(path.c_str());
  return answer ? std::pair(answer->status, answer->body) : std::pair(-1, std::string());
}

std::string InjectorProcess::ServedName() const {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> connection(BIO_new_ssl_connect(context.get()),
                                                                 BIO_free_all);
  BIO_set_conn_hostname(connection.get(), Concat("127.0.0.1:", port_).c_str());
  if (BIO_do_connect(connection.get()) != 1) return {};
  SSL* ssl = nullptr;
  BIO_get_ssl(connection.get(), &ssl);
  const std::unique_ptr<X509, decltype(&X509_free)> shown(SSL_get1_peer_certificate(ssl),
                                                          X509_free);
  if (!shown) return {};
  std::array<char, 128> name{};
  X509_NAME_get_text_by_NID(X509_get_subject_name(shown.get()), NID_commonName, name.data(),
                            name.size());
  return name.data();
}

}  // namespace gpushm::injector::testing
