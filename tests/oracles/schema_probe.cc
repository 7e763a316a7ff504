// What is made of JSON schemas and of answers, for json_schema.py. Reads a line for each schema,
// {"schema": TEXT, "answers": [TEXT, ...]}, and writes {"error": TEXT} or
// {"enforceable": TEXT, "valid": [whether each answer is]}.
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/format/schema/answer_check.h"
#include "engine/format/schema/schema_check.h"
#include "nlohmann/json.hpp"

namespace {

using Json = nlohmann::json;

Json Answered(const Json& asked) {
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
  return {{"enforceable", *enforceable}, {"valid", std::move(valid)}};
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::cout << Answered(Json::parse(line)).dump() << "\n";
  }
  return 0;
}
