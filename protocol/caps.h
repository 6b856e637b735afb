// SPDX-License-Identifier: MIT
//
// The caps of the wire, as PROTOCOL.md states them. Sizes are bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace allowd::protocol {

inline constexpr std::size_t kMaxRequestBytes = 8 * 1024;
inline constexpr std::size_t kMaxReplyBytes = 64 * 1024;
inline constexpr std::size_t kMaxReportBytes = 1024 * 1024;  // `stats` and `info`
inline constexpr std::uint32_t kMaxItems = 256;              // of one allow_many
inline constexpr std::size_t kMaxKeyBytes = 1024;
inline constexpr std::size_t kMaxLimitNameBytes = 128;
inline constexpr std::size_t kMaxDepth = 8;  // the message's own array is level 1

}  // namespace allowd::protocol
