#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "calibration/evaluation/commands/commands.h"
#include "calibration/evaluation/runtime/program.h"
#include "calibration/evaluation/text/text_source.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/piece_table.h"
#include "engine/checkpoint/tokenizer_files.h"
#include "engine/tokenizer/text_stream.h"
#include "engine/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

struct TokenizeCommand {
  std::string tokenizer;
  std::string chat_template;
  std::string text;
  bool add_bos = false;
  bool parse_special = false;
  bool decode = false;

  void Register(CLI::App& app) {
    app.add_option("--tokenizer", tokenizer, "File: a tokenizer.json, or a SentencePiece *.model")
        ->required();
    app.add_option("--chat_template", chat_template,
                   "File: tokens that it writes are control tokens");
    app.add_option("--text", text, "File: .txt or .jsonl, also .xz")->required();
    app.add_flag("--add_bos", add_bos, "With what begins and ends a text");
    app.add_flag("--parse_special", parse_special,
                 "Control tokens that a text spells become their ids");
    app.add_flag("--decode", decode, "Print what the ids read as, told one by one");
  }
  absl::Status Run() const;
};

absl::StatusOr<std::string> ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream contents;
  contents << file.rdbuf();
  if (!file.is_open() || file.bad()) {
    return absl::NotFoundError(absl::StrCat("'", path, "': cannot be read"));
  }
  return std::move(contents).str();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const TokenizeCommand& command) {
  ASSIGN_OR_RETURN(auto contents, ReadAll(command.tokenizer));
  TokenizerFiles files;
  ModelConfig config;
  config.vocab_size = static_cast<int32_t>(kMaxPieces);  // of a model that has room for all ids
  if (!command.chat_template.empty()) {
    ASSIGN_OR_RETURN(files.chat_template, ReadAll(command.chat_template));
  }
  if (command.tokenizer.ends_with(".json")) {
    files.tokenizer_json = std::move(contents);
  } else {
    ASSIGN_OR_RETURN(const auto table, ParsePieceTable(contents));
    config.vocab_size = static_cast<int32_t>(table.pieces.size());
    files.sentencepiece_model = std::move(contents);
  }
  return Tokenizer::Load(files, config);
}

std::string ReadBack(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  TextStream stream(tokenizer, {}, {}, /*include_stop=*/false);
  std::string text;
  for (const int32_t id : ids) text += stream.Push(id).text;
  return text + stream.Flush();
}

absl::Status TokenizeCommand::Run() const {
  ASSIGN_OR_RETURN(const auto source, TextSource::Open(text));
  ASSIGN_OR_RETURN(const auto loaded, LoadTokenizer(*this));
  for (;;) {
    ASSIGN_OR_RETURN(const auto document, source->Next());
    if (!document) return absl::OkStatus();
    const auto ids = loaded->Encode(*document, add_bos, parse_special);
    if (!ids.ok()) return source->InDocument(ids.status());
    const std::string line =
        decode ? nlohmann::json(ReadBack(*loaded, *ids)).dump(-1, ' ', /*ensure_ascii=*/true)
               : absl::StrCat("[", absl::StrJoin(*ids, ","), "]");
    std::puts(line.c_str());
  }
}

}  // namespace

void AddTokenizeCommand(CLI::App& app, absl::Status& status) {
  AddCommand<TokenizeCommand>(app, status, "tokenize",
                              "Prints the token ids of each document of a text")
      ->footer("One line for each document: a JSON list of ids or, with --decode, a JSON text.");
}

}  // namespace eta
