// A text in the parts that RULER's tasks are made of.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace eta {

struct RulerText {
  // In the order of the text, with one space between words. What has no end is cut.
  std::vector<std::string> sentences;
  // Sentences of one document, from `begin` to before `end`.
  struct Paragraph {
    size_t begin = 0;
    size_t end = 0;
  };
  std::vector<Paragraph> paragraphs;
  // Different ones of five to ten Latin lower-case letters, ascending.
  std::vector<std::string> words;
};

RulerText MakeRulerText(std::span<const std::string> documents);

}  // namespace eta
