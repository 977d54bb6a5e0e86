// The releaser is a child of the broker. It stores the poison value into signals in device memory,
// with a context of its own, and ends. releases.h describes what the two say to each other.
#pragma once

namespace gpushm::broker {

// `argv[0]` is "releaser". Returns the exit code.
int ReleaserMain(int argc, char** argv);

}  // namespace gpushm::broker
