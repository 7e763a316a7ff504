// Fetches a page of a server on this host.
#pragma once

#include <string>
#include <string_view>

namespace eta::testing {

struct HttpAnswer {
  int status = 0;  // 0: no answer
  std::string body;
};

// GET http://127.0.0.1:port/path. `path` begins with a slash. Waits for up to 30 s.
HttpAnswer HttpGet(int port, const std::string& path);

// Escapes a text as a value of a query: everything but letters and digits becomes %XX.
std::string UrlEscaped(std::string_view text);

}  // namespace eta::testing
