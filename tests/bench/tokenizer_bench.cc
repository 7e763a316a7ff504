// Speed of encoding, on one core: a text that is new, and the same text again, when its words are
// known. Checks first that the ids read as the text.
//
//   build/bin/tokenizer_bench --tokenizer=FILE --text=FILE [--rounds=20]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "engine/checkpoint/piece_table.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta::bench {
namespace {

struct Options {
  std::string tokenizer;
  std::string text;
  int rounds = 20;
};

[[noreturn]] void Die(const std::string& sentence) {
  std::cerr << "tokenizer_bench: " << sentence << "\n";
  std::exit(2);
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string contents{std::istreambuf_iterator<char>(file), {}};
  if (contents.empty()) Die(path + ": empty or not readable");
  return contents;
}

std::unique_ptr<Tokenizer> Load(const std::string& path) {
  TokenizerFiles files;
  ModelConfig config;
  config.vocab_size = static_cast<int32_t>(kMaxPieces);
  if (path.ends_with(".json")) {
    files.tokenizer_json = ReadAll(path);
  } else {
    files.sentencepiece_model = ReadAll(path);
    const auto table = ParsePieceTable(*files.sentencepiece_model);
    if (table.ok()) config.vocab_size = static_cast<int32_t>(table->pieces.size());
  }
  auto tokenizer = Tokenizer::Load(files, config);
  if (!tokenizer.ok()) Die(std::string(tokenizer.status().message()));
  return *std::move(tokenizer);
}

struct Timed {
  std::vector<int32_t> ids;
  double seconds;
};

Timed Encode(const Tokenizer& tokenizer, const std::string& text) {
  const auto start = std::chrono::steady_clock::now();
  auto ids = tokenizer.Encode(text, /*add_bos=*/false);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (!ids.ok()) Die(std::string(ids.status().message()));
  return {*std::move(ids), took.count()};
}

int Run(const Options& options) {
  const auto tokenizer = Load(options.tokenizer);
  const std::string text = ReadAll(options.text);
  const Timed first = Encode(*tokenizer, text);
  if (tokenizer->Decode(first.ids) != text) {
    std::cerr << "tokenizer_bench: the ids do not read as the text\n";
    return 1;
  }
  std::vector<double> seconds;
  for (int round = 0; round < options.rounds; ++round) {
    const Timed again = Encode(*tokenizer, text);
    if (again.ids != first.ids) {
      std::cerr << "tokenizer_bench: the ids have changed\n";
      return 1;
    }
    seconds.push_back(again.seconds);
  }
  std::sort(seconds.begin(), seconds.end());
  const double mib = static_cast<double>(text.size()) / (1 << 20);
  std::printf("%zu bytes, %zu ids\n", text.size(), first.ids.size());
  std::printf("first    %8.1f MiB/s\n", mib / first.seconds);
  std::printf("again    %8.1f MiB/s (median), %.1f (best)\n", mib / seconds[seconds.size() / 2],
              mib / seconds.front());
  return 0;
}

}  // namespace
}  // namespace eta::bench

int main(int argc, char** argv) {
  eta::bench::Options options;
  CLI::App app("Speed of encoding a text, on one core");
  app.add_option("--tokenizer", options.tokenizer, "File: tokenizer.json, or SentencePiece's")
      ->required();
  app.add_option("--text", options.text, "File of text")->required();
  app.add_option("--rounds", options.rounds, "Times that it is encoded again")
      ->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  return eta::bench::Run(options);
}
