#include "sidecar/injector/review.h"

#include <utility>

#include "platform/base/name.h"
#include "platform/base/status.h"
#include "platform/yaml/config_error.h"

namespace gpushm::injector {
namespace {

constexpr char kVersion[] = "admission.k8s.io/v1";

std::string Base64(std::string_view bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) {
      group = group << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += i + j <= bytes.size() ? kDigits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

std::string AnswerTo(const std::string& uid, const Verdict& verdict) {
  Json response = {{"uid", uid}, {"allowed", verdict.allowed}};
  if (!verdict.allowed) {
    response["status"] = {{"code", 422},
                          {"reason", "Invalid"},
                          {"message", yaml::Excerpt(verdict.message, kMostTold)}};
  }
  if (!verdict.patch.empty()) {
    response["patchType"] = "JSONPatch";
    response["patch"] = Base64(verdict.patch.dump());
  }
  if (!verdict.warnings.empty()) response["warnings"] = verdict.warnings;
  Json review = {{"apiVersion", kVersion}, {"kind", "AdmissionReview"}};
  review["response"] = std::move(response);
  return review.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Nesting and the number of values decide how much memory and stack a document takes, so both are
// counted before parsing. The API server's own limit for the depth is higher, and no Pod comes
// close to it.
constexpr int kMaxDepth = 200;
constexpr size_t kMaxValues = 400'000;

Result<void> CheckSize(std::string_view body) {
  int depth = 0;
  size_t values = 0;
  bool in_text = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_text) {
      if (c == '\\') ++i;
      if (c == '"') in_text = false;
      continue;
    }
    if (c == '"') in_text = true;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c == ',' || c == '{' || c == '[') ++values;
    if (depth > kMaxDepth) {
      return Fail(Code::kExhausted,
                  Concat("the body is too deeply nested: more levels than ", kMaxDepth));
    }
    if (values > kMaxValues) {
      return Fail(Code::kExhausted,
                  Concat("the body holds too many values: more than ", kMaxValues, " of them"));
    }
  }
  return {};
}

// Empty if it is absent or not text.
std::string Text(const Json& object, const Pointer& at) {
  const Json* const found = Find(object, at);
  return found != nullptr && found->is_string() ? found->get<std::string>() : std::string();
}

std::string FirstOf(const std::string& first, const std::string& second) {
  return first.empty() ? second : first;
}

// The most bytes of a namespace, '/' and a pod's name, or of a kind and a name. These are never so
// long in the API server.
constexpr size_t kWhoBytes = 512;

std::string PodOf(const Json& request, const Json& pod) {
  const std::string name_space =
      FirstOf(Text(request, Pointer("/namespace")), Text(pod, Pointer("/metadata/namespace")));
  const std::string name =
      FirstOf(Text(pod, Pointer("/metadata/name")), Text(pod, Pointer("/metadata/generateName")));
  return yaml::Excerpt(Concat(name_space, "/", name), kWhoBytes);
}

std::string OwnerOf(const Json& pod) {
  for (const Json& owner : Items(pod, Pointer("/metadata/ownerReferences"))) {
    const Json* const controls = Find(owner, Pointer("/controller"));
    if (controls == nullptr || *controls != true) continue;
    return yaml::Excerpt(Concat(Text(owner, Pointer("/kind")), "/", Text(owner, Pointer("/name"))),
                         kWhoBytes);
  }
  return {};
}

// Makes what the pod needs, or denies it.
void Provide(const Json& request, const Json& pod, const MakeTemplate& make, Verdict* verdict) {
  if (!verdict->needs || request.value("dryRun", false)) return;
  const std::string name_space =
      FirstOf(Text(request, Pointer("/namespace")), Text(pod, Pointer("/metadata/namespace")));
  Result<void> made;
  if (!make) {
    made = Fail(Code::kUnsupported, "this injector makes none");
  } else if (!IsDnsLabel(name_space)) {
    made = Fail(Code::kInvalidArgument, "the review's request has no namespace");
  } else {
    made = make(name_space, *verdict->needs);
  }
  if (made) return;
  *verdict = Verdict();
  verdict->allowed = false;
  verdict->message = Concat("gpushm: the ResourceClaimTemplate of the pod cannot be made: ",
                            made.error().ToString());
  verdict->outcome = "template";
}

Result<Answer> Judge(const Admission& admission, const Call& call, const Json& review,
                     const MakeTemplate& make) {
  const auto bad = [](const std::string& what) {
    return Fail(Code::kInvalidArgument, what, "send an AdmissionReview of admission.k8s.io/v1");
  };
  if (!review.is_object()) return bad("the body is not a JSON object");
  if (review.value("apiVersion", "") != kVersion || review.value("kind", "") != "AdmissionReview") {
    return bad("the body is not an AdmissionReview v1");
  }
  const Json* const request = Find(review, Pointer("/request"));
  if (request == nullptr || !request->is_object()) return bad("the review has no request");
  const std::string uid = request->value("uid", "");
  if (uid.empty()) return bad("the review's request has no uid");
  if (uid.size() > kMostUidBytes) {
    return bad(Concat("the review's request has a uid of ", uid.size(), " bytes; at most ",
                      kMostUidBytes));
  }
  const Json* const object = Find(*request, Pointer("/object"));
  if (object == nullptr || !object->is_object()) return bad("the review's request has no object");
  if (object->value("kind", "") != "Pod") return bad("the review's object is not a Pod");

  Verdict verdict;
  if (call.endpoint == Endpoint::kMutate) {
    verdict = admission.Mutate(*object, call.of_namespace);
    Provide(*request, *object, make, &verdict);
  } else if (request->value("subResource", "") == "ephemeralcontainers") {
    verdict = admission.ValidateEphemeral(*object);
  } else {
    verdict = admission.Validate(*object, call.of_namespace);
  }
  Answer answer;
  answer.body = AnswerTo(uid, verdict);
  answer.outcome = verdict.outcome;
  answer.allowed = verdict.allowed;
  if (answer.allowed) return answer;
  answer.pod = PodOf(*request, *object);
  answer.owner = OwnerOf(*object);
  answer.reason = yaml::Excerpt(verdict.message, kMostTold);
  return answer;
}

}  // namespace

Result<Answer> Review(const Admission& admission, const Call& call, std::string_view body,
                      const MakeTemplate& make) try {
  if (auto small = CheckSize(body); !small) return std::unexpected(small.error());
  return Judge(admission, call, Json::parse(body), make);
} catch (const Json::exception& error) {
  // The body is not JSON, or has values of other types than the API server sends. After the place
  // and the reason, the exception's text repeats what was read last, which may be the whole body.
  constexpr size_t kReasonBytes = 256;
  return Fail(Code::kInvalidArgument, Concat("the body of ", body.size(), " bytes cannot be read: ",
                                             yaml::Excerpt(error.what(), kReasonBytes)));
}

}  // namespace gpushm::injector
