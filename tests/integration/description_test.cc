// Goal: what a writer says of a generation reaches every process that may attach it, together with
// the content, and outlives brokers, plugins and the client that opened it. Method: the C API, with
// the real broker and the plugin's keeper, which are killed and started again.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>

#include "runtime/include/gpushm/gpushm.h"
#include "tests/integration/fixture.h"

namespace gpushm::integration {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBytes = 2 << 20;

class DescriptionTest : public LinkedTest {
 protected:
  ~DescriptionTest() override {
    for (gpushm_client* client : clients_) gpushm_close(client);
  }
  gpushm_client* Connect() {
    clients_.push_back(OpenClient(run()));
    return clients_.back();
  }
  void Close(gpushm_client* client) {
    std::erase(clients_, client);
    gpushm_close(client);
  }
  // An unpublished generation: of a new buffer, or of one that is there.
  static gpushm_attachment* Make(gpushm_client* client, bool replace = false) {
    gpushm_create_options options;
    GPUSHM_INIT(&options);
    options.unpublished = 1;
    gpushm_attachment* made = nullptr;
    EXPECT_EQ(replace ? gpushm_replace(client, "weights", 0, &options, &made)
                      : gpushm_create(client, "weights", kBytes, &options, &made),
              GPUSHM_OK)
        << gpushm_last_error()->text;
    return made;
  }
  static gpushm_status Set(gpushm_attachment* attachment, std::string_view text) {
    return gpushm_attachment_set_description(attachment, text.data(), text.size());
  }
  // What a reader sees; "-" if there is none, and the error's text if the call fails.
  static std::string Read(gpushm_client* client, uint64_t generation = 0,
                          int64_t timeout_ms = GPUSHM_DONT_WAIT) {
    gpushm_description_options options;
    GPUSHM_INIT(&options);
    options.generation = generation;
    options.timeout_ms = timeout_ms;
    gpushm_description* description = nullptr;
    if (gpushm_description_open(client, "weights", &options, &description) != GPUSHM_OK) {
      return gpushm_last_error()->text;
    }
    const auto* const data = static_cast<const char*>(gpushm_description_data(description));
    std::string text =
        data == nullptr ? "-" : std::string(data, gpushm_description_size(description));
    if (generation != 0) {
      EXPECT_EQ(gpushm_description_generation(description), generation);
    }
    gpushm_description_close(description);
    return text;
  }
  static gpushm_info Look(gpushm_client* client) {
    gpushm_info info;
    GPUSHM_INIT(&info);
    EXPECT_EQ(gpushm_lookup(client, "weights", &info), GPUSHM_OK) << gpushm_last_error()->text;
    return info;
  }

  std::vector<gpushm_client*> clients_;
};

TEST_F(DescriptionTest, ComesWithItsGeneration) {
  Broker broker(run(), "64Mi");
  gpushm_client* const writer = Connect();
  gpushm_client* const reader = Connect();
  gpushm_attachment* const first = Make(writer);
  ASSERT_EQ(Set(first, "not yet"), GPUSHM_OK) << gpushm_last_error()->text;
  ASSERT_EQ(Set(first, "one"), GPUSHM_OK)
      << "a description may change until its generation is published";
  EXPECT_THAT(Read(reader), HasSubstr("NOT_FOUND"));
  ASSERT_EQ(gpushm_attachment_publish(first), GPUSHM_OK);
  EXPECT_EQ(Read(reader), "one");
  const gpushm_info info = Look(reader);
  EXPECT_EQ(info.description_bytes, 3U);
  EXPECT_EQ(Set(first, "changed"), GPUSHM_ALREADY_EXISTS);
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("replace the buffer"));

