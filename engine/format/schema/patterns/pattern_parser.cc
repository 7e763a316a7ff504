// lint: untrusted-input, fuzz-covered
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/base/utf8_characters.h"
#include "engine/format/schema/patterns/pattern.h"

namespace eta::schema {
namespace {

constexpr size_t kMaxSteps = 1024;
constexpr uint32_t kMaxCount = 128;  // the library has a slow way for more
constexpr size_t kMaxNested = 32;    // the library reads by recursion
constexpr char32_t kEnd = 0xFFFFFFFF;

uint32_t Sum(uint32_t a, uint32_t b) {
  return a > kUnbounded - b ? kUnbounded : a + b;
}

uint32_t Times(uint32_t a, uint32_t count) {
  // cannot wrap: both have 32 bits
  const uint64_t product = static_cast<uint64_t>(a) * count;
  return product > kUnbounded ? kUnbounded : static_cast<uint32_t>(product);
}

absl::Status Unknown(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(what), " is not known in patterns"));
}

bool IsQuantifier(char32_t c) {
  return c == '*' || c == '+' || c == '?' || c == '{';
}

}  // namespace

// A piece of a pattern.
struct Piece {
  std::vector<PatternStep> steps;
  std::string text;     // as the library has it
  bool sayable = true;  // some of what it matches needs no escapes
  Lengths lengths = {0, 0};
  int32_t repeated = -1;  // it is this set, repeated
};

namespace {

void Append(Piece& piece, const Piece& more) {
  piece.repeated = piece.steps.empty() && piece.text.empty() ? more.repeated : -1;
  piece.steps.insert(piece.steps.end(), more.steps.begin(), more.steps.end());
  piece.text += more.text;
  piece.sayable = piece.sayable && more.sayable;
  piece.lengths = {Sum(piece.lengths.low, more.lengths.low),
                   Sum(piece.lengths.high, more.lengths.high)};
}

// Either of some pieces, in a group.
Piece Either(std::vector<Piece> pieces) {
  Piece either;
  either.sayable = false;
  either.lengths = {kUnbounded, 0};
  either.repeated = pieces.size() == 1 ? pieces[0].repeated : -1;
  size_t behind = 0;
  for (const Piece& piece : pieces) behind += piece.steps.size() + 2;
  behind -= 2;  // the last has neither a fork before it nor a jump behind it
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const bool last = i + 1 == pieces.size();
    const auto size = static_cast<int32_t>(piece.steps.size());
    if (!last) either.steps.push_back({.next = 1, .other = size + 2});
    either.steps.insert(either.steps.end(), piece.steps.begin(), piece.steps.end());
    if (!last) {
      const auto jump = static_cast<int32_t>(behind - either.steps.size());
      either.steps.push_back({.next = jump, .other = jump});
    }
    either.lengths.low = std::min(either.lengths.low, piece.lengths.low);
    either.lengths.high = std::max(either.lengths.high, piece.lengths.high);
    if (!piece.sayable) continue;
    either.text += (either.sayable ? "|" : "(") + piece.text;
    either.sayable = true;
  }
  if (either.sayable) either.text += ")";
  return either;
}

