// Goal: a name that Kubernetes gives a thing is a name here, and what it refuses is none. Method:
// what the tests of Kubernetes' own rules accept and refuse, as data.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "contract/annotations/annotations.h"
#include "contract/annotations/keys.h"
#include "contract/limits.h"
#include "contract/registry/host_list.h"
#include "contract/registry/record.h"
#include "platform/base/name.h"
#include "platform/base/status.h"
#include "plugin/cdi/spec_text.h"
#include "tests/documents/documents.h"

namespace gpushm {
namespace {

using ::testing::HasSubstr;

struct NameCase {
  std::string text;
  bool label;      // IsDNS1123Label: names of containers, volumes and namespaces.
  bool subdomain;  // IsDNS1123Subdomain: names of pods and nodes.
};

// k8s.io/apimachinery, pkg/util/validation: a label has at most 63 bytes, a subdomain 253 in all,
// and its parts have no limit of their own.
std::vector<NameCase> NameCases() {
  std::vector<NameCase> cases;
  for (const char* const both :
       {"a", "ab", "abc", "a1", "a-1", "a--1--2--b", "0", "01", "012", "1a", "1-a", "1--a--b--2"}) {
    cases.push_back({both, true, true});
  }
  for (const char* const dots : {"a.a", "abc.a", "a--1--2--b.a", "ab.1", "a-1.1", "0.a", "1-a.a",
                                 "0.1", "012.1", "1--a--b--2.1", "a.b.c.d.e", "aa.bb.cc.dd.ee",
                                 "1.2.3.4.5", "11.22.33.44.55", "a.b", "1.2"}) {
    cases.push_back({dots, false, true});
  }
  for (const char* const none :
       {"",    "A",   "ABC", "aBc",  "A1",   "A-1",  "1-A",       "-",   "a-",       "-a",
        "1-",  "-1",  "_",   "a_",   "_a",   "a_b",  "1_",        "_1",  "1_2",      ".",
        "a.",  ".a",  "1.",  ".1",   "a..b", " ",    "a ",        " a",  "a b",      "1 ",
        " 1",  "1 2", "A.a", "ab.A", "A.1",  "0.A",  "A.B.C.D.E", "a@b", "a,b",      "a;b",
        "a:b", "a%b", "a?b", "a$b",  "a/b",  "a-.b", "a.-b",      "a\n", "\xC3\xA4", "1..2"}) {
    cases.push_back({none, false, false});
  }
  cases.push_back({std::string("a\0b", 3), false, false});
  cases.push_back({std::string(63, 'a'), true, true});
  cases.push_back({std::string(64, 'a'), false, true});
  cases.push_back({std::string(253, 'a'), false, true});
  cases.push_back({std::string(126, 'a') + "." + std::string(126, 'b'), false, true});
  cases.push_back({std::string(254, 'a'), false, false});
  return cases;
}

plugin::binding::Binding BindingOf(const std::string& name_space, const std::string& pod,
                                   const std::string& container) {
  return {.resource = plugin::binding::Resource::kAttach,
          .ids = {"a0003"},
          .gpus = {"GPU-aaaaaaaa-0000-0000-0000-000000000001"},
          .owner = {.pod = {.name_space = name_space, .name = pod}, .container = container}};
}

// As a CDI spec, and back.
bool Keeps(const plugin::binding::Binding& binding) {
  const auto text = plugin::cdi::SpecText(binding, {});
  if (!text) return false;
  const auto read = plugin::cdi::ParseSpec("gpushm.io-attach-a0003.json", *text);
  return read && *read == binding;
}

bool Reads(const std::string& key, const std::string& value) {
  return annotations::ParseAnnotations({{key, value}}).has_value();
}

TEST(ForeignNames, Subdomains) {
  for (const NameCase& name : NameCases()) {
    EXPECT_EQ(IsDnsSubdomain(name.text), name.subdomain) << name.text;
    EXPECT_EQ(Keeps(BindingOf("team-a", name.text, "server")), name.subdomain) << name.text;
  }
}

TEST(ForeignNames, Labels) {
  for (const NameCase& name : NameCases()) {
    EXPECT_EQ(IsDnsLabel(name.text), name.label) << name.text;
    EXPECT_EQ(registry::Name(name.text).IsLabel() && name.text.size() <= limits::kNameBytes &&
                  name.text.find('\0') == std::string::npos,
              name.label)
        << name.text;
    EXPECT_EQ(Keeps(BindingOf(name.text, "llm-0", "server")), name.label) << name.text;
    EXPECT_EQ(Keeps(BindingOf("team-a", "llm-0", name.text)), name.label) << name.text;
  }
}

TEST(ForeignNames, ContainersAndVolumesInAnnotations) {
  for (const NameCase& name : NameCases()) {
    const std::string quoted = "\"" + name.text + "\"";
    if (name.text.find_first_of(std::string_view("\0\n", 2)) != std::string::npos) continue;
    EXPECT_EQ(Reads("private.gpushm.io/" + name.text, "1Gi"), name.label) << name.text;
    EXPECT_EQ(Reads("buffers.gpushm.io/w", "{size: 1Gi, containers: [" + quoted + "]}"), name.label)
        << name.text;
    EXPECT_EQ(Reads("signals.gpushm.io/s", "{writers: [" + quoted + "]}"), name.label) << name.text;
    EXPECT_EQ(Reads("buffers.gpushm.io/w", "{size: 1Gi, file: \"" + name.text + "/a\"}"),
              // What comes before the first slash is the volume.
              name.label || name.text == "a/b")
        << name.text;
  }
}

// docs/reference/annotations.schema.json says the same of them.
TEST(ForeignNames, ThePublishedSchemaSaysTheSame) {
  const auto schema = nlohmann::json::parse(documents::AnnotationsSchema());
  const std::regex label(schema["$defs"]["containers"]["items"]["pattern"].get<std::string>());
  for (const NameCase& name : NameCases()) {
    EXPECT_EQ(std::regex_search(name.text, label), name.label) << name.text;
  }
}

// IsQualifiedName: DNS subdomain, '/', at most 63 of letters, digits and "-_.", which begin and end
// with a letter or digit. Of annotations' keys Kubernetes looks at the lower case. What follows our
// domain is a DNS label on purpose: it becomes a name in a registry and on the command line.
TEST(ForeignNames, KeysOfAnnotations) {
  struct KeyCase {
    std::string name;
    bool kubernetes;
    bool ours;
  };
  const std::vector<KeyCase> cases = {{"simple", true, true},
                                      {"now-with-dashes", true, true},
                                      {"1-starts-with-num", true, true},
                                      {"1234", true, true},
                                      {std::string(63, 'a'), true, true},
                                      {"Uppercase_Is_OK_123", true, false},
                                      {"requests.storage-foo", true, false},
                                      {"a_b", true, false},
                                      {"nospecialchars%^=@", false, false},
                                      {"cantendwithadash-", false, false},
                                      {"-cantstartwithadash-", false, false},
                                      {"only/one/slash", false, false},
                                      {"", false, false},
                                      {std::string(64, 'a'), false, false}};
  for (const KeyCase& key : cases) {
    EXPECT_TRUE(key.kubernetes || !key.ours) << key.name;
    EXPECT_EQ(Reads("buffers.gpushm.io/" + key.name, "1Gi"), key.ours) << key.name;
    EXPECT_EQ(Reads("signals.gpushm.io/" + key.name, ""), key.ours) << key.name;
  }
  const auto refused = annotations::ParseAnnotations({{"Buffers.GPUSHM.io/weights", "1Gi"}});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().what(), HasSubstr("buffers.gpushm.io/weights"));
  // Other people's keys are none of ours, whatever they look like.
  for (const char* const other :
       {"simple/simple", "now.with.dots/simple", "1.2.3.4/5678", "UpperCase123", "gpushm/a"}) {
    EXPECT_FALSE(annotations::IsOurKey(other)) << other;
    EXPECT_TRUE(Reads(other, "anything")) << other;
  }
}

// metadata.uid is a UUID of the API server's, or what the kubelet makes of a static pod: MD5.
TEST(ForeignNames, UidsOfPods) {
  for (const char* const uid :
       {"0b8c0f6e-5c0e-4d0a-9d3c-8f6f1f3a2b11", "d41d8cd98f00b204e9800998ecf8427e"}) {
    EXPECT_TRUE(registry::IsPodUid(uid)) << uid;
  }
  for (const char* const none : {"", ".", "..", "a/b", "../a", "A", "a b", "a.sock"}) {
    EXPECT_FALSE(registry::IsPodUid(none)) << none;
  }
}

}  // namespace
}  // namespace gpushm
