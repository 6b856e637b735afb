// SPDX-License-Identifier: MIT
#include "protocol/reply.h"

#include <array>
#include <cstring>

#include "protocol/caps.h"
#include "protocol/packing.h"

namespace allowd::protocol {
namespace {

constexpr int kReply = 1;

// [1, msgid, nil, ... — the caller appends the result.
void start_result(Packer& packer, std::uint64_t msgid) {
  packer.pack_array(4).pack(kReply).pack(msgid).pack_nil();
}

// The hot reply is written with these straight into the buffer. msgpack-c's packer makes a bounds check and a
// call of memcpy of every header byte, which took half of the agent's work per query; it is the oracle in the
// tests instead.
class RawWriter {
 public:
  explicit RawWriter(char* at) : at_(at) {}

  void byte(unsigned value) { *at_++ = static_cast<char>(value); }
  [[gnu::always_inline]] void unsigned_number(std::uint64_t value) {
    if (value < 0x80) return byte(static_cast<unsigned>(value));
    // Most that are not tiny are times.
    if (value > 0xffff && value <= 0xffffffff) [[likely]]
      return tagged(0xce, static_cast<std::uint32_t>(value));
    if (value > 0xffff) return tagged(0xcf, value);
    if (value > 0xff) return tagged(0xcd, static_cast<std::uint16_t>(value));
    tagged(0xcc, static_cast<std::uint8_t>(value));
  }
  void number(std::int64_t value) {
    if (value >= 0) return unsigned_number(static_cast<std::uint64_t>(value));
    if (value >= -32) return byte(static_cast<unsigned>(value) & 0xff);
    tagged(0xd3, static_cast<std::uint64_t>(value));  // none but -1 is ever sent
  }
  void text(std::string_view value) {
    if (value.empty()) return byte(0xa0);
    if (value.size() < 32) {
      byte(0xa0 | static_cast<unsigned>(value.size()));
    } else {
      tagged(0xd9, static_cast<std::uint8_t>(value.size()));
    }
    std::memcpy(at_, value.data(), value.size());
    at_ += value.size();
  }
  // All of `text` is written; what is too much is written over by what comes next.
  template <std::size_t kRoom>
  void prepared(const std::array<char, kRoom>& text, std::size_t size) {
    std::memcpy(at_, text.data(), kRoom);
    at_ += size;
  }
  [[nodiscard]] char* end() const { return at_; }

 private:
  template <class Number>
  void tagged(unsigned tag, Number value) {
    byte(tag);
    if constexpr (sizeof value == 2) value = __builtin_bswap16(value);
    if constexpr (sizeof value == 4) value = __builtin_bswap32(value);
    if constexpr (sizeof value == 8) value = __builtin_bswap64(value);
    std::memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
  }

  char* at_;
};

}  // namespace

namespace {

// A verdict and a source as they stand in a decision, side by side.
struct Names {
  static constexpr std::size_t kRoom = 24;
  std::array<char, kRoom> text{};
  std::size_t size = 0;

  constexpr void add(std::string_view name) {
    text[size++] = static_cast<char>(0xa0 | name.size());
    for (const char letter : name) text[size++] = letter;
  }
};
constexpr auto kNames = [] {
  std::array<std::array<Names, kSources>, kVerdicts> all{};
  for (std::size_t verdict = 0; verdict < kVerdicts; ++verdict) {
    for (std::size_t source = 0; source < kSources; ++source) {
      all[verdict][source].add(name_of(static_cast<Verdict>(verdict)));
      all[verdict][source].add(name_of(static_cast<Source>(source)));
    }
  }
  return all;
}();

// Two array headers, type, nil, bool, seven numbers of at most 9 bytes, three texts.
constexpr std::size_t kMaxTier = 2 + kMaxLimitNameBytes;
constexpr std::size_t kMaxDecisionBytes = 5 + 7 * 9 + Names::kRoom + kMaxTier;

[[gnu::always_inline]] inline void write_fields(RawWriter& writer, const Decision& decision) {
  writer.byte(0x9a);
  writer.byte(decision.allowed ? 0xc3 : 0xc2);
  writer.unsigned_number(decision.limit);
  writer.unsigned_number(decision.remaining);
  writer.number(decision.retry_after_us);
  writer.unsigned_number(decision.reset_after_us);
  const Names& names =
      kNames[static_cast<std::size_t>(decision.verdict)][static_cast<std::size_t>(decision.source)];
  writer.prepared(names.text, names.size);
  writer.text(decision.tier.substr(0, kMaxLimitNameBytes));
  writer.unsigned_number(decision.window_us);
  writer.unsigned_number(decision.more_after_us);
}

}  // namespace

void write_decision(ByteBuffer& out, std::uint64_t msgid, const Decision& decision) {
  char* start = out.reserve(kMaxDecisionBytes);
  RawWriter writer(start);
  writer.byte(0x94);
  writer.byte(kReply);
  writer.unsigned_number(msgid);
  writer.byte(0xc0);
  write_fields(writer, decision);
  out.commit(static_cast<std::size_t>(writer.end() - start));
}

void write_decisions(ByteBuffer& out, std::uint64_t msgid, std::span<const Decision> decisions) {
  Packer packer(out);
  start_result(packer, msgid);
  packer.pack_array(static_cast<std::uint32_t>(decisions.size()));
  for (const Decision& decision : decisions) {
    char* start = out.reserve(kMaxDecisionBytes);
    RawWriter writer(start);
    write_fields(writer, decision);
    out.commit(static_cast<std::size_t>(writer.end() - start));
  }
}

void write_error(ByteBuffer& out, std::uint64_t msgid, ErrorCode code, std::string_view reason) {
  Packer packer(out);
  packer.pack_array(4).pack(kReply).pack(msgid);
  const std::string_view name = name_of(code);
  packer.pack_str(static_cast<std::uint32_t>(name.size() + 2 + reason.size()));
  out.append(name);
  out.append(": ");
  out.append(reason);
  packer.pack_nil();
}

void write_pong(ByteBuffer& out, std::uint64_t msgid) {
  Packer packer(out);
  start_result(packer, msgid);
  pack_text(packer, "pong");
}

void write_report(ByteBuffer& out, std::uint64_t msgid, const Value& report) {
  ByteBuffer body;
  report.encode(body);
  constexpr std::size_t kEnvelopeBytes = 16;
  if (body.size() + kEnvelopeBytes > kMaxReportBytes) {
    return write_error(out, msgid, ErrorCode::internal, "the report is over 1 MiB; ask the admin socket");
  }
  Packer packer(out);
  start_result(packer, msgid);
  out.append(body.view());
}

}  // namespace allowd::protocol
