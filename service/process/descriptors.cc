#include "service/process/descriptors.h"

#include <set>

#include "eta/v1/admin.pb.h"
#include "eta/v1/calibrate.pb.h"
#include "eta/v1/generate.pb.h"
#include "eta/v1/profiles.pb.h"
#include "eta/v1/stats.pb.h"
#include "eta/v1/tokenize.pb.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpc/health/v1/health.pb.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.pb.h"
#include "opentelemetry/proto/common/v1/common.pb.h"
#include "opentelemetry/proto/resource/v1/resource.pb.h"
#include "opentelemetry/proto/trace/v1/trace.pb.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace eta {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

// The types of its fields too: one that another file declares is looked for when first asked for.
void BuildMessage(const Descriptor& message) {
  auto* const factory = google::protobuf::MessageFactory::generated_factory();
  (void)factory->GetPrototype(&message)->GetReflection();
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    (void)field.message_type();
    if (field.enum_type() != nullptr) (void)field.default_value_enum();
  }
  for (int i = 0; i < message.nested_type_count(); ++i) BuildMessage(*message.nested_type(i));
}

void BuildFile(const FileDescriptor& file, std::set<const FileDescriptor*>& built) {
  if (!built.insert(&file).second) return;
  for (int i = 0; i < file.message_type_count(); ++i) BuildMessage(*file.message_type(i));
  for (int i = 0; i < file.dependency_count(); ++i) BuildFile(*file.dependency(i), built);
}

}  // namespace

void BuildDescriptors() {
  // One of each file. What a file imports comes with it.
  const google::protobuf::Message* const messages[] = {
      &v1::SetLogLevelRequest::default_instance(),
      &v1::CalibrateRequest::default_instance(),
      &v1::GenerateRequest::default_instance(),
      &v1::Profile::default_instance(),
      &v1::StatsRequest::default_instance(),
      &v1::TokenizeRequest::default_instance(),
      &google::rpc::ErrorInfo::default_instance(),
      &google::rpc::Status::default_instance(),
      &grpc::health::v1::HealthCheckRequest::default_instance(),
      &opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest::default_instance(),
      &opentelemetry::proto::common::v1::KeyValue::default_instance(),
      &opentelemetry::proto::resource::v1::Resource::default_instance(),
      &opentelemetry::proto::trace::v1::Span::default_instance(),
      &vllm::grpc::engine::GenerateRequest::default_instance(),
  };
  std::set<const FileDescriptor*> built;
  for (const google::protobuf::Message* message : messages) {
    BuildFile(*message->GetDescriptor()->file(), built);
  }
}

}  // namespace eta
