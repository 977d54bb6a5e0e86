// A stand-in for nvidia-cuda-mps-control, with what gpushm-mps uses of it. `-f` is the daemon;
// without arguments it passes commands from standard input on to the daemon. As measured with
// driver 580: the socket `control` in CUDA_MPS_PIPE_DIRECTORY, a log on standard output, one daemon
// for each folder, and what a killed daemon left there is taken over.
//
// For tests: a daemon whose folder has the file `deaf` accepts questions and does not answer. The
// file `clients` there is what it answers to get_client_list.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

namespace {

pid_t server = 0;

std::string Folder() {
  const char* const folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  return folder == nullptr ? "/tmp/nvidia-mps" : folder;
}

sockaddr_un Address() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = Folder() + "/control";
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

bool ServerLives() {
  if (server != 0 && waitpid(server, nullptr, WNOHANG) == server) server = 0;
  return server != 0;
}

// The server ends with its daemon.
void StartServer() {
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").replace_filename("nvidia-cuda-mps-server");
  server = fork();
  if (server != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  execl(program.c_str(), "nvidia-cuda-mps-server", nullptr);
  _exit(127);
}

std::string AnswerTo(const std::string& command) {
  const bool lives = ServerLives();
  if (command.starts_with("start_server")) {
    if (!lives) StartServer();
    return "";
  }
  if (command == "get_server_list") return lives ? std::to_string(server) + "\n" : "";
  if (command.starts_with("get_server_status")) return lives ? "ACTIVE\n" : "Server not found\n";
  if (command.starts_with("get_client_list")) {
    std::ifstream clients(Folder() + "/clients");
    return {std::istreambuf_iterator<char>(clients), {}};
  }
  if (command.starts_with("quit")) {
    if (lives) kill(server, SIGKILL);
    std::exit(0);
  }
  return "Unknown command \"" + command + "\"\n";
}

int Serve() {
  const std::string folder = Folder();
  const int lock = open((folder + "/control_lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) != 0) {
    std::cout << "An instance of this daemon is already running\n";
    return 1;
  }
  const sockaddr_un address = Address();
  unlink(address.sun_path);
  const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener, 16) != 0) {
    std::perror("bind");
    return 1;
  }
  chmod(address.sun_path, 0666);
  std::cout << "Starting control daemon using socket " << address.sun_path << '\n' << std::flush;
  while (true) {
    const int asker = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (asker < 0) continue;
    if (access((folder + "/deaf").c_str(), F_OK) == 0) continue;  // Kept open, without an answer.
    char bytes[256];
    const ssize_t size = read(asker, bytes, sizeof bytes);
    const std::string command(bytes, size > 0 ? static_cast<size_t>(size) : 0);
    const std::string answer = command.empty() ? "" : AnswerTo(command);
    [[maybe_unused]] const ssize_t sent = send(asker, answer.data(), answer.size(), MSG_NOSIGNAL);
    close(asker);
  }
}

int AskAll() {
  const sockaddr_un address = Address();
  for (std::string line; std::getline(std::cin, line);) {
    const int daemon = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connect(daemon, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      std::cout << "Cannot find MPS control daemon process\n";
      return 1;
    }
    [[maybe_unused]] const ssize_t sent = send(daemon, line.data(), line.size(), MSG_NOSIGNAL);
    char bytes[4096];
    for (ssize_t count = 0; (count = read(daemon, bytes, sizeof bytes)) > 0;) {
      std::cout.write(bytes, count);
    }
    close(daemon);
  }
  std::cout.flush();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) return AskAll();
  if (argc == 2 && std::strcmp(argv[1], "-f") == 0) return Serve();
  std::cerr << "this stand-in for nvidia-cuda-mps-control knows only -f\n";
  return 1;
}
