// SPDX-License-Identifier: MIT
//
// OpenSSL's way to the network: reads from the bytes that have just arrived, writes behind what is to leave.
//
// A BIO of our own in place of two memory BIOs: nothing is copied once more, nothing is kept between calls,
// so nothing can be forgotten in it or grow there.
#pragma once

#include <openssl/bio.h>

#include <cstddef>
#include <span>

#include "protocol/byte_buffer.h"

namespace allowd::tls {

// What both ends are during one call of OpenSSL.
struct Wire {
  std::span<const std::byte> in;        // what has been read is taken off the front
  protocol::ByteBuffer* out = nullptr;  // null: what is written is lost
};

// The BIO borrows `wire`, which must outlive it. Null when out of memory. The caller owns it.
[[nodiscard]] BIO* make_wire_bio(Wire& wire);

}  // namespace allowd::tls
