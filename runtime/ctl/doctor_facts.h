// Gathers the facts that doctor.h judges: from the system, and from the driver by child processes.
#pragma once

#include <cstdint>
#include <string>

#include "platform/base/unique_fd.h"
#include "runtime/ctl/doctor.h"

namespace gpushm::ctl {

// `folder` and `pod_uid` are as in gpushm_open_options; "" where the caller leaves them open.
SocketFacts GatherSocket(const std::string& folder, const std::string& pod_uid);
SystemFacts GatherSystem();

// Each runs in a child process (probe.h). `driver`: folder of libcuda.so.1; "": the loader's path.
Result<GpuFacts> ProbeGpus(const std::string& driver, int64_t wait_ms);
// 2 MiB of the GPU with that UUID, as a descriptor.
Result<UniqueFd> ProbeCreate(const std::string& driver, const std::string& uuid, int64_t wait_ms);
// Imports and maps the memory in another process, and checks which access the driver granted.
Result<void> ProbeMap(const std::string& driver, const std::string& uuid, const UniqueFd& memory,
                      bool writable, int64_t wait_ms);

}  // namespace gpushm::ctl
