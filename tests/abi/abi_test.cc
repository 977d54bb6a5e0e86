// Goal: a program that was built against version 0.1 works with this library. Method: program_0_1
// calls every function of that version. It asks the dynamic linker for the symbols of that version,
// all of them when it starts.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>

#include "platform/base/status.h"
#include "tests/integration/shared_broker.h"

namespace gpushm::integration {
namespace {

class AbiTest : public SharedBrokerTest {};

TEST_F(AbiTest, AProgramOfVersion01Runs) {
  const std::string command = Concat("GPUSHM_DIR='", run(), "' LD_BIND_NOW=1 '", GPUSHM_PROGRAM_0_1,
                                     "' '", folder_, "/file'");
  const int status = std::system(command.c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << command << ": status " << status;
}

}  // namespace
}  // namespace gpushm::integration
