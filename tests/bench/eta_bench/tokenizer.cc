// eta-bench tokenizer: speed of encoding, on one core: a text that is new, and the same text again,
// when its words are known. The ids must read as the text.

#include "engine/tokenizer/tokenizer.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "engine/checkpoint/piece_table.h"
#include "tests/bench/eta_bench/eta_bench.h"

namespace eta::bench {
namespace {

struct Options {
  std::string tokenizer;
  std::string text;
  int rounds = 20;
};

std::unique_ptr<Tokenizer> Load(const std::string& path) {
  TokenizerFiles files;
  ModelConfig config;
  config.vocab_size = static_cast<int32_t>(kMaxPieces);
  if (path.ends_with(".json")) {
    files.tokenizer_json = ReadText(path);
  } else {
    files.sentencepiece_model = ReadText(path);
    const auto table = ParsePieceTable(*files.sentencepiece_model);
    if (table.ok()) config.vocab_size = static_cast<int32_t>(table->pieces.size());
  }
  return Require(Tokenizer::Load(files, config));
}

Json Run(const Options& options) {
  const auto tokenizer = Load(options.tokenizer);
  const std::string text = ReadText(options.text);
  const auto encode = [&](std::vector<int32_t>& ids) {
    const Stopwatch watch;
    ids = Require(tokenizer->Encode(text, /*add_bos=*/false));
    return watch.seconds();
  };
  std::vector<int32_t> first, again;
  const double unknown = encode(first);
  if (tokenizer->Decode(first) != text) Fail("the ids do not read as the text");
  std::vector<double> seconds;
  for (int round = 0; round < options.rounds; ++round) {
    seconds.push_back(encode(again));
    if (again != first) Fail("the ids have changed");
  }
  const double mib = static_cast<double>(text.size()) / (1 << 20);
  return {{"bench", "tokenizer"},
          {"bytes", text.size()},
          {"ids", first.size()},
          {"new_mib_per_s", mib / unknown},
          {"known_mib_per_s", mib / Median(seconds)},
          {"best_mib_per_s", mib / *std::ranges::min_element(seconds)}};
}

void Print(const Json& report) {
  PrintTable(Json::array({report}), {{"bytes", "bytes"},
                                     {"ids", "ids"},
                                     {"new, MiB/s", "new_mib_per_s", 1},
                                     {"known", "known_mib_per_s", 1},
                                     {"best", "best_mib_per_s", 1}});
}

}  // namespace

void AddTokenizerCommand(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("tokenizer", "Speed of encoding a text, on one core");
  command->add_option("--tokenizer", options->tokenizer, "File: tokenizer.json, or SentencePiece's")
      ->required();
  command->add_option("--text", options->text, "File of text")->required();
  command->add_option("--rounds", options->rounds, "Times that it is encoded again")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->callback([options, &chosen] { chosen = {[options] { return Run(*options); }, Print}; });
}

}  // namespace eta::bench
