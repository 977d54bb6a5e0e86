// The program of the integration tests, and of the processes that they start.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/integration/processes.h"

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv, argv + argc);
  if (argc == 4 && words[1] == "worker") {
    return gpushm::integration::WorkerMain(words[2], words[3]);
  }
  if (argc == 4 && words[1] == "plugin") {
    return gpushm::integration::PluginMain(words[2], words[3]);
  }
  if (argc == 3 && words[1] == "isolated-worker") {
    return gpushm::integration::IsolatedWorkerMain(words[2]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
