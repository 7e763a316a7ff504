// `etactl tokenize` and `etactl detokenize`: which tokens a text or a chat is, and what tokens read
// as.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "eta/v1/tokenize.pb.h"
#include "service/etactl/server.h"

namespace CLI {
class App;
}  // namespace CLI

namespace eta::ctl {

struct TokenFlags {
  double timeout_seconds = 30.0;
  std::optional<std::string> model;
  bool pieces = false;
  bool json = false;
};

struct TokenizeFlags {
  TokenFlags common;
  std::string text;
  std::string file;
  std::string history;    // a chat, as `etactl chat --history` keeps it
  std::string variables;  // of its template: a JSON object; empty: none
  bool parse_special = false;
  bool no_beginning = false;
  bool count = false;
};

struct DetokenizeFlags {
  TokenFlags common;
  std::string token_ids;  // "1,2,3", or the name of a file that holds such a list
  bool special_tokens = false;
};

// Add the subcommands to `app`; parsing fills `flags`, which must outlive `app`.
CLI::App* AddTokenizeCommand(CLI::App& app, TokenizeFlags* flags);
CLI::App* AddDetokenizeCommand(CLI::App& app, DetokenizeFlags* flags);

// INVALID_ARGUMENT, with a sentence for the user, for what cannot be read. Values out of range are
// left to the server to refuse.
absl::StatusOr<v1::TokenizeRequest> MakeTokenizeRequest(const TokenizeFlags& flags);
absl::StatusOr<v1::DetokenizeRequest> MakeDetokenizeRequest(const DetokenizeFlags& flags);

// A line for each token: its id, a tab, and its text in quotes, escaped as in C; "special" behind
// that of a special one.
std::string DescribePieces(const google::protobuf::RepeatedField<int32_t>& ids,
                           const v1::TokenTexts& texts);

// Return the exit code of the process.
int RunTokenize(const ServerFlags& server, const TokenizeFlags& flags);
int RunDetokenize(const ServerFlags& server, const DetokenizeFlags& flags);

}  // namespace eta::ctl
