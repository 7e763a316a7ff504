// TLS credentials of gRPC for the server's listener and for its own probe.
#pragma once

#include <memory>
#include <string>

#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "service/identity/own_certificate.h"
#include "service/identity/tls_files.h"

namespace eta {

// Credentials of a listener: TLS 1.2 or 1.3 with the contents of `files` when a connection comes
// in. Clients must show certificates if there are roots for them. Without `files`: plaintext.
// `files` must outlive every server that uses the credentials.
std::shared_ptr<grpc::ServerCredentials> MakeCredentials(const TlsFiles* files);

// Credentials of the probe inside the process, which shows `own` if it must. It checks whether it
// is answered, not by whom.
std::shared_ptr<grpc::ChannelCredentials> ProbeCredentials(const TlsFiles* files,
                                                           const OwnCertificate& own);

}  // namespace eta
