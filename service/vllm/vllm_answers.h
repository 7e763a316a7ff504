// What vllm.grpc.engine's methods about the server answer.
#pragma once

#include <chrono>
#include <string>

#include "engine/front/engine.h"
#include "service/telemetry/telemetry_snapshot.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace eta {

::vllm::grpc::engine::GetModelInfoResponse VllmModelInfo(const EngineInfo& model,
                                                         const Limits& limits,
                                                         const std::string& name);

::vllm::grpc::engine::GetServerInfoResponse VllmServerInfo(const EngineInfo& model,
                                                           const EngineSnapshot& engine,
                                                           std::chrono::duration<double> uptime);

// One entry, whatever is asked for: to whoever asks the devices are one engine.
::vllm::grpc::engine::GetLoadsResponse VllmLoads(const EngineInfo& model,
                                                 const EngineSnapshot& engine,
                                                 const TelemetrySnapshot& counted,
                                                 std::chrono::system_clock::time_point now);

}  // namespace eta
