#include "runtime/client/client.h"

#include <utility>

namespace gpushm::client {
namespace {

constexpr int64_t kCloseMs = 1000;

}  // namespace

Client::Client(const ClientOptions& options)
    : driver_(options.driver_folder),
      attachments_(this),
      session_(options.place, &attachments_, &counters_) {}

Result<std::unique_ptr<Client>> Client::Open(const ClientOptions& options, const Wait& wait) {
  std::unique_ptr<Client> client(new Client(options));
  if (const auto lock = client->session_.LockConnected(wait); !lock) {
    return std::unexpected(lock.error());
  }
  return client;
}

Client::~Client() {
  const Deadline deadline = Deadline::AfterMs(kCloseMs);
  const Result<SessionLock> lock = session_.Lock(deadline);
  attachments_.BeginClose();
  decltype(objects_) objects;
  {
    const std::lock_guard own(mutex_);
    objects.swap(objects_);
  }
  objects.clear();  // While the memory that they use is still mapped.
  attachments_.Close(lock ? &*lock : nullptr, deadline);
}

void Client::Own(std::unique_ptr<ClientObject> object) {
  const std::lock_guard lock(mutex_);
  const ClientObject* const key = object.get();
  objects_.emplace(key, std::move(object));
}

void Client::Disown(const ClientObject* object) {
  std::unique_ptr<ClientObject> ended;
  const std::lock_guard lock(mutex_);
  if (auto node = objects_.extract(object)) ended = std::move(node.mapped());
}

}  // namespace gpushm::client
