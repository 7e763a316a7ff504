#include "service/etactl/generate/chat_tools.h"

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "service/etactl/input.h"

namespace eta::ctl {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string TextIn(const OrderedJson& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// What stands in `function`, or the value itself.
const OrderedJson& FunctionOf(const OrderedJson& value) {
  const auto function = value.find("function");
  return function == value.end() ? value : *function;
}

absl::Status ReadTool(const OrderedJson& value, v1::Tool* tool) {
  if (!value.is_object()) return absl::InvalidArgumentError("not a JSON object");
  const std::string type = TextIn(value, "type");
  const bool is_function = !value.contains("type") || type == "function" || type == "object";
  const OrderedJson& function = FunctionOf(value);
  if (!is_function || !function.is_object()) {
    return absl::InvalidArgumentError("not a tool of the type function");
  }
  for (const auto& [key, field] : function.items()) {
    if (key == "name" && field.is_string()) {
      tool->set_name(field.get<std::string>());
    } else if (key == "description" && field.is_string()) {
      tool->set_description(field.get<std::string>());
    } else if (key == "parameters" && field.is_object()) {
      tool->set_parameters(field.dump());
    } else if (key == "strict" && field.is_boolean()) {
      tool->set_strict(field.get<bool>());
    } else if (!field.is_null() && !(key == "type" && &function == &value)) {
      return absl::InvalidArgumentError(
          absl::StrCat(key, " is no field of a tool, or not of its type"));
    }
  }
  if (tool->name().empty()) return absl::InvalidArgumentError("a tool has no name");
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadTools(const std::string& file, v1::Chat* chat) {
  ASSIGN_OR_RETURN(const std::string content, ReadAll(file));
  const OrderedJson list = OrderedJson::parse(content, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": not a JSON list of tools"));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const absl::Status read = ReadTool(list[i], chat->add_tools());
    if (read.ok()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": tool ", i + 1, ": ", std::string(read.message())));
  }
  return absl::OkStatus();
}

v1::ToolChoice ToolChoiceOf(const std::string& choice) {
  v1::ToolChoice made;
  if (choice == "auto") {
    made.set_mode(v1::TOOL_CHOICE_MODE_AUTO);
  } else if (choice == "none") {
    made.set_mode(v1::TOOL_CHOICE_MODE_NONE);
  } else if (choice == "required") {
    made.set_mode(v1::TOOL_CHOICE_MODE_REQUIRED);
  } else {
    made.set_name(choice);
  }
  return made;
}

absl::Status ReadCalls(const nlohmann::json& list, v1::ChatMessage* message) {
  const absl::Status bad = absl::InvalidArgumentError(
      "tool_calls is not a list of {\"id\", \"type\": \"function\", \"function\": {\"name\", "
      "\"arguments\"}}");
  if (!list.is_array()) return bad;
  for (const nlohmann::json& value : list) {
    if (!value.is_object() || value.value("type", nlohmann::json("function")) != "function") {
      return bad;
    }
    const auto function = value.find("function");
    if (function == value.end() || !function->is_object()) return bad;
    const auto name = function->find("name");
    const auto arguments = function->find("arguments");
    const auto id = value.find("id");
    if (name == function->end() || !name->is_string() || arguments == function->end()) return bad;
    v1::ToolCall& call = *message->add_tool_calls();
    call.set_name(name->get<std::string>());
    if (id != value.end() && !id->is_null()) {
      if (!id->is_string()) return bad;
      call.set_id(id->get<std::string>());
    }
    if (!arguments->is_string() && !arguments->is_object()) return bad;
    call.set_arguments(arguments->is_string() ? arguments->get<std::string>() : arguments->dump());
  }
  return absl::OkStatus();
}

nlohmann::ordered_json CallList(const v1::ChatMessage& message) {
  OrderedJson list = OrderedJson::array();
  for (const v1::ToolCall& call : message.tool_calls()) {
    OrderedJson value = OrderedJson::object();
    if (!call.id().empty()) value["id"] = call.id();
    value["type"] = "function";
    value["function"] = {{"name", call.name()}, {"arguments", call.arguments()}};
    list.push_back(std::move(value));
  }
  return list;
}

std::string CallLine(const v1::ToolCall& call) {
  return absl::StrCat("call ", call.id(), ": ", call.name(), " ", call.arguments());
}

}  // namespace eta::ctl
