// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/json/added_tokens.h"

#include <algorithm>
#include <utility>

#include "engine/tokenizer/text/unicode.h"

namespace eta {
namespace {

bool IsSpace(char32_t code) {
  return (CharacterClasses::Get()(code) & kWhiteSpace) != 0;
}
bool IsWord(char32_t code) {
  return (CharacterClasses::Get()(code) & kWord) != 0;
}

// Where the white space begins that ends at `end`, but not before `least`.
size_t SpaceBefore(std::string_view text, size_t end, size_t least) {
  while (end > least) {
    const Character last = LastCharacter(text.substr(0, end));
    if (!IsSpace(last.code)) break;
    end -= last.size;
  }
  return std::max(end, least);
}

size_t SpaceBehind(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Character next = CharacterAt(text, begin);
    if (!IsSpace(next.code)) break;
    begin += next.size;
  }
  return begin;
}

bool LiesIn(ByteRange range, std::span<const ByteRange> ranges) {
  const auto first = std::partition_point(ranges.begin(), ranges.end(),
                                          [&](const ByteRange& r) { return r.end < range.end; });
  return first != ranges.end() && first->begin <= range.begin;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<SoughtToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_partition(tokens_.begin(), tokens_.end(),
                        [](const SoughtToken& token) { return !token.control; });
  std::vector<std::string_view> of_text;
  std::vector<std::string_view> of_control;
  for (const SoughtToken& token : tokens_) {
    (token.control ? of_control : of_text).push_back(token.text);
    strips_ = strips_ || token.lstrip || token.rstrip;
  }
  first_control_ = of_text.size();
  text_ = TokenAutomaton(of_text);
  control_ = TokenAutomaton(of_control);
}

bool AddedTokens::StandsAlone(std::string_view text, ByteRange match) const {
  const bool word_before =
      match.begin > 0 && IsWord(LastCharacter(text.substr(0, match.begin)).code);
  const bool word_behind = match.end < text.size() && IsWord(CharacterAt(text, match.end).code);
  return !word_before && !word_behind;
}

void AddedTokens::FindIn(std::string_view text, std::set<int32_t>& ids) const {
  Matches matches;
  text_.Find(text, 0, matches);
  size_t taken = 0;
  for (auto match = matches.rbegin(); match != matches.rend(); ++match) {
    if (match->begin < taken) continue;
    taken = match->begin + match->size;
    const SoughtToken& token = tokens_[static_cast<size_t>(match->token)];
    if (!token.plain) ids.insert(token.id);
  }
}

void AddedTokens::Split(std::string_view text, std::span<const ByteRange> control,
                        const std::set<int32_t>& withheld,
                        absl::FunctionRef<void(ByteRange)> on_text,
                        absl::FunctionRef<void(int32_t)> on_token) const {
  // The next place from the left stands last.
  Matches of_text;
  text_.Find(text, 0, of_text);
  Matches of_control;
  for (size_t i = control_.empty() ? 0 : control.size(); i-- > 0;) {
    control_.Find(text.substr(control[i].begin, control[i].end - control[i].begin),
                  control[i].begin, of_control);
  }
  size_t told = 0;   // up to here all is told
  size_t taken = 0;  // no match may begin before this
  while (!of_text.empty() || !of_control.empty()) {
    const bool from_control =
        !of_control.empty() && (of_text.empty() || of_control.back().begin < of_text.back().begin ||
                                (of_control.back().begin == of_text.back().begin &&
                                 of_control.back().size > of_text.back().size));
    Matches& from = from_control ? of_control : of_text;
    const TokenAutomaton::Match match = from.back();
    from.pop_back();
    if (match.begin < taken) continue;
    const SoughtToken& token =
        tokens_[static_cast<size_t>(match.token) + (from_control ? first_control_ : 0)];
    ByteRange range = {.begin = match.begin, .end = match.begin + match.size};
    if (!from_control && withheld.contains(token.id) && !LiesIn(range, control)) {
      const size_t cut = range.begin + CharacterAt(text, range.begin).size;
      if (told < cut && cut < range.end) {
        on_text({.begin = told, .end = cut});
        told = cut;
      }
      continue;
    }
    taken = range.end;
    if (token.single_word && !StandsAlone(text, range)) continue;
    if (token.lstrip) range.begin = SpaceBefore(text, range.begin, told);
    if (token.rstrip) range.end = SpaceBehind(text, std::max(range.end, told));
    if (told < range.begin) on_text({.begin = told, .end = range.begin});
    on_token(token.id);
    told = std::max(told, range.end);
  }
  if (told < text.size()) on_text({.begin = told, .end = text.size()});
}

}  // namespace eta
