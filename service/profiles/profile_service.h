// The service of proto/eta/v1/profiles.proto. Holds no state; every call is a UnaryCall of its own.
// Methods take raw bytes, as EtaService's do.
#pragma once

#include <string_view>

#include "eta/v1/profiles.grpc.pb.h"
#include "service/calls/service_context.h"
#include "service/identity/caller.h"

namespace eta {

// The methods that take raw bytes.
using RawProfileService = v1::ProfileService::WithRawCallbackMethod_GetProfile<
    v1::ProfileService::WithRawCallbackMethod_ListProfiles<
        v1::ProfileService::WithRawCallbackMethod_ListProfileVersions<
            v1::ProfileService::WithRawCallbackMethod_SetProfileAlias<
                v1::ProfileService::WithRawCallbackMethod_PromoteProfile<
                    v1::ProfileService::WithRawCallbackMethod_DeleteProfileVersion<
                        v1::ProfileService::WithRawCallbackMethod_DeleteProfile<
                            v1::ProfileService::WithRawCallbackMethod_ImportProfile<
                                v1::ProfileService::WithRawCallbackMethod_ExportProfile<
                                    v1::ProfileService::Service>>>>>>>>>;

class ProfileService final : public RawProfileService {
 public:
  // Of a message that ImportProfile takes: a profile file and what stands beside it.
  static constexpr size_t kMaxImportBytes = size_t{5} << 20;

  // `service` must outlive every call.
  explicit ProfileService(const ServiceContext& service) : service_(service) {}

  grpc::ServerUnaryReactor* GetProfile(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListProfiles(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListProfileVersions(grpc::CallbackServerContext* context,
                                                const grpc::ByteBuffer* request,
                                                grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* SetProfileAlias(grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* PromoteProfile(grpc::CallbackServerContext* context,
                                           const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* DeleteProfileVersion(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* DeleteProfile(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ImportProfile(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ExportProfile(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;

 private:
  // Each fills of the call's record what it is about before it is tried: a change that fails may
  // have taken effect all the same.
  absl::StatusOr<v1::Profile> Get(const Tenant& tenant, const v1::GetProfileRequest& request,
                                  CallRecord& call) const;
  absl::StatusOr<v1::ListProfilesResponse> List(const Tenant& tenant,
                                                const v1::ListProfilesRequest& request,
                                                CallRecord& call) const;
  absl::StatusOr<v1::ListProfileVersionsResponse> ListVersions(
      const Tenant& tenant, const v1::ListProfileVersionsRequest& request, CallRecord& call) const;
  absl::StatusOr<v1::SetProfileAliasResponse> SetAlias(const Tenant& tenant,
                                                       const v1::SetProfileAliasRequest& request,
                                                       CallRecord& call) const;
  absl::StatusOr<v1::PromoteProfileResponse> Promote(const Tenant& tenant,
                                                     const v1::PromoteProfileRequest& request,
                                                     CallRecord& call) const;
  absl::StatusOr<v1::DeleteProfileVersionResponse> DeleteVersion(
      const Tenant& tenant, const v1::DeleteProfileVersionRequest& request, CallRecord& call) const;
  absl::StatusOr<v1::DeleteProfileResponse> Delete(const Tenant& tenant,
                                                   const v1::DeleteProfileRequest& request,
                                                   CallRecord& call) const;
  absl::StatusOr<v1::Profile> Import(const Tenant& tenant, const v1::ImportProfileRequest& request,
                                     CallRecord& call) const;
  absl::StatusOr<v1::ExportProfileResponse> Export(const Tenant& tenant,
                                                   const v1::ExportProfileRequest& request,
                                                   CallRecord& call) const;
  absl::StatusOr<ProfilePtr> Find(const Tenant& tenant, const std::string& reference,
                                  CallRecord& call) const;

  template <typename Request, typename Response>
  using Method = absl::StatusOr<Response> (ProfileService::*)(const Tenant&, const Request&,
                                                              CallRecord&) const;
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Start(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request, grpc::ByteBuffer* response,
                                  std::string_view name, Roles needed,
                                  Method<Request, Response> method);

  const ServiceContext& service_;
};

}  // namespace eta
