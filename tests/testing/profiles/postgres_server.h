// A real PostgreSQL server in a temporary folder, reached by a Unix socket only.
#pragma once

#include <sys/types.h>

#include <string>

namespace eta {

// One per test process, started on first use and stopped at its end. Run as root it starts the
// server as user postgres.
class PostgresServer {
 public:
  // Null where the server's programs are not installed; tests then skip with MissingReason().
  static PostgresServer* Get();
  static const char* MissingReason() { return "PostgreSQL's server programs are not installed"; }

  // A new database owned by role eta, who is no superuser; the URL connects as eta.
  std::string NewDatabase();
  // The same database as the superuser, who passes row-level security.
  std::string AdminUrl(const std::string& url) const;
  // The folder of the socket .s.PGSQL.5432.
  const std::string& socket_folder() const { return folder_; }

  void Kill();   // at once, without a checkpoint: what it committed is in its log
  void Start();  // and wait until it answers

 private:
  PostgresServer();
  ~PostgresServer();
  void Stop(int signal);

  std::string folder_;
  pid_t server_ = -1;
  int databases_ = 0;
};

}  // namespace eta
