// SPDX-License-Identifier: MIT
#include "agent/tls/tls_files.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include "tests/support/printing.h"
#include "tests/support/temporary_directory.h"
#include "tests/tls/certificates.h"

namespace allowd::tls {
namespace {

using namespace std::chrono_literals;
using testing::write_file;

// When all that has been written so far has settled.
auto later() { return std::chrono::system_clock::now() + 10s; }

struct Files {
  testing::TemporaryDirectory directory;
  TlsOptions options{.ca_file = directory / "ca.pem",
                     .cert_file = directory / "cert.pem",
                     .key_file = directory / "key.pem"};

  Files() {
    for (const std::string& path : {options.ca_file, options.cert_file, options.key_file})
      write_file(path, "what stands in it is of no concern");
  }
};

// Whether something has changed since it was asked last.
class Look {
 public:
  explicit Look(TlsOptions options) : options_(std::move(options)), before_(stamp_of(options_, later())) {}

  bool has_changed() {
    const FileStamp before = std::exchange(before_, stamp_of(options_, later()));
    return !before_.shows_no_change_since(before);
  }

 private:
  TlsOptions options_;
  FileStamp before_;
};

TEST_CASE("tls files: those that nobody has touched look the same") {
  const Files files;
  const FileStamp before = stamp_of(files.options, later());
  CHECK(before.is_settled);
  CHECK(stamp_of(files.options, later()).shows_no_change_since(before));
}

TEST_CASE("tls files: a change of any shows, whatever it is") {
  const Files files;
  for (const std::string& path : {files.options.ca_file, files.options.cert_file, files.options.key_file}) {
    CAPTURE(path);
    Look look(files.options);
    CHECK(!look.has_changed());
    write_file(path, "more, or less");
    CHECK(look.has_changed());
    write_file(path + ".new", "more, or less");
    std::filesystem::rename(path + ".new", path);
    CHECK(look.has_changed());
    std::filesystem::remove(path);
    CHECK(look.has_changed());
    CHECK(!look.has_changed());
    write_file(path, "more, or less");
    CHECK(look.has_changed());
    // By who has the right: what cannot be read is another thing to say.
    std::filesystem::permissions(path, std::filesystem::perms::none);
    CHECK(look.has_changed());
  }
}

TEST_CASE("tls files: what was written a moment ago may be written again without looking other") {
  const Files files;
  const FileStamp young = stamp_of(files.options, std::chrono::system_clock::now());
  CHECK(!young.is_settled);
  CHECK(!stamp_of(files.options, later()).shows_no_change_since(young));
}

TEST_CASE("tls files: of the system's store all certificates count, by the bundle or their hashes") {
  const testing::TemporaryDirectory directory;
  const std::string bundle = directory / "bundle.pem", hashed = directory / "certs";
  std::filesystem::create_directory(hashed);
  ::setenv("SSL_CERT_FILE", bundle.c_str(), 1);
  ::setenv("SSL_CERT_DIR", (directory / "none" + ":" + hashed).c_str(), 1);
  Look look({});
  CHECK(!look.has_changed());
  write_file(bundle, "a");
  CHECK(look.has_changed());
  write_file(hashed + "/whatever.pem", "a");  // not a hash: nobody reads it by that name
  CHECK(!look.has_changed());
  std::filesystem::create_symlink("whatever.pem", hashed + "/0a1b2c3d.0");
  CHECK(look.has_changed());
  write_file(hashed + "/whatever.pem", "another");
  CHECK(look.has_changed());
  CHECK(stamp_of({.verify = false}, later()).text.empty());
  ::unsetenv("SSL_CERT_FILE");
  ::unsetenv("SSL_CERT_DIR");
}

}  // namespace
}  // namespace allowd::tls
