// The list of a pod with hostIPC. It lets such pods on a node find each other in /dev/shm, before
// they connect to the broker socket next to the list and get its registry.
//
// It is a plain file, <dir>/gpushm.<pod uid>. It cannot be sealed, and its writer could truncate it
// under a mapping, so readers copy it and never map it. The writer replaces it as a whole by
// rename(): a reader that has the old file open keeps reading the old version. It contains no
// handle, so reading it gives no access.
//
// Whatever bytes the file contains, reading it is bounded and returns kCorrupt at worst.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contract/limits.h"
#include "contract/registry/record.h"
#include "platform/base/status.h"

namespace gpushm::registry {

// The folder of the files; the functions below take it as a parameter for tests.
inline constexpr char kHostListDir[] = "/dev/shm";
// Maximum number of pods that ListHostPods returns.
inline constexpr size_t kHostPods = 1024;

struct HostList {
  std::array<uint64_t, 2> segment_id{};  // Of the registry from which it was copied.
  uint64_t table_version = 0;
  uint64_t written_unix_ns = 0;
  std::vector<BufferRecord> buffers;
};

// [a-z0-9-]{1,63}: the UIDs that the API server makes (RFC 4122), and the hashes of mirror pods.
// Contains no path.
bool IsPodUid(std::string_view text);

// "gpushm.<uid>" and "gpushm.<uid>.sock", without the folder.
std::string HostListFile(std::string_view pod_uid);
std::string HostSocketFile(std::string_view pod_uid);

// Writes or replaces the pod's list with mode 0640 and the process's group. Only the broker calls
// this, from one thread.
Result<void> WriteHostList(const std::string& dir, std::string_view pod_uid, const HostList& list);

// kNotFound if the pod has no list; kDenied if this process may not read it.
Result<HostList> ReadHostList(const std::string& dir, std::string_view pod_uid);

// The pods that have a list in `dir`, sorted. These are names only: the lists may be broken or left
// over.
Result<std::vector<std::string>> ListHostPods(const std::string& dir);

// Removes a pod's files: list, socket, half-written list. Succeeds if there are none.
Result<void> RemoveHostFiles(const std::string& dir, std::string_view pod_uid);

// The file's bytes, for the functions above and for the fuzzer.
Result<std::vector<uint64_t>> EncodeHostList(std::string_view pod_uid, const HostList& list);
Result<HostList> DecodeHostList(std::string_view pod_uid, std::span<const std::byte> bytes);

}  // namespace gpushm::registry
