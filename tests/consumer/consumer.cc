// The C++ header as a stranger uses it: without a broker, where opening must fail and say what to
// do.
#include <gpushm/gpushm.hpp>
#include <iostream>

int main() {
  const auto client = gpushm::Client::Open(
      {.folder = "/nonexistent/gpushm", .timeout = gpushm::Timeout::DontWait()});
  if (client || client.error().status() != GPUSHM_UNAVAILABLE || client.error().remedy().empty()) {
    std::cerr << "expected UNAVAILABLE with a remedy, got "
              << (client ? "a client" : client.error().text()) << "\n";
    return 1;
  }
  std::cout << "C++ consumer: " << client.error().text() << "\n";
  return 0;
}
