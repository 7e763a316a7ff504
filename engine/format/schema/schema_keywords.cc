// lint: untrusted-input, fuzz-covered
#include "engine/format/schema/schema_keywords.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace eta::schema {
namespace {

constexpr std::string_view kAnnotations[] = {
    "$comment",    "contentEncoding", "contentMediaType", "default",  "deprecated",
    "description", "discriminator",   "example",          "examples", "externalDocs",
    "readOnly",    "title",           "writeOnly",        "xml"};

constexpr std::string_view kNotEnforced[] = {"$anchor",
                                             "$dynamicAnchor",
                                             "$dynamicRef",
                                             "$recursiveAnchor",
                                             "$recursiveRef",
                                             "$vocabulary",
                                             "additionalItems",
                                             "contains",
                                             "contentSchema",
                                             "dependencies",
                                             "dependentRequired",
                                             "dependentSchemas",
                                             "disallow",
                                             "divisibleBy",
                                             "else",
                                             "extends",
                                             "if",
                                             "maxContains",
                                             "minContains",
                                             "not",
                                             "nullable",
                                             "then"};

constexpr std::pair<std::string_view, Types> kTypes[] = {
    {"null", kNullType},     {"boolean", kBooleanType}, {"integer", kIntegerType},
    {"number", kNumberType}, {"string", kStringType},   {"array", kArrayType},
    {"object", kObjectType}};

}  // namespace

bool IsAnnotation(std::string_view keyword) {
  return keyword.starts_with("x-") || std::find(std::begin(kAnnotations), std::end(kAnnotations),
                                                keyword) != std::end(kAnnotations);
}

bool IsNotEnforced(std::string_view keyword) {
  return std::find(std::begin(kNotEnforced), std::end(kNotEnforced), keyword) !=
         std::end(kNotEnforced);
}

Types TypeNamed(std::string_view name) {
  for (const auto& [type, bit] : kTypes) {
    if (type == name) return bit;
  }
  return 0;
}

}  // namespace eta::schema
