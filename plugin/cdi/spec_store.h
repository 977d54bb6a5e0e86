// The CDI specs of the node's bindings, one file each, in the folder that the container runtime
// watches. They are what containers get, and the only copy of the bindings on disk.
//
// Invariants
//   (1) At every instant, even if the writer is killed, a name has its old spec, its new one, or
//       none; never a part of one.
//   (2) Files of others are never changed, whatever they contain.
//   (3) The result of ReadAll is valid as a whole: no ID is in two bindings.
//
// How a write becomes visible: containerd and CRI-O keep all specs in memory and read *all* of them
// again when something changes in the folder (pkg/cdi/cache.go). With inotify they react to a file
// that is written, removed or renamed away, but not to one that appears. So the temporary file is
// in the same folder, with a name that loaders skip (no .json, no .yaml), and a rename puts it in
// place. Because each change makes the runtime read everything again, Write does not touch a file
// that is already right. A container that starts again changes nothing.
//
// There is no fsync: the folder is on /run, which a reboot empties, and no pod survives a reboot.
//
// Threads: any. Calls for one name must not overlap; the book's lock ensures that.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "platform/base/files.h"
#include "platform/base/status.h"
#include "plugin/binding/book.h"
#include "plugin/cdi/edits.h"
#include "plugin/cdi/spec_text.h"

namespace gpushm::plugin::cdi {

class SpecStore {
 public:
  // A file of the plugin's that is not a valid binding, and why: kCorrupt, kIncompatible or
  // kSystem.
  struct Damaged {
    std::string file_name;
    Status reason;
  };
  struct Contents {
    std::vector<binding::Binding> bindings;  // Sorted by resource and name.
    std::vector<Damaged> damaged;
  };

  // Creates the folder (not its parents) unless it exists, and removes what a killed writer left.
  // `files` must outlive the store.
  static Result<SpecStore> Open(std::string folder, Files& files = SystemFiles());

  // Writes what all containers get alike. It must be written before the plugin registers. It is
  // cheap enough to repeat with each Write, and containers need both specs. Returns as Write does.
  Result<bool> WriteShared(const Edits& edits);

  // True: written. False: this very spec exists already. kInvalidArgument: see SpecText.
  Result<bool> Write(const binding::Binding& binding, const Edits& edits);

  // The same for the binding of a claim.
  Result<bool> WriteClaim(const binding::Binding& binding, const ClaimEdits& edits);

  // No error if there is none.
  Result<void> Remove(binding::Resource resource, const std::string& name);
  Result<void> RemoveClaim(const std::string& uid);

  // If two files have an ID in common, the newer one counts: the other binding was superseded, and
  // its file should have been removed.
  Result<Contents> ReadAll() const;

  // Removes a damaged file; kInvalidArgument: its name is not one of the plugin's.
  Result<void> RemoveDamaged(const Damaged& damaged);

  const std::string& folder() const { return folder_; }

 private:
  SpecStore(std::string folder, Files* files) : folder_(std::move(folder)), files_(files) {}
  std::string PathOf(const std::string& file_name) const { return folder_ + "/" + file_name; }
  Result<void> RemoveFile(const std::string& name, const std::string& file_name);
  Result<bool> WriteText(const std::string& file_name, const Result<std::string>& text);

  std::string folder_;
  Files* files_;
};

}  // namespace gpushm::plugin::cdi
