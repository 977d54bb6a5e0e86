// Pods for the injector's tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sidecar/injector/admit.h"

namespace gpushm::injector::testing {

inline Settings TestSettings() {
  Settings settings;
  settings.sidecar_image = "docker.io/gpushm/sidecar:test";
  return settings;
}

inline Admission TestAdmission(const Settings& settings = TestSettings()) {
  return Admission(settings, [] { return uint64_t{4242}; });
}

// The value of an environment variable; "none" if the container has no such variable.
inline std::string VariableOf(const Json& container, const std::string& name) {
  for (const Json& variable : container.value("env", Json::array())) {
    if (variable["name"] == name) return variable["value"];
  }
  return "none";
}

inline Json PodWith(const std::vector<std::string>& containers, Json annotations) {
  Json list = Json::array();
  for (const std::string& name : containers) {
    list.push_back({{"name", name}, {"image", "app"}, {"resources", Json::object()}});
  }
  return {{"apiVersion", "v1"},
          {"kind", "Pod"},
          {"metadata", {{"name", "pod"}, {"annotations", std::move(annotations)}}},
          {"spec", {{"containers", list}}}};
}

inline Json ReviewOf(const Json& pod, const std::string& sub_resource = "") {
  return {{"apiVersion", "admission.k8s.io/v1"},
          {"kind", "AdmissionReview"},
          {"request",
           {{"uid", "11111111-2222-3333-4444-555555555555"},
            {"operation", sub_resource.empty() ? "CREATE" : "UPDATE"},
            {"subResource", sub_resource},
            {"object", pod}}}};
}

// Applies the patch like the API server. The pod must be admitted.
inline Json Injected(const Admission& admission, const Json& pod) {
  const Verdict verdict = admission.Mutate(pod);
  EXPECT_TRUE(verdict.allowed) << verdict.message;
  return pod.patch(verdict.patch);
}

// The container of that name in either list; null if there is none.
inline Json ContainerOf(const Json& pod, const std::string& name) {
  for (const char* const list : {"initContainers", "containers"}) {
    for (const Json& container : pod["spec"].value(list, Json::array())) {
      if (container.value("name", "") == name) return container;
    }
  }
  return nullptr;
}

}  // namespace gpushm::injector::testing
