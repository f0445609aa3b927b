// What ONNX Runtime's CPU provider does with memory, without arena and memory pattern (as onnxruntime.ts sets it): the kernels that write over their
// input, what some need beside, and the copies of the outputs. Found by counting its allocations (version 1.30 on x64 Linux).

import { type Graph, intAttribute, type Node } from '../graph/graph.ts';
import { inferTypes } from '../graph/infer-types.ts';
import { type MemoryModel, type MemoryUse, memoryUse, viewOperators } from '../graph/lifetimes.ts';
import { byteLength, elementBytes, elementCount, type ValueType } from '../graph/tensor.ts';
import { blockedDomain } from '../lowering/layouts.ts';
import { withStatistics } from './batch-statistics.ts';
import { blockedType } from './blocked-types.ts';
import { peelReshapes } from './border-reshapes.ts';
import { arrangeForMemory, executionOrder } from './execution-order.ts';
import { tidy } from './tidy.ts';

/** A graph as it goes to the runtime. */
export function prepareGraph(graph: Graph): Graph {
  return arrangeForMemory(tidy(withStatistics(graph)));
}

/** Kernels that write over input 0. */
const inPlace = new Set([
  'Cast',
  'Celu',
  'Clip',
  'Elu',
  'HardSigmoid',
  'LeakyRelu',
  'LogSoftmax',
  'Relu',
  'Selu',
  'Sigmoid',
  'Softmax',
  'Softplus',
  'Softsign',
  'Tanh',
  'ThresholdedRelu',
]);

/** Without arena and memory pattern, on the CPU provider. */
export const onnxRuntimeMemory: MemoryModel = {
  order: executionOrder,
  shares: ({ operator, domain }) => {
    if (domain === blockedDomain) return operator === 'Conv' ? { how: 'in-place', input: 3 } : undefined;
    if (viewOperators.has(operator)) return { how: 'view', input: 0 };
    return inPlace.has(operator) ? { how: 'in-place', input: 0 } : undefined;
  },
  reusesDead: true,
  workspaceBytes,
};

function workspaceBytes(node: Node, inputs: readonly (ValueType | undefined)[], outputs: readonly ValueType[]): number {
  const [first] = outputs;
  const bytes = first === undefined ? 0 : byteLength(first);
  switch (node.operator) {
    case 'ConvTranspose': {
      // the columns of one image: each element of the input times the weights
      const [x, w] = inputs as [ValueType, ValueType];
      return elementBytes(x.type) * elementCount(x.shape.slice(2)) * elementCount(w.shape.slice(1)) * intAttribute(node, 'group', 1);
    }
    case 'HardSwish':
    case 'ScatterElements':
      return bytes;
    case 'Mish':
      return 2 * bytes;
    case 'Where':
      return 2 * bytes;
    case 'Softmax':
    case 'LogSoftmax':
      return (intAttribute(node, 'axis', -1) + (first?.shape.length ?? 0)) % (first?.shape.length ?? 1) === (first?.shape.length ?? 0) - 1
        ? 0
        : 2 * bytes;
    default:
      return 0;
  }
}

/** What one run of a compiled graph takes beside its inputs and constants. */
export interface RunMemory extends MemoryUse {
  /** The outputs twice: the Node package copies all of them before it lets go of the runtime's. */
  readonly copiedBytes: number;
  /** The larger of the two peaks, of nodes and of copying. */
  readonly runBytes: number;
}

/** The memory of one run of a graph on this engine, as it is compiled. `blockSize` is the engine's. */
export function runMemory(graph: Graph, blockSize?: number): RunMemory {
  const prepared = prepareGraph(peelReshapes(graph, blockSize).graph);
  const use = memoryUse(
    prepared,
    onnxRuntimeMemory,
    inferTypes(prepared, (node, inputs) => blockedType(node, inputs, blockSize)),
  );
  const copiedBytes = 2 * use.outputBytes;
  return { ...use, copiedBytes, runBytes: Math.max(use.peakBytes, copiedBytes) };
}
