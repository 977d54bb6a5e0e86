// What the injector looks at in a Pod, as the API server sends it. A view: the document outlives
// it.
//
// Threads: any, as long as nobody changes the document.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "contract/annotations/annotations.h"
#include "platform/base/status.h"
#include "sidecar/injector/patch.h"

namespace gpushm::injector {

// Names that the injector gives; a pod's own things may not have them.
inline constexpr char kSidecarName[] = "gpushm";
inline constexpr char kVolumeName[] = "gpushm";
// Where each container finds its socket.
inline constexpr char kSocketFolder[] = "/run/gpushm";

enum class Kind {
  kApplication,
  kNativeSidecar,  // An init container with restartPolicy Always.
  kInit,           // One that ends before the pod runs.
};

struct Container {
  std::string name;
  Kind kind = Kind::kApplication;
  Pointer at;
  const Json* json = nullptr;

  // Places that it mounts, as {name, path, the mount}; paths absolute, and without trailing or
  // double slashes.
  struct Mount {
    std::string volume;
    std::string path;
    const Json* json = nullptr;

    // Whether it has all that `wanted` says.
    bool Is(const Json& wanted) const;
  };
  std::vector<Mount> Mounts() const;
  bool Mounts(const Json& wanted) const;
  // The quantity of this resource in limits, else in requests; nullptr: it asks for none.
  const Json* Resource(const char* list, const std::string& name) const;
};

// Whether `quantity` is this whole number, however it is written: the API server turns 2000 into
// 2k.
bool IsNumber(const Json* quantity, uint64_t number);

class PodView {
 public:
  // kInvalidArgument for what is no Pod.
  static Result<PodView> Of(const Json& pod);

  const Json& json() const { return *json_; }
  const config::Annotations& annotations() const { return annotations_; }
  // Whether any of them is gpushm's.
  bool Concerns() const;
  // Init containers first, as they start; ephemeral ones are not among them.
  const std::vector<Container>& containers() const { return containers_; }
  const Container* Find(std::string_view name) const;
  std::vector<std::string> Names(Kind kind) const;
  // nullptr: it has none of that name.
  const Json* Volume(std::string_view name) const;
  std::vector<std::string> Volumes() const;
  // A flag of the pod's spec; absent is false.
  bool Flag(const char* name) const;

 private:
  Result<void> ReadContainers(const char* list);

  const Json* json_ = nullptr;
  config::Annotations annotations_;
  std::vector<Container> containers_;
};

}  // namespace gpushm::injector
