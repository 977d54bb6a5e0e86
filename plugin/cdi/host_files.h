// The plugin's own folder on the host: what containers get mounted from there.
//
//   <state>/lib/libgpushm.so.0     0644   applications link it
//   <state>/bin/gpushmctl          0755
//   <state>/links/                 0700   nobody but root passes
//   <state>/links/m0000/           0755   one sidecar's link, mounted into it alone
//   <state>/driver-sim/, cards/    0755, 0777   of the simulated driver, where that is asked for
//
// Invariants
//   (1) An installed file is the old one or the new one at every instant, also when the plugin is
//       killed. An upgrade renames: a running container keeps the file that it has mounted, the
//       next one gets the new file under the same path, so that specs do not change.
//   (2) Only names that are DNS labels become folders: no name leads out of links/.
//   (3) A link folder's inode stays as long as nobody removes it: it is mounted.
//
// Files need no generation folders: library and gpushmctl speak versioned protocols, so an old one
// beside a new one is harmless. Contents are compared at each start, so a disk that lost them does
// no harm either.
//
// Threads: any; calls for one name must not overlap.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "plugin/cdi/files.h"

namespace gpushm::plugin {

inline constexpr char kStateFolder[] = "/var/lib/gpushm";
inline constexpr char kLibraryName[] = "libgpushm.so.0";
inline constexpr char kCtlName[] = "gpushmctl";

class HostFiles {
 public:
  // `on_host`: the state folder's path there; `seen`: where this process sees it. Makes it (not its
  // parents) and what is below it, and sweeps what a killed Install left. kInvalidArgument: the
  // path is too long for a socket in a link folder. `files` outlives the object.
  static Result<HostFiles> Open(std::string on_host, std::string seen,
                                Files& files = SystemFiles());

  // Copies gpushm's library and gpushmctl from a folder of the plugin's image. True: something was
  // new. kUnsupported: programs cannot run from the state folder (noexec, as /run often is).
  // kCorrupt: what was written does not read the same.
  Result<bool> Install(const std::string& library, const std::string& ctl);

  // The same for the simulated driver: the folder that holds its two libraries.
  Result<bool> InstallSimulatedDriver(const std::string& folder);
  // The state folder of the simulated driver, in which the processes of all users make files, with
  // so many cards, unless it has these already. What runs keeps the cards that it started with.
  Result<bool> InstallSimulatedCards(unsigned count, uint64_t bytes);

  // On the host.
  std::string library() const { return on_host_ + "/lib/" + kLibraryName; }
  std::string ctl() const { return on_host_ + "/bin/" + kCtlName; }
  std::string simulated_driver() const { return on_host_ + "/driver-sim"; }
  std::string simulated_cards() const { return on_host_ + "/cards"; }
  std::string LinkFolder(std::string_view name) const;

  // Makes it, or repairs its mode; what is there and no folder is replaced. Returns its path as
  // this process sees it. The runtime must find it: it would make a missing one itself, as root's
  // with any mode, and the sidecar would never meet the plugin there.
  Result<std::string> MakeLinkFolder(std::string_view name);
  // With the sockets in it. No error when there is none.
  Result<void> RemoveLinkFolder(std::string_view name);
  // Names of those there are: to repair those of bindings, and to remove the others, at the start.
  Result<std::vector<std::string>> LinkFolders() const;

 private:
  HostFiles(std::string on_host, std::string seen, Files* files)
      : on_host_(std::move(on_host)), seen_(std::move(seen)), files_(files) {}
  Result<bool> InstallFile(const std::string& source, const std::string& place, mode_t mode);
  Result<void> MakeFolder(const std::string& path, mode_t mode);

  std::string on_host_;
  std::string seen_;
  Files* files_;
};

}  // namespace gpushm::plugin
