#include "sidecar/injector/templates.h"

namespace gpushm::injector {
namespace {

// Whether `there` says all that `wanted` says. The API server adds defaults and metadata.
bool Says(const Json& there, const Json& wanted) {
  if (wanted.is_object()) {
    if (!there.is_object()) return false;
    for (const auto& [key, value] : wanted.items()) {
      const auto found = there.find(key);
      if (found == there.end() || !Says(*found, value)) return false;
    }
    return true;
  }
  if (wanted.is_array()) {
    if (!there.is_array() || there.size() != wanted.size()) return false;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!Says(there[i], wanted[i])) return false;
    }
    return true;
  }
  return there == wanted;
}

Result<void> CheckSame(const std::string& text, const std::string& name_space,
                       const ClaimTemplate& wanted) {
  const Json there = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const Json* const spec = Find(there, Pointer("/spec"));
  if (spec != nullptr && Says(*spec, wanted.spec)) return {};
  return Fail(
      Code::kAlreadyExists,
      Concat("ResourceClaimTemplate ", name_space, "/", wanted.name,
             " has another content than its name says"),
      Concat("delete it: kubectl -n ", name_space, " delete resourceclaimtemplate ", wanted.name));
}

}  // namespace

Result<void> Templates::Make(const std::string& name_space, const ClaimTemplate& wanted) const {
  const Deadline deadline = Deadline::AfterMs(kTemplateMs);
  const std::string all =
      Concat("/apis/resource.k8s.io/v1/namespaces/", name_space, "/resourceclaimtemplates");
  const std::string one = Concat(all, "/", wanted.name);
  // Read first: most pods have a template that an equal pod had before.
  Result<std::string> there = client_.Call("GET", one, "", deadline);
  if (!there && there.error().code() == Code::kNotFound) {
    const auto made = client_.Call("POST", all, wanted.Object().dump(), deadline);
    if (made) return {};
    if (made.error().code() == Code::kNotFound) {
      return Fail(Code::kUnsupported, made.error().what(),
                  "the API server or the namespace does not have ResourceClaimTemplates: use "
                  "Kubernetes 1.36 or newer, or gpushm.io/allocation: device-plugin");
    }
    if (made.error().code() != Code::kContended) return std::unexpected(made.error());
    there = client_.Call("GET", one, "", deadline);  // Another call made it.
  }
  if (!there) return std::unexpected(there.error());
  return CheckSame(*there, name_space, wanted);
}

}  // namespace gpushm::injector
