#include "tests/testing/net/http_get.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace eta::testing {

HttpAnswer HttpGet(int port, const std::string& path) {
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connection < 0) return {};
  const timeval patience{.tv_sec = 30, .tv_usec = 0};
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    // With version 1.0 the body ends with the connection and has no chunks.
    const std::string request = absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n");
    if (send(connection, request.data(), request.size(), MSG_NOSIGNAL) ==
        static_cast<ssize_t>(request.size())) {
      char part[65536];
      for (ssize_t got = 0; (got = recv(connection, part, sizeof(part), 0)) > 0;) {
        answer.append(part, static_cast<size_t>(got));
      }
    }
  }
  close(connection);
  HttpAnswer result;
  const size_t body = answer.find("\r\n\r\n");
  if (body == std::string::npos || answer.size() < 12 ||
      !absl::SimpleAtoi(answer.substr(9, 3), &result.status)) {
    return {};
  }
  result.body = answer.substr(body + 4);
  return result;
}

std::string UrlEscaped(std::string_view text) {
  std::string escaped;
  for (const char letter : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(letter))) {
      escaped += letter;
    } else {
      absl::StrAppendFormat(&escaped, "%%%02X", static_cast<unsigned char>(letter));
    }
  }
  return escaped;
}

}  // namespace eta::testing
