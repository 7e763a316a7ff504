#include "engine/format/schema/patterns/string_formats.h"

#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace eta::schema {
namespace {

using Formats = std::map<std::string, StringFormat, std::less<>>;

// Years have four digits and begin with 1 or 2; leap seconds are not written.
constexpr char kDate[] =
    R"(([12]\d{3}-(0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|[12]\d{3}-(0[469]|11)-(0[1-9]|[12]\d|30)|)"
    R"([12]\d{3}-02-(0[1-9]|1\d|2[0-8])|)"
    R"(([12]\d(0[48]|[2468][048]|[13579][26])|(1[26]|2[048])00)-02-29))";
constexpr char kTime[] =
    R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))";
// Of any length: the library takes seconds for each count of dozens.
constexpr char kLabel[] = "[A-Za-z0-9]+(-+[A-Za-z0-9]+)*";
constexpr char kByte[] = R"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
constexpr char kDuration[] =
    R"(P((\d+D|\d+M(\d+D)?|\d+Y(\d+M(\d+D)?)?)(T(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S))?|)"
    R"(T(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S)|\d+W))";
constexpr char kUuid[] =
    R"([0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12})";

// Forms with at most one gap, and without an IPv4 address in them.
std::string Ipv6() {
  const std::string group = "[0-9A-Fa-f]{1,4}";
  std::string forms = "(" + group + ":){7}" + group;
  for (int before = 0; before <= 7; ++before) {
    const int after = 7 - before;
    absl::StrAppend(&forms, "|");
    if (before == 0) absl::StrAppend(&forms, ":");
    if (before > 0) absl::StrAppend(&forms, "(", group, ":){", before, "}");
    absl::StrAppend(&forms, ":");
    if (after > 0) absl::StrAppend(&forms, "(", group, "(:", group, "){0,", after - 1, "})?");
  }
  return forms;
}

std::string Uri() {
  const std::string plain = R"(([\w.~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2}))";
  const std::string path = "(/" + plain + "*)*";
  const std::string authority = R"(//[A-Za-z0-9]+([.-][A-Za-z0-9]+)*(:\d{1,4})?)";
  const std::string more = R"(([\w.~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)";
  return R"([A-Za-z][A-Za-z0-9+.-]*:()" + authority + path + "|" + plain + "+" + path + R"()(\?)" +
         more + ")?(#" + more + ")?";
}

void Put(Formats& formats, const std::string& name, const std::string& expression) {
  // Kept as long as the process: nodes of schemas point at it.
  auto pattern = Pattern::Parse("^(" + expression + ")$");
  formats[name] = {.pattern = pattern.ok() ? new Pattern(*std::move(pattern)) : nullptr,
                   .standard = true};
}

Formats AllFormats() {
  Formats formats;
  const std::string label = kLabel;
  const std::string byte = kByte;
  Put(formats, "date", kDate);
  Put(formats, "time", kTime);
  Put(formats, "date-time", std::string(kDate) + "T" + kTime);
  Put(formats, "duration", kDuration);
  Put(formats, "email", R"([\w%+-]+(\.[\w%+-]+)*@()" + label + R"(\.)+[A-Za-z]{2,24})");
  Put(formats, "hostname", label + R"((\.)" + label + ")*");
  Put(formats, "ipv4", "(" + byte + R"(\.){3})" + byte);
  Put(formats, "ipv6", Ipv6());
  Put(formats, "uri", Uri());
  Put(formats, "uuid", kUuid);
  for (const char* name : {"idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer",
                           "regex", "relative-json-pointer", "uri-reference", "uri-template"}) {
    formats[name] = {.pattern = nullptr, .standard = true};
  }
  return formats;
}

}  // namespace

StringFormat FindFormat(std::string_view name) {
  static const auto* const kFormats = new Formats(AllFormats());
  const auto found = kFormats->find(name);
  return found == kFormats->end() ? StringFormat() : found->second;
}

}  // namespace eta::schema
