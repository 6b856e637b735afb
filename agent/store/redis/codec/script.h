// SPDX-License-Identifier: MIT
//
// The one script that decides on Redis, with a part for each shape of limit. Its first argument says which
// part a call is for. What the parts' arguments and replies mean stands with BucketCall, TierCall, LogCall
// and CounterCall.
//
// It does what limiter/ does, in doubles that never leave the integers. Lua 5.1 and 5.4 alike: all numbers
// are integers below 2^53, TTLs are passed as text (Redis prints a number argument with %.17g, slowly), and
// no number is printed with `..` or tostring. Every key that is touched stands in KEYS. No global is asked
// for that a version may lack: servers make an error of it.
//
// Values begin with a format number: 1 bucket, 2 tiers, 3 log. Formats are numbered up to 31, so that
// printable garbage is never taken for a newer one; a newer one is left untouched.
#pragma once

#include <string_view>

namespace allowd::store {

[[nodiscard]] std::string_view decision_script();

}  // namespace allowd::store
