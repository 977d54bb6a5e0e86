// A stand-in for nvidia-cuda-mps-server: a process that lives.
#include <unistd.h>

int main() {
  while (true) pause();
}
