// Finds the host's GPU driver, and determines which of its and gpushm's files a container gets.
//
// Paths: the plugin runs in a container and sees the host's file system below Options::host_root.
// Every path in Edits is the host's; this process opens host_root + path. In folders that are a
// file system of their own (a driver container's), links are resolved inside it.
//
// Libraries: each file is mounted read-only under the names that programs request from the loader
// (libcuda.so.1), in *both* /usr/lib/<machine>-linux-gnu and /usr/lib64.
//   - Debian, Ubuntu and their derivatives search the first folder. Red Hat's UBI, Amazon, SUSE and
//     Arch (with a link to /usr/lib) search the second. So this needs no LD_LIBRARY_PATH, which
//     images and users set for themselves, and no knowledge of the image. It needs no ld.so.cache
//     either, which only a program inside the new container could extend. In the folder that an
//     image does not use, the files do no harm.
//   - The runtime follows an image's links inside the container's root. If both folders are one,
//     the second mount covers the first with the same file. A driver library in the image is
//     covered too, which is right because the library has to match the kernel module.
//   - It also works with a read-only root file system, because the runtime makes the mount points
//     before it makes the root read-only.
//   - Programs that search `ldconfig -p` for libcuda do not find it. For Triton (in PyTorch and
//     vLLM) TRITON_LIBCUDA_PATH is set.
//   - musl (Alpine) searches neither folder and cannot run the driver, so it is not supported.
// Mounting a whole folder would hide the image's files. Programs go to /usr/bin because it is on
// every PATH, and because nobody mounts a volume over it, unlike /usr/local.
//
// If the host has a CDI spec from NVIDIA, its edits are used instead: it was made for this host,
// covers layouts that this code does not know, and its hook extends ld.so.cache.
//
// Threads: pure functions of their arguments and the file system; any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "plugin/cdi/edits.h"
#include "plugin/inventory/inventory.h"

namespace gpushm::plugin::cdi {

enum class DriverKind {
  kInstalled,   // Libraries in a root folder.
  kNvidiaSpec,  // A CDI spec of kind nvidia.com/gpu.
  kSimulated,
};

struct DriverOptions {
  // On the host: the root of a driver installation (/, /run/nvidia/driver), a folder that holds
  // libcuda.so.1 itself (the simulated driver), or a CDI spec (*.yaml, *.json). "auto": NVIDIA's
  // spec, or else the first root whose libraries match the loaded kernel module.
  std::string root = "auto";
  // Where this process sees the host's root. Empty if it runs on the host.
  std::string host_root;
  // On the host: the simulated driver's state folder (GPUSHM_SIM_DIR).
  std::string simulated_state = "/var/tmp/gpushm-sim";
};

struct DriverFiles {
  DriverKind kind = DriverKind::kInstalled;
  std::string root;     // Path on the host; for a spec, the spec's path.
  std::string version;  // "580.65.06"; empty if no file name contains it.
  // Folder from which this process can load libnvidia-ml.so.1 (NvmlApi::Load).
  std::string library_folder;
  Edits common;                          // For every container that uses a GPU.
  std::map<std::string, Edits> devices;  // From NVIDIA's spec, by its device names.
  std::string dev_folder;                // On the host: the folder of the device nodes.
  std::string dev_folder_seen;           // The same, as this process sees it.
  std::string host_root;
  // What "auto" passed over, and why; for the log.
  std::vector<std::string> passed_over;
};

// kNotFound: there is no driver, or a part of it is missing; the error says what to do. Takes
// milliseconds. Call it at the start, and when the driver may have been replaced.
Result<DriverFiles> FindDriver(const DriverOptions& options);

enum class ContainerRole { kSidecar, kApplication };

// gpushm's own files, as paths on the host (HostFiles). Empty ones are left out.
struct OwnFiles {
  std::string library;      // libgpushm.so.0
  std::string ctl;          // gpushmctl
  std::string link_folder;  // Of the sidecar.
};

// What every container gets: libraries, programs, control nodes. It is nine tenths of what a
// container gets, so it is a spec of its own (SpecStore::WriteShared).
Edits SharedEdits(const DriverFiles& driver, const OwnFiles& own);

// What a container of that role gets in addition, for that GPU. kNotFound: the GPU has no device
// node, or its MIG instance no capability; the error says what to do.
Result<Edits> BindingEdits(const DriverFiles& driver, const std::vector<inventory::Device>& devices,
                           ContainerRole role, const OwnFiles& own);

}  // namespace gpushm::plugin::cdi
