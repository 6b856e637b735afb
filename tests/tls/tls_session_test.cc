// SPDX-License-Identifier: MIT
//
// The client's side against OpenSSL's server side, with a wire in between that the test holds in its hands.
#include "agent/tls/tls_session.h"

#include <string>

#include "tests/support/printing.h"
#include "tests/support/temporary_directory.h"
#include "tests/tls/certificates.h"
#include "tests/tls/tls_peer.h"

namespace allowd::tls {
namespace {

using protocol::ByteBuffer;
using testing::Certificate;
using testing::TlsPeer;
using testing::Wanted;

constexpr std::size_t kAtOnce = ~std::size_t{0};

struct Trust {
  testing::TemporaryDirectory directory;
  Certificate authority = testing::make_authority("authority");

  Trust() { testing::write_file(directory / "ca.pem", authority.pem()); }

  TlsContext context(bool verify = true) const {
    auto made = TlsContext::make({.ca_file = directory / "ca.pem", .verify = verify});
    REQUIRE(made);
    return *made;
  }
  // One that shows a certificate too.
  TlsContext context_of(const Certificate& own) const {
    testing::write_file(directory / "cert.pem", own.pem());
    testing::write_file(directory / "key.pem", own.key_pem());
    auto made = TlsContext::make({.ca_file = directory / "ca.pem",
                                  .cert_file = directory / "cert.pem",
                                  .key_file = directory / "key.pem"});
    REQUIRE(made);
    return *made;
  }
};

// Both ends, and what became of ours.
struct Call {
  Call(const TlsContext& context, const Certificate& certificate, const std::string& name = "redis.test",
       const TlsPeer::Options& options = {})
      : session(context, name), peer(certificate, options) {
    problem = session.start(network);
    to_peer();
  }

  void to_peer() {
    peer.take(network.view());
    network.clear();
  }
  void to_session(std::string_view bytes, std::size_t step = kAtOnce) {
    for (std::size_t at = 0; at < bytes.size() && !problem; at += std::min(step, bytes.size() - at)) {
      problem = session.receive(std::as_bytes(std::span(bytes.substr(at, step))), plain, network);
    }
  }
  // Until nobody has anything more to say, in pieces of `step` bytes.
  void settle(std::size_t step = kAtOnce) {
    for (std::string bytes = peer.drain(); !bytes.empty(); bytes = peer.drain()) {
      to_session(bytes, step);
      to_peer();
    }
  }
  [[nodiscard]] std::string reason() const { return problem ? problem->message : ""; }

