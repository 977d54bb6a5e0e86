// A client process of a simulated pod: the library's connection (runtime/client/session.h), and a
// script of random requests. What it was granted is remembered in the pod's memory, so the pod can
// check it also after the process was killed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "contract/sync/page.h"
#include "runtime/client/session.h"
#include "tests/simulation/world.h"

namespace gpushm::simulation {

class Pod;

// A lease that a client was granted.
struct Held {
  std::string name;
  uint64_t generation = 0;
  uint32_t access = 0;
  uint64_t epoch = 0;  // Of the broker that granted it.
  bool unpublished = false;
  // Whether a broker must know it. Not while the client gives it back, and not once broker and
  // plugin were lost together.
  bool sure = true;
  bool leaving = false;
  int memory = -1;             // The descriptor, in the client's process.
  sync::Cell* cell = nullptr;  // The cell that it owns.
};

class Client final : public client::SessionObserver {
 public:
  Client(World* world, Pod* pod, std::string container);

  Process* process() const { return process_; }
  const std::string& container() const { return container_; }
  bool alive() const { return !process_->ended; }
  // 0 while it has never been connected.
  uint64_t id() const { return id_; }
  // Whether it was that client of some broker.
  bool WasOnce(uint64_t id) const { return ids_.contains(id); }
  std::map<uint64_t, Held>& held() { return held_; }
  bool waits() const { return waits_; }

 private:
  void Main();
  void Do();
  void Reconnected(const client::SessionLock& lock, const client::Return& how,
                   const Deadline& deadline) override;
  std::optional<std::set<uint64_t>> AskLeases(const client::SessionLock& lock,
                                              const Deadline& deadline);

  // Each sends one kind of request.
  void Attach();
  void Create();
  void Replace();
  void Publish();
  void Detach();
  void Delete();
  void Offer();
  void MakePage();
  void Claim();
  void SayContent();
  void SayReason();
  void Describe();
  void List();

  template <typename Reply, typename Request>
  Result<Reply> Ask(protocol::Kind kind, const Request& request,
                    std::vector<UniqueFd>* received = nullptr, bool repeatable = false,
                    uint64_t serial = 0, std::span<const int> descriptors = {});
  // An error that no client may get.
  void Check(protocol::Kind kind, const Status& status);
  // What a grant gave: a lease (0: none) on a generation, and its memory.
  void Take(const std::string& name, uint64_t lease, uint64_t generation, uint32_t access,
            std::vector<UniqueFd>* received, bool unpublished);
  std::string PickName();
  // A lease that is not about to end; 0: it has none.
  uint64_t PickLease(bool writes = false);
  void Forget(uint64_t lease);
  void NotePeer(const client::SessionLock& lock);

  World* const world_;
  Pod* const pod_;
  const std::string container_;
  Process* process_ = nullptr;
  // Its process's own, which takes it along when it is killed: its descriptors mean nothing here.
  client::Session* session_ = nullptr;
  uint64_t id_ = 0;
  std::set<uint64_t> ids_;
  uint64_t epoch_ = 0;
  uint64_t serial_ = 0;
  bool waits_ = false;
  std::map<uint64_t, Held> held_;
  std::map<std::string, uint64_t> seen_;  // Generations that the registry showed last.
};

}  // namespace gpushm::simulation