// `piece` as often as `count` says.
absl::StatusOr<Piece> Repeat(const Piece& piece, const Lengths& count) {
  const bool open = count.high == kUnbounded;
  const uint32_t copies = open ? count.low + 1 : count.high;
  // cannot wrap: there are at most kMaxCount + 1 copies of at most kMaxSteps + 2 steps
  if ((piece.steps.size() + 2) * copies > kMaxSteps) {
    return absl::InvalidArgumentError(absl::StrCat("a pattern of over ", kMaxSteps, " steps"));
  }
  const auto size = static_cast<int32_t>(piece.steps.size());
  Piece repeated;
  for (uint32_t i = 0; i < copies; ++i) {
    const bool must = i < count.low;
    const auto left = static_cast<int32_t>(copies - i - 1);
    // Each that may be left out leaves out those behind it too.
    if (!must) {
      // cannot wrap: it is at most kMaxSteps
      const int32_t behind = open ? size + 2 : size + 1 + left * (size + 1);
      repeated.steps.push_back({.next = 1, .other = behind});
    }
    repeated.steps.insert(repeated.steps.end(), piece.steps.begin(), piece.steps.end());
    if (!must && open) repeated.steps.push_back({.next = -size - 1, .other = -size - 1});
  }
  repeated.sayable = piece.sayable || count.low == 0;
  if (!repeated.sayable) {
    repeated.text.clear();
  } else if (!piece.sayable || count.high == 0 || piece.text.empty()) {
    repeated.text = "()";
  } else if (count.low == 0 && open) {
    repeated.text = piece.text + "*";
  } else {
    const std::string high = open ? std::string() : absl::StrCat(count.high);
    repeated.text = absl::StrCat(piece.text, "{", count.low, ",", high, "}");
  }
  repeated.lengths = {
      Times(piece.lengths.low, count.low),
      open && piece.lengths.high > 0 ? kUnbounded : Times(piece.lengths.high, count.high)};
  const bool one = piece.lengths == Lengths{1, 1};
  repeated.repeated = one ? piece.repeated : -1;
  return repeated;
}

}  // namespace

class PatternParser {
 public:
  explicit PatternParser(std::string_view pattern) : text_(pattern) {}

  absl::StatusOr<Pattern> Parse() {
    open_.emplace_back();
    while (at_ < text_.size()) {
      RETURN_IF_ERROR(Next());
      if (steps_ > kMaxSteps) {
        return absl::InvalidArgumentError(absl::StrCat("a pattern of over ", kMaxSteps, " steps"));
      }
    }
    if (open_.size() > 1) return absl::InvalidArgumentError("a pattern whose '(' is not closed");
    EndAlternative();
    Piece whole = Either(std::move(open_.back().alternatives));
    pattern_.steps_ = std::move(whole.steps);
    pattern_.whole_ = whole.sayable ? whole.text : std::string();
    pattern_.lengths_ = whole.lengths;
    pattern_.repeated_ = whole.repeated;
    return std::move(pattern_);
  }

 private:
  struct Group {
    std::vector<Piece> alternatives;  // that have ended
    Piece before;                     // of the alternative that is read
    Piece atom;                       // its newest, which a count may follow
    bool has_atom = false;
    bool begins = false;  // the alternative stands at the beginning of the text
    bool ends = false;
  };

  char32_t Peek() const { return at_ < text_.size() ? Utf8At(text_, at_) : kEnd; }
  char32_t Take() {
    const char32_t c = Peek();
    if (c != kEnd) at_ += Utf8Length(text_[at_]);
    return c;
  }
  bool Take(char32_t c) {
    if (Peek() != c) return false;
    ++at_;
    return true;
  }

  absl::Status Next() {
    Group& group = open_.back();
    const char32_t c = Take();
    if (group.ends && c != '|') return Unknown("$ before the end");
    switch (c) {
      case '(':
        return Open();
      case ')':
        return Close();
      case '|':
        EndAlternative();
        return absl::OkStatus();
      case '^':
        if (open_.size() > 1 || group.begins || group.has_atom) return Unknown("^ in the middle");
        group.begins = true;
        return absl::OkStatus();
      case '$':
        if (open_.size() > 1) return Unknown("$ in a group");
        group.ends = true;
        return absl::OkStatus();
      case '.':
        PutSet(CharSet::LineEnds().Complement());
        return absl::OkStatus();
      case '[':
        return Class();
      case '\\': {
        CharSet set;
        RETURN_IF_ERROR(Escape(/*in_class=*/false, set, nullptr));
        PutSet(set);
        return absl::OkStatus();
      }
      case '*':
      case '+':
      case '?':
      case '{':
        return Count(c);
      default: {
        CharSet set;
        set.Add(c, c);
        PutSet(set);
        return absl::OkStatus();
      }
    }
  }

