#include "engine/format/helper/byte_text.h"

#include <vector>

namespace eta {
namespace {

void Write(const std::vector<std::string>& texts, ByteWriter& out) {
  out.Number(static_cast<uint32_t>(texts.size()));
  for (const std::string& text : texts) out.Text(text);
}

void Write(const std::vector<int32_t>& ids, ByteWriter& out) {
  out.Number(static_cast<uint32_t>(ids.size()));
  for (const int32_t id : ids) out.Number(static_cast<uint32_t>(id));
}

std::vector<std::string> ReadTexts(ByteReader& in) {
  std::vector<std::string> texts;
  for (uint32_t left = in.Number(); left > 0 && in.ok(); --left) texts.push_back(in.Text());
  return texts;
}

std::vector<int32_t> ReadIds(ByteReader& in) {
  std::vector<int32_t> ids;
  for (uint32_t left = in.Number(); left > 0 && in.ok(); --left) {
    ids.push_back(static_cast<int32_t>(in.Number()));
  }
  return ids;
}

}  // namespace

std::string BytesOf(const FormatVocabulary& vocabulary) {
  ByteWriter out;
  out.Number(static_cast<uint32_t>(vocabulary.size));
  Write(vocabulary.tokens, out);
  Write(vocabulary.special, out);
  Write(vocabulary.ends, out);
  return out.Release();
}

std::string BytesOf(const AnswerFormat& format) {
  ByteWriter out;
  out.Number(static_cast<uint32_t>(format.kind));
  out.Text(format.source);
  Write(format.choices, out);
  out.Text(format.reasoning_begin);
  out.Text(format.reasoning_end);
  out.Number(format.of_tools ? 1 : 0);
  return out.Release();
}

std::optional<FormatVocabulary> ReadVocabulary(std::string_view bytes) {
  ByteReader in(bytes);
  FormatVocabulary vocabulary;
  vocabulary.size = static_cast<int32_t>(in.Number());
  vocabulary.tokens = ReadTexts(in);
  vocabulary.special = ReadIds(in);
  vocabulary.ends = ReadIds(in);
  return in.AtEnd() ? std::optional(std::move(vocabulary)) : std::nullopt;
}

std::optional<AnswerFormat> ReadFormat(std::string_view bytes) {
  ByteReader in(bytes);
  AnswerFormat format;
  const uint32_t kind = in.Number();
  format.source = in.Text();
  format.choices = ReadTexts(in);
  format.reasoning_begin = in.Text();
  format.reasoning_end = in.Text();
  format.of_tools = in.Number() != 0;
  if (!in.AtEnd() || kind > static_cast<uint32_t>(AnswerFormatKind::kStructuralTag)) {
    return std::nullopt;
  }
  format.kind = static_cast<AnswerFormatKind>(kind);
  return format;
}

}  // namespace eta
