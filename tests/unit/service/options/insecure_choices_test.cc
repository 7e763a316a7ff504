// What the operator gave up is said, each choice by its flag, and nothing else is.
#include "service/options/insecure_choices.h"

#include <functional>

#include "gmock/gmock.h"

namespace eta {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::vector<std::string> Said(const std::function<void(Flags&)>& choose, bool filtered = true) {
  Flags flags;
  flags.engine.backend.name = "cpu";
  choose(flags);
  std::vector<std::string> said;
  for (const InsecureChoice& choice : InsecureChoices(flags, filtered)) {
    EXPECT_NE(choice.why, "");
    said.push_back(choice.flag);
  }
  return said;
}

TEST(InsecureChoices, AreNoneByDefault) {
  EXPECT_THAT(Said([](Flags&) {}), IsEmpty());
}

TEST(InsecureChoices, OfWhoMayReachTheServer) {
  EXPECT_THAT(Said([](Flags& flags) {
                flags.server.listen = "0.0.0.0:1";
                flags.server.allow_unauthenticated_network = true;
                flags.server.allow_plaintext_network = true;
                flags.server.health_listen = "0.0.0.0:2";
                flags.server.metrics_listen = "0.0.0.0:3";
                flags.server.kv_events = {.publish = "tcp://*:4", .allow_network = true};
                flags.server.reflection = true;
              }),
              UnorderedElementsAre("--allow_unauthenticated_network", "--allow_plaintext_network",
                                   "--health_listen", "--metrics_listen",
                                   "--allow_network_kv_events", "--reflection"));
  const auto socket_of = [](int mode) {
    return Said([mode](Flags& flags) {
      flags.server.listen = "unix:/run/eta/s";
      flags.server.socket_mode = mode;
    });
  };
  EXPECT_THAT(socket_of(0660), IsEmpty()) << "a group is chosen by whoever fills it";
  EXPECT_THAT(socket_of(0666), ElementsAre("--socket_mode"));
}

TEST(InsecureChoices, OfWhoMayReadSpansOnTheirWay) {
  const auto to = [](const std::string& endpoint) {
    return Said([&endpoint](Flags& flags) { flags.server.otlp_endpoint = endpoint; });
  };
  EXPECT_THAT(to("http://collector:4317"), ElementsAre("--otlp_endpoint"));
  EXPECT_THAT(to("https://collector:4317"), IsEmpty());
  EXPECT_THAT(to("http://localhost:4317"), IsEmpty());
  EXPECT_THAT(to("http://127.0.0.1:4317"), IsEmpty());
}

TEST(InsecureChoices, OfWhoMayNameTenants) {
  const auto with = [](const std::string& identity) {
    return Said([&identity](Flags& flags) {
      flags.server.tenant_header = "x-tenant";
      flags.server.identity = identity;
    });
  };
  EXPECT_THAT(with(""), ElementsAre("--tenant_header"));
  EXPECT_THAT(with("identity.json"), IsEmpty()) << "then only its proxies may";
}

TEST(InsecureChoices, OfGateways) {
  EXPECT_THAT(Said([](Flags& flags) {
                flags.server.vllm_listen = {"127.0.0.1:1=m:full", "unix:/run/eta/gateway"};
              }),
              ElementsAre("--vllm_listen", "--vllm_listen"));
}

TEST(InsecureChoices, OfTheProcess) {
  EXPECT_THAT(
      Said([](Flags& flags) {
        flags.process.allow_core_dumps = true;
        flags.engine.allow_nonfinite_weights = true;
        flags.shows_password = true;
      }),
      UnorderedElementsAre("--allow_core_dumps", "--allow_nonfinite_weights", "--profile_store"));
}

TEST(InsecureChoices, AProcessWithoutTheFilter) {
  const auto with = [](const char* backend, SystemCallFilter asked, bool filtered) {
    return Said(
        [=](Flags& flags) {
          flags.engine.backend.name = backend;
          flags.process.system_call_filter = asked;
        },
        filtered);
  };
  EXPECT_THAT(with("cpu", SystemCallFilter::kOff, false), ElementsAre("--system_call_filter"));
  EXPECT_THAT(with("cuda", SystemCallFilter::kOff, false), ElementsAre("--system_call_filter"));
  EXPECT_THAT(with("cuda", SystemCallFilter::kAuto, false), ElementsAre("--system_call_filter"));
  EXPECT_THAT(with("cuda", SystemCallFilter::kOn, true), IsEmpty());
  if (!FiltersByDefault(false)) return;  // sanitizers fork and trace
  EXPECT_THAT(with("cpu", SystemCallFilter::kAuto, false), ElementsAre("--system_call_filter"));
}

}  // namespace
}  // namespace eta
