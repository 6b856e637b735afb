// SPDX-License-Identifier: MIT
//
// msgpack-c's packer over our buffer. Inside protocol/ only: msgpack.hpp is too heavy for a public header.
#pragma once

#include <cstdint>
#include <msgpack.hpp>
#include <string_view>

#include "protocol/byte_buffer.h"

namespace allowd::protocol {

using Packer = msgpack::packer<ByteBuffer>;

inline void pack_text(Packer& packer, std::string_view text) {
  packer.pack_str(static_cast<std::uint32_t>(text.size()));
  packer.pack_str_body(text.data(), static_cast<std::uint32_t>(text.size()));
}

}  // namespace allowd::protocol
