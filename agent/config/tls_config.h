// SPDX-License-Identifier: MIT
//
// The table [redis.tls]: what TLS to Redis rests on. The files that it names are not looked at here.
#pragma once

#include "agent/tls/tls_options.h"

namespace allowd::config {

class Table;

// Throws a Problem where something is wrong.
[[nodiscard]] tls::TlsOptions read_tls(const Table& table);

}  // namespace allowd::config
