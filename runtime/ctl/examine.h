// All that gpushmctl doctor tries, for it and for support bundles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "runtime/ctl/connection.h"
#include "runtime/ctl/doctor.h"

namespace gpushm::ctl {

// The limit for each try; --timeout sets another.
inline constexpr int64_t kTryMs = 10'000;

struct BrokerView {
  Result<BrokerFacts> facts;
  size_t cuipc_buffers = 0;
};
// Takes the connection, because it must be closed before the first try: a child that hangs must not
// hold it.
BrokerView AskBroker(Result<Connection> connection);

struct Place {
  std::string folder;  // As in gpushm_open_options.
  std::string pod_uid;
};
// Each try of the driver is a process of its own, which may take `wait_ms`. After `whole` no
// further GPU is tried, and a warning says so.
std::vector<Check> Examine(const Place& place, const BrokerView& broker, int64_t wait_ms,
                           const std::optional<Deadline>& whole = {});

}  // namespace gpushm::ctl
