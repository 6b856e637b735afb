// SPDX-License-Identifier: MIT
#include "agent/loop/background_task.h"

#include <uv.h>

#include <cassert>
#include <utility>

namespace allowd::loop {

struct BackgroundTask::Job {
  uv_work_t request{};
  BackgroundTask* owner = nullptr;
  std::function<void()> work;
  std::function<void()> done;
};

void BackgroundTask::start(std::function<void()> work, std::function<void()> done) {
  assert(!is_running());
  job_ = new Job{{}, this, std::move(work), std::move(done)};
  job_->request.data = job_;
  uv_queue_work(
      loop_.raw(), &job_->request, [](uv_work_t* request) { static_cast<Job*>(request->data)->work(); },
      [](uv_work_t* request, int) {
        const std::unique_ptr<Job> job(static_cast<Job*>(request->data));
        if (job->owner == nullptr) return;
        job->owner->job_ = nullptr;
        job->done();
      });
}

BackgroundTask::~BackgroundTask() {
  if (job_ == nullptr) return;
  job_->owner = nullptr;
  // One that has not begun never will; one that runs finishes on its own.
  uv_cancel(reinterpret_cast<uv_req_t*>(&job_->request));
}

}  // namespace allowd::loop
