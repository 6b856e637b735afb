// SPDX-License-Identifier: MIT
#include "agent/tls/tls_context.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/printing.h"
#include "tests/support/temporary_directory.h"
#include "tests/tls/certificates.h"

namespace allowd::tls {
namespace {

using testing::Certificate;
using testing::write_file;

std::string problem_with(const TlsOptions& options) {
  const auto context = TlsContext::make(options);
  return context ? "" : context.error().message;
}

// For as long as it lives, the process has that variable.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~Environment() { ::unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
};

struct Files {
  testing::TemporaryDirectory directory;
  Certificate authority = testing::make_authority("authority");
  Certificate own = testing::make_certificate(authority);
  std::string ca = directory / "ca.pem", cert = directory / "cert.pem", key = directory / "key.pem";

  Files() {
    write_file(ca, authority.pem());
    write_file(cert, own.pem() + authority.pem());
    write_file(key, own.key_pem());
  }
};

TEST_CASE("tls context: made of files that hold what they should") {
  Files files;
  CHECK(problem_with({.ca_file = files.ca}).empty());
  CHECK(problem_with({.ca_file = files.ca, .cert_file = files.cert, .key_file = files.key}).empty());
  write_file(files.ca, "a remark\n" + files.authority.pem() + testing::make_authority("b").pem());
  CHECK(problem_with({.ca_file = files.ca}).empty());
  CHECK(problem_with({.verify = false}).empty());
}

TEST_CASE("tls context: what is wrong with a file is said, with the option and the file") {
  Files files;
  const std::string none = files.directory / "none.pem", empty = files.directory / "empty.pem";
  write_file(empty, "");
  CHECK(problem_with({.ca_file = none}) == "ca_file: " + none + ": No such file or directory");
  CHECK(problem_with({.ca_file = files.directory.path()}) ==
        "ca_file: " + files.directory.path() + ": is a directory");
  CHECK(problem_with({.ca_file = empty}) == "ca_file: " + empty + ": holds no certificate in PEM form");
  CHECK(problem_with({.ca_file = files.key}) ==
        "ca_file: " + files.key + ": holds no certificate in PEM form");
  CHECK(problem_with({.ca_file = files.ca, .cert_file = none, .key_file = files.key}) ==
        "cert_file: " + none + ": No such file or directory");
  CHECK(problem_with({.ca_file = files.ca, .cert_file = files.key, .key_file = files.key}) ==
        "cert_file: " + files.key + ": holds no certificate in PEM form");
  CHECK(problem_with({.ca_file = files.ca, .cert_file = files.cert, .key_file = none}) ==
        "key_file: " + none + ": No such file or directory");
  for (const std::string& path : {files.cert, empty}) {
    CHECK(problem_with({.ca_file = files.ca, .cert_file = files.cert, .key_file = path}) ==
          "key_file: " + path + ": holds no private key in PEM form");
  }
}

TEST_CASE("tls context: a damaged certificate is no certificate") {
  Files files;
  std::string text = files.authority.pem();
  text.replace(text.size() / 2, 20, 20, '!');
  write_file(files.ca, text);
  const std::string problem = problem_with({.ca_file = files.ca});
  CAPTURE(problem);
  CHECK(problem.starts_with("ca_file: " + files.ca + ": "));
}

TEST_CASE("tls context: a key must be the certificate's, and nobody types its passphrase") {
  Files files;
  const TlsOptions options{.ca_file = files.ca, .cert_file = files.cert, .key_file = files.key};
  write_file(files.key, testing::make_certificate(files.authority).key_pem());
  CHECK(problem_with(options) ==
        "key_file: " + files.key + ": is not the key of the certificate in cert_file");
  write_file(files.key, files.own.key_pem("secret"));
  CHECK(problem_with(options) == "key_file: " + files.key + ": needs a passphrase; the key must have none");
}

TEST_CASE("tls context: without a ca_file the system's store is loaded, a bundle or hashed files") {
  Files files;
  const std::string none = files.directory / "none";
  {
    const Environment bundle("SSL_CERT_FILE", files.ca), directory("SSL_CERT_DIR", none);
    CHECK(problem_with({}).empty());
  }
  const Environment bundle("SSL_CERT_FILE", none);
  {
    const std::string hashed = files.directory / "certs";
    std::filesystem::create_directory(hashed);
    write_file(hashed + "/authority.pem", files.authority.pem());  // not a hash: not looked at
    const Environment directory("SSL_CERT_DIR", none + ":" + hashed);
    CHECK(problem_with({}) ==
          "ca_file: is missing, and the system trusts nobody (" + none + ", " + none + ":" + hashed + ")");
    write_file(hashed + "/0a1b2c3d.0", files.authority.pem());
    CHECK(problem_with({}).empty());
  }
}

}  // namespace
}  // namespace allowd::tls
