// SPDX-License-Identifier: MIT
//
// Replies as bytes: what the agent writes.
//
// Each call appends one whole reply in minimal encodings.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "protocol/byte_buffer.h"
#include "protocol/decision.h"
#include "protocol/request.h"
#include "protocol/value.h"

namespace allowd::protocol {

void write_decision(ByteBuffer& out, std::uint64_t msgid, const Decision& decision);
// The result of allow_many: at most kMaxItems.
void write_decisions(ByteBuffer& out, std::uint64_t msgid, std::span<const Decision> decisions);
void write_error(ByteBuffer& out, std::uint64_t msgid, ErrorCode code, std::string_view reason);
void write_pong(ByteBuffer& out, std::uint64_t msgid);
// `info` and `stats`. A report that would pass its cap is answered as `internal` instead.
void write_report(ByteBuffer& out, std::uint64_t msgid, const Value& report);

}  // namespace allowd::protocol
