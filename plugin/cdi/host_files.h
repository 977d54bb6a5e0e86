// The plugin's own folder on the host, from which files are mounted into containers.
//
//   <state>/lib/libgpushm.so.0     0644   applications link it
//   <state>/bin/gpushmctl          0755
//   <state>/links/                 0700   only root can pass
//   <state>/links/m0000/           0755   one sidecar's link, mounted into it alone
//   <state>/others/                0700   only root can pass
//   <state>/others/UID/            0755   the socket for pods that share a claim, mounted there
//   <run>/UID/             0777   of a claim with MPS: a small tmpfs of its own, mounted into its
//                                 containers; only the pod with the daemon may write
//   <state>/driver-sim/, cards/    0755, 0777   of the simulated driver, if configured
//
// Invariants
//   (1) An installed file is the old one or the new one at every instant, even if the plugin is
//       killed. An upgrade renames: a running container keeps the file that it has mounted, and the
//       next one gets the new file under the same path. So specs do not change.
//   (2) Only DNS labels become folders, so no name can lead out of links/.
//   (3) A link folder keeps its inode until it is removed, because it is mounted.
//
// Files need no generation folders: the library and gpushmctl speak versioned protocols, so old and
// new ones can run side by side. Contents are compared at each start, which repairs a disk that
// lost them.
//
// Threads: any; calls for one name must not overlap.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/files.h"
#include "platform/base/status.h"

namespace gpushm::plugin::cdi {

inline constexpr char kStateFolder[] = "/var/lib/gpushm";
inline constexpr char kLibraryName[] = "libgpushm.so.0";
inline constexpr char kCtlName[] = "gpushmctl";

class HostFiles {
 public:
  // `on_host` is the state folder's path on the host, `seen` its path in this process. Creates it
  // (not its parents) and the folders below it, and removes what a killed Install left.
  // kInvalidArgument: the path is too long for a socket in a link folder. `files` must outlive the
  // object.
  static Result<HostFiles> Open(std::string on_host, std::string seen,
                                Files& files = SystemFiles());

  // Copies gpushm's library and gpushmctl from a folder of the plugin's image. True: something was
  // new. kUnsupported: programs cannot run from the state folder (noexec, as /run often is).
  // kCorrupt: a written file reads back different.
  Result<bool> Install(const std::string& library, const std::string& ctl);

  // The same for the simulated driver: `folder` holds its two libraries.
  Result<bool> InstallSimulatedDriver(const std::string& folder);
  // Makes the simulated driver's state folder, in which the processes of all users make files, with
  // that many cards, unless it has them already. Running programs keep the cards that they started
  // with.
  Result<bool> InstallSimulatedCards(unsigned count, uint64_t bytes);

  // Paths on the host.
  std::string library() const { return on_host_ + "/lib/" + kLibraryName; }
  std::string ctl() const { return on_host_ + "/bin/" + kCtlName; }
  std::string simulated_driver() const { return on_host_ + "/driver-sim"; }
  std::string simulated_cards() const { return on_host_ + "/cards"; }
  std::string LinkFolder(std::string_view name) const;

  std::string OthersFolder(std::string_view name) const;
  // The folder <run>, which is the same mount here and on the node.
  void UseRunFolder(std::string path) { run_ = std::move(path); }
  std::string MpsFolder(std::string_view name) const;

  // Creates the folder or repairs its mode; replaces anything there that is not a folder. Returns
  // its path in this process. It must exist before the runtime looks for it: the runtime would
  // create a missing one itself, owned by root with any mode, and the sidecar would never meet the
  // plugin there.
  Result<std::string> MakeLinkFolder(std::string_view name);
  // The same for the folder that is mounted into other pods of the claim.
  Result<std::string> MakeOthersFolder(std::string_view name);
  // The same for the folder in which a pod of the claim runs an MPS daemon: a tmpfs, so that no pod
  // can fill more than that. kUnsupported: this process may not mount it, or the node would not see
  // it.
  Result<std::string> MakeMpsFolder(std::string_view name);
  // Removes these folders with what is in them. No error if they do not exist.
  Result<void> RemoveLinkFolder(std::string_view name);
  // Names of the existing folders of all kinds. At the start, those of bindings are repaired and
  // the others removed.
  Result<std::vector<std::string>> LinkFolders() const;

 private:
  Result<std::string> MakeFolderIn(std::string_view parent, std::string_view name);
  Result<void> RemoveWhole(const std::string& path);
  HostFiles(std::string on_host, std::string seen, Files* files)
      : on_host_(std::move(on_host)), seen_(std::move(seen)), files_(files) {}
  Result<bool> InstallFile(const std::string& source, const std::string& place, mode_t mode);
  Result<void> MakeFolder(const std::string& path, mode_t mode);

  std::string on_host_;
  std::string seen_;
  std::string run_;  // Empty: there are no claims with MPS.
  Files* files_;
};

}  // namespace gpushm::plugin::cdi
