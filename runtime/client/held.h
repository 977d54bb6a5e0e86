// An attachment that the destructor detaches, unless Release was called.
#pragma once

#include <utility>

#include "runtime/client/client.h"

namespace gpushm::client {

class Held {
 public:
  Held(Client* client, Attachment* attachment) : client_(client), attachment_(attachment) {}
  Held(Held&& other) noexcept
      : client_(other.client_), attachment_(std::exchange(other.attachment_, nullptr)) {}
  Held& operator=(Held&&) = delete;
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() { (void)Detach(); }

  Client* client() const { return client_; }
  Attachment* get() const { return attachment_; }
  Attachment* operator->() const { return attachment_; }
  Attachment* Release() { return std::exchange(attachment_, nullptr); }
  Result<void> Detach() {
    if (attachment_ == nullptr) return {};
    return client_->attachments().Detach(Release(), {}, /*defer=*/false);
  }

 private:
  Client* const client_;
  Attachment* attachment_;
};

}  // namespace gpushm::client
