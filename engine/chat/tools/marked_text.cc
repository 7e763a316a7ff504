// lint: untrusted-input, fuzz-covered
#include "engine/chat/tools/marked_text.h"

#include <algorithm>

namespace eta {

void AppendMarked(const AnswerForm& form, std::string_view text, std::span<const TextMark> marks,
                  std::string& marked) {
  size_t done = 0;
  for (const TextMark& mark : marks) {
    const auto known = std::find_if(form.marks.begin(), form.marks.end(),
                                    [&](const auto& entry) { return entry.id == mark.id; });
    if (known == form.marks.end()) continue;
    marked.append(text.substr(done, mark.at - done));
    done = mark.at;
    marked += kMarkByte;
    marked += static_cast<char>(known - form.marks.begin());
  }
  marked.append(text.substr(done));
}

std::string PlainText(std::string_view marked) {
  std::string plain;
  plain.reserve(marked.size());
  for (size_t at = 0; at < marked.size(); ++at) {
    if (marked[at] == kMarkByte) {
      at += kMarkBytes - 1;
    } else {
      plain += marked[at];
    }
  }
  return plain;
}

size_t MatchMark(const AnswerForm& form, std::string_view marked, size_t at,
                 std::string_view mark) {
  if (at >= marked.size()) return kMore;
  if (marked[at] == kMarkByte) {
    const auto index = static_cast<unsigned char>(marked[at + 1]);
    return form.marks[index].text == mark ? kMarkBytes : 0;
  }
  const std::string_view rest = marked.substr(at, mark.size());
  if (mark.substr(0, rest.size()) != rest) return 0;
  return rest.size() == mark.size() ? mark.size() : kMore;
}

size_t FindMark(const AnswerForm& form, std::string_view marked, size_t from,
                std::string_view mark) {
  for (size_t at = from; at < marked.size(); ++at) {
    if (marked[at] != kMarkByte && marked[at] != mark.front()) continue;
    if (MatchMark(form, marked, at, mark) != 0) return at;
    if (marked[at] == kMarkByte) at += kMarkBytes - 1;
  }
  return marked.size();
}

}  // namespace eta
