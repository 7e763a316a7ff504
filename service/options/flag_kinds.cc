#include "service/options/flag_kinds.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace eta {
namespace {

using std::chrono::milliseconds;

milliseconds ParseMilliseconds(const std::string& text) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < absl::ZeroDuration() ||
      duration > absl::Hours(24 * 365)) {
    throw CLI::ValidationError("must be a duration such as 500ms, 60s or 15m: " + text);
  }
  return absl::ToChronoMilliseconds(duration);
}

}  // namespace

void AddDuration(CLI::App& app, const std::string& name, milliseconds& value,
                 const std::string& help) {
  app.add_option_function<std::string>(
         name, [&value](const std::string& text) { value = ParseMilliseconds(text); }, help)
      ->type_name("DURATION")
      ->default_str(absl::FormatDuration(absl::FromChrono(value)));
}

void AddCountOrNone(CLI::App& app, const std::string& name, int& value, const std::string& help) {
  app.add_option(name, value, help)
      ->check(CLI::Range(0, std::numeric_limits<int>::max()))
      ->type_name("COUNT")
      ->capture_default_str();
}

void AddShare(CLI::App& app, const std::string& name, double& value, double most,
              const std::string& help, double least) {
  app.add_option(name, value, help)
      ->check([least, most](const std::string& text) -> std::string {
        double share = 0.0;  // a number, since CLI::Range lets NaN through
        if (absl::SimpleAtod(text, &share) && share >= least && share <= most) return "";
        return absl::StrCat("must be a number from ", least, " to ", most);
      })
      ->type_name("SHARE")
      ->capture_default_str();
}

}  // namespace eta
