#include "tests/bench/eta_bench/replay/replay_cases.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <random>
#include <string_view>
#include <utility>

#include "tests/bench/eta_bench/eta_bench.h"

namespace eta::bench {
namespace {

using Tokens = std::vector<int32_t>;

Tokens Encode(const Tokenizer& tokenizer, const std::string& text, bool begins = false) {
  return Require(tokenizer.Encode(text, begins));
}

void Append(const Tokens& more, Tokens& tokens) {
  tokens.insert(tokens.end(), more.begin(), more.end());
}

Tokens Slice(const Tokens& tokens, size_t begin, size_t count) {
  const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(begin);
  return {from, from + static_cast<std::ptrdiff_t>(count)};
}

// Where the windows of `count` cases begin: evenly over the text.
size_t Place(size_t tokens, size_t window, int i, int count) {
  if (tokens < window) Fail("--text: too short for --context and --answer");
  return (tokens - window) * static_cast<size_t>(i) / static_cast<size_t>(std::max(count - 1, 1));
}

bool IsName(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

template <typename Use>
void ForEachName(std::string_view text, const Use& use) {
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    while (end < text.size() && IsName(text[end])) ++end;
    if (end > begin) use(text.substr(begin, end - begin), begin);
    begin = end + 1;
  }
}

// Empty: none occurs three times.
std::string NameToChange(std::string_view text) {
  std::map<std::string_view, int> counts;
  ForEachName(text, [&](std::string_view name, size_t) {
    if (name.size() >= 6 && std::isdigit(static_cast<unsigned char>(name[0])) == 0) ++counts[name];
  });
  std::pair<std::string_view, int> most{"", 2};
  for (const auto& count : counts) {
    if (count.second > most.second) most = count;
  }
  return std::string(most.first);
}

std::string Renamed(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  size_t copied = 0;
  ForEachName(text, [&](std::string_view name, size_t at) {
    if (name != from) return;
    result.append(text.substr(copied, at - copied)).append(to);
    copied = at + name.size();
  });
  return result.append(text.substr(copied));
}

// As many of its first lines as have at most so many tokens.
std::string FirstLines(const Tokenizer& tokenizer, std::string text, size_t most_tokens) {
  for (size_t tokens; (tokens = Encode(tokenizer, text).size()) > most_tokens;) {
    const size_t keep = std::min(text.size() * most_tokens / tokens, text.size() - 2);
    const size_t line = text.rfind('\n', keep);
    if (line == std::string::npos || line == 0) return {};
    text.resize(line + 1);
  }
  return text;
}

}  // namespace

std::vector<ReplayCase> Quotes(const Tokenizer& tokenizer, const std::string& text,
                               const CaseSizes& sizes) {
  const Tokens tokens = Encode(tokenizer, text);
  const Tokens wish = Encode(tokenizer, "\n\nWhat it says, word for word:\n\n");
  const size_t window = static_cast<size_t>(sizes.context) - wish.size();
  const size_t length = std::min(static_cast<size_t>(sizes.answer), window / 2);
  std::mt19937 random(1);
  std::vector<ReplayCase> cases;
  for (int i = 0; i < sizes.count; ++i) {
    ReplayCase quote{.kind = "quote",
                     .prompt = Slice(tokens, Place(tokens.size(), window, i, sizes.count), window),
                     .answer = {}};
    quote.answer = Slice(quote.prompt, random() % (window - length), length);
    Append(wish, quote.prompt);
    cases.push_back(std::move(quote));
  }
  return cases;
}

std::vector<ReplayCase> FreeTexts(const Tokenizer& tokenizer, const std::string& text,
                                  const CaseSizes& sizes) {
  const Tokens tokens = Encode(tokenizer, text);
  const auto context = static_cast<size_t>(sizes.context);
  const auto answer = static_cast<size_t>(sizes.answer);
  std::vector<ReplayCase> cases;
  for (int i = 0; i < sizes.count; ++i) {
    const size_t at = Place(tokens.size(), context + answer, i, sizes.count);
    cases.push_back({.kind = "free",
                     .prompt = Slice(tokens, at, context),
                     .answer = Slice(tokens, at + context, answer)});
  }
  return cases;
}

std::vector<ReplayCase> Edits(const Tokenizer& tokenizer, const std::vector<std::string>& files,
                              const CaseSizes& sizes) {
  std::vector<ReplayCase> cases;
  for (const std::string& file : files) {
    if (std::ssize(cases) == sizes.count) break;
    constexpr size_t kWish = 64;
    const std::string code =
        FirstLines(tokenizer, file, static_cast<size_t>(sizes.context) - kWish);
    const std::string name = NameToChange(code);
    if (name.empty()) continue;
    const std::string other = "new_" + name;
    const std::string wish =
        "\n\nThe same file with `" + name + "` renamed to `" + other + "`:\n\n";
    ReplayCase edit{.kind = "edit",
                    .prompt = Encode(tokenizer, code + wish),
                    .answer = Encode(tokenizer, Renamed(code, name, other))};
    edit.answer.resize(std::min(edit.answer.size(), static_cast<size_t>(sizes.answer)));
    cases.push_back(std::move(edit));
  }
  return cases;
}

std::vector<ReplayCase> RandomCases(int32_t vocab_size, const CaseSizes& sizes, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto tokens = [&](int32_t count) {
    Tokens made(static_cast<size_t>(count));
    for (int32_t& token : made)
      token = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size));
    return made;
  };
  std::vector<ReplayCase> cases;
  for (int i = 0; i < sizes.count; ++i) {
    cases.push_back(
        {.kind = "random", .prompt = tokens(sizes.context), .answer = tokens(sizes.answer)});
  }
  return cases;
}

}  // namespace eta::bench
