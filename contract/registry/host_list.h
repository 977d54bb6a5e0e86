// The list of a pod with hostIPC: what such pods of a node find of each other in /dev/shm, before
// they connect to the broker beside it and get its registry.
//
// A plain file, <dir>/gpushm.<pod uid>: it cannot be sealed, and its writer could truncate it under
// a mapping, so readers copy it out and never map it. Replaced as a whole by rename(): who opened
// it before reads the old list to its end. Names no handle; reading it gives no access.
//
// Whatever the file's bytes are, reading it is bounded and says kCorrupt at worst.
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

// Where the files lie; a parameter below for tests.
inline constexpr char kHostListDir[] = "/dev/shm";
// Pods that ListHostPods returns at most.
inline constexpr size_t kHostPods = 1024;

struct HostList {
  std::array<uint64_t, 2> segment_id{};  // Of the registry that it was copied from.
  uint64_t table_version = 0;
  uint64_t written_unix_ns = 0;
  std::vector<BufferRecord> buffers;
};

// [a-z0-9-]{1,63}: what the API server makes (RFC 4122), and mirror pods' hashes. No path in it.
bool IsPodUid(std::string_view text);

// "gpushm.<uid>" and "gpushm.<uid>.sock", without the folder.
std::string HostListFile(std::string_view pod_uid);
std::string HostSocketFile(std::string_view pod_uid);

// Writes or replaces the pod's list; mode 0640, group of the process. Broker only, one thread.
Result<void> WriteHostList(const std::string& dir, std::string_view pod_uid, const HostList& list);

// kNotFound if the pod has none; kDenied if it may not be read.
Result<HostList> ReadHostList(const std::string& dir, std::string_view pod_uid);

// The pods that have a list there, sorted. Names only: the lists may be broken or leftovers.
Result<std::vector<std::string>> ListHostPods(const std::string& dir);

// Removes what a pod left: list, socket, half-written list. Fine if there is nothing.
Result<void> RemoveHostFiles(const std::string& dir, std::string_view pod_uid);

// The file's bytes, for the functions above and for the fuzzer.
Result<std::vector<uint64_t>> EncodeHostList(std::string_view pod_uid, const HostList& list);
Result<HostList> DecodeHostList(std::string_view pod_uid, std::span<const std::byte> bytes);

}  // namespace gpushm::registry
