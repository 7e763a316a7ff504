// Certificates that are read again while they are in use, and what must not take their place.
#include "service/identity/tls_files.h"

#include <sys/stat.h>

#include <filesystem>
#include <functional>

#include "gmock/gmock.h"
#include "service/identity/own_certificate.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/identity/access_files.h"
#include "tests/testing/identity/certificates.h"

namespace eta::testing {
namespace {

using std::chrono::system_clock;
using ::testing::HasSubstr;

class TlsFilesTest : public ::testing::Test {
 protected:
  TlsFilesTest() : folder_(FastParent()), authority_("test root") { Write(authority_.Issue()); }

  void Write(const MadeCertificate& made) {
    folder_.Write("cert.pem", made.certificate);
    WriteKey(made.key);
  }
  void WriteKey(const std::string& key) { WriteSecret(folder_, "key.pem", key); }
  absl::StatusOr<std::unique_ptr<TlsFiles>> Open(bool with_roots = false) {
    if (with_roots) folder_.Write("roots.pem", authority_.pem());
    return TlsFiles::Open({.certificates = folder_.path() + "/cert.pem",
                           .key = folder_.path() + "/key.pem",
                           .client_roots = with_roots ? folder_.path() + "/roots.pem" : ""},
                          "", [](const absl::Status&) {});
  }
  std::string OpenError(bool with_roots = false) {
    return std::string(Open(with_roots).status().message());
  }

  const TempFolder folder_;
  const CertificateAuthority authority_;
};

TEST_F(TlsFilesTest, AWholeSetIsTaken) {
  auto files = Open(true).value();
  EXPECT_TRUE(files->has_client_roots());
  EXPECT_THAT(files->Current()->client_roots, HasSubstr(authority_.pem()));
}

TEST_F(TlsFilesTest, WhatNoServerCouldUseIsRefusedByFlag) {
  const MadeCertificate good = authority_.Issue(), other = authority_.Issue();
  Write({.certificate = good.certificate, .key = other.key});
  EXPECT_THAT(OpenError(), HasSubstr("--tls_key: is not the key"));
  Write({.certificate = "no certificate", .key = good.key});
  EXPECT_THAT(OpenError(), HasSubstr("--tls_cert: holds no certificates"));
  Write({.certificate = good.certificate.substr(0, good.certificate.size() / 2), .key = good.key});
  EXPECT_THAT(OpenError(), HasSubstr("--tls_cert"));
  Write({.certificate = good.certificate, .key = ""});
  EXPECT_THAT(OpenError(), HasSubstr("--tls_key: holds no key"));
  Write(authority_.Issue({.days = -1}));
  EXPECT_THAT(OpenError(), HasSubstr("--tls_cert: the certificate has expired"));
  Write(authority_.Issue({.days = 3, .begins = 1}));
  EXPECT_THAT(OpenError(), HasSubstr("--tls_cert: the certificate is not valid yet"));
  const MadeCertificate weak = authority_.Issue({.rsa_bits = 1024});
  Write(weak);
  EXPECT_THAT(OpenError(), HasSubstr("--tls_cert: OpenSSL refuses it"));
  Write({.certificate = good.certificate + weak.certificate, .key = good.key});
  EXPECT_THAT(OpenError(), HasSubstr("--tls_cert: OpenSSL refuses a certificate after the first"));
  Write({.certificate = good.certificate + authority_.pem(), .key = good.key});
  EXPECT_TRUE(Open().ok());
  Write(good);
  EXPECT_TRUE(Open().ok());
  folder_.Write("roots.pem", "");
  EXPECT_THAT(std::string(TlsFiles::Open({.certificates = folder_.path() + "/cert.pem",
                                          .key = folder_.path() + "/key.pem",
                                          .client_roots = folder_.path() + "/roots.pem"},
                                         "", {})
                              .status()
                              .message()),
              HasSubstr("--tls_client_ca"));
}

TEST_F(TlsFilesTest, AKeyThatEverybodyMayReadIsRefused) {
  chmod((folder_.path() + "/key.pem").c_str(), 0644);
  EXPECT_THAT(OpenError(), HasSubstr("--tls_key: every user of this host may read it"));
  chmod((folder_.path() + "/key.pem").c_str(), 0640);
  EXPECT_TRUE(Open().ok());
  chmod((folder_.path() + "/cert.pem").c_str(), 0666);
  EXPECT_THAT(OpenError(), HasSubstr("--tls_cert: every user of this host may change it"));
}

TEST_F(TlsFilesTest, AHalfDoneChangeKeepsWhatWorks) {
  auto files = Open().value();
  const auto before = files->Current();
  const MadeCertificate next = authority_.Issue({.name = "next"});
  folder_.Write("cert.pem", next.certificate);
  files->file().Poll();
  EXPECT_EQ(files->Current(), before) << "its key is not there yet";
  EXPECT_FALSE(files->file().Status().current);
  WriteKey(next.key);
  files->file().Poll();
  EXPECT_EQ(files->Current()->certificates, next.certificate);
  EXPECT_TRUE(files->file().Status().current);
  WriteKey("garbage");
  files->file().Poll();
  EXPECT_EQ(files->Current()->key, next.key);
}

TEST_F(TlsFilesTest, FollowsLinksAsKubernetesSwapsThem) {
  namespace fs = std::filesystem;
  const fs::path root = folder_.path();
  const auto fill = [&root](const std::string& name, const MadeCertificate& made) {
    fs::create_directory(root / name);
    std::ofstream(root / name / "cert.pem") << made.certificate;
    std::ofstream(root / name / "key.pem") << made.key;
    fs::permissions(root / name / "key.pem", fs::perms::owner_read);
  };
  const MadeCertificate first = authority_.Issue(), second = authority_.Issue();
  fill("..1", first);
  fill("..2", second);
  fs::create_directory_symlink("..1", root / "..data");
  for (const char* const name : {"cert.pem", "key.pem"}) {
    fs::remove(root / name);
    fs::create_symlink(fs::path("..data") / name, root / name);
  }
  auto files = Open().value();
  EXPECT_EQ(files->Current()->key, first.key);
  fs::create_directory_symlink("..2", root / "..new");
  fs::rename(root / "..new", root / "..data");
  files->file().Poll();
  EXPECT_EQ(files->Current()->key, second.key);
}

TEST(OwnCertificate, IsOneOfItsOwnEachTime) {
  const auto first = MakeOwnCertificate(), second = MakeOwnCertificate();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first->certificate, second->certificate);
  EXPECT_TRUE(
      CheckTlsMaterial({.certificates = first->certificate, .key = first->key}, system_clock::now())
          .ok());
  EXPECT_FALSE(CheckTlsMaterial({.certificates = first->certificate, .key = second->key},
                                system_clock::now())
                   .ok());
}

}  // namespace
}  // namespace eta::testing
