#include "tests/testing/process/front_process.h"

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <regex>
#include <thread>

#include "engine/base/files/descriptor.h"
#include "tests/testing/net/free_port.h"

namespace eta::testing {
namespace {

constexpr char kNginx[] = "/usr/sbin/nginx";

bool Answers(int port) {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(port);
  return connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

bool FrontProcess::Installed() {
  return access(kNginx, X_OK) == 0;
}

FrontProcess::FrontProcess(const Options& options) {
  const std::string shipped = ETA_SOURCE_DIR "/deploy/front/";
  const int port = FreePort();
  const std::string address = "127.0.0.1:" + std::to_string(port);
  // Started as root, nginx would give up its rights, and with them access to the server's socket.
  std::string main = Read(shipped + "nginx.conf");
  main =
      std::regex_replace(main, std::regex("\nuser [^\n]*"), geteuid() == 0 ? "\nuser root;" : "");
  folder_.Write("nginx.conf", std::regex_replace(main, std::regex("/run/nginx.pid"), "nginx.pid"));
  std::string listen = Read(shipped + "listen.conf");
  listen = std::regex_replace(listen, std::regex("listen 8443"), "listen " + address);
  listen = std::regex_replace(listen, std::regex("tls/tls.crt"), options.certificate);
  listen = std::regex_replace(listen, std::regex("tls/tls.key"), options.key);
  listen = std::regex_replace(listen, std::regex("/var/log/nginx/"), folder_.path() + "/");
  folder_.Write("listen.conf", listen);
  folder_.Write("upstream.conf",
                std::regex_replace(Read(shipped + "upstream.conf"),
                                   std::regex("server unix:[^ ;]*"), "server " + options.server));
  process_ = std::make_unique<ServerProcess>(
      kNginx,
      std::vector<std::string>{"-p", folder_.path(), "-c", "nginx.conf", "-g", "daemon off;"});
  for (int i = 0; i < 2000 && process_->Running() && address_.empty(); ++i) {
    if (Answers(port)) address_ = address;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::string FrontProcess::RefusalLog() const {
  return Read(folder_.path() + "/eta_front.log");
}

// The workers end with the master only if the master is told to stop.
FrontProcess::~FrontProcess() {
  process_->Signal(SIGTERM);
  process_->AwaitExit();
}

}  // namespace eta::testing
