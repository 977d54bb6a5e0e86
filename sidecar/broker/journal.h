// What a successor must know, in the words of the link (contract/protocol/link.h): each change of
// the ledger as a statement, and everything that there is for a plugin that knows nothing yet. And
// the way back: what an earlier broker stated, as the ledger has it. Nothing else translates
// between the two.
//
// Invariants
//   (1) A change is noted as it is at that moment, and taken in the order in which it was noted.
//   (2) While everything is being stated, what comes later in that order needs no statement of its
//       own: Take() leaves it out.
//
// A load that is in progress is stated as LOADING; what becomes of it is for the successor to say
// (Content::Restore). A name that is gone stays stated, without generations of its own, while one
// of its generations is still held. It stays stated indefinitely if the pod declares it, so that
// the successor does not make it again. Its state is then WRITER_DIED. Only that state takes a
// declared buffer away, and a name whose memory was never made is also stated without generations.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "contract/protocol/link.h"
#include "platform/base/unique_fd.h"
#include "sidecar/broker/ledger.h"
#include "sidecar/broker/statement.h"

namespace gpushm::broker {

class Journal {
 public:
  // The statements carry descriptors of the ledger's memory: they are valid until it changes again,
  // and until its TakeFreed() is called.
  explicit Journal(const Ledger* ledger) : ledger_(ledger) {}

  // ---- changes, noted by the ledger
  void NoteBuffer(const std::string& name);  // Also that it is gone.
  void NoteGeneration(uint64_t number);
  void NoteContent(uint64_t number);
  void NoteDescription(uint64_t number);
  void NoteLease(const Lease& lease);
  void NoteLeaseEnded(uint64_t id);
  void NoteFreed(uint64_t number, const std::string& name);
  std::vector<Statement> Take();

  // ---- everything: buffers, generations, leases. The server states clients.
  void BeginAll() { next_ = {}; }
  // The first that was not stated yet; nullopt at the end.
  std::optional<Statement> Next();
  void OnStated(const Statement& stated);

 private:
  // How far that is.
  struct Place {
    enum class Part { kBuffers, kGenerations, kLeases, kEnd } part = Part::kBuffers;
    std::string name{};   // The last buffer stated; empty for none yet.
    uint64_t number = 0;  // The last generation or lease stated.
    // What of that generation is stated next, if it has it.
    enum class Due { kNothing, kBlocks, kContent, kDescription } due = Due::kNothing;
    uint32_t block = 0;  // With kBlocks.
  };

  bool IsStated(const std::string& name) const;
  const std::string* NextName(const std::string& after) const;
  bool IsAhead(const Statement& statement) const;
  Statement BufferStatement(const std::string& name) const;
  Statement GenerationStatement(uint64_t number) const;
  Statement BlockStatement(uint64_t number, uint32_t index) const;
  Statement ContentStatement(uint64_t number) const;
  Statement DescriptionStatement(uint64_t number) const;
  void NoteDrop(protocol::LinkDropped what, uint64_t id, const std::string& name = {});

  const Ledger* ledger_;
  Place next_{.part = Place::Part::kEnd};
  std::vector<Statement> noted_;
};

// ---- the way back, of statements that ParseLink<>() accepted

std::pair<std::string, Buffer> ToBuffer(const protocol::LinkBuffer& stated);
// Its blocks have no descriptors yet.
std::pair<uint64_t, Generation> ToGeneration(const protocol::LinkGeneration& stated,
                                             UniqueFd memory);
// Without its container and name.
Lease ToLease(const protocol::LinkLease& stated);

}  // namespace gpushm::broker
