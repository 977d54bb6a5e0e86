// Where the host's GPU driver is, and what of it, and of gpushm, a container gets.
//
// Paths: the plugin runs in a container and sees the host's file system below Options::host_root.
// Every path that goes into Edits is the host's; what is looked at is host_root + path. In folders
// that are a file system of their own (a driver container's) links are followed inside of it.
//
// Libraries: each file is mounted, read-only, under the names that programs ask the loader for
// (libcuda.so.1), in *both* /usr/lib/<machine>-linux-gnu and /usr/lib64.
//   - Debian, Ubuntu and what is built on them search the first folder, Red Hat's UBI, Amazon, SUSE
//     and Arch (a link to /usr/lib there) the second, without being told: no LD_LIBRARY_PATH, which
//     images and users set for themselves, no ld.so.cache, which only a program run inside the new
//     container could extend, and no need to know the image. In the folder that an image does not
//     use the files do no harm.
//   - Links in images are followed by the runtime inside the container's root; where both folders
//     are one, the second mount covers the first with the same file. A driver library that an image
//     brought along is covered too, as it must be: it has to fit the kernel module.
//   - With a read-only root file system it works as well: the runtime makes the mount points before
//     it makes the root read-only.
//   - What asks `ldconfig -p` for libcuda does not find it; Triton (in PyTorch and vLLM) is told by
//     TRITON_LIBCUDA_PATH.
//   - musl (Alpine) searches neither and cannot run the driver: unsupported.
// A whole folder is not mounted: it would hide the image's files. Programs go to /usr/bin: on every
// PATH, and nobody mounts a volume over it, as people do over /usr/local.
//
// With a CDI spec of NVIDIA's on the host, its edits are taken instead: it was made for this host,
// knows layouts that are not known here, and its hook extends ld.so.cache.
//
// Threads: functions of their arguments and of the file system; any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "plugin/cdi/edits.h"
#include "plugin/inventory/inventory.h"

namespace gpushm::plugin {

enum class DriverKind {
  kInstalled,   // Libraries in a root.
  kNvidiaSpec,  // A CDI spec of kind nvidia.com/gpu.
  kSimulated,
};

struct DriverOptions {
  // On the host: the root of a driver installation (/, /run/nvidia/driver), a folder that holds
  // libcuda.so.1 itself (the simulated driver), or a CDI spec (*.yaml, *.json). "auto": NVIDIA's
  // spec, else the first root with libraries that fit the loaded kernel module.
  std::string root = "auto";
  // Where this process sees the host's root. Empty: it runs on the host.
  std::string host_root;
  // On the host: the simulated driver's state folder (GPUSHM_SIM_DIR).
  std::string simulated_state = "/var/tmp/gpushm-sim";
};

struct DriverFiles {
  DriverKind kind = DriverKind::kInstalled;
  std::string root;     // On the host; of a spec its path.
  std::string version;  // "580.65.06"; empty where no file's name tells.
  // Where this process can load libnvidia-ml.so.1 from (NvmlApi::Load).
  std::string library_folder;
  Edits common;                          // For every container that uses a GPU.
  std::map<std::string, Edits> devices;  // Of NVIDIA's spec, by its names of devices.
  std::string dev_folder;                // On the host: where the device nodes are.
  std::string dev_folder_seen;           // The same, as this process sees it.
  std::string host_root;
  // What "auto" passed over, and why: for the log.
  std::vector<std::string> passed_over;
};

// kNotFound: no driver, or something of it is missing, and what to do. Costs milliseconds; to be
// called at the start and when the driver may have been exchanged.
Result<DriverFiles> FindDriver(const DriverOptions& options);

enum class ContainerRole { kSidecar, kApplication };

// gpushm's own files, on the host (HostFiles). Empty ones are left out.
struct OwnFiles {
  std::string library;      // libgpushm.so.0
  std::string ctl;          // gpushmctl
  std::string link_folder;  // The sidecar's.
};

// What every container gets, the same for all: libraries, programs, control nodes. It makes up nine
// tenths of what a container gets, so with CDI it is a spec of its own (SpecStore::WriteShared).
Edits SharedEdits(const DriverFiles& driver, const OwnFiles& own);

// What a container of that role gets beside it, for that GPU. kNotFound: the GPU has no device
// node, or its instance no capability; what to do.
Result<Edits> BindingEdits(const DriverFiles& driver, const Device& device, ContainerRole role,
                           const OwnFiles& own);

// Both together: for runtimes without CDI.
Result<Edits> EditsFor(const DriverFiles& driver, const Device& device, ContainerRole role,
                       const OwnFiles& own);

}  // namespace gpushm::plugin
