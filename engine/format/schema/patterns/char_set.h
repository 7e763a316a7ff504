// Sets of characters, as the classes of regular expressions name them.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace eta::schema {

class CharSet {
 public:
  CharSet() = default;  // empty

  static CharSet All();
  static CharSet Digits();       // \d
  static CharSet WordLetters();  // \w
  static CharSet Spaces();       // \s of ECMA-262: white space and line ends of Unicode
  static CharSet LineEnds();     // what . does not match
  // What a JSON string may hold as it is: all but control characters, quotes and backslashes.
  static CharSet PlainInJson();

  void Add(char32_t from, char32_t to);
  void Add(const CharSet& other);
  CharSet Complement() const;
  CharSet And(const CharSet& other) const;

  bool empty() const { return ranges_.empty(); }
  bool Contains(char32_t character) const;
  // As a class of a regular expression, in ASCII; without halves of surrogate pairs.
  std::string Text() const;

 private:
  std::vector<std::pair<char32_t, char32_t>> ranges_;  // ascending, apart from each other
};

}  // namespace eta::schema
