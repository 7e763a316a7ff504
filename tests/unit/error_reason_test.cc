// Every reason that the code gives is one that clients can look up.
#include <filesystem>
#include <regex>
#include <set>
#include <string>

#include "eta/v1/errors.pb.h"
#include "gmock/gmock.h"
#include "tests/unit/temp_folder.h"

namespace eta {
namespace {

TEST(ErrorReason, NamesWhatTheSourcesGive) {
  const std::regex given("reason = \"([A-Z_]+)\"");
  std::set<std::string> reasons;
  for (const char* folder : {"kernels", "engine", "calibration", "service"}) {
    const std::filesystem::path root = std::string(ETA_SOURCE_DIR) + "/" + folder;
    for (const auto& file : std::filesystem::recursive_directory_iterator(root)) {
      const std::string extension = file.path().extension();
      if (extension != ".cc" && extension != ".h") continue;
      const std::string text = ReadFile(file.path());
      for (std::sregex_iterator i(text.begin(), text.end(), given), end; i != end; ++i) {
        reasons.insert((*i)[1]);
      }
    }
  }
  EXPECT_GT(reasons.size(), 30u);
  for (const std::string& reason : reasons) {
    v1::ErrorReason value;
    EXPECT_TRUE(v1::ErrorReason_Parse(reason, &value)) << reason << " is not in errors.proto";
  }
}

}  // namespace
}  // namespace eta
