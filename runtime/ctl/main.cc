// gpushmctl: the command-line tool. docs/reference/gpushmctl.md describes it.
#include "runtime/ctl/app.h"

int main(int argc, char** argv) { return gpushm::ctl::Main(argc, argv); }