  absl::Status Open() {
    if (open_.size() > kMaxNested) {
      return absl::InvalidArgumentError(
          absl::StrCat("a pattern with groups over ", kMaxNested, " deep"));
    }
    if (Take('?') && !Take(':')) return Unknown("a group that begins with (?");
    open_.emplace_back();
    return absl::OkStatus();
  }

  absl::Status Close() {
    if (open_.size() == 1) return absl::InvalidArgumentError("a pattern whose ')' is not opened");
    EndAlternative();
    Piece piece = Either(std::move(open_.back().alternatives));
    open_.pop_back();
    Put(std::move(piece));
    return absl::OkStatus();
  }

  void EndAlternative() {
    Group& group = open_.back();
    const bool outermost = open_.size() == 1;
    Piece whole;
    if (outermost && !group.begins) Append(whole, Anything());
    if (group.has_atom) Append(group.before, group.atom);
    if (whole.text.empty()) {
      whole = std::move(group.before);
    } else {
      Append(whole, group.before);
      whole.repeated = -1;
    }
    if (outermost && !group.ends) {
      Append(whole, Anything());
      whole.repeated = -1;
    }
    group.alternatives.push_back(std::move(whole));
    steps_ += 2;
    group.before = {};
    group.atom = {};
    group.has_atom = group.begins = group.ends = false;
  }

  Piece Anything() {
    Piece any;
    any.steps = {
        {.next = 1, .other = 3}, {.set = SetOf(CharSet::All())}, {.next = -2, .other = -2}};
    any.text = CharSet::PlainInJson().Text() + "*";
    any.lengths = {0, kUnbounded};
    steps_ += any.steps.size();
    return any;
  }

  int32_t SetOf(CharSet set) {
    pattern_.sets_.push_back(std::move(set));
    return static_cast<int32_t>(pattern_.sets_.size() - 1);
  }

  void PutSet(const CharSet& set) {
    const CharSet plain = set.And(CharSet::PlainInJson());
    Piece piece;
    piece.repeated = SetOf(set);
    piece.steps = {{.set = piece.repeated}};
    piece.sayable = !plain.empty();
    if (piece.sayable) piece.text = plain.Text();
    piece.lengths = {1, 1};
    steps_ += 1;
    Put(std::move(piece));
  }

  void Put(Piece piece) {
    Group& group = open_.back();
    if (group.has_atom) Append(group.before, group.atom);
    group.atom = std::move(piece);
    group.has_atom = true;
  }

  absl::StatusOr<Lengths> Bounds() {
    const auto number = [this](uint32_t& value) {
      const size_t begin = at_;
      value = 0;
      while (Peek() >= '0' && Peek() <= '9') {
        // cannot wrap: it stays below 10 * kMaxCount + 10
        value = std::min(value * 10 + (Take() - '0'), kMaxCount + 1);
      }
      return at_ > begin;
    };
    Lengths count;
    if (!number(count.low)) return Unknown("{ that begins no count");
    count.high = count.low;
    if (Take(',') && !number(count.high)) count.high = kUnbounded;
    if (!Take('}')) return Unknown("{ that begins no count");
    const uint32_t most = count.high == kUnbounded ? count.low : count.high;
    if (most > kMaxCount) {
      return absl::InvalidArgumentError(absl::StrCat("a pattern that counts over ", kMaxCount));
    }
    if (count.low > count.high) {
      return absl::InvalidArgumentError("a pattern that counts down");
    }
    return count;
  }

  absl::Status Count(char32_t c) {
    Group& group = open_.back();
    if (!group.has_atom) return Unknown("a count of nothing");
    Lengths count = {c == '+' ? 1U : 0U, c == '?' ? 1U : kUnbounded};
    if (c == '{') {
      ASSIGN_OR_RETURN(count, Bounds());
    }
    Take('?');  // as few as there may be: what is matched is the same
    if (IsQuantifier(Peek())) return Unknown("a count of a count");
    steps_ -= group.atom.steps.size();
    ASSIGN_OR_RETURN(group.atom, Repeat(group.atom, count));
    steps_ += group.atom.steps.size();
    // It is in a group of its own for what comes next.
    return absl::OkStatus();
  }

