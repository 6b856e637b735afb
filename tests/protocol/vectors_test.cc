// SPDX-License-Identifier: MIT
//
// The golden vectors of protocol/vectors, which every client replays too: bytes to meaning and back.
#include <deque>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "protocol/caps.h"
#include "protocol/client_message.h"
#include "protocol/reply.h"
#include "protocol/request.h"
#include "tests/support/bytes.h"
#include "tests/support/printing.h"

namespace allowd::protocol {
namespace {

using json = nlohmann::ordered_json;  // a report's entries keep their order
using testing::as_bytes;
using testing::from_hex;
using testing::to_hex;

std::vector<json> read_lines(const std::string& name) {
  std::ifstream file(std::string(ALLOWD_VECTORS) + "/" + name);
  REQUIRE(file.is_open());
  std::vector<json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
  REQUIRE(lines.size() > 30);
  return lines;
}

Method method_of(const std::string& name) {
  if (name == "allow") return Method::allow;
  if (name == "peek") return Method::peek;
  if (name == "allow_many") return Method::allow_many;
  if (name == "refund") return Method::refund;
  if (name == "ping") return Method::ping;
  if (name == "info") return Method::info;
  return name == "stats" ? Method::stats : Method::other;
}

std::optional<std::int64_t> optional_integer(const json& holder, const char* name) {
  if (!holder.contains(name) || holder.at(name).is_null()) return std::nullopt;
  return holder.at(name).get<std::int64_t>();
}

void check_query(const json& line, const Query& query) {
  const json& limit = line.at("limit");
  if (limit.is_string()) {
    CHECK(query.limit == limit.get<std::string>());
    CHECK_FALSE(query.defined_inline.has_value());
  } else {
    REQUIRE(query.defined_inline.has_value());
    CHECK(query.defined_inline->name == limit.at("name").get<std::string>());
    const json tiers = limit.contains("tiers") ? limit.at("tiers") : json::array({limit});
    REQUIRE(query.defined_inline->tier_count == tiers.size());
    for (std::size_t i = 0; i < tiers.size(); ++i) {
      const InlineTier& tier = query.defined_inline->tiers[i];
      CHECK(tier.name == (limit.contains("tiers") ? tiers[i].at("name").get<std::string>() : ""));
      CHECK(tier.rate == tiers[i].at("rate").get<std::string>());
      CHECK(tier.burst == optional_integer(tiers[i], "burst"));
      CHECK(tier.algorithm == tiers[i].value("algorithm", ""));
      CHECK(tier.align == tiers[i].value("align", ""));
    }
  }
  CHECK(to_hex(query.key) == line.at("key_hex").get<std::string>());
  CHECK(query.cost == line.at("cost").get<std::int64_t>());
  CHECK(query.plan == line.value("plan", ""));
  CHECK(query.is_forced == line.value("force", false));
}

TEST_CASE("vectors: the agent reads every request as its line says") {
  for (const json& line : read_lines("requests.jsonl")) {
    CAPTURE(line.at("name").get<std::string>());
    const testing::ExactCopy bytes(from_hex(line.at("hex").get<std::string>()));
    const Message message = read_message(bytes.span());
    REQUIRE(message.kind == Message::Kind::request);
    CHECK(message.size == bytes.span().size());
    CHECK_FALSE(message.ends_stream);
    CHECK(message.request.msgid == line.at("msgid").get<std::uint64_t>());
    if (line.contains("refusal")) {
      REQUIRE(message.request.refusal.has_value());
      CHECK(name_of(message.request.refusal->code) == line.at("refusal").get<std::string>());
      continue;
    }
    CHECK_FALSE(message.request.refusal.has_value());
    if (message.request.refusal) continue;
    CHECK(message.request.method == method_of(line.at("method").get<std::string>()));
    if (line.contains("limit")) {
      check_query(line, message.request.query);
      CHECK(message.request.query.deadline_us == optional_integer(line, "deadline_us"));
    }
    if (!line.contains("items")) continue;
    CHECK(message.request.all_or_none == (line.at("mode") == "all"));
    REQUIRE(message.request.items.size() == line.at("items").size());
    for (std::size_t i = 0; i < message.request.items.size(); ++i) {
      check_query(line.at("items")[i], message.request.items[i]);
      CHECK(message.request.items[i].deadline_us == optional_integer(line, "deadline_us"));
    }
  }
}

TEST_CASE("vectors: every request is incomplete until its last byte") {
  for (const json& line : read_lines("requests.jsonl")) {
    CAPTURE(line.at("name").get<std::string>());
    const std::string bytes = from_hex(line.at("hex").get<std::string>());
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const testing::ExactCopy part(bytes.substr(0, size));
      REQUIRE(read_message(part.span()).kind == Message::Kind::incomplete);
    }
  }
}

// A limit as its line names it, and the strings that it borrows.
struct OwnedLimit {
  explicit OwnedLimit(const json& limit)
      : name((limit.is_string() ? limit : limit.at("name")).get<std::string>()),
        rate(limit.is_string() ? "" : limit.at("rate").get<std::string>()) {
    if (!limit.is_string()) burst = optional_integer(limit, "burst");
  }
  [[nodiscard]] LimitArgument argument() const { return {name, rate, burst}; }

