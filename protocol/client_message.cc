// SPDX-License-Identifier: MIT
#include "protocol/client_message.h"

#include "protocol/caps.h"
#include "protocol/packing.h"

namespace allowd::protocol {
namespace {

void pack_limit(Packer& packer, const LimitArgument& limit) {
  if (limit.rate.empty()) return pack_text(packer, limit.name);
  packer.pack_map(limit.burst ? 3 : 2);
  pack_text(packer, "name");
  pack_text(packer, limit.name);
  pack_text(packer, "rate");
  pack_text(packer, limit.rate);
  if (!limit.burst) return;
  pack_text(packer, "burst");
  packer.pack(*limit.burst);
}

void start_request(Packer& packer, std::uint32_t msgid, std::string_view method) {
  packer.pack_array(4).pack(0).pack(msgid);
  pack_text(packer, method);
}

void pack_deadline(Packer& packer, std::uint64_t deadline_us) {
  packer.pack_map(1);
  pack_text(packer, "deadline_us");
  packer.pack(deadline_us);
}

}  // namespace

void write_query(ByteBuffer& out, std::uint32_t msgid, const QueryArgument& query) {
  Packer packer(out);
  start_request(packer, msgid, query.method);
  const bool has_options = query.deadline_us.has_value() && query.method == "allow";
  packer.pack_array(has_options ? 4 : 3);
  pack_limit(packer, query.limit);
  pack_text(packer, query.key);
  packer.pack(query.cost);
  if (has_options) pack_deadline(packer, *query.deadline_us);
}

void write_many(ByteBuffer& out, std::uint32_t msgid, const ManyArgument& many) {
  Packer packer(out);
  start_request(packer, msgid, "allow_many");
  packer.pack_array(many.deadline_us ? 3 : 2);
  packer.pack_array(static_cast<std::uint32_t>(many.items.size()));
  for (const ManyArgument::Item& item : many.items) {
    packer.pack_array(3);
    pack_limit(packer, item.limit);
    pack_text(packer, item.key);
    packer.pack(item.cost);
  }
  pack_text(packer, many.mode);
  if (many.deadline_us) pack_deadline(packer, *many.deadline_us);
}

void write_plain_request(ByteBuffer& out, std::uint32_t msgid, std::string_view method) {
  Packer packer(out);
  start_request(packer, msgid, method);
  packer.pack_array(0);
}

Reply read_reply(std::span<const std::byte> bytes, std::size_t cap) {
  const auto window = bytes.size() > cap ? bytes.first(cap) : bytes;
  Reply reply;
  Cursor cursor(window);
  if (!cursor.skip(kMaxDepth)) {
    const bool may_go_on = cursor.failure() == Cursor::Failure::starved && bytes.size() < cap;
    reply.kind = may_go_on ? Reply::Kind::incomplete : Reply::Kind::violation;
    return reply;
  }
  reply.kind = Reply::Kind::violation;
  reply.size = static_cast<std::size_t>(cursor.position() - window.data());

  Cursor fields(window.first(reply.size));
  std::uint32_t count = 0;
  std::int64_t type = 0;
  if (!fields.read_array(count) || count < 4 || !fields.read_integer(type) || type != 1) return reply;
  if (!fields.read_unsigned(reply.msgid)) return reply;
  if (!fields.take_nil() && !fields.read_text(reply.error)) return reply;
  const std::byte* start = fields.position();
  if (!fields.skip(kMaxDepth)) return reply;
  reply.result = {start, static_cast<std::size_t>(fields.position() - start)};
  reply.kind = Reply::Kind::reply;
  return reply;
}

bool read_decision(Cursor& cursor, ReceivedDecision& decision) {
  constexpr std::uint32_t kKnownElements = 10;
  std::uint32_t count = 0;
  if (!cursor.read_array(count) || count < kKnownElements) return false;
  const bool is_read =
      cursor.read_bool(decision.allowed) && cursor.read_unsigned(decision.limit) &&
      cursor.read_unsigned(decision.remaining) && cursor.read_integer(decision.retry_after_us) &&
      cursor.read_unsigned(decision.reset_after_us) && cursor.read_text(decision.verdict) &&
      cursor.read_text(decision.source) && cursor.read_text(decision.tier) &&
      cursor.read_unsigned(decision.window_us) && cursor.read_unsigned(decision.more_after_us);
  if (!is_read) return false;
  for (std::uint32_t i = kKnownElements; i < count; ++i) {
    if (!cursor.skip(kMaxDepth)) return false;
  }
  return true;
}

}  // namespace allowd::protocol
