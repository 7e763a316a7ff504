#include "service/etactl/commands/tokenize.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"
#include "engine/base/utf8.h"
#include "eta/v1/service.grpc.pb.h"
#include "service/etactl/connection.h"
#include "service/etactl/error.h"
#include "service/etactl/generate/chat_history.h"
#include "service/etactl/input.h"
#include "service/etactl/json.h"
#include "service/etactl/view/terminal.h"

namespace eta::ctl {
namespace {

void AddTokenOptions(CLI::App* command, TokenFlags* flags) {
  command->add_option("--timeout", flags->timeout_seconds, "Seconds to wait for the answer")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  command->add_option("--model", flags->model, "Refuse if the server serves another model");
  command->add_flag("--pieces", flags->pieces,
                    "A line for each token: its id, its text in quotes, and whether it is special");
  command->add_flag("--json", flags->json, "The answer as one JSON object");
}

int RefuseUsage(const absl::Status& status) {
  std::fprintf(stderr, "etactl: %s\n", std::string(status.message()).c_str());
  return kUsage;
}

int PrintTokens(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (written && std::fflush(stdout) == 0) return kOk;
  std::fprintf(stderr, "etactl: cannot write to standard output\n");
  return kLocalError;
}

// Whole characters as they are, unless they would command a terminal.
std::string ReadablePiece(const std::string& piece) {
  const std::string readable = absl::Utf8SafeCHexEscape(piece);
  const bool whole = !FirstInvalidUtf8(piece) && WithoutControls(readable) == readable;
  return whole ? readable : absl::CHexEscape(piece);
}

// Makes the call and prints what `describe` makes of its answer.
template <typename Request, typename Response, typename Method, typename Describe>
int CallAndPrint(const ServerFlags& server, const TokenFlags& flags, const Request& request,
                 Method method, const Describe& describe) {
  grpc::ClientContext context;
  SetDeadline(flags.timeout_seconds, &context);
  CancelOnInterrupt interrupt(&context);
  const auto stub = v1::EtaService::NewStub(Connect(server));
  Response response;
  const grpc::Status status = (stub.get()->*method)(&context, request, &response);
  if (!status.ok() && interrupt.happened()) return kInterrupted;
  if (!status.ok()) return Report(status, flags.json);
  if (flags.json) return PrintTokens(JsonLine(response));
  return PrintTokens(describe(response));
}

}  // namespace

CLI::App* AddTokenizeCommand(CLI::App& app, TokenizeFlags* flags) {
  CLI::App* command =
      app.add_subcommand("tokenize", "Show the token ids that a text or a chat becomes");
  command->add_option("TEXT", flags->text,
                      "The text; '-', or none when stdin is no terminal: read it from stdin, "
                      "without the line end that closes it");
  command->add_option("--file", flags->file,
                      "Read the text from this file, '-' for stdin, every byte of it");
  command->add_option("--history", flags->history,
                      "A chat instead, as `etactl chat --history` keeps it");
  command->add_option("--variables", flags->variables,
                      "Further variables of the chat template, as one JSON object");
  command->add_flag("--parse_special", flags->parse_special,
                    "Special tokens that the text spells, such as </s>, are those tokens");
  command->add_flag("--no_beginning", flags->no_beginning,
                    "Without what begins the model's texts: the ids of the text alone");
  command->add_flag("--count", flags->count, "Only how many tokens there are");
  AddTokenOptions(command, &flags->common);
  return command;
}

CLI::App* AddDetokenizeCommand(CLI::App& app, DetokenizeFlags* flags) {
  CLI::App* command = app.add_subcommand("detokenize", "Show what token ids read as");
  command
      ->add_option("IDS", flags->token_ids,
                   "A list such as 1,52,7, or a file that holds one; '-' for stdin")
      ->required();
  command->add_flag("--special_tokens", flags->special_tokens,
                    "Show special tokens, as the vocabulary spells them");
  AddTokenOptions(command, &flags->common);
  return command;
}

absl::StatusOr<v1::TokenizeRequest> MakeTokenizeRequest(const TokenizeFlags& flags) {
  if (!flags.text.empty() + !flags.file.empty() + !flags.history.empty() > 1) {
    return absl::InvalidArgumentError("give one of TEXT, --file and --history");
  }
  v1::TokenizeRequest request;
  if (flags.history.empty()) {
    ASSIGN_OR_RETURN(std::string text, ReadText("TEXT", flags.text, flags.file));
    request.set_text(std::move(text));
  } else {
    ASSIGN_OR_RETURN(const ChatHistory history, ChatHistory::Read(flags.history));
    *request.mutable_chat() = history.chat();
    if (!flags.variables.empty()) request.mutable_chat()->set_variables(flags.variables);
  }
  if (flags.common.model) request.set_model(*flags.common.model);
  if (flags.parse_special) request.set_parse_special(true);
  if (flags.no_beginning) request.set_add_beginning(false);
  if (flags.common.pieces) request.set_token_texts(true);
  return request;
}

absl::StatusOr<v1::DetokenizeRequest> MakeDetokenizeRequest(const DetokenizeFlags& flags) {
  ASSIGN_OR_RETURN(const auto ids, ReadTokenIds("IDS", flags.token_ids));
  v1::DetokenizeRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  if (flags.common.model) request.set_model(*flags.common.model);
  if (flags.special_tokens) request.set_special_tokens(true);
  if (flags.common.pieces) request.set_token_texts(true);
  return request;
}

std::string DescribePieces(const google::protobuf::RepeatedField<int32_t>& ids,
                           const v1::TokenTexts& texts) {
  std::string lines;
  int32_t begin = 0;
  for (int i = 0; i < std::min({ids.size(), texts.ends_size(), texts.special_size()}); ++i) {
    const int32_t end = texts.ends(i);
    if (begin > end || static_cast<size_t>(end) > texts.text().size()) break;
    const std::string piece = texts.text().substr(begin, end - begin);
    absl::StrAppend(&lines, ids[i], "\t\"", ReadablePiece(piece), "\"",
                    texts.special(i) ? "\tspecial" : "", "\n");
    begin = end;
  }
  return lines;
}

int RunTokenize(const ServerFlags& server, const TokenizeFlags& flags) {
  const auto request = MakeTokenizeRequest(flags);
  if (!request.ok()) return RefuseUsage(request.status());
  return CallAndPrint<v1::TokenizeRequest, v1::TokenizeResponse>(
      server, flags.common, *request, &v1::EtaService::Stub::Tokenize,
      [&](const v1::TokenizeResponse& response) {
        if (flags.common.pieces) {
          return DescribePieces(response.token_ids(), response.token_texts());
        }
        if (flags.count) return absl::StrCat(response.token_ids_size(), "\n");
        return absl::StrJoin(response.token_ids(), ",") + "\n";
      });
}

int RunDetokenize(const ServerFlags& server, const DetokenizeFlags& flags) {
  const auto request = MakeDetokenizeRequest(flags);
  if (!request.ok()) return RefuseUsage(request.status());
  return CallAndPrint<v1::DetokenizeRequest, v1::DetokenizeResponse>(
      server, flags.common, *request, &v1::EtaService::Stub::Detokenize,
      [&](const v1::DetokenizeResponse& response) {
        if (flags.common.pieces) {
          return DescribePieces(request->token_ids().ids(), response.token_texts());
        }
        return IsTerminal(STDOUT_FILENO) ? WithoutControls(response.text()) + "\n"
                                         : response.text();
      });
}

}  // namespace eta::ctl
