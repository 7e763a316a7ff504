// A real PostgreSQL server in a temporary folder, reached by a Unix socket only.
#pragma once

#include <sys/types.h>

#include <string>

namespace eta {

// One server per test process, started on first use and stopped at the end. Run as root, the test
// starts the server as user postgres.
class PostgresServer {
 public:
  // Null if the server's programs are not installed; tests then skip with MissingReason().
  static PostgresServer* Get();
  static const char* MissingReason() { return "PostgreSQL's server programs are not installed"; }

  // Makes a new database owned by role eta, which is no superuser. The URL connects as eta.
  std::string NewDatabase();
  // The same database as the superuser, who passes row-level security.
  std::string AdminUrl(const std::string& url) const;
  // The folder of the socket .s.PGSQL.5432.
  const std::string& socket_folder() const { return folder_; }

  void Kill();   // at once, without a checkpoint: commits are in its log
  void Start();  // waits until it answers

 private:
  PostgresServer();
  ~PostgresServer();
  void Stop(int signal);

  std::string folder_;
  pid_t server_ = -1;
  int databases_ = 0;
};

}  // namespace eta
