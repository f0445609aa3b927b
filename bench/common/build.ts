// Modules of a build by folder: this checkout's `dist`, or that of another version to compare with. The table makes a
// path that no longer exists an error of the compiler.

import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

interface Modules {
  'autodiff/differentiate.js': typeof import('../../dist/autodiff/differentiate.js');
  'autodiff/forward-mode.js': typeof import('../../dist/autodiff/forward-mode.js');
  'autodiff/recompute.js': typeof import('../../dist/autodiff/recompute.js');
  'autodiff/saving.js': typeof import('../../dist/autodiff/saving.js');
  'cli/settings.js': typeof import('../../dist/cli/settings.js');
  'cluster/activation-bits.js': typeof import('../../dist/cluster/activation-bits.js');
  'engine/buffers.js': typeof import('../../dist/engine/buffers.js');
  'engine/lowering.js': typeof import('../../dist/engine/lowering.js');
  'engine/node/compute-thread.js': typeof import('../../dist/engine/node/compute-thread.js');
  'engine/node/host-node.js': typeof import('../../dist/engine/node/host-node.js');
  'engine/node/onnxruntime-node.js': typeof import('../../dist/engine/node/onnxruntime-node.js');
  'engine/onnxruntime-memory.js': typeof import('../../dist/engine/onnxruntime-memory.js');
  'engine/reference.js': typeof import('../../dist/engine/reference.js');
  'graph/builder.js': typeof import('../../dist/graph/builder.js');
  'graph/emitter.js': typeof import('../../dist/graph/emitter.js');
  'graph/gradient-name.js': typeof import('../../dist/graph/gradient-name.js');
  'graph/layers.js': typeof import('../../dist/graph/layers.js');
  'graph/onnx/export.js': typeof import('../../dist/graph/onnx/export.js');
  'graph/onnx/import.js': typeof import('../../dist/graph/onnx/import.js');
  'graph/onnx/modes.js': typeof import('../../dist/graph/onnx/modes.js');
  'graph/stage.js': typeof import('../../dist/graph/stage.js');
  'graph/static.js': typeof import('../../dist/graph/static.js');
  'graph/tensor.js': typeof import('../../dist/graph/tensor.js');
  'models/blocks.js': typeof import('../../dist/models/blocks.js');
  'models/vit.js': typeof import('../../dist/models/vit.js');
  'models/zoo.js': typeof import('../../dist/models/zoo.js');
  'planner/cost.js': typeof import('../../dist/planner/cost.js');
  'planner/layout.js': typeof import('../../dist/planner/layout.js');
  'planner/plan.js': typeof import('../../dist/planner/plan.js');
  'planner/planners.js': typeof import('../../dist/planner/planners.js');
  'random.js': typeof import('../../dist/random.js');
  'runtime/device/all-reduce.js': typeof import('../../dist/runtime/device/all-reduce.js');
  'runtime/device/codec.js': typeof import('../../dist/runtime/device/codec.js');
  'runtime/device/create-stage.js': typeof import('../../dist/runtime/device/create-stage.js');
  'runtime/device/mailbox.js': typeof import('../../dist/runtime/device/mailbox.js');
  'runtime/device/segmented-vector.js': typeof import('../../dist/runtime/device/segmented-vector.js');
  'runtime/host/profile-here.js': typeof import('../../dist/runtime/host/profile-here.js');
  'runtime/host/session-here.js': typeof import('../../dist/runtime/host/session-here.js');
  'runtime/run/delayed-training.js': typeof import('../../dist/runtime/run/delayed-training.js');
  'runtime/run/evaluate.js': typeof import('../../dist/runtime/run/evaluate.js');
  'runtime/run/settings.js': typeof import('../../dist/runtime/run/settings.js');
  'runtime/run/subject.js': typeof import('../../dist/runtime/run/subject.js');
  'schedule/generate.js': typeof import('../../dist/schedule/generate.js');
  'schedule/schedules.js': typeof import('../../dist/schedule/schedules.js');
  'simulator/simulate.js': typeof import('../../dist/simulator/simulate.js');
  'storage/node/datasets.js': typeof import('../../dist/storage/node/datasets.js');
  'testing/random-plans.js': typeof import('../../dist/testing/random-plans.js');
  'testing/random-problems.js': typeof import('../../dist/testing/random-problems.js');
  'testing/run-graph.js': typeof import('../../dist/testing/run-graph.js');
  'training/data/dataset.js': typeof import('../../dist/training/data/dataset.js');
  'training/data/order.js': typeof import('../../dist/training/data/order.js');
  'transport/tensor-memory.js': typeof import('../../dist/transport/tensor-memory.js');
  'transport/node/tls/authority.js': typeof import('../../dist/transport/node/tls/authority.js');
  'transport/node/websocket-server.js': typeof import('../../dist/transport/node/websocket-server.js');
  'transport/node/websocket.js': typeof import('../../dist/transport/node/websocket.js');
}

/** Imports a module of a build. */
export type Load = <Path extends keyof Modules>(path: Path) => Promise<Modules[Path]>;

/** What imports modules of the build in `folder`, from the working directory. */
export function loadFrom(folder: string): Load {
  return (path) => import(pathToFileURL(resolve(folder, path)).href);
}
