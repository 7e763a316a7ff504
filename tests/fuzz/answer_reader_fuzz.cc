// FLAGS CUTS NUL TEXT: an answer, cut anywhere, reads as it does whole. Its text and reasoning are
// stretches of it, in order; what is neither a call nor a mark stands in one of them; calls may be
// sent back. A byte 01, 02 ... of the text is a special token of the form's. Messages of answers
// with channels have line ends between them that the answer has not.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/chat/tools/answer_reader.h"

namespace {

void Check(bool holds) {
  if (!holds) std::abort();
}

struct Reading {
  std::string text;
  std::string reasoning;
  std::vector<eta::CallDelta> calls;  // each whole
  std::vector<eta::ToolCall> kept;

  void Add(eta::AnswerPart part) {
    text += part.text;
    reasoning += part.reasoning;
    for (eta::CallDelta& delta : part.calls) {
      if (calls.empty() || delta.index > calls.back().index) {
        Check(!delta.id.empty() && !delta.name.empty());
        calls.push_back(std::move(delta));
        continue;
      }
      eta::CallDelta& call = calls[static_cast<size_t>(delta.index)];
      Check(delta.id.empty() && delta.name.empty() && !call.withdrawn);
      call.arguments += delta.arguments;
      call.withdrawn = delta.withdrawn;
    }
  }
  bool operator==(const Reading&) const = default;
};

constexpr const char* kMarks[] = {eta::kTagBegin,     eta::kTagEnd,    eta::kPythonTag,
                                  eta::kMistralCalls, eta::kMistralId, eta::kMistralArguments,
                                  "<think>",          "</think>"};
constexpr int32_t kNumMarks = 8;
constexpr const char* kChannelMarks[kNumMarks] = {
    eta::kMessageStart, eta::kMessageChannel, eta::kMessageText,   eta::kMessageConstrain,
    eta::kMessageEnd,   eta::kMessageCall,    eta::kMessageReturn, "<|other|>"};

eta::AnswerReader::Options OptionsOf(uint8_t flags) {
  eta::AnswerReader::Options options;
  options.form.calls = static_cast<eta::CallSyntax>(flags & 3);
  if ((flags & 4) != 0) {
    options.form.reasoning_begin = "<think>";
    options.form.reasoning_end = "</think>";
    options.in_reasoning = (flags & 8) != 0;
  }
  options.form.channels = (flags & 64) != 0;
  if (options.form.channels) options.form.calls = eta::CallSyntax::kChannel;
  options.tell_reasoning = (flags & 16) != 0;
  if ((flags & 32) != 0) options.tools = {"f", "get.weather"};
  const auto& marks = options.form.channels ? kChannelMarks : kMarks;
  for (int32_t id = 0; id < kNumMarks; ++id) options.form.marks.push_back({id, marks[id]});
  return options;
}

// Pushes bytes [begin, end) of the input.
void Push(std::string_view input, size_t begin, size_t end, eta::AnswerReader& reader,
          Reading& reading) {
  std::string text;
  std::vector<eta::TextMark> marks;
  for (const char c : input.substr(begin, end - begin)) {
    if (c >= 1 && c <= kNumMarks) {
      marks.push_back({.at = text.size(), .id = c - 1});
    } else {
      text += c;
    }
  }
  reading.Add(reader.Push(text, marks));
}

Reading ReadCut(const eta::AnswerReader::Options& options, std::string_view input,
                std::string_view cuts) {
  eta::AnswerReader reader(options);
  Reading reading;
  size_t begin = 0;
  for (size_t i = 0; begin < input.size(); ++i) {
    const size_t size =
        cuts.empty() ? input.size() : 1 + static_cast<uint8_t>(cuts[i % cuts.size()]) % 16;
    const size_t end = std::min(input.size(), begin + size);
    Push(input, begin, end, reader, reading);
    begin = end;
  }
  reading.Add(reader.Finish());
  reading.kept = reader.calls();
  return reading;
}

bool IsSpace(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

std::string WithoutLineEnds(std::string text) {
  std::erase(text, '\n');
  return text;
}

std::string WithoutSpace(std::string text) {
  std::erase_if(text, IsSpace);
  return text;
}

bool IsSubsequence(std::string_view part, std::string_view whole) {
  size_t at = 0;
  for (const char c : whole) {
    if (at < part.size() && part[at] == c) ++at;
  }
  return at == part.size();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const eta::AnswerReader::Options options = OptionsOf(data[0]);
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string_view cuts = rest.substr(0, rest.find('\0'));
  rest.remove_prefix(std::min(rest.size(), cuts.size() + 1));
  // Bytes are characters: what no UTF-8 has comes from no tokenizer.
  std::string input(rest);
  std::erase_if(input, [](char c) { return static_cast<unsigned char>(c) >= 0x80; });

  const Reading whole = ReadCut(options, input, "");
  Check(whole == ReadCut(options, input, std::string_view("\0", 1)));
  Check(whole == ReadCut(options, input, cuts));

  std::string plain = input;
  std::erase_if(plain, [](char c) { return c >= 1 && c <= kNumMarks; });
  const std::string among = options.form.channels ? WithoutLineEnds(plain) : plain;
  for (const std::string& part : {whole.text, whole.reasoning}) {
    Check(IsSubsequence(options.form.channels ? WithoutLineEnds(part) : part, among));
  }
  std::vector<eta::ToolCall> kept;
  for (const eta::CallDelta& call : whole.calls) {
    Check(std::ranges::find(options.tools, call.name) != options.tools.end());
    if (call.withdrawn) continue;
    Check(eta::AreArguments(call.arguments));
    kept.push_back({.id = call.id, .name = call.name, .arguments_json = call.arguments});
  }
  Check(kept == whole.kept);
  if (kept.empty() && whole.reasoning.empty() && !options.form.channels) {
    // An empty stretch of reasoning leaves its marks out.
    std::string text = WithoutSpace(whole.text);
    const std::string all = WithoutSpace(plain);
    const bool may_reason = options.tell_reasoning && !options.form.reasoning_begin.empty();
    if (may_reason) {
      Check(all.size() - text.size() <= std::string_view("<think></think>").size());
      Check(all.ends_with(text) || options.in_reasoning || text.empty());
    } else {
      Check(whole.text == plain);
    }
  }
  return 0;
}
