#include "sidecar/injector/admit.h"

#include <algorithm>
#include <expected>
#include <utility>

#include "sidecar/injector/changed.h"
#include "sidecar/injector/check.h"
#include "sidecar/injector/pod.h"
#include "sidecar/injector/write.h"

namespace gpushm::injector {
namespace {

constexpr char kDocument[] = "docs/reference/annotations.md";
constexpr char kNothingAsked[] = "nothing-asked";

Verdict Admit(std::string outcome) {
  Verdict verdict;
  verdict.outcome = std::move(outcome);
  return verdict;
}

Verdict Deny(std::string outcome, std::string message) {
  Verdict verdict = Admit(std::move(outcome));
  verdict.allowed = false;
  verdict.message = std::move(message);
  return verdict;
}

Verdict Deny(const std::vector<yaml::ConfigError>& errors) {
  const bool annotations = std::ranges::any_of(
      errors, [](const yaml::ConfigError& error) { return !error.annotation.empty(); });
  const Status status = yaml::ToStatus(errors, kDocument);
  return Deny(annotations ? "annotations" : "pod", Concat(status.what(), ". ", status.remedy()));
}

// The pod, or the verdict if there is no more to do for it.
std::expected<Pod, Verdict> Read(const Json& json, const Settings& settings,
                                 std::optional<annotations::Allocation> of_namespace) {
  Result<PodView> view = PodView::Of(json);
  if (!view) return std::unexpected(Deny("pod", view.error().what()));
  if (!view->Concerns()) return std::unexpected(Admit("not-ours"));
  if (view->OptsOut()) return std::unexpected(Admit("opted-out"));
  auto pod = Pod::Of(*std::move(view), settings, of_namespace);
  if (!pod) return std::unexpected(Deny(pod.error()));
  if (!pod->spec.inject) return std::unexpected(Admit("opted-out"));
  if (!pod->Asks()) return std::unexpected(Admit(kNothingAsked));
  return *std::move(pod);
}

}  // namespace

Admission::Admission(Settings settings, std::function<uint64_t()> random)
    : settings_(std::move(settings)), random_(std::move(random)) {}

Verdict Admission::Mutate(const Json& json,
                          std::optional<annotations::Allocation> of_namespace) const {
  const std::expected<Pod, Verdict> pod = Read(json, settings_, of_namespace);
  if (!pod) {
    Verdict verdict = pod.error();
    if (verdict.outcome == kNothingAsked) {
      verdict.warnings.push_back("gpushm: nothing in the annotations requests GPU memory");
    }
    return verdict;
  }
  Findings found = Check(*pod);
  if (!found.errors.empty()) return Deny(found.errors.Take());
  Verdict verdict;
  verdict.patch = WritePatch(*pod, random_);
  verdict.outcome = verdict.patch.empty() ? "unchanged" : "injected";
  verdict.warnings = std::move(found.warnings);
  verdict.needs = pod->claim_template;
  return verdict;
}

Verdict Admission::Validate(const Json& json,
                            std::optional<annotations::Allocation> of_namespace) const {
  const std::expected<Pod, Verdict> pod = Read(json, settings_, of_namespace);
  if (!pod) return pod.error();
  Findings found = Check(*pod);
  if (!found.errors.empty()) return Deny(found.errors.Take());
  const std::string why = ChangedByOthers(*pod);
  if (!why.empty()) return Deny("changed-by-others", Concat("gpushm: the pod cannot run: ", why));
  return Admit("unchanged");
}

Verdict Admission::ValidateEphemeral(const Json& pod) const {
  const Result<PodView> view = PodView::Of(pod);
  if (!view) return Deny("pod", view.error().what());
  const Container* const sidecar = view->Find(kSidecarName);
  if (sidecar == nullptr) return Admit("not-ours");
  // The annotations of a running pod may have changed. The sidecar's environment has not.
  const Result<annotations::PodSpec> told = ReadBuffersVariable(*sidecar);
  if (!told && told.error().code() == Code::kNotFound &&
      sidecar->Resource("limits", kMemoryResource) == nullptr) {
    return Admit("not-ours");  // An unrelated container that has this name.
  }
  if (told && !told->HasAccessLists()) return Admit("unchanged");
  for (const Json& container : Items(pod, Pointer("/spec/ephemeralContainers"))) {
    const Json* const target = Find(container, Pointer("/targetContainerName"));
    const bool targets = target != nullptr && *target != Json("");
    const bool mounts_it = std::ranges::any_of(
        Items(container, Pointer("/volumeMounts")),
        [](const Json& at) { return at.is_object() && at.value("name", "") == kVolumeName; });
    if (!targets && !mounts_it) continue;
    if (!told) {
      return Deny(
          "ephemeral-container",
          Concat("gpushm: the sidecar's environment does not show whether the pod's "
                 "buffers have lists of containers or writers, because it cannot be read (",
                 told.error().what(),
                 "). An ephemeral container that targets a container "
                 "or mounts the volume gpushm would bypass such lists; leave out --target"));
    }
    return Deny("ephemeral-container",
                "gpushm: the pod's buffers have lists of containers or writers. "
                "An ephemeral container that targets a container "
                "or mounts the volume gpushm would bypass them; leave out --target");
  }
  return Admit("unchanged");
}

}  // namespace gpushm::injector
