// The CDI specs of the node's bindings, one file each, in the folder that the container runtime
// watches. They are what containers get, and the only copy of the bindings on disk.
//
// Invariants
//   (1) At every instant, also if the writer is killed, a name has its old spec, its new one, or
//       none; never a part of one.
//   (2) Files of others are never changed, whatever they hold.
//   (3) What is returned by ReadAll is valid as a whole: no ID is in two bindings.
//
// How a write becomes seen: containerd and CRI-O keep all specs in memory and read *all* of them
// again when something changes in the folder (pkg/cdi/cache.go). Under inotify they look for a file
// written, removed or renamed away, not for one that appears: so the temporary file lies in the
// same folder, with a name that loaders skip (no .json, no .yaml), and takes its place by rename.
// Because each change costs the runtime that reading, Write leaves a file alone that is already
// right: a container that starts again changes nothing.
//
// No fsync: the folder lies on /run, which a reboot empties, and no pod survives one.
//
// Threads: any. Calls for one name must not overlap; they come under the book's lock.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "plugin/binding/book.h"
#include "plugin/cdi/edits.h"
#include "plugin/cdi/files.h"
#include "plugin/cdi/spec_text.h"

namespace gpushm::plugin {

// Where containerd and CRI-O look by default for specs that come and go.
inline constexpr char kSpecFolder[] = "/var/run/cdi";

class SpecStore {
 public:
  // A file of the plugin's that cannot be a binding, and why: kCorrupt, kIncompatible or kSystem.
  struct Damaged {
    std::string file_name;
    Status reason;
  };
  struct Contents {
    std::vector<Binding> bindings;  // By resource and name.
    std::vector<Damaged> damaged;
  };

  // Makes the folder (not its parents) unless it is there, and sweeps what a killed writer left.
  // `files` outlives the store.
  static Result<SpecStore> Open(std::string folder, Files& files = SystemFiles());

  // What all containers get alike. To be written before the plugin registers, and cheap enough to
  // be repeated with each Write: containers need both specs. Returns as Write does.
  Result<bool> WriteShared(const Edits& edits);

  // True: written; false: that very spec is there. kInvalidArgument: see SpecText.
  Result<bool> Write(const Binding& binding, const Edits& edits);

  // No error when there is none.
  Result<void> Remove(Resource resource, const std::string& name);

  // Of two files with an ID in common the one written last counts: the binding before it was
  // superseded, and its file should have been removed.
  Result<Contents> ReadAll() const;

  // Removes a damaged file; kInvalidArgument: its name is not one of the plugin's.
  Result<void> RemoveDamaged(const Damaged& damaged);

  const std::string& folder() const { return folder_; }

 private:
  SpecStore(std::string folder, Files* files) : folder_(std::move(folder)), files_(files) {}
  std::string PathOf(const std::string& file_name) const { return folder_ + "/" + file_name; }
  Result<bool> WriteText(const std::string& file_name, const Result<std::string>& text);

  std::string folder_;
  Files* files_;
};

}  // namespace gpushm::plugin