  std::string name;
  std::string rate;
  std::optional<std::uint64_t> burst;
};

std::string written_many(const json& line) {
  std::deque<OwnedLimit> limits;
  std::deque<std::string> keys;
  std::vector<ManyArgument::Item> items;
  for (const json& item : line.at("items")) {
    items.push_back({limits.emplace_back(item.at("limit")).argument(),
                     keys.emplace_back(from_hex(item.at("key_hex").get<std::string>())),
                     item.at("cost").get<std::uint64_t>()});
  }
  const auto mode = line.at("mode").get<std::string>();
  ByteBuffer out;
  write_many(out, line.at("msgid").get<std::uint32_t>(),
             {.items = items, .mode = mode, .deadline_us = optional_integer(line, "deadline_us")});
  return to_hex(out.view());
}

std::string written_request(const json& line) {
  ByteBuffer out;
  const auto msgid = line.at("msgid").get<std::uint32_t>();
  const auto method = line.at("method").get<std::string>();
  if (line.contains("items")) return written_many(line);
  if (!line.contains("limit")) {
    write_plain_request(out, msgid, method);
    return to_hex(out.view());
  }
  const OwnedLimit limit(line.at("limit"));
  const std::string key = from_hex(line.at("key_hex").get<std::string>());
  write_query(out, msgid,
              {.method = method,
               .limit = limit.argument(),
               .key = key,
               .cost = line.at("cost").get<std::uint64_t>(),
               .deadline_us = optional_integer(line, "deadline_us")});
  return to_hex(out.view());
}

TEST_CASE("vectors: a client writes the canonical requests to the byte") {
  int canonical = 0;
  for (const json& line : read_lines("requests.jsonl")) {
    if (!line.at("canonical").get<bool>()) continue;
    CAPTURE(line.at("name").get<std::string>());
    CHECK(written_request(line) == line.at("hex").get<std::string>());
    ++canonical;
  }
  CHECK(canonical > 30);
}

std::optional<Verdict> verdict_of(const std::string& name) {
  for (std::size_t i = 0; i < kVerdicts; ++i)
    if (name_of(static_cast<Verdict>(i)) == name) return static_cast<Verdict>(i);
  return std::nullopt;
}
std::optional<Source> source_of(const std::string& name) {
  for (std::size_t i = 0; i < kSources; ++i)
    if (name_of(static_cast<Source>(i)) == name) return static_cast<Source>(i);
  return std::nullopt;
}
std::optional<ErrorCode> code_of(const std::string& name) {
  for (int i = 0; i < 8; ++i)
    if (name_of(static_cast<ErrorCode>(i)) == name) return static_cast<ErrorCode>(i);
  return std::nullopt;
}

Value to_value(const json& from) {
  if (from.is_null()) return {};
  if (from.is_boolean()) return from.get<bool>();
  if (from.is_number_unsigned()) return from.get<std::uint64_t>();
  if (from.is_number_integer()) return from.get<std::int64_t>();
  if (from.is_number()) return from.get<double>();
  if (from.is_string()) return from.get<std::string>();
  if (from.is_array()) {
    Value::List list;
    for (const json& item : from) list.push_back(to_value(item));
    return list;
  }
  Value::Map map;
  for (const auto& [name, item] : from.items()) map.emplace_back(name, to_value(item));
  return map;
}

std::string written_reply(const json& line) {
  ByteBuffer out;
  const auto msgid = line.at("msgid").get<std::uint64_t>();
  if (line.contains("error")) {
    const auto code = code_of(line.at("error").at("code").get<std::string>());
    REQUIRE(code.has_value());
    write_error(out, msgid, *code, line.at("error").at("text").get<std::string>());
    return to_hex(out.view());
  }
  if (line.contains("value")) {
    line.at("value") == "pong" ? write_pong(out, msgid)
                               : write_report(out, msgid, to_value(line.at("value")));
    return to_hex(out.view());
  }
  const json& from = line.at("decision");
  const auto verdict = verdict_of(from.at("verdict").get<std::string>());
  const auto source = source_of(from.at("source").get<std::string>());
  REQUIRE(verdict.has_value());
  REQUIRE(source.has_value());
  const auto tier = from.at("tier").get<std::string>();
  write_decision(out, msgid,
                 {.allowed = from.at("allowed").get<bool>(),
                  .limit = from.at("limit").get<std::uint64_t>(),
                  .remaining = from.at("remaining").get<std::uint64_t>(),
                  .retry_after_us = from.at("retry_after_us").get<std::int64_t>(),
                  .reset_after_us = from.at("reset_after_us").get<std::uint64_t>(),
                  .verdict = *verdict,
                  .source = *source,
                  .tier = tier,
                  .window_us = from.at("window_us").get<std::uint64_t>(),
                  .more_after_us = from.at("more_after_us").get<std::uint64_t>()});
  return to_hex(out.view());
}

TEST_CASE("vectors: the agent writes the canonical replies to the byte") {
  std::set<std::string> codes;
  for (const json& line : read_lines("replies.jsonl")) {
    if (!line.at("canonical").get<bool>()) continue;
    CAPTURE(line.at("name").get<std::string>());
    CHECK(written_reply(line) == line.at("hex").get<std::string>());
    if (line.contains("error")) codes.insert(line.at("error").at("code").get<std::string>());
  }
  CHECK(codes.size() == 8);
}

void check_decision(const json& from, std::span<const std::byte> result) {
  Cursor cursor(result);
  ReceivedDecision decision;
  REQUIRE(read_decision(cursor, decision));
  CHECK(cursor.at_end());
  CHECK(decision.allowed == from.at("allowed").get<bool>());
  CHECK(decision.limit == from.at("limit").get<std::uint64_t>());
  CHECK(decision.remaining == from.at("remaining").get<std::uint64_t>());
  CHECK(decision.retry_after_us == from.at("retry_after_us").get<std::int64_t>());
  CHECK(decision.reset_after_us == from.at("reset_after_us").get<std::uint64_t>());
  CHECK(decision.verdict == from.at("verdict").get<std::string>());
  CHECK(decision.source == from.at("source").get<std::string>());
  CHECK(decision.tier == from.at("tier").get<std::string>());
  CHECK(decision.window_us == from.at("window_us").get<std::uint64_t>());
  CHECK(decision.more_after_us == from.at("more_after_us").get<std::uint64_t>());
}

TEST_CASE("vectors: a client reads every reply as its line says") {
  for (const json& line : read_lines("replies.jsonl")) {
    CAPTURE(line.at("name").get<std::string>());
    const testing::ExactCopy bytes(from_hex(line.at("hex").get<std::string>()));
    const Reply reply = read_reply(bytes.span(), kMaxReplyBytes);
    REQUIRE(reply.kind == Reply::Kind::reply);
    CHECK(reply.size == bytes.span().size());
    CHECK(reply.msgid == line.at("msgid").get<std::uint64_t>());
    if (line.contains("error")) {
      const auto code = line.at("error").at("code").get<std::string>();
      const auto text = line.at("error").at("text").get<std::string>();
      CHECK(reply.error == (text.empty() ? code : code + ": " + text));
      continue;
    }
    CHECK(reply.error.empty());
    if (line.contains("decision")) {
      check_decision(line.at("decision"), reply.result);
      continue;
    }
    Cursor cursor(reply.result);
    Value value;
    REQUIRE(read_value(cursor, value));
    CHECK(json::parse(value.to_json()) == line.at("value"));
  }
}

std::string malformed_bytes(const json& line) {
  std::string bytes = from_hex(line.at("hex").get<std::string>());
  if (!line.contains("then")) return bytes;
  const std::string more = from_hex(line.at("then").at("hex").get<std::string>());
  for (int i = 0; i < line.at("then").at("times").get<int>(); ++i) bytes += more;
  return bytes;
}

TEST_CASE("vectors: the agent meets malformed bytes as their line says") {
  for (const json& line : read_lines("malformed.jsonl")) {
    if (line.at("to") != "agent") continue;
    CAPTURE(line.at("name").get<std::string>());
    const testing::ExactCopy bytes(malformed_bytes(line));
    const Message message = read_message(bytes.span());
    const auto is = line.at("is").get<std::string>();
    if (is == "incomplete") {
      CHECK(message.kind == Message::Kind::incomplete);
      CHECK_FALSE(line.at("closes").get<bool>());
    } else if (is == "violation") {
      CHECK(message.kind == Message::Kind::violation);
      CHECK(line.at("closes").get<bool>());
    } else {
      REQUIRE(is == "refusal");
      REQUIRE(message.kind == Message::Kind::request);
      REQUIRE(message.request.refusal.has_value());
      CHECK(name_of(message.request.refusal->code) == line.at("code").get<std::string>());
      CHECK(message.request.msgid == line.at("msgid").get<std::uint64_t>());
      CHECK(message.ends_stream == line.at("closes").get<bool>());
    }
  }
}

TEST_CASE("vectors: a client meets malformed bytes as their line says") {
  for (const json& line : read_lines("malformed.jsonl")) {
    if (line.at("to") != "client") continue;
    CAPTURE(line.at("name").get<std::string>());
    const testing::ExactCopy bytes(malformed_bytes(line));
    const Reply reply = read_reply(bytes.span(), kMaxReplyBytes);
    const auto is = line.at("is").get<std::string>();
    if (is == "incomplete") {
      CHECK(reply.kind == Reply::Kind::incomplete);
      CHECK_FALSE(line.at("closes").get<bool>());
      continue;
    }
    REQUIRE(is == "violation");
    CHECK(line.at("closes").get<bool>());
    Cursor cursor(reply.result);
    ReceivedDecision decision;
    const bool is_decision = reply.kind == Reply::Kind::reply && read_decision(cursor, decision);
    CHECK_FALSE(is_decision);
    CHECK(reply.kind != Reply::Kind::incomplete);
  }
}

}  // namespace
}  // namespace allowd::protocol
