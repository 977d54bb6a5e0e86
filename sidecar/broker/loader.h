// The loader: a child of the broker that moves one buffer's bytes between GPU and file, with a
// context of its own, and ends. See transfer.h for what the two say to each other.
#pragma once

namespace gpushm::broker {

// `argv[0]` is "loader". Returns the exit code.
int LoaderMain(int argc, char** argv);

}  // namespace gpushm::broker