  TlsSession session;
  TlsPeer peer;
  ByteBuffer network;
  ByteBuffer plain;
  Failure problem;
};

std::string reason_of(const Trust& trust, const Certificate& certificate, const std::string& name) {
  Call call(trust.context(), certificate, name);
  call.settle();
  CHECK(call.session.is_ready() == !call.problem.has_value());
  return call.reason();
}

TEST_CASE("tls session: what is sent arrives, either way, in both versions") {
  const Trust trust;
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    CAPTURE(version);
    Call call(trust.context(), testing::make_certificate(trust.authority), "redis.test",
              {.max_version = version});
    CHECK_FALSE(call.session.is_ready());
    call.settle();
    REQUIRE(call.session.is_ready());
    CHECK(call.reason().empty());
    CHECK(SSL_version(call.peer.raw()) == version);
    CHECK_FALSE(call.session.send("PING\r\n", call.network));
    CHECK(call.network.view().find("PING") == std::string_view::npos);
    call.to_peer();
    CHECK(call.peer.received == "PING\r\n");
    call.peer.send("+PONG\r\n");
    call.settle();
    CHECK(call.plain.view() == "+PONG\r\n");
    CHECK_FALSE(call.session.has_ended());
  }
}

TEST_CASE("tls session: a handshake and records in pieces of one byte") {
  const Trust trust;
  Call call(trust.context(), testing::make_certificate(trust.authority));
  call.settle(1);
  REQUIRE(call.session.is_ready());
  call.peer.send("one");
  call.peer.send("two");
  call.settle(1);
  CHECK(call.plain.view() == "onetwo");
}

TEST_CASE("tls session: much at once, in many records") {
  const Trust trust;
  Call call(trust.context(), testing::make_certificate(trust.authority));
  call.settle();
  const std::string much(1'000'000, 'x');
  CHECK_FALSE(call.session.send(much, call.network));
  call.to_peer();
  CHECK(call.peer.received == much);
  call.peer.send(much);
  call.settle(64 * 1024);
  CHECK(call.plain.view() == much);
}

TEST_CASE("tls session: the end of the handshake and the first plaintext may come together") {
  const Trust trust;
  Call call(trust.context(), testing::make_certificate(trust.authority), "redis.test",
            {.max_version = TLS1_2_VERSION});
  for (int turn = 0; turn < 2 && !call.peer.is_ready(); ++turn) {
    const std::string bytes = call.peer.drain();
    call.to_session(bytes);
    call.to_peer();
  }
  REQUIRE(call.peer.is_ready());
  REQUIRE_FALSE(call.session.is_ready());
  call.peer.send("at once");
  call.settle();
  CHECK(call.session.is_ready());
  CHECK(call.plain.view() == "at once");
}

TEST_CASE("tls session: a server whose certificate is not to be trusted is refused, with the reason") {
  const Trust trust;
  const Certificate& authority = trust.authority;
  const auto made = [&](const Wanted& wanted) { return testing::make_certificate(authority, wanted); };
  const std::string refused = "certificate verify failed: ";
  CHECK(reason_of(trust, made({}), "redis.test").empty());
  CHECK(reason_of(trust, made({.seconds_to = -60}), "redis.test") == refused + "certificate has expired");
  CHECK(reason_of(trust, made({.seconds_from = 60}), "redis.test") ==
        refused + "certificate is not yet valid");
  CHECK(reason_of(trust, made({}), "other.test") == refused + "hostname mismatch, expected other.test");
  const Certificate stranger = testing::make_authority("stranger");
  CHECK(reason_of(trust, testing::make_certificate(stranger), "redis.test") ==
        refused + "unable to get local issuer certificate");
  CHECK(reason_of(trust, stranger, "redis.test") == refused + "self-signed certificate");
}

TEST_CASE("tls session: the refused server is told, and nothing goes on") {
  const Trust trust;
  Call call(trust.context(), testing::make_certificate(testing::make_authority("stranger")));
  call.to_session(call.peer.drain());
  REQUIRE(call.problem);
  CHECK_FALSE(call.network.empty());  // the alert
  call.to_peer();
  CHECK_FALSE(call.peer.is_ready());
  ByteBuffer network;
  call.session.close(network);
  CHECK(network.empty());
  const std::string more = "more";
  CHECK_FALSE(call.session.receive(std::as_bytes(std::span(more)), call.plain, network));
  CHECK(call.plain.empty());
}

TEST_CASE("tls session: names, wildcards, addresses") {
  const Trust trust;
  const std::string refused = "certificate verify failed: ";
  const auto named = [&](const std::string& names) {
    return testing::make_certificate(trust.authority, {.names = names});
  };
  CHECK(reason_of(trust, named("DNS:*.redis.test"), "a.redis.test").empty());
  CHECK(reason_of(trust, named("DNS:*.redis.test"), "A.Redis.Test").empty());
  CHECK(reason_of(trust, named("DNS:*.redis.test"), "a.redis.test.").empty());
  CHECK_FALSE(reason_of(trust, named("DNS:*.redis.test"), "a.b.redis.test").empty());
  CHECK_FALSE(reason_of(trust, named("DNS:a*.redis.test"), "ab.redis.test").empty());
  CHECK(reason_of(trust, named("IP:10.0.0.1,IP:2001:db8::1"), "10.0.0.1").empty());
  CHECK(reason_of(trust, named("IP:10.0.0.1,IP:2001:db8::1"), "2001:db8::1").empty());
  CHECK(reason_of(trust, named("IP:fe80::1"), "fe80::1%eth0").empty());
  CHECK(reason_of(trust, named("DNS:10.0.0.1"), "10.0.0.1") ==
        refused + "IP address mismatch, expected 10.0.0.1");
  CHECK(reason_of(trust, named("IP:10.0.0.1"), "10.0.0.2") ==
        refused + "IP address mismatch, expected 10.0.0.2");
}

TEST_CASE("tls session: a name is asked for, an address is not") {
  const Trust trust;
  const Certificate certificate =
      testing::make_certificate(trust.authority, {.names = "DNS:redis.test,IP:10.0.0.1,IP:::1"});
  for (const auto& [name, asked] : {std::pair<std::string, std::string>{"redis.test", "redis.test"},
                                    {"redis.test.", "redis.test"},
                                    {"10.0.0.1", ""},
                                    {"::1", ""}}) {
    CAPTURE(name);
    Call call(trust.context(), certificate, name);
    call.settle();
    CHECK(call.session.is_ready());
    CHECK(call.peer.asked_for() == asked);
  }
}

TEST_CASE("tls session: what cannot be a server's name is refused before anything is sent") {
  const Trust trust;
  for (const std::string& name :
       {std::string(), std::string("."), std::string("a\0b", 3), std::string(300, 'x')}) {
    TlsSession session(trust.context(), name);
    ByteBuffer network;
    const Failure problem = session.start(network);
    REQUIRE(problem);
    CHECK(problem->message.ends_with("is no name of a server"));
    CHECK(network.empty());
  }
}

TEST_CASE("tls session: without verification any certificate will do") {
  const Trust trust;
  const Certificate bad = testing::make_certificate(testing::make_authority("stranger"),
                                                    {.names = "DNS:other.test", .seconds_to = -60});
  Call call(trust.context(false), bad);
  call.settle();
  CHECK(call.session.is_ready());
  CHECK(call.reason().empty());
  CHECK(call.peer.asked_for() == "redis.test");
}

TEST_CASE("tls session: a server that wants our certificate") {
  const Trust trust;
  const Certificate certificate = testing::make_certificate(trust.authority);
  const Certificate own = testing::make_certificate(trust.authority, {.names = ""});
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    CAPTURE(version);
    const TlsPeer::Options options{.client_authority = &trust.authority, .max_version = version};
    Call with(trust.context_of(own), certificate, "redis.test", options);
    with.settle();
    CHECK(with.reason().empty());
    CHECK(with.session.is_ready());
    CHECK(with.peer.is_ready());

    Call without(trust.context(), certificate, "redis.test", options);
    without.settle();
    CHECK(without.reason() == (version == TLS1_3_VERSION ? "the server refuses: certificate required"
                                                         : "the server refuses: handshake failure"));

    const Certificate foreign = testing::make_certificate(testing::make_authority("stranger"));
    Call wrong(trust.context_of(foreign), certificate, "redis.test", options);
    wrong.settle();
    CHECK(wrong.reason() == "the server refuses: unknown ca");
  }
}

