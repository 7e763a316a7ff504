// The service of proto/vllm/grpc/engine/vllm_engine.proto on one listener. Every call is a reactor
// of its own, and takes raw bytes, as EtaService's. Methods that are not here, and those that the
// base has only, are answered UNIMPLEMENTED at once: gateways find out by that what they speak to.
//
// Abort, and what asks how the server is, are taken in every state of it.
#pragma once

#include "service/calls/service_context.h"
#include "service/calls/unary_call.h"
#include "service/vllm/tokenizer_call.h"
#include "service/vllm/vllm_generate.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace eta {

class VllmService final
    : public vllm_pb::VllmEngine::WithRawCallbackMethod_Generate<
          vllm_pb::VllmEngine::WithRawCallbackMethod_Embed<
              vllm_pb::VllmEngine::WithRawCallbackMethod_HealthCheck<
                  vllm_pb::VllmEngine::WithRawCallbackMethod_Abort<
                      vllm_pb::VllmEngine::WithRawCallbackMethod_GetModelInfo<
                          vllm_pb::VllmEngine::WithRawCallbackMethod_GetServerInfo<
                              vllm_pb::VllmEngine::WithRawCallbackMethod_GetLoads<
                                  vllm_pb::VllmEngine::WithRawCallbackMethod_GetTokenizer<
                                      vllm_pb::VllmEngine::WithRawCallbackMethod_SubscribeKvEvents<
                                          vllm_pb::VllmEngine::WithRawCallbackMethod_FlushCache<
                                              vllm_pb::VllmEngine::
                                                  WithRawCallbackMethod_StartProfile<
                                                      vllm_pb::VllmEngine::
                                                          WithRawCallbackMethod_StopProfile<
                                                              vllm_pb::VllmEngine::
                                                                  Service>>>>>>>>>>>> {
 public:
  // `service` must outlive every call. `model_name`: as it is called here.
  VllmService(const ServiceContext& service, const std::string& model_name,
              const AttentionName& attention);

  // Its tokenizer's archive, made on the caller's thread; once, before any call.
  void OfferTokenizer();

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* message) override;
  // Asks for no credential and takes no lock.
  grpc::ServerUnaryReactor* HealthCheck(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetLoads(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* FlushCache(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GetTokenizer(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* message) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* SubscribeKvEvents(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* message) override;

 private:
  // Of a method that any caller here may ask, in every state of the server.
  UnaryMethod About(std::string_view name) const;

  const ServiceContext& service_;
  NamedRequests requests_;
  const VllmContext vllm_;
  TokenizerOffer tokenizer_;
  const Clock::time_point began_ = Clock::now();
};

}  // namespace eta
