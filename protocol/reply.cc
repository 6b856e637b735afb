// SPDX-License-Identifier: MIT
#include "protocol/reply.h"

#include "protocol/caps.h"
#include "protocol/packing.h"

namespace allowd::protocol {
namespace {

constexpr int kReply = 1;

// [1, msgid, nil, ... — the caller appends the result.
void start_result(Packer& packer, std::uint64_t msgid) {
  packer.pack_array(4).pack(kReply).pack(msgid).pack_nil();
}

}  // namespace

void write_decision(ByteBuffer& out, std::uint64_t msgid, const Decision& decision) {
  Packer packer(out);
  start_result(packer, msgid);
  packer.pack_array(10)
      .pack(decision.allowed)
      .pack(decision.limit)
      .pack(decision.remaining)
      .pack(decision.retry_after_us)
      .pack(decision.reset_after_us);
  pack_text(packer, name_of(decision.verdict));
  pack_text(packer, name_of(decision.source));
  pack_text(packer, decision.tier);
  packer.pack(decision.window_us).pack(decision.more_after_us);
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