TEST_CASE("tls session: versions before 1.2 are not spoken") {
  const Trust trust;
  Call call(trust.context(), testing::make_certificate(trust.authority), "redis.test",
            {.max_version = TLS1_1_VERSION});
  call.settle();
  CHECK_FALSE(call.session.is_ready());
  CHECK(call.reason() == "the server refuses: protocol version");
}

TEST_CASE("tls session: a server that does not speak TLS") {
  const Trust trust;
  for (const std::string& answer :
       {std::string("-ERR unknown command\r\n"), std::string("HTTP/1.1 400 Bad Request\r\n"),
        std::string(64, '\0'), std::string(100'000, 'x')}) {
    CAPTURE(answer.substr(0, 20));
    Call call(trust.context(), testing::make_certificate(trust.authority));
    call.to_session(answer);
    CHECK(call.reason() == "what the server says is not TLS; a port without TLS needs redis://");
    CHECK_FALSE(call.session.is_ready());
  }
}

TEST_CASE("tls session: bytes that were damaged, left out or repeated on the way end it") {
  const Trust trust;
  for (const int damage : {0, 1, 2}) {
    CAPTURE(damage);
    Call call(trust.context(), testing::make_certificate(trust.authority));
    call.settle();
    REQUIRE(call.session.is_ready());
    call.peer.send("first");
    std::string bytes = call.peer.drain();
    if (damage == 0) bytes.back() = static_cast<char>(bytes.back() ^ 1);
    if (damage == 1) {
      call.peer.send("second");
      bytes = call.peer.drain();
    }
    if (damage == 2) bytes += bytes;
    call.to_session(bytes);
    CHECK_FALSE(call.reason().empty());
    CHECK(call.plain.view() == (damage == 2 ? "first" : ""));  // what was whole is not taken back
  }
}

TEST_CASE("tls session: whatever is wrong in what the server says first, nobody is believed") {
  const Trust trust;
  const Certificate certificate = testing::make_certificate(trust.authority);
  const TlsContext context = trust.context();
  constexpr std::size_t kStep = 17;
  for (std::size_t at = 0; at < 4096; at += kStep) {
    Call call(context, certificate);
    std::string flight = call.peer.drain();
    if (at >= flight.size()) break;
    flight[at] = static_cast<char>(flight[at] ^ 0x10);
    call.to_session(flight);
    CAPTURE(at);
    CHECK_FALSE(call.session.is_ready());
    CHECK(call.plain.empty());
  }
}

TEST_CASE("tls session: half a handshake or half a record is waited for") {
  const Trust trust;
  Call call(trust.context(), testing::make_certificate(trust.authority));
  const std::string hello = call.peer.drain();
  call.to_session(hello.substr(0, hello.size() / 2));
  CHECK(call.reason().empty());
  CHECK_FALSE(call.session.is_ready());
  call.to_session(hello.substr(hello.size() / 2));
  call.to_peer();
  call.settle();
  REQUIRE(call.session.is_ready());
  call.peer.send("whole");
  const std::string record = call.peer.drain();
  call.to_session(record.substr(0, record.size() - 1));
  CHECK(call.plain.empty());
  call.to_session(record.substr(record.size() - 1));
  CHECK(call.plain.view() == "whole");
}

TEST_CASE("tls session: close_notify, from either side") {
  const Trust trust;
  Call ours(trust.context(), testing::make_certificate(trust.authority));
  ours.settle();
  ours.session.close(ours.network);
  ours.to_peer();
  CHECK((SSL_get_shutdown(ours.peer.raw()) & SSL_RECEIVED_SHUTDOWN) != 0);

  Call theirs(trust.context(), testing::make_certificate(trust.authority));
  theirs.settle();
  theirs.peer.send("last");
  theirs.peer.close();
  theirs.settle();
  CHECK(theirs.plain.view() == "last");
  CHECK(theirs.session.has_ended());
  CHECK(theirs.reason().empty());

  Call early(trust.context(), testing::make_certificate(trust.authority));
  early.session.close(early.network);
  CHECK(early.network.empty());
}

TEST_CASE("tls session: new keys are agreed to, a flood of requests for them is not") {
  const Trust trust;
  Call call(trust.context(), testing::make_certificate(trust.authority));
  call.settle();
  REQUIRE(SSL_key_update(call.peer.raw(), SSL_KEY_UPDATE_REQUESTED) == 1);
  call.peer.send("with new keys");
  call.settle();
  CHECK(call.plain.view() == "with new keys");
  CHECK_FALSE(call.session.send("with ours", call.network));
  call.to_peer();
  CHECK(call.peer.received == "with ours");

  // Each request is answered, and the answers are not read: they would have to be kept.
  std::size_t answered = 0;
  for (int i = 0; i < 100'000 && !call.problem; ++i) {
    REQUIRE(SSL_key_update(call.peer.raw(), SSL_KEY_UPDATE_REQUESTED) == 1);
    REQUIRE(SSL_do_handshake(call.peer.raw()) == 1);
    call.to_session(call.peer.drain());
    answered += call.network.size();
    call.to_peer();
  }
  CAPTURE(answered);
  CHECK_FALSE(call.reason().empty());
  CHECK(answered <= 256 * 1024);
}

TEST_CASE("tls session: renegotiation is refused") {
  const Trust trust;
  Call call(trust.context(), testing::make_certificate(trust.authority), "redis.test",
            {.max_version = TLS1_2_VERSION});
  call.settle();
  REQUIRE(call.session.is_ready());
  REQUIRE(SSL_renegotiate(call.peer.raw()) == 1);
  SSL_do_handshake(call.peer.raw());  // asks us for it
  const std::string request = call.peer.drain();
  REQUIRE_FALSE(request.empty());
  call.to_session(request);
  REQUIRE_FALSE(call.network.empty());
  CHECK(call.network.view().front() == SSL3_RT_ALERT);  // and no handshake, which would begin with another
  CHECK(call.reason().empty());
}

}  // namespace
}  // namespace allowd::tls
