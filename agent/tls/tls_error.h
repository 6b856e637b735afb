// SPDX-License-Identifier: MIT
//
// OpenSSL's reasons in plain words.
#pragma once

#include <string>

namespace allowd::tls {

// What OpenSSL's queue of this thread says first, which is nearest to the cause; empties the queue. Never
// empty.
[[nodiscard]] std::string take_reason();

// The same of an OpenSSL error code.
[[nodiscard]] std::string reason_of(unsigned long code);

}  // namespace allowd::tls
