// Paths of files inside containers; driver_files.h has the reasons.
#pragma once

#include <array>
#include <string>

#include "plugin/cdi/edits.h"

#if defined(__x86_64__)
#define GPUSHM_MULTIARCH "/usr/lib/x86_64-linux-gnu"
#elif defined(__aarch64__)
#define GPUSHM_MULTIARCH "/usr/lib/aarch64-linux-gnu"
#else
#error "NVIDIA's driver exists for x86_64 and aarch64"
#endif

namespace gpushm::plugin::cdi {

// The folders that the loaders of the Debian and the Red Hat families search.
inline constexpr std::array<const char*, 2> kLoaderFolders = {GPUSHM_MULTIARCH, "/usr/lib64"};

// Mounts the file under that name in every folder.
inline void MountLibrary(const std::string& host_path, const std::string& name, Edits* edits) {
  for (const std::string folder : kLoaderFolders) {
    edits->mounts.push_back({.host_path = host_path, .container_path = folder + "/" + name});
  }
}

}  // namespace gpushm::plugin::cdi
