// The releaser: a child of the broker that stores the poison into signals in device memory, with a
// context of its own, and ends. See releases.h for what the two say to each other.
#pragma once

namespace gpushm::broker {

// `argv[0]` is "releaser". Returns the exit code.
int ReleaserMain(int argc, char** argv);

}  // namespace gpushm::broker