  gpushm_attachment* const second = Make(writer, /*replace=*/true);
  ASSERT_EQ(Set(second, "two"), GPUSHM_OK);
  EXPECT_EQ(Read(reader), "one");
  ASSERT_EQ(gpushm_attachment_publish(second), GPUSHM_OK);
  EXPECT_EQ(Read(reader), "two");
  EXPECT_EQ(Read(reader, info.generation), "one")
      << "the old generation is still attached, so its description must be there";
  ASSERT_EQ(gpushm_attachment_detach(first, nullptr), GPUSHM_OK);
  EXPECT_THAT(Read(reader, info.generation), HasSubstr("STALE"));
  ASSERT_EQ(gpushm_attachment_publish(Make(writer, /*replace=*/true)), GPUSHM_OK);
  EXPECT_EQ(Read(reader), "-");
  EXPECT_EQ(Look(reader).description_bytes, 0U);
}

TEST_F(DescriptionTest, OutlivesBrokerPluginAndClient) {
  StartKeeper();
  gpushm_description* kept = nullptr;
  gpushm_client* reader = nullptr;
  {
    Broker broker(run(), "64Mi", Linked());
    gpushm_client* const writer = Connect();
    gpushm_attachment* const made = Make(writer);
    ASSERT_EQ(Set(made, "one"), GPUSHM_OK) << gpushm_last_error()->text;
    ASSERT_EQ(gpushm_attachment_publish(made), GPUSHM_OK);
    reader = Connect();
    EXPECT_EQ(Read(reader), "one");
    ASSERT_EQ(gpushm_description_open(writer, "weights", nullptr, &kept), GPUSHM_OK);
    gpushm_attachment* const next = Make(writer, /*replace=*/true);
    ASSERT_EQ(Set(next, "two"), GPUSHM_OK);
    broker.Kill();
  }
  {
    Broker successor(run(), "64Mi", Linked());
    EXPECT_EQ(Read(reader, 0, 10'000), "one");
    EXPECT_EQ(Look(reader).description_bytes, 3U);
    StartKeeper();  // The broker states everything to it again.
    ASSERT_TRUE(Eventually([&] { return keeper_->Look().front().kept.generations == 2; }));
    successor.Kill();
  }
  Broker last(run(), "64Mi", Linked());
  EXPECT_EQ(Read(reader, 0, 10'000), "one");
  while (!clients_.empty()) Close(clients_.back());
  ASSERT_EQ(gpushm_description_size(kept), 3U);
  EXPECT_EQ(std::memcmp(gpushm_description_data(kept), "one", 3), 0)
      << "a description must outlive its client";
  gpushm_description_close(kept);
}

TEST_F(DescriptionTest, WrongCallsSayWhy) {
  Broker broker(run(), "64Mi");
  gpushm_client* const client = Connect();
  gpushm_attachment* const made = Make(client);
  EXPECT_EQ(gpushm_attachment_set_description(made, nullptr, 1), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_attachment_set_description(made, "", 0), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_attachment_set_description(made, "", GPUSHM_DESCRIPTION_BYTES + 1),
            GPUSHM_INVALID_ARGUMENT);
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("not 67108865"));
  EXPECT_EQ(gpushm_attachment_set_description(nullptr, "x", 1), GPUSHM_INVALID_ARGUMENT);
  ASSERT_EQ(gpushm_attachment_publish(made), GPUSHM_OK);
  gpushm_description* description = nullptr;
  EXPECT_EQ(gpushm_description_open(client, "Weights", nullptr, &description),
            GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_description_open(client, "weights", nullptr, nullptr), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_description_data(nullptr), nullptr);
  EXPECT_EQ(gpushm_description_size(nullptr), 0U);
  gpushm_description_close(nullptr);
  ASSERT_EQ(gpushm_description_open(client, "weights", nullptr, &description), GPUSHM_OK);
  gpushm_description_close(description);
  gpushm_description_close(description);
  EXPECT_EQ(gpushm_description_data(description), nullptr)
      << "a closed description must have no data";
}

}  // namespace
}  // namespace gpushm::integration
