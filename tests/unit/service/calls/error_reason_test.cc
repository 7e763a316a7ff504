// Every reason that the code gives is one that clients can look up, and every one that they can
// look up is given.
#include <filesystem>
#include <regex>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "eta/v1/errors.pb.h"
#include "gmock/gmock.h"
#include "tests/testing/base/temp_folder.h"

namespace eta {
namespace {

using ::testing::IsSupersetOf;

const std::string kPrefix = "ERROR_REASON_";  // of the enum; what is sent has none

// What `pattern` captures in the text.
std::set<std::string> Found(const std::string& text, const std::regex& pattern) {
  std::set<std::string> found;
  for (std::sregex_iterator i(text.begin(), text.end(), pattern), end; i != end; ++i) {
    found.insert((*i)[1]);
  }
  return found;
}

std::string Sources() {
  std::string sources;
  for (const char* folder : {"kernels", "engine", "calibration", "service"}) {
    const std::filesystem::path root = std::string(ETA_SOURCE_DIR) + "/" + folder;
    for (const auto& file : std::filesystem::recursive_directory_iterator(root)) {
      const std::string extension = file.path().extension();
      if (extension == ".cc" || extension == ".h") sources += ReadFile(file.path());
    }
  }
  return sources;
}

std::set<std::string> Declared() {
  std::set<std::string> reasons;
  const auto* const values = v1::ErrorReason_descriptor();
  for (int i = 0; i < values->value_count(); ++i) {
    const std::string& name = values->value(i)->name();
    EXPECT_EQ(name.rfind(kPrefix, 0), 0u) << name;
    if (values->value(i)->number() != 0) reasons.insert(name.substr(kPrefix.size()));
  }
  return reasons;
}

// Names of status codes and of variables of the environment look like reasons.
bool IsSomethingElse(const std::string& name) {
  if (name.rfind("ETA_", 0) == 0 || name.rfind("GRPC_", 0) == 0) return true;
  for (int code = 0; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
    if (name == absl::StatusCodeToString(static_cast<absl::StatusCode>(code))) return true;
  }
  return false;
}

TEST(ErrorReason, NamesWhatTheSourcesGive) {
  const std::string sources = Sources();
  // Wherever it stands: some are constants, or one of two.
  std::set<std::string> given = Found(sources, std::regex("\"([A-Z]+(?:_[A-Z]+)+)\""));
  given.merge(Found(sources, std::regex("reason = \"([A-Z_]+)\"")));
  EXPECT_GT(given.size(), 30u);
  for (const std::string& reason : given) {
    v1::ErrorReason value;
    EXPECT_TRUE(IsSomethingElse(reason) || v1::ErrorReason_Parse(kPrefix + reason, &value))
        << reason << " is not in errors.proto";
  }
  given.merge(Found(sources, std::regex("v1::ERROR_REASON_([A-Z]+(?:_[A-Z]+)*)")));
  EXPECT_THAT(given, IsSupersetOf(Declared())) << "a reason that nobody gives";
}

TEST(ErrorReason, IsInTheReadersTable) {
  const std::string readme = ReadFile(ETA_SOURCE_DIR "/proto/README.md");
  const size_t begin = readme.find("\n## Errors\n");
  ASSERT_NE(begin, std::string::npos);
  const std::string section = readme.substr(begin, readme.find("\n## ", begin + 1) - begin);
  std::set<std::string> listed;
  for (const std::string& cell : Found(section, std::regex("\n\\|[^|\n]*\\|([^|\n]*)\\|"))) {
    listed.merge(Found(cell, std::regex("([A-Z]+(?:_[A-Z]+)*)")));
  }
  EXPECT_EQ(listed, Declared());
}

}  // namespace
}  // namespace eta
