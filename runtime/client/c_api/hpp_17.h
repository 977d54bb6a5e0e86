// Functions of an object file that is compiled as C++17, for hpp_test. Their types are those of the
// public headers, so they link only if these are the same in every standard.
#pragma once

#include "gpushm/gpushm.hpp"

gpushm::Result<gpushm::Client> OpenNothingInCpp17();
gpushm_status StatusInCpp17(const gpushm::Result<gpushm::Client>& client);
