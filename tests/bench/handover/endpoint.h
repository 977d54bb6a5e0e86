// The processes of a run, each a fresh exec: the producer, the consumers, and the neighbour that
// keeps the GPU busy. They do what the parent says, one command at a time, and answer "ok"; an
// error ends them, after they said what it was.
//
//   board  (descriptor)                     the run's shared memory
//   link   (descriptor)                     a socket to a consumer, or to the producer
//   cell   <bytes> <peers> (descriptor)     the tensor's size, who takes part; the staging region
//   open   <way> <serial>                   makes what the way needs for a block
//   run    <first> <count> <warm> <ns>      hand-overs `first`, `first` + 1 ...: some that warm up,
//                                           then at most `count`, and no more after so long. The
//                                           producer answers "ok <samples>".
//   close                                   undoes `open`; consumers first
#pragma once

#include <string>
#include <vector>

#include "tests/bench/harness.h"

namespace gpushm::bench::handover {

inline constexpr char kProducer[] = "handover-producer";
inline constexpr char kConsumer[] = "handover-consumer";
inline constexpr char kNeighbour[] = "handover-neighbour";
// The limit for a single hand-over of any way: staging moves a GiB in a fifth of a second.
inline int64_t HandoverMs(uint64_t size_bytes) {
  return 5000 + static_cast<int64_t>(size_bytes >> 30) * 1000;
}

// Argument: the broker's folder.
void Produce(Channel& parent, const std::vector<std::string>& arguments);
// Arguments: the broker's folder, the consumer's number.
void Consume(Channel& parent, const std::vector<std::string>& arguments);
// Sends "busy" once kernels run, and continues until it is killed. kUnsupported on the simulated
// driver, which runs no kernels.
void KeepBusy(Channel& parent, const std::vector<std::string>& arguments);

}  // namespace gpushm::bench::handover
