// What each container may do with a buffer, signal, barrier or ring.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "contract/annotations/annotations.h"
#include "contract/protocol/messages.h"

namespace gpushm::broker {

struct Policy {
  bool declared = false;             // By annotation; lives as long as the pod.
  bool signal = false;               // Declared as a signal.
  std::string creator;               // The creator's container; empty if declared.
  std::set<std::string> containers;  // Containers that may attach; empty for every container.
  std::set<std::string> writers;     // Containers that may write; if empty, see writers_all.
  bool writers_all = false;          // Every container may write.
  bool read_only = false;            // Nobody may write.
  bool one_writer = false;
  std::string loader{};       // The container that loads its `file:`; empty if it has none.
  bool until_unused = false;  // Removed with the last lease on its current generation.
  uint32_t gpu = 0;           // If declared: the number of the GPU on which it is made.
  protocol::OnWriterExit on_writer_exit = protocol::OnWriterExit::kMark;

  static Policy FromSpec(const annotations::BufferSpec& spec);
  static Policy FromSpec(const annotations::SignalSpec& spec);
  // The annotation that declares it. Only for what is declared.
  std::string Annotation(const std::string& name) const;
  bool MayAttach(const std::string& container) const;
  bool MayWrite(const std::string& container) const;
};

}  // namespace gpushm::broker
