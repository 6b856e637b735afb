// SPDX-License-Identifier: MIT
#include "agent/config/tls_config.h"

#include <algorithm>
#include <array>

#include "agent/config/config_table.h"

namespace allowd::config {
namespace {

constexpr std::size_t kMaxServerNameBytes = 253;  // of a name in DNS

std::string read_path(const Table& table, std::string_view name) {
  const auto path = table.text(name);
  if (!path) return "";
  if (path->empty()) table.fail(name, "must not be empty");
  if (path->find('\0') != std::string::npos) table.fail(name, "must not contain a NUL");
  return *path;
}

}  // namespace

tls::TlsOptions read_tls(const Table& table) {
  constexpr std::array<std::string_view, 5> kKnown = {"ca_file", "cert_file", "key_file", "server_name",
                                                      "verify"};
  table.allow_only(kKnown);
  tls::TlsOptions tls;
  tls.ca_file = read_path(table, "ca_file");
  tls.cert_file = read_path(table, "cert_file");
  tls.key_file = read_path(table, "key_file");
  if (!tls.cert_file.empty() && tls.key_file.empty()) table.fail("cert_file", "needs a key_file beside it");
  if (!tls.key_file.empty() && tls.cert_file.empty()) table.fail("key_file", "needs a cert_file beside it");
  if (const auto name = table.text("server_name")) {
    const bool is_plain =
        std::all_of(name->begin(), name->end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
    if (name->empty() || name->size() > kMaxServerNameBytes || !is_plain)
      table.fail("server_name", "must be a DNS name or an IP address, without brackets or a port");
    tls.server_name = *name;
  }
  tls.verify = table.boolean("verify").value_or(tls.verify);
  return tls;
}

}  // namespace allowd::config
