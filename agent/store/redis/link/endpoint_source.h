// SPDX-License-Identifier: MIT
//
// Where a server is found. Asked anew before every attempt to connect, since after a failover the answer may
// be another one; of some sources also while connected.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "agent/result/result.h"
#include "agent/store/redis/link/endpoint.h"

namespace allowd::store {

class EndpointSource {
 public:
  using Done = std::function<void(Result<RedisEndpoint>)>;

  virtual ~EndpointSource() = default;

  // Calls `done` once, maybe before returning, unless `forget` or another `find` comes first. Whom it asks
  // for that does not hold it up for long.
  virtual void find(Done done) = 0;
  // The answer is not wanted any more.
  virtual void forget() = 0;
  // Whether it finds the master of servers that change roles. What it finds has to say of itself that it may
  // be written to, since the answer may be out of date; and as one that was replaced may go on answering, the
  // source is asked now and then whether another one is found.
  [[nodiscard]] virtual bool must_be_master() const { return false; }
  // For people: what it looks for, without passwords.
  [[nodiscard]] virtual std::string display() const = 0;
};

// A server that is always found where the config says.
class FixedEndpoint final : public EndpointSource {
 public:
  explicit FixedEndpoint(RedisEndpoint endpoint) : endpoint_(std::move(endpoint)) {}

  void find(Done done) override { done(endpoint_); }
  void forget() override {}
  [[nodiscard]] std::string display() const override { return endpoint_.display(); }

 private:
  RedisEndpoint endpoint_;
};

}  // namespace allowd::store
