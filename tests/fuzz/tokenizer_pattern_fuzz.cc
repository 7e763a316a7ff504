// A pattern, a NUL, and a text that it is run over: refused in a readable sentence, or matches from
// left to right within bounds, and the first of them where there is no time for all. For patterns
// that are written out by hand, those are the same; so are a text's normal forms once they are
// taken again.
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/utf8.h"
#include "engine/tokenizer/text/normalizer.h"
#include "engine/tokenizer/text/regex.h"
#include "engine/tokenizer/text/scanners.h"
#include "engine/tokenizer/text/unicode.h"
#include "tests/testing/fuzz/checked_error.h"

namespace {

using eta::fuzz::Require;

constexpr size_t kMaxText = 4096;
constexpr size_t kLongText = 1024;  // less takes no time

// The hand-written patterns know newer characters than PCRE2 does.
bool AllKnown(const std::string& text) {
  static const auto unknown = eta::Regex::Compile("\\p{Cn}");
  eta::RegexRun run(text.size());
  return !run.Find(*unknown, text, 0);
}

void CheckWithoutTime(const eta::Regex& regex, const std::string& text,
                      const std::vector<eta::ByteRange>& all) {
  eta::RegexRun run(0, std::chrono::nanoseconds(0));
  eta::RegexMatches matches(regex, text, run);
  size_t count = 0;
  while (const std::optional<eta::ByteRange> match = matches.Next()) {
    Require(count < all.size() && *match == all[count]);
    ++count;
  }
  Require(count == all.size() || !run.status().ok());
}

void CheckMatches(const std::string& pattern, const std::string& text) {
  const auto regex = eta::Regex::Compile(pattern);
  if (!regex.ok()) {
    eta::fuzz::RequireReadable(regex.status());
    return;
  }
  const eta::Scanner scanner = AllKnown(text) ? eta::FindScanner(pattern) : nullptr;
  eta::RegexRun run(text.size());
  eta::RegexMatches matches(*regex, text, run);
  size_t end = 0;
  std::vector<eta::ByteRange> all;
  while (const std::optional<eta::ByteRange> match = matches.Next()) {
    Require(match->begin >= end && match->end >= match->begin && match->end <= text.size());
    if (scanner != nullptr) Require(match->begin == end && match->end == scanner(text, end));
    end = match->end;
    all.push_back(*match);
  }
  if (text.size() > kLongText) CheckWithoutTime(*regex, text, all);
  if (!run.status().ok()) eta::fuzz::RequireReadable(run.status());
}

void CheckNormalForms(const std::string& text) {
  for (const eta::NormalForm form : {eta::NormalForm::kNfc, eta::NormalForm::kNfd,
                                     eta::NormalForm::kNfkc, eta::NormalForm::kNfkd}) {
    const auto normalizer = eta::MakeNormalForm(form);
    eta::RegexRun run(text.size());
    eta::MarkedText once{
        .text = text, .marks = std::string(text.size(), '\1'), .begins_text = true};
    Require(normalizer->Apply(once, run).ok());
    Require(!eta::FirstInvalidUtf8(once.text) && once.marks == std::string(once.text.size(), '\1'));
    eta::MarkedText twice = once;
    Require(normalizer->Apply(twice, run).ok() && twice.text == once.text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), input.size());
  std::string text(input.substr(std::min(end + 1, input.size())).substr(0, kMaxText));
  while (eta::FirstInvalidUtf8(text)) text.pop_back();
  CheckMatches(std::string(input.substr(0, end)), text);
  CheckNormalForms(text);
  return 0;
}
