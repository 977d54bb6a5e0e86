#include "sidecar/injector/certificates.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <utility>

namespace gpushm::injector {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;  // The size limit of a Secret.

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
void FreeChain(STACK_OF(X509) * chain) { sk_X509_pop_free(chain, X509_free); }

using Bio = std::unique_ptr<BIO, Freer<BIO_free_all>>;
using X509Ptr = std::unique_ptr<X509, Freer<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using Chain = std::unique_ptr<STACK_OF(X509), Freer<FreeChain>>;

std::unexpected<Status> BadFile(const std::string& path, const std::string& why) {
  ERR_clear_error();
  return Fail(Code::kInvalidArgument, Concat(path, " ", why),
              "provide a Secret of type kubernetes.io/tls: "
              "kubectl create secret tls NAME --cert=server.pem --key=server-key.pem");
}

Result<std::string> ReadSmallFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return FailSystem(errno, Concat("open ", path), "mount the Secret there");
  std::string text(std::istreambuf_iterator<char>(in), {});
  if (text.size() > kMaxFileBytes) return BadFile(path, "is larger than a Secret can be");
  return text;
}

Bio ReadFrom(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

int64_t SecondsOf(const ASN1_TIME* time) {
  std::tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? static_cast<int64_t>(timegm(&parts)) : 0;
}

}  // namespace

struct Certificates::Pair {
  std::string certificate_text;
  std::string key_text;
  X509Ptr certificate;
  KeyPtr key;
  Chain chain;
};

Certificates::Certificates(std::string folder) : folder_(std::move(folder)) {}
Certificates::~Certificates() = default;

Result<bool> Certificates::Load() {
  const std::string certificate_path = folder_ + "/tls.crt";
  const std::string key_path = folder_ + "/tls.key";
  auto pair = std::make_shared<Pair>();
  for (const auto& [path, text] : {std::pair{&certificate_path, &pair->certificate_text},
                                   std::pair{&key_path, &pair->key_text}}) {
    Result<std::string> read = ReadSmallFile(*path);
    if (!read) return std::unexpected(read.error());
    *text = std::move(*read);
  }
  {
    const std::lock_guard lock(mutex_);
    if (pair_ && pair_->certificate_text == pair->certificate_text &&
        pair_->key_text == pair->key_text) {
      return false;
    }
  }
  const Bio certificates = ReadFrom(pair->certificate_text);
  pair->certificate.reset(PEM_read_bio_X509(certificates.get(), nullptr, nullptr, nullptr));
  if (!pair->certificate) return BadFile(certificate_path, "holds no certificate in PEM format");
  pair->chain.reset(sk_X509_new_null());
  while (X509* const next = PEM_read_bio_X509(certificates.get(), nullptr, nullptr, nullptr)) {
    sk_X509_push(pair->chain.get(), next);
  }
  ERR_clear_error();  // The error of reaching the end of the file.
  pair->key.reset(
      PEM_read_bio_PrivateKey(ReadFrom(pair->key_text).get(), nullptr, nullptr, nullptr));
  if (!pair->key) return BadFile(key_path, "holds no private key in PEM format");
  if (X509_check_private_key(pair->certificate.get(), pair->key.get()) != 1) {
    return BadFile(key_path, Concat("does not match the certificate in ", certificate_path));
  }
  const std::lock_guard lock(mutex_);
  pair_ = std::move(pair);
  return true;
}

int64_t Certificates::expires_s() const {
  const std::lock_guard lock(mutex_);
  return pair_ ? SecondsOf(X509_get0_notAfter(pair_->certificate.get())) : 0;
}

void Certificates::ServeOn(SSL_CTX* context) { SSL_CTX_set_cert_cb(context, &Choose, this); }

int Certificates::Choose(SSL* connection, void* self) {
  const auto* const certificates = static_cast<const Certificates*>(self);
  std::shared_ptr<const Pair> pair;
  {
    const std::lock_guard lock(certificates->mutex_);
    pair = certificates->pair_;
  }
  if (!pair) return 0;
  return SSL_use_cert_and_key(connection, pair->certificate.get(), pair->key.get(),
                              pair->chain.get(), /*override=*/1);
}

}  // namespace gpushm::injector
