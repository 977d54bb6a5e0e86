// The object behind a gpushm_client: the connection, the driver, the attachments of this process,
// and what it has open.
//
// Threads: any thread may call any function.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "platform/base/status.h"
#include "runtime/client/alarm.h"
#include "runtime/client/attachments.h"
#include "runtime/client/counters.h"
#include "runtime/client/driver.h"
#include "runtime/client/handles.h"
#include "runtime/client/offer.h"
#include "runtime/client/session.h"
#include "runtime/client/wait.h"

namespace gpushm::client {

struct ClientOptions {
  Session::Place place;
  std::string driver_folder;
};

// An open signal, barrier or ring. The client ends it when it closes, if that was not done before.
class ClientObject {
 public:
  virtual ~ClientObject() = default;
};

class Client final {
 public:
  static Result<std::unique_ptr<Client>> Open(const ClientOptions& options, const Wait& wait);
  // Ends the objects that it owns, unmaps all attachments, ends their leases as far as the broker
  // answers, and disconnects.
  ~Client();

  const Handle& handle() const { return handle_; }
  Counters& counters() { return counters_; }
  Driver& driver() { return driver_; }
  Session& session() { return session_; }
  const Session& session() const { return session_; }
  Attachments& attachments() { return attachments_; }
  Offers& offers() { return offers_; }
  // Of the names that this process sees.
  Alarm& names_alarm() { return names_alarm_; }

  void Own(std::unique_ptr<ClientObject> object);
  void Disown(const ClientObject* object);

 private:
  explicit Client(const ClientOptions& options);

  const Handle handle_{HandleKind::kClient, this};
  Alarm names_alarm_;
  Offers offers_;
  Counters counters_;
  Driver driver_;
  Attachments attachments_;
  Session session_;
  std::mutex mutex_;
  std::unordered_map<const ClientObject*, std::unique_ptr<ClientObject>> objects_;  // Under mutex_.
};

}  // namespace gpushm::client
