#include "sidecar/injector/inject.h"

#include "sidecar/injector/digest.h"

namespace gpushm::injector {
namespace {

constexpr char kHowTo[] =
    "pass one object as JSON, for example from `kubectl patch --local -f pod.yaml -p '{}' -o json` "
    "if pod.yaml has one object";

std::unexpected<Status> NotTaken(std::string_view why) {
  return Fail(Code::kInvalidArgument, std::string(why), kHowTo);
}

// The place of the pod: of a Pod, a Deployment and its like, and a CronJob.
const char* PlaceOfPod(const Json& manifest) {
  for (const char* const at : {"/spec/jobTemplate/spec/template", "/spec/template"}) {
    if (Find(manifest, Pointer(at)) != nullptr) return at;
  }
  const Json* const kind = Find(manifest, Pointer("/kind"));
  return kind != nullptr && *kind == "Pod" ? "" : nullptr;
}

}  // namespace

Result<std::string> Inject(const Settings& settings, std::string_view manifest,
                           std::vector<std::string>* warnings) {
  Json object = Json::parse(manifest, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return NotTaken("the manifest is not a JSON object");
  const char* const place = PlaceOfPod(object);
  if (place == nullptr) return NotTaken("the manifest is neither a Pod nor has a pod template");
  Json& pod = object.at(Pointer(place));
  if (!pod.is_object()) return NotTaken(Concat(place, " is not an object"));
  const Admission admission(settings, [&] { return AddToDigest(kEmptyDigest, manifest); });
  const Verdict verdict = admission.Mutate(pod);
  warnings->insert(warnings->end(), verdict.warnings.begin(), verdict.warnings.end());
  if (!verdict.allowed) return Fail(Code::kInvalidArgument, verdict.message);
  pod.patch_inplace(verdict.patch);
  if (verdict.needs) {
    Json needed = verdict.needs->Object();
    if (const Json* const in = Find(object, Pointer("/metadata/namespace"))) {
      needed["metadata"]["namespace"] = *in;
    }
    object = {{"apiVersion", "v1"},
              {"kind", "List"},
              {"items", Json::array({std::move(needed), std::move(object)})}};
  }
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace gpushm::injector
