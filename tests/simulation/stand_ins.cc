// Takes the place of parts of the daemons at link time. The headers are the product's, so whatever
// uses them is, too.
//   Worker    has no threads: when a task runs is the seed's choice, at a wait of its process
//   Log       goes to the trace, and tells the world
#include <memory>
#include <utility>

#include "platform/daemon/log.h"
#include "platform/daemon/worker.h"
#include "tests/simulation/world.h"

namespace gpushm {

using simulation::Process;
using simulation::World;

// ---- Worker

struct Worker::Shared {
  std::shared_ptr<simulation::TaskQueue> queue = std::make_shared<simulation::TaskQueue>();
  Process* process = nullptr;
};

Worker::Worker(size_t max_threads, Threads) : shared_(std::make_shared<Shared>()) {
  shared_->queue->at_once = max_threads;
  shared_->process = World::Current()->running();
  shared_->process->queues.push_back(shared_->queue);
}

Worker::~Worker() {
  while (!abandoned_ && !shared_->queue->tasks.empty()) {
    const Task task = std::move(shared_->queue->tasks.front());
    shared_->queue->tasks.pop_front();
    task();
  }
}

void Worker::Run(Task task) {
  if (shared_->process->blocks_for_workers) return task();
  shared_->queue->tasks.push_back(std::move(task));
}

void Worker::Close(std::vector<UniqueFd> fds) {
  Run([owned = std::make_shared<std::vector<UniqueFd>>(std::move(fds))] { owned->clear(); });
}

size_t Worker::backlog() const { return shared_->queue->tasks.size(); }

// ---- Log

void ConfigureLog(const LogConfig&) {}

void Log(LogLevel, std::string_view event, std::initializer_list<Field> fields) {
  World* const world = World::Current();
  if (world == nullptr) return;
  std::string text(event);
  for (const Field& field : fields) text += Concat(' ', field.key(), '=', field.value());
  world->Log(event, text);
}

}  // namespace gpushm
