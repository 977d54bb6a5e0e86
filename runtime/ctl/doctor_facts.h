// The facts that doctor.h judges: of the system, and of the driver by probes in child processes.
#pragma once

#include <cstdint>
#include <string>

#include "platform/base/unique_fd.h"
#include "runtime/ctl/doctor.h"

namespace gpushm::ctl {

// `folder`, `pod_uid`: as in gpushm_open_options; "" for what they leave open.
SocketFacts GatherSocket(const std::string& folder, const std::string& pod_uid);
SystemFacts GatherSystem();

// Each in a child process (probe.h). `driver`: folder of libcuda.so.1, "" for the loader's.
Result<GpuFacts> ProbeGpus(const std::string& driver, int64_t wait_ms);
// 2 MiB of the GPU with that UUID, as a descriptor.
Result<UniqueFd> ProbeCreate(const std::string& driver, const std::string& uuid, int64_t wait_ms);
// Imports and maps them in another process, and asks the driver what was granted.
Result<void> ProbeMap(const std::string& driver, const std::string& uuid, const UniqueFd& memory,
                      bool writable, int64_t wait_ms);

}  // namespace gpushm::ctl
