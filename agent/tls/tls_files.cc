// SPDX-License-Identifier: MIT
#include "agent/tls/tls_files.h"

#include <openssl/x509.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace allowd::tls {
namespace {

namespace fs = std::filesystem;

// Coarser than any file system's clock.
constexpr std::chrono::seconds kSettlesAfter{2};

std::string from_environment_or(const char* variable, const char* otherwise) {
  const char* set = std::getenv(variable);
  return set != nullptr ? set : otherwise;
}

// "5ad8a5d6.0": what c_rehash and update-ca-certificates call a certificate in a directory.
bool is_hashed_name(std::string_view name) {
  constexpr std::size_t kDigits = 8;
  return name.size() > kDigits + 1 && name[kDigits] == '.' &&
         name.find_first_not_of("0123456789abcdef") == kDigits &&
         name.find_first_not_of("0123456789", kDigits + 1) == std::string_view::npos;
}

std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

std::vector<std::string> paths_of(const TlsOptions& options) {
  std::vector<std::string> paths;
  if (!options.ca_file.empty()) {
    paths.push_back(options.ca_file);
  } else if (options.verify) {
    SystemStore store = find_system_store();
    paths = std::move(store.files);
    paths.push_back(store.bundle);
  }
  if (!options.cert_file.empty()) {
    paths.push_back(options.cert_file);
    paths.push_back(options.key_file);
  }
  return paths;
}

}  // namespace

SystemStore find_system_store() {
  SystemStore store{from_environment_or(X509_get_default_cert_file_env(), X509_get_default_cert_file()),
                    from_environment_or(X509_get_default_cert_dir_env(), X509_get_default_cert_dir()),
                    {}};
  for (std::size_t begin = 0; begin <= store.directories.size();) {
    const std::size_t end = std::min(store.directories.find(':', begin), store.directories.size());
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(store.directories.substr(begin, end - begin), ignored)) {
      if (is_hashed_name(entry.path().filename().string())) store.files.push_back(entry.path());
    }
    begin = end + 1;
  }
  return store;
}

FileStamp stamp_of(const TlsOptions& options, std::chrono::system_clock::time_point now) {
  FileStamp stamp{{}, true};
  const auto now_ns = std::chrono::nanoseconds(now.time_since_epoch()).count();
  for (const std::string& path : paths_of(options)) {
    struct stat found {};
    stamp.text += path;
    if (::stat(path.c_str(), &found) != 0) {
      stamp.text += " " + std::to_string(errno) + "\n";
      continue;
    }
    // A copy with an old date has the time of the copying as that of its last change.
    const std::int64_t changed = nanoseconds(found.st_ctim);
    for (const std::int64_t part :
         {static_cast<std::int64_t>(found.st_dev), static_cast<std::int64_t>(found.st_ino),
          std::int64_t{found.st_size}, nanoseconds(found.st_mtim), changed})
      stamp.text += " " + std::to_string(part);
    stamp.text += "\n";
    if (now_ns - changed < std::chrono::nanoseconds(kSettlesAfter).count()) stamp.is_settled = false;
  }
  return stamp;
}

}  // namespace allowd::tls
