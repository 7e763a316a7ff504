#include "service/etactl/generate/generate.h"

#include <cstdio>
#include <string>

#include "service/etactl/connection.h"
#include "service/etactl/error.h"
#include "service/etactl/generate/answer_call.h"

namespace eta::ctl {

int RunGenerate(const ServerFlags& server, const GenerateFlags& flags) {
  absl::StatusOr<v1::GenerateRequest> request = MakeGenerateRequest(flags);
  if (!request.ok()) {
    std::fprintf(stderr, "etactl: %s\n", std::string(request.status().message()).c_str());
    return kUsage;
  }
  CancelOnInterrupt interrupt;
  const auto stub = v1::EtaService::NewStub(Connect(server));
  AnswerDisplay display(flags);
  return ReportEnd(AwaitAnswer(*stub, *request, flags.deadline_seconds, interrupt, display),
                   flags.json);
}

}  // namespace eta::ctl
