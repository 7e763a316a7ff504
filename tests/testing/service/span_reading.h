// Spans as a collector gets them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.pb.h"

namespace eta::testing {

namespace otlp = opentelemetry::proto;

// Attributes by key, each value as a text: of a list its values, in brackets.
template <typename Owner>
std::map<std::string, std::string> AttributesOf(const Owner& owner) {
  const auto text = [](const otlp::common::v1::AnyValue& value) {
    if (value.has_int_value()) return absl::StrCat(value.int_value());
    if (value.has_double_value()) return absl::StrCat(value.double_value());
    return value.string_value();
  };
  std::map<std::string, std::string> attributes;
  for (const auto& attribute : owner.attributes()) {
    std::string& value = attributes[attribute.key()];
    value = text(attribute.value());
    for (const auto& item : attribute.value().array_value().values()) {
      absl::StrAppend(&value, "[", text(item), "]");
    }
  }
  return attributes;
}

inline std::string Hex(const std::string& bytes) {
  return absl::BytesToHexString(bytes);
}

inline std::vector<otlp::trace::v1::Span> SpansOf(
    const otlp::collector::trace::v1::ExportTraceServiceRequest& batch) {
  std::vector<otlp::trace::v1::Span> spans;
  for (const auto& resource : batch.resource_spans()) {
    for (const auto& scope : resource.scope_spans()) {
      spans.insert(spans.end(), scope.spans().begin(), scope.spans().end());
    }
  }
  return spans;
}

}  // namespace eta::testing
