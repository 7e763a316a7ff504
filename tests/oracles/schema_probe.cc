// What is made of JSON schemas and of answers, for json_schema.py. Reads a line for each schema,
// {"schema": TEXT, "answers": [TEXT, ...]}, and writes {"error": TEXT} or
// {"enforceable": TEXT, "valid": [whether each answer is]}; in a build with the library of formats
// also "led": [whether the schema as it is compiled leads to each answer].
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/format/library/grammar_library.h"
#include "engine/format/schema/answer_check.h"
#include "engine/format/schema/schema_check.h"
#include "nlohmann/json.hpp"

namespace {

using Json = nlohmann::json;

// A token for each byte, and one that ends an answer.
std::unique_ptr<eta::GrammarLibrary> BytesLibrary() {
  if (!eta::HasGrammarLibrary()) return nullptr;
  eta::FormatVocabulary bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.tokens.emplace_back(1, static_cast<char>(byte));
  bytes.tokens.emplace_back();
  bytes.size = static_cast<int32_t>(bytes.tokens.size());
  bytes.special = bytes.ends = {bytes.size - 1};
  return eta::MakeGrammarLibrary(bytes).value();
}

bool LeadsTo(const eta::CompiledFormat& format, const std::string& answer) {
  const auto guide = format.NewGuide(/*in_reasoning=*/false);
  for (const char byte : answer) {
    if (!guide->Accept(static_cast<unsigned char>(byte))) return false;
  }
  return guide->Complete();
}

Json Led(const eta::GrammarLibrary& library, const std::string& schema, const Json& answers) {
  const eta::AnswerFormat format = {.kind = eta::AnswerFormatKind::kJsonSchema, .source = schema};
  const auto compiled = library.Read(format, library.Compile(format).value()).value();
  Json led = Json::array();
  for (const Json& answer : answers) led.push_back(LeadsTo(*compiled, answer.get<std::string>()));
  return led;
}

Json Answered(const eta::GrammarLibrary* library, const Json& asked) {
  const auto schema = asked.at("schema").get<std::string>();
  const auto enforceable = eta::EnforceableSchema(schema);
  if (!enforceable.ok()) {
    const absl::Status& status = enforceable.status();
    return {{"error", absl::StrCat(std::string(status.message()), ": ",
                                   eta::GetErrorDetail(status).unlogged)}};
  }
  Json valid = Json::array();
  for (const Json& answer : asked.at("answers")) {
    const absl::Status status = eta::CheckAnswer(schema, answer.get<std::string>());
    valid.push_back(status.ok());
  }
  Json said = {{"enforceable", *enforceable}, {"valid", std::move(valid)}};
  if (library != nullptr) said["led"] = Led(*library, schema, asked.at("answers"));
  return said;
}

}  // namespace

int main() {
  const auto library = BytesLibrary();
  std::string line;
  while (std::getline(std::cin, line)) {
    std::cout << Answered(library.get(), Json::parse(line)).dump() << "\n";
  }
  return 0;
}
