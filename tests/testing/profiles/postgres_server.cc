#include "tests/testing/profiles/postgres_server.h"

#include <fcntl.h>
#include <grp.h>
#include <libpq-fe.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <thread>
#include <vector>

namespace eta {
namespace {

namespace fs = std::filesystem;

std::string FindPrograms() {
  std::error_code error;
  for (const auto& version : fs::directory_iterator("/usr/lib/postgresql", error)) {
    const fs::path bin = version.path() / "bin";
    if (fs::exists(bin / "initdb") && fs::exists(bin / "postgres")) return bin.string();
  }
  return {};
}

// The user that the server runs as; null: the user of the test.
const passwd* ServerUser() {
  return geteuid() == 0 ? getpwnam("postgres") : nullptr;  // NOLINT(concurrency-mt-unsafe)
}

pid_t Spawn(std::vector<std::string> command, const std::string& log) {
  const passwd* user = ServerUser();
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child != 0) return child;
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  dup2(out, 1);
  dup2(out, 2);
  if (user != nullptr &&
      (setgroups(0, nullptr) != 0 || setgid(user->pw_gid) != 0 || setuid(user->pw_uid) != 0)) {
    _exit(126);
  }
  if (chdir("/") != 0) _exit(126);
  execv(arguments[0], arguments.data());
  _exit(127);
}

void Require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

}  // namespace

PostgresServer* PostgresServer::Get() {
  if (FindPrograms().empty() || (geteuid() == 0 && ServerUser() == nullptr)) return nullptr;
  static PostgresServer server;
  return &server;
}

PostgresServer::PostgresServer() {
  std::string pattern = fs::temp_directory_path().string() + "/eta_pg_XXXXXX";
  Require(mkdtemp(pattern.data()) != nullptr, "no temporary folder");
  folder_ = pattern;
  if (const passwd* user = ServerUser()) {
    Require(chown(folder_.c_str(), user->pw_uid, user->pw_gid) == 0, "chown");
  }
  const pid_t child = Spawn({FindPrograms() + "/initdb", "-D", folder_ + "/data", "-U", "admin",
                             "--auth=trust", "--no-sync", "--no-locale", "-E", "UTF8"},
                            folder_ + ".log");
  int status = 0;
  Require(waitpid(child, &status, 0) == child && status == 0, "initdb failed");
  Start();
}

PostgresServer::~PostgresServer() {
  Stop(SIGINT);
  std::error_code error;
  fs::remove_all(folder_, error);
  fs::remove(folder_ + ".log", error);
}

void PostgresServer::Start() {
  server_ = Spawn({FindPrograms() + "/postgres", "-D", folder_ + "/data", "-k", folder_, "-h", "",
                   "-c", "fsync=off", "-c", "shared_buffers=8MB"},
                  folder_ + ".log");
  const std::string url = "host=" + folder_ + " user=admin dbname=postgres";
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (PQping(url.c_str()) != PQPING_OK) {
    Require(std::chrono::steady_clock::now() < limit, "PostgreSQL does not start");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void PostgresServer::Stop(int signal) {
  if (server_ <= 0) return;
  kill(server_, signal);
  waitpid(server_, nullptr, 0);
  server_ = -1;
}

void PostgresServer::Kill() {
  Stop(SIGQUIT);
}

std::string PostgresServer::NewDatabase() {
  const std::string name = "eta" + std::to_string(++databases_);
  PGconn* admin = PQconnectdb(("host=" + folder_ + " user=admin dbname=postgres").c_str());
  if (databases_ == 1) PQclear(PQexec(admin, "CREATE ROLE eta LOGIN"));
  PGresult* made = PQexec(admin, ("CREATE DATABASE " + name + " OWNER eta").c_str());
  const bool ok = PQresultStatus(made) == PGRES_COMMAND_OK;
  PQclear(made);
  PQfinish(admin);
  Require(ok, "no database");
  return "postgresql://eta@/" + name + "?host=" + folder_;
}

std::string PostgresServer::AdminUrl(const std::string& url) const {
  std::string admin = url;
  return admin.replace(admin.find("eta@"), 3, "admin");
}

}  // namespace eta
