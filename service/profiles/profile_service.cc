#include "service/profiles/profile_service.h"

#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "calibration/profiles/profile_json.h"
#include "engine/base/error.h"
#include "engine/base/out_of_memory.h"
#include "engine/base/status_macros.h"
#include "kernels/system/failpoint.h"
#include "service/calls/unary_call.h"
#include "service/profiles/convert_profile.h"
#include "service/profiles/profile_cache.h"
#include "service/wire/payload_digest.h"
#include "service/wire/store_status.h"

namespace eta {
namespace {

constexpr Roles kReaders = {Role::kGenerate, Role::kCalibrate};
constexpr Roles kWriters = {Role::kCalibrate};

// What a method's optional number asks for.
template <typename Request>
std::optional<int64_t> ExpectedVersion(const Request& request) {
  if (!request.has_expected_version()) return std::nullopt;
  return request.expected_version();
}

template <typename Request>
ProfilePage PageOf(const Request& request) {
  return {.size = request.page_size(), .token = request.page_token()};
}

// An error in a file is one of the field that carries the file.
absl::Status InFile(const absl::Status& status) {
  ErrorDetail detail = GetErrorDetail(status);
  if (detail.reason != "INVALID_FIELD") return status;
  detail.field = detail.field.empty() ? "json" : "json." + detail.field;
  return MakeError(status.code(), "json: " + std::string(status.message()), std::move(detail));
}

}  // namespace

absl::StatusOr<ProfilePtr> ProfileService::Find(const Tenant& tenant, const std::string& reference,
                                                CallRecord& call) const {
  ASSIGN_OR_RETURN(const auto parsed, ParseProfileReference("profile", reference));
  call.profile = parsed.name;
  auto record = service_.store->Get(tenant, parsed.name, parsed.selector);
  if (!record.ok()) return NamingProfile(record.status(), reference);
  call.profile_version = (*record)->version;
  return record;
}

absl::StatusOr<v1::Profile> ProfileService::Get(const Tenant& tenant,
                                                const v1::GetProfileRequest& request,
                                                CallRecord& call) const {
  ASSIGN_OR_RETURN(const auto record, Find(tenant, request.profile(), call));
  return ToMessage(*record);
}

absl::StatusOr<v1::ListProfilesResponse> ProfileService::List(
    const Tenant& tenant, const v1::ListProfilesRequest& request, CallRecord& /*call*/) const {
  ASSIGN_OR_RETURN(const auto list, service_.store->List(tenant, PageOf(request)));
  v1::ListProfilesResponse response;
  for (const ProfileSummary& summary : list.profiles) {
    *response.add_profiles() = ToMessage(summary);
  }
  response.set_next_page_token(list.next_token);
  return response;
}

absl::StatusOr<v1::ListProfileVersionsResponse> ProfileService::ListVersions(
    const Tenant& tenant, const v1::ListProfileVersionsRequest& request, CallRecord& call) const {
  call.profile = request.name();
  const auto list = service_.store->ListVersions(tenant, request.name(), PageOf(request));
  if (!list.ok()) return NamingProfile(list.status(), request.name());
  ASSIGN_OR_RETURN(const auto aliases, service_.store->ListAliases(tenant, request.name()));
  v1::ListProfileVersionsResponse response;
  for (const ProfileSummary& summary : list->profiles) {
    v1::ProfileSummary& version = *response.add_versions();
    version = ToMessage(summary);
    for (const ProfileAlias& alias : aliases) {
      if (alias.version == summary.version) version.add_aliases(alias.alias);
    }
  }
  response.set_next_page_token(list->next_token);
  return response;
}

absl::StatusOr<v1::SetProfileAliasResponse> ProfileService::SetAlias(
    const Tenant& tenant, const v1::SetProfileAliasRequest& request, CallRecord& call) const {
  call.profile = request.name();
  call.profile_alias = request.alias();
  call.profile_version = request.version();
  if (!request.has_version()) return InvalidField("version", "must be set; 0 removes the alias");
  const absl::Status status =
      service_.store->SetAlias(tenant, {.name = request.name(),
                                        .alias = request.alias(),
                                        .version = request.version(),
                                        .expected_version = ExpectedVersion(request)});
  if (!status.ok()) return NamingProfile(status, request.name());
  service_.profiles->Forget(tenant, request.name());
  return v1::SetProfileAliasResponse();
}

absl::StatusOr<v1::PromoteProfileResponse> ProfileService::Promote(
    const Tenant& tenant, const v1::PromoteProfileRequest& request, CallRecord& call) const {
  call.profile = request.name();
  call.profile_version = request.version();
  const absl::Status status =
      service_.store->Promote(tenant, {.name = request.name(),
                                       .version = request.version(),
                                       .expected_version = ExpectedVersion(request)});
  if (!status.ok()) return NamingProfile(status, request.name());
  service_.profiles->Forget(tenant, request.name());
  return v1::PromoteProfileResponse();
}

absl::StatusOr<v1::DeleteProfileVersionResponse> ProfileService::DeleteVersion(
    const Tenant& tenant, const v1::DeleteProfileVersionRequest& request, CallRecord& call) const {
  call.profile = request.name();
  call.profile_version = request.version();
  const absl::Status status =
      service_.store->DeleteVersion(tenant, request.name(), request.version());
  if (!status.ok()) return NamingProfile(status, request.name());
  service_.profiles->Forget(tenant, request.name());
  return v1::DeleteProfileVersionResponse();
}

absl::StatusOr<v1::DeleteProfileResponse> ProfileService::Delete(
    const Tenant& tenant, const v1::DeleteProfileRequest& request, CallRecord& call) const {
  call.profile = request.name();
  call.profile_version = request.expected_version();
  const absl::Status status =
      service_.store->Delete(tenant, request.name(), ExpectedVersion(request));
  if (!status.ok()) return NamingProfile(status, request.name());
  service_.profiles->Forget(tenant, request.name());
  return v1::DeleteProfileResponse();
}

absl::StatusOr<v1::Profile> ProfileService::Import(const Tenant& tenant,
                                                   const v1::ImportProfileRequest& request,
                                                   CallRecord& call) const {
  call.profile = request.name();
  call.request_id = request.request_id();
  auto file = ProfileFromJson(request.json());
  if (!file.ok()) return InFile(file.status());
  PutProfile put{.name = request.has_name() ? request.name() : file->name,
                 .content = std::move(file->content),
                 .expected_version = ExpectedVersion(request),
                 .stage = request.stage()};
  call.profile = put.name;
  if (!request.request_id().empty()) {
    ASSIGN_OR_RETURN(auto digest, PayloadDigest("ImportProfile", request));
    put.request_id = request.request_id();
    put.payload_digest = std::move(digest);
  }
  const auto stored = service_.store->Put(tenant, put);
  if (!stored.ok()) return NamingProfile(stored.status(), put.name);
  call.profile_version = (*stored)->version;
  const std::string& model = service_.engine.info().model_fingerprint;
  if (IsNewestAtOnce(**stored, model)) service_.profiles->Add(**stored);
  return ToMessage(**stored);
}

absl::StatusOr<v1::ExportProfileResponse> ProfileService::Export(
    const Tenant& tenant, const v1::ExportProfileRequest& request, CallRecord& call) const {
  ASSIGN_OR_RETURN(const auto record, Find(tenant, request.profile(), call));
  ASSIGN_OR_RETURN(auto json, ProfileToJson({.name = record->name,
                                             .version = record->version,
                                             .create_time_us = record->create_time_us,
                                             .content = record->content}));
  v1::ExportProfileResponse response;
  response.set_json(std::move(json));
  return response;
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* ProfileService::Start(grpc::CallbackServerContext* context,
                                                const grpc::ByteBuffer* request,
                                                grpc::ByteBuffer* response, std::string_view name,
                                                Roles needed, Method<Request, Response> method) {
  const size_t max_bytes = std::is_same_v<Request, v1::ImportProfileRequest>
                               ? kMaxImportBytes
                               : static_cast<size_t>(service_.options.max_message_bytes);
  return UnaryCall<Request, Response>::Start(
      context, *request, response, service_,
      {.name = name,
       .needed = needed,
       .max_bytes = max_bytes,
       .of_store = true,
       .service = v1::ProfileService::service_full_name()},
      [this, method](const Caller& caller, const Request& parsed,
                     CallRecord& call) -> absl::StatusOr<Response> {
        if (ETA_FAILPOINT(kProfileCall)) return OutOfMemory();
        return (this->*method)(caller.tenant, parsed, call);
      });
}

grpc::ServerUnaryReactor* ProfileService::GetProfile(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return Start(context, request, response, "GetProfile", kReaders, &ProfileService::Get);
}

grpc::ServerUnaryReactor* ProfileService::ListProfiles(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  return Start(context, request, response, "ListProfiles", kReaders, &ProfileService::List);
}

grpc::ServerUnaryReactor* ProfileService::ListProfileVersions(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer* request,
                                                              grpc::ByteBuffer* response) {
  return Start(context, request, response, "ListProfileVersions", kReaders,
               &ProfileService::ListVersions);
}

grpc::ServerUnaryReactor* ProfileService::SetProfileAlias(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request,
                                                          grpc::ByteBuffer* response) {
  return Start(context, request, response, "SetProfileAlias", kWriters, &ProfileService::SetAlias);
}

grpc::ServerUnaryReactor* ProfileService::PromoteProfile(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request,
                                                         grpc::ByteBuffer* response) {
  return Start(context, request, response, "PromoteProfile", kWriters, &ProfileService::Promote);
}

grpc::ServerUnaryReactor* ProfileService::DeleteProfileVersion(grpc::CallbackServerContext* context,
                                                               const grpc::ByteBuffer* request,
                                                               grpc::ByteBuffer* response) {
  return Start(context, request, response, "DeleteProfileVersion", kWriters,
               &ProfileService::DeleteVersion);
}

grpc::ServerUnaryReactor* ProfileService::DeleteProfile(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* response) {
  return Start(context, request, response, "DeleteProfile", kWriters, &ProfileService::Delete);
}

grpc::ServerUnaryReactor* ProfileService::ImportProfile(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* response) {
  return Start(context, request, response, "ImportProfile", kWriters, &ProfileService::Import);
}

grpc::ServerUnaryReactor* ProfileService::ExportProfile(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* response) {
  return Start(context, request, response, "ExportProfile", kReaders, &ProfileService::Export);
}

}  // namespace eta
