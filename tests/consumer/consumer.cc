// The C++ header as an external project uses it: without a broker, opening must fail with a remedy.
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
