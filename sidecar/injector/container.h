// One container of a pod, as the API server sends it. This is a view: the document must outlive it.
//
// Threads: any, as long as no thread changes the document.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "contract/annotations/annotations.h"
#include "contract/claims.h"
#include "sidecar/injector/patch.h"

namespace gpushm::injector {

// Names that the injector gives. Nothing else in a pod may have them.
inline constexpr char kSidecarName[] = "gpushm";
inline constexpr char kMpsName[] = "gpushm-mps";  // The container with the MPS daemon.
inline constexpr char kVolumeName[] = "gpushm";
// The folder in which each container finds its socket.
inline constexpr char kSocketFolder[] = "/run/gpushm";
using claims::kMpsFolder;
inline constexpr char kPreloadFile[] = "/etc/ld.so.preload";

// Whether the container of this name loads a file. Nothing else may have such a name.
inline bool IsLoader(std::string_view name) { return name.starts_with(annotations::kLoaderPrefix); }

// Whether gpushm adds the container of this name.
inline bool IsOurContainer(std::string_view name) {
  return name == kSidecarName || name == kMpsName || IsLoader(name);
}

enum class Kind {
  kApplication,
  kNativeSidecar,  // An init container with restartPolicy Always.
  kInit,           // An init container that ends before the pod runs.
};

struct Container {
  std::string name;
  Kind kind = Kind::kApplication;
  Pointer at;
  const Json* json = nullptr;

  // Its place, for a message: spec.containers[0] (model).
  std::string Field() const;

  // The places that it mounts, as {name, path, the mount}. Paths are absolute and have no trailing
  // or double slashes.
  struct Mount {
    std::string volume;
    std::string path;
    const Json* json = nullptr;

    // Whether the mount has every member of `wanted`.
    bool Is(const Json& wanted) const;
  };
  std::vector<Mount> Mounts() const;
  bool Mounts(const Json& wanted) const;
  // The quantity of this resource in `list`, which is "limits" or "requests"; nullptr if it has
  // none.
  const Json* Resource(const char* list, const std::string& name) const;
  // The entries of resources.claims.
  const Json& Claims() const;
  // The entry of the environment variable; nullptr if the container does not set it.
  const Json* Variable(std::string_view wanted) const;
};

// The text of a member of an object; nullptr if there is none.
const std::string* TextOf(const Json& object, const char* key);
// Whether `quantity` is this whole number, however it is written. The API server turns 2000 into
// 2k.
bool IsNumber(const Json* quantity, uint64_t number);
// A value of the pod's manifest for a message: quoted and bounded. Null is "nothing".
std::string Shown(const Json* value);

}  // namespace gpushm::injector