  absl::StatusOr<char32_t> Hex(size_t digits) {
    char32_t value = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char32_t c = Take();
      if (c >= '0' && c <= '9') {
        value = value << 4 | (c - '0');
      } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
        value = value << 4 | ((c | 0x20) - 'a' + 10);
      } else {
        return Unknown("an escape that is cut short");
      }
    }
    return value;
  }

  // What follows a backslash. `single`, if asked for: the character that it is.
  absl::Status Escape(bool in_class, CharSet& set, char32_t* single) {
    const char32_t c = Take();
    char32_t one = c;
    switch (c) {
      case 'd':
        set.Add(CharSet::Digits());
        return absl::OkStatus();
      case 'D':
        set.Add(CharSet::Digits().Complement());
        return absl::OkStatus();
      case 'w':
        set.Add(CharSet::WordLetters());
        return absl::OkStatus();
      case 'W':
        set.Add(CharSet::WordLetters().Complement());
        return absl::OkStatus();
      case 's':
        set.Add(CharSet::Spaces());
        return absl::OkStatus();
      case 'S':
        set.Add(CharSet::Spaces().Complement());
        return absl::OkStatus();
      case 't':
        one = '\t';
        break;
      case 'n':
        one = '\n';
        break;
      case 'v':
        one = '\v';
        break;
      case 'f':
        one = '\f';
        break;
      case 'r':
        one = '\r';
        break;
      case 'x': {
        ASSIGN_OR_RETURN(one, Hex(2));
        break;
      }
      case 'u': {
        ASSIGN_OR_RETURN(one, Hex(4));
        if (one >= 0xD800 && one < 0xE000) return Unknown("half of a surrogate pair");
        break;
      }
      default:
        if (in_class && c == 'b') {
          one = '\b';
          break;
        }
        if (c < '!' || c > '~' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
            (c >= 'A' && c <= 'Z') || c == '_') {
          return Unknown(c >= '!' && c <= '~'
                             ? absl::StrCat("\\", std::string(1, static_cast<char>(c)))
                             : std::string("a backslash before such a character"));
        }
        break;
    }
    set.Add(one, one);
    if (single != nullptr) *single = one;
    return absl::OkStatus();
  }

  absl::Status Class() {
    const bool negative = Take('^');
    CharSet set;
    if (Peek() == ']') return Unknown("an empty class");
    while (!Take(']')) {
      if (Peek() == kEnd) return absl::InvalidArgumentError("a pattern whose '[' is not closed");
      char32_t low = kEnd;
      RETURN_IF_ERROR(ClassPart(set, low));
      const size_t dash = at_;
      if (!Take('-')) continue;
      if (Peek() == ']' || Peek() == kEnd) {
        at_ = dash;
        char32_t literal = 0;
        RETURN_IF_ERROR(ClassPart(set, literal));
        continue;
      }
      char32_t high = kEnd;
      RETURN_IF_ERROR(ClassPart(set, high));
      if (low == kEnd || high == kEnd || low > high) return Unknown("such a range in a class");
      set.Add(low, high);
    }
    PutSet(negative ? set.Complement() : set);
    return absl::OkStatus();
  }

  absl::Status ClassPart(CharSet& set, char32_t& single) {
    const char32_t c = Take();
    if (c == '\\') return Escape(/*in_class=*/true, set, &single);
    set.Add(c, c);
    single = c;
    return absl::OkStatus();
  }

  const std::string_view text_;
  size_t at_ = 0;
  std::vector<Group> open_;
  Pattern pattern_;
  size_t steps_ = 0;  // of all that has been read
};

absl::StatusOr<Pattern> Pattern::Parse(std::string_view pattern) {
  return PatternParser(pattern).Parse();
}

}  // namespace eta::schema
