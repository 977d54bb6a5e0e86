// Stream capture and graphs: a graph is the list of the operations that one stream got, with their
// values. Joining several streams into a capture is not simulated (STREAM_CAPTURE_UNSUPPORTED).
#include "simulator/cuda/driver.h"

using gpushm::sim::Call;
using gpushm::sim::CallWithContext;
using gpushm::sim::Context;
using gpushm::sim::Driver;
using gpushm::sim::Engine;
using gpushm::sim::Graph;
using gpushm::sim::Stream;

CUresult CUDAAPI cuStreamBeginCapture(CUstream hStream, CUstreamCaptureMode mode) {
  return CallWithContext("cuStreamBeginCapture",
                         [&](Driver& driver, Context&, const std::shared_ptr<Engine>&) {
                           if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
                             return CUDA_ERROR_INVALID_VALUE;
                           std::shared_ptr<Stream> stream;
                           const CUresult result = driver.FindStream(hStream, &stream);
                           if (result != CUDA_SUCCESS) return result;
                           if (stream->null_stream) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
                           const std::lock_guard lock(driver.mutex);
                           if (stream->capturing) return CUDA_ERROR_ILLEGAL_STATE;
                           stream->capturing = true;
                           stream->captured.clear();
                           return CUDA_SUCCESS;
                         });
}

CUresult CUDAAPI cuStreamEndCapture(CUstream hStream, CUgraph* phGraph) {
  return CallWithContext("cuStreamEndCapture",
                         [&](Driver& driver, Context&, const std::shared_ptr<Engine>&) {
                           std::shared_ptr<Stream> stream;
                           const CUresult result = driver.FindStream(hStream, &stream);
                           if (result != CUDA_SUCCESS) return result;
                           const std::lock_guard lock(driver.mutex);
                           if (phGraph == nullptr || !stream->capturing)
                             return CUDA_ERROR_ILLEGAL_STATE;
                           auto graph = std::make_shared<Graph>();
                           graph->nodes.swap(stream->captured);
                           stream->capturing = false;
                           *phGraph = driver.NewHandle<CUgraph>();
                           driver.graphs[*phGraph] = std::move(graph);
                           return CUDA_SUCCESS;
                         });
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus* captureStatus) {
  return CallWithContext(
      "cuStreamIsCapturing", [&](Driver& driver, Context&, const std::shared_ptr<Engine>&) {
        if (captureStatus == nullptr) return CUDA_ERROR_INVALID_VALUE;
        std::shared_ptr<Stream> stream;
        const CUresult result = driver.FindStream(hStream, &stream);
        if (result != CUDA_SUCCESS) return result;
        const std::lock_guard lock(driver.mutex);
        *captureStatus =
            stream->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
        return CUDA_SUCCESS;
      });
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph,
                                             unsigned long long) {
  return CallWithContext(
      "cuGraphInstantiateWithFlags", [&](Driver& driver, Context&, const std::shared_ptr<Engine>&) {
        const std::lock_guard lock(driver.mutex);
        const auto graph = driver.graphs.find(hGraph);
        if (phGraphExec == nullptr || graph == driver.graphs.end()) return CUDA_ERROR_INVALID_VALUE;
        *phGraphExec = driver.NewHandle<CUgraphExec>();
        driver.graph_execs[*phGraphExec] = std::make_shared<Graph>(*graph->second);
        return CUDA_SUCCESS;
      });
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
  return CallWithContext("cuGraphLaunch",
                         [&](Driver& driver, Context&, const std::shared_ptr<Engine>&) {
                           std::shared_ptr<Graph> graph;
                           {
                             const std::lock_guard lock(driver.mutex);
                             const auto found = driver.graph_execs.find(hGraphExec);
                             if (found == driver.graph_execs.end()) return CUDA_ERROR_INVALID_VALUE;
                             graph = found->second;
                           }
                           for (const gpushm::sim::Work& node : graph->nodes) {
                             const CUresult result = Enqueue(driver, hStream, node);
                             if (result != CUDA_SUCCESS) return result;
                           }
                           return CUDA_SUCCESS;
                         });
}

CUresult CUDAAPI cuGraphDestroy(CUgraph hGraph) {
  return Call("cuGraphDestroy", [&](Driver& driver) {
    const std::lock_guard lock(driver.mutex);
    return driver.graphs.erase(hGraph) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec hGraphExec) {
  return Call("cuGraphExecDestroy", [&](Driver& driver) {
    const std::lock_guard lock(driver.mutex);
    return driver.graph_execs.erase(hGraphExec) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}
