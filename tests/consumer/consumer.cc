// The C++ headers as an external project uses them: without a broker, opening must fail with a
// remedy.
#include <gpushm/gpushm.hpp>
#include <gpushm/sync.hpp>
#include <gpushm/tensors.hpp>
#include <iostream>

int main() {
  gpushm::OpenOptions options;
  options.folder = "/nonexistent/gpushm";
  options.timeout = gpushm::Timeout::DontWait();
  const auto client = gpushm::Client::Open(options);
  if (client || client.error().status() != GPUSHM_UNAVAILABLE || client.error().remedy().empty()) {
    std::cerr << "expected UNAVAILABLE with a remedy, got "
              << (client ? "a client" : client.error().text()) << "\n";
    return 1;
  }
  const auto model = gpushm::Tensors::Measure("/nonexistent/model");
  if (model || model.error().status() != GPUSHM_NOT_FOUND) {
    std::cerr << "expected NOT_FOUND, got " << (model ? "a model" : model.error().text()) << "\n";
    return 1;
  }
  std::cout << "C++ consumer: " << client.error().text() << "\n";
  return 0;
}
